//! Prepares a job: finds out what it goes on from and where it keeps its own files, before anything of it can be reached.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_checkpoint::Folder;
use antdt_core::{CheckpointId, ParamLayout, Role, Seed};
use antdt_job::evaluation::EvaluationVerdict;
use antdt_launch::Launcher;
use antdt_proto::Token;
use antdt_rt::{Packing, TraceSink};
use antdt_shard::{Assignment, DatasetSpec, Epochs, LedgerSnapshot, OnQuarantine};

use super::claim::{Claim, ClaimError};
use super::journal::{self, HeadState, JobFile, Orphaned};
use super::{JobError, Programs, Seams, TrainingData, evaluations, used};
use crate::job::{JobSpec, Sharding};
use crate::lead::Elector;
use crate::report::EvaluationEntry;
use crate::resume::{self, ResumeError};
use crate::run_dir::{self, RunDir, RunDirError};
use crate::worker::TRAIN_DATASET;

/// How long the kernel may still be at the end of a master whose job another one takes over.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);

/// A job that has its files for itself, and of which nothing runs.
pub(super) struct Prepared {
    pub(super) begun: Begun,
    pub(super) job: String,
    /// Since the epoch of the system's clock.
    pub(super) job_start: Duration,
    /// Digest of the data's content.
    pub(super) fingerprint: Option<String>,
    /// Where the job is recorded, if it is.
    pub(super) recording: Option<(Box<dyn TraceSink>, Packing)>,
    pub(super) run_dir: Option<RunDir>,
    /// What a master left that has ended, if this one succeeds it.
    pub(super) taken: Option<Taken>,
    /// Evaluations that the job has behind it; one without samples is not tried again.
    pub(super) evaluations: Vec<EvaluationEntry>,
    /// Samples that are done.
    pub(super) done: u64,
}

/// What a job has from its last master.
pub(super) struct Taken {
    pub(super) file: JobFile,
    pub(super) state: HeadState,
    pub(super) token: Token,
    /// Where that master was.
    pub(super) address: String,
}

/// Prepares a job, or what is left of `orphaned`. `since` is when a job began that goes on after its processes ended.
pub(super) fn prepare(
    spec: &JobSpec,
    data: Option<&TrainingData>,
    programs: &Programs,
    (seams, launcher): (&Seams, &dyn Launcher),
    orphaned: Option<Orphaned>,
    since: Option<Duration>,
) -> Result<Prepared, JobError> {
    let (recording, job_start, job, begun, new_dir) = match &orphaned {
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let start = since.unwrap_or(now);
            let job = spec.job_id.clone().unwrap_or_else(|| format!("antdt-{:x}", start.as_nanos()));
            // Before anything is written: recording, checkpoints and report of a job that runs there are its own.
            let dir = lock_run_dir(spec, &job)?;
            if since.is_none() {
                dir.as_ref().map_or(Ok(()), |dir| journal::refuse_alive(dir, launcher))?;
                used::clear(spec)?;
            }
            let recording = (seams.recorder)(spec).map_err(|source| JobError::of_part("recorder", source))?;
            let begun = begin(spec, data, programs.layout.clone(), &job)?;
            (recording, start, job, begun, dir)
        }
        // What was recorded stays as it is: this half cannot be replayed without the other.
        Some(orphaned) => (None, orphaned.file.job_start, orphaned.file.job.clone(), go_on(orphaned)?, None),
    };
    let Begun { spec, snapshot, .. } = &begun;
    let counts = snapshot.as_ref().map(LedgerSnapshot::counts).unwrap_or_default();
    let done = counts.acked + counts.quarantined;
    let epochs = data.map_or(0, |data| u32::try_from(done / data.samples.max(1)).unwrap_or(u32::MAX));
    // Before a port is taken: two masters of one job must not be.
    let evaluations = match (since, &spec.resume, &orphaned, &spec.checkpoint_dir) {
        (None, _, Some(_), Some(place)) => evaluations::read(place, u32::MAX),
        (None, Some(path), None, _) => {
            path.parent().map_or_else(Vec::new, |place| evaluations::read(place, epochs))
        }
        _ => Vec::new(),
    };
    if let (Some(rule), Some(path), None) = (&spec.early_stopping, &spec.resume, &orphaned)
        && let EvaluationVerdict::Stop(why) = rule.judge(&evaluations)
    {
        return Err(ResumeError::Stopped { path: path.clone(), why }.into());
    }
    let (run_dir, taken) = match orphaned {
        None => (clear_run_dir(spec, new_dir, launcher)?, None),
        Some(Orphaned { dir, file, state, token, address, .. }) => {
            (Some(dir), Some(Taken { file, state, token, address }))
        }
    };
    let fingerprint = data.and_then(|data| data.fingerprint.clone());
    Ok(Prepared { begun, job, job_start, fingerprint, recording, run_dir, taken, evaluations, done })
}

/// What a job begins with.
pub(super) struct Begun {
    /// Its settings, as the nodes get them: with the folder of checkpoints, and the checkpoint that it goes on from.
    pub(super) spec: JobSpec,
    pub(super) dataset: Option<DatasetSpec>,
    /// Where checkpoints go, and the number of the first.
    pub(super) folder: Option<(Folder, CheckpointId)>,
    /// Keeps other jobs out of it.
    pub(super) claim: Option<Claim>,
    /// What is done already.
    pub(super) snapshot: Option<LedgerSnapshot>,
    /// For people.
    pub(super) resumed: Option<String>,
}

/// Finds what the job goes on from, and where it keeps its own checkpoints.
fn begin(
    spec: &JobSpec,
    data: Option<&TrainingData>,
    layout: Option<ParamLayout>,
    job: &str,
) -> Result<Begun, JobError> {
    let mut spec = spec.clone();
    let mut dataset = data.map(|data| dataset(&spec, data.samples));
    let (mut snapshot, mut resumed, mut before, mut claim) = (None, None, None, None);
    if let (Some(dir), Some(data), Some(ours)) = (&spec.resume, data, &dataset) {
        let found = resume::prepare(&spec, dir, data, ours, layout)?;
        let path = found.checkpoint.path().to_owned();
        before = path.parent().map(Path::to_owned);
        spec.resume = Some(absolute(path));
        (dataset, snapshot, resumed) = (Some(found.dataset), Some(found.snapshot), Some(found.text));
    }
    let default = (spec.run_dir.is_some() || spec.report_dir.is_some())
        .then(|| run_dir::place(&spec, job).map(|run| run.join(resume::CHECKPOINTS)));
    // A job without a folder of its own goes on in the one that it was resumed from.
    let place = spec.checkpoint_dir.clone().or(default.flatten()).or(before);
    let place = place.filter(|_| dataset.is_some());
    let folder = match place {
        Some(place) => match own_folder(&spec, absolute(place))? {
            Some((folder, place, taken)) => {
                claim = taken;
                let first = folder.next_id().map_err(ResumeError::from)?;
                spec.checkpoint_dir = Some(place);
                Some((folder, first))
            }
            None => None,
        },
        None => None,
    };
    Ok(Begun { spec, dataset, folder, claim, snapshot, resumed })
}

/// Makes the folder for checkpoints, and claims it. A folder that was not asked for is no reason to refuse the job.
fn own_folder(spec: &JobSpec, place: PathBuf) -> Result<Option<(Folder, PathBuf, Option<Claim>)>, JobError> {
    if let (Some(run), None) = (&spec.run_dir, &spec.checkpoint_dir) {
        // It is this folder that was asked for.
        std::fs::create_dir_all(run).map_err(|source| RunDirError::File { path: run.clone(), source })?;
    }
    match Folder::create(&place) {
        Ok(folder) => {
            let claim = claimed(spec, &place, Duration::ZERO)?;
            Ok(Some((folder, place, claim)))
        }
        Err(error) if spec.checkpoint_dir.is_some() || spec.run_dir.is_some() => {
            Err(JobError::Checkpoints(error))
        }
        Err(error) => {
            tracing::warn!(%error, "the job keeps no checkpoints");
            Ok(None)
        }
    }
}

/// The nodes may have another working directory. A URL stays as it is.
pub(super) fn absolute(path: PathBuf) -> PathBuf {
    if path.to_string_lossy().contains("://") {
        return path;
    }
    std::path::absolute(&path).unwrap_or(path)
}

/// What the ledger hands out.
fn dataset(spec: &JobSpec, samples: u64) -> DatasetSpec {
    let (batch, workers) = (spec.global_batch_size, spec.workers);
    let mut dataset = DatasetSpec::of_job(TRAIN_DATASET, samples, batch, workers, spec.shard_len);
    dataset.epochs = Epochs::Finite(spec.epochs);
    dataset.seed = Seed(spec.seed).derive("data");
    if spec.max_quarantined > 0 {
        dataset.on_quarantine = OnQuarantine::Continue { max_samples: spec.max_quarantined };
    }
    dataset.assignment = match spec.sharding {
        Sharding::Dynamic => Assignment::Dynamic,
        Sharding::Static => Assignment::Static { workers: spec.workers },
    };
    dataset
}

/// Opens the run directory of the job for this master alone, and leaves what is there as it is. A directory that was not asked for
/// is no reason to refuse the job.
fn lock_run_dir(spec: &JobSpec, job: &str) -> Result<Option<RunDir>, JobError> {
    let Some(path) = run_dir::place(spec, job) else {
        tracing::info!("neither XDG_STATE_HOME nor HOME is set: the job has no run directory");
        return Ok(None);
    };
    let elector = Elector::new(spec.elect.as_ref(), job);
    RunDir::open(&path, true, &elector)
        .map_or_else(|error| without_run_dir(spec, error).map(|()| None), |dir| Ok(Some(dir)))
}

/// Removes what an earlier job has left in the run directory, unless nodes of it live.
fn clear_run_dir(
    spec: &JobSpec,
    dir: Option<RunDir>,
    launcher: &dyn Launcher,
) -> Result<Option<RunDir>, JobError> {
    let Some(mut dir) = dir else { return Ok(None) };
    match journal::clear(&dir, launcher) {
        Ok(()) => {
            dir.keep = false;
            Ok(Some(dir))
        }
        Err(error) => without_run_dir(spec, error).map(|()| None),
    }
}

/// Writes the identity of the job's master.
pub(super) fn announce(
    spec: &JobSpec,
    dir: &mut Option<RunDir>,
    master: (&str, Option<&str>, bool),
    job: &str,
    token: &Token,
) -> Result<(), JobError> {
    let Some(announced) = dir.as_ref().map(|dir| dir.announce(master, job, token)) else {
        return Ok(());
    };
    match announced {
        Ok(generation) => tracing::debug!(generation, "this master is announced"),
        Err(error) => {
            without_run_dir(spec, error)?;
            *dir = None;
        }
    }
    Ok(())
}

fn without_run_dir(spec: &JobSpec, error: RunDirError) -> Result<(), JobError> {
    let asked = spec.run_dir.is_some() || spec.elect.is_some();
    // Even where no directory was asked for: the report folder and its checkpoints are of the job that runs there.
    let in_use =
        matches!(error, RunDirError::Taken { .. } | RunDirError::Orphans { .. } | RunDirError::Torn { .. });
    if asked || in_use {
        return Err(error.into());
    }
    tracing::warn!(%error, "the job has no run directory: no later command can reach it");
    Ok(())
}

/// Claims the folder of checkpoints, unless masters are elected: the last one may stand still, with its claim.
pub(super) fn claimed(spec: &JobSpec, place: &Path, patience: Duration) -> Result<Option<Claim>, ClaimError> {
    if spec.elect.is_some() { Ok(None) } else { Claim::take(place, patience) }
}

/// What a job goes on with whose master has ended.
fn go_on(orphaned: &Orphaned) -> Result<Begun, JobError> {
    let JobFile { spec, job, dataset, first, .. } = &orphaned.file;
    let mut claim = None;
    let folder = match (&spec.checkpoint_dir, first) {
        (Some(place), Some(first)) => {
            claim = claimed(spec, place, CLAIM_PATIENCE)?;
            Some((Folder::create(place.clone()).map_err(JobError::Checkpoints)?, *first))
        }
        _ => None,
    };
    let alive = orphaned.alive;
    let mut resumed = format!(
        "took over job {job} from a master that ended: {alive} of its nodes live; times, steps and events are those from here on"
    );
    if let Some(file) = &spec.record {
        resumed += &format!(", and the recording {} ends with that master", file.display());
    }
    // It may have other servers than it began with.
    let spec = JobSpec { servers: servers(&orphaned.state).unwrap_or(spec.servers), ..spec.clone() };
    Ok(Begun { spec, dataset: Some(dataset.clone()), folder, claim, snapshot: None, resumed: Some(resumed) })
}

/// Number of servers that the job had; `None` if its master ended before it had started any.
fn servers(state: &HeadState) -> Option<u32> {
    let servers = state.record.nodes.iter().filter(|node| node.holder.node.role == Role::Server);
    let present = servers.filter(|node| !node.retired).count();
    u32::try_from(present).ok().filter(|servers| *servers > 0)
}
