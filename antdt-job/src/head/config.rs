//! [`HeadConfig`]: what a head is made from.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use antdt_controller::Policy;
use antdt_monitor::MonitorConfig;

use super::{CheckpointSchedule, EvaluationSchedule, ModeChoice};
use crate::mode::SyncMode;

/// Settings of a [`Head`](super::Head).
#[derive(Debug)]
pub struct HeadConfig {
    /// Sync mode: how gradients or models of the workers are combined.
    pub sync: SyncMode,
    /// Number of workers that the job starts with.
    pub workers: u32,
    /// Number of parameter servers that the job starts with; 0 where the model lives in the workers.
    pub servers: u32,
    /// Samples of one synchronous step, over all workers together.
    pub global_batch_size: u32,
    /// Time between two heartbeats of a node.
    pub heartbeat: Duration,
    /// Largest number of restarts of a node in a row, without a committed step in between.
    pub max_restarts: u32,
    /// Smallest number of workers with which the job goes on when a worker that exceeds `max_restarts` is
    /// given up; with fewer the job ends.
    pub min_workers: u32,
    /// Whether every process must register with the master. False for a user's own program, which need not speak the
    /// protocol.
    pub must_register: bool,
    /// Policy that decides on batch sizes and restarts.
    pub policy: Box<dyn Policy>,
    /// Dry run: the decisions of the policy are recorded and not carried out.
    pub dry_run: bool,
    /// Settings of the straggler detector: windows, limits, pace rule.
    pub monitor: MonitorConfig,
    /// Settings of the checkpoints; `None` if the job takes no checkpoints.
    pub checkpoints: Option<CheckpointSchedule>,
    /// Settings of the evaluations between epochs, for a job that takes checkpoints and can roll back; `None` if the model is
    /// evaluated at the end only.
    pub evaluations: Option<EvaluationSchedule>,
    /// Settings of a job that chooses its sync mode by its first steps; `None` if the mode is given.
    pub choice: Option<ModeChoice>,
    /// Whether a job whose model is lost goes back to its newest checkpoint, or to its start. Otherwise it ends.
    pub can_roll_back: bool,
    /// Hosts that the launcher may choose among, by the names that nodes give; empty if it cannot choose.
    pub hosts: Arc<BTreeSet<String>>,
}
