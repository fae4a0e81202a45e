//! Training with parameter servers: pull, compute, push.

use std::net::IpAddr;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Gradient, MicroBatch, Params, TrainError};
use antdt_collective::runtime::transport::Fabric;
use antdt_controller::action::ActionValues;
use antdt_core::port::ShardSource;
use antdt_core::{
    CheckpointId, Iteration, Joined, MembershipVersion, PushMark, RollbackId, Seed, StepCommit,
};
use antdt_job::{Call, Reply, SyncMode};
use antdt_model::runtime::PsError;
use antdt_model::wire::PsRefusal;
use antdt_model::{CommitToken, PsClient, PsClientConfig, Trained, clip};

use super::accumulate::Accumulator;
use super::compute::Compute;
use super::drive::{Combiner, Finished, drive, foreign};
use super::error::WorkerError;
use super::interrupt::Interrupt;
use super::keep::{Keep, ModelCopy};
use crate::net;

/// The parameters as they were pulled.
#[derive(Debug, Default)]
struct Pulled {
    dense: Vec<f32>,
    rows: Vec<f32>,
}

/// What servers must know before they answer a pull: the newest step that changes the parameters.
fn token(commit: &StepCommit) -> CommitToken {
    CommitToken {
        step: Iteration(commit.step),
        contributors: commit.contributors.keys().copied().collect(),
        samples: commit.samples,
        everyone: commit.everyone,
    }
}

/// The servers, and the commit that they must have seen.
pub(super) struct Servers {
    client: PsClient,
    commit: Option<CommitToken>,
    /// Whether all workers share steps that are committed once; otherwise each push counts on its own.
    in_step: bool,
    /// The newest push.
    pushed: Option<u64>,
}

/// Returns how far the model is trained of which every server has a part.
///
/// # Errors
/// If the parts differ: each step, or push, is applied by all servers or by none.
fn agreed(trained: &[Trained]) -> Result<Trained, WorkerError> {
    let most = trained.iter().copied().max_by_key(|one| one.samples).unwrap_or_default();
    if trained.iter().any(|one| one.samples != most.samples) {
        let why = format!("the servers are not at the same step: {trained:?}");
        return Err(WorkerError::Parameters(why));
    }
    Ok(most)
}

impl Servers {
    /// Has every server apply these pushes, which count.
    pub(super) fn count(&mut self, pushes: &[PushMark]) -> Result<(), WorkerError> {
        if pushes.is_empty() { Ok(()) } else { Ok(self.client.count(pushes)?) }
    }

    /// Has every server copy its part for a checkpoint.
    pub(super) fn copy(&mut self, checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError> {
        let trained = self.client.copy(self.commit.as_ref(), checkpoint)?;
        Ok(ModelCopy { trained: agreed(&trained)?, portion: None })
    }

    /// Pulls the dense parameters and these rows.
    pub(super) fn pull(
        &mut self,
        rows: &[u64],
        dense: &mut [f32],
        values: &mut Vec<f32>,
    ) -> Result<(), WorkerError> {
        self.client.pull(self.commit.as_ref(), rows, dense, values).map_err(Into::into)
    }
}

/// What a worker needs to train with servers.
pub(super) struct Job<'a> {
    pub(super) agent: &'a Agent,
    pub(super) sync: &'a SyncMode,
    pub(super) keep: &'a Keep<'a>,
    /// Longest mean gradient that is pushed, where a push is a step.
    pub(super) clip_norm: Option<f32>,
    pub(super) seed: Seed,
    pub(super) fabric: Box<dyn Fabric>,
    /// How the servers are spoken to.
    pub(super) client: PsClientConfig,
    pub(super) interrupt: &'a Interrupt,
    /// Where this worker listens: names resolve to addresses that it reaches from there.
    pub(super) local: IpAddr,
}

impl Job<'_> {
    /// Connects to the servers that a worker was told of, and gives them the initial values if they have none.
    fn connect(&self, joined: &Joined, initial: &[f32]) -> Result<Servers, WorkerError> {
        let parse = |address: &String| {
            net::resolve(address, self.local).map_err(|error| {
                WorkerError::Address(format!("a server has the address `{address}`: {error}"))
            })
        };
        let addresses = joined.servers.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let abort = self.interrupt.enter(MembershipVersion(0))?;
        let mut client = PsClient::connect(&addresses, self.client.clone(), &*self.fabric, &abort)?;
        // The first worker's values win; all are equal. Servers that start from a checkpoint have theirs.
        client.init_dense(initial)?;
        // Of workers that died before, these servers may not have heard yet; nor may they have heard all that this worker pushed.
        if !joined.pushes.is_empty() {
            client.count(&joined.pushes)?;
        }
        Ok(Servers {
            client,
            commit: None,
            in_step: self.sync.capabilities().steps_in_common(),
            pushed: None,
        })
    }
}

/// Trains until the end of the data or until the node is drained; in step with all others, or at its own pace. Returns the servers
/// too, unless they are gone.
pub(super) fn train<S>(
    job: &Job<'_>,
    source: &S,
    compute: &mut Compute,
) -> Result<(Finished, Option<Servers>), WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let initial = compute.trainer().initial_dense(job.seed);
    let pulled = Pulled { dense: initial.clone(), rows: Vec::new() };
    let gradient = Gradient::new(compute.layout());
    let mut pusher = Pusher {
        job,
        servers: None,
        rollback: RollbackId(0),
        initial,
        pulled,
        touched: Vec::new(),
        gradient,
        accumulator: Accumulator::new(),
        compute,
    };
    let finished = drive(job.agent, job.sync, source, &mut pusher)?;
    Ok((finished, pusher.servers))
}

struct Pusher<'a, 'j> {
    job: &'a Job<'j>,
    /// `None` before the first connection, and while a server is gone.
    servers: Option<Servers>,
    /// The rollback after which they were connected to.
    rollback: RollbackId,
    /// What the dense parameters are at the start of the job.
    initial: Vec<f32>,
    pulled: Pulled,
    /// Rows that the loaded batch touches.
    touched: Vec<u64>,
    gradient: Gradient,
    /// The gradients of the micro-batches of the batch.
    accumulator: Accumulator,
    compute: &'a mut Compute,
}

/// Whether a server may be gone, which the master finds out; other errors are this worker's.
const fn is_gone(error: &PsError) -> bool {
    matches!(
        error,
        PsError::Closed { .. }
            | PsError::Timeout { .. }
            | PsError::Protocol { .. }
            | PsError::Broken
            | PsError::Io(_)
    )
}

impl Pusher<'_, '_> {
    /// A server that is gone breaks the call, and is no error of this worker.
    fn unless_gone(&mut self, outcome: Result<Reply, WorkerError>) -> Result<Reply, WorkerError> {
        match outcome {
            Err(WorkerError::Servers(error)) if is_gone(&error) => {
                tracing::info!(holder = %self.job.agent.holder(), %error, "a server is gone; asking the master");
                self.servers = None;
                Ok(Reply::Broken)
            }
            outcome => outcome,
        }
    }

    fn join(&mut self, joined: Joined) -> Result<Reply, WorkerError> {
        if self.servers.is_none() || joined.rollback > self.rollback {
            self.servers = None;
            self.rollback = joined.rollback;
            match self.job.connect(&joined, &self.initial) {
                Ok(servers) => self.servers = Some(servers),
                // The next call to them breaks.
                Err(WorkerError::Servers(error)) if is_gone(&error) => {
                    tracing::info!(holder = %self.job.agent.holder(), %error, "a server is gone again");
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(servers) = &mut self.servers {
            servers.commit = joined.last_commit.as_ref().map(token);
        }
        Ok(Reply::Joined(Box::new(joined)))
    }

    fn pull(&mut self) -> Result<Reply, WorkerError> {
        let Some(servers) = &mut self.servers else { return Ok(Reply::Broken) };
        let Pulled { dense, rows } = &mut self.pulled;
        if !self.accumulator.micro().is_first() && self.touched.is_empty() {
            // The dense parameters were pulled for the first micro-batch.
            rows.clear();
            return Ok(Reply::Pulled);
        }
        servers.pull(&self.touched, dense, rows)?;
        Ok(Reply::Pulled)
    }

    fn load(&mut self, batch: &Batch, micro: MicroBatch) -> Result<Reply, WorkerError> {
        self.accumulator.begin(micro);
        self.touched.clear();
        match self.compute.load(batch) {
            Ok(touched) => {
                self.touched.extend_from_slice(touched);
                Ok(Reply::Loaded)
            }
            Err(TrainError::Data { sample, why }) => {
                tracing::warn!(holder = %self.job.agent.holder(), sample, why, "sample cannot be read");
                Ok(Reply::Unreadable { sample, why })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn compute(&mut self) -> Result<Reply, WorkerError> {
        let Pulled { dense, rows } = &self.pulled;
        let stats = self.compute.gradient(Params::host(dense, rows), &mut self.gradient)?;
        let layout = self.compute.layout();
        if self.accumulator.micro().is_last() {
            self.accumulator.complete(layout, &mut self.touched, &mut self.gradient)?;
        } else {
            self.accumulator.add(layout, &self.touched, &self.gradient);
        }
        Ok(Reply::Computed { samples: stats.samples, loss_sum: stats.loss_sum })
    }

    fn push(&mut self, step: u64, samples: u64) -> Result<Reply, WorkerError> {
        let is_committed_by_master = self.job.sync.capabilities().takes_backups();
        let Some(servers) = &mut self.servers else { return Ok(Reply::Broken) };
        if let Some(limit) = self.job.clip_norm {
            clip(limit, samples, self.compute.layout(), [&mut self.gradient.dense, &mut self.gradient.rows]);
        }
        let Gradient { dense, rows, .. } = &self.gradient;
        servers.pushed = Some(step);
        match servers.client.push(Iteration(step), samples, dense, &self.touched, rows) {
            // The step was committed without this worker, as the master will tell it.
            Err(PsError::Refused { refusal: PsRefusal::Stale, .. }) if is_committed_by_master => {}
            outcome => drop(outcome?),
        }
        Ok(Reply::Pushed)
    }

    /// The newest push counts: the servers are to apply it.
    fn apply(&mut self) -> Result<Reply, WorkerError> {
        let Some(servers) = &mut self.servers else { return Ok(Reply::Broken) };
        let mark = PushMark { holder: self.job.agent.holder(), step: servers.pushed };
        servers.count(&[mark])?;
        Ok(Reply::Applied)
    }
}

impl Combiner for Pusher<'_, '_> {
    fn begin_plan(&mut self, actions: &ActionValues, batch_size: u32) -> Result<(), WorkerError> {
        let share = self.compute.control(self.job.sync.capabilities(), batch_size).begin(actions)?;
        if let Some(servers) = &mut self.servers {
            servers.client.set_rate_share(share);
        }
        Ok(())
    }

    fn carry_out(&mut self, call: Call) -> Result<Reply, WorkerError> {
        Ok(match call {
            Call::Join(standing) => {
                let joined = self.job.agent.join(&standing)?;
                self.join(joined)?
            }
            Call::Load(batch) => self.load(&batch, MicroBatch::WHOLE)?,
            Call::LoadPiece(batch, micro) => self.load(&batch.piece(micro), micro)?,
            Call::Pull => {
                let pulled = self.pull();
                self.unless_gone(pulled)?
            }
            Call::Compute => self.compute()?,
            Call::Push { step, samples } => {
                let pushed = self.push(step, samples);
                self.unless_gone(pushed)?
            }
            Call::Apply => {
                let applied = self.apply();
                self.unless_gone(applied)?
            }
            Call::Ready { step, readiness } => match self.job.agent.ready(step, &readiness)? {
                Some(commit) => {
                    if let Some(servers) =
                        self.servers.as_mut().filter(|servers| servers.in_step && commit.samples > 0)
                    {
                        servers.commit = Some(token(&commit));
                    }
                    Reply::Committed(Box::new(commit))
                }
                None => Reply::Broken,
            },
            Call::Rest(checkpoint) => {
                let servers = &mut self.servers;
                let copied = self.job.keep.rest(checkpoint, |pushes| match servers {
                    Some(servers) => {
                        servers.count(pushes)?;
                        servers.copy(checkpoint)
                    }
                    None => Err(PsError::Broken.into()),
                });
                // Whether it was taken, the master knows.
                self.unless_gone(copied.map(|()| Reply::Rested))?;
                Reply::Rested
            }
            call => return Err(foreign(&call)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_model_that_differ_are_no_model() {
        let at = |steps, samples| Trained { steps, samples };
        assert_eq!(agreed(&[at(7, 42), at(7, 42)]).unwrap(), at(7, 42));
        assert!(matches!(agreed(&[at(221, 1326), at(222, 1332)]), Err(WorkerError::Parameters(_))));
    }
}
