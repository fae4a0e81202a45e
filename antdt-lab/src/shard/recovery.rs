//! How long a service takes to read a journal that was never compacted: from the disk, as after a failover, and from memory,
//! as after a restart on the machine that has just written it.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use antdt_core::{Ack, Generation, Holder, Incarnation, Machine, NodeId, RequestId};
use antdt_shard::runtime::{FileStore, FileStoreOptions, SyncPolicy};
use antdt_shard::{Effect, LedgerStore, Record, Recovery, ShardLedger};
use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};

use super::meter::in_this_process;
use super::{SHARD_LEN, Scale, spec};
use crate::entry::State;
use crate::{Entry, Rows};

const SHARDS: u64 = 1_000_000;
const HOLDERS: u32 = 16;
/// Of the whole task: 1 GiB.
const WHOLE_MIB: u64 = 1024;
const WHOLE_S: f64 = 10.0;

/// Writes the journal of a ledger whose holders acknowledge each shard in two halves, then reads it.
pub(super) fn recovery(scale: &Scale, folder: &Path, rows: &mut Rows) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (bytes, acked) = runtime.block_on(write(folder, scale.journal_mib << 20))?;
    // A shorter journal must be read at the same speed.
    let target = WHOLE_S * scale.journal_mib as f64 / WHOLE_MIB as f64;
    forget(folder)?;
    for state in ["cold", "warm"] {
        let before = read_from_disk()?;
        let (read, took) = in_this_process(|| {
            runtime.block_on(async {
                let recovery = open(folder)?.load(Recovery::new(spec(SHARDS))?).await?;
                anyhow::Ok(recovery.finish(Generation(u64::MAX))?)
            })
        });
        ensure!(read?.counts().acked == acked, "acks are missing from the journal");
        let from_disk = read_from_disk()?.saturating_sub(before);
        let name = format!("recovery of a journal of {} MiB, {state}", scale.journal_mib);
        if state == "cold" && from_disk < bytes / 2 {
            let why = format!("only {} of {} MiB came from a disk", from_disk >> 20, bytes >> 20);
            rows.push(Entry::without(name, State::NotMeasured, why));
            continue;
        }
        let (mib, wall) = (bytes as f64 / f64::from(1 << 20), took.wall.as_secs_f64());
        let peer = format!(
            "{:.0} MiB/s, {} MiB of it from the disk; {:.2} s of a core",
            mib / wall,
            from_disk >> 20,
            took.cpu.as_secs_f64()
        );
        rows.push(Entry::shown(name, wall, "s").at_most(scale.ceiling(target)).beside(peer));
    }
    Ok(())
}

/// Lets the system forget what it keeps of the files of a folder in memory. Where a file system lives in memory itself, it
/// does not.
fn forget(folder: &Path) -> Result<()> {
    for file in fs::read_dir(folder)? {
        let file = File::open(file?.path())?;
        // Only what is on the disk can be forgotten.
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed).context("the system does not forget files")?;
    }
    Ok(())
}

/// Bytes that this process has had from a disk.
fn read_from_disk() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io").context("the system does not tell what was read")?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok());
    bytes.context("/proc/self/io has no read_bytes")
}

fn open(folder: &Path) -> Result<FileStore> {
    let sync = SyncPolicy::Every(Duration::from_secs(3_600));
    Ok(FileStore::open(folder, spec(SHARDS), FileStoreOptions { sync, segment_bytes: u64::MAX })?)
}

/// Gives the bytes on the disk and the samples that were acknowledged.
async fn write(folder: &Path, bytes: u64) -> Result<(u64, u64)> {
    let mut store = open(folder)?;
    let mut ledger = ShardLedger::new(spec(SHARDS), Generation(1))?;
    let mut held: Vec<(Holder, Ack)> = Vec::new();
    for index in 0..HOLDERS {
        let holder = Holder::new(NodeId::worker(index), Incarnation(0));
        ledger.register(holder)?;
        held.push((holder, take(&mut ledger, holder, RequestId(1), &[])?));
    }
    let mut request = RequestId(1);
    loop {
        // The length is asked for rarely.
        for _ in 0..1_000 {
            request = request.next();
            for (holder, ack) in &mut held {
                let half = Ack { offset: SHARD_LEN / 2, ..*ack };
                *ack = take(&mut ledger, *holder, request, &[half, *ack])?;
            }
            store.append(&records(&mut ledger)).await?;
        }
        let len = length(folder)?;
        if len >= bytes {
            return Ok((len, ledger.counts().acked));
        }
    }
}

/// The ack of the next shard.
fn take(ledger: &mut ShardLedger, holder: Holder, request: RequestId, acks: &[Ack]) -> Result<Ack> {
    let exchanged = ledger.exchange(holder, ledger.generation(), request, acks, 1)?;
    let grant = exchanged.grants().next().context("a ledger without an end granted nothing")?;
    Ok(Ack { lease: grant.lease, offset: grant.len })
}

fn records(ledger: &mut ShardLedger) -> Vec<Record> {
    let effects = std::iter::from_fn(|| ledger.poll_effect());
    let record = |effect| match effect {
        Effect::Record(record) => Some(record),
        _ => None,
    };
    effects.filter_map(record).collect()
}

fn length(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for file in fs::read_dir(folder)? {
        sum += file?.metadata()?.len();
    }
    Ok(sum)
}
