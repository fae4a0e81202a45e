//! [`NodeEnv`]: what a node's process is told when it starts: by variables, its identity and addresses, which a launcher may change;
//! by a file that its launcher hands over, the settings of the job and its secret.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use antdt_agent::Notice;
use antdt_agent::runtime::AgentConfig;
use antdt_collective::JobToken;
use antdt_core::{
    Connections, DeviceClass, Holder, Incarnation, InvalidValue, NodeId, NodeInfo, ParamLayout, Role,
    ServerWeights,
};

use antdt_job::limits::CALL_TIMEOUT;
use antdt_launch::runtime::process::{self, Bond};
use antdt_model::UpdateRule;
use antdt_proto::Token;

use crate::job::{DataPlane, JobSpec, Processor};
use crate::worker::WorkerError;
use crate::{gpu, host, net, protection};

mod file;
mod session;

pub(crate) use session::NodeSession;

use file::NodeFile;

/// Binds this process to the process that launched it.
pub(crate) fn bind_to_launcher() -> Result<(), WorkerError> {
    match process::bind_to_launcher() {
        Ok(Bond::Bound | Bond::Free) => Ok(()),
        Ok(Bond::Orphan) => Err(WorkerError::Orphan),
        Err(error) => {
            // It ends when the master does not answer, though later.
            tracing::warn!(%error, "this process cannot be bound to the process that launched it");
            Ok(())
        }
    }
}

/// The environment of one incarnation of a node: what its launcher tells it by variables and by a file.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeEnv {
    /// Address of the master as `address:port` or `name:port`; an IPv6 address is in brackets.
    pub master: String,
    /// Name of the job.
    pub job: String,
    /// Secret of the job, which every call to the master carries.
    pub token: Token,
    /// Whether the processes of the job encrypt what they send each other, by its secret.
    pub tls: bool,
    /// How they connect with each other: encrypted, or as the program says.
    pub connections: Connections,
    /// Address or name that the node's data plane binds to.
    pub bind: String,
    /// Address or name at which other nodes reach this one; `None` derives it from `bind`.
    pub advertise: Option<String>,
    /// Node and incarnation that this process is.
    pub holder: Holder,
    /// Start of the job, as the time since the Unix epoch.
    pub job_start: Duration,
    /// Name of the host on which the launcher placed the node; `None` leaves it to the operating system.
    pub host: Option<String>,
    /// Path of the shared memory of the emulated network; `None` if the job has none.
    pub network: Option<PathBuf>,
    /// Weights of the parameter servers: how much of the model each holds.
    pub weights: ServerWeights,
    /// Shape of the parameters, which a server needs; `None` if the program has its data from elsewhere.
    pub layout: Option<ParamLayout>,
    /// Settings of the job.
    pub spec: JobSpec,
}

impl NodeEnv {
    /// Name of the environment variable with the master's address.
    pub const MASTER: &'static str = "ANTDT_MASTER";
    /// Name of the environment variable with the job's name.
    pub const JOB: &'static str = "ANTDT_JOB_ID";
    /// Name of the environment variable with the path of the node's file.
    pub const FILE: &'static str = antdt_launch::NODE_FILE;
    /// Name of the environment variable with the address that the node's data plane binds to.
    pub const BIND: &'static str = antdt_launch::BIND;
    /// Name of the environment variable with the address or name at which other nodes reach this one; the
    /// default is the one that it binds to.
    pub const ADVERTISE: &'static str = antdt_launch::ADVERTISE;
    /// Name of the environment variable with the node's id, such as `worker-1`.
    pub const NODE: &'static str = "ANTDT_NODE";
    /// Name of the environment variable with the node's incarnation, from 0.
    pub const INCARNATION: &'static str = "ANTDT_INCARNATION";
    /// Name of the environment variable with the name of the host on which the launcher places the node; the
    /// node reports that name.
    pub const HOST: &'static str = "ANTDT_HOST";
    /// Reads what this process was told by its variables and its file.
    ///
    /// # Errors
    /// Names the first variable that is missing or malformed, or the file and what is wrong with it.
    pub fn from_process() -> Result<Self, WorkerError> {
        let get = |name: &str| std::env::var(name).ok();
        let path = get(Self::FILE)
            .ok_or_else(|| InvalidValue::new(Self::FILE, "(unset)", "set"))
            .map_err(WorkerError::Environment)?;
        let file = std::fs::read_to_string(&path).map_err(|error| {
            let expected = format!("the file of this node, which ends with it: {error}");
            WorkerError::Environment(InvalidValue::new(Self::FILE, path, expected))
        })?;
        let read = Self::read(get, &file).and_then(Self::protected);
        read.map_err(WorkerError::Environment)
    }

    /// The same, with encrypted connections if the job has them.
    fn protected(self) -> Result<Self, InvalidValue> {
        if !self.tls {
            return Ok(self);
        }
        Ok(Self { connections: protection::by_secret(self.token.text())?, ..self })
    }

    /// How the processes of the job pass on gradients and parameters.
    pub(crate) fn data_connections(&self) -> Connections {
        match self.spec.data_plane {
            DataPlane::Tls => self.connections.clone(),
            DataPlane::Plain => Connections::default(),
        }
    }

    /// Reads what a node is told by variables, which `get` returns by name, and by the text of its file.
    ///
    /// # Errors
    /// Names the first variable that is missing or malformed, or what is wrong with the file.
    pub fn read(get: impl Fn(&str) -> Option<String>, file: &str) -> Result<Self, InvalidValue> {
        let variable = |name: &str| get(name).ok_or_else(|| InvalidValue::new(name, "(unset)", "set"));
        let node: NodeId = variable(Self::NODE)?.parse()?;
        let text = variable(Self::INCARNATION)?;
        let incarnation: u32 = text
            .parse()
            .map_err(|_| InvalidValue::new(Self::INCARNATION, &text, "a whole number below 2^32"))?;
        let NodeFile { token, tls, job_start, network, weights, layout, spec } = NodeFile::read(file)?;
        Ok(Self {
            master: variable(Self::MASTER)?,
            job: variable(Self::JOB)?,
            token,
            tls,
            connections: Connections::default(),
            bind: net::host(Self::BIND, &variable(Self::BIND)?)?,
            advertise: get(Self::ADVERTISE)
                .filter(|text| !text.is_empty())
                .map(|text| net::host(Self::ADVERTISE, &text))
                .transpose()?,
            holder: Holder::new(node, Incarnation(incarnation)),
            job_start,
            host: get(Self::HOST).filter(|name| !name.is_empty()),
            network,
            weights,
            layout,
            spec,
        })
    }

    /// Returns the rule by which gradients change the parameters, as the job sets it. `optimizer`, `rate` and
    /// `decay` are the program's defaults, for jobs that do not set them.
    ///
    /// # Errors
    /// If the job names an optimizer that this program does not know, or has a setting that the optimizer
    /// refuses.
    pub fn update_rule(&self, optimizer: &str, rate: f32, decay: f32) -> Result<UpdateRule, WorkerError> {
        self.spec.update_rule(optimizer, rate, decay).map_err(|error| WorkerError::Input(error.to_string()))
    }

    /// Returns the environment variables of the node, as pairs of name and value.
    pub fn variables(&self) -> Vec<(String, String)> {
        [
            (Self::MASTER, self.master.clone()),
            (Self::JOB, self.job.clone()),
            (Self::BIND, self.bind.clone()),
            (Self::NODE, self.holder.node.to_string()),
            (Self::INCARNATION, self.holder.incarnation.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .chain(self.advertise.clone().map(|host| (Self::ADVERTISE.to_owned(), host)))
        .chain(self.host.clone().map(|host| (Self::HOST.to_owned(), host)))
        .collect()
    }

    /// Returns the text of the node's file. With the [`variables`](Self::variables) and it a child process
    /// [reads](Self::from_process) the same again.
    pub fn file(&self) -> String {
        let Self { token, tls, job_start, network, weights, layout, spec, .. } = self.clone();
        NodeFile { token, tls, job_start, network, weights, layout, spec }.text()
    }

    /// What keeps processes of other jobs out of the data plane: derived from the job's secret.
    pub(crate) fn job_token(&self) -> JobToken {
        JobToken::new(self.token.text())
    }

    /// Opens the node's data plane at the address that [`BIND`](Self::BIND) says: at a free port, of those that the job may have.
    pub(crate) fn open_data_plane<T>(
        &self,
        open: impl Fn(SocketAddr) -> Result<T, WorkerError>,
    ) -> Result<T, WorkerError> {
        let ip = net::bind_address(&self.bind).map_err(|error| {
            WorkerError::Input(format!(
                "--bind, {} = {}: {error}; name an address of this host",
                Self::BIND,
                self.bind
            ))
        })?;
        let Some(range) = self.spec.port_range else { return open(SocketAddr::new(ip, 0)) };
        let NodeId { role, index } = self.holder.node;
        // The master's is the first.
        let from = index + 1 + if role == Role::Server { self.spec.workers } else { 0 };
        for address in range.addresses(ip, from) {
            match open(address) {
                Err(error) if error.is_of_taken_port() => {}
                opened => return opened,
            }
        }
        Err(WorkerError::Input(format!(
            "--port-range = {range}: every port is taken on this host; name more"
        )))
    }

    /// What others are told of a data plane that listens at `local`.
    pub(crate) fn advertised(&self, local: SocketAddr) -> Result<String, WorkerError> {
        if let Some(host) = &self.advertise {
            return Ok(net::join(host, local.port()));
        }
        if !local.ip().is_unspecified() {
            return Ok(local.to_string());
        }
        // It listens everywhere: peers get the address that the master sees.
        let towards = |master| net::local_address_towards(master);
        let address: IpAddr = net::resolve(&self.master, local.ip()).and_then(towards).map_err(|error| {
            WorkerError::Address(format!(
                "there is no route to the master at {}: {error}; set {}",
                self.master,
                Self::ADVERTISE
            ))
        })?;
        Ok(SocketAddr::new(address, local.port()).to_string())
    }

    /// Host that this process is on: where links are emulated, the emulated one; else as the launcher or the system has it.
    fn host(&self) -> String {
        let emulated = self.spec.emulate_network.as_ref();
        let emulated = emulated.map(|network| format!("emulated-{}", network.0.host(self.holder.node)));
        emulated.or_else(|| self.host.clone()).unwrap_or_else(host::name)
    }

    /// Registers this process, whose data plane listens at `local`, with its master.
    pub(crate) fn connect(
        &self,
        local: SocketAddr,
        on_notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<NodeSession, WorkerError> {
        let is_worker = self.holder.node.role == Role::Worker;
        let spec = self.spec.device(self.holder.node.index).filter(|_| is_worker);
        let processor = if is_worker { self.spec.processor() } else { Processor::Cpu };
        let (_, gpu) = gpu::place(processor, self.holder.node.index)
            .map_err(|error| WorkerError::Input(error.to_string()))?;
        let device = match (spec, &gpu) {
            (Some(spec), _) => DeviceClass(spec.class.as_str().into()),
            (None, Some(gpu)) => host::named_device().unwrap_or_else(|| gpu.class.clone()),
            (None, None) => host::named_device().unwrap_or_default(),
        };
        let batch_size_max = match spec.and_then(|spec| spec.batch_max) {
            Some(most) => most,
            None => host::batch_max().map_err(WorkerError::Input)?.unwrap_or(u32::MAX),
        };
        let config = AgentConfig {
            master: self.master.clone(),
            job: self.job.clone(),
            token: self.token.clone(),
            connections: self.connections.clone(),
            info: NodeInfo {
                holder: self.holder,
                host: self.host(),
                device,
                memory_bytes: gpu.map(|gpu| gpu.memory_bytes).or_else(host::memory_bytes),
                batch_size_min: 1,
                batch_size_max: batch_size_max.min(self.spec.global_batch_size).max(1),
            },
            data_address: self.advertised(local)?,
            call_timeout: CALL_TIMEOUT,
            master_timeout: self.spec.deadlines(None).master,
        };
        Ok(NodeSession::connect(config, on_notice)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use antdt_core::ParamGroup;

    use super::*;

    fn env() -> NodeEnv {
        NodeEnv {
            master: "127.0.0.1:4000".to_owned(),
            job: "demo".to_owned(),
            token: Token::new("secret").unwrap(),
            tls: true,
            connections: Connections::default(),
            bind: "0.0.0.0".to_owned(),
            advertise: Some("node-7".to_owned()),
            holder: Holder::new(NodeId::worker(2), Incarnation(1)),
            job_start: Duration::from_nanos(1_700_000_000_123_456_789),
            host: Some("rack-3".to_owned()),
            network: Some("/proc/7/fd/8".into()),
            weights: "64,21".parse().unwrap(),
            layout: Some(ParamLayout::new(vec![ParamGroup::trainable("w", 12)], vec![]).unwrap()),
            spec: JobSpec { workers: 4, ..JobSpec::default() },
        }
    }

    fn read(variables: &BTreeMap<String, String>, file: &str) -> Result<NodeEnv, InvalidValue> {
        NodeEnv::read(|name| variables.get(name).cloned(), file)
    }

    #[test]
    fn child_reads_the_variables_of_the_master() {
        let variables: BTreeMap<String, String> = env().variables().into_iter().collect();
        assert_eq!(read(&variables, &env().file()).unwrap(), env());
        let plain = NodeEnv { network: None, weights: ServerWeights::default(), layout: None, ..env() };
        assert_eq!(read(&variables, &plain.file()).unwrap(), plain);
    }

    #[test]
    fn no_variable_holds_the_secret() {
        let env = NodeEnv { token: Token::new("0123456789abcdef").unwrap(), ..env() };
        assert!(env.file().contains(env.token.text()));
        assert!(!env.variables().iter().any(|(_, value)| value.contains(env.token.text())));
    }

    #[test]
    fn missing_or_malformed_variable_or_file_is_named() {
        let variables: BTreeMap<String, String> = env().variables().into_iter().collect();
        let optional = [NodeEnv::ADVERTISE, NodeEnv::HOST];
        for name in variables.keys().filter(|name| !optional.contains(&name.as_str())) {
            let mut without = variables.clone();
            without.remove(name);
            let error = read(&without, &env().file()).unwrap_err();
            assert!(error.to_string().contains(name.as_str()), "{error}");
        }
        let with = |name: &str, value: &str| {
            let mut variables = variables.clone();
            variables.insert(name.to_owned(), value.to_owned());
            read(&variables, &env().file()).unwrap_err().to_string()
        };
        assert!(with(NodeEnv::NODE, "boss").contains("worker-N"));
        assert_eq!(
            with(NodeEnv::INCARNATION, "-1"),
            "ANTDT_INCARNATION = -1: must be a whole number below 2^32"
        );
        let file = env().file().replace("[64,21]", "[1,0]");
        let error = read(&variables, &file).unwrap_err().to_string();
        assert!(error.contains(NodeEnv::FILE) && error.contains("1 to 64 for each server"), "{error}");
    }

    #[test]
    fn others_are_told_the_name_or_the_address_that_they_can_reach() {
        let told = |bind: &str, advertise: Option<&str>, local: &str| {
            let env = NodeEnv { bind: bind.to_owned(), advertise: advertise.map(str::to_owned), ..env() };
            env.advertised(local.parse().unwrap()).unwrap()
        };
        assert_eq!(told("0.0.0.0", Some("node-7"), "0.0.0.0:80"), "node-7:80");
        assert_eq!(told("0.0.0.0", Some("fd00::1"), "[::]:80"), "[fd00::1]:80");
        assert_eq!(told("10.0.0.1", None, "10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(told("::1", None, "[::1]:80"), "[::1]:80");
        assert_eq!(told("0.0.0.0", None, "0.0.0.0:80"), "127.0.0.1:80", "the address towards the master");
    }

    #[test]
    fn a_process_is_on_its_emulated_host_or_on_the_machine_itself() {
        let on = |index: u32, network: Option<&str>| {
            let emulate_network = network.map(|network| network.parse().unwrap());
            let spec = JobSpec { workers: 4, emulate_network, ..JobSpec::default() };
            let holder = Holder::new(NodeId::worker(index), Incarnation(1));
            NodeEnv { holder, spec, ..env() }.host()
        };
        let two = Some("bandwidth=20MB/s,per-host=2");
        assert_eq!(
            [0, 1, 2, 3].map(|index| on(index, two)),
            [0, 0, 1, 1].map(|host| format!("emulated-{host}"))
        );
        assert_eq!(on(3, None), "rack-3", "where the launcher says it is");
        assert_eq!(NodeEnv { host: None, ..env() }.host(), host::name());
    }

    #[test]
    fn a_launcher_may_leave_the_advertised_address_open() {
        let env = NodeEnv { advertise: None, ..env() };
        let variables: BTreeMap<String, String> = env.variables().into_iter().collect();
        assert_eq!(read(&variables, &env.file()).unwrap(), env);
    }
}
