//! Starts that never come to anything.

use std::time::Duration;

use antdt_core::{DetRng, Holder, InvalidValue, JobTime};

use crate::model::Scheduler;

/// A scheduler model that loses some starts of another one, as by a quota, a broken image or a host that
/// hangs.
#[derive(Debug, Clone)]
pub struct Refusing<S> {
    scheduler: S,
    share: f64,
}

impl<S: Scheduler> Refusing<S> {
    /// Returns the model `scheduler`, in which this share of all starts is refused; 1 refuses all.
    ///
    /// # Errors
    /// If the share is not between 0 and 1.
    pub fn new(scheduler: S, share: f64) -> Result<Self, InvalidValue> {
        if !(0.0..=1.0).contains(&share) {
            return Err(InvalidValue::new("refused", share, "a share between 0 and 1, such as 0.1"));
        }
        Ok(Self { scheduler, share })
    }
}

impl<S: Scheduler> Scheduler for Refusing<S> {
    fn start(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Option<Duration> {
        let time = self.scheduler.start(at, life, rng);
        if rng.unit() < self.share { None } else { time }
    }

    fn ready(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Duration {
        self.scheduler.ready(at, life, rng)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId, Seed};

    use super::*;
    use crate::model::scheduler::Constant;

    #[test]
    fn the_share_asked_for_is_refused() {
        let life = Holder::new(NodeId::worker(0), Incarnation(0));
        let mut rng = Seed(6).rng();
        for (share, least, most) in [(0.0, 0, 0), (0.25, 2_300, 2_700), (1.0, 10_000, 10_000)] {
            let mut scheduler = Refusing::new(Constant::IMMEDIATE, share).unwrap();
            let refused =
                (0..10_000).filter(|_| scheduler.start(JobTime::ZERO, life, &mut rng).is_none()).count();
            assert!((least..=most).contains(&refused), "{refused} of {share}");
        }
        assert!(
            Refusing::new(Constant::IMMEDIATE, 1.5).unwrap_err().to_string().starts_with("refused = 1.5")
        );
    }
}
