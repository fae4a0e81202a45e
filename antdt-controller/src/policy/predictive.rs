//! The policy `predictive`: takes the actions that make the rest of the job shortest, as far as that can be
//! predicted.
//!
//! At every tick the policy predicts how much of the remaining time of the job each action would save
//! ([`Rest`]), with the standard error. It takes the first action that surely saves time, given this error:
//! a restart, new batch sizes, or another number of backups.
//!
//! | | `nd` | `predictive` |
//! |---|---|---|
//! | new batch sizes | if a step gets shorter by 5 % | if they save time before the slowness is over: by 5 % of a step, or from 1 % on by more than their error |
//! | a worker that is slow for a moment | as any other | let pass once slownesses of the job were seen to end before a plan is in force |
//! | small differences | nothing, as far as noise may explain them | followed once they are known: the error of a median falls with its batches |
//! | slow server | other shares or a restart, beyond break-even | the same |
//! | restart | after a whole long window | also before, when what it saves outweighs it; not any more once restarts of this job did not cure and it does not |
//!
//! The policy measures in the job itself how long slownesses last, how long a plan takes until it is in
//! force, how often a restart cures, how long a node takes to start, and which share of its promises came
//! true.
//!
//! Source: our design.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{
    ActionOutcome, ClusterView, Forecast, Incarnation, JobTime, NodeId, NodeView, Pace, PaceEstimate, Reason,
    StragglerKind,
};
use antdt_cost::forecast::expected_step;
use antdt_cost::{Lasting, PlanOutlook, Rest, RestartOutlook};

use super::non_dedicated::{NonDedicated, SETTLED_STEPS, SURE_BATCHES};
use super::{BackupWorkers, Decision, Policy, Seat, Split, percent};
use crate::action;
use crate::apportion::{ApportionError, Share, apportion};
use crate::budget::RestartBudget;
use crate::speed::{believed, slowness};

/// Slowness from which on a worker counts as slow, and below which it counts as healthy again.
const SLOW: f64 = 1.3;
const HEALTHY: f64 = 1.15;

/// Least cut of the step time that a plan is made for, as a share. 0.01: less is not worth a line in the report.
const GAIN_MIN: f64 = 0.01;

/// Least time that a plan is made for, in seconds: less would read as nothing.
const SAVED_MIN_S: f64 = 0.1;

/// Errors of a median within which noise may explain a difference. 2: one in twenty healthy workers gets a sample more or less.
const WITHIN: f64 = 2.0;

/// Time from a decision until its plan is in force, before the job has shown its own. 1.5 s: two heartbeats and a step.
const DELAY: Duration = Duration::from_millis(1500);

/// The rest of a job whose rate is not known yet.
const LEFT: Duration = Duration::from_secs(60);

/// Least share of a promise that counts, however badly earlier ones were kept.
const TRUST_MIN: f64 = 0.1;

/// A slowness that goes on.
#[derive(Debug, Clone, Copy)]
struct Episode {
    life: Incarnation,
    since: JobTime,
}

/// The policy that takes the action with the shortest predicted completion time. The [module](self) has the
/// rules.
#[derive(Debug, Clone)]
pub struct Predictive {
    /// Has the gates of restarts: the budget, the break-even time, what did not help before.
    base: NonDedicated,
    backups: BackupWorkers,
    lasting: Lasting,
    slow: BTreeMap<NodeId, Episode>,
    /// Lives that were restarted, until it is known whether the next one is healthy.
    restarted: BTreeMap<NodeId, Incarnation>,
    /// Restarts of this job that cured, and all whose outcome is known.
    cures: (u32, u32),
    /// When the newest plan was decided.
    asked: Option<JobTime>,
    delay: Duration,
    trust: f64,
}

impl Default for Predictive {
    fn default() -> Self {
        Self::new(NonDedicated::default())
    }
}

/// Standard error of the logarithm of a worker's median time.
fn error_of(estimate: &PaceEstimate) -> f64 {
    let batches = f64::from(estimate.batches.max(1));
    estimate.spread * (std::f64::consts::FRAC_PI_2 * (batches + 1.0)).sqrt() / batches
}

impl Predictive {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "predictive";

    /// The policy with the settings of `nd`.
    pub(super) fn new(base: NonDedicated) -> Self {
        Self {
            base,
            backups: BackupWorkers::default(),
            lasting: Lasting::default(),
            slow: BTreeMap::new(),
            restarted: BTreeMap::new(),
            cures: (0, 0),
            asked: None,
            delay: DELAY,
            trust: 1.0,
        }
    }

    /// Time per sample to count on: the measured one, less what noise explains. Few batches are held to the bound that holds at all times.
    fn times(&self, live: &[&NodeView]) -> Option<Vec<Duration>> {
        let estimates: Vec<Option<PaceEstimate>> = live.iter().map(|node| node.estimate).collect();
        let careful = believed(&estimates, self.base.error_rate())?;
        let mut known: Vec<&PaceEstimate> =
            estimates.iter().flatten().filter(|estimate| !estimate.sample_time.is_zero()).collect();
        known.sort_by_key(|estimate| estimate.sample_time);
        let median = known.get(known.len().saturating_sub(1) / 2)?.sample_time;
        let mut errors: Vec<f64> = known.iter().map(|estimate| error_of(estimate)).collect();
        errors.sort_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let of_median = errors[errors.len() / 2] * (2.0 / errors.len() as f64).sqrt().min(1.0);
        let time = |(estimate, careful): (&Option<PaceEstimate>, Duration)| {
            let Some(estimate) =
                estimate.filter(|it| it.batches >= SURE_BATCHES && !it.sample_time.is_zero())
            else {
                return careful;
            };
            let far = (estimate.sample_time.as_secs_f64() / median.as_secs_f64()).ln();
            let radius = WITHIN * f64::hypot(error_of(&estimate), of_median);
            let share = (1.0 - (radius / far).powi(2)).max(0.0);
            if share > 0.0 { median.mul_f64((far * share).exp()) } else { median }
        };
        Some(estimates.iter().zip(careful).map(time).collect())
    }

    /// Notes which workers are slow, since when, and how their restarts ended.
    fn follow(&mut self, now: JobTime, view: &ClusterView, live: &[&NodeView]) {
        let estimates: Vec<Option<PaceEstimate>> = live.iter().map(|node| node.estimate).collect();
        let ratios = slowness(&estimates, self.base.error_rate());
        self.slow.retain(|node, _| live.iter().any(|it| it.id == *node));
        for (node, ratio) in live.iter().zip(ratios) {
            let (Some(ratio), Some(estimate)) = (ratio, node.estimate) else { continue };
            if self.restarted.get(&node.id).is_some_and(|life| node.incarnation > *life)
                && estimate.batches >= SURE_BATCHES
            {
                self.restarted.remove(&node.id);
                self.cures.0 += u32::from(ratio.ratio < SLOW);
                self.cures.1 += 1;
            }
            match self.slow.get(&node.id).copied() {
                Some(episode) if episode.life != node.incarnation => drop(self.slow.remove(&node.id)),
                Some(episode) if ratio.ratio < HEALTHY => {
                    self.lasting.observe(now.since(episode.since));
                    self.slow.remove(&node.id);
                }
                None if ratio.ratio >= SLOW && ratio.low > 1.0 => {
                    let since = now - Self::age(view, node, &estimate);
                    self.slow.insert(node.id, Episode { life: node.incarnation, since });
                }
                Some(_) | None => {}
            }
        }
    }

    /// How long a worker has had its pace.
    fn age(view: &ClusterView, node: &NodeView, estimate: &PaceEstimate) -> Duration {
        let batch = estimate.sample_time * node.batch_size;
        view.step.map_or(batch, |step| step.time.max(batch)).saturating_mul(estimate.batches)
    }

    /// The rest of the job, with the slowness of this worker.
    fn rest(&self, now: JobTime, view: &ClusterView, node: &NodeView) -> Rest {
        let left = view.progress.remaining().unwrap_or(LEFT);
        let goes_on = match self.slow.get(&node.id) {
            Some(episode) => self.lasting.expected(now.since(episode.since)),
            // Less than slow: it goes on as it has.
            None => {
                let age = node.estimate.map_or(Duration::ZERO, |it| Self::age(view, node, &it));
                Lasting::default().expected(age)
            }
        };
        Rest { left, goes_on }
    }

    /// The view with the label `persistent` on those workers too whose restart saves time already, and not on those for which it does not,
    /// once a restart of this job has failed to cure.
    fn judged(
        &self,
        now: JobTime,
        view: &ClusterView,
        live: &[&NodeView],
        times: &[Duration],
    ) -> ClusterView {
        let speeds: BTreeMap<NodeId, f64> = live
            .iter()
            .zip(times)
            .map(|(node, time)| (node.id, 1.0 / time.as_secs_f64().max(f64::MIN_POSITIVE)))
            .collect();
        let all: f64 = speeds.values().sum();
        let mut sorted: Vec<f64> = speeds.values().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let healthy = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let overhead = view.step.map_or(0.0, |step| step.overhead.as_secs_f64());
        let step = |speed: f64| f64::from(view.global_batch_size) / speed.max(f64::MIN_POSITIVE) + overhead;
        let (cured, known) = self.cures;
        let pays = |node: &NodeView| {
            let estimate = node.estimate.filter(|it| it.batches >= SURE_BATCHES);
            let (Some(estimate), Some(own)) = (estimate, speeds.get(&node.id)) else { return false };
            let restart = RestartOutlook {
                now: step(all),
                away: step(all - own),
                after: step(all - own + healthy),
                cured: f64::from(1 + cured) / f64::from(2 + known),
                error: error_of(&estimate),
                delay: view.scheduler.start_delay,
                pause: self.base.reform_pause(),
            };
            self.slow.contains_key(&node.id)
                && self.rest(now, view, node).saved_by_restart(&restart).is_sure()
        };
        let mut judged = view.clone();
        for node in &mut judged.workers {
            let kind = match node.pace {
                Pace::Straggler(StragglerKind::Transient) if pays(node) => StragglerKind::Persistent,
                // Slow through the whole long window, and restarts of this job have failed to cure.
                Pace::Straggler(StragglerKind::Persistent) if cured < known && !pays(node) => {
                    StragglerKind::Transient
                }
                _ => continue,
            };
            node.pace = Pace::Straggler(kind);
        }
        judged
    }

    /// New batch sizes, or why not.
    fn plan(
        &self,
        now: JobTime,
        view: &ClusterView,
        live: &[&NodeView],
        times: &[Duration],
    ) -> Result<Decision, Reason> {
        if view.step.is_some_and(|step| step.plan < view.plan || step.steps < SETTLED_STEPS) {
            return Err(Reason::TooSoon);
        }
        let share = |(node, time): (&&NodeView, &Duration)| {
            let time = (*time).max(Duration::from_nanos(1));
            Share::new(node.id, time, node.batch_size_min, node.batch_size_max)
        };
        let shares: Vec<Share> = live.iter().zip(times).map(share).collect();
        let best = apportion(view.global_batch_size, 1, &shares)
            .map_err(|error| Reason::Other(error.to_string()))?
            .batch_sizes;
        let sizes_now: BTreeMap<NodeId, u32> = live.iter().map(|node| (node.id, node.batch_size)).collect();
        let overhead = view.step.map_or(Duration::ZERO, |step| step.overhead);
        let steps = Steps { live, times, shares: &shares, overhead };
        let forecast = Forecast { without: steps.expected(&sizes_now), with: steps.expected(&best) };
        let gain = forecast.promised() * self.trust;
        let adds_up =
            sizes_now.values().map(|size| u64::from(*size)).sum::<u64>() == u64::from(view.global_batch_size);
        if adds_up && gain < GAIN_MIN {
            let percent = percent(gain.max(0.0));
            return Err(if percent == 0 { Reason::Balanced } else { Reason::GainTooSmall { percent } });
        }

        let (driver, next) = (steps.slowest(&sizes_now), steps.slowest(&best));
        let error = |at: usize| live[at].estimate.map_or(0.0, |it| error_of(&it));
        let healthy = |sizes| steps.healthy(sizes, |node| self.slow.contains_key(&node));
        let lag = self.delay + forecast.without * SETTLED_STEPS;
        let plan = PlanOutlook {
            without: 1.0,
            with: 1.0 - gain,
            error: f64::hypot(error(driver), error(next)),
            delay: self.delay,
            lag,
            healthy: healthy(&best) / healthy(&sizes_now).max(f64::MIN_POSITIVE) - 1.0,
        };
        let saved = self.rest(now, view, live[driver]).saved_by_plan(&plan);
        // What changes a step by much is tried and mended: what is predicted is short of what noise explains anyhow.
        let is_large = percent(gain) >= self.base.gain_min_percent();
        if adds_up && (saved.seconds < SAVED_MIN_S || !(saved.is_sure() || is_large)) {
            let what = format!(
                "new batch sizes would save {:.1} s of the rest of the job, of which up to {:.1} s is error",
                saved.seconds,
                2.0 * saved.error
            );
            return Err(Reason::Other(what));
        }
        let (slowest, gain_percent) = (live[driver].id, percent(gain));
        let slowness = times[driver].as_secs_f64() / steps.median().as_secs_f64().max(f64::MIN_POSITIVE);
        let reason = if slowness <= 1.05 {
            Reason::AlikeAgain { gain_percent }
        } else {
            Reason::Rebalance { slowest, slowness_percent: percent(slowness), gain_percent }
        };
        let expected = format!("{:.1} s of the rest of the job", saved.seconds);
        let reasons = vec![reason, Reason::Other(format!("which saves about {expected}"))];
        Ok(Decision { batch_sizes: Some(best), forecast: Some(forecast), reasons, ..Decision::default() })
    }
}

/// The steps of these workers, of which a sample takes each so long, under any batch sizes.
struct Steps<'a> {
    live: &'a [&'a NodeView],
    times: &'a [Duration],
    shares: &'a [Share],
    overhead: Duration,
}

impl Steps<'_> {
    fn expected(&self, sizes: &BTreeMap<NodeId, u32>) -> Duration {
        let batch = |(node, share): (&&NodeView, &Share)| {
            (share.time(size(sizes, node)), node.estimate.map_or(0.0, |estimate| estimate.spread))
        };
        let batches: Vec<(Duration, f64)> = self.live.iter().zip(self.shares).map(batch).collect();
        expected_step(&batches) + self.overhead
    }

    /// The index of the worker that computes longest.
    fn slowest(&self, sizes: &BTreeMap<NodeId, u32>) -> usize {
        let time = |at: &usize| self.shares[*at].time(size(sizes, self.live[*at]));
        (0..self.live.len()).max_by_key(time).unwrap_or_default()
    }

    /// Seconds of a step if no worker were slow any more.
    fn healthy(&self, sizes: &BTreeMap<NodeId, u32>, is_slow: impl Fn(NodeId) -> bool) -> f64 {
        let median = self.median();
        let time = |(node, time): (&&NodeView, &Duration)| {
            let time = if is_slow(node.id) { median } else { *time };
            time.as_secs_f64() * f64::from(size(sizes, node))
        };
        self.live.iter().zip(self.times).map(time).fold(0.0, f64::max) + self.overhead.as_secs_f64()
    }

    fn median(&self) -> Duration {
        let mut sorted = self.times.to_vec();
        sorted.sort_unstable();
        sorted[sorted.len().saturating_sub(1) / 2]
    }
}

fn size(sizes: &BTreeMap<NodeId, u32>, node: &NodeView) -> u32 {
    sizes.get(&node.id).copied().unwrap_or_default()
}

impl Policy for Predictive {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![
            action::AdjustBs::NAME,
            action::BackupWorkers::NAME,
            action::Repartition::NAME,
            action::KillRestart::NAME,
        ]
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        if view.plan_pending || view.membership_changed {
            return Decision::nothing(Reason::Unsettled);
        }
        let mut live: Vec<&NodeView> = view.live_workers().collect();
        live.sort_by_key(|node| node.id);
        if let Err(reason) = self.base.knows(&live) {
            return Decision::nothing(reason);
        }
        let Some(times) = self.times(&live) else {
            return Decision::nothing(Reason::NotEnoughData { known: 0, needed: live.len() });
        };
        self.follow(now, view, &live);

        let mut reasons = Vec::new();
        let judged =
            if view.mode.steps_in_common() { self.judged(now, view, &live, &times) } else { view.clone() };
        let mut of_judged: Vec<&NodeView> = judged.live_workers().collect();
        of_judged.sort_by_key(|node| node.id);
        let node_actions = self.base.restarts(now, &judged, &of_judged, budget, &mut reasons);
        if !node_actions.is_empty() {
            let lives = node_actions.iter().map(|action| (action.target.node, action.target.incarnation));
            self.restarted.extend(lives);
            return Decision { node_actions, reasons, ..Decision::default() };
        }
        if let Some(action) = self.base.server_action(now, view, budget, &mut reasons) {
            return Decision { node_actions: vec![action], reasons, ..Decision::default() };
        }
        let mut is_settled = true;
        if view.mode.sums_to_global_batch() {
            match self.plan(now, view, &live, &times) {
                Ok(decision) => {
                    self.asked = Some(now);
                    return decision;
                }
                Err(reason) => {
                    is_settled = reason != Reason::TooSoon;
                    reasons.push(reason);
                }
            }
        }
        // Not in an all-reduce, where batch sizes and restarts alone are what the policy was measured with; and not before batch sizes have
        // had their turn: against a worker whose batch is about to shrink, a backup drops work, and is taken back only many steps later.
        if is_settled && view.mode.takes_backups() && view.mode.needs_servers() {
            let decision = self.backups.decide(now, view, budget);
            if decision.acts() {
                return decision;
            }
            reasons.extend(decision.reasons);
        }
        if reasons.is_empty() {
            reasons.push(Reason::Balanced);
        }
        Decision { reasons, ..Decision::default() }
    }

    /// In proportion to the known speeds, as `nd`.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        self.base.split(total, seats)
    }

    fn on_outcome(&mut self, now: JobTime, outcome: &ActionOutcome) {
        self.backups.on_outcome(now, outcome);
        match outcome {
            ActionOutcome::PlanApplied { .. } => {
                if let Some(asked) = self.asked.take() {
                    self.delay = (self.delay + now.since(asked)) / 2;
                }
            }
            ActionOutcome::PlanVoid { .. } => self.asked = None,
            ActionOutcome::Measured { forecast, step, .. } if forecast.promised() > 0.0 => {
                let kept = (forecast.cut(*step) / forecast.promised()).clamp(0.0, 1.0);
                self.trust = f64::midpoint(self.trust, kept).max(TRUST_MIN);
            }
            _ => {}
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.base.settings()
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
