//! The recent past of one life of one node, in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use antdt_core::{BatchReport, PlanVersion};

use crate::config::WindowConfig;
use crate::stats::lower_median;

/// A node that is this many times faster than the median has that many times more batches in its window, and no
/// more: bounds the memory.
const FASTER_MAX: u32 = 4;

/// Fewest batches that a median is taken over, however slow the node is. 5: two outliers do no harm.
const BATCHES_MIN: u32 = 5;

/// Time per sample, in picoseconds: a server's sample is a byte, which takes less than a nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SampleTime(pub u64);

impl SampleTime {
    /// Compute time shared out over samples. `None` without samples.
    pub fn of(compute: Duration, samples: u64) -> Option<Self> {
        let picoseconds = (compute.as_nanos() * 1000).checked_div(u128::from(samples))?;
        Some(Self(u64::try_from(picoseconds).unwrap_or(u64::MAX)))
    }

    /// The same, rounded down to nanoseconds.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0 / 1000)
    }
}

#[derive(Debug, Clone, Copy)]
struct Batch {
    sample_time: SampleTime,
    samples: u64,
    wall: Duration,
    plan: PlanVersion,
}

/// A bounded ring of the newest batches of one life of one node. Insertion is O(1), a median O(window).
///
/// The window has [`short_batches`](WindowConfig::short_batches) batches for a node whose batches take as long as
/// the median node's. In synchronous training all have the same step, so all have that many. Under ASP a slow
/// node's window has fewer batches and a fast node's more, so that they cover the same stretch of time.
#[derive(Debug, Clone)]
pub struct ShortWindow {
    config: WindowConfig,
    warmup_left: u32,
    batches: VecDeque<Batch>,
}

impl ShortWindow {
    /// An empty window that will skip the warm-up.
    pub const fn new(config: WindowConfig) -> Self {
        Self { config, warmup_left: config.warmup_batches, batches: VecDeque::new() }
    }

    /// Takes a batch in. Batches without samples and those of the warm-up are ignored.
    pub fn push(&mut self, report: &BatchReport) {
        let Some(sample_time) = SampleTime::of(report.compute, report.samples) else { return };
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            return;
        }
        if self.batches.len() == (self.config.short_batches * FASTER_MAX) as usize {
            self.batches.pop_front();
        }
        let wall = report.data_wait + report.compute + report.communicate + report.barrier_wait;
        self.batches.push_back(Batch { sample_time, samples: report.samples, wall, plan: report.plan });
    }

    /// Median wall time of a batch over the newest [`short_batches`](WindowConfig::short_batches).
    pub fn step_time(&self) -> Option<Duration> {
        let mut walls: Vec<Duration> =
            self.newest(self.config.short_batches).map(|batch| batch.wall).collect();
        lower_median(&mut walls)
    }

    /// Batches that cover as much time as `short_batches` of a node with `step_median` (the median over the nodes
    /// of [`step_time`](Self::step_time)).
    fn span(&self, step_median: Duration) -> u32 {
        let nominal = u128::from(self.config.short_batches);
        let most = self.config.short_batches * FASTER_MAX;
        let own = self.step_time().map_or(0, |step| step.as_nanos());
        // Rounded to the nearest batch, so that jitter of the step time does not shorten the window.
        let span = (nominal * step_median.as_nanos() + own / 2).checked_div(own).unwrap_or(nominal);
        u32::try_from(span).unwrap_or(most).clamp(BATCHES_MIN.min(self.config.short_batches), most)
    }

    /// Median time per sample over the window; `None` until the window is full.
    ///
    /// A full window makes a burst shorter than half of it invisible.
    pub fn sample_time(&self, step_median: Duration) -> Option<SampleTime> {
        let span = self.span(step_median);
        let mut times: Vec<SampleTime> = self.newest(span).map(|batch| batch.sample_time).collect();
        if times.len() < span as usize {
            return None;
        }
        lower_median(&mut times)
    }

    /// Median time per sample over the part of the window that was computed under `plan` or a newer one; `None`
    /// until that is half a window.
    ///
    /// This is what a new plan may rest on: numbers from before the last plan would answer it twice. At the start
    /// of a life the batches of the warm-up count towards the half, though their times do not: a job that starts
    /// with a straggler is helped after 10 steps. A first plan made of few numbers is mended by the second.
    pub fn sample_time_under(&self, plan: PlanVersion, step_median: Duration) -> Option<SampleTime> {
        let span = self.span(step_median);
        let mut times: Vec<SampleTime> =
            self.newest(span).take_while(|batch| batch.plan >= plan).map(|batch| batch.sample_time).collect();
        let since_start = times.len() == self.batches.len();
        let skipped = if since_start { self.config.warmup_batches - self.warmup_left } else { 0 };
        let least = BATCHES_MIN.min(self.config.short_batches) as usize;
        if times.len() < least || times.len() + (skipped as usize) < span.div_ceil(2) as usize {
            return None;
        }
        lower_median(&mut times)
    }

    /// Samples per second of wall time over the window; 0 while it is empty.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn samples_per_second(&self, step_median: Duration) -> f64 {
        let (samples, wall) =
            self.newest(self.span(step_median)).fold((0_u64, Duration::ZERO), |(samples, wall), batch| {
                (samples + batch.samples, wall + batch.wall)
            });
        if wall.is_zero() { 0.0 } else { samples as f64 / wall.as_secs_f64() }
    }

    fn newest(&self, count: u32) -> impl Iterator<Item = &Batch> {
        self.batches.iter().rev().take(count as usize)
    }
}

/// One verdict's numbers, as the long window remembers them.
#[derive(Debug, Clone, Copy)]
struct Beat {
    sample_time: SampleTime,
    slowness_ratio: f64,
    slow: bool,
}

/// The long window: the node's numbers at each of the last verdicts.
///
/// It remembers the ratio to the peers *of the same moment*, so that a slow-down of the whole job does not look
/// like a change of one node. Memory is bounded by [`WindowConfig::long_beats`].
#[derive(Debug, Clone)]
pub struct LongWindow {
    most: usize,
    beats: VecDeque<Beat>,
}

impl LongWindow {
    /// An empty window.
    pub fn new(config: &WindowConfig) -> Self {
        Self { most: config.long_beats(), beats: VecDeque::new() }
    }

    /// Takes in a verdict's numbers.
    pub fn push(&mut self, sample_time: SampleTime, slowness_ratio: f64, slow: bool) {
        if self.beats.len() == self.most {
            self.beats.pop_front();
        }
        self.beats.push_back(Beat { sample_time, slowness_ratio, slow });
    }

    /// Share of the whole window in which the node was slow, 0 to 1. What is not known yet counts as not slow.
    #[allow(clippy::cast_precision_loss, reason = "at most some thousands")]
    pub fn slow_fraction(&self) -> f64 {
        self.beats.iter().filter(|beat| beat.slow).count() as f64 / self.most as f64
    }

    /// Median time per sample; `None` before the first verdict.
    pub fn sample_time(&self) -> Option<SampleTime> {
        let mut times: Vec<SampleTime> = self.beats.iter().map(|beat| beat.sample_time).collect();
        lower_median(&mut times)
    }

    /// Median ratio to the peers; `None` before the first verdict.
    pub fn slowness_ratio(&self) -> Option<f64> {
        let mut ratios: Vec<f64> = self.beats.iter().map(|beat| beat.slowness_ratio).collect();
        if ratios.is_empty() {
            return None;
        }
        let middle = (ratios.len() - 1) / 2;
        Some(*ratios.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

#[cfg(test)]
mod tests;
