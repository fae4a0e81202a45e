//! A holder that trains nothing: it acknowledges what it has and asks for as much again.

use std::time::{Duration, Instant};

use antdt_core::port::ShardSource;
use antdt_core::{Ack, AckOutcome, Holder, Incarnation, NodeId, RequestId};
use anyhow::{Result, ensure};
use tokio::runtime::Runtime;

use super::meter::{Took, in_this_process, quantile};

/// One of many.
#[derive(Debug)]
pub(super) struct Puller<S> {
    source: S,
    holder: Holder,
    want: u32,
    request: RequestId,
    held: Vec<Ack>,
}

impl<S: ShardSource> Puller<S> {
    /// Registers and takes its first `want` shards.
    pub(super) async fn begin(source: S, index: u32, want: u32) -> Result<Self> {
        let holder = Holder::new(NodeId::worker(index), Incarnation(0));
        source.register(holder, &[]).await?;
        let mut puller = Self { source, holder, want, request: RequestId(0), held: Vec::new() };
        puller.pull().await?;
        Ok(puller)
    }

    /// One call. It must count every shard and give as many.
    pub(super) async fn pull(&mut self) -> Result<()> {
        self.request = self.request.next();
        let wait = Duration::from_secs(1);
        let exchanged = self.source.exchange(self.holder, self.request, &self.held, self.want, wait).await?;
        let accepted = exchanged.outcomes.iter().all(|outcome| *outcome == AckOutcome::Accepted);
        ensure!(accepted, "a shard was not counted for {}", self.holder);
        self.held.clear();
        self.held.extend(exchanged.grants().map(|grant| Ack { lease: grant.lease, offset: grant.len }));
        ensure!(self.held.len() == self.want as usize, "{} got {} shards", self.holder, self.held.len());
        Ok(())
    }
}

/// What many pullers did together.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// Calls.
    pub(super) calls: usize,
    /// How long they took together.
    pub(super) took: Took,
    /// Time in the middle of the single calls.
    pub(super) p50: Duration,
    /// Time that 99 % of the single calls did not exceed.
    pub(super) p99: Duration,
}

impl Round {
    /// Calls per second.
    pub(super) fn rate(&self) -> f64 {
        self.calls as f64 / self.took.wall.as_secs_f64()
    }

    /// Seconds that a call costs on the cores, on both sides of the connection.
    pub(super) fn cost(&self) -> f64 {
        self.took.cpu.as_secs_f64() / self.calls as f64
    }
}

/// Lets every puller pull at full speed for `length`.
pub(super) fn round<S>(runtime: &Runtime, pullers: &mut Vec<Puller<S>>, length: Duration) -> Result<Round>
where
    S: ShardSource + 'static,
{
    let (pulled, took) = in_this_process(|| {
        runtime.block_on(async {
            let end = Instant::now() + length;
            let tasks: Vec<_> = pullers.drain(..).map(|puller| tokio::spawn(until(puller, end))).collect();
            let mut times = Vec::new();
            for task in tasks {
                let (puller, mut own) = task.await??;
                pullers.push(puller);
                times.append(&mut own);
            }
            anyhow::Ok(times)
        })
    });
    let mut times = pulled?;
    let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    Ok(Round { calls: times.len(), took, p50, p99 })
}

async fn until<S: ShardSource>(mut puller: Puller<S>, end: Instant) -> Result<(Puller<S>, Vec<Duration>)> {
    let mut times = Vec::new();
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok((puller, times));
        }
        puller.pull().await?;
        times.push(began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use antdt_rt::{CancellationToken, JobClock};
    use antdt_shard::NullStore;
    use antdt_shard::runtime::{LocalSource, ShardService};

    use super::*;
    use crate::shard::{SHARD_LEN, spec};

    #[tokio::test]
    async fn every_pull_counts_the_shards_of_the_one_before() {
        let shutdown = CancellationToken::new();
        let service =
            ShardService::start(spec(1_000_000), NullStore, JobClock::start(), shutdown).await.unwrap();
        let mut puller = Puller::begin(LocalSource::new(service.handle()), 0, 16).await.unwrap();
        assert_eq!(service.handle().status().await.unwrap().counts.acked, 0);
        for pulls in 1..=3 {
            puller.pull().await.unwrap();
            assert_eq!(service.handle().status().await.unwrap().counts.acked, pulls * 16 * SHARD_LEN);
        }
    }
}
