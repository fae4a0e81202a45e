//! A job whose processes are started again, to go on in another mode.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::NodeId;

use super::sink::{Recorder, Sinks};
use crate::job::JobSpec;
use crate::report::{EvaluationEntry, ShardSpan};

/// What a job has behind it whose processes are started again, to go on in another mode.
pub(super) struct Before {
    pub(super) recorder: Recorder,
    /// Told of all starts.
    pub(super) sinks: Sinks,
    pub(super) shards: Vec<ShardSpan>,
    /// Samples of each worker.
    pub(super) samples: BTreeMap<NodeId, u64>,
    pub(super) duplicated: u64,
    /// Numbers of workers and servers that the user has scaled the job to.
    pub(super) workers: u32,
    pub(super) servers: u32,
    /// How long that took.
    pub(super) took: Duration,
    /// When the job began, since the epoch of the system's clock.
    pub(super) job_start: Duration,
}

impl Before {
    /// That of a job that begins, after these evaluations of an earlier run.
    pub(super) fn nothing(
        spec: &JobSpec,
        evaluations: Vec<EvaluationEntry>,
        job_start: Duration,
        sinks: Sinks,
    ) -> Self {
        Self {
            sinks,
            recorder: Recorder::new(spec.sync.capabilities(), spec.workers)
                .after(evaluations)
                .knowing_loss(!spec.has_own_model()),
            shards: Vec::new(),
            samples: BTreeMap::new(),
            duplicated: 0,
            workers: spec.workers,
            servers: spec.servers,
            took: Duration::ZERO,
            job_start,
        }
    }
}

/// The job with as many workers and servers as it has by now. A number that another setting forbids, such as that of a straggler
/// that is gone, stays as it was.
pub(super) fn as_scaled(spec: JobSpec, workers: u32, servers: u32) -> JobSpec {
    let servers = if spec.servers > 0 && servers > 0 { servers } else { spec.servers };
    let spec = JobSpec { servers, ..spec };
    let scaled = JobSpec { workers, ..spec.clone() };
    match scaled.validate() {
        Ok(()) => scaled,
        Err(error) => {
            let (workers, wanted) = (spec.workers, scaled.workers);
            tracing::warn!(%error, "the job goes on with {workers} workers, and not with {wanted}");
            spec
        }
    }
}

pub(super) fn sum(mut first: BTreeMap<NodeId, u64>, second: BTreeMap<NodeId, u64>) -> BTreeMap<NodeId, u64> {
    for (node, samples) in second {
        *first.entry(node).or_default() += samples;
    }
    first
}
