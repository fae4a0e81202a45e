//! `LB-BSP`: the policy that moves batch sizes, a share of the way with each plan, towards sizes in
//! proportion to predicted speeds. It is a baseline to compare `nd` with.
//!
//! ```text
//! predicted  = by the predictor, from the logarithms of each worker's times per sample
//! target     = the sizes that end the step first at the predicted speeds, solved exactly
//! next       = current + learning-rate * (target - current), rounded so that the sum stays the global batch
//! ```
//!
//! A plan is made whenever `next` differs from the sizes in force, at least `SETTLED_STEPS` steps after the
//! one before. Unlike `nd`, the policy does not test whether noise explains a difference, does not compare
//! forecasts with their outcome, and restarts no worker. By default predictions are exponentially weighted
//! means ([`predict`] has others). For a fair comparison the policy gets measured speeds from the same monitor as
//! `nd`, and its plans come into force in the same way, at the same cost.
//!
//! Source: the abstract of Chen et al., Semi-Dynamic Load Balancing (LB-BSP), 2018, read: batch sizes follow predicted speeds at
//! iteration boundaries. The paper predicts with a recurrent network (NARX) from speed, processor and memory load; ours are
//! simpler, and look at speeds only.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::registry::SettingSet;
use antdt_core::{Capabilities, ClusterView, Incarnation, JobTime, NodeId, NodeView, PaceEstimate, Reason};

use super::{Decision, Policy, Seat, Split, percent, split_by};
use crate::action;
use crate::apportion::{ApportionError, Share, apportion};
use crate::budget::RestartBudget;
use crate::predict::{self, Ewma, SpeedPredictor};

/// Steps under a plan before the next one: as `nd`, which must not be faster only because it looks more often.
const SETTLED_STEPS: u32 = 3;

/// A longer time per sample is a broken clock: the solver believes no longer one, and a mean would remember it.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a share must be.
const SHARE: &str = "a number above 0 and at most 1";

antdt_core::settings! {
    /// Settings of [`LbBsp`].
    #[derive(Debug, Clone, PartialEq)]
    pub struct LbBspConfig {
        /// Part of the way to the target batch sizes that one plan goes, above 0 and at most 1. Default 0.5: each
        /// plan halves the distance, and half of the noise in a prediction enters the plan.
        pub learning_rate: f64 = 0.5, "part of the way to the sizes that fit the predicted speeds that one plan goes",
            SHARE, if |part| part > 0.0 && part <= 1.0;
        /// Weight of the newest speed in the exponentially weighted mean, above 0 and at most 1. Default 0.5:
        /// half of the prediction is the newest measurement.
        pub smoothing: f64 = 0.5, "weight of the newest speed in the prediction of ewma; 1 predicts the newest",
            SHARE, if |weight| weight > 0.0 && weight <= 1.0;
        /// Name of the predictor, one of [`NAMES`](crate::predict::NAMES).
        pub predictor: String = Ewma::NAME.to_owned(), "how a speed is predicted: median, ewma or autoregressive",
            "the name of a predictor", if |name| predict::by_name(&name, 1.0).is_ok(), else &expected(&name);
    }
}

/// What the name of a predictor must be, if `name` is none.
fn expected(name: &str) -> String {
    predict::by_name(name, 1.0).map_or_else(|error| error.expected, |known| known.name().to_owned())
}

/// The baseline policy `LB-BSP`: it moves batch sizes step by step towards the workers' predicted speeds.
///
/// The [module](self) has the rules.
#[doc(alias = "LB-BSP")]
#[derive(Debug, Clone, Default)]
pub struct LbBsp {
    config: LbBspConfig,
    /// Predicts the logarithm of the seconds per sample of each life.
    predicted: BTreeMap<NodeId, (Incarnation, Box<dyn SpeedPredictor>)>,
}

impl LbBsp {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "lb-bsp";

    /// Returns the policy with these settings.
    pub const fn new(config: LbBspConfig) -> Self {
        Self { config, predicted: BTreeMap::new() }
    }

    /// Takes in what is known now. Lives that ended are forgotten.
    fn predict(&mut self, live: &[&NodeView]) {
        let mut before = std::mem::take(&mut self.predicted);
        for node in live {
            let is_credible = |it: &PaceEstimate| !it.sample_time.is_zero() && it.sample_time <= TIME_MAX;
            let Some(newest) = node.estimate.filter(is_credible) else { continue };
            let known = before.remove(&node.id).filter(|(life, _)| *life == node.incarnation);
            let made = || predict::by_name(&self.config.predictor, self.config.smoothing);
            let Some(mut predictor) = known.map(|(_, known)| known).or_else(|| made().ok()) else { continue };
            predictor.observe(newest.sample_time.as_secs_f64().ln());
            self.predicted.insert(node.id, (node.incarnation, predictor));
        }
    }

    /// Where sizes should go; `None` if nothing is known. A worker of unknown speed counts as the lower median.
    fn shares(&self, seats: &[Seat]) -> Option<Vec<Share>> {
        let time = |seat: &Seat| {
            let predicted = self.predicted.get(&seat.id).and_then(|(_, it)| it.predict()).map(f64::exp);
            predicted.or_else(|| seat.estimate.map(|it| it.sample_time.as_secs_f64()))
        };
        let mut known: Vec<f64> = seats.iter().filter_map(time).collect();
        known.sort_unstable_by(f64::total_cmp);
        let median = *known.get(known.len().checked_sub(1)? / 2)?;
        let share = |seat: &Seat| {
            let time = Duration::try_from_secs_f64(time(seat).unwrap_or(median)).unwrap_or(Duration::MAX);
            Share::new(seat.id, time.max(Duration::from_nanos(1)), seat.batch_size_min, seat.batch_size_max)
        };
        Some(seats.iter().map(share).collect())
    }
}

/// From the sizes in force part of the way to the target. Both add up to the same, and so does what is between.
fn part_of_the_way(
    now: &BTreeMap<NodeId, u32>,
    target: &BTreeMap<NodeId, u32>,
    part: f64,
) -> BTreeMap<NodeId, u32> {
    // The largest remainders are rounded up: what is between two whole numbers, rounded either way, stays between them.
    let mut next = BTreeMap::new();
    let mut remainders: Vec<(f64, NodeId)> = Vec::new();
    let total: u64 = now.values().map(|samples| u64::from(*samples)).sum();
    for (node, samples) in now {
        let exact = f64::from(*samples) + part * (f64::from(target[node]) - f64::from(*samples));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two batch sizes")]
        let whole = exact.floor() as u32;
        next.insert(*node, whole);
        if exact > f64::from(whole) {
            remainders.push((exact - f64::from(whole), *node));
        }
    }
    remainders.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut left = total - next.values().map(|samples| u64::from(*samples)).sum::<u64>();
    for (_, node) in remainders {
        if left == 0 {
            break;
        }
        left -= 1;
        *next.entry(node).or_default() += 1;
    }
    next
}

impl Policy for LbBsp {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![action::AdjustBs::NAME]
    }

    fn idle_in(&self, mode: Capabilities) -> Option<String> {
        let why = "workers that do not wait for each other keep their batch sizes";
        (!mode.sums_to_global_batch()).then(|| why.to_owned())
    }

    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        if view.plan_pending || view.membership_changed {
            return Decision::nothing(Reason::Unsettled);
        }
        if let Some(why) = self.idle_in(view.mode) {
            return Decision::nothing(Reason::Other(why));
        }
        if view.step.is_some_and(|step| step.plan < view.plan || step.steps < SETTLED_STEPS) {
            return Decision::nothing(Reason::TooSoon);
        }
        let mut live: Vec<&NodeView> = view.live_workers().collect();
        live.sort_by_key(|node| node.id);
        self.predict(&live);
        let (known, needed) = (self.predicted.len(), live.len());
        if known < needed || needed == 0 {
            return Decision::nothing(Reason::NotEnoughData { known, needed });
        }
        let seats: Vec<Seat> = live.iter().map(|node| Seat::from(*node)).collect();
        let Some(shares) = self.shares(&seats) else {
            return Decision::nothing(Reason::NotEnoughData { known, needed });
        };
        let target = match apportion(view.global_batch_size, 1, &shares) {
            Ok(solution) => solution.batch_sizes,
            Err(error) => return Decision::nothing(Reason::Other(error.to_string())),
        };
        let now: BTreeMap<NodeId, u32> = live.iter().map(|node| (node.id, node.batch_size)).collect();
        let fits = |node: &&NodeView| (node.batch_size_min..=node.batch_size_max).contains(&node.batch_size);
        let sum: u64 = now.values().map(|samples| u64::from(*samples)).sum();
        // The first sizes of a worker that joined may be anything: they are replaced at once.
        let whole = sum == u64::from(view.global_batch_size) && live.iter().all(fits);
        let next = if whole { part_of_the_way(&now, &target, self.config.learning_rate) } else { target };
        if next == now {
            return Decision::nothing(Reason::Balanced);
        }
        let step = |sizes: &BTreeMap<NodeId, u32>| {
            shares.iter().map(|it| it.time(sizes[&it.id])).max().unwrap_or_default()
        };
        let cut = 1.0 - step(&next).as_secs_f64() / step(&now).as_secs_f64().max(f64::MIN_POSITIVE);
        let slowest = shares.iter().max_by(|a, b| a.sample_time.cmp(&b.sample_time).then(b.id.cmp(&a.id)));
        let slowest = slowest.expect("every live worker has a share, and there are some");
        let mut times: Vec<Duration> = shares.iter().map(|share| share.sample_time).collect();
        times.sort_unstable();
        let typical = times[(times.len() - 1) / 2];
        let reason = Reason::Rebalance {
            slowest: slowest.id,
            slowness_percent: percent(slowest.sample_time.as_secs_f64() / typical.as_secs_f64()),
            gain_percent: percent(cut.max(0.0)),
        };
        Decision { batch_sizes: Some(next), reasons: vec![reason], ..Decision::default() }
    }

    /// Splits in proportion to the predicted speeds.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        split_by(self.shares(seats).as_deref(), total, seats)
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
