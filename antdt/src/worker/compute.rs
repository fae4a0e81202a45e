//! The gradient of a batch, at the machine's speed or at an emulated one.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use antdt_agent::{Batch, Gradient, StepStats, TrainError, Trainer};
use antdt_core::{Holder, ParamLayout};

use crate::job::JobSpec;

/// How fast this worker appears to be.
#[derive(Debug, Clone)]
pub(super) struct Pacing {
    spec: JobSpec,
    holder: Holder,
    job_start: Duration,
}

impl Pacing {
    /// The pacing of one life of a worker in a job that began `job_start` after the Unix epoch.
    pub(super) const fn new(spec: JobSpec, holder: Holder, job_start: Duration) -> Self {
        Self { spec, holder, job_start }
    }

    /// How long a batch of `samples` must take that really took `real`.
    fn target(&self, samples: u64, real: Duration) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = now.saturating_sub(self.job_start);
        let slowdown = self.spec.slowdown(self.holder.node.index, self.holder.incarnation.0, at);
        #[allow(clippy::cast_precision_loss, reason = "a batch is far smaller than 2^53")]
        let seconds = match self.spec.emulate_speed {
            Some(speed) => samples as f64 / speed * slowdown,
            None => real.as_secs_f64() * slowdown,
        };
        // Slower than any duration can say is for ever.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// A trainer and its pacing.
pub(super) struct Compute {
    trainer: Box<dyn Trainer>,
    pacing: Pacing,
    /// Numbers of the loaded samples.
    samples: Vec<u64>,
    gradient: Gradient,
}

impl std::fmt::Debug for Compute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compute").field("layout", self.trainer.layout()).finish_non_exhaustive()
    }
}

impl Compute {
    pub(super) fn new(trainer: Box<dyn Trainer>, pacing: Pacing) -> Self {
        Self { trainer, pacing, samples: Vec::new(), gradient: Gradient::default() }
    }

    pub(super) fn trainer(&mut self) -> &mut dyn Trainer {
        &mut *self.trainer
    }

    pub(super) fn layout(&self) -> &ParamLayout {
        self.trainer.layout()
    }

    /// Reads the samples of a batch. Returns the rows it touches, ascending.
    pub(super) fn load(&mut self, batch: &Batch) -> Result<&[u64], TrainError> {
        self.samples.clear();
        self.samples.extend(batch.samples());
        if self.samples.is_empty() { Ok(&[]) } else { self.trainer.load(&self.samples) }
    }

    /// Computes the gradient of the loaded batch, then waits until the emulated worker would be done.
    /// An empty batch has a gradient of zero and takes no time.
    pub(super) fn run(&mut self, dense: &[f32], rows: &[f32]) -> Result<StepStats, TrainError> {
        if self.samples.is_empty() {
            // Whoever had the buffer may have taken it.
            self.gradient.dense.clear();
            self.gradient.dense.resize(self.trainer.layout().dense_len, 0.0);
            self.gradient.rows.clear();
            return Ok(StepStats::default());
        }
        let start = Instant::now();
        let stats = self.trainer.forward_backward(dense, rows, &mut self.gradient)?;
        if !stats.loss_sum.is_finite() {
            return Err(TrainError::Diverged { loss: stats.loss_sum, samples: self.samples.len() });
        }
        let real = start.elapsed();
        std::thread::sleep(self.pacing.target(self.samples.len() as u64, real).saturating_sub(real));
        Ok(stats)
    }

    /// Samples of the loaded batch.
    pub(super) const fn samples(&self) -> u64 {
        self.samples.len() as u64
    }

    /// The gradient that was computed last.
    pub(super) const fn gradient(&mut self) -> &mut Gradient {
        &mut self.gradient
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    fn pacing(settings: &[(&str, &str)]) -> Pacing {
        let mut spec = JobSpec::default();
        for (setting, text) in settings {
            spec.set(setting, text).unwrap();
        }
        Pacing::new(spec, Holder::new(NodeId::worker(0), Incarnation(0)), Duration::ZERO)
    }

    #[test]
    fn an_emulated_worker_takes_the_time_of_its_samples_times_its_slowness() {
        let second = Duration::from_secs(1);
        assert_eq!(pacing(&[("emulate-speed", "100")]).target(50, second), second / 2);
        let slow = ("straggler", "worker=0,slow=4");
        assert_eq!(pacing(&[("emulate-speed", "100"), slow]).target(50, second), second * 2);
        assert_eq!(pacing(&[slow]).target(50, second), second * 4);
    }

    #[test]
    fn a_worker_slower_than_any_duration_is_no_panic() {
        let real = Duration::from_secs(1);
        assert_eq!(pacing(&[("emulate-speed", "1e-300")]).target(50, real), Duration::MAX);
        assert_eq!(pacing(&[("straggler", "worker=0,slow=1e300")]).target(50, real), Duration::MAX);
    }
}
