//! [`Baseline`]: how fast the nodes of a class were at their best, so that it shows when all of them become slow together, which no
//! comparison among them can show: then the network, the storage or the power of the whole cluster is the cause, and no batch size
//! and no restart of one node helps.
//!
//! A value is the median over the nodes of the class at a verdict. It counts only if `SUSTAINED` of them in a row bear it out: the best is
//! the fastest that so many were no slower than, and the class is slow, or is not any more, when so many in a row are. New
//! batch sizes change the time per sample, so that a new plan begins anew.
//!
//! Source: our design.

use crate::window::SampleTime;

/// Verdicts in a row that bear out a change: those of one short window, whose batches are then all others.
const SUSTAINED: usize = 4;

/// How fast the nodes of a class were at their best, and whether they are slow now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Baseline {
    best: Option<SampleTime>,
    newest: [Option<SampleTime>; SUSTAINED],
    /// The median over the best, while the class is slow.
    slow: Option<f64>,
}

impl Baseline {
    /// Records the median at a verdict. `is_slow` decides from the ratio to the best whether that is slow.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub(crate) fn push(&mut self, median: SampleTime, is_slow: impl Fn(f64) -> bool) {
        self.newest.rotate_left(1);
        self.newest[SUSTAINED - 1] = Some(median);
        let newest: Vec<SampleTime> = self.newest.iter().flatten().copied().collect();
        let (Some(slowest), Some(fastest)) = (newest.iter().max(), newest.iter().min()) else { return };
        if newest.len() < SUSTAINED {
            return;
        }
        let best = *self.best.insert(self.best.map_or(*slowest, |best| best.min(*slowest)));
        let over = |time: SampleTime| time.0 as f64 / best.0.max(1) as f64;
        if is_slow(over(*fastest)) {
            self.slow = Some(over(median));
        } else if !is_slow(over(*slowest)) {
            self.slow = None;
        } else {
            self.slow = self.slow.map(|_| over(median));
        }
    }

    /// The median over the best, while the class is slow.
    pub(crate) const fn slowdown(&self) -> Option<f64> {
        self.slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it says after each of these medians.
    fn told(medians: &[u64]) -> Vec<Option<f64>> {
        let mut baseline = Baseline::default();
        let mut tell = |median: &u64| {
            baseline.push(SampleTime(*median), |ratio| ratio >= 1.3);
            baseline.slowdown()
        };
        medians.iter().map(&mut tell).collect()
    }

    #[test]
    fn a_class_is_slow_when_one_window_of_medians_says_so_and_until_one_says_otherwise() {
        let mut medians = vec![100; 6];
        medians.extend([200; 6]);
        medians.extend([100; 6]);
        let told = told(&medians);
        let slow: Vec<usize> = (0..told.len()).filter(|at| told[*at].is_some()).collect();
        assert_eq!(slow, (9..15).collect::<Vec<_>>(), "{told:?}");
        assert_eq!(told[9], Some(2.0));
    }

    #[test]
    fn a_pace_of_less_than_a_window_is_neither_slow_nor_the_best() {
        let mut medians = vec![100; 8];
        medians.extend([300; 3]);
        medians.extend([100; 8]);
        assert!(told(&medians).iter().all(Option::is_none));
        // Three fast ones are no proof that it can be so fast.
        let mut medians = vec![100; 8];
        medians.extend([50; 3]);
        medians.extend([100; 8]);
        assert!(told(&medians).iter().all(Option::is_none));
    }
}
