//! What the job of a scenario meets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_core::text::parse_duration;
use antdt_core::{InvalidValue, JobTime, NodeId, Role};
use serde::{Deserialize, Deserializer, de::Error};

use super::ScenarioError;
use super::expect::Expectation;
use super::job::JobFile;
use crate::Setup;
use crate::model::compute::{
    self, Bursts, ByRole, DeviceTable, DeviceTimes, LogNormal, Normal, Series, Slow, Slowdowns, Straggler,
    Who,
};
use crate::model::faults::{Chaos, Listed, Merged, Poisson, Rate};
use crate::model::network::{AlphaBeta, Jitter, Loss, Order, SharedNic};
use crate::model::scheduler::{self, ByLife, Market, MarketEvent, Quantiles, Refusing, Spot};
use crate::model::{Compute, Fault, Faults, Host, Hosts, Models, Network, Scheduler};
use crate::replay::{ReplayError, read_devices, read_gavel, read_market, read_pending, read_slowdowns};

/// A duration with its unit: `200ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parse_duration(&String::deserialize(from)?).map(Self).map_err(D::Error::custom)
    }
}

pub(super) type Actions = Vec<String>;

/// A file, with what is expected of its job.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub(super) job: Option<JobFile>,
    #[serde(default)]
    pub(super) expect: Expectation,
    #[serde(default)]
    compute: ComputeSpec,
    #[serde(default)]
    straggler: Vec<StragglerSpec>,
    #[serde(default)]
    network: NetworkSpec,
    #[serde(default)]
    scheduler: SchedulerSpec,
    #[serde(default)]
    fault: Vec<FaultSpec>,
    #[serde(default)]
    rate: Vec<RateSpec>,
    chaos: Option<ChaosSpec>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct ComputeSpec {
    /// Samples per second of each worker.
    speed: Option<f64>,
    /// Time of a batch whatever its size.
    fixed: Span,
    devices: Option<DevicesSpec>,
    noise: Option<NoiseSpec>,
    bursts: Option<BurstsSpec>,
    slowdowns: Option<SlowdownsSpec>,
    /// Time that a server is busy with one request.
    server: Span,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct DevicesSpec {
    file: PathBuf,
    /// Of the file, if it is a table of many models as Gavel's.
    model: Option<String>,
    /// Of the workers in turn.
    of: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct NoiseSpec {
    kind: NoiseKind,
    variation: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NoiseKind {
    Normal,
    LogNormal,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct BurstsSpec {
    gap: Span,
    length: Span,
    factor: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct SlowdownsSpec {
    file: PathBuf,
    #[serde(default = "one")]
    speedup: f64,
}

const fn one() -> f64 {
    1.0
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StragglerSpec {
    worker: Option<u32>,
    server: Option<u32>,
    host: Option<u32>,
    slow: f64,
    #[serde(default)]
    from: Span,
    to: Option<Span>,
    #[serde(default)]
    restart: RestartEffect,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RestartEffect {
    #[default]
    Keeps,
    Cures,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct NetworkSpec {
    latency: Span,
    /// Bytes per second.
    bandwidth: f64,
    inside_latency: Option<Span>,
    inside_bandwidth: Option<f64>,
    algorithm: String,
    nic: Nic,
    jitter: Option<Span>,
    order: OrderSpec,
    loss: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Nic {
    Shared,
    Unlimited,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OrderSpec {
    Kept,
    Lost,
}

impl Default for NetworkSpec {
    fn default() -> Self {
        Self {
            latency: Span(Duration::from_secs_f64(CostModel::LOOPBACK.alpha)),
            bandwidth: CostModel::LOOPBACK.bandwidth,
            inside_latency: None,
            inside_bandwidth: None,
            algorithm: Choice::default().to_string(),
            nic: Nic::Shared,
            jitter: None,
            order: OrderSpec::Kept,
            loss: 0.0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct SchedulerSpec {
    /// From the machine to the registration.
    boot: Span,
    pending: Option<PendingSpec>,
    market: Option<SlowdownsSpec>,
    /// First starts do not wait.
    restarts_only: bool,
    refused: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum PendingSpec {
    /// Start-up times of a production job.
    Production,
    Quantiles(Vec<(f64, f64)>),
    File(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FaultKind {
    Crash,
    Exit,
    Preempt,
    Hang,
    Pause,
    Cut,
    Duplicate,
    PauseMaster,
    RestartLedger,
    RestartMaster,
    ScaleServers,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FaultSpec {
    at: Span,
    kind: FaultKind,
    node: Option<String>,
    host: Option<u32>,
    #[serde(rename = "for")]
    length: Option<Span>,
    code: Option<i32>,
    servers: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RateSpec {
    /// Mean time between two, of each worker.
    every: Span,
    kind: FaultKind,
    #[serde(rename = "for")]
    length: Option<Span>,
    code: Option<i32>,
    servers: Option<u32>,
    until: Option<Span>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ChaosSpec {
    faults_max: u32,
    /// Kinds of faults, each as likely as the others; the six that [`Chaos::draw`] knows if none is named.
    kinds: Option<Vec<FaultKind>>,
    /// Exit codes of processes that end by themselves.
    #[serde(default = "codes")]
    codes: Vec<i32>,
    until: Span,
    longest: Span,
}

fn codes() -> Vec<i32> {
    Chaos::CODES.to_vec()
}

/// Random faults that a scenario may have: 100 MB of them.
const FAULTS_MAX: u32 = 1 << 20;

/// The models of a scenario, with the recordings that they need.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelsSpec {
    compute: ComputeSpec,
    device_times: Option<DeviceTimes>,
    slowdowns: Option<Slowdowns>,
    straggler: Vec<StragglerSpec>,
    network: NetworkSpec,
    scheduler: SchedulerSpec,
    pending: Option<Vec<f64>>,
    market: Option<Vec<(JobTime, MarketEvent)>>,
    fault: Vec<FaultSpec>,
    rate: Vec<RateSpec>,
    chaos: Option<ChaosSpec>,
}

impl ModelsSpec {
    pub(super) fn resolve(
        file: ScenarioFile,
        mut files: impl FnMut(&Path) -> Result<String, ScenarioError>,
    ) -> Result<Self, ScenarioError> {
        let device_times = match &file.compute.devices {
            Some(DevicesSpec { file, model: Some(model), .. }) => {
                Some(load(&mut files, file, |text| read_gavel(text, model))?)
            }
            Some(DevicesSpec { file, model: None, .. }) => Some(load(&mut files, file, read_devices)?),
            None => None,
        };
        let slowdowns = match &file.compute.slowdowns {
            Some(spec) => {
                let compressed = |text: &str| Ok(read_slowdowns(text)?.compressed(spec.speedup)?);
                Some(load(&mut files, &spec.file, compressed)?)
            }
            None => None,
        };
        let pending = match &file.scheduler.pending {
            Some(PendingSpec::File(path)) => Some(load(&mut files, path, read_pending)?),
            Some(PendingSpec::Production | PendingSpec::Quantiles(_)) | None => None,
        };
        let market = match &file.scheduler.market {
            Some(spec) => Some(load(&mut files, &spec.file, |text| read_market(text, spec.speedup))?),
            None => None,
        };
        Ok(Self {
            compute: file.compute,
            device_times,
            slowdowns,
            straggler: file.straggler,
            network: file.network,
            scheduler: file.scheduler,
            pending,
            market,
            fault: file.fault,
            rate: file.rate,
            chaos: file.chaos,
        })
    }

    pub(super) fn build(&self, job: &Setup) -> Result<Models, ScenarioError> {
        let hosts = Hosts::new(job.workers_per_host)?;
        let market = self.market.clone().map(|changes| Market::new(changes, job.workers)).transpose()?;
        Ok(Models {
            compute: self.compute(job, hosts)?,
            network: self.network(hosts)?,
            faults: self.faults(job, market.as_ref())?,
            scheduler: self.scheduler(market)?,
        })
    }

    fn compute(&self, job: &Setup, hosts: Hosts) -> Result<Box<dyn Compute>, ScenarioError> {
        let spec = &self.compute;
        let mut workers: Box<dyn Compute> = match (spec.speed, &self.device_times, &spec.devices) {
            (Some(speed), None, None) => {
                let plain = within("compute", compute::Constant::speed(speed))?;
                Box::new(compute::Constant { fixed: spec.fixed.0, ..plain })
            }
            (None, Some(_), Some(_)) if spec.fixed != Span::default() => {
                let remedy = "left out: the table says how long a batch of each size takes";
                return Err(InvalidValue::new("compute.fixed", "(beside devices)", remedy).into());
            }
            (None, Some(times), Some(devices)) => {
                Box::new(within("compute.devices", DeviceTable::new(times, &devices.of))?)
            }
            (speed, _, _) => {
                let given = if speed.is_some() { "(beside devices)" } else { "(nothing)" };
                let remedy = "a speed in samples per second, such as 1000, or else devices";
                return Err(InvalidValue::new("compute.speed", given, remedy).into());
            }
        };
        match spec.noise {
            Some(NoiseSpec { kind: NoiseKind::Normal, variation }) => {
                workers = Box::new(within("compute.noise", Normal::new(workers, variation))?);
            }
            Some(NoiseSpec { kind: NoiseKind::LogNormal, variation }) => {
                workers = Box::new(within("compute.noise", LogNormal::new(workers, variation))?);
            }
            None => {}
        }
        if let Some(BurstsSpec { gap, length, factor }) = spec.bursts {
            workers = Box::new(within("compute.bursts", Bursts::new(workers, gap.0, length.0, factor))?);
        }
        if let Some(slowdowns) = &self.slowdowns {
            workers = Box::new(Series::new(workers, slowdowns.clone()));
        }
        let servers = compute::Constant { fixed: spec.server.0, per_sample: Duration::ZERO };
        let all = ByRole { workers, servers };
        if self.straggler.is_empty() {
            return Ok(Box::new(all));
        }
        let stragglers = self.straggler.iter().map(|spec| spec.straggler(job));
        Ok(Box::new(Slow::new(all, hosts, stragglers.collect::<Result<Vec<_>, _>>()?)?))
    }

    /// The link inside a host, the one between hosts, and the algorithm of collectives.
    fn links(&self) -> Result<(CostModel, CostModel, Choice), InvalidValue> {
        let spec = &self.network;
        let between = CostModel {
            alpha: spec.latency.0.as_secs_f64(),
            bandwidth: spec.bandwidth,
            ..CostModel::LOOPBACK
        };
        let inside = CostModel {
            alpha: spec.inside_latency.unwrap_or(spec.latency).0.as_secs_f64(),
            bandwidth: spec.inside_bandwidth.unwrap_or(spec.bandwidth),
            ..CostModel::LOOPBACK
        };
        let choice = spec.algorithm.parse().map_err(|_| {
            let names = Choice::ALL.map(|choice| choice.to_string()).join(", ");
            InvalidValue::new("network.algorithm", &spec.algorithm, format!("one of {names}"))
        })?;
        Ok((inside, between, choice))
    }

    fn network(&self, hosts: Hosts) -> Result<Box<dyn Network>, ScenarioError> {
        let spec = &self.network;
        let (inside, between, choice) = self.links()?;
        let plain = within("network", AlphaBeta::new(hosts, inside, between, choice))?;
        let mut network: Box<dyn Network> = match spec.nic {
            Nic::Shared => Box::new(SharedNic::new(plain)),
            Nic::Unlimited => Box::new(plain),
        };
        if let Some(Span(mean)) = spec.jitter {
            let order = match spec.order {
                OrderSpec::Kept => Order::Kept,
                OrderSpec::Lost => Order::Lost,
            };
            network = Box::new(Jitter::new(network, mean, order));
        }
        if spec.loss != 0.0 {
            network = Box::new(within("network", Loss::new(network, spec.loss))?);
        }
        Ok(network)
    }

    fn scheduler(&self, market: Option<Market>) -> Result<Box<dyn Scheduler>, ScenarioError> {
        let spec = &self.scheduler;
        let boot = spec.boot.0;
        let quantiles = match (&spec.pending, &self.pending) {
            (Some(PendingSpec::Production), _) => Some(Quantiles::new(boot, &Quantiles::PRODUCTION)),
            (Some(PendingSpec::Quantiles(points)), _) => Some(Quantiles::new(boot, points)),
            (Some(PendingSpec::File(_)), times) => {
                Some(Quantiles::recorded(boot, times.as_deref().unwrap_or_default()))
            }
            (None, _) => None,
        };
        let quantiles = quantiles.transpose().map_err(|error| named("scheduler.pending", error))?;
        let mut starts: Box<dyn Scheduler> = match (quantiles, market) {
            (Some(quantiles), None) => Box::new(quantiles),
            (None, Some(market)) => Box::new(Spot::new(market, boot)),
            (None, None) => Box::new(scheduler::Constant(boot)),
            (Some(_), Some(_)) => {
                let remedy = "left out: what starts wait for is either a quantile or a machine of the market";
                return Err(InvalidValue::new("scheduler.pending", "(with a market)", remedy).into());
            }
        };
        if spec.refused != 0.0 {
            starts = Box::new(within("scheduler", Refusing::new(starts, spec.refused))?);
        }
        if spec.restarts_only {
            starts = Box::new(ByLife { first: scheduler::Constant(boot), restarts: starts });
        }
        Ok(starts)
    }

    fn faults(&self, job: &Setup, market: Option<&Market>) -> Result<Box<dyn Faults>, ScenarioError> {
        // A server that crashes ends the job: its parameters are gone. Such a fault has to be asked for by name.
        let nodes: Vec<NodeId> = (0..job.workers).map(NodeId::worker).collect();
        let mut listed = Vec::new();
        for fault in &self.fault {
            listed.extend(fault.faults(job)?);
        }
        listed.extend(market.into_iter().flat_map(Market::crashes));
        let mut all: Vec<Box<dyn Faults>> = vec![Box::new(Listed::new(listed))];
        for rate in &self.rate {
            all.push(Box::new(rate.poisson(&nodes, job)?));
        }
        if let Some(chaos) = &self.chaos {
            all.push(Box::new(chaos.draw(nodes, job)?));
        }
        Ok(Box::new(Merged::new(all)))
    }
}

fn load<T>(
    files: &mut impl FnMut(&Path) -> Result<String, ScenarioError>,
    path: &Path,
    read: impl FnOnce(&str) -> Result<T, ReplayError>,
) -> Result<T, ScenarioError> {
    read(&files(path)?).map_err(|error| ScenarioError::Replay { path: path.to_owned(), error })
}

fn named(table: &str, mut error: InvalidValue) -> InvalidValue {
    error.field = format!("{table}.{}", error.field);
    error
}

/// What a model refuses, by the table that it stands in.
pub(super) fn within<T>(table: &str, made: Result<T, InvalidValue>) -> Result<T, InvalidValue> {
    made.map_err(|error| named(table, error))
}

impl StragglerSpec {
    fn straggler(&self, job: &Setup) -> Result<Straggler, InvalidValue> {
        let hosts = job.workers.div_ceil(job.workers_per_host);
        let (who, index, count) = match (self.worker, self.server, self.host) {
            (Some(index), None, None) => (Who::Node(NodeId::worker(index)), index, job.workers),
            (None, Some(index), None) => (Who::Node(NodeId::server(index)), index, job.servers),
            (None, None, Some(index)) => (Who::Host(Host::Workers(index)), index, hosts),
            _ => {
                let remedy = "exactly one: worker, server or host";
                return Err(InvalidValue::new("straggler", "(none or several)", remedy));
            }
        };
        if index >= count {
            let remedy = format!("below {count}: there are no more of its kind in [job]");
            return Err(InvalidValue::new("straggler", index, remedy));
        }
        Ok(Straggler {
            who,
            slow: self.slow,
            from: JobTime::from_duration(self.from.0),
            to: self.to.map_or(JobTime::NEVER, |to| JobTime::from_duration(to.0)),
            cured_by_restart: self.restart == RestartEffect::Cures,
        })
    }
}

impl FaultKind {
    /// What it needs: a node, a length, an exit code.
    const fn needs(self) -> (bool, bool, bool) {
        match self {
            Self::Crash => (true, false, false),
            Self::Exit => (true, false, true),
            Self::Preempt | Self::Hang | Self::Pause | Self::Cut | Self::Duplicate => (true, true, false),
            Self::PauseMaster | Self::RestartMaster => (false, true, false),
            Self::RestartLedger | Self::ScaleServers => (false, false, false),
        }
    }

    /// The fault for each of `nodes`, or the one fault that needs none.
    fn faults(
        self,
        table: &str,
        nodes: &[NodeId],
        length: Option<Span>,
        code: Option<i32>,
        servers: Option<u32>,
    ) -> Result<Vec<Fault>, InvalidValue> {
        let (needs_node, needs_length, needs_code) = self.needs();
        let servers = servers.filter(|servers| *servers > 0);
        let parts = [
            ("servers", self == Self::ScaleServers, servers.is_some(), "a number of servers, from 1"),
            ("node", needs_node, !nodes.is_empty(), "a node, such as \"worker-1\", or a host"),
            ("for", needs_length, length.is_some(), "a time, such as \"5s\""),
            ("code", needs_code, code.is_some(), "an exit code, such as 1"),
        ];
        for (field, needed, given, form) in parts {
            match (needed, given) {
                (true, false) => {
                    return Err(InvalidValue::new(format!("{table}.{field}"), "(nothing)", form));
                }
                (false, true) => {
                    let remedy = format!("left out, since a fault of this kind ({self:?}) has none");
                    return Err(InvalidValue::new(format!("{table}.{field}"), "(given)", remedy));
                }
                (true, true) | (false, false) => {}
            }
        }
        let (length, code) = (length.unwrap_or_default().0, code.unwrap_or_default());
        // Without nodes it is the same for any.
        let nodes = if needs_node { nodes } else { &[NodeId::worker(0)] };
        Ok(nodes.iter().map(|node| self.fault(*node, length, code, servers.unwrap_or_default())).collect())
    }

    /// The fault, with those of these parts that it needs.
    const fn fault(self, node: NodeId, length: Duration, code: i32, servers: u32) -> Fault {
        match self {
            Self::Crash => Fault::Crash(node),
            Self::Exit => Fault::Exit(node, code),
            Self::Preempt => Fault::Preempt(node, length),
            Self::Hang => Fault::Hang(node, length),
            Self::Pause => Fault::Pause(node, length),
            Self::Cut => Fault::Cut(node, length),
            Self::Duplicate => Fault::Duplicate(node, length),
            Self::PauseMaster => Fault::PauseMaster(length),
            Self::RestartLedger => Fault::RestartLedger,
            Self::RestartMaster => Fault::RestartMaster(length, None),
            Self::ScaleServers => Fault::ScaleServers(servers),
        }
    }

    /// Refuses what the job cannot have.
    fn check(self, field: &str, job: &Setup) -> Result<(), InvalidValue> {
        if self == Self::RestartMaster && !job.goes_back {
            let remedy =
                "left out, or job.goes-back = true: nobody can go on with another job when its master ends";
            return Err(InvalidValue::new(field, "restart-master", remedy));
        }
        if self == Self::ScaleServers
            && (job.servers == 0 || !job.goes_back || job.checkpoint_every.is_none())
        {
            let remedy = "left out, or a job with servers, job.goes-back = true and job.checkpoint-every: servers hand \
                          their parameters over through a checkpoint";
            return Err(InvalidValue::new(field, "scale-servers", remedy));
        }
        Ok(())
    }
}

impl ChaosSpec {
    fn draw(&self, nodes: Vec<NodeId>, job: &Setup) -> Result<Listed, InvalidValue> {
        if self.faults_max > FAULTS_MAX {
            let remedy = format!("at most {FAULTS_MAX}");
            return Err(InvalidValue::new("chaos.faults-max", self.faults_max, remedy));
        }
        let chaos = Chaos {
            nodes,
            codes: self.codes.clone(),
            faults_max: self.faults_max,
            until: JobTime::from_duration(self.until.0),
            longest: self.longest.0,
        };
        let rng = &mut job.seed.derive("chaos").rng();
        let Some(kinds) = &self.kinds else { return chaos.draw(rng) };
        if kinds.is_empty() {
            return Err(InvalidValue::new("chaos.kinds", "[]", "at least one kind, or left out"));
        }
        kinds.iter().try_for_each(|kind| kind.check("chaos.kinds", job))?;
        chaos.draw_with(rng, |rng, node, length, code| {
            let kind = kinds[rng.below(kinds.len() as u64) as usize];
            let servers = if kind == FaultKind::ScaleServers { 1 + rng.below(4) as u32 } else { 0 };
            kind.fault(node, length, code, servers)
        })
    }
}

impl FaultSpec {
    fn faults(&self, job: &Setup) -> Result<Vec<(JobTime, Fault)>, InvalidValue> {
        let nodes = match (&self.node, self.host) {
            (Some(node), None) => vec![node.parse().map_err(|error| named("fault", error))?],
            (None, Some(host)) => {
                let first = host.saturating_mul(job.workers_per_host);
                let last = first.saturating_add(job.workers_per_host).min(job.workers);
                if first >= last {
                    let hosts = job.workers.div_ceil(job.workers_per_host);
                    let remedy = format!("below {hosts}: there are no more hosts of workers in [job]");
                    return Err(InvalidValue::new("fault.host", host, remedy));
                }
                (first..last).map(NodeId::worker).collect()
            }
            (None, None) => Vec::new(),
            (Some(node), Some(_)) => {
                return Err(InvalidValue::new("fault.node", node, "left out where a host is given"));
            }
        };
        for node in &nodes {
            let count = if node.role == Role::Worker { job.workers } else { job.servers };
            if node.index >= count {
                let remedy = format!("one of {count} {}s of [job], counted from 0", node.role);
                return Err(InvalidValue::new("fault.node", node, remedy));
            }
        }
        self.kind.check("fault.kind", job)?;
        let at = JobTime::from_duration(self.at.0);
        let faults = self.kind.faults("fault", &nodes, self.length, self.code, self.servers)?;
        Ok(faults.into_iter().map(|fault| (at, fault)).collect())
    }
}

impl RateSpec {
    fn poisson(&self, nodes: &[NodeId], job: &Setup) -> Result<Poisson, InvalidValue> {
        self.kind.check("rate.kind", job)?;
        let (of_nodes, ..) = self.kind.needs();
        let nodes = if of_nodes { nodes } else { &[] };
        let faults = self.kind.faults("rate", nodes, self.length, self.code, self.servers)?;
        let count = u32::try_from(faults.len()).unwrap_or(u32::MAX).max(1);
        let until = self.until.map_or(JobTime::NEVER, |until| JobTime::from_duration(until.0));
        within("rate", Poisson::new([Rate { faults, every: self.every.0 / count }], until))
    }
}
