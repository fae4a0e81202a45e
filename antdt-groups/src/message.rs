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
    /// How often it was run before. A group that runs again after a failure keeps its place.
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
pub enum GroupKind {
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
    /// Workers whose groups had nobody in common for a while.
    Bridge,
}

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All members have the average: it is their model now.
    Commit,
    /// Not all members have it: nobody takes it over.
    Abort,
}

/// How a member's part in a group went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// It has the average, and has not taken it over yet.
    Reduced,
    /// It has not. A suspect sits the next attempt out.
    Failed {
        /// On whose account, as far as the member knows.
        suspect: Option<Holder>,
    },
}

/// A group that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Go {
    /// Which.
    pub key: GroupKey,
    /// What for.
    pub kind: GroupKind,
    /// The membership under which it runs.
    pub membership: MembershipVersion,
    /// Who, by node: the position is the rank. At least two.
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
        /// Who.
        holder: Holder,
        /// The host it runs on: equal for workers that share a link to others.
        host: u32,
    },
    /// A worker has finished a step and wants to average. It waits until it is answered, by `Skip` or the last group's
    /// `Commit`.
    Request {
        /// Who.
        holder: Holder,
        /// Its running number of requests, from 1.
        sequence: u64,
    },
    /// A member's part in a running group is over.
    Done {
        /// Who.
        holder: Holder,
        /// Of which group.
        group: GroupKey,
        /// How it went.
        outcome: Outcome,
    },
    /// A worker that waits for nothing leaves.
    Bye {
        /// Who.
        holder: Holder,
    },
    /// A worker was given up. None of its messages counts from now on.
    Lost {
        /// Who.
        holder: Holder,
    },
}

impl GeneratorEvent {
    /// Whom it is about.
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
    /// The life is over, as far as the generator was told.
    #[error("{holder} was given up or has left; start its next life and say hello")]
    Fenced {
        /// Whose message.
        holder: Holder,
    },
    /// Nobody of that name takes part.
    #[error("{holder} does not take part; say hello first")]
    Unknown {
        /// Whose message.
        holder: Holder,
    },
    /// Only workers average.
    #[error("{holder} has no model of its own to average; only workers take part")]
    NoWorker {
        /// Whose message.
        holder: Holder,
    },
    /// As many take part as may.
    #[error("{holder} is one too many: at most {most} workers take part; raise members_max")]
    Full {
        /// Whose message.
        holder: Holder,
        /// How many may.
        most: u32,
    },
    /// The worker still waits for the answer to another request.
    #[error(
        "{holder} still waits for its request {open}; it may ask for the next one, or leave, when that is answered"
    )]
    Open {
        /// Whose message.
        holder: Holder,
        /// The request that is not answered.
        open: u64,
    },
    /// There is no such group.
    #[error(
        "{holder} reports group {group}, and only {made} were ever made; report the group that it was told to run"
    )]
    NoGroup {
        /// Whose message.
        holder: Holder,
        /// What it named.
        group: GroupKey,
        /// Groups that were made.
        made: u64,
    },
}

/// What the outside must do: messages to workers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum GeneratorEffect {
    /// Run this group.
    Go {
        /// Who.
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
        /// Who.
        to: Holder,
        /// The request.
        request: u64,
    },
    /// All members of the group have the average: take it over.
    Commit {
        /// Who.
        to: Holder,
        /// The group.
        group: GroupKey,
    },
    /// The group broke off: forget its average. If the request is still open, more follows.
    Abort {
        /// Who.
        to: Holder,
        /// The group.
        group: GroupKey,
        /// On whose account, if that is known.
        culprit: Option<Holder>,
    },
    /// To all: who takes part has changed.
    #[doc(alias = "Epoch")]
    Membership {
        /// The new version.
        membership: MembershipVersion,
        /// Who joined or left.
        who: Holder,
        /// Whether it joined.
        joined: bool,
    },
}
