//! What became of a job: the balance of its samples, and its report.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{Counts, Epoch, JobTime, NodeId};
use antdt_shard::runtime::ShardHandle;
use antdt_shard::{MissingWhy, SourceError};

use super::sink::Recorder;
use crate::job::JobSpec;
use crate::report::{MeasuredOn, MissingEntry, Outcome, Report, SampleBalance, ShardSpan};

/// What became of the samples of so many epochs, and which of them are not done. Those of a job that ended `early` have no further
/// samples.
pub(super) async fn balance(
    (epochs, early): (u32, bool),
    ledger: &ShardHandle,
) -> Result<(Counts, Vec<MissingEntry>), SourceError> {
    /// Shards looked at in each epoch: more than the ranges that are listed.
    const SHARDS: usize = 4 * Report::MISSING_MAX;
    let mut counts = ledger.status().await?.counts;
    if early {
        counts.total -= std::mem::take(&mut counts.todo);
    }
    let mut missing = Vec::new();
    if counts.acked < counts.total {
        for epoch in (0..epochs).map(Epoch) {
            let ranges = ledger.missing(epoch, SHARDS).await?;
            missing.extend(ranges.into_iter().take(Report::MISSING_MAX - missing.len()).map(|range| {
                MissingEntry {
                    epoch: range.epoch.0,
                    first: range.samples.start,
                    last: range.samples.end.saturating_sub(1),
                    why: match range.why {
                        MissingWhy::Waiting => "waiting",
                        MissingWhy::Leased => "leased",
                        MissingWhy::Quarantined => "quarantined",
                    }
                    .to_owned(),
                }
            }));
            if missing.len() == Report::MISSING_MAX {
                break;
            }
        }
    }
    Ok((counts, missing))
}

pub(super) fn report(
    spec: &JobSpec,
    job: String,
    outcome: Result<(), String>,
    (counts, missing): (&Counts, Vec<MissingEntry>),
    mut recorder: Recorder,
    (shards, by_worker, duplicated): (Vec<ShardSpan>, BTreeMap<NodeId, u64>, u64),
    took: Duration,
) -> Report {
    let samples = SampleBalance::of(counts, outcome.is_err(), duplicated);
    let model_spread = recorder.model_spread();
    recorder.enter_times();
    let workers = recorder
        .workers
        .into_iter()
        .map(|(node, mut worker)| {
            worker.samples = by_worker.get(&node).copied().unwrap_or(0);
            worker
        })
        .collect();
    let mut quality = recorder.quality;
    if spec.eval_fraction > 0.0 {
        quality.measured_on = MeasuredOn::HeldOut;
    }
    if quality.loss.is_none() {
        quality.loss = recorder.loss.points().last().map(|point| point.loss);
    }
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job_id: job,
        outcome: match outcome {
            Ok(()) => Outcome::Completed,
            Err(why) => Outcome::Failed { why },
        },
        missing,
        job_completion_time_s: recorder.completed.map_or(took, JobTime::since_start).as_secs_f64(),
        samples,
        steps: recorder.steps,
        policy: spec.policy.clone(),
        sync: spec.sync.to_string(),
        seed: spec.seed,
        emulated: (0..spec.workers).any(|worker| spec.speed(worker).is_some()),
        actions: recorder.actions,
        events: recorder.events,
        workers,
        final_quality: quality,
        loss_curve: recorder.loss,
        shards,
        resumed: recorder.resumed,
        chosen: recorder.chosen,
        evaluations: recorder.evaluations,
        stopped_early: recorder.stopped_early,
        checkpoint: recorder.checkpoint,
        model_spread,
        config: spec.texts(),
    };
    let SampleBalance { lost, duplicated, quarantined, expected, .. } = samples;
    if report.outcome == Outcome::Completed && (!samples.is_exact() || quarantined > 0) {
        let which = report.missing_text();
        report.outcome = Outcome::Incomplete {
            why: format!(
                "{} of {expected} samples are missing, {quarantined} of them unreadable, {duplicated} were committed \
                 twice: {which}",
                lost + quarantined
            ),
        };
    }
    report
}
