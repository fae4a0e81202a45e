//! Messages between workers and master about steps that all workers take together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::action::Plan;
use crate::data::{Ack, Acks};
use crate::id::{Holder, MembershipVersion, PlanVersion, Rank, RollbackId};

/// The samples that one rank trained in a step: the worker, and the acks that count them as trained.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Contribution {
    /// Worker that trained the samples.
    pub holder: Holder,
    /// Acks of the samples, to be sent when the step is committed.
    pub acks: Acks,
}

/// A step whose result a worker has, with the contributions to the step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepResult {
    /// Number of the step.
    pub step: u64,
    /// Contribution of each rank. Shared, because every member of the group has the same.
    pub contributions: Arc<[Contribution]>,
}

/// State of a worker's model and group, which the worker reports to the master when it asks for a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Standing {
    /// Version of the newest group that the worker was told of; 0 before the first. The other fields describe
    /// the worker when it left that group, so that the master recognises an old copy of the message by this
    /// field.
    pub group: MembershipVersion,
    /// Newest step that the worker applied; `None` if it holds no trained model.
    pub applied: Option<StepResult>,
    /// The step after `applied`, if the worker has its result but does not know whether all members do;
    /// otherwise `None`.
    pub prepared: Option<StepResult>,
    /// Whether the worker left the group because a call to other members failed. Members that are still in a
    /// call there wait in vain.
    pub broken: bool,
}

/// Message of a worker whose push of a step is on all servers. In modes whose workers ask for permission to begin a
/// step, a message with samples and without acks asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Readiness {
    /// Number of samples in the worker's push; 0 if it had nothing to push.
    pub samples: u64,
    /// Whether the worker has seen the end of the data.
    pub end_of_data: bool,
    /// Newest plan that the worker holds.
    pub plan: PlanVersion,
    /// Acks of these samples, to be sent when the step is committed.
    pub acks: Vec<Ack>,
}

/// A committed step of synchronous parameter servers, with the workers whose pushes it consists of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepCommit {
    /// Number of the step. Numbers increase; a step without samples takes a number but changes nothing.
    pub step: u64,
    /// Workers whose pushes make up the step, with the acks of each; only those with samples. Shared by all
    /// copies of the commit, because every member gets one.
    pub contributors: Arc<BTreeMap<Holder, Vec<Ack>>>,
    /// Number of samples over all contributors.
    pub samples: u64,
    /// Plan that all workers apply before their next batch, if all of them hold the same new plan; otherwise
    /// `None`.
    pub apply: Option<PlanVersion>,
    /// Whether training is over: all workers have seen the end of the data, and none had samples.
    pub end: bool,
    /// In an answer to a worker: the step that the worker asked for. It is this step, or an earlier one that
    /// was committed without waiting for the worker.
    pub asked: u64,
    /// In an answer to a worker: whether the worker's push is part of the step that it asked for. In modes
    /// whose workers ask for permission to begin a step: whether the worker may begin it.
    pub counted: bool,
    /// Whether no member that may have had samples was left out. If so, a step with fewer samples than usual
    /// shows that no more were there.
    pub everyone: bool,
}

impl StepCommit {
    /// Returns this commit as the answer to a worker that asked for step `asked`; `counted` says whether the
    /// worker's push is part of that step.
    #[must_use]
    pub fn answering(&self, asked: u64, counted: bool) -> Self {
        Self { asked, counted, ..self.clone() }
    }
}

/// How far the pushes of one life of a worker count, where each worker pushes at its own pace. Servers apply a push
/// when they learn that it counts: all of them, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PushMark {
    /// Worker and incarnation that pushed.
    pub holder: Holder,
    /// Step of the newest push that counts; `None` if none does.
    pub step: Option<u64>,
}

/// The master's answer to a worker that asked for a group.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Joined {
    /// Version of the group.
    pub membership: MembershipVersion,
    /// Members with their data-plane addresses, in order of rank. Shared by all copies of the answer, because
    /// every member gets one.
    pub members: Arc<[(Holder, String)]>,
    /// Whether the worker must apply its prepared step before anything else.
    pub commit_prepared: bool,
    /// Rank whose model, the newest, those get that have none, from it or from any with the same one; `None` at the start of the
    /// job, when all start from the seed.
    pub source: Option<Rank>,
    /// Number of the next step of the group.
    pub next_step: u64,
    /// Plan in force in the group.
    pub plan: Plan,
    /// Newest committed step, which the servers may still have to apply; only with synchronous parameter
    /// servers.
    pub last_commit: Option<StepCommit>,
    /// Pushes that count and that the servers may still have to apply; only with servers to which each worker
    /// pushes at its own pace.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pushes: Arc<[PushMark]>,
    /// Whether the job has ended while the worker waited.
    pub finished: bool,
    /// Newest rollback of the job. Work that the worker did before it is undone.
    pub rollback: RollbackId,
    /// Location of the checkpoint from which models start if there is no `source`; `None` if they start with
    /// the job's initial parameters.
    pub checkpoint: Option<Arc<str>>,
    /// Addresses of the parameter servers by index; empty in a job without servers.
    pub servers: Arc<[String]>,
}
