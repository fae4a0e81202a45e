//! [`MemoryBounds`]: how large a batch or micro-batch fits the memory of a device class, as far as a job has found out.
//!
//! What a node says when it registers may be too much, or nothing. A worker that ends out of memory shows that its micro-batch was
//! too large; then the bound of its class is set halfway between the largest that this class is known to have computed and the one that
//! was too much, rounded down. A bound never grows: trying again costs a process each time, and what fits depends on more than the size. A
//! smaller one is found the same way, so that the largest that fits is closed in by bisection. At the smallest batch that a node takes
//! it cannot be lowered, and the worker uses up its restarts as after any other end.
//!
//! Source: our design; bisection after doubling as the profile of the policy `dd` doubles its sizes.

use std::collections::BTreeMap;

use antdt_core::DeviceClass;

/// What is known of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    /// The largest that was computed.
    computed: u32,
    /// The largest that may be given, once one was too large.
    most: Option<u32>,
}

/// How large a batch or micro-batch fits the memory of each device class.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryBounds(BTreeMap<DeviceClass, Known>);

impl MemoryBounds {
    /// A worker of this class has computed a micro-batch of so many samples.
    pub(super) fn computed(&mut self, class: &DeviceClass, samples: u32) {
        match self.0.get_mut(class) {
            // The plan under which it was too much is no proof that it fits.
            Some(known) if known.most.is_some_and(|most| samples > most) => {}
            Some(known) => known.computed = known.computed.max(samples),
            None => {
                self.0.insert(class.clone(), Known { computed: samples, most: None });
            }
        }
    }

    /// A worker of this class ran out of memory with so many. The new bound, not below `least`; `None` if there is no lower one.
    pub(super) fn exceeded(&mut self, class: &DeviceClass, samples: u32, least: u32) -> Option<u32> {
        let known = self.0.entry(class.clone()).or_default();
        // What was too much now may have fitted before.
        known.computed = known.computed.min(samples.saturating_sub(1));
        let most = u32::midpoint(known.computed, samples).min(samples.saturating_sub(1)).max(least);
        let lower = most < samples && known.most.is_none_or(|before| most < before);
        lower.then(|| *known.most.insert(most))
    }

    /// The largest that may be given; `None` while none was too large.
    pub(super) fn most(&self, class: &DeviceClass) -> Option<u32> {
        self.0.get(class)?.most
    }

    /// Every bound, by class: what a successor of the master must know.
    pub(super) fn bounds(&self) -> Vec<(DeviceClass, u32)> {
        self.0.iter().filter_map(|(class, known)| Some((class.clone(), known.most?))).collect()
    }

    /// Sets the bounds that a master before has found.
    pub(super) fn recall(&mut self, bounds: &[(DeviceClass, u32)]) {
        for (class, most) in bounds {
            self.0.entry(class.clone()).or_default().most = Some(*most);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class() -> DeviceClass {
        DeviceClass("v100".into())
    }

    #[test]
    fn a_bound_is_halfway_to_the_size_that_failed_and_never_grows() {
        let mut bounds = MemoryBounds::default();
        bounds.computed(&class(), 32);
        assert_eq!(bounds.most(&class()), None);
        assert_eq!(bounds.exceeded(&class(), 64, 1), Some(48));
        bounds.computed(&class(), 64);
        bounds.computed(&class(), 48);
        assert_eq!(bounds.exceeded(&class(), 64, 1), None, "another worker, under the plan before");
        assert_eq!(bounds.exceeded(&class(), 48, 1), Some(47), "what fitted once was too much");
        assert_eq!(bounds.most(&DeviceClass::default()), None, "another class");
        let mut unknown = MemoryBounds::default();
        assert_eq!(unknown.exceeded(&class(), 64, 1), Some(32), "nothing is known to fit");
        assert_eq!(unknown.exceeded(&class(), 32, 24), Some(24));
        assert_eq!(unknown.exceeded(&class(), 24, 24), None, "it takes no less");
    }

    #[test]
    fn a_successor_has_the_bounds() {
        let mut bounds = MemoryBounds::default();
        bounds.exceeded(&class(), 64, 1);
        let mut successor = MemoryBounds::default();
        successor.recall(&bounds.bounds());
        assert_eq!(successor.most(&class()), Some(32));
    }

    proptest! {
        /// A worker is given the most that is allowed until that fits, whatever fits.
        #[test]
        fn the_size_that_fits_is_found_in_few_tries_and_nothing_larger_is_given_again(fits in 1..5_000_u32, first in 1..5_000_u32, begun in 0..5_000_u32) {
            let mut bounds = MemoryBounds::default();
            bounds.computed(&class(), begun.min(fits));
            let (mut given, mut tries) = (first, 0);
            while given > fits {
                tries += 1;
                let next = bounds.exceeded(&class(), given, 1).expect("one sample fits");
                prop_assert!(next < given && bounds.most(&class()) == Some(next));
                given = next;
            }
            prop_assert!(tries <= 13, "{tries} tries");
            prop_assert!(given >= begun.min(fits).min(first), "no more is given up than is known to fit");
        }
    }
}
