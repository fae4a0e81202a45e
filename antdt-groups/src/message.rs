//! What workers and the generator of groups say to each other.

use std::fmt;
use std::sync::Arc;

use antdt_core::{Holder, JobTime, MembershipVersion};

/// Which group: its place in the order of all groups, and the attempt to run it. Written `7.0`.
///
/// A worker executes groups in increasing order of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GroupKey {
    /// Its place; given once, when the group is made.
    pub order: u64,
    /// Number of earlier attempts. A group that runs again after a failure keeps its place.
    pub attempt: u32,
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.order, self.attempt)
    }
}

/// What a group was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum GroupOrigin {
    /// Drawn from all workers.
    Random,
    /// A part of all that were idle.
    Division,
    /// One worker of each host.
    Inter,
    /// Some workers of one host.
    IntraPart,
    /// All idle workers of one host.
    IntraAll,
    /// Workers whose groups had no member in common for a while.
    Bridge,
}

/// Decision about a group's average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupDecision {
    /// All members have the average: it is their model now.
    Commit,
    /// Not all members have the average: none uses it.
    Abort,
}

/// How a member's part in a group went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReduceOutcome {
    /// The member has the average, and has not used it yet.
    Reduced,
    /// The member has no average. A suspect is left out of the next attempt.
    Failed {
        /// Member that the sender blames, if any.
        suspect: Option<Holder>,
    },
}

/// A group that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Go {
    /// Key of the group.
    pub key: GroupKey,
    /// Purpose that the group was formed for.
    pub kind: GroupOrigin,
    /// The membership under which it runs.
    pub membership: MembershipVersion,
    /// Members, in order of node; the position is the rank. At least two.
    pub members: Box<[Holder]>,
    /// When the generator gives it up.
    pub deadline: JobTime,
}

/// What can happen to the generator. It takes repeated, late and reordered messages: at most one copy has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum GeneratorEvent {
    /// A worker wants to take part. An older life of its node is gone then.
    Hello {
        /// Node and incarnation.
        holder: Holder,
        /// The host it runs on: equal for workers that share a link to others.
        host: u32,
    },
    /// A worker has finished a step and wants to average. It waits until it is answered, by `Skip` or the last group's
    /// `Commit`.
    Request {
        /// Node and incarnation.
        holder: Holder,
        /// Its running number of requests, from 1.
        sequence: u64,
    },
    /// A member's part in a running group is over.
    Done {
        /// Node and incarnation.
        holder: Holder,
        /// The group.
        group: GroupKey,
        /// Result of the member's part.
        outcome: ReduceOutcome,
    },
    /// A worker that waits for nothing leaves.
    Bye {
        /// Node and incarnation.
        holder: Holder,
    },
    /// A worker was given up. None of its messages counts from now on.
    Lost {
        /// Node and incarnation.
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

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Taken {
    /// It changed something.
    New,
    /// A repetition; what its sender may have missed is sent again.
    Again,
    /// An old copy, overtaken by newer messages. It changed nothing.
    Old,
}

/// Why a message was refused. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum GeneratorError {
    /// The incarnation is over, as far as the generator knows.
    #[error("{holder} was given up or has left; start its next life and say hello")]
    Fenced {
        /// Sender of the message.
        holder: Holder,
    },
    /// The worker does not take part.
    #[error("{holder} does not take part; say hello first")]
    Unknown {
        /// Sender of the message.
        holder: Holder,
    },
    /// Only workers average.
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
        /// Largest number allowed.
        most: u32,
    },
    /// The worker still waits for the answer to another request.
    #[error(
        "{holder} still waits for its request {open}; it may ask for the next one, or leave, when that is answered"
    )]
    Open {
        /// Sender of the message.
        holder: Holder,
        /// The request that is not answered.
        open: u64,
    },
    /// There is no such group.
    #[error(
        "{holder} reports group {group}, and only {made} were ever made; report the group that it was told to run"
    )]
    NoGroup {
        /// Sender of the message.
        holder: Holder,
        /// The group named in the message.
        group: GroupKey,
        /// Groups that were made.
        made: u64,
    },
}

/// What the outside must do: messages to workers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum GeneratorEffect {
    /// The worker shall run this group.
    Go {
        /// Incarnation that the message goes to.
        to: Holder,
        /// The request that it serves.
        request: u64,
        /// The group, shared by its members.
        go: Arc<Go>,
        /// Whether its commit answers the request. If not, another group follows.
        last: bool,
    },
    /// The request is answered: there is nothing, or nothing more, to average.
    Skip {
        /// Incarnation that the message goes to.
        to: Holder,
        /// The request.
        request: u64,
    },
    /// All members of the group have the average: take it over.
    Commit {
        /// Incarnation that the message goes to.
        to: Holder,
        /// The group.
        group: GroupKey,
    },
    /// The group was aborted: discard its average. If the request is still open, another group follows.
    Abort {
        /// Incarnation that the message goes to.
        to: Holder,
        /// The group.
        group: GroupKey,
        /// Member that caused the abort, if it is known.
        culprit: Option<Holder>,
    },
    /// To all workers: the set of present workers has changed.
    #[doc(alias = "Epoch")]
    Membership {
        /// The new version.
        membership: MembershipVersion,
        /// Incarnation that joined or left.
        who: Holder,
        /// Whether it joined.
        joined: bool,
    },
}
