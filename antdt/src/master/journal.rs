//! What a master leaves in the run directory for its successor: [`JobFile`], what the job began with, and [`HeadJournal`], the
//! newest record of its head.
//!
//! Each is one file: a line with the checksum of the rest, then JSON. A file is replaced as a whole, so that its reader finds one
//! state or the next, whenever the master is killed.
//!
//! What a power cut leaves is another matter. The first file is written once and made durable. The second is written whenever
//! the head changes and is not: to wait for the disk would have every worker wait, for seconds while a checkpoint is written, and
//! what takes the master's machine down takes its nodes along, without which the job goes on from a checkpoint that is durable.
//! A file that such a cut has damaged is refused, not taken for an old one, unless the machine has started anew since the job began
//! and no node outlives it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_core::{CheckpointId, Holder};
use antdt_job::head::HeadRecord;
use antdt_launch::Launcher;
use antdt_launch::runtime::process::boot_id;
use antdt_proto::Token;
use antdt_shard::{DatasetSpec, LedgerSnapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::JobSpec;
use crate::run_dir::{self, Durability, HEAD, JOB, RunDir, RunDirError};

#[cfg(feature = "cli")]
mod search;

/// What a job began with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JobFile {
    /// Its settings, as the nodes have them.
    pub(super) spec: JobSpec,
    pub(super) job: String,
    pub(super) job_start: Duration,
    /// The working folder, for paths in the settings.
    folder: PathBuf,
    /// Which start of the machine the job began in; empty if the system does not say.
    #[serde(default)]
    boot: String,
    /// Where the master listens.
    pub(super) port: u16,
    pub(super) dataset: DatasetSpec,
    /// The ledger at the start.
    snapshot: Vec<u8>,
    /// Number of the job's first checkpoint, if it takes any.
    pub(super) first: Option<CheckpointId>,
}

impl JobFile {
    /// Says what a job begins with.
    pub(super) fn new(
        spec: &JobSpec,
        (job, job_start, port): (&str, Duration, u16),
        dataset: &DatasetSpec,
        snapshot: &LedgerSnapshot,
        first: Option<CheckpointId>,
    ) -> Self {
        Self {
            spec: spec.clone(),
            job: job.to_owned(),
            job_start,
            folder: std::env::current_dir().unwrap_or_default(),
            boot: boot_id().unwrap_or_default(),
            port,
            dataset: dataset.clone(),
            snapshot: snapshot.to_bytes(),
            first,
        }
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), RunDirError> {
        write(&dir.join(JOB), self, Durability::Disk)
    }

    /// The ledger at the start of the job.
    pub(super) fn snapshot(&self, dir: &Path) -> Result<LedgerSnapshot, RunDirError> {
        LedgerSnapshot::from_bytes(&self.snapshot, &self.dataset)
            .map_err(|error| RunDirError::Torn { path: dir.join(JOB), why: error.to_string() })
    }
}

/// The newest state of a job's head and nodes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct HeadState {
    pub(super) record: HeadRecord,
    /// By which a launcher adopts the lives that were started.
    pub(super) handles: Vec<(Holder, String)>,
}

impl HeadState {
    /// Number of nodes that live.
    fn alive(&self, launcher: &dyn Launcher) -> usize {
        self.handles.iter().filter(|(_, handle)| launcher.lives(handle)).count()
    }

    /// Reads the newest state in a run directory; `None` if there is none, or no node outlived the power of this machine.
    pub(super) fn read(dir: &RunDir, launcher: &dyn Launcher) -> Result<Option<Self>, RunDirError> {
        match read(&dir.last_journals().join(HEAD)) {
            Err(RunDirError::Torn { path, why }) => {
                let job = read::<JobFile>(&dir.path().join(JOB))?;
                let is_earlier = |job: JobFile| !job.boot.is_empty() && Some(job.boot) != boot_id();
                if launcher.ends_with_host() && job.is_some_and(is_earlier) {
                    return Ok(None);
                }
                Err(RunDirError::Torn { path, why })
            }
            state => state,
        }
    }
}

/// Writes the newest state of a job.
#[derive(Debug)]
pub(super) struct HeadJournal {
    path: PathBuf,
    state: HeadState,
    /// Whether the last write failed: then there is no file, for an old state is worse than none.
    failed: bool,
}

impl HeadJournal {
    /// Goes on with a state, which is empty at the start of a job.
    pub(super) fn new(dir: &Path, state: HeadState) -> Self {
        Self { path: dir.join(HEAD), state, failed: false }
    }

    /// The head has changed.
    pub(super) fn record(&mut self, record: HeadRecord) {
        self.state.record = record;
        self.write();
    }

    /// The lives that were started and are not gone.
    pub(super) fn nodes(&mut self, handles: Vec<(Holder, String)>) {
        self.state.handles = handles;
        self.write();
    }

    fn write(&mut self) {
        match write(&self.path, &self.state, Durability::Process) {
            Ok(()) => {
                if std::mem::take(&mut self.failed) {
                    tracing::info!("another master can take the job over again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::error!(%error, "the job goes on, but no other master can take it over");
                }
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }
}

fn write(path: &Path, value: &impl Serialize, durability: Durability) -> Result<(), RunDirError> {
    let text = serde_json::to_string(value).expect("plain values");
    let text = format!("{:08x}\n{text}\n", crc32c::crc32c(text.as_bytes()));
    run_dir::replace(path, 0o600, &text, durability)
        .map_err(|source| RunDirError::File { path: path.to_owned(), source })
}

/// `None` if there is no such file.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RunDirError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RunDirError::File { path: path.to_owned(), source }),
    };
    let torn = |why: &str| RunDirError::Torn { path: path.to_owned(), why: why.to_owned() };
    let (sum, rest) = text.split_once('\n').ok_or_else(|| torn("it has no checksum"))?;
    let rest = rest.strip_suffix('\n').ok_or_else(|| torn("its end is missing"))?;
    if u32::from_str_radix(sum, 16) != Ok(crc32c::crc32c(rest.as_bytes())) {
        return Err(torn("its checksum is wrong"));
    }
    serde_json::from_str(rest).map(Some).map_err(|error| torn(&error.to_string()))
}

/// Returns the settings of the job that ran in `dir`, a run directory or the folder above one, and did not end in order.
pub(crate) fn left_settings(dir: &Path) -> Option<JobSpec> {
    settings(&run_dir::below(dir)).ok()?
}

/// Reads the settings of the job in a run directory; `None` if the job has left none.
pub(crate) fn settings(dir: &Path) -> Result<Option<JobSpec>, RunDirError> {
    Ok(read::<JobFile>(&dir.join(JOB))?.map(|file| file.spec))
}

/// A job whose master has ended and whose nodes live. The next master has its run directory for itself.
#[derive(Debug)]
pub(crate) struct Orphaned {
    pub(super) dir: RunDir,
    pub(super) file: JobFile,
    pub(super) state: HeadState,
    pub(super) token: Token,
    /// Where its last master was.
    pub(super) address: String,
    /// Number of its nodes that live.
    pub(super) alive: usize,
}

/// Makes the journals of an elected master: copies of those of the last one, where there was one. A reader of the folder finds all
/// of it.
pub(super) fn inherit(dir: &RunDir, from: Option<&Path>) -> Result<(), RunDirError> {
    let own = dir.journals();
    let copied = match from {
        None => std::fs::create_dir_all(&own),
        Some(from) => {
            let part = own.with_extension("part");
            let ledger = part.join(run_dir::LEDGER);
            std::fs::create_dir_all(&ledger)
                .and_then(|()| std::fs::copy(from.join(HEAD), part.join(HEAD)))
                .and_then(|_| {
                    std::fs::read_dir(from.join(run_dir::LEDGER))?.try_for_each(|entry| {
                        let entry = entry?;
                        std::fs::copy(entry.path(), ledger.join(entry.file_name())).map(drop)
                    })
                })
                .and_then(|()| std::fs::rename(&part, &own))
        }
    };
    copied.map_err(|source| RunDirError::File { path: own, source })
}

/// Refuses a directory for a new job in which nodes of an earlier one live, or may live.
pub(super) fn refuse_alive(dir: &RunDir, launcher: &dyn Launcher) -> Result<(), RunDirError> {
    let state = HeadState::read(dir, launcher)?;
    match state.map_or(0, |state| state.alive(launcher)) {
        0 => Ok(()),
        alive => Err(RunDirError::Orphans { path: dir.path().to_owned(), alive, changed: String::new() }),
    }
}

/// Removes what an earlier job has left, unless nodes of it live.
pub(super) fn clear(dir: &RunDir, launcher: &dyn Launcher) -> Result<(), RunDirError> {
    refuse_alive(dir, launcher)?;
    dir.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_and_one_that_is_damaged_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(HEAD);
        assert!(read::<HeadState>(&path).unwrap().is_none());
        let mut journal = HeadJournal::new(folder.path(), HeadState::default());
        let life = Holder::new(antdt_core::NodeId::worker(1), antdt_core::Incarnation(2));
        let plan = antdt_core::PlanVersion(7);
        journal.record(HeadRecord { plan, ..HeadRecord::default() });
        journal.nodes(vec![(life, "1 2 boot".to_owned())]);
        let state = read::<HeadState>(&path).unwrap().unwrap();
        assert_eq!((state.record.plan, state.handles), (plan, vec![(life, "1 2 boot".to_owned())]));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            std::fs::write(&path, &whole[..at]).unwrap();
            let error = read::<HeadState>(&path).unwrap_err().to_string();
            assert!(error.contains(HEAD) && error.contains("delete"), "{error}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            assert!(read::<HeadState>(&path).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_disk_that_was_full_for_a_while_keeps_no_later_state_away() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("away");
        let mut journal = HeadJournal::new(&dir, HeadState::default());
        let plan = |plan| HeadRecord { plan: antdt_core::PlanVersion(plan), ..HeadRecord::default() };
        journal.record(plan(1));
        assert!(!dir.join(HEAD).exists());
        std::fs::create_dir(&dir).unwrap();
        journal.record(plan(2));
        assert_eq!(read::<HeadState>(&dir.join(HEAD)).unwrap().unwrap().record, plan(2));
        std::fs::remove_dir_all(&dir).unwrap();
        journal.record(plan(3));
        std::fs::create_dir(&dir).unwrap();
        assert!(read::<HeadState>(&dir.join(HEAD)).unwrap().is_none(), "no old state is left");
    }
}
