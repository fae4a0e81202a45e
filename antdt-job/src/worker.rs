//! [`WorkerLoop`]: the training loop of one incarnation of a worker, as a state machine.
//!
//! The loop gets a [`Reply`] and returns the next [`Call`]. The driver carries the call out and comes back
//! with its reply. Gradients and parameters stay with the driver; the loop decides on samples and steps. The
//! [`AgentSession`] holds the orders that the master sends meanwhile.
//!
//! [`WorkerCore`] is what all sync modes share: leases and batches, plans, reports, the beginning and the
//! end. The mode's [worker half](crate::mode::WorkerHalf) decides what happens from a batch in memory to its
//! acknowledgement.
//!
//! Source: our design.

mod core;
mod driver;
mod feed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{AgentSession, Batch, Batcher, Meter, MicroBatch};
use antdt_collective::lanes::{Lanes, Verdict};
use antdt_core::{
    Ack, AckOutcome, Acks, CheckpointId, Exchanged, Held, Holder, JobTime, Joined, PlanVersion, Rank,
    Readiness, Registered, RequestId, Standing, StepCommit, StepResult,
};

use crate::mode::{SyncMode, Turn, WorkerHalf};

pub use core::WorkerCore;
use core::{At, Then};
pub use driver::{LoopDriver, PlanBegin};

/// A request of the training loop to its driver. The loop makes one call at a time; each variant names the
/// [`Reply`] that answers it.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Ask the master for a place in a group of all live workers. Answered by [`Reply::Joined`].
    Join(Standing),
    /// Connect to the group; copy the model from a member if this worker lacks it, or hand it to a member
    /// that does. Answered by [`Reply::Entered`] or [`Reply::Broken`].
    Enter(Box<Joined>),
    /// Register with the shard service, presenting the leases of the worker's earlier registration. Answered by
    /// [`Reply::Registered`].
    Register(Vec<Held>),
    /// Acknowledge samples and ask for shards. Answered by [`Reply::Exchanged`], or by [`Reply::ServiceRestarted`] if
    /// the worker must register again.
    Exchange {
        /// Number of the request; a repetition has the same number.
        request: RequestId,
        /// Acknowledgements of the samples that are committed.
        acks: Acks,
        /// Largest number of shards to grant; 0 to acknowledge only.
        want: u32,
        /// Time for which the service may hold the request while it has no shard to grant.
        wait: Duration,
    },
    /// Give leases back: those that another worker could begin now, or all of them before the training stops in order.
    /// Answered by [`Reply::Released`] or [`Reply::ServiceRestarted`].
    Release(Vec<Ack>),
    /// Tell the shard service that a sample cannot be read. Answered by [`Reply::Released`] or
    /// [`Reply::ServiceRestarted`].
    Fail {
        /// Lease of the sample, and its committed offset.
        at: Ack,
        /// What is wrong with the sample.
        why: String,
    },
    /// Wait for this time, because the worker has no batch size yet. Answered by [`Reply::Slept`].
    Sleep(Duration),
    /// Read the samples of a batch, which may be empty. Answered by [`Reply::Loaded`], or by
    /// [`Reply::Unreadable`], after which the driver holds an empty batch.
    Load(Batch),
    /// Read the samples of one micro-batch of a batch. The driver adds up the gradients of all micro-batches,
    /// from the first to the last. Answered like [`Load`](Self::Load).
    LoadPiece(Batch, MicroBatch),
    /// With servers: get the parameters that the loaded batch needs. Answered by [`Reply::Pulled`] or
    /// [`Reply::Broken`].
    Pull,
    /// Compute the gradient of the loaded batch or micro-batch, which is zero if the batch is empty. Answered by
    /// [`Reply::Computed`].
    Compute,
    /// In modes with a separate model for each worker: begin to compute the gradient of the loaded batch, or of its last
    /// micro-batch, on the model as it is now. Calls that follow may change the model meanwhile. Answered at once by
    /// [`Reply::Computing`].
    ComputeBeside,
    /// Wait for the gradient that was begun [beside](Self::ComputeBeside). Answered by [`Reply::ComputedBeside`].
    Finish,
    /// Combine with the other members, and learn which samples each contributed. Replicas add up all members'
    /// gradients. Separate models are averaged: among all members weighted by samples, among a few uniformly.
    /// Answered by [`Reply::Combined`] or [`Reply::Broken`].
    Combine {
        /// Number of the step.
        step: u64,
        /// Number of samples in this worker's batch.
        samples: u64,
        /// Acknowledgements to send when the step is committed.
        acks: Acks,
        /// Members whose models this worker averages with its own.
        peers: Peers,
    },
    /// Add up the control values of all members. Answered by [`Reply::Agreed`] or [`Reply::Broken`].
    Agree(Lanes),
    /// Apply the result of the last [`Combine`](Self::Combine) to the model. With servers at the workers' own pace: have them
    /// apply the last push, which counts. Answered by [`Reply::Applied`], with servers also by [`Reply::Broken`].
    Apply,
    /// With servers: send the gradient of the batch to all servers. Answered by [`Reply::Pushed`] or
    /// [`Reply::Broken`].
    Push {
        /// Step that the gradient belongs to.
        step: u64,
        /// Number of samples in the batch.
        samples: u64,
    },
    /// In modes whose steps or pushes the master commits: wait until the master commits this step, counts this push, or says
    /// which workers take part in it. Answered by [`Reply::Committed`] or [`Reply::Broken`].
    Ready {
        /// Number of the step.
        step: u64,
        /// Samples and acknowledgements of this worker in the step.
        readiness: Readiness,
    },
    /// Like [`Ready`](Self::Ready), but only until the gradient that was begun [beside](Self::ComputeBeside) is
    /// computed. Answered by [`Reply::ComputedBeside`] then: the master may have answered, and the worker must ask
    /// again to know.
    ReadyBeside {
        /// Number of the step.
        step: u64,
        /// Samples and acknowledgements of this worker in the step.
        readiness: Readiness,
    },
    /// In modes with a separate model for each worker: apply the last gradient to this worker's model.
    /// Answered by [`Reply::Advanced`].
    Advance,
    /// In modes with a separate model for each worker: go back to the model of the last average. Answered by
    /// [`Reply::Reverted`].
    Revert,
    /// Between two steps: take this checkpoint, or pause while another worker takes it. Answered by
    /// [`Reply::Rested`].
    Rest(CheckpointId),
    /// Training is over; the loop makes no more calls.
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
    /// These members, in order of rank and including the worker itself, as a group of their own. Meanwhile
    /// the other members do something else.
    Apart {
        /// Number of the group. A worker's groups have increasing numbers.
        group: u64,
        /// Ranks of the members in the whole group.
        ranks: Vec<Rank>,
    },
}

impl Peers {
    /// Returns the number of members, including the worker itself, if the whole group has `world` members.
    pub fn count(&self, world: u32) -> u32 {
        match self {
            Self::All => world,
            Self::Few(ranks) | Self::Apart { ranks, .. } => u32::try_from(ranks.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns whether members of a group of size `world` make the mean of their models in parts: each member makes the mean of
    /// one part and gives it to all, which moves `2(n-1)/n` of a model. Otherwise each gives its whole model to its `n-1` peers.
    /// Two members move as much either way, with half the messages; members that average with different peers
    /// have no part in common.
    pub const fn average_in_parts(&self, world: u32) -> bool {
        matches!(self, Self::All | Self::Apart { .. }) && world > 2
    }

    /// Returns whether the member with this rank is included.
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
    /// Starts the loop of an incarnation; answers no call.
    Begin,
    /// Answers [`Call::Join`].
    Joined(Box<Joined>),
    /// Answers [`Call::Enter`]: the worker has the job's model now.
    Entered,
    /// A member failed or was late; with servers, a server is gone or a rollback has undone the step.
    Broken,
    /// Answers [`Call::Register`].
    Registered(Registered),
    /// Answers [`Call::Exchange`].
    Exchanged(Exchanged),
    /// The shard service was restarted: this worker must register again.
    ServiceRestarted,
    /// Answers [`Call::Release`] and [`Call::Fail`].
    Released,
    /// Answers [`Call::Sleep`].
    Slept,
    /// Answers [`Call::Load`] and [`Call::LoadPiece`]: the samples are in memory.
    Loaded,
    /// Answers [`Call::Load`] and [`Call::LoadPiece`]: a sample of the batch cannot be read.
    Unreadable {
        /// Number of the sample in the data set.
        sample: u64,
        /// Reason why the sample cannot be read.
        why: String,
    },
    /// Answers [`Call::Pull`].
    Pulled,
    /// Answers [`Call::Compute`].
    Computed {
        /// Number of samples that were computed.
        samples: u64,
        /// Sum of the losses of these samples.
        loss_sum: f64,
    },
    /// Answers [`Call::ComputeBeside`].
    Computing,
    /// Answers [`Call::Finish`] and [`Call::ReadyBeside`]: the gradient that [`Call::ComputeBeside`] began is
    /// computed.
    ComputedBeside {
        /// Number of samples that were computed.
        samples: u64,
        /// Sum of the losses of these samples.
        loss_sum: f64,
        /// Time that the computation took.
        took: Duration,
    },
    /// Answers [`Call::Combine`] with the samples that each member contributed.
    Combined(StepResult),
    /// Answers [`Call::Agree`] with the totals of the control values.
    Agreed(Verdict),
    /// Answers [`Call::Apply`].
    Applied,
    /// Answers [`Call::Push`].
    Pushed,
    /// Answers [`Call::Ready`] and [`Call::ReadyBeside`].
    Committed(Box<StepCommit>),
    /// Answers [`Call::Advance`].
    Advanced,
    /// Answers [`Call::Revert`].
    Reverted,
    /// Answers [`Call::Rest`].
    Rested,
}

impl Reply {
    /// Returns the reply to [`Call::Release`] or [`Call::Fail`] that follows from the shard service's
    /// outcomes. A lease that had ended shows that the service was restarted: the worker must then register
    /// again and present what is committed.
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

/// The training loop of one incarnation of a worker, as a state machine. See the [module](self).
#[derive(Debug, Clone)]
pub struct WorkerLoop {
    core: WorkerCore,
    half: Box<dyn WorkerHalf>,
    /// The newest plan whose actions the driver was told to carry out.
    begun: PlanVersion,
}

impl WorkerLoop {
    /// Returns the loop of an incarnation that has registered with the master. Its first reply is
    /// [`Reply::Begin`].
    pub fn new(holder: Holder, sync: &SyncMode, now: JobTime) -> Self {
        Self { core: WorkerCore::new(holder, now), half: sync.worker(), begun: PlanVersion(0) }
    }

    /// From now on the worker leases the samples of so many batches beyond the next one, as far as there are any. Their samples are
    /// the [upcoming](Batcher::upcoming) ones of its [leases](Self::leases).
    #[must_use]
    pub const fn reading_ahead(mut self, batches: u32) -> Self {
        self.core.set_read_ahead(batches);
        self
    }

    /// Returns the worker and incarnation that this loop trains for.
    pub const fn holder(&self) -> Holder {
        self.core.holder()
    }

    /// Returns the number of the step that the worker takes: the job's step in modes with common steps,
    /// otherwise the worker's own.
    pub const fn steps(&self) -> u64 {
        self.core.steps()
    }

    /// Returns whether every sample of the job is accounted for, according to the shard service's last
    /// answer.
    pub const fn end_of_data(&self) -> bool {
        self.core.end_of_data()
    }

    /// Returns the number of samples per batch in the plan in force; 0 before the first plan.
    pub const fn batch_size(&self) -> u32 {
        self.core.batch_size()
    }

    /// Returns the version of the plan in force, and its values of other actions by the action's name (`None`
    /// if it has none). The driver carries the actions out before it loads the first batch under the plan.
    pub const fn actions(&self) -> (PlanVersion, Option<&Arc<BTreeMap<String, String>>>) {
        self.core.actions()
    }

    /// Returns the plan that begins with `call`, the newest call of this loop: the driver carries the plan's
    /// actions out first. `None` unless the call loads the first samples under a plan. A worker that joins
    /// again begins its plan again, because it may go on with another model or with other servers.
    pub fn begins_plan(&mut self, call: &Call) -> Option<PlanBegin> {
        let (version, actions) = self.core.actions();
        if matches!(call, Call::Join(_)) {
            self.begun = PlanVersion(0);
        }
        if version <= self.begun || call.loads().is_none() {
            return None;
        }
        self.begun = version;
        Some(PlanBegin { version, actions: actions.cloned(), batch_size: self.core.batch_size() })
    }

    /// Returns the meter of the worker's time, for what the driver does after the loop is over.
    pub const fn meter(&self) -> &Meter {
        self.core.meter()
    }

    /// Returns the batcher, which holds the worker's leases.
    pub const fn leases(&self) -> &Batcher {
        self.core.leases()
    }

    /// Takes the answer to the last call, and says what to do next. `session` is the agent's side of the session with
    /// the master: orders and plans are read from it, reports are left in it.
    ///
    /// A reply that does not answer the last call ends the training: [`End::Failed`].
    pub fn step(&mut self, now: JobTime, session: &mut AgentSession, reply: &Reply) -> Call {
        let Self { core, half, .. } = self;
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
            (
                At::Half,
                Reply::Computed { samples, loss_sum } | Reply::ComputedBeside { samples, loss_sum, .. },
            ) => {
                if let Reply::ComputedBeside { took, .. } = reply {
                    core.computed_beside(&turn, *took);
                }
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
