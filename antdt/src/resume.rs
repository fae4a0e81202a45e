//! Resuming a job from a checkpoint: finds the checkpoint, and checks that the job can continue from it.

use std::path::{Path, PathBuf};

use antdt_checkpoint::{
    Checkpoint, CheckpointReadError, DataIdentity, Folder, JobIdentity, Manifest, Mismatch, ModelState,
};
use antdt_core::{InvalidValue, ParamLayout, Seed};
use antdt_job::SyncMode;
use antdt_model::{Portion, Trained};
use antdt_shard::{Assignment, DatasetSpec, LedgerSnapshot};

use crate::job::JobSpec;
use crate::master::{self, TrainingData};
use crate::report::{self, Report};

/// Name of the folder of checkpoints in a run directory.
pub const CHECKPOINTS: &str = "checkpoints";

/// Key of the data set's settings in a manifest.
pub(crate) const DATASET: &str = "dataset";

/// Key of the job's settings in a manifest, as a job file in JSON.
pub(crate) const SETTINGS: &str = "settings";

/// Reason why a job cannot continue from a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The folder or a file of the checkpoint cannot be read.
    #[error("--resume: {0}")]
    Read(#[from] CheckpointReadError),
    /// The folder holds no checkpoint.
    #[error("--resume = {}: there is no whole checkpoint{passed_over}; name another folder, or leave --resume out", path.display())]
    None {
        /// Path of the folder.
        path: PathBuf,
        /// Checkpoints that were examined, and why they cannot be used, in words.
        passed_over: String,
    },
    /// The checkpoint is of a job with other settings.
    #[error("--resume = {}: {source}", path.display())]
    Mismatch {
        /// Path of the checkpoint.
        path: PathBuf,
        /// The setting that differs, and its values.
        source: Mismatch,
    },
    /// The job would cut or order its data in another way than the job that took the checkpoint.
    #[error("--resume = {}: {source}", path.display())]
    Data {
        /// Path of the checkpoint.
        path: PathBuf,
        /// The setting that differs, and its values.
        source: InvalidValue,
    },
    /// All samples of the job are trained already.
    #[error("--resume = {}: nothing is left to train: {samples} samples of {epochs} epochs are done; raise --epochs", path.display())]
    Done {
        /// Path of the checkpoint.
        path: PathBuf,
        /// Number of samples that are trained.
        samples: u64,
        /// Number of epochs of the job.
        epochs: u32,
    },
    /// The evaluations of the job have ended it already: they did not improve any more.
    #[error("--resume = {}: nothing is left to train: {why}; raise the number of --early-stopping", path.display())]
    Stopped {
        /// Path of the checkpoint.
        path: PathBuf,
        /// Description of the evaluation that ended the job.
        why: String,
    },
    /// The parameters of the checkpoint do not fit the model.
    #[error("--resume = {}: {why}; name a checkpoint of this model", path.display())]
    Model {
        /// Path of the checkpoint.
        path: PathBuf,
        /// Description of the difference.
        why: String,
    },
}

/// Returns the folder of checkpoints that `dir` stands for: that of a run directory, that of a report folder
/// with a run directory, the one elsewhere that a job in such a folder has named, or `dir` itself.
pub fn place(dir: &Path) -> PathBuf {
    let known = [dir.join(CHECKPOINTS), dir.join("run").join(CHECKPOINTS)];
    let found = known.into_iter().find(|folder| folder.is_dir());
    found.or_else(|| elsewhere(dir)).unwrap_or_else(|| dir.to_owned())
}

/// The folder of checkpoints that a job has left the name of in `dir`, as it was killed or in its report.
fn elsewhere(dir: &Path) -> Option<PathBuf> {
    let left = || master::left_settings(dir)?.checkpoint_dir;
    let reported = || {
        let text = std::fs::read(dir.join(report::FILES[0])).ok()?;
        Some(serde_json::from_slice::<Report>(&text).ok()?.checkpoint?.folder)
    };
    left().or_else(reported)
}

/// Returns the folder of the checkpoints that `dir` stands for, or of the one whose own folder it is.
pub(crate) fn folder(dir: &Path) -> PathBuf {
    let place = place(dir);
    Folder::of_checkpoint(&place).map_or(place, |(folder, _)| folder)
}

/// Returns the settings of the job that took the checkpoint that is meant by `dir`; `None` if there is none or it does not hold them.
#[cfg(feature = "cli")]
pub(crate) fn settings(dir: &Path) -> Option<JobSpec> {
    let meant = meant(dir).ok()?;
    serde_json::from_str(meant.checkpoint.manifest().extra.get(SETTINGS)?).ok()
}

/// Whether there is a checkpoint to go on from.
///
/// # Errors
/// If there is none; the error says why.
#[cfg(feature = "cli")]
pub(crate) fn check(dir: &Path) -> Result<(), ResumeError> {
    meant(dir).map(drop)
}

/// A checkpoint to go on from.
struct Meant {
    folder: Folder,
    checkpoint: Checkpoint,
    /// A line for each newer one that cannot be used.
    passed_over: Vec<String>,
}

/// Returns the checkpoint that is meant by `dir`: exactly the one whose own folder `dir` is, and the newest one otherwise.
fn meant(dir: &Path) -> Result<Meant, ResumeError> {
    let place = place(dir);
    if let Some((folder, named)) = Folder::of_checkpoint(&place) {
        let folder = Folder::open(folder)?;
        let checkpoint = folder.open_checkpoint(named)?;
        checkpoint.verify()?;
        return Ok(Meant { folder, checkpoint, passed_over: Vec::new() });
    }
    let folder = Folder::open(place)?;
    let newest = folder.newest()?;
    let passed_over: Vec<String> =
        newest.passed_over.iter().map(|(id, why)| format!("checkpoint {id} is passed over: {why}")).collect();
    match newest.checkpoint {
        Some(checkpoint) => Ok(Meant { folder, checkpoint, passed_over }),
        None => {
            let passed_over =
                if passed_over.is_empty() { String::new() } else { format!(" ({})", passed_over.join("; ")) };
            Err(ResumeError::None { path: folder.path().to_owned(), passed_over })
        }
    }
}

/// What the master of a job goes on from.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) dataset: DatasetSpec,
    pub(crate) snapshot: LedgerSnapshot,
    /// For people: what was taken over and what was not.
    pub(crate) text: String,
}

/// Finds the checkpoint that is meant by `dir` and checks that the job can go on from it. `data` is what the job trains on, `dataset` what
/// it would hand out of it; the shards become those of the checkpoint. The model's shape is compared if its `layout` is known.
///
/// # Errors
/// If there is none, or the job cannot.
pub(crate) fn prepare(
    spec: &JobSpec,
    dir: &Path,
    data: &TrainingData,
    dataset: &DatasetSpec,
    layout: Option<ParamLayout>,
) -> Result<Resumed, ResumeError> {
    let Meant { folder, checkpoint, passed_over } = meant(dir)?;
    let path = checkpoint.path().to_owned();
    let manifest = checkpoint.manifest();
    let layout = layout.unwrap_or_else(|| manifest.job.layout.clone());
    let ours = identity(spec, layout, data.samples, data.fingerprint.clone());
    manifest.job.check(&ours).map_err(|source| ResumeError::Mismatch { path: path.clone(), source })?;
    let unfit = |source| ResumeError::Data { path: path.clone(), source };
    let text = manifest.extra.get(DATASET).map(String::as_str).unwrap_or_default();
    let before: DatasetSpec = serde_json::from_str(text).map_err(|error| {
        unfit(InvalidValue::new(
            DATASET,
            "unreadable",
            format!("settings of a data set in the manifest ({error})"),
        ))
    })?;
    let cut = checkpoint.ledger_cut(&before)?;
    let found = cut.snapshot().counts();
    let done = u32::try_from((found.acked + found.quarantined) / data.samples.max(1)).unwrap_or(u32::MAX);
    // The job ended between the checkpoint of an epoch and its evaluation, which comes first then.
    let evaluates = found.acked + found.quarantined == data.samples * u64::from(done)
        && spec.eval_every.is_after(done, spec.epochs)
        && master::lacks_evaluation(folder.path(), done);
    let dataset = DatasetSpec { cut: before.cut, ..dataset.clone() };
    let snapshot = cut.snapshot().continued(dataset.clone()).map_err(|error| {
        // As the flags are called.
        unfit(match &*error.field {
            "epochs" => InvalidValue { field: "--epochs".to_owned(), ..error },
            "assignment of shards" => InvalidValue::new(
                "--sharding",
                sharding(dataset.assignment),
                format!("as before: {}", sharding(before.assignment)),
            ),
            _ => error,
        })
    })?;
    let counts = snapshot.counts();
    if counts.todo == 0 && !evaluates {
        return Err(ResumeError::Done { path, samples: counts.acked, epochs: spec.epochs });
    }
    let mut text = passed_over.into_iter().map(|line| line + "\n").collect::<String>();
    text += &format!(
        "resumed from checkpoint {} in {}: {} of {} samples are done, {} remain",
        manifest.checkpoint,
        folder.path().display(),
        counts.acked,
        counts.total,
        counts.todo
    );
    if evaluates {
        text += &format!("; the evaluation after epoch {done} comes first");
    }
    if manifest.epochs != spec.epochs {
        text += &format!("; {} epochs, {} before", spec.epochs, manifest.epochs);
    }
    Ok(Resumed { dataset, snapshot, text, checkpoint })
}

/// Flags that assign shards so.
fn sharding(assignment: Assignment) -> String {
    match assignment {
        Assignment::Dynamic => "dynamic".to_owned(),
        Assignment::Static { workers } => format!("static with --nproc-per-node {workers}"),
    }
}

/// What a job must have in common with another one to go on from its checkpoints.
pub(crate) fn identity(
    spec: &JobSpec,
    layout: ParamLayout,
    rows: u64,
    fingerprint: Option<String>,
) -> JobIdentity {
    JobIdentity {
        workload: spec.workload.clone(),
        layout,
        seed: spec.seed,
        rows_seed: Seed(spec.seed).derive("model").0,
        data: DataIdentity {
            name: spec.data.as_ref().map(ToString::to_string).unwrap_or_default(),
            rows,
            evaluation: spec.eval_fraction.to_string(),
            fingerprint,
        },
    }
}

/// What a node of a job takes over.
#[derive(Debug)]
pub(crate) struct Taken {
    checkpoint: Checkpoint,
    with_state: bool,
}

impl Taken {
    /// Opens the checkpoint that the master has named; `None` if it has named none.
    ///
    /// # Errors
    /// If it cannot be read or is of another model.
    pub(crate) fn open(
        path: Option<&Path>,
        layout: &ParamLayout,
        optimizer: &str,
    ) -> Result<Option<Self>, ResumeError> {
        let Some(path) = path else { return Ok(None) };
        let Some((folder, id)) = Folder::of_checkpoint(path) else {
            return Err(CheckpointReadError::NoFolder(path.to_owned()).into());
        };
        let checkpoint = Folder::open(folder)?.open_checkpoint(id)?;
        let mismatch = |source| ResumeError::Mismatch { path: path.to_owned(), source };
        checkpoint.manifest().job.check_layout(layout).map_err(mismatch)?;
        let with_state = keeps_state(checkpoint.manifest(), optimizer);
        Ok(Some(Self { checkpoint, with_state }))
    }

    /// Returns the model, if a program keeps it itself.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn state(&self) -> Result<Option<ModelState>, ResumeError> {
        Ok(self.checkpoint.state()?)
    }

    /// Returns how far the model is trained.
    pub(crate) const fn trained(&self) -> Trained {
        self.checkpoint.manifest().trained
    }

    /// Hands over every part of the model, of which this node's have `dense_len` dense values. Returns how far it is trained.
    ///
    /// # Errors
    /// If a part cannot be read or does not fit.
    pub(crate) fn restore(
        &self,
        dense_len: usize,
        mut restore: impl FnMut(&Portion, bool) -> Result<usize, InvalidValue>,
    ) -> Result<Trained, ResumeError> {
        let unfit = |why: String| ResumeError::Model { path: self.checkpoint.path().to_owned(), why };
        let mut set = 0;
        for portion in self.checkpoint.portions() {
            set += restore(&portion?, self.with_state).map_err(|error| unfit(error.to_string()))?;
        }
        if set != dense_len {
            return Err(unfit(format!("it has {set} of {dense_len} dense values")));
        }
        Ok(self.trained())
    }
}

/// Whether a job with this optimizer takes over what the optimizer of the checkpoint kept: it must be the same one, and there
/// must have been one for all workers.
pub(crate) fn keeps_state(manifest: &Manifest, optimizer: &str) -> bool {
    let one_for_all = |mode: SyncMode| !mode.capabilities().averages_models() || mode.outer().is_some();
    manifest.optimizer == optimizer && manifest.mode.parse().is_ok_and(one_for_all)
}
