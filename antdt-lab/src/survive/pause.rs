//! How long those that live stand still, by the ends of their batches in the report.
//!
//! The time between the ends of two batches of a worker is computing and the rest: exchange, waiting, the way to the next batch. A
//! pause is the longest rest after something happened, less the usual one, which is the median of the whole job.

use antdt::report::{BatchPoint, BatchSeries, Report};

use crate::meter::median;

/// How long after an event a pause may begin that it is the cause of, in seconds: a worker first ends the batch it is at.
const BEGINS_WITHIN: f64 = 2.0;

/// Ends of two batches that follow each other, and what of the time between was not computing, in seconds.
fn rests(series: &BatchSeries) -> impl Iterator<Item = (f64, f64, f64)> {
    series.points().windows(2).map(|pair| {
        let [BatchPoint { time_s: from, .. }, BatchPoint { time_s: to, compute_s, .. }] = *pair else {
            return (0.0, 0.0, 0.0);
        };
        (from, to, to - from - compute_s)
    })
}

/// The pause of a worker after something that happened at `at_s`, in seconds; at least 0. A rest in which the worker itself died, at
/// one of the times `own`, is none. `None` if the worker ends no batch after that.
pub(super) fn after(series: &BatchSeries, at_s: f64, own: &[f64]) -> Option<f64> {
    let usual = median(rests(series).map(|(.., rest)| rest));
    rests(series)
        .filter(|(from, to, _)| *to >= at_s && *from <= at_s + BEGINS_WITHIN)
        .filter(|(from, to, _)| !own.iter().any(|died| (from..=to).contains(&died)))
        .map(|(.., rest)| (rest - usual).max(0.0))
        .max_by(f64::total_cmp)
}

/// The longest pause of a worker but for its first steps, whatever the reason, in seconds; at least 0. `None` if it has none.
pub(super) fn longest(series: &BatchSeries) -> Option<f64> {
    let usual = median(rests(series).map(|(.., rest)| rest));
    rests(series).skip(2).map(|(.., rest)| (rest - usual).max(0.0)).max_by(f64::total_cmp)
}

/// Time from an event until the end of the next batch that any worker begins after it, in seconds. A batch that was being
/// computed when it happened may be undone.
pub(super) fn until_next(report: &Report, at_s: f64) -> Option<f64> {
    let points = report.workers.iter().flat_map(|worker| worker.series.points());
    let begun = points.filter(|point| point.time_s - point.batch_s >= at_s);
    begun.map(|point| point.time_s - at_s).min_by(f64::total_cmp)
}

/// Time since the last end of a batch of a worker before an event, in seconds.
pub(super) fn since_last(series: &BatchSeries, at_s: f64) -> Option<f64> {
    let ends = series.points().iter().map(|point| point.time_s);
    ends.filter(|end| *end <= at_s).map(|end| at_s - end).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of 0.1 s of computing each, with so long a rest after each.
    fn series(rests: &[f64]) -> BatchSeries {
        let (mut series, mut now) = (BatchSeries::default(), 0.0);
        for rest in rests {
            now += 0.1 + rest;
            series.push(now, 0.1, 0.1 + rest, 8, 8);
        }
        series
    }

    #[test]
    fn a_pause_is_the_part_of_a_rest_beyond_the_usual() {
        let series = series(&[0.0, 0.01, 0.01, 0.51, 0.01, 0.01, 0.91, 0.01]);
        // The fourth batch ends at 0.93.
        let pause = after(&series, 0.5, &[]).unwrap();
        assert!((pause - 0.9).abs() < 1e-9, "the longest of those that begin in time: {pause}");
        let pause = after(&series, 2.0, &[]).unwrap();
        assert!((pause - 0.9).abs() < 1e-9 || pause < 1e-9, "{pause}");
        assert_eq!(after(&series, 60.0, &[]), None);
        // The rest of 0.9 s is that of its own death at 1.5 s, and says nothing of how long it waits for others.
        let pause = after(&series, 0.5, &[1.5]).unwrap();
        assert!((pause - 0.5).abs() < 1e-9, "{pause}");
    }

    #[test]
    fn the_longest_pause_is_none_of_the_first_steps() {
        let long = longest(&series(&[0.0, 3.0, 0.01, 0.01, 0.41, 0.01, 0.01])).unwrap();
        assert!((long - 0.4).abs() < 1e-9, "{long}");
        assert_eq!(longest(&series(&[0.0, 3.0])), None);
    }

    #[test]
    fn times_around_an_event_are_those_of_the_nearest_batches() {
        let mut report = Report::default();
        let worker = |rests| antdt::report::WorkerEntry { series: series(rests), ..Default::default() };
        report.workers = vec![worker(&[0.0, 0.4]), worker(&[0.0, 0.2])];
        assert!((until_next(&report, 0.05).unwrap() - 0.35).abs() < 1e-9);
        assert_eq!(until_next(&report, 0.2), None, "all had begun before");
        assert_eq!(until_next(&report, 5.0), None);
        assert!((since_last(&report.workers[0].series, 0.35).unwrap() - 0.25).abs() < 1e-9);
    }
}
