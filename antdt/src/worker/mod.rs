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
mod mean;
mod offer;
pub mod pulled;
mod push;
mod reduce;
mod share;
mod spread;
mod stream;
mod sums;
mod weights;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::runtime::{Agent, Farewell};
use antdt_agent::{Reported, Trainer};
use antdt_collective::runtime::transport::paced::Lines;
use antdt_collective::runtime::transport::{Fabric, PacedFabric};
use antdt_collective::runtime::{Backend, Library, Listener, TransportBackend};
use antdt_core::{ParamPlace, Phase, Seed};
use antdt_model::{PsClientConfig, UpdateRule};
use antdt_shard::runtime::{ClientOptions, ShardClient};

use crate::gpu;
use crate::job::NetworkSpec;
use crate::job::processor::Place;
use crate::node::NodeEnv;
use crate::transport;
use compute::{Compute, Pacing};
use drive::Finished;
use evaluate::{Model, evaluate};
use hot::Heating;
use interrupt::Interrupt;
use keep::Keep;
pub(crate) use keep::write as write_part;
use lift::Lifting;
use reduce::Ring;

pub use error::WorkerError;
pub use hot::RowMemoryFactory;
#[cfg(feature = "cli")]
pub(crate) use hot::keep_in;
pub use lift::Accelerator;
#[cfg(feature = "cli")]
pub(crate) use lift::accelerate_with;
pub use pulled::{PulledBatch, PulledModel, PulledParams, TrainingSession};

/// Name, in the shard service, of the data set that a job trains on.
pub const TRAIN_DATASET: &str = "train";

/// No master is away for longer, however long the job's steps are.
const MASTER_LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs the worker whose environment is `env`, until the end of the data or until the master orders it to
/// leave.
///
/// The initial parameters are those of `trainer` for the job's seed; `rule` must be the same on every node.
///
/// # Errors
/// If the job cannot continue in this process; [`WorkerError::exit_code`] tells the launcher what to do.
pub fn run(env: &NodeEnv, trainer: Box<dyn Trainer>, rule: &UpdateRule) -> Result<(), WorkerError> {
    let token = env.job_token();
    let interrupt = Arc::new(Interrupt::default());
    let listener = Listener::bind(env.data_plane()?, token)?;
    let told = Arc::clone(&interrupt);
    let agent = env.connect(listener.local_address(), move |notice| told.notice(notice))?;
    let seed = Seed(env.spec.seed);
    let source = ShardClient::over(
        agent.channel(),
        TRAIN_DATASET,
        ClientOptions {
            seed: seed.derive_number(u64::from(env.holder.node.index)),
            // Both are services of the master: the session, which hears how long it may be away, gives it up for both.
            retry_for: env.spec.master_grace.unwrap_or(MASTER_LONGEST),
            ..ClientOptions::default()
        },
    );
    let pacing = Pacing::new(env.spec.clone(), env.holder, env.job_start);
    let mut compute = Compute::new(trainer, pacing, agent.pulse());
    let sync = &env.spec.sync;
    let keep = Keep::new(&agent, &env.spec, compute.layout().clone(), weights::kept_optimizer(sync, rule))?;
    let heating = Heating { spec: &env.spec, holder: env.holder };
    match sync.capabilities().dense {
        ParamPlace::Replicas | ParamPlace::PerWorker | ParamPlace::Mixed => {
            let (timeout, first_wait) = (env.spec.meeting_wait(), env.spec.deadlines(None).peer);
            let ring = Ring {
                agent: &agent,
                sync,
                listener: &listener,
                interrupt: &interrupt,
                timeout,
                first_wait,
                algorithm: env.spec.algorithm,
                compress: env.spec.compress,
                bucket_bytes: usize::try_from(env.spec.bucket_bytes).unwrap_or(usize::MAX),
                rule,
                seed: seed.derive("model"),
                keep: &keep,
                resume: env.spec.resume.as_deref(),
                heating,
                lifting: Lifting {
                    spec: &env.spec,
                    holder: env.holder,
                    reduces_there: lift::own().is_some() || library(env)?.is_some(),
                },
            };
            let backend = backend(env)?;
            let (finished, replica) = reduce::train(&ring, backend, &source, &mut compute)?;
            finish(&agent, &keep, &mut compute, finished, Some(replica))
        }
        ParamPlace::Servers => {
            heating.leave_on_servers(compute.trainer());
            // Servers that add up gradients clip what they add up.
            let clip_norm = rule.clip_norm.filter(|_| !sync.capabilities().servers_sum_gradients());
            let mut client = PsClientConfig::new(env.holder, token, compute.layout().clone());
            client.timeout = env.spec.meeting_wait();
            let job = push::Job {
                agent: &agent,
                sync,
                keep: &keep,
                clip_norm,
                seed: seed.derive("model"),
                fabric: fabric(env)?,
                client,
                interrupt: &interrupt,
                local: listener.local_address().ip(),
            };
            let (finished, servers) = push::train(&job, &source, &mut compute)?;
            finish(&agent, &keep, &mut compute, finished, servers)
        }
    }
}

/// What forms the groups of this worker: over a library between GPUs, if the job wants one, or over the program's own device.
fn backend(env: &NodeEnv) -> Result<Box<dyn Backend>, WorkerError> {
    let below = Box::new(TransportBackend::new(fabric(env)?));
    if let Some(own) = lift::own() {
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

fn finish(
    agent: &Agent,
    keep: &Keep<'_>,
    compute: &mut Compute,
    finished: Finished,
    model: Option<impl Model>,
) -> Result<(), WorkerError> {
    let Finished { end_of_data, has_model, mut meter } = finished;
    let model = model.filter(|_| has_model);
    let Farewell { pushes, checkpoint, evaluate: asked } = agent.leave(end_of_data, model.is_some())?;
    let Some(mut model) = model else { return Ok(()) };
    if asked {
        // Of workers that died, the servers may not have heard yet.
        model.count(&pushes)?;
    }
    meter.restart(agent.clock().now());
    let mut report = |phase| {
        let report = meter.finish_activity(agent.clock().now(), phase);
        agent.session().report(Reported { report, loss_sum: 0.0 });
    };
    if let Some(checkpoint) = checkpoint {
        keep.last(checkpoint, || model.copy(checkpoint))?;
        report(Phase::Checkpoint);
    }
    if asked {
        let (samples, metrics) = evaluate(compute.trainer(), &mut model, &agent.pulse())?;
        report(Phase::Evaluate);
        agent.evaluated(samples, &metrics)?;
    }
    Ok(())
}
