//! The settings of a head as a recording holds them.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_controller::Policy;
use antdt_core::BatchReport;
use antdt_monitor::MonitorConfig;
use serde::{Deserialize, Deserializer, Serialize};

use super::HeadConfig;
use crate::mode::SyncMode;

/// A [`HeadConfig`] in writing: the policy by its name and settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadSettings {
    /// How workers combine what they compute.
    pub sync: SyncMode,
    /// Workers of the job.
    pub workers: u32,
    /// Parameter servers; 0 with all-reduce.
    pub servers: u32,
    /// Samples of a synchronous step over all workers.
    pub global_batch_size: u32,
    /// Time between two heartbeats of a node.
    #[serde(with = "antdt_core::time::nanoseconds")]
    pub heartbeat: Duration,
    /// Times that a node which died is started again.
    pub max_restarts: u32,
    /// Whether every process must register.
    pub must_register: bool,
    /// Name of the policy.
    pub policy: String,
    /// Settings of the policy, from which the registry makes it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_settings: BTreeMap<String, String>,
    /// Windows and limits of the detector.
    pub monitor: MonitorConfig,
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
            must_register: config.must_register,
            policy: config.policy.name().to_owned(),
            policy_settings: config.policy.settings(),
            monitor: config.monitor,
        }
    }
}

impl HeadSettings {
    /// The settings with a policy in the state in which jobs begin.
    pub fn config(&self, policy: Box<dyn Policy>) -> HeadConfig {
        HeadConfig {
            sync: self.sync.clone(),
            workers: self.workers,
            servers: self.servers,
            global_batch_size: self.global_batch_size,
            heartbeat: self.heartbeat,
            max_restarts: self.max_restarts,
            must_register: self.must_register,
            policy,
            monitor: self.monitor,
        }
    }
}

/// JSON has no number for a loss that is not finite: it is written as `null`, and is not a number again.
pub(super) fn read_reports<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(BatchReport, f64)>, D::Error> {
    let reports = Vec::<(BatchReport, Option<f64>)>::deserialize(deserializer)?;
    Ok(reports.into_iter().map(|(report, loss)| (report, loss.unwrap_or(f64::NAN))).collect())
}
