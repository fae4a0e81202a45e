//! What the job of a scenario meets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_core::text::parse_duration;
use antdt_core::{InvalidValue, JobTime, NodeId};
use serde::{Deserialize, Deserializer, de::Error};

use super::ScenarioError;
use super::expect::Expectation;
use super::faults::{ChaosSpec, FaultSpec, RateSpec};
use super::job::JobFile;
use crate::Setup;
use crate::model::compute::{
    self, Bursts, ByRole, DeviceTable, DeviceTimes, LogNormal, Normal, Series, Slow, Slowdowns, Straggler,
    Who,
};
use crate::model::faults::{Listed, Merged};
use crate::model::network::{AlphaBeta, Jitter, Loss, Order, SharedNic};
use crate::model::scheduler::{self, ByLife, Market, MarketEvent, Quantiles, Refusing, Spot};
use crate::model::{Compute, Faults, Host, Hosts, Models, Network, Scheduler};
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

pub(super) fn named(table: &str, mut error: InvalidValue) -> InvalidValue {
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
