//! The self-test of the emulated links: known bytes over one, against what they should take.

use std::thread;
use std::time::{Duration, Instant};

use antdt_collective::group::JobToken;
use antdt_collective::runtime::BulkStream;
use antdt_collective::runtime::abort::AbortHandle;
use antdt_collective::runtime::transport::paced::{EmulatedNetwork, Lines, PacedFabric};
use antdt_collective::runtime::transport::{Fabric, REGISTRY};
use antdt_core::{Connections, NodeId};
use anyhow::{Context, Result, anyhow};

use super::setting::{LATENCY, Setting};
use crate::Entry;
use crate::meter::{Others, median};

/// Models that a round carries one way: long enough that a wake-up of the system is small against it.
const MODELS: u32 = 10;
const ROUNDS: u32 = 5;
const PERCENT: f64 = 3.0;
const LIMIT: Duration = Duration::from_secs(60);

/// The time of such bytes there and back over a link of such a bandwidth, beside what it should be.
pub(super) fn row(bandwidth: f64, load_max: f64) -> Result<Entry> {
    let bytes = (Setting::model_bytes() * MODELS) as usize;
    let exact = 2.0 * (f64::from(Setting::model_bytes() * MODELS) / bandwidth + LATENCY.as_secs_f64());
    let watched = Others::watch();
    let took = there_and_back(bandwidth, LATENCY, bytes, ROUNDS)?;
    let name = format!("emulated link, {bytes} bytes there and back at {:.0} kB/s", bandwidth / 1e3);
    let row = Entry::shown(name, took, "s").within(PERCENT, exact);
    Ok(row
        .unless_overloaded(watched.load(), load_max)
        .beside(format!("bytes / bandwidth + latency {exact:.3} s")))
}

/// The median time of several rounds of so many bytes over an emulated link, in seconds.
pub(crate) fn there_and_back(bandwidth: f64, latency: Duration, bytes: usize, rounds: u32) -> Result<f64> {
    let (network, lines) = (EmulatedNetwork::new(bandwidth, latency), Lines::new()?);
    let fabric = |node| {
        let below = REGISTRY.by_name("tcp").map_err(|error| anyhow!("{error}"))?;
        PacedFabric::new(below, network.clone(), lines.clone(), node).map_err(|error| anyhow!("{error}"))
    };
    let (near, far) = (fabric(NodeId::worker(0))?, fabric(NodeId::worker(1))?);
    let [opened, accepted] = BulkStream::pair(&Connections::default())?;
    let deadline = Instant::now() + LIMIT;
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<()> {
            let abort = AbortHandle::new()?;
            let mut channel = far.accept(accepted, JobToken::new("pacer"), deadline, &abort)?;
            let mut carried = vec![0; bytes];
            for _ in 0..rounds {
                channel.receive(&mut carried, deadline)?;
                channel.send(&carried, deadline)?;
            }
            // The other side closes when it has the last byte.
            let _ = channel.receive(&mut [0], deadline);
            Ok(())
        });
        let abort = AbortHandle::new()?;
        let mut channel = near.dial(opened, JobToken::new("pacer"), deadline, &abort)?;
        let (sent, mut back) = (vec![1; bytes], vec![0; bytes]);
        let mut times = Vec::new();
        for _ in 0..rounds {
            let began = Instant::now();
            channel.send(&sent, deadline)?;
            channel.receive(&mut back, deadline)?;
            times.push(began.elapsed().as_secs_f64());
        }
        drop(channel);
        echo.join().map_err(|_| anyhow!("the far end panicked"))?.context("the far end of the link")?;
        Ok(median(times))
    })
}
