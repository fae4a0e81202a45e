//! [`Segment`]: the batches of one node since its speed last changed.
//!
//! A node's batches are cut into segments of constant speed by two cumulative-sum tests (Page 1954) on the logarithm of
//! the time per sample: one for slower, one for faster. A score grows with every batch that is better explained by a
//! change of 1.3x than by noise, and falls with every other one, never below 0. At [`ALARM`] a new segment begins with
//! the batch at which the score was 0 last.
//!
//! The test has a stated error rate: with independent noise whose spread is known, a segment is cut once in
//! `exp(ALARM)` = 10,000 batches, whatever the spread is. Its delay follows the evidence: two batches for a node that
//! becomes four times slower with noise of 10 %, three with noise of 30 %.
//!
//! No single batch cuts a segment, however long it took: a batch adds at most half of [`ALARM`] to a score, and the
//! speed of a segment is a median.
//!
//! Tried and rejected: the windows that labels are given by. A median over 20 batches follows a change after 10 of
//! them, and after a change it is a mixture of two speeds. Sample times under the newest plan only: after each plan
//! nothing is known for some steps, and the noise of the first few batches becomes the next plan.
//!
//! Source: E. S. Page, Continuous inspection schemes, 1954 (the cumulative-sum test), recalled; the rest is our design.

use antdt_core::PaceEstimate;

use crate::running_median::RunningMedian;
use crate::window::SampleTime;

/// Score at which a new segment begins: the mean number of batches between two false ones is at least `exp` of it.
/// 9.2 is `ln 10_000`. A larger one costs a proportionally longer delay.
const ALARM: f64 = 9.2;

/// Change that the tests are tuned for, as a logarithm: 1.3x, at which a node is a straggler. Larger ones are found
/// sooner, smaller ones later.
const CHANGE: f64 = 0.262;

/// Newest batches of a segment that its median is taken over. 64: the median is then known to a sixth of the noise of
/// one batch; a larger number costs memory per node.
const NEWEST: usize = 64;

/// Batches that a segment has before its median is something to compare with.
const REFERENCE_MIN: usize = 8;

/// Batches that an estimate is made of at least.
const ESTIMATE_MIN: usize = 2;

/// Batches from one look at their spread around the median to the next: it changes slowly, and costs more than all else that is done with a
/// batch.
const LOOK: usize = 8;

/// First batches of a life that are not looked at. 1: cold caches and the first touch of memory hit the first batch;
/// what lasts longer is cut off as a segment of its own.
const WARMUP: u32 = 1;

/// A change from one batch to the next beyond this, as a logarithm, is taken at it: 2.7x. What a node that becomes four
/// times slower adds to the noise is then as little as an outlier does.
const NOISE_MAX: f64 = 1.0;

/// Least noise that is believed in: 2 %. Batches that are all alike would make a straggler of a node that is 1 % slower.
const SPREAD_MIN: f64 = 0.02;

/// A cumulative-sum test for a change to one side.
#[derive(Debug, Clone, Copy, Default)]
struct Score {
    value: f64,
    /// Batches since it was 0 last.
    batches: usize,
}

impl Score {
    /// Takes in how far a batch is to this side of the segment's median, as a logarithm. Whether the speed has changed.
    fn push(&mut self, distance: f64, spread: f64) -> bool {
        let evidence = CHANGE * (distance - CHANGE / 2.0) / (spread * spread);
        self.value += evidence.min(ALARM / 2.0);
        self.batches += 1;
        if self.value <= 0.0 {
            *self = Self::default();
        }
        self.value >= ALARM
    }
}

/// Noise of the batches of several nodes: a mean of squares, and what it weighs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Noise {
    /// Sum of the nodes' variances, each times the number of its batches.
    sum: f64,
    batches: f64,
}

impl Default for Noise {
    /// Four batches of 25 %: until batches say something else, noise is taken to be high, so that nothing is seen in it.
    fn default() -> Self {
        Self { sum: 4.0 * 0.25 * 0.25, batches: 4.0 }
    }
}

impl Noise {
    fn variance(self) -> f64 {
        self.sum / self.batches
    }

    /// Standard deviation of the logarithm of one batch.
    pub(crate) fn deviation(self) -> f64 {
        self.variance().sqrt().max(SPREAD_MIN)
    }

    /// Batches that it is known from.
    pub(crate) const fn batches(self) -> f64 {
        self.batches
    }

    /// A node's part of it changed.
    fn replace(&mut self, before: (f64, u32), after: (f64, u32)) {
        self.sum = (self.sum + after.0 * f64::from(after.1) - before.0 * f64::from(before.1)).max(0.0);
        self.batches += f64::from(after.1) - f64::from(before.1);
    }
}

/// The batches of one life of one node since its speed changed.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    warmup_left: u32,
    times: RunningMedian<SampleTime>,
    slower: Score,
    faster: Score,
    newest: Option<SampleTime>,
    /// Half the mean square of the logarithm of a batch over the one before: the variance of independent noise, whatever
    /// the speed does meanwhile. And the number of batches, up to [`NEWEST`], that it is the mean of.
    variance: (f64, u32),
    /// Spread of the batches around their median, which sees slow changes too; as of less than [`LOOK`] batches ago.
    around: f64,
    /// Batches until it is looked at again.
    unseen: usize,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            warmup_left: WARMUP,
            times: RunningMedian::new(NEWEST),
            slower: Score::default(),
            faster: Score::default(),
            newest: None,
            variance: (0.0, 0),
            around: 0.0,
            unseen: LOOK,
        }
    }
}

impl Segment {
    /// Takes in a batch. `noise` is that of the node and its peers; the node's part of it is kept up to date. If the speed has
    /// changed, returns the number of batches since, this one included.
    pub(crate) fn push(&mut self, time: SampleTime, noise: &mut Noise) -> Option<usize> {
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            return None;
        }
        if let Some(before) = self.newest.replace(time) {
            let change = ratio(time, before).ln().clamp(-NOISE_MAX, NOISE_MAX);
            let (mean, batches) = self.variance;
            let batches_now = (batches + 1).min(NEWEST as u32);
            let now = (mean + (change * change / 2.0 - mean) / f64::from(batches_now), batches_now);
            noise.replace(self.variance, now);
            self.variance = now;
            self.unseen -= 1;
        }
        let reference = self.times.get().filter(|_| self.times.len() >= REFERENCE_MIN);
        self.times.push(time);
        if self.unseen == 0 {
            (self.around, self.unseen) = (self.spread_around_median(), LOOK);
        }
        let reference = reference?;
        let distance = ratio(time, reference).ln();
        let spread = self.spread(noise);
        // Each score is fed, whatever the other one says.
        let (slower, faster) = (self.slower.push(distance, spread), self.faster.push(-distance, spread));
        if !(slower || faster) {
            return None;
        }
        let score = if slower { self.slower } else { self.faster };
        let since = self.since_change(reference, score.batches);
        self.times.keep_newest(since);
        (self.slower, self.faster) = (Score::default(), Score::default());
        self.around = 0.0;
        Some(since)
    }

    /// Newest batches that are best told apart from the segment before, of those since the score was 0 last: noise may have
    /// raised the score before the speed changed.
    fn since_change(&self, reference: SampleTime, most: usize) -> usize {
        let (mut sum, mut best, mut since) = (0.0, f64::NEG_INFINITY, ESTIMATE_MIN);
        for (batches, time) in (1..=most.max(ESTIMATE_MIN)).zip(self.times.newest_first()) {
            sum += ratio(*time, reference).ln();
            #[allow(clippy::cast_precision_loss, reason = "a number of batches")]
            let likelihood = sum * sum / batches as f64;
            if batches >= ESTIMATE_MIN && likelihood > best {
                (best, since) = (likelihood, batches);
            }
        }
        since
    }

    /// The node left: its part of the noise goes.
    pub(crate) fn leave(&mut self, noise: &mut Noise) {
        noise.replace(std::mem::replace(&mut self.variance, (0.0, 0)), (0.0, 0));
    }

    /// What the batches say; `None` before the second one.
    pub(crate) fn estimate(&self, noise: &Noise) -> Option<PaceEstimate> {
        let sample_time = self.times.get().filter(|_| self.times.len() >= ESTIMATE_MIN)?.duration();
        let batches = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        Some(PaceEstimate { sample_time, spread: self.spread(noise), batches })
    }

    /// Standard deviation of the logarithm of one batch's time: the node's own, drawn towards that of its peers while it
    /// has few batches.
    pub(crate) fn spread(&self, noise: &Noise) -> f64 {
        /// Batches that what the peers say counts for.
        const PEERS: f64 = 8.0;
        let (own, batches) = (self.variance.0, f64::from(self.variance.1));
        let variance = (own * batches + noise.variance() * PEERS) / (batches + PEERS);
        variance.sqrt().max(self.around).max(SPREAD_MIN)
    }

    /// Median deviation from the median, scaled to the standard deviation of normal noise; 0 of few batches.
    fn spread_around_median(&self) -> f64 {
        const TO_DEVIATION: f64 = 1.4826;
        let times = self.times.ascending();
        if times.len() < 2 * REFERENCE_MIN {
            return 0.0;
        }
        // From the middle outwards: what is nearer to the median comes first, until half of the batches were met.
        let middle = (times.len() - 1) / 2;
        let (mut low, mut high, mut deviation) = (middle, middle + 1, 1.0);
        while high - low <= times.len() / 2 {
            let below = low.checked_sub(1).map_or(f64::INFINITY, |low| ratio(times[middle], times[low]));
            let above = times.get(high).map_or(f64::INFINITY, |above| ratio(*above, times[middle]));
            if below < above {
                (low, deviation) = (low - 1, below);
            } else {
                (high, deviation) = (high + 1, above);
            }
        }
        deviation.ln() * TO_DEVIATION
    }
}

#[allow(clippy::cast_precision_loss, reason = "a ratio")]
fn ratio(time: SampleTime, reference: SampleTime) -> f64 {
    time.0.max(1) as f64 / reference.0.max(1) as f64
}

#[cfg(test)]
mod tests;
