//! What a master leaves in the run directory for its successor: [`JobFile`], what the job began with, and [`HeadJournal`], the
//! newest record of its head.
//!
//! Each is one file: a line with the checksum of the rest, then JSON. A file is replaced as a whole, so that its reader finds one
//! state or the next. It is not made durable: whatever takes the machine down takes the nodes along, and without them the job
//! goes on from a checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_controller::runtime::launcher::process_lives;
use antdt_core::{CheckpointId, Holder};
use antdt_job::head::HeadRecord;
use antdt_proto::Token;
use antdt_shard::{DatasetSpec, LedgerSnapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::JobError;
use crate::job::JobSpec;
use crate::run_dir::{self, HEAD, JOB, RunDir, RunDirError};

/// What a job began with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JobFile {
    /// Its settings, as the nodes have them.
    pub(super) spec: JobSpec,
    pub(super) job: String,
    pub(super) job_start: Duration,
    /// The working folder, for paths in the settings.
    folder: PathBuf,
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
            port,
            dataset: dataset.clone(),
            snapshot: snapshot.to_bytes(),
            first,
        }
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), RunDirError> {
        write(&dir.join(JOB), self)
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
    /// Number of nodes that live, as far as they are processes of [`ProcessLauncher`]: handles of other launchers are not
    /// understood before there is one.
    fn alive(&self) -> usize {
        self.handles.iter().filter(|(_, handle)| process_lives(handle)).count()
    }
}

/// Writes the newest state of a job.
#[derive(Debug)]
pub(super) struct HeadJournal {
    path: PathBuf,
    state: HeadState,
    /// Whether a write failed: an old state is worse than none.
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
        if self.failed {
            return;
        }
        if let Err(error) = write(&self.path, &self.state) {
            tracing::error!(%error, "the job goes on, but no other master can take it over");
            self.failed = true;
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), RunDirError> {
    let text = serde_json::to_string(value).expect("plain values");
    let text = format!("{:08x}\n{text}\n", crc32c::crc32c(text.as_bytes()));
    run_dir::replace(path, 0o600, &text).map_err(|source| RunDirError::File { path: path.to_owned(), source })
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

/// A job whose master has ended and whose nodes live. The next master has its run directory for itself.
#[derive(Debug)]
pub(crate) struct Orphaned {
    pub(super) dir: RunDir,
    pub(super) file: JobFile,
    pub(super) state: HeadState,
    pub(super) token: Token,
    /// Number of its nodes that live.
    pub(super) alive: usize,
}

impl Orphaned {
    /// The settings of the job.
    pub(crate) const fn spec(&self) -> &JobSpec {
        &self.file.spec
    }

    /// Finds the job that the settings resume, if its nodes live. From then on no other master can take it over.
    ///
    /// # Errors
    /// If its master lives, a file is damaged, or the settings ask for another job.
    pub(crate) fn find(spec: &JobSpec) -> Result<Option<Self>, JobError> {
        let Some(dir) = &spec.resume else { return Ok(None) };
        let below = dir.join("run");
        let Some(dir) = [dir, &below].into_iter().find(|dir| dir.join(JOB).exists()) else { return Ok(None) };
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        let lock = RunDir::open(&dir, true)?;
        let (Some(file), Some(state)) =
            (read::<JobFile>(&dir.join(JOB))?, read::<HeadState>(&dir.join(HEAD))?)
        else {
            return Ok(None);
        };
        let alive = state.alive();
        if alive == 0 {
            return Ok(None);
        }
        let changed = changed(spec, &file.spec);
        if !changed.is_empty() {
            return Err(RunDirError::Orphans { path: dir, alive, changed: changed.join(", ") }.into());
        }
        let (_, token) = run_dir::read(&dir)?;
        if !file.folder.as_os_str().is_empty() {
            let folder = file.folder.clone();
            std::env::set_current_dir(&folder)
                .map_err(|source| RunDirError::File { path: folder, source })?;
        }
        Ok(Some(Self { dir: lock, file, state, token, alive }))
    }
}

/// Settings that the user gave and that are not those of the job.
fn changed(given: &JobSpec, job: &JobSpec) -> Vec<String> {
    /// Of the master alone, or of the start.
    const FREE: [&str; 8] =
        ["resume", "job-id", "checkpoint-dir", "run-dir", "report-dir", "quiet", "log", "log-format"];
    let (plain, job): (BTreeMap<_, _>, BTreeMap<_, _>) = (JobSpec::default().texts(), job.texts());
    let differs = |(name, text): &(String, String)| {
        !FREE.contains(&name.as_str()) && plain.get(name) != Some(text) && job.get(name) != Some(text)
    };
    given.texts().into_iter().filter(differs).map(|(name, _)| name).collect()
}

/// Refuses a directory for a new job in which nodes of an earlier one live; removes what an earlier one has left otherwise.
pub(super) fn clear(dir: &RunDir) -> Result<(), RunDirError> {
    let alive = read::<HeadState>(&dir.path().join(HEAD)).ok().flatten().map_or(0, |state| state.alive());
    if alive > 0 {
        return Err(RunDirError::Orphans { path: dir.path().to_owned(), alive, changed: String::new() });
    }
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
    fn what_was_given_anew_must_be_as_it_was() {
        let job = JobSpec { workers: 3, seed: 4, ..JobSpec::default() };
        assert_eq!(changed(&JobSpec::default(), &job), Vec::<String>::new(), "nothing was given");
        assert_eq!(changed(&JobSpec { quiet: true, ..job.clone() }, &job), Vec::<String>::new());
        assert_eq!(changed(&JobSpec { seed: 5, ..job.clone() }, &job), ["seed"]);
    }
}
