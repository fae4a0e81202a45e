//! What workers and master say to each other about a step that all take together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::action::Plan;
use crate::data::{Ack, Acks};
use crate::id::{Holder, MembershipVersion, PlanVersion, Rank, RollbackId};

/// What one rank contributed to a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Contribution {
    /// Worker that trained the samples.
    pub holder: Holder,
    /// The acks that are due when the step is committed.
    pub acks: Acks,
}

/// A step whose result a worker has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepResult {
    /// Number of the step.
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
    /// The step after it, if the worker has its result but does not know whether all members do.
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
    /// Plan that all workers apply before the next batch, if all hold a new one.
    pub apply: Option<PlanVersion>,
    /// Training is over: all workers have seen the end of the data, and none had samples.
    pub end: bool,
    /// In an answer, the step that its recipient asked for: this one or an earlier one, which was committed without waiting for it.
    pub asked: u64,
    /// In an answer, whether the recipient's push is part of the step that it asked for. Where workers only ask for their turn:
    /// whether it begins that step.
    pub counted: bool,
}

impl StepCommit {
    /// The same commit as the answer to a worker that asked for this step; whether its push is part of that one.
    #[must_use]
    pub fn answering(&self, asked: u64, counted: bool) -> Self {
        Self { asked, counted, ..self.clone() }
    }
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
    /// Rank that has the newest model; `None` at the start of the job, when all start from the seed.
    pub source: Option<Rank>,
    /// Step that follows.
    pub next_step: u64,
    /// Plan in force in the group.
    pub plan: Plan,
    /// Newest committed step, for the servers; only with a synchronous parameter server.
    pub last_commit: Option<StepCommit>,
    /// The job has ended while this worker waited.
    pub finished: bool,
    /// The newest rollback of the job. What the worker did under an older one is undone.
    pub rollback: RollbackId,
    /// Checkpoint from which models start that have no source: its place. `None` if they start as at the job's start.
    pub checkpoint: Option<Arc<str>>,
    /// Addresses of the servers by index; empty in a job without.
    pub servers: Arc<[String]>,
}
