//! A worker process: takes samples, computes gradients, and combines them with its peers.

mod blob;
mod compute;
mod drive;
mod error;
mod evaluate;
mod interrupt;
mod push;
mod reduce;
mod weights;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_agent::Trainer;
use antdt_agent::runtime::Agent;
use antdt_collective::runtime::Listener;
use antdt_core::{MembershipVersion, ModelPlace, OptimizerSpec, Seed};
use antdt_model::{PsClient, PsClientConfig};
use antdt_shard::runtime::{ClientOptions, ShardClient};

use crate::net;
use crate::node::NodeEnv;
use compute::{Compute, Pacing};
use drive::Finished;
use evaluate::{Model, evaluate};
use interrupt::Interrupt;
use reduce::Ring;

pub use error::WorkerError;

/// The name of the data set that is trained on.
pub const TRAIN_DATASET: &str = "train";

/// How long a worker waits for the servers to come up.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(60);

/// Trains as the worker that `env` names, until the end of the data or until the master orders it to leave.
///
/// The parameters start as `trainer` says for the job's seed; `optimizer` is the same on every node.
///
/// # Errors
/// If the job cannot go on in this process; [`WorkerError::exit_code`] tells the launcher what to do.
pub fn run(env: &NodeEnv, trainer: Box<dyn Trainer>, optimizer: OptimizerSpec) -> Result<(), WorkerError> {
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
            // Both are services of the master: whoever gives the one up gives the other up.
            retry_for: env.spec.master_grace,
            ..ClientOptions::default()
        },
    );
    let mut compute = Compute::new(trainer, Pacing::new(env.spec.clone(), env.holder, env.job_start));
    let sync = &env.spec.sync;
    match sync.capabilities().model {
        ModelPlace::Replicas | ModelPlace::PerWorker => {
            let timeout = env.spec.collective_timeout;
            let ring = Ring {
                agent: &agent,
                sync,
                listener: &listener,
                interrupt: &interrupt,
                timeout,
                algorithm: env.spec.algorithm,
                optimizer,
                seed: seed.derive("model"),
            };
            let (finished, replica) = reduce::train(&ring, &source, &mut compute)?;
            finish(&agent, &mut compute, finished, replica)
        }
        ModelPlace::Servers => {
            let addresses = server_addresses(&agent, listener.local_address())?;
            let mut config = PsClientConfig::new(env.holder, token, compute.layout().clone());
            config.timeout = env.spec.collective_timeout;
            let client = PsClient::connect(&addresses, config, &interrupt.enter(MembershipVersion(0))?)?;
            let (finished, servers) =
                push::train(&agent, sync, &source, client, &mut compute, seed.derive("model"))?;
            finish(&agent, &mut compute, finished, servers)
        }
    }
}

fn server_addresses(agent: &Agent, local: SocketAddr) -> Result<Vec<SocketAddr>, WorkerError> {
    let deadline = Instant::now() + SERVERS_TIMEOUT;
    loop {
        let known = agent.session().servers().to_vec();
        if !known.is_empty() {
            let parse = |address: &String| {
                net::resolve(address, local.ip()).map_err(|error| {
                    WorkerError::Address(format!("a server has the address `{address}`: {error}"))
                })
            };
            return known.iter().map(parse).collect();
        }
        if Instant::now() >= deadline {
            let why = format!("not all servers came up within {SERVERS_TIMEOUT:?}");
            return Err(WorkerError::Input(why));
        }
        // The heartbeat brings them.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn finish(
    agent: &Agent,
    compute: &mut Compute,
    finished: Finished,
    mut model: impl Model,
) -> Result<(), WorkerError> {
    let asked = agent.leave(finished.end_of_data, finished.has_model)?;
    if asked && finished.has_model {
        let quality = evaluate(compute.trainer(), &mut model)?;
        agent.evaluated(quality.samples, quality.loss, quality.auc)?;
    }
    Ok(())
}
