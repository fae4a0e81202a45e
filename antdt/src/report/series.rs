//! Time series that stay small however long the job is.
//!
//! A series holds at most [`POINTS_MAX`] points. When it is full, neighbours are merged two by two, and from then on
//! each point stands for twice as many batches: the whole job at an even grain, in constant space.

use serde::{Deserialize, Serialize};

/// Largest number of points in a series: more than a chart has pixels for, and a few tens of kilobytes of
/// JSON per worker.
pub const POINTS_MAX: usize = 1000;

/// Batches of one worker over time, in at most [`POINTS_MAX`] points.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchSeries {
    points: Vec<BatchPoint>,
    #[serde(skip)]
    grain: Grain,
}

/// A point of a worker's series: one batch, or the mean of several consecutive ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchPoint {
    /// Time at which the first of the batches ended, in seconds since the job began.
    pub time_s: f64,
    /// Number of batches that the point stands for.
    pub batches: u64,
    /// Mean time from "batch in memory" to "gradient ready", in seconds.
    pub compute_s: f64,
    /// Mean time of a whole batch: data wait, compute, communication and waiting for peers, in seconds.
    pub batch_s: f64,
    /// Batch size in force at the last of the batches, in samples.
    pub batch_size: u32,
    /// Number of samples in all of the batches.
    pub samples: u64,
}

/// Mean training loss over time, in at most [`POINTS_MAX`] points.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LossSeries {
    points: Vec<LossPoint>,
    #[serde(skip)]
    grain: Grain,
}

/// A point of a loss series: one step, or the mean of several consecutive ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    /// Time at which the first of the steps ended, in seconds since the job began.
    pub time_s: f64,
    /// Number of steps that the point stands for.
    pub steps: u64,
    /// Number of samples in all of the steps.
    pub samples: u64,
    /// Mean loss over those samples.
    pub loss: f64,
}

impl BatchSeries {
    /// Adds one batch. Batches must come in order of time.
    pub fn push(&mut self, time_s: f64, compute_s: f64, batch_s: f64, batch_size: u32, samples: u64) {
        let point = BatchPoint { time_s, batches: 1, compute_s, batch_s, batch_size, samples };
        push_thinned(&mut self.points, &mut self.grain, point, BatchPoint::merged);
    }

    /// Returns the points, in order of time.
    pub fn points(&self) -> &[BatchPoint] {
        &self.points
    }
}

impl BatchPoint {
    #[allow(clippy::cast_precision_loss, reason = "weights of a mean")]
    fn merged(&self, later: &Self) -> Self {
        let (a, b) = (self.batches as f64, later.batches as f64);
        let mean = |x: f64, y: f64| (x * a + y * b) / (a + b);
        Self {
            time_s: self.time_s,
            batches: self.batches + later.batches,
            compute_s: mean(self.compute_s, later.compute_s),
            batch_s: mean(self.batch_s, later.batch_s),
            batch_size: later.batch_size,
            samples: self.samples + later.samples,
        }
    }
}

impl LossSeries {
    /// Adds one step's mean loss over `samples` samples; a step without samples or without a finite loss is
    /// left out.
    ///
    /// Reports of several workers arrive in any order: one that is older than the newest point is merged into
    /// it.
    pub fn push(&mut self, time_s: f64, samples: u64, loss: f64) {
        if samples == 0 || !loss.is_finite() {
            return;
        }
        let point = LossPoint { time_s, steps: 1, samples, loss };
        match self.points.last_mut() {
            Some(last) if time_s <= last.time_s => *last = last.merged(&point),
            _ => push_thinned(&mut self.points, &mut self.grain, point, LossPoint::merged),
        }
    }

    /// Returns the points, in order of time.
    pub fn points(&self) -> &[LossPoint] {
        &self.points
    }
}

impl LossPoint {
    #[allow(clippy::cast_precision_loss, reason = "weights of a mean")]
    fn merged(&self, later: &Self) -> Self {
        let (a, b) = (self.samples as f64, later.samples as f64);
        let loss = (self.loss * a + later.loss * b) / (a + b);
        Self {
            time_s: self.time_s,
            steps: self.steps + later.steps,
            samples: self.samples + later.samples,
            loss,
        }
    }
}

/// How many batches or steps a new point stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Grain {
    /// Times the series was halved: a point stands for two to this power.
    halvings: u32,
    /// How many more the newest point takes.
    room: u64,
}

/// Adds a point, or merges it into the newest one. A full series is halved first.
fn push_thinned<P: Copy>(points: &mut Vec<P>, grain: &mut Grain, point: P, merge: fn(&P, &P) -> P) {
    if let Some(last) = points.last_mut()
        && grain.room > 0
    {
        *last = merge(last, &point);
        grain.room -= 1;
        return;
    }
    if points.len() >= POINTS_MAX {
        *points = points.chunks(2).map(|pair| pair[1..].iter().fold(pair[0], |a, b| merge(&a, b))).collect();
        grain.halvings += 1;
    }
    points.push(point);
    grain.room = (1 << grain.halvings) - 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_series_keeps_every_batch() {
        let mut series = BatchSeries::default();
        for i in 0..POINTS_MAX {
            series.push(i as f64, 0.1, 0.2, 64, 64);
        }
        assert_eq!(series.points().len(), POINTS_MAX);
        assert!(series.points().iter().all(|p| p.batches == 1 && p.samples == 64));
    }

    #[test]
    fn a_long_series_stays_small_and_loses_no_sample() {
        let mut series = BatchSeries::default();
        let n = 123_457_u64;
        for i in 0..n {
            series.push(i as f64, if i % 2 == 0 { 0.1 } else { 0.3 }, 0.5, 10, 10);
        }
        let points = series.points();
        assert!(points.len() <= POINTS_MAX && points.len() > POINTS_MAX / 3, "{}", points.len());
        assert_eq!(points.iter().map(|p| p.samples).sum::<u64>(), n * 10);
        assert_eq!(points.iter().map(|p| p.batches).sum::<u64>(), n);
        assert!(points.windows(2).all(|w| w[0].time_s < w[1].time_s));
        assert!((points[0].compute_s - 0.2).abs() < 1e-9);
    }

    #[test]
    fn the_loss_is_weighted_by_samples() {
        let mut series = LossSeries::default();
        series.push(0.0, 0, 0.5);
        series.push(0.0, 1, f64::NAN);
        for i in 0..=POINTS_MAX {
            series.push(i as f64, if i == 0 { 3 } else { 1 }, if i == 0 { 1.0 } else { 0.2 });
        }
        let first = series.points()[0];
        assert_eq!(first.samples, 4);
        assert!((first.loss - 0.8).abs() < 1e-12);
    }

    #[test]
    fn a_late_report_is_merged_so_that_time_never_goes_back() {
        let mut series = LossSeries::default();
        for (time, loss) in [(1.0, 0.5), (3.0, 0.2), (2.0, 0.4), (4.0, 0.1)] {
            series.push(time, 10, loss);
        }
        let points = series.points();
        assert!(points.windows(2).all(|w| w[0].time_s < w[1].time_s));
        assert_eq!((points[1].steps, points[1].samples), (2, 20));
        assert!((points[1].loss - 0.3).abs() < 1e-12);
    }
}
