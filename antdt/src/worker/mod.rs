//! A worker process: takes samples, computes gradients, and combines them with its peers.

mod blob;
mod compute;
mod error;
mod evaluate;
mod feed;
mod interrupt;
mod push;
mod reduce;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_agent::Trainer;
use antdt_agent::runtime::Agent;
use antdt_collective::JobToken;
use antdt_collective::runtime::{Listener, PsClient, PsClientConfig};
use antdt_core::{MembershipVersion, OptimizerSpec, Seed, SyncMode};
use antdt_shard::runtime::{ClientOptions, ShardClient};

use crate::node::NodeEnv;
use compute::{Compute, Pacing};
use evaluate::{Model, evaluate};
use feed::DataFeed;
use interrupt::Interrupt;
use reduce::Ring;

pub use error::WorkerError;

/// The name of the data set that is trained on.
pub const TRAIN_DATASET: &str = "train";

/// How long a step without samples may wait for a shard to come back: short, since the peers wait too.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a worker waits for the servers to come up.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(60);

/// How a worker's training ended.
struct Finished<M> {
    /// It saw the end of the data; otherwise it was drained.
    end_of_data: bool,
    /// The trained model, if it has one to evaluate.
    model: Option<M>,
}

/// Trains as the worker that `env` names, until the end of the data or until the master orders it to leave.
///
/// The parameters start as `trainer` says for the job's seed; `optimizer` is the same on every node.
///
/// # Errors
/// If the job cannot go on in this process; [`WorkerError::exit_code`] tells the launcher what to do.
pub fn run(env: &NodeEnv, trainer: Box<dyn Trainer>, optimizer: OptimizerSpec) -> Result<(), WorkerError> {
    let token = JobToken::new(&env.job);
    let interrupt = Arc::new(Interrupt::default());
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), token)?;
    let told = Arc::clone(&interrupt);
    let agent = env.connect(listener.local_address().to_string(), move |notice| told.notice(notice))?;
    let seed = Seed(env.spec.seed);
    let source = ShardClient::over(
        agent.channel(),
        TRAIN_DATASET,
        ClientOptions {
            seed: seed.derive_number(u64::from(env.holder.node.index)),
            ..ClientOptions::default()
        },
    );
    let mut feed = DataFeed::new(&agent, source);
    let mut compute = Compute::new(trainer, Pacing::new(env.spec.clone(), env.holder, env.job_start));
    match env.spec.sync {
        SyncMode::AllReduce => {
            let timeout = env.spec.collective_timeout;
            let ring = Ring {
                agent: &agent,
                listener: &listener,
                interrupt: &interrupt,
                timeout,
                algorithm: env.spec.algorithm,
                optimizer,
                seed: seed.derive("model"),
            };
            let finished = reduce::train(&ring, &mut compute, &mut feed)?;
            finish(&agent, &mut compute, &mut feed, finished)
        }
        sync @ (SyncMode::PsBsp | SyncMode::PsAsp) => {
            let addresses = server_addresses(&agent)?;
            let mut config = PsClientConfig::new(env.holder, token, compute.layout().clone());
            config.timeout = env.spec.collective_timeout;
            let client = PsClient::connect(&addresses, config, &interrupt.enter(MembershipVersion(0))?)?;
            let in_step = sync.is_synchronous();
            let finished =
                push::train(&agent, client, &mut compute, &mut feed, seed.derive("model"), in_step)?;
            finish(&agent, &mut compute, &mut feed, finished)
        }
    }
}

fn server_addresses(agent: &Agent) -> Result<Vec<SocketAddr>, WorkerError> {
    let deadline = Instant::now() + SERVERS_TIMEOUT;
    loop {
        let known = agent.session().servers().to_vec();
        if !known.is_empty() {
            let parse = |address: &String| {
                address
                    .parse()
                    .map_err(|_| WorkerError::Input(format!("a server has the address `{address}`")))
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

fn finish<S, M>(
    agent: &Agent,
    compute: &mut Compute,
    feed: &mut DataFeed<'_, S>,
    finished: Finished<M>,
) -> Result<(), WorkerError>
where
    S: antdt_core::port::ShardSource,
    WorkerError: From<S::Error>,
    M: Model,
{
    feed.release()?;
    let Finished { end_of_data, model } = finished;
    let asked = agent.leave(end_of_data, model.is_some())?;
    if let Some(mut model) = model.filter(|_| asked) {
        let quality = evaluate(compute.trainer(), &mut model)?;
        agent.evaluated(quality.samples, quality.loss, quality.auc)?;
    }
    Ok(())
}
