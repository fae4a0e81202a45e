//! Ten thousand holders, each of which trains a shard for a while and then asks for the next.

use std::path::Path;
use std::time::{Duration, Instant};

use antdt_core::{DetRng, Seed};
use antdt_proto::Bearer;
use antdt_shard::runtime::{ClientOptions, FileStore, FileStoreOptions, ShardClient};
use anyhow::{Context, Result};
use tokio::time::{Instant as At, sleep_until};
use tonic::transport::Endpoint;

use super::host::Host;
use super::meter::{in_this_process, quantile};
use super::puller::Puller;
use super::{NAME, Scale, spec};
use crate::{Entry, Rows};

const HOLDERS: u32 = 10_000;
/// Connections that they share: ten thousand would measure the system's, and a job has a few for each machine.
const CHANNELS: usize = 64;
/// Mean time for which a holder trains a shard. Each takes between half and one and a half times as long.
const TRAINING_S: f64 = 2.0;
/// Until the first calls are no longer in step.
const WARM_UP_S: f64 = 3.0;

/// Their calls per second and how long those took.
pub(super) fn crowd(scale: &Scale, folder: &Path, rows: &mut Rows) -> Result<()> {
    let host = Host::new()?;
    // 10,000 holders: 10⁹ shards are far from the end of an epoch for each of them.
    let spec = spec(1_000_000_000);
    let store = FileStore::open(folder, spec.clone(), FileStoreOptions::default())?;
    let (address, _) = host.serve(spec, store)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (called, took) = in_this_process(|| runtime.block_on(call(&address, scale.crowd)));
    let mut times = called?;
    let rate = times.len() as f64 / scale.crowd.as_secs_f64();
    let [p50, p99, worst] = [0.5, 0.99, 1.0].map(|share| quantile(&mut times, share).as_secs_f64() * 1e3);
    let cores = took.cpu.as_secs_f64() / took.wall.as_secs_f64();
    rows.push(
        Entry::shown("10,000 holders at their natural rate, p99", p99, "ms")
            .at_most(scale.ceiling(20.0))
            .beside(format!("p50 {p50:.3} ms, longest {worst:.1} ms; {rate:.0} calls/s, {cores:.2} cores")),
    );
    drop(runtime);
    host.end();
    Ok(())
}

/// The times of the calls that began within `length` after the warm-up.
async fn call(address: &str, length: Duration) -> Result<Vec<Duration>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
    let channels: Vec<_> = (0..CHANNELS).map(|_| endpoint.connect_lazy()).collect();
    let mut pullers = Vec::new();
    for (index, channel) in (0..HOLDERS).zip(channels.iter().cycle()) {
        let source =
            ShardClient::over(Bearer::default().over(channel.clone()), NAME, ClientOptions::default());
        pullers.push(tokio::spawn(Puller::begin(source, index, 1)));
    }
    let mut begun = Vec::new();
    for puller in pullers {
        begun.push(puller.await??);
    }
    let from = Instant::now() + Duration::from_secs_f64(WARM_UP_S);
    let to = from + length;
    let tasks: Vec<_> = begun
        .into_iter()
        .zip(0..)
        .map(|(puller, index)| tokio::spawn(train(puller, Seed(index).rng(), from, to)))
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.append(&mut task.await.context("a holder panicked")??);
    }
    Ok(times)
}

async fn train(
    mut puller: Puller<ShardClient>,
    mut rng: DetRng,
    from: Instant,
    to: Instant,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    // Anywhere in the first shard.
    let mut done = Instant::now() + Duration::from_secs_f64(TRAINING_S * rng.unit());
    while done < to {
        sleep_until(At::from_std(done)).await;
        let began = Instant::now();
        puller.pull().await?;
        if began >= from && began < to {
            times.push(began.elapsed());
        }
        done = Instant::now() + Duration::from_secs_f64(TRAINING_S * (0.5 + rng.unit()));
    }
    Ok(times)
}
