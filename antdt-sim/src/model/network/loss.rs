//! Messages that never arrive.

use std::time::Duration;

use antdt_core::{DetRng, InvalidValue, JobTime};

use crate::model::{Collective, Network, Site};

/// A network model that loses messages of another one.
///
/// The sender must repeat a lost message. Collectives lose nothing, because their connections repeat what was
/// lost.
#[derive(Debug, Clone)]
pub struct Loss<N> {
    network: N,
    share: f64,
    until: JobTime,
}

impl<N: Network> Loss<N> {
    /// Returns the model `network`, in which this share of all messages is lost.
    ///
    /// # Errors
    /// If the share is not between 0 and 1.
    pub fn new(network: N, share: f64) -> Result<Self, InvalidValue> {
        if !(0.0..=1.0).contains(&share) {
            return Err(InvalidValue::new("loss", share, "a share between 0 and 1, such as 0.01"));
        }
        Ok(Self { network, share, until: JobTime::NEVER })
    }

    /// Returns the same model, except that no message that is sent from `until` on is lost.
    #[must_use]
    pub fn until(self, until: JobTime) -> Self {
        Self { until, ..self }
    }
}

impl<N: Network> Network for Loss<N> {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        rng: &mut DetRng,
    ) -> Option<JobTime> {
        // It uses the network all the same.
        let arrival = self.network.message(at, from, to, bytes, rng);
        if rng.unit() < self.share && at < self.until { None } else { arrival }
    }

    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        self.network.collective(at, operation, world, rng)
    }
    fn transfer(&self, at: JobTime, from: Site, to: Site, bytes: u64) -> Option<Duration> {
        self.network.transfer(at, from, to, bytes)
    }

    fn form(&mut self, at: JobTime, world: u32, rng: &mut DetRng) -> Duration {
        self.network.form(at, world, rng)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;
    use crate::model::network::AlphaBeta;

    #[test]
    fn the_share_asked_for_is_lost() {
        let mut rng = Seed(5).rng();
        for (share, least, most) in [(0.0, 0, 0), (0.1, 900, 1_100), (1.0, 10_000, 10_000)] {
            let mut network = Loss::new(AlphaBeta::default(), share).unwrap();
            let lost = (0..10_000)
                .filter(|_| network.message(JobTime::ZERO, Site::Master, Site::Master, 8, &mut rng).is_none())
                .count();
            assert!((least..=most).contains(&lost), "{lost} of {share}");
        }
        let mut healed = Loss::new(AlphaBeta::default(), 1.0).unwrap().until(JobTime(5));
        let mut arrives = |at| healed.message(JobTime(at), Site::Master, Site::Master, 8, &mut rng).is_some();
        assert_eq!((arrives(4), arrives(5)), (false, true));
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(Loss::new(AlphaBeta::default(), share).unwrap_err().to_string().starts_with("loss = "));
        }
    }
}
