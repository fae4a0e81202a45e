//! Training with parameter servers: pull, compute, push.

use antdt_agent::TrainError;
use antdt_agent::runtime::Agent;
use antdt_core::port::ShardSource;
use antdt_core::{Iteration, Seed, StepCommit};
use antdt_job::{Call, Reply, SyncMode};
use antdt_model::{PsClient, StepCommit as ServerCommit};

use super::compute::Compute;
use super::drive::{Combiner, Finished, drive, foreign};
use super::error::WorkerError;

/// The parameters as they were pulled.
#[derive(Debug, Default)]
struct Pulled {
    dense: Vec<f32>,
    rows: Vec<f32>,
}

/// What servers must know before they answer a pull: the newest step that changes the parameters.
fn token(commit: &StepCommit) -> ServerCommit {
    ServerCommit {
        step: Iteration(commit.step),
        contributors: commit.contributors.keys().copied().collect(),
        samples: commit.samples,
    }
}

/// The servers, and the commit that they must have seen.
pub(super) struct Servers {
    client: PsClient,
    commit: Option<ServerCommit>,
}

impl Servers {
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

/// Trains until the end of the data or until the node is drained; in step with all others, or at its own pace.
pub(super) fn train<S>(
    agent: &Agent,
    sync: &SyncMode,
    source: &S,
    client: PsClient,
    compute: &mut Compute,
    seed: Seed,
) -> Result<(Finished, Servers), WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let dense = compute.trainer().initial_dense(seed);
    let mut servers = Servers { client, commit: None };
    // The first worker's values win; all are equal.
    servers.client.init_dense(&dense)?;
    let pulled = Pulled { dense, rows: Vec::new() };
    let mut pusher = Pusher { agent, servers, pulled, touched: Vec::new(), compute };
    let finished = drive(agent, sync, source, &mut pusher)?;
    Ok((finished, pusher.servers))
}

struct Pusher<'a> {
    agent: &'a Agent,
    servers: Servers,
    pulled: Pulled,
    /// Rows that the loaded batch touches.
    touched: Vec<u64>,
    compute: &'a mut Compute,
}

impl Combiner for Pusher<'_> {
    fn carry_out(&mut self, call: Call) -> Result<Reply, WorkerError> {
        Ok(match call {
            Call::Join(standing) => {
                let joined = self.agent.join(&standing)?;
                self.servers.commit = joined.last_commit.as_ref().map(token);
                Reply::Joined(Box::new(joined))
            }
            Call::Load(batch) => {
                self.touched.clear();
                match self.compute.load(&batch) {
                    Ok(touched) => {
                        self.touched.extend_from_slice(touched);
                        Reply::Loaded
                    }
                    Err(TrainError::Data { sample, why }) => {
                        tracing::warn!(holder = %self.agent.holder(), sample, why, "sample cannot be read");
                        Reply::Unreadable { sample, why }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Call::Pull => {
                let Pulled { dense, rows } = &mut self.pulled;
                self.servers.pull(&self.touched, dense, rows)?;
                Reply::Pulled
            }
            Call::Compute => {
                let stats = self.compute.run(&self.pulled.dense, &self.pulled.rows)?;
                Reply::Computed { samples: stats.samples, loss_sum: stats.loss_sum }
            }
            Call::Push { step, samples } => {
                let gradient = self.compute.gradient();
                let (dense, rows) = (&gradient.dense, &gradient.rows);
                self.servers.client.push(Iteration(step), samples, dense, &self.touched, rows)?;
                Reply::Pushed
            }
            Call::Ready { step, readiness } => {
                let commit = self.agent.ready(step, &readiness)?;
                if commit.samples > 0 {
                    self.servers.commit = Some(token(&commit));
                }
                Reply::Committed(Box::new(commit))
            }
            call => return Err(foreign(&call)),
        })
    }
}
