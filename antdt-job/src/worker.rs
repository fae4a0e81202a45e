//! The training loop of one life of a worker: what it asks for, in which order, and what it concludes.
//!
//! The loop takes one step at a time: an answer in, the next [`Call`] out. The driver carries the call out and brings
//! its answer; between the two the loop waits. Gradients and parameters stay with the driver, samples and steps are
//! decided here. What the master orders meanwhile stands in the [`AgentSession`].
//!
//! What all sync modes share is [`WorkerCore`]: leases and batches, plans, reports, the beginning and the end. What comes
//! between a batch in memory and its acknowledgement is the [worker half](crate::mode::WorkerHalf) of the mode.
//!
//! Source: our design.

mod core;
mod feed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{AgentSession, Batch, Batcher, MicroBatch};
use antdt_collective::lanes::{Lanes, Verdict};
use antdt_core::{
    Ack, AckOutcome, Acks, CheckpointId, Exchanged, Held, Holder, JobTime, Joined, PlanVersion, Rank,
    Readiness, Registered, RequestId, Standing, StepCommit, StepResult,
};

use crate::mode::{SyncMode, Turn, WorkerHalf};

pub use core::WorkerCore;
use core::{At, Then};

/// What the training loop asks its driver to do. There is one call at a time; each variant names the [`Reply`] that
/// answers it.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Ask the master for a place in a group of all live workers. Answered by [`Reply::Joined`].
    Join(Standing),
    /// Connect to the group, and take or give the model if a member lacks it. Answered by [`Reply::Entered`] or
    /// [`Reply::Broken`].
    Enter(Box<Joined>),
    /// Register with the shard service, presenting the leases of the worker's earlier registration. Answered by
    /// [`Reply::Registered`].
    Register(Vec<Held>),
    /// Acknowledge samples and ask for shards. Answered by [`Reply::Exchanged`], or by [`Reply::ServiceRestarted`] if
    /// the worker must register again.
    Exchange {
        /// Number of the request; a request is repeated with the same number until it is answered.
        request: RequestId,
        /// Acknowledgements of the samples that are committed.
        acks: Acks,
        /// Number of shards wanted; 0 to acknowledge only.
        want: u32,
        /// How long the service may hold the request open while it has no shard to grant.
        wait: Duration,
    },
    /// Give leases back: those that another worker could begin now, or all of them before the training stops in order.
    /// Answered by [`Reply::Released`] or [`Reply::ServiceRestarted`].
    Release(Vec<Ack>),
    /// Tell the shard service that a sample cannot be read. Answered by [`Reply::Released`] or
    /// [`Reply::ServiceRestarted`].
    Fail {
        /// Lease of the sample, and how much of the lease is committed.
        at: Ack,
        /// What is wrong with the sample.
        why: String,
    },
    /// Wait for this time, because the worker has no batch size yet. Answered by [`Reply::Slept`].
    Sleep(Duration),
    /// Read the samples of a batch, which may be empty. Answered by [`Reply::Loaded`], or by [`Reply::Unreadable`], after which an
    /// empty batch takes its place.
    Load(Batch),
    /// Read the samples of one micro-batch of a batch. The driver adds up the gradients of all micro-batches, from the
    /// first to the last, into one. Answered like [`Load`](Self::Load).
    LoadPiece(Batch, MicroBatch),
    /// With servers: get the parameters that the batch needs. Answered by [`Reply::Pulled`] or [`Reply::Broken`].
    Pull,
    /// Compute the gradient of the loaded batch or micro-batch, which is zero if the batch is empty. Answered by
    /// [`Reply::Computed`].
    Compute,
    /// Replicas: add up the gradients of all members. Models of their own: average them, weighted by samples among all members and
    /// uniformly where models mix. Learn which member contributed which samples. [`Reply::Combined`] or
    /// [`Reply::Broken`].
    Combine {
        /// Number of the step.
        step: u64,
        /// Number of samples in this worker's batch.
        samples: u64,
        /// Acknowledgements that are due when the step is committed.
        acks: Acks,
        /// Members whose models this worker averages with its own.
        peers: Peers,
    },
    /// Add up the control values of all members. Answered by [`Reply::Agreed`] or [`Reply::Broken`].
    Agree(Lanes),
    /// Apply to the model what was combined last. Answered by [`Reply::Applied`].
    Apply,
    /// With servers: send the gradient to all of them. Answered by [`Reply::Pushed`] or [`Reply::Broken`].
    Push {
        /// Step that the gradient belongs to.
        step: u64,
        /// Number of samples in the batch.
        samples: u64,
    },
    /// Where the master commits steps: wait until it commits this step, or says which workers take part in it. Answered
    /// by [`Reply::Committed`] or [`Reply::Broken`].
    Ready {
        /// Number of the step.
        step: u64,
        /// Samples and acknowledgements of this worker in the step.
        readiness: Readiness,
    },
    /// Where each worker has a model of its own: change it by the gradient that was computed last. Answered by
    /// [`Reply::Advanced`].
    Advance,
    /// Where each worker has a model of its own: go back to the model of the last average. Answered by
    /// [`Reply::Reverted`].
    Revert,
    /// Between two steps: take this checkpoint, or wait while another worker takes it. Answered by [`Reply::Rested`].
    Rest(CheckpointId),
    /// Training is over; nothing follows.
    Stop(End),
}

/// The members that a worker combines with in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// All members of the group.
    All,
    /// These members, in order of rank and including the worker itself. If one worker names another, the other names it
    /// too.
    Few(Vec<Rank>),
    /// These members, in order of rank and including the worker itself, in a group of their own: the other members of
    /// the whole group do something else meanwhile.
    Apart {
        /// Number of the group. A worker's groups have increasing numbers.
        group: u64,
        /// Ranks of its members.
        ranks: Vec<Rank>,
    },
}

impl Peers {
    /// Returns the number of these members in a group of size `world`, including the worker itself.
    pub fn count(&self, world: u32) -> u32 {
        match self {
            Self::All => world,
            Self::Few(ranks) | Self::Apart { ranks, .. } => u32::try_from(ranks.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether this rank is one of these members.
    pub fn contains(&self, rank: Rank) -> bool {
        match self {
            Self::All => true,
            Self::Few(ranks) | Self::Apart { ranks, .. } => ranks.binary_search(&rank).is_ok(),
        }
    }
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The first reply of a life, which answers no call.
    Begin,
    /// See [`Call::Join`].
    Joined(Box<Joined>),
    /// Answers [`Call::Enter`]: the worker has the job's model now.
    Entered,
    /// A member failed or was late. With servers: a server is gone, or a rollback has undone the step.
    Broken,
    /// See [`Call::Register`].
    Registered(Registered),
    /// See [`Call::Exchange`].
    Exchanged(Exchanged),
    /// The shard service was restarted and knows no worker: this worker must register again.
    ServiceRestarted,
    /// See [`Call::Release`].
    Released,
    /// See [`Call::Sleep`].
    Slept,
    /// See [`Call::Load`].
    Loaded,
    /// A sample of the batch cannot be read.
    Unreadable {
        /// Number of the sample in the data set.
        sample: u64,
        /// Why it cannot be read.
        why: String,
    },
    /// See [`Call::Pull`].
    Pulled,
    /// See [`Call::Compute`].
    Computed {
        /// Number of samples that were loaded.
        samples: u64,
        /// Sum of the losses of these samples.
        loss_sum: f64,
    },
    /// Answers [`Call::Combine`] with the samples that each member contributed.
    Combined(StepResult),
    /// See [`Call::Agree`].
    Agreed(Verdict),
    /// See [`Call::Apply`].
    Applied,
    /// See [`Call::Push`].
    Pushed,
    /// See [`Call::Ready`].
    Committed(Box<StepCommit>),
    /// See [`Call::Advance`].
    Advanced,
    /// See [`Call::Revert`].
    Reverted,
    /// See [`Call::Rest`].
    Rested,
}

impl Reply {
    /// Returns the reply to [`Call::Release`] or [`Call::Fail`] for what the shard service says of the leases that were given back. A
    /// lease that had ended says that the service was restarted: what is part of the model of it has to be presented again.
    pub fn returned(outcomes: &[AckOutcome]) -> Self {
        if outcomes.contains(&AckOutcome::StaleLease) { Self::ServiceRestarted } else { Self::Released }
    }
}

/// How a worker's training ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// No samples are left.
    EndOfData {
        /// Whether the worker has the job's model; false for a replacement that came after the last step.
        trained: bool,
    },
    /// The master ordered the worker to leave.
    Drained,
    /// The worker cannot go on, for this reason.
    Failed(String),
}

/// How long a step without samples may wait for a shard to come back: short, since the peers wait too.
const PATIENCE: Duration = Duration::from_millis(20);

/// The same for a worker that keeps in step with no other one.
pub(crate) const PATIENCE_ALONE: Duration = Duration::from_secs(1);

/// The training loop of one life of a worker. See the [module](self).
#[derive(Debug, Clone)]
pub struct WorkerLoop {
    core: WorkerCore,
    half: Box<dyn WorkerHalf>,
}

impl WorkerLoop {
    /// Returns the loop of a life that has registered with the master. Its first reply is [`Reply::Begin`].
    pub fn new(holder: Holder, sync: &SyncMode, now: JobTime) -> Self {
        Self { core: WorkerCore::new(holder, now), half: sync.worker() }
    }

    /// Returns the life of the worker that this loop trains for.
    pub const fn holder(&self) -> Holder {
        self.core.holder()
    }

    /// Returns the number of the step that the worker takes: the job's where all workers combine together, its own in
    /// the other modes.
    pub const fn steps(&self) -> u64 {
        self.core.steps()
    }

    /// Whether every sample of the job is accounted for, as far as the shard service has told this worker.
    pub const fn end_of_data(&self) -> bool {
        self.core.end_of_data()
    }

    /// Returns the number of samples per batch in the plan in force; 0 before the first plan.
    pub const fn batch_size(&self) -> u32 {
        self.core.batch_size()
    }

    /// Returns the version of the plan in force, and the values of further actions in it, by the action's name; `None` if it has none. The driver
    /// carries them out before it loads the first batch under the plan.
    pub const fn actions(&self) -> (PlanVersion, Option<&Arc<BTreeMap<String, String>>>) {
        self.core.actions()
    }

    /// Returns the leases that the worker holds.
    pub const fn leases(&self) -> &Batcher {
        self.core.leases()
    }

    /// Takes the answer to the last call, and says what to do next. `session` is the agent's side of the session with
    /// the master: orders and plans are read from it, reports are left in it.
    ///
    /// A reply that does not answer the last call ends the training: [`End::Failed`].
    pub fn step(&mut self, now: JobTime, session: &mut AgentSession, reply: &Reply) -> Call {
        let Self { core, half } = self;
        let mut turn = Turn { now, session };
        match (core.take_at(), reply) {
            (At::Start, Reply::Begin) => core.join(half.standing()),
            // The answer to an earlier question: what became of that group, the worker knows.
            (At::Joining, Reply::Joined(joined)) if half.knows(joined) => core.join(half.standing()),
            (At::Joining, Reply::Joined(joined)) if joined.rollback > core.rollback() => {
                half.rolled_back();
                match core.roll_back(joined) {
                    Some(call) => call,
                    None => half.joined(core, &mut turn, joined),
                }
            }
            (At::Joining, Reply::Joined(joined)) => half.joined(core, &mut turn, joined),
            (At::Feeding(then), reply) => match core.answer(&then, reply) {
                Ok(Some(call)) => call,
                Ok(None) => match then {
                    Then::Take => core.load_taken(),
                    Then::TakeNothing => core.load(Batch::default()),
                    Then::Half => half.fed(core, &mut turn),
                    Then::Join(joined) => half.joined(core, &mut turn, &joined),
                    Then::Stop(end) => core.stop(end),
                },
                Err(why) => core.fail(why),
            },
            (At::Sleeping, Reply::Slept) => core.load(Batch::default()),
            (At::Loading, Reply::Loaded) => half.loaded(core, &mut turn),
            (At::Loading, Reply::Unreadable { sample, why }) => {
                let call = half.before_fault(core, &mut turn);
                call.unwrap_or_else(|| core.fault(*sample, why.clone()))
            }
            (At::Half, Reply::Computed { samples, loss_sum }) => {
                // The mode is told of one gradient, in however many micro-batches it was computed.
                match core.computed_piece(&turn, *samples, *loss_sum) {
                    Ok(next) => next,
                    Err((samples, loss_sum)) => {
                        half.answered(core, &mut turn, &Reply::Computed { samples, loss_sum })
                    }
                }
            }
            (At::Half, reply) => half.answered(core, &mut turn, reply),
            (at @ (At::Start | At::Joining | At::Sleeping | At::Loading | At::Over), reply) => {
                core.not_an_answer(reply, &at)
            }
        }
    }
}

impl Call {
    /// Returns the batch that the driver must read, and the micro-batch of it that this call reads.
    pub const fn loads(&self) -> Option<(&Batch, MicroBatch)> {
        match self {
            Self::Load(batch) => Some((batch, MicroBatch::WHOLE)),
            Self::LoadPiece(batch, micro) => Some((batch, *micro)),
            _ => None,
        }
    }
}

/// Why a reply ends the training.
pub(crate) fn not_an_answer(reply: &Reply, asked: &impl std::fmt::Debug) -> String {
    let (reply, asked) = (format!("{reply:?}"), format!("{asked:?}"));
    let name = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    format!("the reply {} came while {}; carry out one call at a time", name(&reply), name(&asked))
}

#[cfg(test)]
mod tests;
