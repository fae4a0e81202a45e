//! The report of a job, which becomes `report.json`, `report.html` and the table at the end.
//!
//! [`Report`] is filled by the master and is plain data. [`table`] and [`html`] are pure functions of it,
//! [`progress`] formats the one live line, [`write`](mod@write) puts the files into the report folder.

use std::collections::BTreeMap;
use std::fmt;
#[cfg(feature = "cli")]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use antdt_core::{Better, Capabilities, Counts, Metric, Metrics, NodeId};
use antdt_job::SyncMode;
use serde::{Deserialize, Serialize};

#[cfg(feature = "cli")]
use crate::resume;

pub mod progress;
pub mod series;

pub mod html;
pub mod table;
pub mod write;

#[cfg(test)]
mod tests;

pub use antdt_job::evaluation::EvaluationEntry;
pub use progress::{LiveProgress, LiveShards, ProgressLine};
pub use series::{BatchPoint, BatchSeries, LossPoint, LossSeries};
pub(crate) use write::FILES;
pub use write::{WriteError, write};

/// The report of one job: outcome, samples, actions, and time series of every worker. Times are in seconds
/// since the job began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the `antdt` that wrote the report.
    pub version: String,
    /// Name of the job.
    pub job_id: String,
    /// How the job ended, with the reason.
    pub outcome: Outcome,
    /// Time from the start of the job to the commit of its last sample, in seconds.
    pub job_completion_time_s: f64,
    /// Numbers of samples that were committed, lost, repeated, and so on.
    pub samples: SampleBalance,
    /// Samples that were not committed, in the order of epoch and data set; the first [`Report::MISSING_MAX`]
    /// ranges.
    #[serde(default)]
    pub missing: Vec<MissingEntry>,
    /// Number of global steps that the job took, including steps that a rollback undid; in modes without
    /// common steps, the number of batches of all workers. A worker that is killed, or ended with its job, may have
    /// committed a batch that it could not report any more.
    pub steps: u64,
    /// Name of the policy.
    pub policy: String,
    /// Text of the sync mode, such as `allreduce`, `ps-bsp` or `ps-asp`.
    pub sync: String,
    /// Seed of the job.
    pub seed: u64,
    /// Whether the workers' speed was emulated: gradients were really computed, then each worker waited.
    pub emulated: bool,
    /// Actions of the policy and the master, also refused ones, in order of time.
    pub actions: Vec<ActionEntry>,
    /// Other events, in order of time.
    pub events: Vec<EventEntry>,
    /// The workers, ordered by index.
    pub workers: Vec<WorkerEntry>,
    /// Quality of the model at the end.
    #[serde(rename = "final")]
    pub final_quality: FinalQuality,
    /// Mean training loss over the course of the job.
    pub loss_curve: LossSeries,
    /// Spans of time in which a worker held a shard, in order of `from_s`.
    pub shards: Vec<ShardSpan>,
    /// Description of the checkpoint that the job continued from; `None` if it did not continue from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<String>,
    /// Reason, in words, for the sync mode if the master chose it (`--sync auto`); otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// Evaluations at the ends of epochs, in order, including the last one; empty if the model was evaluated
    /// at the end only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<EvaluationEntry>,
    /// Reason, in words, why the job ended before its last epoch because its evaluations did not improve;
    /// otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_early: Option<String>,
    /// The newest complete checkpoint of the job; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointEntry>,
    /// Distance between the workers' models at the last average of all; `None` in modes with one model, and
    /// before the first such average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_spread: Option<ModelSpread>,
    /// Settings of the job, in text form.
    pub config: BTreeMap<String, String>,
}

/// Distance between the workers' models when all of them were averaged last: for each worker, the Euclidean
/// distance between its flat parameters and their mean, divided by the norm of the mean.
#[doc(alias = "consensus metric")]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpread {
    /// Time of the average, in seconds since the start of the job.
    pub time_s: f64,
    /// Root mean square of the distances.
    pub rms: f64,
    /// Distance of each worker's model from the mean, by the worker's name. Workers that did not take part in
    /// the average have none.
    pub workers: BTreeMap<String, f64>,
}

impl ModelSpread {
    /// Returns the spread of models for the workers' `distances` from the mean of all models, each divided by
    /// the norm of the mean; `None` if `distances` is empty.
    pub fn of(time_s: f64, distances: &BTreeMap<NodeId, f64>) -> Option<Self> {
        if distances.is_empty() {
            return None;
        }
        let squares: f64 = distances.values().map(|distance| distance * distance).sum();
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let rms = (squares / distances.len() as f64).sqrt();
        let workers = distances.iter().map(|(node, distance)| (node.to_string(), *distance)).collect();
        Some(Self { time_s, rms, workers })
    }

    /// Returns the name of the worker whose model was furthest from the mean of the models, and its distance as a fraction of the
    /// mean's norm; `None` if no worker took part in the average.
    pub fn furthest(&self) -> Option<(&str, f64)> {
        let furthest = self.workers.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some((furthest.0, *furthest.1))
    }
}

/// The newest checkpoint of a job, in its report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointEntry {
    /// Number of the checkpoint.
    pub id: u64,
    /// Number of samples that the model was trained on.
    pub samples: u64,
    /// Folder of the job's checkpoints, which `--resume` accepts.
    pub folder: PathBuf,
}

impl CheckpointEntry {
    /// Returns the folder by which the job is resumed: that of `dirs`, its report and run directories, whose checkpoints these are,
    /// so that the job goes on in it, or else the folder of the checkpoints.
    #[cfg(feature = "cli")]
    pub(crate) fn resumed_by<'a>(&'a self, dirs: [&'a Option<PathBuf>; 2]) -> &'a Path {
        let is_theirs = |dir: &&PathBuf| {
            let place = resume::place(dir);
            std::path::absolute(&place).is_ok_and(|place| place == self.folder)
        };
        dirs.into_iter().flatten().find(is_theirs).unwrap_or(&self.folder)
    }
}

impl Report {
    /// Returns what the sync mode of the job is; `None` if this program does not know it.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.sync.parse::<SyncMode>().ok().map(|sync| sync.capabilities())
    }

    /// Returns whether the model is an average of the workers' models, in which a sample that was trained once has a share of what it
    /// would have moved one model by.
    fn averages_models(&self) -> bool {
        self.capabilities().is_some_and(Capabilities::averages_models)
    }

    /// Returns whether the workers were programs of the user's that took nothing from the job: of samples, steps and a model, nothing is
    /// known then.
    fn is_foreign(&self) -> bool {
        self.config.contains_key("program") && !self.config.contains_key("data")
    }

    /// Largest number of ranges of missing samples in a report.
    pub const MISSING_MAX: usize = 1_000;

    /// Returns the first few ranges of missing samples as text; empty if there are none.
    pub fn missing_text(&self) -> String {
        const SHOWN: usize = 8;
        let ranges = self.missing.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self.missing.len().saturating_sub(SHOWN) {
            0 => ranges,
            more if self.missing.len() >= Self::MISSING_MAX => {
                format!("{ranges}, and {more} more ranges or more")
            }
            more => format!("{ranges}, and {more} more ranges"),
        }
    }
}

/// A range of consecutive samples that were not committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingEntry {
    /// Epoch of the samples.
    pub epoch: u32,
    /// Number of the first sample of the range.
    pub first: u64,
    /// Number of the last sample of the range.
    pub last: u64,
    /// Why the samples are missing: `waiting` (no worker held them), `leased` (a worker held them) or
    /// `quarantined` (they could not be read).
    pub why: String,
}

impl fmt::Display for MissingEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={} of epoch {} ({})", self.first, self.last, self.epoch, self.why)
    }
}

/// How a job ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every sample is accounted for.
    #[default]
    Completed,
    /// The job came to its end, and samples are missing, given up as unreadable, or were committed twice.
    Incomplete {
        /// Description of the samples that are missing or were committed twice.
        why: String,
    },
    /// The job ended early.
    Failed {
        /// Reason why the job ended early, in words.
        why: String,
    },
}

/// Numbers of samples by their final state. Exact when `committed + quarantined + remaining == expected` and
/// no sample was lost or repeated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleBalance {
    /// Number of samples of the data set times number of epochs.
    pub expected: u64,
    /// Number of samples that were trained and whose update was committed.
    pub committed: u64,
    /// Number of samples that were not trained because the job ended early. A job that continues from a
    /// checkpoint trains them.
    #[serde(default)]
    pub remaining: u64,
    /// Number of samples that were neither committed nor quarantined though the job came to its end.
    pub lost: u64,
    /// Number of samples that were committed a second time, as an observer independent of the ledger counts
    /// them.
    pub duplicated: u64,
    /// Number of samples that were given up because they could not be read.
    pub quarantined: u64,
}

impl SampleBalance {
    /// Returns the balance from the ledger's final counts and the counts of independent observers.
    pub const fn of(counts: &Counts, ended_early: bool, duplicated: u64) -> Self {
        let missing = counts.total.saturating_sub(counts.acked + counts.quarantined);
        let (remaining, lost) = if ended_early { (missing, 0) } else { (0, missing) };
        Self {
            remaining,
            expected: counts.total,
            committed: counts.acked,
            lost,
            duplicated,
            quarantined: counts.quarantined,
        }
    }

    /// Returns whether every expected sample was trained once, was given up or remains, and none was trained
    /// twice.
    pub const fn is_exact(&self) -> bool {
        self.lost == 0
            && self.duplicated == 0
            && self.committed + self.quarantined + self.remaining == self.expected
    }
}

/// An action that the policy or the master took, refused, or would have taken (in a dry run), with its reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionEntry {
    /// Time of the decision, in seconds since the start of the job.
    pub time_s: f64,
    /// Name of the action, such as `ADJUST_BS`, `KILL_RESTART`, `RESTART` (of a node that ended by itself) or `SCALE`; `REFUSED`
    /// for a decision that was refused because it would break the job.
    pub kind: String,
    /// Name of the node that the action concerns, or `all` for a plan.
    pub target: String,
    /// Reason for the action, in words.
    pub reason: String,
}

/// An event of a job, for the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventEntry {
    /// Time since the start of the job, in seconds.
    pub time_s: f64,
    /// Name of the node that the event concerns; empty for the whole job.
    pub node: String,
    /// Kind of the event, in one word, such as `joined`, `lost`, `straggler`, `recovered`, `plan`, `membership` or
    /// `finished`.
    pub kind: String,
    /// Description of the event in one sentence.
    pub text: String,
}

/// The report's figures on one worker, over all its incarnations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Name of the worker, such as `worker-1`.
    pub id: String,
    /// Number of samples that the worker committed.
    pub samples: u64,
    /// Batch sizes of the worker in samples, in order of time; each differs from the one before.
    pub batch_sizes: Vec<u32>,
    /// Number of incarnations of the worker after the first.
    pub restarts: u32,
    /// Parts of the time of all batches of the worker.
    #[serde(default)]
    pub times: WorkerTimes,
    /// Batches of the worker over time.
    pub series: BatchSeries,
}

/// Times of all batches of one worker, in seconds. The four parts are disjoint: their sum is the wall time of the batches, without
/// evaluations, standing still for checkpoints and the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerTimes {
    /// Time that the worker computed gradients.
    pub compute_s: f64,
    /// Time that the worker waited for shards or read samples.
    pub data_wait_s: f64,
    /// Time that the worker exchanged parameters, gradients or models. In modes with common steps it is what followed the arrival of
    /// the last worker.
    pub communicate_s: f64,
    /// Time that the worker waited for other workers: at the barrier of a common step, for leave to begin one, or for a partner.
    pub barrier_wait_s: f64,
}

impl WorkerEntry {
    /// Returns the entry of a worker that has not trained yet.
    pub fn new(node: NodeId) -> Self {
        Self { id: node.to_string(), ..Self::default() }
    }

    /// Records the batch size in force, in samples, if it has changed.
    pub fn note_batch_size(&mut self, samples: u32) {
        if self.batch_sizes.last() != Some(&samples) {
            self.batch_sizes.push(samples);
        }
    }
}

/// Quality of the model at the end of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalQuality {
    /// Value of the metric `loss`; the last training loss if the model was not evaluated or the trainer has
    /// no such metric.
    pub loss: Option<f64>,
    /// All metrics by name, as the trainer returned them; empty if the model was not evaluated.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Whether larger or smaller values are better, for each metric that judges the model.
    #[serde(default)]
    pub better: BTreeMap<String, Better>,
    /// Number of samples that the model was evaluated on; 0 if it was not evaluated.
    pub samples: u64,
    /// Whether these samples were held out of the training.
    #[serde(default)]
    pub measured_on: MeasuredOn,
}

impl FinalQuality {
    /// Returns the quality of a model that an evaluation on `samples` samples gave these metrics.
    pub fn of(samples: u64, metrics: &Metrics) -> Self {
        let judges = metrics.iter().filter(|metric| metric.better != Better::Neither);
        Self {
            loss: metrics.get(Metric::LOSS),
            metrics: metrics.iter().map(|metric| (metric.name.clone(), metric.value)).collect(),
            better: judges.map(|metric| (metric.name.clone(), metric.better)).collect(),
            samples,
            measured_on: MeasuredOn::default(),
        }
    }

    /// Returns the metrics besides the loss, by name.
    pub fn others(&self) -> impl Iterator<Item = (&str, f64)> {
        let named = self.metrics.iter().map(|(name, value)| (name.as_str(), *value));
        named.filter(|(name, _)| *name != Metric::LOSS)
    }
}

/// The samples on which a model was evaluated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredOn {
    /// Samples that the model was trained on, because none were held out: the metrics say how well they were
    /// learnt, not how good the model is.
    #[default]
    Training,
    /// Samples that the model was never trained on.
    HeldOut,
}

impl MeasuredOn {
    /// Returns the name of these samples in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::HeldOut => "held-out",
        }
    }
}

/// A span of time in which one worker held one shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSpan {
    /// Name of the worker, such as `worker-1`.
    pub worker: String,
    /// Epoch of the shard.
    pub epoch: u32,
    /// Index of the shard in the data set.
    pub index: u64,
    /// Time at which the lease was granted, in seconds since the start of the job.
    pub from_s: f64,
    /// Time at which the lease ended, in seconds since the start of the job.
    pub to_s: f64,
    /// How the lease ended.
    pub outcome: ShardOutcome,
}

impl ShardSpan {
    /// Returns the span in a job that took so long before.
    pub(crate) fn later(self, by: Duration) -> Self {
        let by = by.as_secs_f64();
        Self { from_s: self.from_s + by, to_s: self.to_s + by, ..self }
    }
}

/// How a worker's lease on a shard ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardOutcome {
    /// All samples of the shard were committed.
    Done,
    /// The worker gave the shard back before all of it was trained.
    Released,
    /// The worker was lost.
    Lost,
    /// The shard could not be read.
    Failed,
}
