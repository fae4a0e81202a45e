//! Watches a job until it is over: ticks of the head, and its progress.

use std::sync::atomic::Ordering;

use antdt_core::Counts;
use antdt_job::head::Seen;
use antdt_job::{HeadAnswer, HeadEvent};
use antdt_shard::LedgerStatus;

use super::commit_rate::CommitRate;
use super::operate::Pace;
use super::runner::Ended;
use super::sink::JobNote;
use super::start::Running;
use super::{INTERRUPTED, JobError, lock};
use crate::report::LiveProgress;

/// Ticks until the job is over. Returns how it ended.
pub(super) async fn watch(running: &mut Running) -> Result<Ended, JobError> {
    let mut tick = tokio::time::interval(running.spec.control_tick);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stop = running.shared.stop.clone();
    let mut stopping = false;
    let mut rate = CommitRate::default();
    loop {
        tokio::select! {
            ended = &mut running.end => return ended.map_err(|_| gone()),
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                running.stop(INTERRUPTED).await?;
            }
            _ = tick.tick() => running.tick(&mut rate).await?,
        }
    }
}

fn gone() -> JobError {
    JobError::master("the head has ended")
}

impl Running {
    async fn stop(&self, why: &str) -> Result<(), JobError> {
        self.shared.head.send(HeadEvent::Stop(why.to_owned())).await.map_err(|_| gone())
    }

    /// One control tick.
    async fn tick(&self, rate: &mut CommitRate) -> Result<(), JobError> {
        let status: Option<LedgerStatus> = match &self.shared.ledger {
            Some(ledger) => Some(ledger.status().await.map_err(JobError::master)?),
            None => None,
        };
        if status.is_some_and(|status| status.failed) {
            self.stop("too many samples could not be read; the report lists them").await?;
        }
        let counts = status.map(|status| status.counts);
        let answer = self.shared.head.call(HeadEvent::Tick(counts)).await.map_err(|_| gone())?;
        if let HeadAnswer::Seen(seen) = answer {
            // Without a ledger, workers say what they train.
            let rate = match counts {
                Some(counts) => rate.at(self.shared.clock.now(), counts.acked),
                None => seen.samples_per_second,
            };
            let progress = self.progress(seen, rate, counts.unwrap_or_default());
            self.notes.tell(self.shared.clock.now(), JobNote::Progress(progress));
        }
        Ok(())
    }

    fn progress(&self, seen: Seen, rate: f64, counts: Counts) -> LiveProgress {
        let (steps, loss) = lock(&self.shared.recorder).pulse();
        *lock(&self.shared.pace) = Pace { members: seen.members, samples_per_second: rate };
        let Counts { total, acked, todo, doing, quarantined } = counts;
        let (shards, duplicated) = {
            let watch = lock(&self.shards);
            (watch.shards(), watch.duplicated())
        };
        #[allow(clippy::cast_precision_loss, reason = "an estimate for people")]
        let left = total.saturating_sub(acked) as f64;
        LiveProgress {
            step: steps,
            samples_per_second: rate,
            loss,
            members: seen.members,
            workers: self.shared.workers.load(Ordering::Relaxed) as usize,
            stragglers: seen.stragglers,
            committed: acked,
            expected: total,
            remaining_s: (rate > 0.0).then(|| left / rate),
            waiting: todo,
            leased: doing,
            quarantined,
            duplicated,
            lost: 0,
            shards,
        }
    }
}
