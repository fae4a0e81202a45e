//! The same time for each sample.

use std::time::Duration;

use antdt_core::{DetRng, Holder, InvalidValue, JobTime};

use crate::model::{Compute, at_least, seconds};

/// A compute model without noise: a batch takes a fixed time, and a time for each sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Constant {
    /// Time of a batch that does not depend on its number of samples.
    pub fixed: Duration,
    /// Time that each sample takes.
    pub per_sample: Duration,
}

impl Constant {
    /// Returns the model of a worker that computes this many samples per second, as `antdt run --emulate-speed` does.
    ///
    /// # Errors
    /// If the speed is not above 0.
    pub fn speed(samples_per_second: f64) -> Result<Self, InvalidValue> {
        let remedy = "a number of samples per second of at least 0.000001, such as 1000";
        let speed = at_least("speed", samples_per_second, 1e-6, remedy)?;
        Ok(Self { fixed: Duration::ZERO, per_sample: seconds(1.0 / speed) })
    }
}

impl Compute for Constant {
    fn time(&mut self, _at: JobTime, _holder: Holder, samples: u64, _rng: &mut DetRng) -> Duration {
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        self.fixed.saturating_add(self.per_sample.saturating_mul(samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::testing::time;

    #[test]
    fn a_batch_takes_its_fixed_part_and_that_of_its_samples() {
        let mut compute = Constant { fixed: Duration::from_millis(5), per_sample: Duration::from_micros(10) };
        assert_eq!(time(&mut compute, 0, 100), Duration::from_millis(6));
        assert_eq!(time(&mut Constant::speed(4.0).unwrap(), 0, 2), Duration::from_millis(500));
    }

    #[test]
    fn no_size_and_no_speed_overflows() {
        let mut compute = Constant { fixed: Duration::MAX, per_sample: Duration::MAX };
        assert_eq!(time(&mut compute, 0, u64::MAX), Duration::MAX);
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300] {
            assert!(Constant::speed(speed).unwrap_err().to_string().starts_with("speed = "));
        }
        assert_eq!(time(&mut Constant::speed(f64::MAX).unwrap(), 0, 5), Duration::ZERO);
    }
}
