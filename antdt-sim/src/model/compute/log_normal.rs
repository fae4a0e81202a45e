//! Noise with a long tail.

use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId};

use crate::model::{Compute, Host, at_least, scaled};

/// A compute model that multiplies the times of another model by a factor from a log-normal distribution with
/// mean 1.
#[derive(Debug, Clone)]
pub struct LogNormal<C> {
    mean: C,
    // Of the factor's logarithm.
    location: f64,
    deviation: f64,
}

impl<C: Compute> LogNormal<C> {
    /// Returns the model `mean` with noise. `variation` is the standard deviation of the factor.
    ///
    /// # Errors
    /// If `variation` is not between 0 and 100.
    pub fn new(mean: C, variation: f64) -> Result<Self, InvalidValue> {
        let remedy = "between 0 and 100, such as 0.2";
        if at_least("variation", variation, 0.0, remedy)? > 100.0 {
            return Err(InvalidValue::new("variation", variation, remedy));
        }
        // A log-normal variable of mean 1 and variance v has a logarithm of variance ln(1 + v) and half of that below 0.
        let variance = variation.mul_add(variation, 1.0).ln();
        Ok(Self { mean, location: -variance / 2.0, deviation: variance.sqrt() })
    }
}

impl<C: Compute> Compute for LogNormal<C> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        let factor = self.deviation.mul_add(rng.normal(), self.location).exp();
        scaled(self.mean.time(at, holder, samples, rng), factor)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::testing::{SECOND, moments};

    #[test]
    fn mean_and_deviation_are_those_asked_for() {
        for variation in [0.0, 0.1, 0.5, 1.0] {
            let (mean, seen) = moments(&mut LogNormal::new(SECOND, variation).unwrap(), 100_000);
            assert!((mean - 1.0).abs() < 0.01, "mean {mean} with {variation}");
            assert!((seen - variation).abs() <= variation * 0.05, "deviation {seen} with {variation}");
        }
    }

    #[test]
    fn a_variation_that_is_none_is_refused() {
        for variation in [-0.1, 101.0, f64::NAN, f64::INFINITY] {
            let error = LogNormal::new(SECOND, variation).unwrap_err().to_string();
            assert!(error.starts_with("variation = ") && error.contains("between 0 and 100"), "{error}");
        }
    }
}
