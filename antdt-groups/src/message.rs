//! The messages between workers and the generator of groups.

use std::fmt;
use std::sync::Arc;

use antdt_core::{Holder, JobTime, MembershipVersion};

/// Identity of a group: its place in the order of all groups, and the attempt to run it. Written as `7.0`.
///
/// A worker runs its groups in increasing order of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Place in the order of all groups, given once when the group is formed.
    pub order: u64,
    /// Number of earlier attempts to run the group, which keeps its place after a failure.
    pub attempt: u32,
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.order, self.attempt)
    }
}

/// How a policy chose the members of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupOrigin {
    /// The members were drawn at random from all workers.
    Random,
    /// The members are one active and one passive worker, as in AD-PSGD.
    Pair,
    /// The members are the first workers that asked.
    Arrival,
    /// The members are one part of a division of all idle workers.
    Division,
    /// The members are one worker of each host, to average across hosts.
    Inter,
    /// The members are some workers of one host, while others average across hosts.
    IntraPart,
    /// The members are all idle workers of one host.
    IntraAll,
    /// The members are workers whose groups had no member in common for a while, to connect them.
    Bridge,
}

/// The generator's decision about a group's average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupDecision {
    /// All members have the average: each adopts it as its model.
    Commit,
    /// Not all members have the average: each discards it.
    Abort,
}

/// Result of a member's part in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOutcome {
    /// The member has the average, and has not adopted it yet.
    Reduced,
    /// The member has no average. A suspect is left out of the next attempt.
    Failed {
        /// Member that the sender blames for the failure; `None` if it knows none.
        suspect: Option<Holder>,
    },
}

/// Order of the generator to run a group; every member gets the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Go {
    /// Key of the group.
    pub key: GroupKey,
    /// How the members of the group were chosen.
    pub kind: GroupOrigin,
    /// Membership version under which the group runs.
    pub membership: MembershipVersion,
    /// Members, in order of node; the position is the rank. At least two.
    pub members: Box<[Holder]>,
    /// Time at which the generator gives the group up.
    pub deadline: JobTime,
}

/// A message to the generator. It accepts repeated, late and reordered messages: at most one copy has an
/// effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GeneratorEvent {
    /// A worker begins to take part in averages. It replaces the older incarnations of its node.
    Hello {
        /// Worker and incarnation that sends the message.
        holder: Holder,
        /// Number of the host that the worker runs on: equal for workers that share a link to other hosts.
        host: u32,
    },
    /// A worker has finished a step and wants to average. It waits for the answer: `Skip`, or the `Commit` of
    /// the last group.
    Request {
        /// Worker and incarnation that sends the message.
        holder: Holder,
        /// Running number of the worker's requests, from 1.
        sequence: u64,
    },
    /// A member reports the result of its part in a running group.
    Done {
        /// Worker and incarnation that sends the message.
        holder: Holder,
        /// Key of the group.
        group: GroupKey,
        /// Result of the member's part.
        outcome: ReduceOutcome,
    },
    /// A worker that waits for no answer leaves.
    Bye {
        /// Worker and incarnation that leaves.
        holder: Holder,
    },
    /// The master declared a worker lost. None of its messages counts from now on.
    Lost {
        /// Worker and incarnation that was declared lost.
        holder: Holder,
    },
}

impl GeneratorEvent {
    /// Returns the worker and incarnation that the message is about.
    pub const fn holder(&self) -> Holder {
        match self {
            Self::Hello { holder, .. }
            | Self::Request { holder, .. }
            | Self::Done { holder, .. }
            | Self::Bye { holder }
            | Self::Lost { holder } => *holder,
        }
    }
}

/// How the generator handled a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The message changed something.
    New,
    /// The message is a repetition; answers that its sender may have missed are sent again.
    Again,
    /// The message is an old copy, overtaken by newer messages. It changed nothing.
    Old,
}

/// Reason why the generator refused a message. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeneratorError {
    /// The incarnation was declared lost or replaced, as far as the generator knows: the worker must exit.
    #[error("{holder} was given up or has left; start its next life and say hello")]
    Fenced {
        /// Worker and incarnation that sent the message.
        holder: Holder,
    },
    /// The worker does not take part: it must say hello first.
    #[error("{holder} does not take part; say hello first")]
    Unknown {
        /// Worker and incarnation that sent the message.
        holder: Holder,
    },
    /// The node is not a worker. Only workers average.
    #[error("{holder} has no model of its own to average; only workers take part")]
    NoWorker {
        /// Node that sent the message.
        holder: Holder,
    },
    /// The generator has as many workers as it can take.
    #[error("{holder} is one too many: at most {most} workers take part; raise members_max")]
    Full {
        /// Worker and incarnation that sent the message.
        holder: Holder,
        /// Largest number of workers.
        most: u32,
    },
    /// The worker still waits for the answer to another request.
    #[error(
        "{holder} still waits for its request {open}; it may ask for the next one, or leave, when that is answered"
    )]
    Open {
        /// Worker and incarnation that sent the message.
        holder: Holder,
        /// Number of the request that is still open.
        open: u64,
    },
    /// No group with this key was formed.
    #[error(
        "{holder} reports group {group}, and only {made} were ever made; report the group that it was told to run"
    )]
    NoGroup {
        /// Worker and incarnation that sent the message.
        holder: Holder,
        /// Key of the group in the message.
        group: GroupKey,
        /// Number of groups formed so far.
        made: u64,
    },
}

/// A message from the generator to a worker, which its driver must send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GeneratorEffect {
    /// Order to a worker to run a group.
    Go {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Number of the request that the group serves.
        request: u64,
        /// The order, shared by the members of the group.
        go: Arc<Go>,
        /// Whether the group's commit answers the request; if not, another group follows.
        last: bool,
    },
    /// Answer to a request: there is no group to average with.
    Skip {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Number of the request.
        request: u64,
    },
    /// All members of a group have the average: the worker must adopt it as its model.
    Commit {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Key of the group.
        group: GroupKey,
    },
    /// A group was aborted: the worker must discard its average. If its request is still open, another group
    /// follows.
    Abort {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Key of the group.
        group: GroupKey,
        /// Member that caused the abort, if it is known.
        culprit: Option<Holder>,
    },
    /// The set of workers that take part has changed; all of them are told.
    #[doc(alias = "Epoch")]
    Membership {
        /// New version of the membership.
        membership: MembershipVersion,
        /// Worker and incarnation that joined or left.
        holder: Holder,
        /// Whether the worker joined (`true`) or left (`false`).
        joined: bool,
    },
}
