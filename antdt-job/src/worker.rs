//! The training loop of one life of a worker: what it asks for, in which order, and what it concludes.
//!
//! The loop takes one step at a time: an answer in, the next [`Call`] out. The driver carries the call out and brings
//! its answer; between the two the loop waits. Gradients and parameters stay with the driver, samples and steps are
//! decided here. What the master orders meanwhile stands in the [`AgentSession`].
//!
//! A step of each mode, as long as nothing goes wrong:
//!
//! | mode | calls |
//! |---|---|
//! | all-reduce | `Load`, `Compute`, `Combine`, `Agree`, `Apply`, `Exchange` |
//! | servers, in step | `Exchange`, `Load`, `Pull`, `Compute`, `Push`, `Ready` |
//! | servers, at its own pace | `Load`, `Pull`, `Compute`, `Push`, `Exchange` |
//!
//! Source: our design.

mod feed;
mod push;
mod reduce;

use std::time::Duration;

use antdt_agent::{AgentSession, Batch, Batcher, Meter, PlanSwitch, Reported};
use antdt_collective::lanes::{Lanes, Verdict};
use antdt_core::{
    Ack, Acks, Exchanged, Held, Holder, Iteration, JobTime, Joined, MembershipVersion, Readiness, Registered,
    RequestId, Standing, StepCommit, StepResult, SyncMode,
};

use feed::Feed;

/// What a worker asks of the outside. One at a time; each says which [`Reply`] ends it.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Meet the others at the master. [`Reply::Joined`].
    Join(Standing),
    /// All-reduce: connect to the group, and take or give the model if a member lacks it. [`Reply::Entered`] or
    /// [`Reply::Broken`].
    Enter(Box<Joined>),
    /// Register with the shard service, presenting leases of its earlier life. [`Reply::Registered`].
    Register(Vec<Held>),
    /// Acknowledge and ask for shards. [`Reply::Exchanged`], or [`Reply::ServiceRestarted`] if it must register again.
    Exchange {
        /// Of the question; repeated with the same number until it is answered.
        request: RequestId,
        /// What is done.
        acks: Acks,
        /// Shards wanted; 0 to acknowledge only.
        want: u32,
        /// How long the service may keep the question if it has nothing now.
        wait: Duration,
    },
    /// Give leases back: those that others could begin, and all before the training stops in order.
    /// [`Reply::Released`] or [`Reply::ServiceRestarted`].
    Release(Vec<Ack>),
    /// A sample cannot be read. [`Reply::Released`] or [`Reply::ServiceRestarted`].
    Fail {
        /// What of the lease is done.
        at: Ack,
        /// What is wrong with the sample.
        why: String,
    },
    /// There is no batch size yet. [`Reply::Slept`].
    Sleep(Duration),
    /// Read the samples of a batch; an empty one too. [`Reply::Loaded`] or [`Reply::Unreadable`], after which an empty
    /// batch takes its place.
    Load(Batch),
    /// Servers: get the parameters that the batch needs. [`Reply::Pulled`].
    Pull,
    /// Compute the gradient of the loaded batch, which is zero if it is empty. [`Reply::Computed`].
    Compute,
    /// All-reduce: add up everybody's gradients, and learn who contributed which samples. [`Reply::Combined`] or
    /// [`Reply::Broken`].
    Combine {
        /// Of this step.
        step: u64,
        /// In this worker's batch.
        samples: u64,
        /// Due when the step is committed.
        acks: Acks,
    },
    /// All-reduce: add up everybody's control values. [`Reply::Agreed`] or [`Reply::Broken`].
    Agree(Lanes),
    /// All-reduce: the step that was combined last becomes part of the model. [`Reply::Applied`].
    Apply,
    /// Servers: send the gradient to all of them. [`Reply::Pushed`].
    Push {
        /// The step that it belongs to.
        step: u64,
        /// In the batch.
        samples: u64,
    },
    /// Servers, in step: wait until the master commits the step. [`Reply::Committed`].
    Ready {
        /// The step.
        step: u64,
        /// What this worker did in it.
        readiness: Readiness,
    },
    /// Training is over; nothing follows.
    Stop(End),
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// There was no call yet: begin.
    Begin,
    /// See [`Call::Join`].
    Joined(Box<Joined>),
    /// See [`Call::Enter`]. The worker has the job's model now.
    Entered,
    /// A member failed or was late.
    Broken,
    /// See [`Call::Register`].
    Registered(Registered),
    /// See [`Call::Exchange`].
    Exchanged(Exchanged),
    /// The shard service was restarted and knows nobody.
    ServiceRestarted,
    /// See [`Call::Release`].
    Released,
    /// See [`Call::Sleep`].
    Slept,
    /// See [`Call::Load`].
    Loaded,
    /// This sample of the batch cannot be read.
    Unreadable {
        /// Its number in the data set.
        sample: u64,
        /// What is wrong.
        why: String,
    },
    /// See [`Call::Pull`].
    Pulled,
    /// See [`Call::Compute`].
    Computed {
        /// Samples behind the gradient.
        samples: u64,
        /// Sum of their losses.
        loss_sum: f64,
    },
    /// See [`Call::Combine`]. What everybody contributed.
    Combined(StepResult),
    /// See [`Call::Agree`].
    Agreed(Verdict),
    /// See [`Call::Apply`].
    Applied,
    /// See [`Call::Push`].
    Pushed,
    /// See [`Call::Ready`].
    Committed(Box<StepCommit>),
}

/// How a worker's training ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// There are no samples left, and it has the model.
    EndOfData {
        /// Whether it has the job's model; false for a replacement that came when all was done.
        trained: bool,
    },
    /// It was drained.
    Drained,
    /// It must not go on.
    Failed(String),
}

/// How long a step without samples may wait for a shard to come back: short, since the peers wait too.
const PATIENCE: Duration = Duration::from_millis(20);

/// The same for a worker with nobody to keep in step with.
const PATIENCE_ALONE: Duration = Duration::from_secs(1);

/// What the reply that comes next answers.
#[derive(Debug, Clone, PartialEq)]
enum At {
    /// Nothing was asked yet.
    Start,
    Joining,
    /// The survivors have the step that a group broke in; the new group is entered when it is part of the model.
    Settling(Box<Joined>),
    Entering {
        /// Whether somebody in the group has a trained model.
        has_source: bool,
    },
    Feeding(Then),
    Sleeping,
    Loading,
    Pulling,
    Computing,
    Combining,
    Agreeing,
    Applying(Verdict),
    Pushing,
    Readying,
    /// Training is over.
    Over,
}

/// What to do when the shard service has answered all that was asked of it.
#[derive(Debug, Clone, PartialEq)]
enum Then {
    /// Take a batch.
    Take,
    /// Go on without a batch.
    TakeNothing,
    /// The step that was settled is acknowledged.
    Enter(Box<Joined>),
    /// The step is acknowledged.
    Finish(Verdict),
    /// At its own pace: the batch is acknowledged.
    Next,
    /// The leases are given back.
    Stop(End),
}

/// The training loop of one life of a worker. See the [module](self).
///
/// Laid out as written. Who drives thousands of them pays for each line of memory that a reply touches, so what all
/// replies touch is together, at the front.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct WorkerLoop {
    at: At,
    sync: SyncMode,
    /// Nobody had samples in the last step.
    idle: bool,
    /// All-reduce: whether the worker has the job's model, which a replacement takes from a survivor.
    trained: bool,
    /// All-reduce: nobody else is in the group.
    alone: bool,
    /// All-reduce: the worker is the first member of its group, and stays with the model when all others leave at once.
    first: bool,
    /// All-reduce: the worker was ordered to leave before this step began, and may.
    draining: bool,
    step: u64,
    /// Samples behind its gradient, and the sum of their losses.
    computed: (u64, f64),
    /// All-reduce: the step whose result is here but not yet part of the model.
    prepared: Option<StepResult>,
    /// All-reduce: the newest step in the model.
    applied: Option<StepResult>,
    switch: PlanSwitch,
    meter: Meter,
    feed: Feed,
    /// The batch that is out.
    batch: Batch,
    holder: Holder,
    /// All-reduce: the newest group that the worker was told of.
    group: MembershipVersion,
}

impl WorkerLoop {
    /// A life that has registered at the master. Begin it with [`Reply::Begin`].
    pub fn new(holder: Holder, sync: SyncMode, now: JobTime) -> Self {
        Self {
            holder,
            sync,
            at: At::Start,
            feed: Feed::default(),
            meter: Meter::new(holder, now),
            switch: PlanSwitch::new(holder.node),
            step: 0,
            idle: false,
            batch: Batch::default(),
            computed: (0, 0.0),
            group: MembershipVersion(0),
            trained: false,
            applied: None,
            prepared: None,
            alone: false,
            first: false,
            draining: false,
        }
    }

    /// Whose loop it is.
    pub const fn holder(&self) -> Holder {
        self.holder
    }

    /// Steps behind the worker, which is the number of the one it takes: the job's in the synchronous modes, its own
    /// in the other.
    pub const fn steps(&self) -> u64 {
        self.step
    }

    /// Whether every sample of the job is accounted for, as far as this worker was told.
    pub const fn end_of_data(&self) -> bool {
        self.feed.end_of_data()
    }

    /// Samples per batch in the plan in force; 0 before the first.
    pub const fn batch_size(&self) -> u32 {
        self.switch.batch_size()
    }

    /// The leases it holds.
    pub const fn leases(&self) -> &Batcher {
        self.feed.leases()
    }

    /// Takes the answer to the last call, and says what to do next. `session` is the agent's side of the session with
    /// the master: orders and plans are read from it, reports are left in it.
    ///
    /// A reply that does not answer the last call ends the training: [`End::Failed`].
    pub fn step(&mut self, now: JobTime, session: &mut AgentSession, reply: &Reply) -> Call {
        match (std::mem::replace(&mut self.at, At::Over), reply) {
            (At::Start, Reply::Begin) => self.join(),
            // The answer to an earlier question: what became of that group, the worker knows.
            (At::Joining, Reply::Joined(joined)) if self.knows(joined) => self.join(),
            (At::Joining, Reply::Joined(joined)) => {
                session.regrouped();
                match self.sync {
                    SyncMode::AllReduce => self.joined(joined.clone()),
                    SyncMode::PsBsp | SyncMode::PsAsp => self.joined_servers(session, joined),
                }
            }
            (At::Feeding(then), reply) => match self.feed.answer(reply) {
                Ok(Some(call)) => self.ask(At::Feeding(then), call),
                Ok(None) => self.fed(now, session, then),
                Err(why) => self.fail(why),
            },
            (At::Sleeping, Reply::Slept) => self.load(Batch::default()),
            (At::Loading, Reply::Loaded) => match self.sync {
                SyncMode::AllReduce => self.loaded(now),
                SyncMode::PsBsp | SyncMode::PsAsp => self.loaded_for_servers(now, session),
            },
            (At::Loading, Reply::Unreadable { sample, why }) => {
                match self.feed.fault(&self.batch, *sample, why.clone()) {
                    Some(call) => self.ask(At::Feeding(Then::TakeNothing), call),
                    None => self.fail(format!("sample {sample} cannot be read, but no sample was asked for")),
                }
            }
            (At::Computing, Reply::Computed { samples, loss_sum }) => {
                self.computed = (*samples, *loss_sum);
                match self.sync {
                    SyncMode::AllReduce => self.computed(now),
                    SyncMode::PsBsp | SyncMode::PsAsp => self.computed_for_servers(now),
                }
            }
            (At::Settling(joined), Reply::Applied) => self.settled(joined),
            (At::Entering { .. }, Reply::Broken) => self.join(),
            (At::Entering { has_source }, Reply::Entered) => self.entered(session, has_source),
            (At::Combining, Reply::Broken) => self.broken_without_result(now),
            (At::Combining, Reply::Combined(result)) => self.combined(session, result.clone()),
            (At::Agreeing, Reply::Broken) => self.broken_with_result(now),
            (At::Agreeing, Reply::Agreed(verdict)) => self.ask(At::Applying(*verdict), Call::Apply),
            (At::Applying(verdict), Reply::Applied) => self.applied(now, session, verdict),
            (At::Pulling, Reply::Pulled) => self.pulled(now),
            (At::Pushing, Reply::Pushed) => self.pushed(now, session),
            (At::Readying, Reply::Committed(commit)) => self.committed(now, session, commit),
            (at, reply) => self.fail(not_an_answer(reply, &at)),
        }
    }

    /// Waits for the answer to `call`.
    fn ask(&mut self, at: At, call: Call) -> Call {
        self.at = at;
        call
    }

    fn fail(&mut self, why: String) -> Call {
        self.ask(At::Over, Call::Stop(End::Failed(why)))
    }

    /// Gives the leases back, then stops.
    fn over(&mut self, end: End) -> Call {
        match self.feed.release() {
            Some(call) => self.ask(At::Feeding(Then::Stop(end)), call),
            None => self.ask(At::Over, Call::Stop(end)),
        }
    }

    /// Meets the others, or with servers the master.
    fn join(&mut self) -> Call {
        let standing =
            Standing { group: self.group, applied: self.applied.clone(), prepared: self.prepared.clone() };
        self.ask(At::Joining, Call::Join(standing))
    }

    fn fed(&mut self, now: JobTime, session: &mut AgentSession, then: Then) -> Call {
        match then {
            Then::Take => {
                let batch = self.feed.take();
                self.load(batch)
            }
            Then::TakeNothing => self.load(Batch::default()),
            Then::Enter(joined) => self.enter(joined),
            Then::Finish(verdict) => self.finish(now, session, &verdict),
            Then::Next => self.next_alone(now, session),
            Then::Stop(end) => self.ask(At::Over, Call::Stop(end)),
        }
    }

    /// Gets a batch of the size in force. When nothing is held, the service may keep the question for `patience`.
    fn take_batch(&mut self, patience: Duration) -> Call {
        let want = u64::from(self.switch.batch_size());
        if want == 0 {
            // There is no batch size yet; it comes with a heartbeat. Until then the loop must not spin.
            let pause = patience.min(PATIENCE);
            return if pause.is_zero() {
                self.load(Batch::default())
            } else {
                self.ask(At::Sleeping, Call::Sleep(pause))
            };
        }
        match self.feed.next(want, patience) {
            Some(call) => self.ask(At::Feeding(Then::Take), call),
            None => {
                let batch = self.feed.take();
                self.load(batch)
            }
        }
    }

    fn load(&mut self, batch: Batch) -> Call {
        self.batch = batch;
        self.ask(At::Loading, Call::Load(self.batch.clone()))
    }

    /// How long a step in which nothing is held may wait: when nobody had samples it is only a question of patience.
    const fn patience(&self) -> Duration {
        if self.idle { PATIENCE } else { Duration::ZERO }
    }

    fn offer_plan(&mut self, session: &mut AgentSession) {
        if let Some(plan) = session.take_plan() {
            self.switch.offer(plan);
        }
    }

    fn note_plans(&self, session: &mut AgentSession) {
        session.plans(self.switch.ready(), self.switch.applied(), self.step);
    }

    fn report(&mut self, now: JobTime, session: &mut AgentSession, samples: u64) {
        let report = self.meter.finish(now, Iteration(self.step), self.switch.applied(), samples);
        session.report(Reported { report, loss_sum: self.computed.1 });
    }
}

/// Why a reply ends the training.
fn not_an_answer(reply: &Reply, asked: &impl std::fmt::Debug) -> String {
    let (reply, asked) = (format!("{reply:?}"), format!("{asked:?}"));
    let name = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    format!("the reply {} came while {}; carry out one call at a time", name(&reply), name(&asked))
}

#[cfg(test)]
mod tests;
