//! [`CommitRate`]: how many samples a job commits in a second.

use std::collections::VecDeque;
use std::time::Duration;

use antdt_core::JobTime;

/// Length of time that the rate is taken over.
const WINDOW: Duration = Duration::from_secs(10);

/// Samples that are committed in a second, of late.
#[derive(Debug, Default)]
pub(super) struct CommitRate {
    /// When how many were committed; the first entry is `WINDOW` old, or the last one before the first commit.
    seen: VecDeque<(JobTime, u64)>,
}

impl CommitRate {
    /// Notes how many samples are `committed` by now. Returns samples per second.
    #[allow(clippy::cast_precision_loss, reason = "samples of ten seconds")]
    pub(super) fn at(&mut self, now: JobTime, committed: u64) -> f64 {
        // Nothing has been trained yet, or what was is undone.
        if self.seen.back().is_none_or(|(_, before)| *before == 0 && committed == 0 || committed < *before) {
            self.seen.clear();
        }
        self.seen.push_back((now, committed));
        while self.seen.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) {
            self.seen.pop_front();
        }
        let (from, before) = self.seen[0];
        let seconds = now.since(from).as_secs_f64();
        if seconds > 0.0 { (committed - before) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_rate_is_that_of_ten_seconds_without_the_start_and_without_undone_samples() {
        let mut rate = CommitRate::default();
        let mut at = |seconds, committed| rate.at(JobTime::ZERO + Duration::from_secs(seconds), committed);
        let start: Vec<f64> = [(0, 0), (30, 0), (31, 100), (32, 150)].map(|(s, n)| at(s, n)).into();
        assert_eq!(start, [0.0, 0.0, 100.0, 75.0], "thirty seconds of start do not count");
        let last: Vec<f64> = (33..60).map(|second| at(second, 150 + 10 * (second - 32))).collect();
        assert_eq!(last.last(), Some(&10.0));
        assert_eq!((at(60, 40), at(61, 60)), (0.0, 20.0), "after a rollback");
        assert_eq!(at(90, 60), 0.0, "a job that stands still");
    }
}
