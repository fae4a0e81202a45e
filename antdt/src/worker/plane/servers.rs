//! [`Servers`]: parameter servers have the parameters. Workers pull them, compute, and push gradients.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_agent::MicroBatch;
use antdt_collective::runtime::transport::Fabric;
use antdt_collective::{AbortHandle, CollectiveError};
use antdt_core::{
    CheckpointId, Holder, Iteration, Joined, MembershipVersion, ParamLayout, PushMark, RollbackId, Seed,
    StepCommit,
};
use antdt_model::runtime::PsError;
use antdt_model::wire::PsRefusal;
use antdt_model::{CommitToken, PsClient, PsClientConfig, Trained, clip};

use super::{
    BatchGradient, DensePlane, GradientPass, Home, JointPlane, ModelCopy, ParamValues, RowsPlane, StepUpdate,
    WorkerSite,
};
use crate::net;
use crate::worker::WorkerError;
use crate::worker::interrupt::Interrupt;

/// First and longest delay before a server that was full is connected with again.
const FULL_FIRST: Duration = Duration::from_millis(100);
const FULL_MOST: Duration = Duration::from_secs(5);

/// The servers, and the commit that they must have seen.
struct Connection {
    client: PsClient,
    commit: Option<CommitToken>,
    /// The newest push.
    pushed: Option<u64>,
}

/// See the [module](self). Servers have both kinds of parameters, which travel in one message.
pub(super) struct Servers {
    /// `None` before the first connection, and while a server is gone.
    connection: Option<Connection>,
    /// The rollback after which they were connected to.
    rollback: RollbackId,
    holder: Holder,
    layout: ParamLayout,
    fabric: Box<dyn Fabric>,
    config: PsClientConfig,
    interrupt: Arc<Interrupt>,
    /// Where this worker listens: names resolve to addresses that it reaches from there.
    local: IpAddr,
    /// Whether all workers share steps that are committed once; otherwise each push counts on its own.
    in_step: bool,
    /// The master may commit a step without this worker.
    has_backups: bool,
    /// Longest mean gradient that is pushed, where a push is a step.
    clip_norm: Option<f32>,
    /// What the dense parameters are at the start of the job.
    initial: Vec<f32>,
    /// The parameters as they were pulled.
    dense: Vec<f32>,
    values: Vec<f32>,
    /// Rows that the loaded micro-batch touches.
    touched: Vec<u64>,
    micro: MicroBatch,
}

/// Whether a server may be gone, which the master finds out; other errors are this worker's.
pub(in crate::worker) const fn is_gone(error: &PsError) -> bool {
    matches!(
        error,
        PsError::Closed { .. }
            | PsError::Timeout { .. }
            | PsError::Protocol { .. }
            | PsError::Broken
            | PsError::Io(_)
    )
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
    pub(super) fn new(site: &WorkerSite<'_>) -> Result<Self, WorkerError> {
        let mode = site.sync().capabilities();
        let why = format!("with --sync {} the servers have them", site.sync());
        site.heating().decline(&why, site.trainer());
        let initial = site.initial_dense();
        Ok(Self {
            connection: None,
            rollback: RollbackId(0),
            holder: site.holder(),
            layout: site.layout().clone(),
            fabric: site.fabric()?,
            config: site.server_config(),
            interrupt: site.interrupt(),
            local: site.local_address().ip(),
            in_step: mode.steps_in_common(),
            has_backups: mode.takes_backups(),
            // Servers that add up gradients clip what they add up.
            clip_norm: site.rule().clip_norm.filter(|_| !mode.servers_sum_gradients()),
            dense: initial.clone(),
            initial,
            values: Vec::new(),
            touched: Vec::new(),
            micro: MicroBatch::WHOLE,
        })
    }

    /// Connects to the servers that the worker was told of, and gives them the initial values if they have none.
    fn connect(&self, joined: &Joined) -> Result<Connection, WorkerError> {
        let parse = |address: &String| {
            net::resolve(address, self.local).map_err(|error| {
                WorkerError::Address(format!("a server has the address `{address}`: {error}"))
            })
        };
        let addresses = joined.servers.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let abort = self.interrupt.enter(MembershipVersion(0))?;
        let mut client = self.connect_when_there_is_room(&addresses, &abort)?;
        // The first worker's values win; all are equal. Servers that start from a checkpoint have theirs.
        client.init_dense(&self.initial)?;
        // Of workers that died before, these servers may not have heard yet; nor may they have heard all that this worker pushed.
        if !joined.pushes.is_empty() {
            client.count(&joined.pushes)?;
        }
        Ok(Connection { client, commit: None, pushed: None })
    }

    /// Connects again while a server has no place for another worker: those of workers that died are free soon.
    fn connect_when_there_is_room(
        &self,
        addresses: &[SocketAddr],
        abort: &AbortHandle,
    ) -> Result<PsClient, WorkerError> {
        let seed = Seed(0).derive(&self.holder.to_string());
        let mut delays = antdt_rt::backoff(FULL_FIRST, FULL_MOST, self.config.timeout, seed);
        loop {
            let connected = PsClient::connect(addresses, self.config.clone(), &*self.fabric, abort);
            let is_full = matches!(connected, Err(PsError::Refused { refusal: PsRefusal::Full, .. }));
            let Some(delay) = delays.next().filter(|_| is_full && abort.reason().is_none()) else {
                return Ok(connected?);
            };
            abort.wait_until(Instant::now() + delay).map_err(|e| CollectiveError::io("waiting", &e))?;
        }
    }

    /// Calls the servers. One that is gone ends the connection.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut Connection) -> Result<T, PsError>,
    ) -> Result<T, WorkerError> {
        let called = match &mut self.connection {
            Some(connection) => call(connection),
            None => Err(PsError::Broken),
        };
        if called.as_ref().is_err_and(is_gone) {
            self.connection = None;
        }
        Ok(called?)
    }

    /// Pulls the dense parameters and these rows.
    fn pull_rows(&mut self, rows: &[u64], values: &mut Vec<f32>) -> Result<(), WorkerError> {
        let mut dense = std::mem::take(&mut self.dense);
        let pulled =
            self.call(|servers| servers.client.pull(servers.commit.as_ref(), rows, &mut dense, values));
        self.dense = dense;
        pulled
    }
}

impl Home for Servers {
    fn is_here(&self) -> bool {
        self.connection.is_some()
    }

    fn begin_plan(&mut self, rate_share: Option<f32>) {
        if let Some(servers) = &mut self.connection {
            servers.client.set_rate_share(rate_share);
        }
    }

    fn joined(&mut self, joined: &Joined) -> Result<(), WorkerError> {
        if self.connection.is_none() || joined.rollback > self.rollback {
            self.connection = None;
            self.rollback = joined.rollback;
            match self.connect(joined) {
                Ok(connection) => self.connection = Some(connection),
                // The next call to them breaks.
                Err(WorkerError::Servers(error)) if is_gone(&error) => {
                    tracing::info!(holder = %self.holder, %error, "a server is gone again");
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(servers) = &mut self.connection {
            servers.commit = joined.last_commit.as_ref().map(token);
        }
        Ok(())
    }

    fn pull(&mut self) -> Result<(), WorkerError> {
        let mut values = std::mem::take(&mut self.values);
        if self.connection.is_some() && !self.micro.is_first() && self.touched.is_empty() {
            // The dense parameters were pulled for the first micro-batch.
            values.clear();
            self.values = values;
            return Ok(());
        }
        let rows = std::mem::take(&mut self.touched);
        let pulled = self.pull_rows(&rows, &mut values);
        (self.touched, self.values) = (rows, values);
        pulled
    }

    fn push(&mut self, step: u64, samples: u64, gradient: &mut BatchGradient<'_>) -> Result<(), WorkerError> {
        let BatchGradient { dense, rows, values } = gradient;
        if let Some(limit) = self.clip_norm.filter(|_| self.connection.is_some()) {
            clip(limit, samples, &self.layout, [dense, values]);
        }
        let has_backups = self.has_backups;
        self.call(|servers| {
            servers.pushed = Some(step);
            match servers.client.push(Iteration(step), samples, dense, rows, values) {
                // The step was committed without this worker, as the master will tell it.
                Err(PsError::Refused { refusal: PsRefusal::Stale, .. }) if has_backups => Ok(()),
                outcome => outcome.map(drop),
            }
        })
    }

    fn committed(&mut self, commit: &StepCommit) {
        if let Some(servers) = self.connection.as_mut().filter(|_| self.in_step && commit.samples > 0) {
            servers.commit = Some(token(commit));
        }
    }

    /// The newest push counts: the servers are to apply it.
    fn apply(&mut self, _: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        let holder = self.holder;
        self.call(|servers| servers.client.count(&[PushMark { holder, step: servers.pushed }]))?;
        Ok(None)
    }

    fn count(&mut self, pushes: &[PushMark]) -> Result<(), WorkerError> {
        if pushes.is_empty() {
            return Ok(());
        }
        self.call(|servers| servers.client.count(pushes))
    }

    fn copy(&mut self, checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError> {
        let trained = self.call(|servers| servers.client.copy(servers.commit.as_ref(), checkpoint))?;
        Ok(ModelCopy { trained: agreed(&trained)?, numbers: None })
    }
}

impl DensePlane for Servers {
    fn pass(&mut self) -> Result<GradientPass<'_>, WorkerError> {
        Ok(self.pass_with_rows()?.0)
    }

    /// As they were pulled last.
    fn host(&mut self) -> Result<&[f32], WorkerError> {
        Ok(&self.dense)
    }
}

impl RowsPlane for Servers {
    fn load(&mut self, rows: &[u64], micro: MicroBatch) -> Result<(), WorkerError> {
        self.touched.clear();
        self.touched.extend_from_slice(rows);
        self.micro = micro;
        Ok(())
    }

    fn values(&mut self) -> Result<ParamValues<'_>, WorkerError> {
        Ok(ParamValues::Host(&self.values))
    }

    fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError> {
        self.pull_rows(rows, into)
    }
}

impl JointPlane for Servers {
    fn pass_with_rows(&mut self) -> Result<(GradientPass<'_>, ParamValues<'_>), WorkerError> {
        Ok((
            GradientPass { dense: ParamValues::Host(&self.dense), sink: None },
            ParamValues::Host(&self.values),
        ))
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
