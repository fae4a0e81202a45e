//! The report of a job, which becomes `report.json`, `report.html` and the table at the end.
//!
//! [`Report`] is filled by the master and is plain data. [`table`] and [`html`] are pure functions of it,
//! [`progress`] formats the one live line, [`write`](mod@write) puts the files into the report folder.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use antdt_core::{Better, Counts, Metric, Metrics, NodeId};
use serde::{Deserialize, Serialize};

pub mod progress;
pub mod series;

pub mod html;
pub mod table;
pub mod write;

#[cfg(test)]
mod tests;

pub use progress::{LiveProgress, ProgressLine};
pub use series::{BatchPoint, BatchSeries, LossPoint, LossSeries};
pub use write::{WriteError, write};

/// The report of one job: outcome, samples, actions, and time series of every worker. Times are in seconds
/// since the job began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the `antdt` that wrote the report.
    pub version: String,
    /// Name of the job.
    pub job_id: String,
    /// Whether the job completed, or why not.
    pub outcome: Outcome,
    /// Time from the start of the job to the commit of its last sample, in seconds.
    pub job_completion_time_s: f64,
    /// Numbers of samples that were committed, lost, repeated, and so on.
    pub samples: SampleBalance,
    /// Samples that were not committed, in the order of epoch and data set; the first [`Report::MISSING_MAX`]
    /// ranges.
    #[serde(default)]
    pub missing: Vec<MissingEntry>,
    /// Number of global steps; under ps-asp and ps-ssp the batches of all workers.
    pub steps: u64,
    /// Name of the policy.
    pub policy: String,
    /// Sync mode: how gradients were combined, such as `allreduce`, `ps-bsp`, `ps-asp`.
    pub sync: String,
    /// Seed of the job.
    pub seed: u64,
    /// Whether the workers' speed was emulated: gradients were really computed, then each worker waited.
    pub emulated: bool,
    /// Actions on stragglers and lost nodes, in order of time.
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
    /// The checkpoint that the job continued from, in words; `None` if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<String>,
    /// Why the job ran in this sync mode, in words, if it was chosen when the first steps were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// What the evaluations after so many epochs found, in order, the last one included; empty if the model was evaluated at the
    /// end only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<EvaluationEntry>,
    /// Why the job ended before its last epoch, in words, if its evaluations did not improve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_early: Option<String>,
    /// The newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointEntry>,
    /// How far the workers' models were apart; `None` where there is one model, and before the first average of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_spread: Option<ModelSpread>,
    /// Settings of the job, in text form.
    pub config: BTreeMap<String, String>,
}

/// How far the workers' models were apart when all of them were averaged last: the distance of each one's flat parameters to
/// their mean, in units of the mean's Euclidean norm.
#[doc(alias = "consensus metric")]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpread {
    /// Time of the average, in seconds since the start of the job.
    pub time_s: f64,
    /// Root mean square of the distances.
    pub rms: f64,
    /// The distance of each worker, by its name. Workers that were not in the average have none.
    pub workers: BTreeMap<String, f64>,
}

impl ModelSpread {
    /// Returns the spread of models at these distances from their mean; `None` if there are none.
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

    /// Returns the worker whose model was furthest away, and its distance.
    pub fn furthest(&self) -> Option<(&str, f64)> {
        let furthest = self.workers.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some((furthest.0, *furthest.1))
    }
}

/// An evaluation of the model after so many epochs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationEntry {
    /// Number of epochs that the model is trained on.
    pub epoch: u32,
    /// Number of the checkpoint that holds the model; it may be deleted since.
    pub checkpoint: Option<u64>,
    /// Number of samples that it was evaluated on.
    pub samples: u64,
    /// All metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// Whether larger or smaller is better, for the metrics that judge the model.
    pub better: BTreeMap<String, Better>,
}

/// A checkpoint that a job has kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointEntry {
    /// Number of the checkpoint.
    pub id: u64,
    /// Samples that are in the model.
    pub samples: u64,
    /// Folder of the job's checkpoints, as `--resume` takes it.
    pub folder: PathBuf,
}

impl Report {
    /// Most ranges of missing samples that a report lists.
    pub const MISSING_MAX: usize = 1_000;

    /// Returns the missing samples in words, the first few ranges of them; empty if there are none.
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
    /// The epoch.
    pub epoch: u32,
    /// Number of the first sample.
    pub first: u64,
    /// Number of the last sample.
    pub last: u64,
    /// `waiting` (no worker held it), `leased` (a worker held it) or `quarantined` (it could not be read).
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
        /// The missing samples, in words.
        why: String,
    },
    /// The job ended early.
    Failed {
        /// Reason, in words.
        why: String,
    },
}

/// Numbers of samples by what became of them. Exact when `committed + quarantined + remaining == expected`
/// and no sample was lost or repeated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleBalance {
    /// Number of rows times number of epochs.
    pub expected: u64,
    /// Samples that were trained and whose update was committed.
    pub committed: u64,
    /// Samples that were not trained yet when the job ended early. A job that continues from a checkpoint
    /// trains them.
    #[serde(default)]
    pub remaining: u64,
    /// Samples that were neither committed nor quarantined though the job came to its end.
    pub lost: u64,
    /// Samples that were committed a second time, as counted by an observer apart from the ledger.
    pub duplicated: u64,
    /// Only under ps-asp and ps-ssp: samples that a worker may have pushed right before it died, without a commit. They were
    /// trained again, so their update may be in the model twice. At most one batch for each lost worker.
    #[serde(default)]
    pub repeated_at_most: u64,
    /// Samples that were given up because they could not be read.
    pub quarantined: u64,
}

impl SampleBalance {
    /// Returns the balance from a ledger's final counts, and from counts that observers apart from it made.
    pub const fn of(counts: &Counts, ended_early: bool, duplicated: u64, repeated_at_most: u64) -> Self {
        let missing = counts.total.saturating_sub(counts.acked + counts.quarantined);
        let (remaining, lost) = if ended_early { (missing, 0) } else { (0, missing) };
        Self {
            remaining,
            expected: counts.total,
            committed: counts.acked,
            lost,
            duplicated,
            repeated_at_most,
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

/// An action on stragglers or lost nodes, with its reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionEntry {
    /// Time of the decision, in seconds since the start of the job.
    pub time_s: f64,
    /// Kind of action: `ADJUST_BS`, `BACKUP_WORKERS`, `KILL_RESTART`, or `RESTART` (of a node that ended by itself).
    pub kind: String,
    /// Name of the node that the action concerns, or `all` for a plan.
    pub target: String,
    /// Reason, in words.
    pub reason: String,
}

/// An event of a job, for the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventEntry {
    /// Time since the start of the job, in seconds.
    pub time_s: f64,
    /// Name of the node; empty for the whole job.
    pub node: String,
    /// Kind of event, in one word: `joined`, `lost`, `straggler`, `recovered`, `plan`, `membership`,
    /// `finished`.
    pub kind: String,
    /// Description in one sentence.
    pub text: String,
}

/// One worker's part in a job, over all its incarnations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Name of the worker, such as `worker-1`.
    pub id: String,
    /// Number of samples that the worker committed.
    pub samples: u64,
    /// Batch sizes of the worker, in order; each differs from the one before.
    pub batch_sizes: Vec<u32>,
    /// Number of its incarnations after the first.
    pub restarts: u32,
    /// Batches of the worker over time.
    pub series: BatchSeries,
}

impl WorkerEntry {
    /// Returns the entry of a worker that has trained nothing yet.
    pub fn new(node: NodeId) -> Self {
        Self { id: node.to_string(), ..Self::default() }
    }

    /// Records the batch size in force, if it is a new one.
    pub fn note_batch_size(&mut self, samples: u32) {
        if self.batch_sizes.last() != Some(&samples) {
            self.batch_sizes.push(samples);
        }
    }
}

/// Quality of the model at the end of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalQuality {
    /// The metric `loss`; the last training loss if the model was not evaluated or the trainer has no such
    /// metric.
    pub loss: Option<f64>,
    /// All metrics by name, as the trainer returned them; empty if the model was not evaluated.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Whether larger or smaller is better, for the metrics that judge the model.
    #[serde(default)]
    pub better: BTreeMap<String, Better>,
    /// Number of samples that it was measured on; 0 if the model was not evaluated.
    pub samples: u64,
    /// Whether these samples were held out of the training.
    #[serde(default)]
    pub measured_on: MeasuredOn,
}

impl FinalQuality {
    /// Returns the quality that an evaluation on `samples` samples found.
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

/// Which samples a model was evaluated on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredOn {
    /// Samples that it was trained on, since none were held out: the metrics say how well they were learnt,
    /// not how good the model is.
    #[default]
    Training,
    /// Samples that it was never trained on.
    HeldOut,
}

impl MeasuredOn {
    /// Returns its name for reports.
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
    /// Index of the shard.
    pub index: u64,
    /// Time of the grant, in seconds since the start of the job.
    pub from_s: f64,
    /// Time of its end, in seconds since the start of the job.
    pub to_s: f64,
    /// Outcome of the lease.
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
    /// All samples of the shard are committed.
    Done,
    /// The worker gave the shard back in part.
    Released,
    /// The worker was lost.
    Lost,
    /// The shard could not be read.
    Failed,
}
