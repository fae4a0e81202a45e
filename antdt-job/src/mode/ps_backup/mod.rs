//! The sync mode `ps-backup=WORKERS`: parameter servers with common steps that do not wait for the slowest
//! workers.
//!
//! As in `ps-bsp` the servers buffer the pushes of a step, and the master's coordinator commits the step.
//! It waits until all workers that have samples are ready except `WORKERS` of them, and at least one is. No
//! server applies a push that comes later, and its samples are not acknowledged: the worker trains them again
//! in the step that is open then. A worker whose pushes came too late four times in a row gives its shards
//! back, and takes steps without samples until another worker has asked for a shard.
//!
//! The coordinator waits for every worker in a step in which a plan may come into force, or in which a worker
//! has paused for a checkpoint.
//!
//! A step of a worker: `Exchange`, `Load`, `Pull`, `Compute`, `Push`, `Ready`.
//!
//! Source: synchronous training with backup workers (Chen et al., 2016; recalled); what becomes of samples that come too late is our
//! design.

use antdt_core::{Capabilities, InvalidValue};

use super::shared::coordinated::{Head, Worker};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ps-backup` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ps-backup",
    setting: Some("WORKERS"),
    about: "the model lives on servers; all workers take each step together, without the WORKERS slowest",
    example: "ps-backup=1",
    parse,
};

/// Most backups: beyond, a slip of the hand is likelier than a wish.
const BACKUPS_MAX: u32 = 1_000_000;

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    let backups = setting
        .and_then(|backups| backups.parse().ok())
        .filter(|backups| (1..=BACKUPS_MAX).contains(backups));
    let refused = || {
        let given = setting.map_or_else(|| ENTRY.name.to_owned(), |given| format!("{}={given}", ENTRY.name));
        let expected = format!(
            "{} with the number of workers that a step need not wait for, 1 to {BACKUPS_MAX}, such as {}",
            ENTRY.usage(),
            ENTRY.example
        );
        InvalidValue::new("--sync", given, expected)
    };
    backups.map(|backups| SyncMode::new(PsBackup { backups })).ok_or_else(refused)
}

/// The sync mode `ps-backup`: parameter servers, with steps that do not wait for the slowest workers. See the
/// [module](self).
#[derive(Debug, Clone, Copy)]
pub struct PsBackup {
    /// Number of workers that a step need not wait for; at least 1.
    pub backups: u32,
}

impl Mode for PsBackup {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        Some(self.backups.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::servers_with_backups(self.backups)
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Head::new(self.backups))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Worker::that_may_come_late())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_backups_is_at_least_one_and_written_back() {
        let mode: SyncMode = "ps-backup=2".parse().unwrap();
        assert_eq!((mode.name(), mode.to_string().as_str()), ("ps-backup", "ps-backup=2"));
        for wrong in ["ps-backup", "ps-backup=", "ps-backup=0", "ps-backup=x", "ps-backup=-1"] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert!(error.contains("--sync") && error.contains("such as ps-backup=1"), "{error}");
        }
    }
}
