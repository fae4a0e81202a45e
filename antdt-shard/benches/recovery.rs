//! How long a service takes to read a journal of 1 GiB that was never compacted, and how much memory.
//!
//! The journal is written by [`FileStore`], of the records of a ledger with 16 holders that acknowledge each shard in
//! two halves. It is then opened, read and made a ledger again, from the cache of the system. `cargo bench -p
//! antdt-shard --bench recovery`; a number behind `--` is another length in MiB.

#![allow(clippy::disallowed_methods, reason = "a benchmark needs the clock")]

use std::path::Path;
use std::time::{Duration, Instant};

use antdt_core::{
    Ack, FetchOutcome, Generation, Grant, Holder, Incarnation, Machine, NodeId, RequestId, Seed,
};
use antdt_shard::runtime::{FileStore, FileStoreOptions, SyncPolicy};
use antdt_shard::{DatasetSpec, Effect, Epochs, LedgerStore, Record, Recovery, ShardLedger};

const HOLDERS: u64 = 16;

fn spec() -> DatasetSpec {
    DatasetSpec {
        epochs: Epochs::Infinite,
        epoch_overlap: 1,
        max_leases_per_holder: 1_000,
        ..DatasetSpec::new("bench", 1_000_000, 100)
    }
}

/// A ledger that leaves records for ever.
struct Writer {
    ledger: ShardLedger,
    rng: antdt_core::DetRng,
    held: Vec<(Holder, Grant, u64)>,
    request: u64,
}

impl Writer {
    fn new() -> Self {
        let ledger = ShardLedger::new(spec(), Generation(1)).expect("a valid data set");
        Self { ledger, rng: Seed(1).rng(), held: Vec::new(), request: 0 }
    }

    /// So many acks of random holders, and what else they leave.
    fn round(&mut self, acks: usize) -> Vec<Record> {
        for _ in 0..acks {
            while (self.held.len() as u64) < HOLDERS {
                self.request += 1;
                let holder = Holder::new(NodeId::worker((self.request % HOLDERS) as u32), Incarnation(0));
                let generation = self.ledger.register(holder).expect("a live worker");
                let fetched = self.ledger.fetch(holder, generation, RequestId(self.request));
                let Ok(FetchOutcome::Granted(grant)) = fetched else {
                    panic!("there is no end: {fetched:?}")
                };
                self.held.push((holder, grant, grant.len / 2));
            }
            let one = self.rng.below(HOLDERS) as usize;
            let (holder, grant, offset) = self.held[one];
            self.ledger.ack(holder, Ack { lease: grant.lease, offset }).expect("a live lease");
            if offset == grant.len {
                self.held.swap_remove(one);
            } else {
                self.held[one].2 = grant.len;
            }
        }
        let effects = std::iter::from_fn(|| self.ledger.poll_effect());
        let record = |effect| match effect {
            Effect::Record(record) => Some(record),
            _ => None,
        };
        effects.filter_map(record).collect()
    }
}

fn open(folder: &Path) -> FileStore {
    let sync = SyncPolicy::Every(Duration::from_secs(3_600));
    let options = FileStoreOptions { sync, segment_bytes: u64::MAX };
    FileStore::open(folder, spec(), options).expect("a folder of our own")
}

fn length(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("a folder");
    files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len()).sum()
}

/// The most memory this process ever had, in MiB; `None` where the system does not say.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? >> 10)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // Without it this is a test that it runs at all.
    let usual = if arguments.iter().any(|argument| argument == "--bench") { 1_024 } else { 1 };
    let mib: u64 = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(usual);
    println!("recovery of a journal of {mib} MiB");
    println!("acks a frame    records    seconds      MiB/s  records/s  peak MiB");
    for acks in [16, 1] {
        let folder = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder");
        let (mut store, mut writer, mut records) = (open(folder.path()), Writer::new(), 0_u64);
        let mut bytes = 0;
        while bytes < mib << 20 {
            for _ in 0..1_000 {
                let round = writer.round(acks);
                records += round.len() as u64;
                store.append(&round).await.expect("there is room");
            }
            bytes = length(folder.path());
        }
        drop(store);
        let began = Instant::now();
        let recovery = Recovery::new(spec()).expect("a valid data set");
        let recovery = open(folder.path()).load(recovery).await.expect("a whole journal");
        let ledger = recovery.finish(Generation(u64::MAX)).expect("a new generation");
        let took = began.elapsed().as_secs_f64();
        assert_eq!(ledger.counts().acked, writer.ledger.counts().acked, "nothing is lost");
        let peak = peak().map_or_else(|| "-".into(), |peak| peak.to_string());
        let (speed, rate) = (bytes as f64 / took / f64::from(1 << 20), records as f64 / took);
        println!("{acks:>12} {records:>10} {took:>10.2} {speed:>10.0} {rate:>10.0} {peak:>9}");
    }
}
