//! Adaptive timeouts: how long a call waits for the other members, learned from the calls so far.
//!
//! No constant fits all jobs: it would be too short for a slow network, or minutes too long where a step
//! takes milliseconds. The limit is `median + k·max(1.48·MAD, median)` of the last calls of about the same
//! length, within bounds that the caller gives. 1.48·MAD estimates a standard deviation without being moved
//! by the outliers it is to find; the median stands in for it where all calls took the same time, so that a
//! member which becomes `k` times slower is waited for.
//!
//! Source: users' request in hivemind's issue 676 (recalled in our specification); the rule is our design.

use std::time::Duration;

/// Calls that are remembered of each length.
const WINDOW: usize = 32;
/// Calls before anything is concluded from them.
const FEWEST: u32 = 8;
/// Calls between two conclusions.
const EVERY: u32 = 8;
/// Lengths are told apart by their power of two.
const CLASSES: usize = 48;
/// Standard deviations in a median absolute deviation, of what is distributed normally.
const NORMAL: f32 = 1.4826;

/// Learned timeouts: the durations of recent collective calls by length, and the timeout that follows from
/// them.
#[derive(Debug, Clone)]
pub struct Patience {
    factor: f32,
    classes: Vec<Option<Box<Class>>>,
}

#[derive(Debug, Clone)]
struct Class {
    seconds: [f32; WINDOW],
    count: u32,
    // In seconds; `None` before anything is known.
    limit: Option<f32>,
}

impl Patience {
    /// Returns an estimator that has observed no call. `factor` is `k` in the [formula](self).
    pub fn new(factor: f64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a factor, not a measurement")]
        let factor = factor as f32;
        Self { factor, classes: vec![None; CLASSES] }
    }

    /// Records that a call with `bytes` bytes took the time `took`.
    pub fn observe(&mut self, bytes: usize, took: Duration) {
        let class = self.classes[class_of(bytes)]
            .get_or_insert_with(|| Box::new(Class { seconds: [0.0; WINDOW], count: 0, limit: None }));
        class.seconds[class.count as usize % WINDOW] = took.as_secs_f32();
        class.count = class.count.wrapping_add(1);
        if class.count >= FEWEST && class.count.is_multiple_of(EVERY) {
            let known = WINDOW.min(class.count as usize);
            let middle = median(&mut class.seconds[..known].to_vec());
            let mut deviations: Vec<f32> =
                class.seconds[..known].iter().map(|seconds| (seconds - middle).abs()).collect();
            class.limit = Some(middle + self.factor * (NORMAL * median(&mut deviations)).max(middle));
        }
    }

    /// Returns the timeout for a call with `bytes` bytes: between `least` and `most`, and `most` while too
    /// few calls of about this length were observed.
    pub fn limit(&self, bytes: usize, least: Duration, most: Duration) -> Duration {
        let known = self.classes[class_of(bytes)].as_ref().and_then(|class| class.limit);
        // What is no number of seconds is beyond `most`.
        let limit = known.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
        limit.map_or(most, |limit| limit.max(least).min(most))
    }
}

const fn class_of(bytes: usize) -> usize {
    let class = (usize::BITS - bytes.leading_zeros()) as usize;
    if class < CLASSES { class } else { CLASSES - 1 }
}

fn median(values: &mut [f32]) -> f32 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(1);
    const MOST: Duration = Duration::from_secs(60);

    fn after(seconds: impl IntoIterator<Item = f64>) -> Duration {
        let mut patience = Patience::new(10.0);
        for seconds in seconds {
            patience.observe(1000, Duration::from_secs_f64(seconds));
        }
        patience.limit(1000, LEAST, MOST)
    }

    #[test]
    fn nothing_is_concluded_from_a_few_calls_or_from_calls_of_another_length() {
        assert_eq!(after([0.1; 7]), MOST);
        let mut patience = Patience::new(10.0);
        for _ in 0..100 {
            patience.observe(1000, Duration::from_millis(1));
        }
        assert_eq!(patience.limit(1 << 20, LEAST, MOST), MOST);
        assert_eq!(patience.limit(usize::MAX, LEAST, MOST), MOST);
    }

    #[test]
    fn equal_calls_are_waited_for_as_if_they_could_become_k_times_slower() {
        let limit = after([0.1; 16]).as_secs_f64();
        assert!((limit - 1.1).abs() < 1e-3, "{limit}");
    }

    #[test]
    fn an_outlier_moves_nothing_and_a_wide_spread_does() {
        let one = after((0..31).map(|i| if i == 3 { 50.0 } else { 0.1 }));
        assert!(one < Duration::from_millis(1200), "{one:?}");
        // Half of the calls take ten times as long as the others: the deviation is larger than the median then.
        let wide = after((0..32).map(|i| if i % 2 == 0 { 0.01 } else { 1.0 }));
        assert!(wide > Duration::from_secs(10), "{wide:?}");
    }

    #[test]
    fn calls_of_long_ago_are_forgotten() {
        let slow_then_fast = after([2.0; 32].into_iter().chain([0.1; 32]));
        assert!(slow_then_fast < Duration::from_secs(2), "{slow_then_fast:?}");
    }

    #[test]
    fn the_bounds_hold_after_any_calls() {
        assert_eq!(after([1e-9; 16]), LEAST);
        assert_eq!(after([1e6; 16]), MOST);
        assert_eq!(after([1e18; 16]), MOST);
    }
}
