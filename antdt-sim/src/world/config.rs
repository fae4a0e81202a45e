//! What the machines of a simulated job are made from.

use std::sync::Arc;

use antdt_controller::Policy;
use antdt_core::CheckpointId;
use antdt_job::HeadConfig;
use antdt_job::head::{CheckpointSchedule, EvaluationSchedule};
use antdt_monitor::{LivenessConfig, MonitorConfig};
use antdt_shard::{Assignment, DatasetSpec, Epochs};

use super::places::Places;
use crate::Setup;

/// What the head is made from, as `antdt run` does.
pub(crate) fn head_config(setup: &Setup, policy: Box<dyn Policy>) -> HeadConfig {
    HeadConfig {
        sync: setup.sync.clone(),
        workers: setup.workers,
        servers: setup.servers,
        global_batch_size: setup.global_batch_size,
        heartbeat: setup.heartbeat,
        max_restarts: setup.max_restarts,
        // A simulated job keeps its number of workers.
        min_workers: setup.workers,
        must_register: true,
        dry_run: setup.dry_run,
        policy,
        monitor: MonitorConfig {
            liveness: LivenessConfig::of(setup.heartbeat, setup.silence_limit),
            rule: setup.pace_rule.clone(),
            ..MonitorConfig::default()
        },
        checkpoints: setup.checkpoint_every.map(|every| CheckpointSchedule {
            every,
            first: CheckpointId(1),
            epochs: setup.epochs,
        }),
        evaluations: evaluations(setup),
        choice: setup.choice.clone(),
        can_roll_back: setup.goes_back,
        hosts: Arc::new(Places::new(setup.workers, setup.workers_per_host).names()),
    }
}

/// When the model is evaluated between epochs, if the job goes on from the checkpoint of it.
fn evaluations(setup: &Setup) -> Option<EvaluationSchedule> {
    let every = setup.eval_every.filter(|_| setup.goes_back && setup.checkpoint_every.is_some())?;
    let (epochs, samples) = (setup.epochs, setup.samples);
    Some(EvaluationSchedule { every, epochs, samples, done: 0, stopping: None, earlier: Vec::new() })
}

/// The data set, as `antdt run` makes it.
pub(crate) fn dataset(setup: &Setup) -> DatasetSpec {
    let (batch, workers) = (setup.global_batch_size, setup.workers);
    let mut dataset = DatasetSpec::of_job("train", setup.samples, batch, workers, setup.shard_len);
    dataset.epochs = Epochs::Finite(setup.epochs);
    dataset.seed = setup.seed.derive("data");
    if setup.static_sharding {
        dataset.assignment = Assignment::Static { workers: setup.workers };
    }
    dataset
}
