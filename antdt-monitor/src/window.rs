//! Windows over the recent batches of one incarnation of a node, in bounded memory.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use antdt_core::{BatchReport, Phase, PlanVersion};

use crate::config::WindowConfig;
use crate::running_median::RunningMedian;
use crate::stats::lower_median_of;

/// A node that is this many times faster than the median has that many times more batches in its window, and no
/// more: bounds the memory.
const FASTER_MAX: u32 = 4;

/// Fewest batches that a median is taken over, however slow the node is. 5: two outliers do no harm.
const BATCHES_MIN: u32 = 5;

/// Compute time per sample, in picoseconds: for a server a sample is one byte, which takes less than a
/// nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SampleTime(pub u64);

impl SampleTime {
    /// Returns the compute time divided by the number of samples; `None` if there are no samples.
    pub fn of(compute: Duration, samples: u64) -> Option<Self> {
        let picoseconds = (compute.as_nanos() * 1000).checked_div(u128::from(samples))?;
        Some(Self(u64::try_from(picoseconds).unwrap_or(u64::MAX)))
    }

    /// Returns the time, rounded down to nanoseconds.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0 / 1000)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    sample_time: SampleTime,
    samples: u64,
    wall_ns: u64,
    plan: PlanVersion,
}

/// Batches that are kept beside the ring until there are this many: with thousands of nodes each ring is far from
/// everything else in memory, and going there costs more than all the rest of a report.
const FRESH: usize = 4;

/// The short window: a bounded ring of the newest batches of one incarnation of a node. A median over
/// [`short_batches`](WindowConfig::short_batches) of them is kept up to date with each insertion; a median
/// over another number costs O(window) after an insertion, and O(1) until the next.
///
/// The window has [`short_batches`](WindowConfig::short_batches) batches for a node whose batches take as
/// long as the median node's. In synchronous training all have the same step, so all have that many. Under
/// ASP a slow node's window has fewer batches and a fast node's more, so that they cover the same stretch of
/// time.
#[derive(Debug, Clone)]
pub struct ShortWindow {
    config: WindowConfig,
    warmup_left: u32,
    /// All but the fresh ones.
    batches: VecDeque<Batch>,
    /// The newest ones, the first `fresh_len`.
    fresh: [Batch; FRESH],
    fresh_len: usize,
    /// How many of the newest in a row have the plan of the very newest or a newer one.
    under_newest: usize,
    /// Wall times in nanoseconds, and times per sample, of the newest [`short_batches`](WindowConfig::short_batches).
    walls: RunningMedian<u64>,
    sample_times: RunningMedian<SampleTime>,
    /// Samples and nanoseconds of wall time of the newest [`short_batches`](WindowConfig::short_batches).
    sums: (u128, u128),
    /// The median time per sample of another number of newest batches, once it was asked for.
    sample_time: Cell<Option<(u32, SampleTime)>>,
    /// The samples per second of another number of newest batches, once they were asked for.
    samples_per_second: Cell<Option<(u32, f64)>>,
}

impl ShortWindow {
    /// Returns an empty window that will skip the warm-up.
    pub const fn new(config: WindowConfig) -> Self {
        Self {
            config,
            warmup_left: config.warmup_batches,
            batches: VecDeque::new(),
            fresh: [Batch { sample_time: SampleTime(0), samples: 0, wall_ns: 0, plan: PlanVersion(0) };
                FRESH],
            fresh_len: 0,
            under_newest: 0,
            walls: RunningMedian::new(config.short_batches as usize),
            sample_times: RunningMedian::new(config.short_batches as usize),
            sums: (0, 0),
            sample_time: Cell::new(None),
            samples_per_second: Cell::new(None),
        }
    }

    /// Adds a reported batch. Batches without samples and those of the warm-up are ignored.
    pub fn push(&mut self, report: &BatchReport) {
        let Some(sample_time) = SampleTime::of(report.compute, report.samples) else { return };
        if self.warmup_left > 0 || report.phase == Phase::WarmUp {
            self.warmup_left = self.warmup_left.saturating_sub(1);
            return;
        }
        let wall_ns = u64::try_from(report.wall().as_nanos()).unwrap_or(u64::MAX);
        let batch = Batch { sample_time, samples: report.samples, wall_ns, plan: report.plan };
        let leaves = self.newest(self.most()).nth(self.config.short_batches as usize - 1);
        let (samples, wall) = leaves.map_or((0, 0), |batch| (batch.samples.into(), batch.wall_ns.into()));
        self.sums.0 = self.sums.0 + u128::from(batch.samples) - samples;
        self.sums.1 = self.sums.1 + u128::from(wall_ns) - wall;
        let same_plan = self.newest(1).next().is_some_and(|newest| newest.plan == batch.plan);
        self.fresh[self.fresh_len] = batch;
        self.fresh_len += 1;
        self.under_newest = match same_plan {
            true => (self.under_newest + 1).min(self.len()),
            false => self.newest(self.most()).take_while(|earlier| earlier.plan >= batch.plan).count(),
        };
        if self.fresh_len == FRESH {
            self.file_fresh();
        }
        self.walls.push(wall_ns);
        self.sample_times.push(sample_time);
        self.sample_time.set(None);
        self.samples_per_second.set(None);
    }

    /// Moves the fresh batches into the ring.
    fn file_fresh(&mut self) {
        let (most, len) = (self.most() as usize, self.batches.len());
        let room = len.min(most - FRESH);
        self.batches.drain(..len - room);
        if room + FRESH > self.batches.capacity() {
            // Doubled as usual, but never beyond what is needed: there is a window for each node.
            self.batches.reserve_exact(room.max(FRESH).min(most - room));
        }
        self.batches.extend(self.fresh);
        self.fresh_len = 0;
    }

    /// Most batches that are kept.
    const fn most(&self) -> u32 {
        self.config.short_batches * FASTER_MAX
    }

    /// Batches that are kept.
    fn len(&self) -> usize {
        (self.batches.len() + self.fresh_len).min(self.most() as usize)
    }

    /// Returns the median wall time of the newest [`short_batches`](WindowConfig::short_batches) batches.
    pub fn step_time(&self) -> Option<Duration> {
        self.walls.get().map(Duration::from_nanos)
    }

    /// Batches that cover as much time as `short_batches` of a node with `step_median` (the median over the nodes
    /// of [`step_time`](Self::step_time)).
    pub(crate) fn span(&self, step_median: Duration) -> u32 {
        let nominal = u64::from(self.config.short_batches);
        let most = self.most();
        let own = self.walls.get().unwrap_or_default();
        let median = u64::try_from(step_median.as_nanos()).unwrap_or(u64::MAX);
        // Rounded to the nearest batch, so that jitter of the step time does not shorten the window.
        let span = nominal.saturating_mul(median).saturating_add(own / 2);
        let span = span.checked_div(own).unwrap_or(nominal);
        u32::try_from(span).unwrap_or(most).clamp(BATCHES_MIN.min(self.config.short_batches), most)
    }

    /// Returns the median time per sample over the window; `None` until the window is full. `step_median` is
    /// the median node's step time, from which the length of the window follows.
    ///
    /// A burst shorter than half of the window does not change the median.
    pub fn sample_time(&self, step_median: Duration) -> Option<SampleTime> {
        let span = self.span(step_median);
        if self.len() < span as usize {
            return None;
        }
        self.median_of_newest(span)
    }

    fn median_of_newest(&self, count: u32) -> Option<SampleTime> {
        if count as usize == self.sample_times.len() {
            return self.sample_times.get();
        }
        let known = self.sample_time.get().filter(|(of, _)| *of == count);
        if known.is_none() {
            let times = self.newest(count).map(|batch| batch.sample_time);
            let median = lower_median_of(count as usize, times);
            self.sample_time.set(median.map(|median| (count, median)));
        }
        self.sample_time.get().map(|(_, median)| median)
    }

    /// Returns the median time per sample over the part of the window that was computed under `plan` or a
    /// newer one; `None` until that is half a window.
    ///
    /// A new plan may rest on these times only: with times from before the last plan, a policy would correct
    /// the same slowness twice. At the start of an incarnation the batches of the warm-up count towards the
    /// half window, though their times do not, so that a job which starts with a straggler gets a plan after
    /// 10 steps. The second plan corrects a first one that was made from few batches.
    pub fn sample_time_under(&self, plan: PlanVersion, step_median: Duration) -> Option<SampleTime> {
        let span = self.span(step_median);
        let newest = self.newest(1).next().map_or(PlanVersion(0), |batch| batch.plan);
        let count = match plan.cmp(&newest) {
            Ordering::Equal => self.under_newest.min(span as usize),
            Ordering::Greater => 0,
            Ordering::Less => self.newest(span).take_while(|batch| batch.plan >= plan).count(),
        };
        let since_start = count == self.len();
        let skipped = if since_start { self.config.warmup_batches - self.warmup_left } else { 0 };
        let least = BATCHES_MIN.min(self.config.short_batches) as usize;
        if count < least || count + (skipped as usize) < span.div_ceil(2) as usize {
            return None;
        }
        self.median_of_newest(u32::try_from(count).expect("at most the span"))
    }

    /// Returns the samples per second of wall time over the window; 0 while it is empty.
    pub fn samples_per_second(&self, step_median: Duration) -> f64 {
        let span = self.span(step_median);
        if span == self.config.short_batches {
            return Self::rate(self.sums);
        }
        if let Some((of, rate)) = self.samples_per_second.get()
            && of == span
        {
            return rate;
        }
        let sums = self.newest(span).fold((0, 0), |(samples, wall), batch| {
            (samples + u128::from(batch.samples), wall + u128::from(batch.wall_ns))
        });
        let rate = Self::rate(sums);
        self.samples_per_second.set(Some((span, rate)));
        rate
    }

    /// So many samples in so many nanoseconds, by the second.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn rate((samples, wall): (u128, u128)) -> f64 {
        let [samples, wall] = [samples, wall].map(|sum| u64::try_from(sum).unwrap_or(u64::MAX));
        if wall == 0 { 0.0 } else { samples as f64 / Duration::from_nanos(wall).as_secs_f64() }
    }

    /// The newest batches, the very newest first.
    fn newest(&self, count: u32) -> impl Iterator<Item = &Batch> {
        let fresh = &self.fresh[..self.fresh_len];
        fresh.iter().rev().chain(self.batches.iter().rev()).take(count as usize)
    }
}

/// A ratio in the total order of floating-point numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Ratio(f64);

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ratio {}

/// The long window: a node's time per sample and slowness ratio at each of the last verdicts on its pace.
///
/// It remembers the ratio to the peers *of the same moment*, so that a slow-down of the whole job does not
/// look like a change of one node. Memory is bounded by [`WindowConfig::long_beats`].
#[derive(Debug, Clone)]
pub struct LongWindow {
    most: usize,
    sample_times: RunningMedian<SampleTime>,
    slowness_ratios: RunningMedian<Ratio>,
    /// Whether the node was slow, oldest verdict first.
    slow: VecDeque<bool>,
    /// Number of those in which it was.
    slow_count: usize,
}

impl LongWindow {
    /// Returns an empty window.
    pub fn new(config: &WindowConfig) -> Self {
        let most = config.long_beats();
        Self {
            most,
            sample_times: RunningMedian::new(most),
            slowness_ratios: RunningMedian::new(most),
            slow: VecDeque::new(),
            slow_count: 0,
        }
    }

    /// Adds one verdict: the node's time per sample, its slowness ratio, and whether it is slow.
    pub fn push(&mut self, sample_time: SampleTime, slowness_ratio: f64, slow: bool) {
        self.sample_times.push(sample_time);
        self.slowness_ratios.push(Ratio(slowness_ratio));
        if self.slow.len() == self.most {
            self.slow_count -= usize::from(self.slow.pop_front() == Some(true));
        }
        self.slow.push_back(slow);
        self.slow_count += usize::from(slow);
    }

    /// Returns the share of the whole window in which the node was slow, 0 to 1. Verdicts still missing count
    /// as not slow.
    #[allow(clippy::cast_precision_loss, reason = "at most some thousands")]
    pub fn slow_fraction(&self) -> f64 {
        self.slow_count as f64 / self.most as f64
    }

    /// Returns the median time per sample over the long window; `None` before the first verdict on the node's pace.
    pub fn sample_time(&self) -> Option<SampleTime> {
        self.sample_times.get()
    }

    /// Returns the median slowness ratio over the long window; `None` before the first verdict on the node's pace.
    pub fn slowness_ratio(&self) -> Option<f64> {
        self.slowness_ratios.get().map(|ratio| ratio.0)
    }
}

#[cfg(test)]
mod tests;
