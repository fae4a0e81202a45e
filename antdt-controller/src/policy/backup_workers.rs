//! `BackupWorkers`: the policy that lets steps end without their slowest workers, where that trains more
//! samples per second.
//!
//! ```text
//! time(b)     = expected time until all workers but b are done + overhead
//! samples(b)  = expected samples of those that are
//! backups     = the b with the largest samples(b) / time(b), 0 <= b <= backups-max-percent of the workers
//! ```
//!
//! A worker that is late loses its batch and takes the samples again, so `samples(b)` counts what is in the step only. Speeds are
//! the ones that noise cannot explain away ([`believed`]), with the noise of each worker: unlike new batch sizes, backups help against
//! batches that are slow now and then, whichever worker has them.
//!
//! A change must promise to cut the time per trained sample by `gain-min-percent`. The policy checks the
//! outcome: after `MEASURED_STEPS` expected steps it compares the rate of the job with the rate before. It
//! takes back a change that made the rate smaller, and does not try it again for a while, which doubles each
//! time.
//!
//! Source: synchronous training with backup workers, Chen et al., 2016 (recalled), where the number is fixed; that it is
//! chosen by the expected rate is our design.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::registry::SettingSet;
use antdt_core::{ActionOutcome, Capabilities, ClusterView, JobTime, NodeView, PaceEstimate, Reason};
use antdt_cost::forecast::expected_steps_with_backups;

use super::{Decision, Policy};
use crate::action;
use crate::budget::RestartBudget;
use crate::speed::believed;

/// Most backups that are looked at: each costs O(workers) at every control tick, and beyond so many batch sizes serve better.
const BACKUPS_MAX: usize = 16;

/// Chance that noise alone makes a worker count as slower: as `nd`.
const ERROR_RATE: f64 = 0.001;

/// Expected steps after which a change is compared with what it promised. 20: the rate of a job is a mean of about ten.
const MEASURED_STEPS: u32 = 20;

/// Share of the rate before a change that must be kept. 0.98: less is the noise of the rate.
const RATE_KEPT: f64 = 0.98;

/// Time after which a change that was taken back may be tried again, the first time.
const PAUSE: Duration = Duration::from_secs(60);

/// How often that time doubles at most: 60 s become 17 hours.
const DOUBLINGS_MAX: u32 = 10;

antdt_core::settings! {
    /// Settings of [`BackupWorkers`].
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct BackupWorkersConfig {
        /// Least predicted cut of the time per trained sample, in percent, for which the number of backups
        /// changes. Default 10: gradients of fewer samples are noisier, and a worker that is late computes for
        /// nothing.
        pub gain_min_percent: u32 = 10, "least predicted cut of the time per trained sample, percent",
            "1 to 99 percent", if |percent| (1..=99).contains(&percent);
        /// Most workers that a step need not wait for, in percent of the live workers, rounded up; 1 to 99.
        /// Default 25: more would leave out the data of many workers again and again.
        pub backups_max_percent: u32 = 25, "most workers that a step need not wait for, percent of the live ones, rounded up",
            "1 to 99 percent", if |percent| (1..=99).contains(&percent);
    }
}

/// A change of the number of backups, until it was compared with what came.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tried {
    before: u32,
    /// Samples per second before.
    rate: f64,
    /// Since when its plan is in force everywhere.
    since: Option<JobTime>,
    /// Time that the steps take by which it is measured.
    lasts: Duration,
}

/// The policy that lets steps be committed without their slowest workers, where that trains more samples per second.
///
/// The [module](self) has the rules.
#[doc(alias = "BACKUP_WORKERS")]
#[derive(Debug, Clone, Default)]
pub struct BackupWorkers {
    config: BackupWorkersConfig,
    /// Part of a step in which its slowest worker does not compute, as far as it was seen.
    overhead: Duration,
    tried: Option<Tried>,
    /// Until when no change is tried, and how many were taken back.
    paused: Option<JobTime>,
    taken_back: u32,
}

impl BackupWorkers {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "backup";

    /// Returns the policy with these settings.
    pub const fn new(config: BackupWorkersConfig) -> Self {
        Self { config, overhead: Duration::ZERO, tried: None, paused: None, taken_back: 0 }
    }

    /// Compares the newest change with what came. The number of backups to go back to, if it was worse.
    fn measure(&mut self, now: JobTime, view: &ClusterView) -> Result<(), Option<u32>> {
        let Some(tried) = self.tried else { return Ok(()) };
        let Some(since) = tried.since else {
            // No plan is on its way, and none came of it: a dry run, or a plan that was refused.
            self.tried = None;
            return Ok(());
        };
        if now.since(since) < tried.lasts {
            return Err(None);
        }
        self.tried = None;
        if view.progress.samples_per_second >= tried.rate * RATE_KEPT {
            self.taken_back = 0;
            return Ok(());
        }
        let pause = PAUSE * (1 << self.taken_back.min(DOUBLINGS_MAX));
        self.taken_back = self.taken_back.saturating_add(1);
        self.paused = Some(now + pause);
        Err(Some(tried.before))
    }

    /// The number of backups with which most samples are trained in a second, if it is worth a change.
    fn propose(&mut self, view: &ClusterView, live: &[&NodeView], times: Vec<Duration>) -> Decision {
        let before = view.mode.backups();
        let batch = |(node, time): (&&NodeView, Duration)| {
            let spread = node.estimate.map_or(0.0, |it| it.spread);
            // A worker that has just come has an empty batch, and is done at once.
            (time.max(Duration::from_nanos(1)) * node.batch_size.max(1), spread, node.batch_size)
        };
        let batches: Vec<(Duration, f64, u32)> = live.iter().zip(times).map(batch).collect();
        let percent = usize::try_from(self.config.backups_max_percent).unwrap_or(100);
        let most = (live.len() * percent).div_ceil(100).min(BACKUPS_MAX).min(live.len() - 1);
        let looked_at = most.max((before as usize).min(live.len() - 1));
        let steps = expected_steps_with_backups(&batches, looked_at);
        let overhead = self.overhead;
        let rate = |backups: usize| {
            let (time, samples) = steps[backups];
            samples / (time + overhead).as_secs_f64().max(f64::MIN_POSITIVE)
        };
        // Of equal ones the fewest.
        let best =
            (0..=most).fold(0, |best, backups| if rate(backups) > rate(best) { backups } else { best });
        let in_force = rate((before as usize).min(looked_at));
        let cut = if rate(best) > 0.0 { 1.0 - in_force / rate(best) } else { 0.0 };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100")]
        let gain_percent = (cut.clamp(0.0, 1.0) * 100.0) as u32;
        let backups = u32::try_from(best).unwrap_or(u32::MAX);
        if backups == before || gain_percent == 0 {
            return Decision::nothing(Reason::Balanced);
        }
        if gain_percent < self.config.gain_min_percent {
            return Decision::nothing(Reason::GainTooSmall { percent: gain_percent });
        }
        self.tried = Some(Tried {
            before,
            rate: view.progress.samples_per_second,
            since: None,
            lasts: (steps[best].0 + overhead) * MEASURED_STEPS,
        });
        let reason = Reason::Backups { backups, before, gain_percent };
        Decision { backups: Some(backups), reasons: vec![reason], ..Decision::default() }
    }
}

impl Policy for BackupWorkers {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![action::BackupWorkers::NAME]
    }

    fn idle_in(&self, mode: Capabilities) -> Option<String> {
        let why = "a step of this sync mode takes all workers; backups take a mode whose workers add up their gradients in each step";
        (!mode.takes_backups()).then(|| why.to_owned())
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        if view.plan_pending || view.membership_changed {
            return Decision::nothing(Reason::Unsettled);
        }
        if let Some(why) = self.idle_in(view.mode) {
            return Decision::nothing(Reason::Other(why));
        }
        let mut live: Vec<&NodeView> = view.live_workers().collect();
        live.sort_by_key(|node| node.id);
        let before = view.mode.backups();
        if live.len() < 2 {
            return Decision::nothing(Reason::Balanced);
        }
        if let Some(step) = view.step {
            self.overhead = step.overhead;
        }
        match self.measure(now, view) {
            Ok(()) => {}
            Err(Some(backups)) if (backups as usize) < live.len() && backups != before => {
                let why = format!(
                    "fewer samples per second were trained than with {backups} backups, which are taken again"
                );
                return Decision {
                    backups: Some(backups),
                    reasons: vec![Reason::Other(why)],
                    ..Decision::default()
                };
            }
            Err(_) => return Decision::nothing(Reason::TooSoon),
        }
        if self.paused.is_some_and(|until| now < until) {
            let why = "the last change of the number of backups was taken back a short time ago";
            return Decision::nothing(Reason::Other(why.to_owned()));
        }
        let estimates: Vec<Option<PaceEstimate>> = live.iter().map(|node| node.estimate).collect();
        let known = estimates.iter().flatten().count();
        let Some(times) = believed(&estimates, ERROR_RATE).filter(|_| known == live.len()) else {
            return Decision::nothing(Reason::NotEnoughData { known, needed: live.len() });
        };
        self.propose(view, &live, times)
    }

    fn on_outcome(&mut self, now: JobTime, outcome: &ActionOutcome) {
        match outcome {
            ActionOutcome::PlanApplied { .. } => {
                if let Some(tried) = &mut self.tried {
                    tried.since.get_or_insert(now);
                }
            }
            // It never came.
            ActionOutcome::PlanVoid { .. } => self.tried = None,
            _ => {}
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.config.values()
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
