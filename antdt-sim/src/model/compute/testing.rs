//! Helpers of the tests of compute models.

use std::time::Duration;

use antdt_core::{Holder, Incarnation, JobTime, NodeId, Seed};

use super::Constant;
use crate::model::Compute;

/// A second, whatever the batch.
pub(super) const SECOND: Constant = Constant { fixed: Duration::from_secs(1), per_sample: Duration::ZERO };

/// The given life of the worker with this index.
pub(super) const fn worker(index: u32, life: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(life))
}

/// The time of one batch of the first worker that begins `at_s` seconds after the job.
pub(super) fn time(compute: &mut dyn Compute, at_s: u64, samples: u64) -> Duration {
    time_of(compute, worker(0, 0), at_s, samples)
}

/// The time of one batch of `holder`.
pub(super) fn time_of(compute: &mut dyn Compute, holder: Holder, at_s: u64, samples: u64) -> Duration {
    let at = JobTime::from_duration(Duration::from_secs(at_s));
    compute.time(at, holder, samples, &mut Seed(1).rng())
}

/// Mean and standard deviation of `count` batches of one sample, one begun each second, in seconds.
pub(super) fn moments(compute: &mut dyn Compute, count: u32) -> (f64, f64) {
    let mut rng = Seed(7).rng();
    let (mut sum, mut squares) = (0.0, 0.0);
    for second in 0..count {
        let at = JobTime::from_duration(Duration::from_secs(second.into()));
        let time = compute.time(at, worker(0, 0), 1, &mut rng).as_secs_f64();
        sum += time;
        squares += time * time;
    }
    let mean = sum / f64::from(count);
    (mean, (squares / f64::from(count) - mean * mean).max(0.0).sqrt())
}
