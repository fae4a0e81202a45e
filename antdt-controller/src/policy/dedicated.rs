//! `AntDT-DD`: the policy that sets batch sizes and micro-batches for a dedicated cluster of mixed devices.
//!
//! ```text
//! profile   each device class computes micro-batches of so many sizes, each twice the one before; the time of a
//!           micro-batch is fitted by fixed + per-sample * size
//! solve     minimise    max_i (count_i * fixed_i + per-sample_i * samples_i)
//!           subject to  sum samples_i = global batch, smallest <= each micro-batch <= largest that fits, count_i <= most
//! ```
//!
//! The size of the micro-batches is varied while each worker keeps its share of the global batch, so that every step of the
//! profile is an ordinary step of the job: nothing is computed twice and the global batch never changes. The problem is solved
//! exactly by [`apportion`]: a micro-batch costs its fixed part, so as few as fit are best, and a worker's time depends on its own
//! samples only.
//!
//! Rejected: counts that all devices of a class share, as in the paper. A global batch that they do not divide has no solution
//! then, and the enumeration of the counts of all classes costs more than the exact answer by device.
//!
//! Source: our design, made to agree with what summaries say of the `AntDT` paper: accumulation lets each device work at its
//! full capacity where plain balancing starves slow devices.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::registry::SettingSet;
use antdt_core::{
    Capabilities, ClusterView, DeviceClass, Forecast, JobTime, MembershipVersion, NodeId, NodeView,
    PlanVersion, Reason,
};

use super::{Decision, Policy, Seat, Split, percent};
use crate::action;
use crate::apportion::{ApportionError, Apportionment, Share, apportion};
use crate::budget::RestartBudget;

/// A longer time is a broken clock: the solver believes none.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Sizes that are within this factor of each other count as one point of a profile. 1.25: each size of a profile is twice the
/// one before.
const NEAR: f64 = 1.25;

/// Plans that are made by the profiles before the fastest one stays. 4: where times lie on a line the first is the best, and
/// elsewhere each adds a point where it matters.
const SOLVED_MAX: u32 = 4;

/// Points of a profile: the newest so many sizes. Each plan adds at most one.
const POINTS_MAX: usize = 16;

antdt_core::settings! {
    /// Settings of [`Dedicated`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DedicatedConfig {
        /// Number of micro-batch sizes that a profile measures, at least 1. Default 3: two give the line, and the
        /// third shows whether it is one. Each costs some steps with micro-batches half as large as those of the
        /// next.
        pub profile_sizes: u32 = 3, "sizes of micro-batches that each device class is measured with, each twice the one before",
            "a whole number from 1 to 8", if |count| (1..=8).contains(&count);
        /// Number of batches of each worker by which a micro-batch size is judged, at least 1. Default 5: the
        /// median then ignores the first batch after a change and one more disturbed batch.
        pub profile_batches: u32 = 5, "batches of each worker that a size is judged by",
            "a whole number from 1 to 32", if |count| (1..=32).contains(&count);
        /// Most micro-batches in a batch, at least 1. Default 16: with more, the memory bound is far below the
        /// device's share, and a smaller global batch serves better.
        pub accumulation_max: u32 = 16, "most micro-batches in a batch",
            "a whole number from 1 to 1024", if |count| (1..=1024).contains(&count);
        /// Least cut of the step time, in percent, that is worth a new plan. Default 3: less is within the error
        /// of a profile.
        pub gain_min_percent: u32 = 3, "least cut of the step time that is worth a plan",
            "a whole number from 1 to 100", if |count| (1..=100).contains(&count);
        /// Deviation of a device class from its profile, in percent, from which on the profile is corrected.
        /// Default 10: on a dedicated cluster, a larger deviation is a real change.
        pub drift_percent: u32 = 10, "deviation of a device class from its profile that is worth correcting it",
            "a whole number from 1 to 1000", if |count| (1..=1000).contains(&count);
    }
}

/// Time of a micro-batch by its size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// Seconds of a micro-batch, whatever its size.
    fixed: f64,
    /// Seconds of each sample.
    per_sample: f64,
}

impl Cost {
    /// Seconds of `samples` in `count` micro-batches.
    fn time(&self, samples: f64, count: f64) -> f64 {
        count * self.fixed + self.per_sample * samples
    }
}

/// What is known of a device class.
#[derive(Debug, Clone, Default, PartialEq)]
struct Profile {
    /// Samples of a micro-batch and its seconds, the oldest first; no two sizes are near each other.
    points: Vec<(f64, f64)>,
    /// Plans under which its workers were measured.
    plans: u32,
}

impl Profile {
    /// Takes in the time of a micro-batch. One that is near a known size and takes another time says that the device changed,
    /// and what is known of the other sizes changes alike. Returns by how much, 1 if nothing does.
    fn learn(&mut self, size: f64, seconds: f64) -> f64 {
        let is_near = |known: f64| size / known < NEAR && known / size < NEAR;
        match self.points.iter().position(|(known, _)| is_near(*known)) {
            Some(at) => {
                let (known, before) = self.points[at];
                // As long as the line through both says: a size that is near is not the same.
                let expected = self.fit().map_or(before, |cost| before + cost.per_sample * (size - known));
                let ratio = if expected > 0.0 { seconds / expected } else { 1.0 };
                for (_, other) in &mut self.points {
                    *other *= ratio;
                }
                self.points[at] = (size, seconds);
                ratio
            }
            None => {
                if self.points.len() == POINTS_MAX {
                    self.points.remove(0);
                }
                self.points.push((size, seconds));
                1.0
            }
        }
    }

    /// The line with the least sum of squared relative errors whose parts are not negative; `None` without a point. Sizes count for
    /// the less the further they are from the newest one.
    fn fit(&self) -> Option<Cost> {
        let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        let newest = self.points.last()?.0;
        for (x, y) in &self.points {
            let octaves = (x / newest).log2();
            let weight = 1.0 / (y * y * (1.0 + octaves * octaves));
            w += weight;
            wx += weight * x;
            wxx += weight * x * x;
            wy += weight * y;
            wxy += weight * x * y;
        }
        let (last_size, last_time) = *self.points.last()?;
        let through_zero = Cost { fixed: 0.0, per_sample: wxy / wxx };
        let determinant = w * wxx - wx * wx;
        // One size, or sizes that cannot be told apart.
        if self.points.len() < 2 || determinant <= 1e-9 * w * wxx {
            return Some(Cost { fixed: 0.0, per_sample: last_time / last_size });
        }
        let per_sample = (w * wxy - wx * wy) / determinant;
        let fixed = (wy - per_sample * wx) / w;
        // A larger one that is no slower, or more than in proportion: noise, or a device that this line does not describe.
        if fixed >= 0.0 && per_sample > 0.0 { Some(Cost { fixed, per_sample }) } else { Some(through_zero) }
    }
}

/// The policy `AntDT-DD`: batch sizes and micro-batches for clusters of mixed devices. The [module](self) has
/// the rules.
#[doc(alias = "AntDT-DD")]
#[derive(Debug, Clone, Default)]
pub struct Dedicated {
    config: DedicatedConfig,
    profiles: BTreeMap<DeviceClass, Profile>,
    /// Class of each worker that was ever seen.
    classes: BTreeMap<NodeId, DeviceClass>,
    /// The newest plan whose batches are in the profiles.
    learned: PlanVersion,
    /// What follows is of these workers, at the speed that they have now.
    membership: MembershipVersion,
    /// The fastest batches that were in force, and the seconds of their slowest worker.
    best: Option<(f64, Split)>,
    /// Plans that were made by the profiles.
    solved: u32,
}

/// What the batches of a class under the plan in force took.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Samples of a micro-batch.
    size: f64,
    /// Seconds of a micro-batch.
    seconds: f64,
}

impl Dedicated {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "dd";

    /// Returns the policy with these settings.
    pub fn new(config: DedicatedConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// A worker that may compute its batch in micro-batches: none where they would have to be all of one size or nearly so.
    fn share(&self, seat: &Seat, cost: Cost) -> Share {
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(TIME_MAX).min(TIME_MAX);
        let (min, max) = (seat.batch_size_min, seat.batch_size_max);
        let several = u64::from(min) * 2 <= u64::from(max) + 1;
        Share {
            fixed: duration(cost.fixed),
            micro_batches_max: if several { self.config.accumulation_max } else { 1 },
            ..Share::new(seat.id, duration(cost.per_sample).max(Duration::from_nanos(1)), min, max)
        }
    }

    /// The cost of each class, if every class that these workers are of is known; a worker that was never seen counts as the
    /// slowest.
    fn costs(&self, seats: &[Seat]) -> Option<Vec<Cost>> {
        let known: BTreeMap<&DeviceClass, Cost> =
            self.profiles.iter().filter_map(|(class, profile)| Some((class, profile.fit()?))).collect();
        let slowest = known.values().copied().max_by(|a, b| a.per_sample.total_cmp(&b.per_sample))?;
        let cost = |seat: &Seat| match self.classes.get(&seat.id) {
            Some(class) => known.get(class).copied(),
            None => Some(slowest),
        };
        seats.iter().map(cost).collect()
    }

    /// Even shares, and the bounds of each worker with micro-batches.
    fn even(&self, total: u32, seats: &[Seat]) -> Result<BTreeMap<NodeId, u32>, ApportionError> {
        let equal = Cost { fixed: 0.0, per_sample: 1e-9 };
        let shares: Vec<Share> = seats.iter().map(|seat| self.share(seat, equal)).collect();
        Ok(apportion(total, 1, &shares)?.batch_sizes)
    }

    /// Sizes of micro-batches to measure a worker with, that has a share of so many samples: ascending, each once.
    fn sizes(&self, seat: &Seat, samples: u32) -> Vec<u32> {
        let largest = samples.min(seat.batch_size_max).max(1);
        let halved =
            (0..self.config.profile_sizes).rev().map(|halvings| largest.div_ceil(1 << halvings.min(31)));
        let mut sizes: Vec<u32> = halved.map(|size| self.possible(seat, samples, size)).collect();
        sizes.dedup();
        sizes
    }

    /// The size of micro-batches nearest to `size` that the bounds allow.
    fn possible(&self, seat: &Seat, samples: u32, size: u32) -> u32 {
        samples.div_ceil(self.count(seat, samples, size)).max(1)
    }

    /// Micro-batches of about `size` for so many samples.
    fn count(&self, seat: &Seat, samples: u32, size: u32) -> u32 {
        let fewest = samples.div_ceil(seat.batch_size_max.max(1)).max(1);
        let most = samples.checked_div(seat.batch_size_min.max(1)).unwrap_or(1).max(1);
        let most = most.min(self.config.accumulation_max).max(fewest);
        samples.div_ceil(size.max(1)).clamp(fewest, most)
    }

    /// The share of each worker, in micro-batches of the size that its class is to be measured with next; `None` if all
    /// classes are measured.
    fn probe(&self, total: u32, seats: &[Seat]) -> Result<Option<Split>, ApportionError> {
        let batch_sizes = self.even(total, seats)?;
        let (mut accumulation, mut is_new) = (BTreeMap::new(), false);
        for seat in seats {
            let samples = batch_sizes[&seat.id];
            let sizes = self.sizes(seat, samples);
            let class = self.classes.get(&seat.id);
            let profile = class.and_then(|class| self.profiles.get(class));
            let known = |size: u32| {
                let near = |(known, _): &(f64, f64)| {
                    f64::from(size) / known < NEAR && known / f64::from(size) < NEAR
                };
                profile.is_some_and(|profile| profile.points.iter().any(near))
            };
            let done = match class {
                Some(_) => profile.is_some_and(|profile| profile.plans >= self.config.profile_sizes),
                // It shows its class with its first batches.
                None => !self.profiles.is_empty(),
            };
            let next = if done { None } else { sizes.iter().copied().find(|size| !known(*size)) };
            is_new |= next.is_some();
            let size = next.or(sizes.last().copied()).unwrap_or(1);
            let count = self.count(seat, samples, size);
            if count > 1 {
                accumulation.insert(seat.id, count);
            }
        }
        Ok(is_new.then_some(Split { batch_sizes, accumulation }))
    }

    /// The best batches at the costs that are known.
    fn solve(&self, total: u32, seats: &[Seat], costs: &[Cost]) -> Result<Apportionment, ApportionError> {
        let shares: Vec<Share> =
            seats.iter().zip(costs).map(|(seat, cost)| self.share(seat, *cost)).collect();
        apportion(total, 1, &shares)
    }

    /// What each class took under the plan in force; `None` for as long as a worker has too few batches.
    fn measure(
        &self,
        view: &ClusterView,
        live: &[&NodeView],
    ) -> Result<BTreeMap<DeviceClass, Vec<Measured>>, Reason> {
        let mut known = 0;
        let mut classes: BTreeMap<DeviceClass, Vec<Measured>> = BTreeMap::new();
        for node in live {
            let is_enough = |it: &antdt_core::BatchView| {
                it.plan >= view.plan && it.batches >= self.config.profile_batches && it.samples > 0
            };
            let Some(it) = node.batch.filter(is_enough) else { continue };
            let (seconds, count) = (it.compute.as_secs_f64(), f64::from(it.micro_batches.max(1)));
            if it.compute.is_zero() || it.compute > TIME_MAX {
                continue;
            }
            known += 1;
            let measured = Measured { size: f64::from(it.samples) / count, seconds: seconds / count };
            classes.entry(node.device.clone()).or_default().push(measured);
        }
        if known < live.len() || live.is_empty() {
            return Err(Reason::NotEnoughData { known, needed: live.len().max(1) });
        }
        Ok(classes)
    }

    /// The seconds of the slowest worker under the plan in force, which is remembered if it is the fastest so far.
    fn compare(&mut self, live: &[&NodeView]) -> f64 {
        let seconds = live.iter().filter_map(|node| Some(node.batch?.compute.as_secs_f64()));
        let now = seconds.fold(0.0, f64::max);
        let is_known = self.best.as_ref().is_some_and(|(_, fastest)| is_in_force(fastest, live));
        if is_known || self.best.as_ref().is_none_or(|(seconds, _)| now < *seconds) {
            let accumulation = live.iter().map(|node| (node.id, node.micro_batches.max(1)));
            let accumulation = accumulation.filter(|(_, count)| *count > 1).collect();
            let batch_sizes = live.iter().map(|node| (node.id, node.batch_size)).collect();
            self.best = Some((now, Split { batch_sizes, accumulation }));
        }
        now
    }

    /// Takes in what was measured: the first time under a plan, and later if a class deviates.
    fn learn(&mut self, plan: PlanVersion, classes: BTreeMap<DeviceClass, Vec<Measured>>) {
        let first = plan > self.learned;
        self.learned = plan;
        for (class, mut measured) in classes {
            // Workers of one class may have shares that differ by a sample: the median of all is that of one of them.
            measured.sort_by(|a, b| {
                (a.seconds / a.size).total_cmp(&(b.seconds / b.size)).then(a.size.total_cmp(&b.size))
            });
            let Measured { size, seconds } = measured[(measured.len() - 1) / 2];
            let profile = self.profiles.entry(class).or_default();
            let expected = profile.fit().map(|cost| cost.time(size, 1.0));
            let limit = f64::from(self.config.drift_percent) / 100.0;
            let drifts = expected.is_none_or(|expected| (seconds / expected - 1.0).abs() > limit);
            let is_probe = first && profile.plans < self.config.profile_sizes;
            profile.plans = profile.plans.saturating_add(u32::from(first));
            if is_probe || drifts {
                let ratio = profile.learn(size, seconds);
                if (ratio - 1.0).abs() > limit {
                    (self.best, self.solved) = (None, 0);
                }
            }
        }
    }

    /// Takes the split that the profiles call best, or the fastest that was measured, if it is worth a change from steps of `now` seconds.
    fn improve(&mut self, view: &ClusterView, live: &[&NodeView], now: f64, best: Apportionment) -> Decision {
        let sum: u64 = live.iter().map(|node| u64::from(node.batch_size)).sum();
        let gain_of = |then: f64| percent(1.0 - (then / now.max(f64::MIN_POSITIVE)).min(1.0));
        let least = self.config.gain_min_percent;
        let mut then = best.step_time.as_secs_f64();
        let mut split = Split { batch_sizes: best.batch_sizes, accumulation: best.accumulation };
        let is_best = is_in_force(&split, live);
        // The first sizes of a worker that joined may be anything: they are replaced at once.
        let is_whole = sum == u64::from(view.global_batch_size);
        if is_whole && (is_best || gain_of(then) < least || self.solved >= SOLVED_MAX) {
            // What was measured counts for more than what a line says.
            match &self.best {
                Some((seconds, fastest))
                    if gain_of(*seconds) >= least && fits(fastest, live, view.global_batch_size) =>
                {
                    (split, then) = (fastest.clone(), *seconds);
                }
                _ if is_best => return Decision::nothing(Reason::Balanced),
                _ => return Decision::nothing(Reason::GainTooSmall { percent: gain_of(then).min(least) }),
            }
        } else {
            self.solved = self.solved.saturating_add(1);
        }
        let gain = gain_of(then);
        let overhead = view.step.map_or(Duration::ZERO, |step| step.overhead);
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(TIME_MAX) + overhead;
        let forecast = Forecast { without: duration(now), with: duration(then) };
        let text = format!("{}; the step time is expected to fall by {gain} %", said(&split, live));
        decided(split, Some(forecast), text)
    }
}

fn decided(split: Split, forecast: Option<Forecast>, text: String) -> Decision {
    let Split { batch_sizes, accumulation } = split;
    let reasons = vec![Reason::Other(text)];
    Decision { batch_sizes: Some(batch_sizes), accumulation, forecast, reasons, ..Decision::default() }
}

impl Policy for Dedicated {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![action::AdjustBs::NAME]
    }

    fn idle_in(&self, mode: Capabilities) -> Option<String> {
        let why = "workers that do not wait for each other keep their batch sizes and compute them at once";
        (!mode.sums_to_global_batch()).then(|| why.to_owned())
    }

    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        if view.plan_pending || view.membership_changed {
            return Decision::nothing(Reason::Unsettled);
        }
        if let Some(why) = self.idle_in(view.mode) {
            return Decision::nothing(Reason::Other(why));
        }
        let mut live: Vec<&NodeView> = view.live_workers().collect();
        live.sort_by_key(|node| node.id);
        self.classes.extend(live.iter().map(|node| (node.id, node.device.clone())));
        let classes = match self.measure(view, &live) {
            Ok(classes) => classes,
            Err(reason) => return Decision::nothing(reason),
        };
        if view.membership != self.membership {
            (self.membership, self.best, self.solved) = (view.membership, None, 0);
        }
        self.learn(view.plan, classes);
        let now = self.compare(&live);
        let (total, seats) =
            (view.global_batch_size, live.iter().map(|node| Seat::from(*node)).collect::<Vec<_>>());
        match self.probe(total, &seats) {
            Err(error) => return Decision::nothing(Reason::Other(error.to_string())),
            Ok(Some(split)) if !is_in_force(&split, &live) => {
                let text = format!("measuring {}", said(&split, &live));
                return decided(split, None, text);
            }
            Ok(_) => {}
        }
        let Some(costs) = self.costs(&seats) else {
            return Decision::nothing(Reason::NotEnoughData { known: 0, needed: live.len() });
        };
        match self.solve(total, &seats, &costs) {
            Ok(best) => self.improve(view, &live, now, best),
            Err(error) => Decision::nothing(Reason::Other(error.to_string())),
        }
    }

    /// Splits by the profiles; before they are known evenly, in the micro-batches that are measured next.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        if let Some(split) = self.probe(total, seats)? {
            return Ok(split);
        }
        match self.costs(seats) {
            Some(costs) => {
                let best = self.solve(total, seats, &costs)?;
                Ok(Split { batch_sizes: best.batch_sizes, accumulation: best.accumulation })
            }
            None => Ok(self.even(total, seats)?.into()),
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.config.values()
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Whether the batches are for these workers, within their bounds, and add up to the global batch.
fn fits(split: &Split, live: &[&NodeView], total: u32) -> bool {
    let takes = |node: &&NodeView| {
        let count = split.accumulation.get(&node.id).copied().unwrap_or(1).max(1);
        let within = |samples: &u32| {
            samples / count >= node.batch_size_min && samples.div_ceil(count) <= node.batch_size_max
        };
        split.batch_sizes.get(&node.id).is_some_and(within)
    };
    let sum: u64 = split.batch_sizes.values().map(|samples| u64::from(*samples)).sum();
    sum == u64::from(total) && split.batch_sizes.len() == live.len() && live.iter().all(takes)
}

fn is_in_force(split: &Split, live: &[&NodeView]) -> bool {
    live.iter().all(|node| {
        split.batch_sizes.get(&node.id) == Some(&node.batch_size)
            && split.accumulation.get(&node.id).copied().unwrap_or(1) == node.micro_batches.max(1)
    })
}

/// The batches of each class in words: `v100: 1 x 91, k80: 2 x 19`. Of a class with several sizes, the largest.
fn said(split: &Split, live: &[&NodeView]) -> String {
    let mut largest: BTreeMap<&DeviceClass, (u32, u32)> = BTreeMap::new();
    for node in live {
        let samples = split.batch_sizes.get(&node.id).copied().unwrap_or_default();
        let count = split.accumulation.get(&node.id).copied().unwrap_or(1).max(1);
        let entry = largest.entry(&node.device).or_default();
        *entry = (*entry).max((samples, count));
    }
    let class = |(class, (samples, count)): (&DeviceClass, (u32, u32))| {
        format!("{class}: {count} x {}", samples.div_ceil(count))
    };
    let classes: Vec<String> = largest.into_iter().map(class).collect();
    classes.join(", ")
}

#[cfg(test)]
mod tests;
