//! A worker's process in a trial.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{AgentSession, Batch};
use antdt_core::{CheckpointId, Fragment, Holder, JobTime, MembershipVersion, PlanVersion, RollbackId};

use crate::mode::SyncMode;
use crate::worker::{Call, Reply, WorkerLoop};

/// What a worker's process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Starting,
    Training,
    Leaving { end_of_data: bool, can_evaluate: bool },
    Evaluating,
    Exiting,
}

/// What each member of a group contributed to a step.
#[derive(Debug, PartialEq)]
pub(super) struct Made {
    pub(super) by: BTreeMap<Holder, Vec<Fragment>>,
    /// All members have the same result.
    pub(super) for_all: bool,
}

pub(super) type Parts = Arc<Made>;

/// A reply that is on its way, and the sums that come with it.
#[derive(Debug, Clone)]
pub(super) struct Coming {
    pub(super) reply: Reply,
    pub(super) parts: Option<(u64, Parts)>,
    /// The operation of a group that it ends.
    pub(super) of_group: bool,
}

impl From<Reply> for Coming {
    fn from(reply: Reply) -> Self {
        Self { reply, parts: None, of_group: false }
    }
}

#[derive(Debug)]
pub(super) struct Life {
    pub(super) stage: Stage,
    pub(super) session: AgentSession,
    pub(super) worker: WorkerLoop,
    /// What the training loop waits for, and what will answer it.
    pub(super) call: Option<Call>,
    pub(super) coming: Option<Coming>,
    /// What its gradient is of, and what was loaded last.
    pub(super) batch: Batch,
    pub(super) piece: Batch,
    /// Samples of the gradient that is computed beside other calls.
    pub(super) beside: Option<u64>,
    /// The newest step in the model that the gradient was begun on.
    pub(super) gradient_of: Option<Option<u64>>,
    /// The plan whose actions its driver has carried out, with a batch that was loaded under it.
    pub(super) begun: PlanVersion,
    pub(super) unreadable: bool,
    pub(super) hangs: bool,
    /// Newest step in its model; `None` without the job's model.
    pub(super) model: Option<u64>,
    pub(super) trained: bool,
    /// What was combined last and is not applied.
    pub(super) prepared: Option<(u64, Parts)>,
    /// Its model is that of the job: the same as all others', where they do not mix.
    pub(super) of_all: bool,
    /// What its own model has beyond the last average.
    pub(super) advanced: Vec<Fragment>,
    /// The group of all that it is in, and the one apart from that, or 0.
    pub(super) group: Option<(MembershipVersion, u64)>,
    /// The checkpoint that it takes the copies of, and how often it has tried.
    pub(super) keeps: Option<(CheckpointId, u32)>,
    /// The newest rollback that it has joined after, and the servers that it has connections to.
    pub(super) rollback: RollbackId,
    pub(super) connected: BTreeSet<Holder>,
}

impl Life {
    /// The process of a worker that is started.
    pub(super) fn new(holder: Holder, mode: &SyncMode, now: JobTime) -> Self {
        Self {
            stage: Stage::Starting,
            session: AgentSession::new(now, Duration::from_secs(3600)),
            worker: WorkerLoop::new(holder, mode, now),
            call: None,
            coming: None,
            batch: Batch::default(),
            piece: Batch::default(),
            beside: None,
            gradient_of: None,
            begun: PlanVersion(0),
            unreadable: false,
            hangs: false,
            model: None,
            trained: false,
            prepared: None,
            of_all: false,
            advanced: Vec::new(),
            group: None,
            keeps: None,
            rollback: RollbackId(0),
            connected: BTreeSet::new(),
        }
    }

    /// Whether a gradient that is computed beside others ends the call that the worker waits in.
    pub(super) fn may_finish(&self) -> bool {
        self.beside.is_some() && matches!(self.call, Some(Call::ReadyBeside { .. }))
    }

    /// The gradient that was computed beside other calls; [`Reply::Broken`] if none was.
    pub(super) fn finished(&mut self) -> Reply {
        let reply =
            |samples| Reply::ComputedBeside { samples, loss_sum: 0.5, took: Duration::from_millis(1) };
        self.beside.take().map_or(Reply::Broken, reply)
    }
}
