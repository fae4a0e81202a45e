//! [`Setting`]: the sizes of an emulated cluster, and the bandwidth that follows from its ratio of communication to computing.

use std::time::Duration;

/// Layers of the perceptron that all jobs train: numbers of a sample, hidden units, classes.
const LAYERS: [u32; 4] = [64, 128, 64, 10];

/// The job file of that model.
pub(super) const WORKLOAD: &str =
    "[workload]\nname = \"mlp\"\n\n[workload.mlp]\nfeatures = 64\nhidden = \"128,64\"\n";

/// Samples of a worker's batch.
const BATCH: u32 = 32;

/// Time from the last byte sent to the last byte received.
pub(super) const LATENCY: Duration = Duration::from_millis(1);

/// An emulated cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    pub(super) workers: u32,
    /// Workers that share an emulated host and its network card.
    pub(super) per_host: u32,
    /// Steps of all workers in a job, as samples: a job has this many global batches.
    pub(super) steps: u32,
    /// Emulated time of a gradient.
    pub(super) compute: Duration,
}

impl Setting {
    /// Bytes of the model.
    pub(super) fn model_bytes() -> u32 {
        LAYERS.windows(2).map(|layer| (layer[0] + 1) * layer[1] * 4).sum()
    }

    /// Bytes per second of a card over which the model takes `ratio` times as long as a gradient.
    pub(super) fn bandwidth(&self, ratio: f64) -> f64 {
        f64::from(Self::model_bytes()) / (ratio * self.compute.as_secs_f64())
    }

    pub(super) fn global_batch_size(&self) -> u32 {
        BATCH * self.workers
    }

    pub(super) fn samples(&self) -> u64 {
        u64::from(self.global_batch_size()) * u64::from(self.steps)
    }

    pub(super) fn hosts(&self) -> u32 {
        self.workers.div_ceil(self.per_host)
    }

    /// Samples per second of a worker that is not slow.
    pub(super) fn speed(&self) -> f64 {
        f64::from(BATCH) / self.compute.as_secs_f64()
    }

    /// Samples per second of an all-reduce over rings with the slowest worker `sigma` times slower and nothing else that takes
    /// time: each card carries `2(n-1)/n` models each way in a step.
    pub(super) fn all_reduce_bound(&self, sigma: f64, ratio: f64) -> f64 {
        let workers = f64::from(self.workers);
        let step = self.compute.as_secs_f64() * (sigma + 2.0 * (workers - 1.0) / workers * ratio);
        f64::from(self.global_batch_size()) / step
    }

    /// Steps of a worker that is `sigma` times slower over those of another one, if neither waits for another: only its gradients
    /// take longer, not what it sends. `even` is the throughput of all workers when none is slow, in samples per second.
    pub(super) fn unblocked_share(&self, sigma: f64, even: f64) -> f64 {
        let step = f64::from(self.workers) * self.speed() / even;
        step / (step + sigma - 1.0)
    }

    /// The sizes, for the name of a row.
    pub(super) fn name(&self) -> String {
        format!("{} x {} workers, {} steps of {:?}", self.hosts(), self.per_host, self.steps, self.compute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting =
        Setting { workers: 8, per_host: 4, steps: 48, compute: Duration::from_millis(100) };

    #[test]
    fn the_model_takes_the_ratio_s_share_of_a_gradient_s_time() {
        // (64 + 1) * 128 + (128 + 1) * 64 + (64 + 1) * 10 numbers of four bytes.
        assert_eq!(Setting::model_bytes(), 68_904);
        assert!((SETTING.bandwidth(0.5) - 1_378_080.0).abs() < 1e-6, "50 ms for the model");
        assert!((SETTING.bandwidth(0.1) - 5.0 * SETTING.bandwidth(0.5)).abs() < 1e-6);
        let slower = Setting { compute: Duration::from_millis(200), ..SETTING };
        assert!((slower.bandwidth(0.5) - SETTING.bandwidth(0.5) / 2.0).abs() < 1e-6);
    }

    #[test]
    fn a_worker_that_never_waits_falls_behind_by_its_gradients_alone() {
        let gradients_alone = 8.0 * SETTING.speed();
        assert!((SETTING.unblocked_share(5.0, gradients_alone) - 0.2).abs() < 1e-9);
        assert!((SETTING.unblocked_share(5.0, gradients_alone / 2.0) - 2.0 / 6.0).abs() < 1e-9);
        assert!((SETTING.unblocked_share(1.0, gradients_alone / 3.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_bound_of_an_all_reduce_is_the_slowest_gradient_and_its_bytes() {
        // 256 samples in 100 ms and 1.75 models of 50 ms each.
        assert!((SETTING.all_reduce_bound(1.0, 0.5) - 256.0 / 0.1875).abs() < 1e-6);
        assert!((SETTING.all_reduce_bound(5.0, 0.5) - 256.0 / 0.5875).abs() < 1e-6);
    }
}
