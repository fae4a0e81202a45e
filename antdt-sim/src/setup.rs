//! What is simulated, apart from how fast and how reliable things are.

use std::time::Duration;

use antdt_core::{InvalidValue, Seed, SyncMode};

/// A job. The names and defaults are those of `antdt run`.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// How gradients are combined.
    pub sync: SyncMode,
    /// Workers.
    pub workers: u32,
    /// Parameter servers; 0 with all-reduce.
    pub servers: u32,
    /// Samples of a synchronous step over all workers.
    pub global_batch_size: u32,
    /// Samples of the data set.
    pub samples: u64,
    /// Passes over the data.
    pub epochs: u32,
    /// Samples per shard; `None` derives it as `antdt run` does.
    pub shard_len: Option<u64>,
    /// Each worker has its part of the data from the start, as with a sampler.
    pub static_sharding: bool,
    /// Workers that share a host, by their index: `index / workers_per_host`.
    pub workers_per_host: u32,
    /// Bytes of the dense gradient: what is reduced, or pulled and pushed, in each step.
    pub gradient_bytes: u64,
    /// Times that one node is started again before the job fails.
    pub max_restarts: u32,
    /// How often the policy is asked.
    pub control_tick: Duration,
    /// How often a node says that it is alive.
    pub heartbeat: Duration,
    /// Silence after which a node counts as lost.
    pub silence_limit: Duration,
    /// Longest wait for a peer within one collective operation.
    pub collective_timeout: Duration,
    /// All randomness comes from here.
    pub seed: Seed,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sync: SyncMode::AllReduce,
            workers: 4,
            servers: 0,
            global_batch_size: 256,
            samples: 100_000,
            epochs: 1,
            shard_len: None,
            static_sharding: false,
            workers_per_host: 1,
            gradient_bytes: 1 << 20,
            max_restarts: 3,
            control_tick: Duration::from_millis(200),
            heartbeat: Duration::from_millis(500),
            silence_limit: Duration::from_secs(10),
            collective_timeout: Duration::from_secs(30),
            seed: Seed(0),
        }
    }
}

impl Setup {
    /// Whether it can be simulated.
    ///
    /// # Errors
    /// With the first setting that is refused, and what it must be.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let at_least_1 = |field: &str, value: u64| {
            if value == 0 { Err(InvalidValue::new(field, value, "at least 1")) } else { Ok(()) }
        };
        at_least_1("workers", self.workers.into())?;
        at_least_1("samples", self.samples)?;
        at_least_1("epochs", self.epochs.into())?;
        at_least_1("workers-per-host", self.workers_per_host.into())?;
        if self.sync.has_servers() != (self.servers > 0) {
            let must =
                if self.sync.has_servers() { "at least 1 with this sync mode" } else { "0 with allreduce" };
            return Err(InvalidValue::new("servers", self.servers, must));
        }
        if self.global_batch_size < self.workers {
            return Err(InvalidValue::new(
                "global-batch-size",
                self.global_batch_size,
                format!("at least the number of workers, {}", self.workers),
            ));
        }
        for (field, time) in [
            ("control-tick", self.control_tick),
            ("heartbeat", self.heartbeat),
            ("silence-limit", self.silence_limit),
            ("collective-timeout", self.collective_timeout),
        ] {
            if time < Duration::from_millis(1) {
                return Err(InvalidValue::new(field, format!("{time:?}"), "at least 1ms"));
            }
        }
        Ok(())
    }
}
