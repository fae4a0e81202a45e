//! The settings of a head as a recording holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use antdt_controller::Policy;
use antdt_core::BatchReport;
use antdt_monitor::MonitorConfig;
use serde::{Deserialize, Deserializer, Serialize};

use super::{CheckpointSchedule, EvaluationSchedule, HeadConfig, ModeChoice};
use crate::mode::SyncMode;

/// The settings of a [`HeadConfig`] in a form that can be stored: policy and pace rule by their names and settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadSettings {
    /// Sync mode: how gradients or models of the workers are combined.
    pub sync: SyncMode,
    /// Number of workers that the job starts with.
    pub workers: u32,
    /// Number of parameter servers; 0 where the model lives in the workers.
    pub servers: u32,
    /// Samples of a synchronous step over all workers.
    pub global_batch_size: u32,
    /// Time between two heartbeats of a node.
    #[serde(with = "antdt_core::time::nanoseconds")]
    pub heartbeat: Duration,
    /// Largest number of restarts of a node in a row, without a committed step in between.
    pub max_restarts: u32,
    /// Smallest number of workers with which the job goes on when a worker that exceeds `max_restarts` is
    /// given up; with fewer the job ends.
    #[serde(default = "one")]
    pub min_workers: u32,
    /// Whether every process must register with the master.
    pub must_register: bool,
    /// Name of the policy.
    pub policy: String,
    /// Settings of the policy, from which the registry creates it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_settings: BTreeMap<String, String>,
    /// Whether the decisions of the policy are only recorded.
    #[serde(default)]
    pub dry_run: bool,
    /// Windows and limits of the detector.
    pub monitor: MonitorConfig,
    /// Settings of the checkpoints; `None` if the job takes no checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointSchedule>,
    /// Settings of the evaluations between epochs; `None` if the model is evaluated at the end only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<EvaluationSchedule>,
    /// Settings of a job that chooses its sync mode; `None` if the mode is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ModeChoice>,
    /// Whether a job whose model is lost goes back to its newest checkpoint; otherwise it ends.
    #[serde(default)]
    pub can_roll_back: bool,
    /// Names of the hosts that the launcher may choose among; empty if it cannot choose.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
}

impl From<&HeadConfig> for HeadSettings {
    fn from(config: &HeadConfig) -> Self {
        Self {
            sync: config.sync.clone(),
            workers: config.workers,
            servers: config.servers,
            global_batch_size: config.global_batch_size,
            heartbeat: config.heartbeat,
            max_restarts: config.max_restarts,
            min_workers: config.min_workers,
            must_register: config.must_register,
            policy: config.policy.name().to_owned(),
            policy_settings: config.policy.settings(),
            dry_run: config.dry_run,
            monitor: config.monitor.clone(),
            checkpoints: config.checkpoints.clone(),
            evaluations: config.evaluations.clone(),
            choice: config.choice.clone(),
            can_roll_back: config.can_roll_back,
            hosts: (*config.hosts).clone(),
        }
    }
}

impl HeadSettings {
    /// Returns the settings as a [`HeadConfig`] with this policy, which must not have decided anything yet.
    pub fn config(&self, policy: Box<dyn Policy>) -> HeadConfig {
        HeadConfig {
            sync: self.sync.clone(),
            workers: self.workers,
            servers: self.servers,
            global_batch_size: self.global_batch_size,
            heartbeat: self.heartbeat,
            max_restarts: self.max_restarts,
            min_workers: self.min_workers,
            must_register: self.must_register,
            policy,
            dry_run: self.dry_run,
            monitor: self.monitor.clone(),
            checkpoints: self.checkpoints.clone(),
            evaluations: self.evaluations.clone(),
            choice: self.choice.clone(),
            can_roll_back: self.can_roll_back,
            hosts: Arc::new(self.hosts.clone()),
        }
    }
}

const fn one() -> u32 {
    1
}

/// JSON has no number for a loss that is not finite: it is written as `null`, and is not a number again.
pub(super) fn read_reports<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(BatchReport, f64)>, D::Error> {
    let reports = Vec::<(BatchReport, Option<f64>)>::deserialize(deserializer)?;
    Ok(reports.into_iter().map(|(report, loss)| (report, loss.unwrap_or(f64::NAN))).collect())
}
