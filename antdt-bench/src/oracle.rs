//! [`Cluster`]: computes the ideal duration of a job from its set-up alone.
//!
//! Source: `(s(n-1)+1)/n` and the makespan bound are our design's formulas for one straggler among equals; the integer
//! optimum is found by trying, not by the solver under test.

/// A cluster of `workers` workers that compute `speed` samples per second, one of which is `slow` times slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Number of workers.
    pub workers: u32,
    /// Samples per second of a worker that is not slow.
    pub speed: f64,
    /// Factor by which the straggler is slower; 1 if there is none.
    pub slow: f64,
}

impl Cluster {
    /// Samples per second of each worker.
    fn speeds(&self) -> impl Iterator<Item = f64> + use<> {
        let Self { workers, speed, slow } = *self;
        (0..workers).map(move |i| if i == 0 { speed / slow } else { speed })
    }

    /// Returns the samples per second of all workers together.
    pub fn total_speed(&self) -> f64 {
        self.speeds().sum()
    }

    /// Returns the samples per second of the slowest worker.
    pub fn slowest_speed(&self) -> f64 {
        self.speed / self.slow
    }

    /// Returns the time of a synchronous step with equal batches, in seconds: that of the slowest worker.
    pub fn uniform_step_s(&self, global_batch_size: u32) -> f64 {
        f64::from(global_batch_size) / f64::from(self.workers) / self.slowest_speed()
    }

    /// Returns the time of the shortest synchronous step that whole batch sizes allow, in seconds.
    ///
    /// Samples are handed out one by one, each to the worker that is done first with it: optimal, because a batch's time
    /// only grows with its size.
    pub fn best_step_s(&self, global_batch_size: u32) -> f64 {
        let speeds: Vec<f64> = self.speeds().collect();
        let mut sizes = vec![1.0_f64; speeds.len()];
        let time = |sizes: &[f64], i: usize| (sizes[i] + 1.0) / speeds[i];
        for _ in speeds.len()..global_batch_size as usize {
            let next =
                (0..speeds.len()).min_by(|a, b| time(&sizes, *a).total_cmp(&time(&sizes, *b))).unwrap_or(0);
            sizes[next] += 1.0;
        }
        sizes.iter().zip(&speeds).map(|(size, speed)| size / speed).fold(0.0, f64::max)
    }

    /// Returns the speed-up, in a long job, of the best batch sizes over equal ones, or of dynamic shards
    /// over equal shares: `(s(n-1)+1)/n` for `n` workers of which one is `s` times slower.
    pub fn speedup(&self) -> f64 {
        let n = f64::from(self.workers);
        (self.slow * (n - 1.0) + 1.0) / n
    }

    /// Returns the time in seconds of a synchronous job of `steps` steps, in which the batch sizes fit the
    /// speeds after `reaction` steps.
    pub fn adapted_job_s(&self, global_batch_size: u32, steps: u32, reaction: u32) -> f64 {
        let before = f64::from(reaction.min(steps));
        before * self.uniform_step_s(global_batch_size)
            + (f64::from(steps) - before) * self.best_step_s(global_batch_size)
    }

    /// Returns an upper bound, in seconds, for an asynchronous job of `samples` samples in which each worker
    /// takes a shard of `shard_len` when it has finished one: at the end, the slowest worker may have just
    /// begun a shard.
    pub fn makespan_bound_s(&self, samples: f64, shard_len: f64) -> f64 {
        samples / self.total_speed() + shard_len / self.slowest_speed()
    }

    /// Returns the time in seconds of an asynchronous job of `samples` samples in equal shares: that of the
    /// slowest worker.
    pub fn static_makespan_s(&self, samples: f64) -> f64 {
        samples / f64::from(self.workers) / self.slowest_speed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Cluster = Cluster { workers: 4, speed: 800.0, slow: 4.0 };

    #[test]
    fn one_four_times_slower_of_four_costs_three_and_a_quarter() {
        assert_eq!(CLUSTER.speedup(), 3.25);
        let twenty = Cluster { workers: 20, ..CLUSTER };
        assert_eq!(twenty.speedup(), 3.85);
        assert_eq!(Cluster { slow: 1.0, ..CLUSTER }.speedup(), 1.0);
    }

    #[test]
    fn the_best_batch_sizes_reach_the_formula_up_to_one_sample() {
        let best = CLUSTER.best_step_s(256);
        let relaxed = 256.0 / CLUSTER.total_speed();
        assert!(best >= relaxed && best <= relaxed + 1.0 / CLUSTER.slowest_speed(), "{best} {relaxed}");
        let ratio = CLUSTER.uniform_step_s(256) / best;
        assert!((ratio / CLUSTER.speedup() - 1.0).abs() < 0.05, "{ratio}");
    }

    #[test]
    fn without_a_straggler_equal_batches_are_best() {
        let even = Cluster { slow: 1.0, ..CLUSTER };
        assert_eq!(even.best_step_s(256), even.uniform_step_s(256));
    }

    #[test]
    fn a_job_shorter_than_the_reaction_gains_nothing() {
        assert_eq!(CLUSTER.adapted_job_s(256, 10, 20), 10.0 * CLUSTER.uniform_step_s(256));
        let long = CLUSTER.adapted_job_s(256, 100_000, 20);
        assert!((100_000.0 * CLUSTER.uniform_step_s(256) / long) > 3.2);
    }

    #[test]
    fn static_shares_wait_for_the_slowest() {
        let ratio = CLUSTER.static_makespan_s(12_800.0) / CLUSTER.makespan_bound_s(12_800.0, 0.0);
        assert!((ratio - 3.25).abs() < 1e-12);
    }
}
