//! What a process of a job is told by its launcher.

use std::time::Duration;

use antdt_agent::Notice;
use antdt_agent::runtime::{Agent, AgentConfig};
use antdt_core::{DeviceClass, Holder, Incarnation, InvalidValue, NodeId, NodeInfo, Role};

use antdt_job::limits::{CALL_TIMEOUT, MASTER_TIMEOUT};

use crate::job::JobSpec;
use crate::worker::WorkerError;

/// The environment of one life of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeEnv {
    /// "address:port" of the master.
    pub master: String,
    /// Name of the job.
    pub job: String,
    /// Which life of which node this process is.
    pub holder: Holder,
    /// When the job began: time since the Unix epoch.
    pub job_start: Duration,
    /// The job's settings.
    pub spec: JobSpec,
}

impl NodeEnv {
    /// Variable with the master's address.
    pub const MASTER: &'static str = "ANTDT_MASTER";
    /// Variable with the job's name.
    pub const JOB: &'static str = "ANTDT_JOB_ID";
    /// Variable with the node: `worker-1`.
    pub const NODE: &'static str = "ANTDT_NODE";
    /// Variable with the life of the node, from 0.
    pub const INCARNATION: &'static str = "ANTDT_INCARNATION";
    /// Variable with the start of the job, nanoseconds since the Unix epoch.
    pub const JOB_START: &'static str = "ANTDT_JOB_START_NS";
    /// Variable with the settings, as JSON.
    pub const SPEC: &'static str = "ANTDT_JOB_SPEC";

    /// Reads the variables of this process.
    ///
    /// # Errors
    /// Names the first variable that is missing or malformed.
    pub fn from_process() -> Result<Self, WorkerError> {
        Self::read(|name| std::env::var(name).ok()).map_err(WorkerError::Environment)
    }

    /// Reads variables through `get`.
    ///
    /// # Errors
    /// Names the first variable that is missing or malformed.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidValue> {
        let variable = |name: &str| get(name).ok_or_else(|| InvalidValue::new(name, "(unset)", "set"));
        let number = |name: &str| {
            let text = variable(name)?;
            text.parse::<u64>().map_err(|_| InvalidValue::new(name, &text, "a whole number"))
        };
        let node: NodeId = variable(Self::NODE)?.parse()?;
        let incarnation = u32::try_from(number(Self::INCARNATION)?)
            .map_err(|_| InvalidValue::new(Self::INCARNATION, "too large", "below 2^32"))?;
        let spec = serde_json::from_str(&variable(Self::SPEC)?)
            .map_err(|e| InvalidValue::new(Self::SPEC, "(JSON)", format!("a job's settings: {e}")))?;
        Ok(Self {
            master: variable(Self::MASTER)?,
            job: variable(Self::JOB)?,
            holder: Holder::new(node, Incarnation(incarnation)),
            job_start: Duration::from_nanos(number(Self::JOB_START)?),
            spec,
        })
    }

    /// The variables that say the same to a child process.
    pub fn variables(&self) -> Vec<(String, String)> {
        let spec = serde_json::to_string(&self.spec).expect("settings are plain values");
        [
            (Self::MASTER, self.master.clone()),
            (Self::JOB, self.job.clone()),
            (Self::NODE, self.holder.node.to_string()),
            (Self::INCARNATION, self.holder.incarnation.to_string()),
            (Self::JOB_START, self.job_start.as_nanos().to_string()),
            (Self::SPEC, spec),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Registers this process with its master.
    pub(crate) fn connect(
        &self,
        data_address: String,
        on_notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Agent, WorkerError> {
        let config = AgentConfig {
            master: self.master.clone(),
            job: self.job.clone(),
            info: NodeInfo {
                holder: self.holder,
                host: "localhost".to_owned(),
                // All processes of a launcher share the host, and with it the hardware.
                device: DeviceClass::default(),
                batch_size_min: 1,
                batch_size_max: self.spec.global_batch_size.max(1),
            },
            data_address,
            awaits_servers: self.holder.node.role == Role::Worker && self.spec.sync.has_servers(),
            call_timeout: CALL_TIMEOUT,
            master_timeout: MASTER_TIMEOUT,
        };
        Ok(Agent::connect(config, on_notice)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn env() -> NodeEnv {
        NodeEnv {
            master: "127.0.0.1:4000".to_owned(),
            job: "demo".to_owned(),
            holder: Holder::new(NodeId::worker(2), Incarnation(1)),
            job_start: Duration::from_nanos(1_700_000_000_123_456_789),
            spec: JobSpec { workers: 4, ..JobSpec::default() },
        }
    }

    #[test]
    fn a_child_reads_what_the_launcher_wrote() {
        let variables: BTreeMap<String, String> = env().variables().into_iter().collect();
        assert_eq!(NodeEnv::read(|name| variables.get(name).cloned()).unwrap(), env());
    }

    #[test]
    fn a_missing_or_malformed_variable_is_named() {
        let variables: BTreeMap<String, String> = env().variables().into_iter().collect();
        for name in variables.keys() {
            let error = NodeEnv::read(|n| (n != name).then(|| variables[n].clone())).unwrap_err();
            assert!(error.to_string().contains(name.as_str()), "{error}");
        }
        let error = NodeEnv::read(|n| {
            Some(if n == NodeEnv::NODE { "boss".to_owned() } else { variables[n].clone() })
        });
        assert!(error.unwrap_err().to_string().contains("worker-N"));
    }
}
