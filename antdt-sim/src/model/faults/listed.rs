//! Faults at known times.

use std::collections::VecDeque;

use antdt_core::{DetRng, JobTime};

use crate::model::{Fault, Faults};

/// A fault model with the faults of a list. The default list is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listed {
    left: VecDeque<(JobTime, Fault)>,
}

impl Listed {
    /// Returns a model with these faults, in any order. Faults of the same time happen in the order given.
    pub fn new(faults: impl IntoIterator<Item = (JobTime, Fault)>) -> Self {
        let mut faults: Vec<_> = faults.into_iter().collect();
        faults.sort_by_key(|(at, _)| *at);
        Self { left: faults.into() }
    }

    /// Returns the faults that have not happened yet, in order of time.
    pub fn left(&self) -> impl Iterator<Item = &(JobTime, Fault)> {
        self.left.iter()
    }
}

impl Faults for Listed {
    fn next(&mut self, _rng: &mut DetRng) -> Option<(JobTime, Fault)> {
        self.left.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{NodeId, Seed};

    use super::*;

    #[test]
    fn faults_come_in_order_of_time_and_then_no_more() {
        let crash = |index| Fault::Crash(NodeId::worker(index));
        let mut faults =
            Listed::new([(JobTime(5), crash(0)), (JobTime(3), crash(1)), (JobTime(5), crash(2))]);
        let mut rng = Seed(0).rng();
        let order: Vec<_> = std::iter::from_fn(|| faults.next(&mut rng)).collect();
        assert_eq!(order, [(JobTime(3), crash(1)), (JobTime(5), crash(0)), (JobTime(5), crash(2))]);
        assert_eq!(Listed::default().next(&mut rng), None);
    }
}
