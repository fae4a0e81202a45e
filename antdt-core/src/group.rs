//! What workers and master say to each other about a step that all take together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::action::Plan;
use crate::data::{Ack, Acks};
use crate::id::{Holder, MembershipVersion, PlanVersion, Rank};

/// What one rank contributed to a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Contribution {
    /// Whose samples.
    pub holder: Holder,
    /// The acks that are due when the step is committed.
    pub acks: Acks,
}

/// A step whose result a worker has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepResult {
    /// Which step.
    pub step: u64,
    /// What each rank contributed to it. Shared, as every member of the group has the same.
    pub contributions: Arc<[Contribution]>,
}

/// What a worker brings when it asks for a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Standing {
    /// The newest group that it was told of; 0 before the first. Everything it says was so when it left that group, so
    /// an old copy of it is known by its group.
    pub group: MembershipVersion,
    /// Newest step it applied; `None` if it holds no trained model.
    pub applied: Option<StepResult>,
    /// The step after it, if the worker has its result but does not know whether everyone does.
    pub prepared: Option<StepResult>,
}

/// What a worker says when its push of a step is on all servers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Readiness {
    /// Samples in its push; 0 if it had nothing to push.
    pub samples: u64,
    /// It has seen the end of the data.
    pub end_of_data: bool,
    /// Newest plan it holds.
    pub plan: PlanVersion,
    /// Acks that are due when the step is committed.
    pub acks: Vec<Ack>,
}

/// A committed step of a synchronous parameter server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepCommit {
    /// Which step. Numbers grow; a step without samples uses up a number but changes nothing.
    pub step: u64,
    /// Whose pushes make it up, and the acks of each; only those with samples.
    /// Shared by all copies of the commit: every member gets one.
    pub contributors: Arc<BTreeMap<Holder, Vec<Ack>>>,
    /// Samples over all contributors.
    pub samples: u64,
    /// Plan that everyone applies before the next batch, if all hold a new one.
    pub apply: Option<PlanVersion>,
    /// Everyone has seen the end of the data, and nobody had samples: training is over.
    pub end: bool,
}

/// What a worker that asked for a group is told.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Joined {
    /// Version of the group.
    pub membership: MembershipVersion,
    /// Members and their data-plane addresses, in order of rank.
    /// Shared by all copies of the answer: every member gets one.
    pub members: Arc<[(Holder, String)]>,
    /// Whether to apply the prepared step before anything else.
    pub commit_prepared: bool,
    /// Who has the newest model; `None` at the start of the job: all start from the seed.
    pub source: Option<Rank>,
    /// Step that follows.
    pub next_step: u64,
    /// Plan in force in the group.
    pub plan: Plan,
    /// Newest committed step, for the servers; only with a synchronous parameter server.
    pub last_commit: Option<StepCommit>,
    /// The job has ended while this worker waited.
    pub finished: bool,
}
