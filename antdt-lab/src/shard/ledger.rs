//! The ledger alone: transitions, sizes, epochs, snapshots. In time of one core, which other work does not disturb.

use std::hint::black_box;
use std::time::Duration;

use antdt_core::{Ack, Epoch, Generation, Holder, Incarnation, Machine, NodeId, RequestId, Seed};
use antdt_shard::{DatasetSpec, Epochs, LedgerSnapshot, Record, Recovery, ShardLedger};
use anyhow::{Context, Result, bail};

use super::meter::{least, median, on_this_thread, peak_growth};
use super::{SHARD_LEN, Scale, spec};
use crate::{Entry, Rows};

const HOLDERS: u32 = 16;
/// From a job of minutes to one of years.
const SIZES: [u64; 4] = [1_000, 100_000, 10_000_000, 100_000_000];
const LARGEST: u64 = 100_000_000;
const MIB: f64 = (1 << 20) as f64;

/// A ledger in the middle of its work: every holder has a lease.
struct Running {
    ledger: ShardLedger,
    held: Vec<(Holder, Ack)>,
    request: u64,
}

impl Running {
    fn new(shards: u64) -> Result<Self> {
        let spec = DatasetSpec { epoch_overlap: 1, ..spec(shards) };
        Self::with(ShardLedger::new(spec, Generation(1))?)
    }

    fn with(ledger: ShardLedger) -> Result<Self> {
        let mut running = Self { ledger, held: Vec::new(), request: 0 };
        for index in 0..HOLDERS {
            let holder = Holder::new(NodeId::worker(index), Incarnation(0));
            running.ledger.register(holder)?;
            let first = running.exchange(holder, &[])?;
            running.held.push((holder, first));
        }
        Ok(running)
    }

    /// Acknowledges and takes a shard, with the records that it leaves; gives the ack of the shard.
    fn exchange(&mut self, holder: Holder, acks: &[Ack]) -> Result<Ack> {
        self.request += 1;
        let (generation, request) = (self.ledger.generation(), RequestId(self.request));
        let exchanged = self.ledger.exchange(holder, generation, request, acks, 1)?;
        while let Some(effect) = self.ledger.poll_effect() {
            black_box(&effect);
        }
        let grant = exchanged.grants().next().context("a ledger without an end granted nothing")?;
        Ok(Ack { lease: grant.lease, offset: grant.len })
    }

    /// Every holder in turn finishes its shard and takes the next, `calls` times in all.
    fn run(&mut self, calls: u64) -> Result<()> {
        for call in 0..calls as usize {
            let at = call % self.held.len();
            let (holder, ack) = self.held[at];
            self.held[at].1 = self.exchange(holder, &[ack])?;
        }
        Ok(())
    }
}

/// What an epoch of 10⁸ shards takes to open. Before anything else in the process, for the sake of the memory.
pub(super) fn opening(rows: &mut Rows) -> Result<()> {
    let ((running, took), bytes) = peak_growth(|| on_this_thread(|| Running::new(LARGEST)))?;
    running?.run(u64::from(HOLDERS))?;
    rows.push(Entry::shown("epoch of 10^8 shards, opened", ms(took.cpu), "ms").at_most(10.0));
    rows.push(
        Entry::shown("epoch of 10^8 shards, memory at its peak", bytes as f64 / MIB, "MiB").at_most(64.0),
    );
    Ok(())
}

/// Transitions per second, and how they depend on the size of the data set.
pub(super) fn transitions(scale: &Scale, rows: &mut Rows) -> Result<()> {
    let mut ledgers = Vec::new();
    for shards in SIZES {
        ledgers.push((shards, Running::new(shards)?, Vec::new()));
    }
    // The sizes take turns, so that a slow moment of the machine hits all.
    for _ in 0..scale.rounds {
        for (_, running, costs) in &mut ledgers {
            let (ran, took) = on_this_thread(|| running.run(scale.ledger_calls));
            ran?;
            costs.push(took.cpu.as_secs_f64() / scale.ledger_calls as f64);
        }
    }
    // What others do to the caches only adds to a cost.
    let costs: Vec<(u64, f64)> =
        ledgers.into_iter().map(|(shards, _, costs)| (shards, least(costs))).collect();
    for (shards, cost) in &costs {
        let name = format!("ledger of {shards} shards, one core: fetches and acks");
        // A call is two transitions: a shard that is done, and one that is leased.
        let entry = Entry::shown(name, 2e-6 / cost, "M/s").beside(format!("{:.0} ns a call", cost * 1e9));
        rows.push(if *shards == LARGEST { entry.at_least(scale.floor(5.0)) } else { entry });
    }
    let most = costs.iter().map(|(_, cost)| *cost).fold(0.0, f64::max);
    let ratio = most / least(costs.iter().map(|(_, cost)| *cost));
    rows.push(Entry::shown("ledger, dearest over cheapest size", ratio, "x").at_most(1.5));
    Ok(())
}

/// What a snapshot of a ledger full of holes costs the task that owns it, and what it costs others.
pub(super) fn snapshots(scale: &Scale, rows: &mut Rows) -> Result<()> {
    let spec = DatasetSpec { epochs: Epochs::Infinite, ..spec(LARGEST) };
    let mut recovery = Recovery::new(spec.clone())?;
    for record in [
        Record::GenerationStarted { generation: Generation(1) },
        Record::EpochOpened { share: 0, epoch: Epoch(0) },
    ] {
        recovery.apply(&record)?;
    }
    let mut rng = Seed(1).rng();
    let mut done = 0;
    while done < scale.holes {
        let record = Record::Acked { epoch: Epoch(0), position: rng.below(LARGEST), offset: SHARD_LEN };
        // A position that comes up twice is refused the second time.
        done += u64::from(recovery.apply(&record).is_ok());
    }
    let mut running = Running::with(recovery.finish(Generation(2))?)?;
    let holes = format!("{} done shards in holes of 10^8", scale.holes);

    let (mut pauses, mut calls) = (Vec::new(), Vec::new());
    let mut kept = None;
    for _ in 0..scale.rounds {
        let (snapshot, took) = on_this_thread(|| running.ledger.snapshot());
        pauses.push(took);
        // As a store would, a reader still has it while the ledger goes on and copies what both have.
        kept = Some(snapshot);
        for _ in 0..HOLDERS {
            let (ran, took) = on_this_thread(|| running.run(1));
            ran?;
            calls.push(took.cpu);
        }
    }
    let pause = median(pauses.iter().map(|took| ms(took.cpu)));
    let wall = median(pauses.iter().map(|took| ms(took.wall)));
    rows.push(
        Entry::shown(format!("snapshot, {holes}: pause"), pause, "ms")
            .at_most(50.0)
            .beside(format!("{wall:.3} ms on the wall")),
    );
    let worst = calls.into_iter().max().unwrap_or_default();
    rows.push(Entry::shown("snapshot: dearest call right after it", ms(worst), "ms"));
    let snapshot = kept.context("a benchmark has rounds")?;
    let (bytes, took) = on_this_thread(|| snapshot.to_bytes());
    let size = format!(
        "{:.1} MiB, {:.2} bytes a hole",
        bytes.len() as f64 / MIB,
        bytes.len() as f64 / scale.holes as f64
    );
    rows.push(Entry::shown("snapshot: its bytes, off the pause", ms(took.cpu), "ms").beside(size));
    let (read, took) = on_this_thread(|| LedgerSnapshot::from_bytes(&bytes, &spec));
    if read? != snapshot {
        bail!("a snapshot is not what its bytes say");
    }
    rows.push(Entry::shown("snapshot: read again", ms(took.cpu), "ms"));
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
