//! What a reduction needs beside its buffer.

use std::fs;

use anyhow::{Context, Result};

use super::crew::Crew;
use super::order::{Buffer, Medium, Prepared};
use crate::{Entry, Rows};

/// Bytes of the buffer.
const BYTES: u64 = 64 << 20;
/// What may come on top of one more buffer.
const EXTRA: u64 = 4 << 20;

/// The first reduction of fresh ranks. No slack: memory does not depend on what else the machine does.
pub(super) fn added(
    start: impl Fn(Medium, u32) -> Result<Crew>,
    title: &str,
    (medium, buffer, world): (Medium, Buffer, u32),
    rows: &mut Rows,
) -> Result<()> {
    let mut crew = start(medium, world)?;
    let shared_before = shared_memory()?;
    let ranks: Vec<Prepared> = crew.order(&format!("prepare {buffer} {BYTES}"))?;
    // The buffers themselves are shared memory if the communicator made them.
    let own = if buffer == Buffer::Own && medium == Medium::Shm { BYTES } else { 0 };
    let shared = shared_memory()?.saturating_sub(shared_before) as f64 / f64::from(world) - own as f64;
    let private = ranks.iter().map(private).max().unwrap_or(0);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    rows.push(
        Entry::shown(format!("{title}: memory added by a first call"), mib(private as f64 + shared), "MiB")
            .at_most(mib((BYTES + EXTRA) as f64))
            .beside(format!("{:.1} MiB of it shared", mib(shared))),
    );
    Ok(())
}

/// Growth of a rank's own memory. Pages of shared memory that it began to see meanwhile may be another's; they are
/// counted where they exist, once.
fn private(rank: &Prepared) -> i64 {
    let grown = rank.peak.saturating_sub(rank.before);
    i64::try_from(grown).unwrap_or(i64::MAX) - rank.shared
}

/// Shared memory of the whole host, in bytes.
fn shared_memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("the system does not tell of memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).context("/proc/meminfo has no Shmem")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others_are_not_added_memory() {
        let rank = Prepared { before: 100 << 20, peak: 230 << 20, shared: 128 << 20 };
        assert_eq!(private(&rank), 2 << 20);
        assert_eq!(private(&Prepared { before: 10, peak: 9, shared: 0 }), 0);
    }
}
