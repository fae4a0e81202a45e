//! Slow hardware: device classes that are slower than the fastest one nearly all the time.
//!
//! Nodes are compared with their own class only, so a slow class has no stragglers by that measure. Its
//! slowness is constant and no restart cures it, but a policy for mixed hardware needs to know it.

use std::collections::{BTreeMap, VecDeque};

use antdt_core::DeviceClass;

use crate::window::SampleTime;

/// Comparison of the device classes of one role, for each of the last verdicts.
#[derive(Debug, Clone)]
pub struct SlowClasses {
    most: usize,
    slow: BTreeMap<DeviceClass, VecDeque<bool>>,
}

impl SlowClasses {
    /// Share of the long window in which a class must have been slow: like a persistent straggler.
    const SHARE_PERCENT: usize = 80;

    /// Returns an empty comparison that remembers the last `most` verdicts.
    pub const fn new(most: usize) -> Self {
        Self { most, slow: BTreeMap::new() }
    }

    /// Records the median time per sample of each known class at one verdict. `is_slow` decides from the
    /// ratio to the fastest class whether a class is slow. Classes that are not in `medians` are forgotten.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn push(&mut self, medians: &BTreeMap<DeviceClass, SampleTime>, is_slow: impl Fn(f64) -> bool) {
        self.slow.retain(|class, _| medians.contains_key(class));
        let Some(fastest) = medians.values().min().filter(|fastest| fastest.0 > 0) else { return };
        for (class, median) in medians {
            let history = self.slow.entry(class.clone()).or_default();
            if history.len() == self.most {
                history.pop_front();
            }
            history.push_back(is_slow(median.0 as f64 / fastest.0 as f64));
        }
    }

    /// Returns whether the device class was slower than the fastest class at 80 % or more of as many
    /// verdicts as the comparison remembers. Verdicts that have not come yet count as not slow.
    pub fn is_slow_class(&self, class: &DeviceClass) -> bool {
        self.slow.get(class).is_some_and(|history| {
            history.iter().filter(|slow| **slow).count() * 100 >= self.most * Self::SHARE_PERCENT
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medians(cpu: u64, gpu: u64) -> BTreeMap<DeviceClass, SampleTime> {
        [("cpu", cpu), ("gpu", gpu)].map(|(name, time)| (DeviceClass(name.into()), SampleTime(time))).into()
    }

    #[test]
    fn a_class_that_is_slow_most_of_the_time_is_slow_hardware() {
        let mut classes = SlowClasses::new(10);
        let (cpu, gpu) = (DeviceClass("cpu".into()), DeviceClass("gpu".into()));
        for beat in 0..10 {
            assert_eq!(classes.is_slow_class(&cpu), beat >= 8, "after {beat} verdicts");
            classes.push(&medians(40, 10), |ratio| ratio >= 1.3);
        }
        assert!(!classes.is_slow_class(&gpu));
        for _ in 0..3 {
            classes.push(&medians(10, 10), |ratio| ratio >= 1.3);
        }
        assert!(!classes.is_slow_class(&cpu), "three of ten were alike");
    }

    #[test]
    fn one_class_alone_is_never_slow() {
        let mut classes = SlowClasses::new(2);
        let only = BTreeMap::from([(DeviceClass::default(), SampleTime(99))]);
        for _ in 0..5 {
            classes.push(&only, |ratio| ratio >= 1.3);
        }
        assert!(!classes.is_slow_class(&DeviceClass::default()));
    }
}
