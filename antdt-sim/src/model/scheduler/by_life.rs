//! First starts by one model, restarts by another.

use std::time::Duration;

use antdt_core::{DetRng, Holder, JobTime};

use crate::model::Scheduler;

/// A scheduler model with separate models for the first start of a node and for its restarts.
#[derive(Debug, Clone)]
pub struct ByLife<F, R> {
    /// Model of the first start of each node.
    pub first: F,
    /// Model of the starts of all later incarnations.
    pub restarts: R,
}

impl<F: Scheduler, R: Scheduler> Scheduler for ByLife<F, R> {
    fn start(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Option<Duration> {
        match life.incarnation.0 {
            0 => self.first.start(at, life, rng),
            _ => self.restarts.start(at, life, rng),
        }
    }

    fn ready(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Duration {
        match life.incarnation.0 {
            0 => self.first.ready(at, life, rng),
            _ => self.restarts.ready(at, life, rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId, Seed};

    use super::*;
    use crate::model::scheduler::Constant;

    #[test]
    fn only_the_first_life_starts_by_the_first_model() {
        let mut scheduler = ByLife { first: Constant::IMMEDIATE, restarts: Constant(Duration::from_secs(5)) };
        let mut start = |life| {
            let life = Holder::new(NodeId::worker(0), Incarnation(life));
            scheduler.start(JobTime::ZERO, life, &mut Seed(0).rng()).unwrap().as_secs()
        };
        assert_eq!([start(0), start(1), start(2)], [0, 5, 5]);
    }
}
