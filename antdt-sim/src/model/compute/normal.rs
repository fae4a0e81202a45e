//! Noise that is normally distributed.

use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId};

use crate::model::{Compute, Host, scaled};

/// A compute model that multiplies the times of another model by a factor from a normal distribution with
/// mean 1.
///
/// The distribution is cut at 0 and, so that the mean stays what it is, at 2.
#[derive(Debug, Clone)]
pub struct Normal<C> {
    mean: C,
    variation: f64,
}

impl<C: Compute> Normal<C> {
    /// Returns the model `mean` with noise. `variation` is the standard deviation of the factor before the
    /// cut.
    ///
    /// # Errors
    /// If `variation` is not between 0 and 1: beyond, most of the distribution would be cut.
    pub fn new(mean: C, variation: f64) -> Result<Self, InvalidValue> {
        if !(0.0..=1.0).contains(&variation) {
            let remedy = "between 0 and 1; for more, take a log-normal distribution";
            return Err(InvalidValue::new("variation", variation, remedy));
        }
        Ok(Self { mean, variation })
    }
}

impl<C: Compute> Compute for Normal<C> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        scaled(self.mean.time(at, holder, samples, rng), factor(self.variation, rng))
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        self.mean.device(node)
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        self.mean.batch_size_max(node)
    }

    fn moved(&mut self, node: NodeId, host: Host) {
        self.mean.moved(node, host);
    }
}

fn factor(variation: f64, rng: &mut DetRng) -> f64 {
    // With a variation of 1, a draw is between the cuts two times out of three.
    let factor = (0..64).map(|_| 1.0 + variation * rng.normal()).find(|factor| (0.0..=2.0).contains(factor));
    factor.unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::testing::{SECOND, moments};

    #[test]
    fn the_mean_stays_and_the_deviation_is_that_of_the_cut_distribution() {
        // Standard deviation of a normal distribution cut at a deviations either way: 1 - 2 a phi(a) / (2 Phi(a) - 1).
        for (variation, deviation) in [(0.0, 0.0), (0.1, 0.1), (0.2, 0.2), (1.0, 0.5396)] {
            let (mean, seen) = moments(&mut Normal::new(SECOND, variation).unwrap(), 40_000);
            assert!((mean - 1.0).abs() < 0.01, "mean {mean} with {variation}");
            assert!((seen - deviation).abs() <= 0.01, "deviation {seen} with {variation}");
        }
    }

    #[test]
    fn a_variation_that_would_be_cut_is_refused() {
        for variation in [-0.1, 1.1, f64::NAN] {
            let error = Normal::new(SECOND, variation).unwrap_err().to_string();
            assert!(error.ends_with("take a log-normal distribution"), "{error}");
        }
    }
}
