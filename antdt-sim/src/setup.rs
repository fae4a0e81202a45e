//! [`Setup`]: the settings of a simulated job, apart from its models of speed and reliability.

use std::time::Duration;

use antdt_core::port::ACKS_MAX;
use antdt_core::text::format_duration;
use antdt_core::{InvalidValue, Seed};
use antdt_job::head::{CheckpointEvery, ModeChoice};
use antdt_job::mode::{self, SyncMode};
use antdt_monitor::Rule;

use crate::world::dataset;

/// Workers, or servers, that a job may have: 10 KB each are 2.5 GB, and beyond, a slip of the hand is likelier than a wish.
pub(crate) const NODES_MAX: u32 = 1 << 18;

/// Pairs of a worker and a server: each step may have a message between them under way, of about 1 KB.
const PAIRS_MAX: u64 = 1 << 21;

/// The settings of a simulated job. Names and defaults are those of `antdt run`.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Sync mode: how gradients or models of the workers are combined.
    pub sync: SyncMode,
    /// Whether the decisions of the policy are only recorded.
    pub dry_run: bool,
    /// Rule that decides which workers are slow.
    pub pace_rule: Rule,
    /// Number of workers.
    pub workers: u32,
    /// Number of parameter servers; 0 where the model lives in the workers.
    pub servers: u32,
    /// Samples of a synchronous step over all workers.
    pub global_batch_size: u32,
    /// Number of samples in the data set.
    pub samples: u64,
    /// Number of passes over the data.
    pub epochs: u32,
    /// Samples per shard; `None` derives it as `antdt run` does.
    pub shard_len: Option<u64>,
    /// Whether each worker has a fixed part of the data from the start, as with a sampler.
    pub static_sharding: bool,
    /// Number of workers on a host: worker `i` is on host `i / workers_per_host`.
    pub workers_per_host: u32,
    /// Size of the dense gradient in bytes, which is reduced, or pulled and pushed, in each step.
    pub gradient_bytes: u64,
    /// Whether workers report how many bytes they sent to their peers in an all-reduce, as they do in a real
    /// job. This costs one more event with each heartbeat. Off by default.
    pub reports_links: bool,
    /// Largest number of restarts of one node in a row, without a commit in between. A node that ends once
    /// more ends the job.
    pub max_restarts: u32,
    /// Whether the job goes back to its newest checkpoint, or to its start, when its model is lost, and whether its
    /// master keeps a record for a successor. Otherwise the job ends when the model is lost.
    pub goes_back: bool,
    /// When the job takes a checkpoint, besides the one at its end; `None` if it takes none.
    pub checkpoint_every: Option<CheckpointEvery>,
    /// Number of epochs from one evaluation of the model to the next, for a job that takes checkpoints and goes back; `None` if the
    /// model is evaluated at the end only.
    pub eval_every: Option<u32>,
    /// How the job chooses its sync mode by its first steps; `None` if it stays in [`sync`](Self::sync).
    pub choice: Option<ModeChoice>,
    /// Time between two control ticks, at which the policy is asked.
    pub control_tick: Duration,
    /// Time between two heartbeats of a node.
    pub heartbeat: Duration,
    /// Silence after which a node counts as lost.
    pub silence_limit: Duration,
    /// Longest wait for a peer within one collective operation.
    pub collective_timeout: Duration,
    /// Seed of all randomness in the simulation.
    pub seed: Seed,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sync: SyncMode::default(),
            dry_run: false,
            pace_rule: Rule::default(),
            workers: 4,
            servers: 0,
            global_batch_size: 256,
            samples: 100_000,
            epochs: 1,
            shard_len: None,
            static_sharding: false,
            workers_per_host: 1,
            gradient_bytes: 1 << 20,
            reports_links: false,
            max_restarts: 3,
            goes_back: false,
            checkpoint_every: None,
            eval_every: None,
            choice: None,
            control_tick: Duration::from_millis(200),
            heartbeat: Duration::from_millis(500),
            silence_limit: Duration::from_secs(10),
            collective_timeout: Duration::from_secs(30),
            seed: Seed(0),
        }
    }
}

impl Setup {
    /// Checks that the job can be simulated: by the rules of `antdt run`, and by the limits of this machine.
    ///
    /// # Errors
    /// The first refused setting, by its name in a scenario's `[job]`, and what it must be.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let at_least_1 = |field: &str, value: u64| {
            if value == 0 { Err(InvalidValue::new(field, value, "at least 1")) } else { Ok(()) }
        };
        at_least_1("workers", self.workers.into())?;
        at_least_1("samples", self.samples)?;
        at_least_1("epochs", self.epochs.into())?;
        at_least_1("global-batch-size", self.global_batch_size.into())?;
        at_least_1("workers-per-host", self.workers_per_host.into())?;
        self.validate_nodes()?;
        if self.global_batch_size < self.workers {
            let expected = format!("at least {}, one sample for each worker (workers)", self.workers);
            return Err(InvalidValue::new("global-batch-size", self.global_batch_size, expected));
        }
        for (field, time) in [
            ("control-tick", self.control_tick),
            ("heartbeat", self.heartbeat),
            ("collective-timeout", self.collective_timeout),
        ] {
            if time < Duration::from_millis(1) {
                return Err(InvalidValue::new(field, format_duration(time), "at least 1ms"));
            }
        }
        let beats = self.heartbeat.saturating_mul(2);
        if self.silence_limit < beats {
            let expected = format!("at least two heartbeats, {}", format_duration(beats));
            return Err(InvalidValue::new("silence-limit", format_duration(self.silence_limit), expected));
        }
        let shards = u64::from(self.global_batch_size).div_ceil(self.shard_len.unwrap_or(u64::MAX).max(1));
        if shards > ACKS_MAX as u64 {
            let least = u64::from(self.global_batch_size).div_ceil(ACKS_MAX as u64);
            let expected =
                format!("at least {least}: a batch may be of {ACKS_MAX} shards (global-batch-size)");
            return Err(InvalidValue::new("shard-len", self.shard_len.unwrap_or_default(), expected));
        }
        let dataset = dataset(self).validate();
        dataset.map_err(|error| InvalidValue { field: error.field.replace('_', "-"), ..error })
    }

    fn validate_nodes(&self) -> Result<(), InvalidValue> {
        for (field, nodes) in [("workers", self.workers), ("servers", self.servers)] {
            if nodes > NODES_MAX {
                return Err(InvalidValue::new(field, nodes, format!("at most {NODES_MAX}")));
            }
        }
        match (self.sync.capabilities().needs_servers(), self.servers) {
            (true, 0) => {
                let expected = format!("at least 1 with sync = \"{}\"", self.sync);
                return Err(InvalidValue::new("servers", 0, expected));
            }
            (false, 1..) => {
                let expected = format!(
                    "0 with sync = \"{}\"; choose {} to use servers",
                    self.sync,
                    mode::with_servers()
                );
                return Err(InvalidValue::new("servers", self.servers, expected));
            }
            (true, _) | (false, 0) => {}
        }
        let pairs = u64::from(self.workers) * u64::from(self.servers);
        if pairs > PAIRS_MAX {
            let most = PAIRS_MAX / u64::from(self.workers);
            let expected = format!("at most {most} with {} workers: each talks to each", self.workers);
            return Err(InvalidValue::new("servers", self.servers, expected));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_no_machine_can_hold_is_refused_before_it_is_built() {
        let refused = |setup: Setup| setup.validate().unwrap_err().to_string();
        let plain = || Setup { global_batch_size: u32::MAX, ..Setup::default() };
        let servers =
            |workers, servers| Setup { sync: "ps-asp".parse().unwrap(), workers, servers, ..plain() };
        assert_eq!(
            refused(Setup { workers: u32::MAX, ..plain() }),
            "workers = 4294967295: must be at most 262144"
        );
        assert_eq!(refused(servers(4, u32::MAX)), "servers = 4294967295: must be at most 262144");
        assert_eq!(
            refused(servers(16_384, 16_384)),
            "servers = 16384: must be at most 128 with 16384 workers: each talks to each"
        );
        assert!(servers(16_384, 128).validate().is_ok());
        assert!(Setup { workers: NODES_MAX, ..plain() }.validate().is_ok());
    }

    #[test]
    fn a_setting_beyond_the_ledgers_limits_is_refused_by_its_name_in_the_job() {
        let refused = |setup: Setup| setup.validate().unwrap_err().to_string();
        let setup = Setup { samples: u64::MAX, epochs: 2, ..Setup::default() };
        assert_eq!(refused(setup), "epochs = 2: must be at most 1 for 18446744073709551615 samples");
        let setup = Setup { shard_len: Some(u64::MAX), ..Setup::default() };
        assert!(refused(setup).starts_with("shard-len = 18446744073709551615: must be at most"));
    }
}
