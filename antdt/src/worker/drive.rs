//! Drives the training loop of a worker: carries out its calls until it stops.

use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Meter, MicroBatch};
use antdt_collective::lanes::Lanes;
use antdt_controller::action::ActionValues;
use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{
    Ack, AckOutcome, Acks, CheckpointId, Exchanged, Held, Holder, Joined, Readiness, RequestId, Retry,
    Standing,
};
use antdt_job::{End, LoopDriver, Peers, Reply, SyncMode, WorkerLoop};

use super::error::WorkerError;
use super::training::Training;

/// How training ended.
#[derive(Debug, Clone)]
pub(super) struct Finished {
    /// It saw the end of the data; otherwise it was drained.
    pub(super) end_of_data: bool,
    /// It has the trained model to evaluate.
    pub(super) has_model: bool,
    /// Measures what the worker does after training.
    pub(super) meter: Meter,
}

/// Trains until the end of the data, or until the node is drained.
pub(super) fn drive<S>(
    agent: &Agent,
    sync: &SyncMode,
    source: &S,
    training: &mut Training<'_>,
) -> Result<Finished, WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let clock = agent.clock();
    let ahead = training.read_ahead();
    let mut worker = WorkerLoop::new(agent.holder(), sync, clock.now()).reading_ahead(ahead);
    let mut driver = WorkerDriver { agent, source, training, restarted: None, cause: None };
    let mut reply = Reply::Begin;
    loop {
        let call = worker.step(clock.now(), &mut agent.session(), &reply);
        if let Some(plan) = worker.begins_plan(&call) {
            let actions = plan.actions.as_deref();
            driver.training.begin_plan(actions.unwrap_or(&ActionValues::new()), plan.batch_size)?;
        }
        if ahead > 0 && call.loads().is_some_and(|(_, micro)| micro.is_last()) {
            let batch = worker.batch_size() as usize;
            driver.training.upcoming(worker.leases().upcoming().take(batch.saturating_mul(ahead as usize)));
        }
        driver.cause = driver.restarted.take();
        let (end_of_data, has_model) = match call.carry_out(&mut driver)? {
            Carried::Out(next) => {
                reply = next;
                continue;
            }
            Carried::Over(End::EndOfData { trained }) => (true, trained),
            Carried::Over(End::Drained) => (false, false),
            Carried::Over(End::Failed(why)) => {
                return Err(driver.cause.map_or(WorkerError::Loop(why), WorkerError::from));
            }
        };
        return Ok(Finished { end_of_data, has_model, meter: worker.meter().clone() });
    }
}

/// What became of a call.
enum Carried {
    Out(Reply),
    /// It was the last one.
    Over(End),
}

/// Carries out the calls of one training loop: to the shard service, to the clock, and, by the worker's [`Training`], the others.
struct WorkerDriver<'d, 't, S: ShardSource> {
    agent: &'d Agent,
    source: &'d S,
    training: &'d mut Training<'t>,
    /// Why the newest call was answered with a restart of the service.
    restarted: Option<S::Error>,
    /// The same of the call before it.
    cause: Option<S::Error>,
}

impl<S> WorkerDriver<'_, '_, S>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    /// The answer of the shard service.
    fn served(&mut self, answer: Result<Reply, S::Error>) -> Result<Carried, WorkerError> {
        match answer {
            Err(error) if error.retry() == Retry::Register => {
                tracing::warn!(holder = %self.agent.holder(), %error, "the leases must be presented again");
                self.restarted = Some(error);
                Ok(Carried::Out(Reply::ServiceRestarted))
            }
            answer => Ok(Carried::Out(answer?)),
        }
    }
}

impl<S> LoopDriver for WorkerDriver<'_, '_, S>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    type Answer = Result<Carried, WorkerError>;

    fn join(&mut self, standing: Standing) -> Self::Answer {
        self.training.join(&standing).map(Carried::Out)
    }

    fn ready(&mut self, step: u64, readiness: Readiness) -> Self::Answer {
        self.training.ready(step, &readiness).map(Carried::Out)
    }

    fn ready_beside(&mut self, step: u64, readiness: Readiness) -> Self::Answer {
        self.training.ready_beside(step, &readiness).map(Carried::Out)
    }

    fn rest(&mut self, checkpoint: CheckpointId) -> Self::Answer {
        self.training.rest(checkpoint).map(Carried::Out)
    }

    fn register(&mut self, held: Vec<Held>) -> Self::Answer {
        let answer = self.agent.block_on(self.source.register(self.agent.holder(), &held));
        self.served(answer.map(Reply::Registered))
    }

    fn exchange(&mut self, request: RequestId, acks: Acks, want: u32, wait: Duration) -> Self::Answer {
        let holder = self.agent.holder();
        let answer = self.agent.block_on(self.source.exchange(holder, request, &acks, want, wait));
        if let Ok(exchanged) = &answer {
            warn_of_stale(holder, &acks, exchanged);
        }
        self.served(answer.map(Reply::Exchanged))
    }

    fn release(&mut self, acks: Vec<Ack>) -> Self::Answer {
        let answer = self.agent.block_on(self.source.release(self.agent.holder(), &acks));
        self.served(answer.map(|outcomes| Reply::returned(&outcomes)))
    }

    fn fail(&mut self, at: Ack, why: String) -> Self::Answer {
        let answer = self.agent.block_on(self.source.fail(self.agent.holder(), at, &why));
        self.served(answer.map(|outcome| Reply::returned(&[outcome])))
    }

    fn sleep(&mut self, time: Duration) -> Self::Answer {
        std::thread::sleep(time);
        Ok(Carried::Out(Reply::Slept))
    }

    fn load(&mut self, batch: Batch, micro: MicroBatch) -> Self::Answer {
        self.training.load(&batch, micro).map(Carried::Out)
    }

    fn pull(&mut self) -> Self::Answer {
        self.training.pull().map(Carried::Out)
    }

    fn compute(&mut self) -> Self::Answer {
        self.training.compute().map(Carried::Out)
    }

    fn compute_beside(&mut self) -> Self::Answer {
        self.training.begin_beside().map(Carried::Out)
    }

    fn finish(&mut self) -> Self::Answer {
        self.training.finish_beside().map(Carried::Out)
    }

    fn enter(&mut self, joined: Box<Joined>) -> Self::Answer {
        self.training.enter(&joined).map(Carried::Out)
    }

    fn combine(&mut self, step: u64, samples: u64, acks: Acks, peers: Peers) -> Self::Answer {
        self.training.combine(step, samples, acks, &peers).map(Carried::Out)
    }

    fn agree(&mut self, lanes: Lanes) -> Self::Answer {
        self.training.agree(&lanes).map(Carried::Out)
    }

    fn apply(&mut self) -> Self::Answer {
        self.training.apply().map(Carried::Out)
    }

    fn push(&mut self, step: u64, samples: u64) -> Self::Answer {
        self.training.push(step, samples).map(Carried::Out)
    }

    fn advance(&mut self) -> Self::Answer {
        self.training.advance().map(Carried::Out)
    }

    fn revert(&mut self) -> Self::Answer {
        Ok(Carried::Out(self.training.revert()))
    }

    fn stop(&mut self, end: End) -> Self::Answer {
        Ok(Carried::Over(end))
    }
}

fn warn_of_stale(holder: Holder, acks: &[Ack], exchanged: &Exchanged) {
    for (ack, outcome) in acks.iter().zip(&exchanged.outcomes) {
        if *outcome == AckOutcome::StaleLease {
            tracing::warn!(%holder, lease = %ack.lease, "lease ended without us");
        }
    }
}
