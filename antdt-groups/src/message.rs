//! The messages between workers and the generator of groups.

use std::fmt;
use std::sync::Arc;

use antdt_core::{Holder, JobTime, MembershipVersion};

/// Identity of a group: its place in the order of all groups, and the attempt to run it. Written `7.0`.
///
/// A worker runs its groups in increasing order of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Place in the order of all groups, given once when the group is formed.
    pub order: u64,
    /// Number of earlier attempts. A group that runs again after a failure keeps its place.
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
    /// Drawn at random from all workers.
    Random,
    /// A worker of each of two sides.
    Pair,
    /// The first that came.
    Arrival,
    /// One part of a division of all idle workers.
    Division,
    /// One worker of each host, to average across hosts.
    Inter,
    /// Some workers of one host, while others average across hosts.
    IntraPart,
    /// All idle workers of one host.
    IntraAll,
    /// Workers whose groups had no member in common for a while, to connect them.
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
        /// Member that the sender blames, if any.
        suspect: Option<Holder>,
    },
}

/// Order of the generator to run a group; every member gets the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Go {
    /// Key of the group.
    pub key: GroupKey,
    /// How the members were chosen.
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
    /// A worker wants to take part. This ends older incarnations of its node.
    Hello {
        /// Worker that the message is about, and its incarnation.
        holder: Holder,
        /// Number of the host it runs on: equal for workers that share a link to others.
        host: u32,
    },
    /// A worker has finished a step and wants to average. It waits for the answer: `Skip`, or the `Commit` of
    /// the last group.
    Request {
        /// Worker that the message is about, and its incarnation.
        holder: Holder,
        /// Running number of the worker's requests, from 1.
        sequence: u64,
    },
    /// A member's part in a running group is over.
    Done {
        /// Worker that the message is about, and its incarnation.
        holder: Holder,
        /// Key of the group.
        group: GroupKey,
        /// Result of the member's part.
        outcome: ReduceOutcome,
    },
    /// A worker that waits for nothing leaves.
    Bye {
        /// Worker that the message is about, and its incarnation.
        holder: Holder,
    },
    /// A worker was declared lost. None of its messages counts from now on.
    Lost {
        /// Worker that the message is about, and its incarnation.
        holder: Holder,
    },
}

impl GeneratorEvent {
    /// Returns the incarnation that the event is about.
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
        /// Sender of the message.
        holder: Holder,
    },
    /// The worker does not take part: it must say hello first.
    #[error("{holder} does not take part; say hello first")]
    Unknown {
        /// Sender of the message.
        holder: Holder,
    },
    /// The node is not a worker. Only workers average.
    #[error("{holder} has no model of its own to average; only workers take part")]
    NoWorker {
        /// Sender of the message.
        holder: Holder,
    },
    /// The generator has as many workers as it can take.
    #[error("{holder} is one too many: at most {most} workers take part; raise members_max")]
    Full {
        /// Sender of the message.
        holder: Holder,
        /// Largest number of workers.
        most: u32,
    },
    /// The worker still waits for the answer to another request.
    #[error(
        "{holder} still waits for its request {open}; it may ask for the next one, or leave, when that is answered"
    )]
    Open {
        /// Sender of the message.
        holder: Holder,
        /// Number of that request.
        open: u64,
    },
    /// No group with this key was formed.
    #[error(
        "{holder} reports group {group}, and only {made} were ever made; report the group that it was told to run"
    )]
    NoGroup {
        /// Sender of the message.
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
    /// The worker must run this group.
    Go {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Number of the request that the group serves.
        request: u64,
        /// The group, shared by its members.
        go: Arc<Go>,
        /// Whether its commit answers the request. If not, another group follows.
        last: bool,
    },
    /// The request is answered: there is nothing more to average.
    Skip {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Number of the request.
        request: u64,
    },
    /// All members of the group have the average: adopt it as the model.
    Commit {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Key of the group.
        group: GroupKey,
    },
    /// The group was aborted: discard its average. If the request is still open, another group follows.
    Abort {
        /// Incarnation that the message goes to.
        to: Holder,
        /// Key of the group.
        group: GroupKey,
        /// Member that caused the abort, if it is known.
        culprit: Option<Holder>,
    },
    /// The set of workers that take part has changed; goes to all of them.
    #[doc(alias = "Epoch")]
    Membership {
        /// New version of the membership.
        membership: MembershipVersion,
        /// Incarnation that joined or left.
        who: Holder,
        /// Whether it joined.
        joined: bool,
    },
}
