//! A worker process: takes samples, computes gradients, and combines them with its peers.

mod accumulate;
mod beside;
mod compute;
mod control;
mod drive;
mod error;
mod evaluate;
mod hot;
mod interrupt;
mod keep;
mod lift;
pub mod plane;
pub mod program;
pub mod pulled;
mod share;
mod training;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::runtime::{Agent, Farewell};
use antdt_agent::{Reported, Trainer};
use antdt_collective::runtime::transport::paced::Lines;
use antdt_collective::runtime::transport::{Fabric, PacedFabric};
use antdt_collective::runtime::{Backend, Library, Listener, TransportBackend};
use antdt_core::{Phase, Seed};
use antdt_model::UpdateRule;
use antdt_shard::runtime::{ClientOptions, ShardClient};

use crate::gpu;
use crate::job::NetworkSpec;
use crate::job::processor::Place;
use crate::node::NodeEnv;
use crate::transport;
use compute::{Compute, Pacing};
use drive::Finished;
use evaluate::evaluate;
use interrupt::Interrupt;
use keep::Keep;
pub(crate) use keep::write as write_part;
use plane::{PeerGroup, Plane, Planes};
use training::{Ground, Training};

pub use error::WorkerError;
pub use hot::RowMemoryFactory;
pub use lift::Accelerator;
pub use program::{ProgramModel, ProgramSession};
pub use pulled::{PulledBatch, PulledModel, PulledParams, TrainingSession};

/// Name, in the shard service, of the data set that a job trains on.
pub const TRAIN_DATASET: &str = "train";

/// No master is away for longer, however long the job's steps are.
const MASTER_LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs the worker whose environment is `env`, until the end of the data or until the master orders it to
/// leave. Its data plane is the one that ships for the job's sync mode.
///
/// The initial parameters are those of `trainer` for the job's seed; `rule` must be the same on every node.
///
/// # Errors
/// If the job cannot continue in this process; [`WorkerError::exit_code`] tells the launcher what to do.
pub fn run(env: &NodeEnv, trainer: Box<dyn Trainer>, rule: &UpdateRule) -> Result<(), WorkerError> {
    run_with(env, trainer, rule, &Planes::default())
}

/// Runs the worker as [`run`] does, with a data plane that one of these factories makes.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    env: &NodeEnv,
    trainer: Box<dyn Trainer>,
    rule: &UpdateRule,
    planes: &Planes,
) -> Result<(), WorkerError> {
    run_to(env, trainer, rule, planes).map(|_| ())
}

/// How a worker that did not fail came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEnd {
    /// No samples are left.
    EndOfData {
        /// Whether the worker has the job's model; false for a replacement that came after the last step.
        has_model: bool,
    },
    /// The master ordered it to leave.
    Drained,
}

/// Runs the worker as [`run_with`] does, and returns how it ended.
fn run_to(
    env: &NodeEnv,
    trainer: Box<dyn Trainer>,
    rule: &UpdateRule,
    planes: &Planes,
) -> Result<WorkerEnd, WorkerError> {
    let interrupt = Arc::new(Interrupt::default());
    let listener = env.open_data_plane(|address| {
        Ok(Listener::bind_with(address, env.job_token(), env.data_connections())?)
    })?;
    let told = Arc::clone(&interrupt);
    let agent = env.connect(listener.local_address(), move |notice| told.notice(notice))?;
    let source = ShardClient::over(
        agent.channel(),
        TRAIN_DATASET,
        ClientOptions {
            seed: Seed(env.spec.seed).derive_number(u64::from(env.holder.node.index)),
            // Both are services of the master: the session, which hears how long it may be away, gives it up for both.
            retry_for: env.spec.master_grace.unwrap_or(MASTER_LONGEST),
            ..ClientOptions::default()
        },
    );
    let pacing = Pacing::new(env.spec.clone(), env.holder, env.job_start);
    let mut compute = Compute::new(trainer, pacing, agent.pulse());
    let sync = &env.spec.sync;
    let keep = Keep::new(&agent, &env.spec, compute.layout().clone(), plane::kept_optimizer(sync, rule))?;
    let factory = planes.of(sync);
    let devices = factory.devices();
    let ground = Ground {
        env,
        agent: &agent,
        sync,
        rule,
        keep: &keep,
        listener: &listener,
        interrupt: &interrupt,
        devices,
    };
    let forms_groups = sync.capabilities().forms_groups();
    let mut resume = env.spec.resume.as_deref();
    loop {
        let backend = forms_groups.then(|| backend(env, devices.dense.as_ref())).transpose()?;
        let peers = PeerGroup::new(&agent, &listener, &interrupt, backend, (&env.spec, sync));
        let plane = factory.plane(&ground.site(&mut compute))?;
        // After an evaluation, the worker goes on from the checkpoint that the master names then: the one before may be gone.
        let mut training = Training::new(&ground, &mut compute, peers, plane, resume.take())?;
        let finished = drive::drive(&agent, sync, &source, &mut training)?;
        let plane = training.into_plane();
        let ending = match finished.end_of_data {
            true => WorkerEnd::EndOfData { has_model: finished.has_model },
            false => WorkerEnd::Drained,
        };
        if !finish(&agent, &keep, &mut compute, finished, plane)? {
            return Ok(ending);
        }
    }
}

/// What forms the groups of this worker: over a library between GPUs, if the job wants one, or over the program's own device.
fn backend(env: &NodeEnv, own: Option<&Accelerator>) -> Result<Box<dyn Backend>, WorkerError> {
    let below = Box::new(TransportBackend::new(fabric(env)?));
    if let Some(own) = own {
        return Ok((own.backend)(below));
    }
    let Some(library) = library(env)? else { return Ok(below) };
    let place = gpu::place(env.spec.processor(), env.holder.node.index);
    let gpu = match place.map_err(|error| WorkerError::Input(error.to_string()))? {
        (Place::Gpu(index), _) => Some(index),
        (Place::Cpu(_), _) => None,
    };
    Ok(library(gpu, below))
}

/// The library of collectives that the job names as its transport, if it names one.
fn library(env: &NodeEnv) -> Result<Option<Library>, WorkerError> {
    transport::library(&env.spec.transport).map_err(|error| WorkerError::Input(error.to_string()))
}

/// The transport that the job names, over its emulated network if it has one.
pub(crate) fn fabric(env: &NodeEnv) -> Result<Box<dyn Fabric>, WorkerError> {
    let fabric =
        transport::fabric(&env.spec.transport).map_err(|error| WorkerError::Input(error.to_string()))?;
    let Some(NetworkSpec(network)) = &env.spec.emulate_network else { return Ok(fabric) };
    let refused = |why: &dyn Display| WorkerError::Input(format!("--emulate-network: {why}"));
    let path = env.network.as_ref().ok_or_else(|| refused(&"the master has not said where it is"))?;
    let lines = Lines::open(path).map_err(|error| refused(&error))?;
    let paced = PacedFabric::new(fabric, network.clone(), lines, env.holder.node);
    Ok(Box::new(paced.map_err(|error| refused(&error))?))
}

/// Leaves the job, after the last checkpoint and the evaluation if the master wants this worker to do them. Returns whether the worker
/// must join again.
fn finish(
    agent: &Agent,
    keep: &Keep<'_>,
    compute: &mut Compute,
    finished: Finished,
    plane: Plane,
) -> Result<bool, WorkerError> {
    let Finished { end_of_data, has_model, mut meter } = finished;
    let plane = Some(plane).filter(|plane| has_model && plane.is_here());
    let Farewell { pushes, checkpoint, evaluate: asked, goes_on } =
        agent.leave(end_of_data, plane.is_some())?;
    let Some(mut plane) = plane else { return Ok(goes_on) };
    if asked {
        // Of workers that died, the servers may not have heard yet.
        plane.each(|home| home.count(&pushes))?;
    }
    meter.restart(agent.clock().now());
    let mut report = |phase| {
        let report = meter.finish_activity(agent.clock().now(), phase);
        agent.session().report(Reported { report, loss_sum: 0.0 });
    };
    if let Some(checkpoint) = checkpoint {
        keep.last(checkpoint, || plane.copy(checkpoint))?;
        report(Phase::Checkpoint);
    }
    if asked {
        let (samples, metrics) = match plane.is_evaluated() {
            true => evaluate(compute.trainer(), &mut plane, &agent.pulse())?,
            false => Default::default(),
        };
        report(Phase::Evaluate);
        agent.evaluated(samples, &metrics)?;
    }
    Ok(goes_on)
}
