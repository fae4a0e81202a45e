//! The faults of a scenario: listed ones, random ones of each worker, and chaos.

use std::time::Duration;

use antdt_core::{InvalidValue, JobTime, NodeId, Role};
use serde::Deserialize;

use super::models::{Span, named, within};
use crate::Setup;
use crate::model::Fault;
use crate::model::faults::{Chaos, Listed, Poisson, Rate};

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
pub(super) struct FaultSpec {
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
pub(super) struct RateSpec {
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
pub(super) struct ChaosSpec {
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
    pub(super) fn draw(&self, nodes: Vec<NodeId>, job: &Setup) -> Result<Listed, InvalidValue> {
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
    pub(super) fn faults(&self, job: &Setup) -> Result<Vec<(JobTime, Fault)>, InvalidValue> {
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
    pub(super) fn poisson(&self, nodes: &[NodeId], job: &Setup) -> Result<Poisson, InvalidValue> {
        self.kind.check("rate.kind", job)?;
        let (of_nodes, ..) = self.kind.needs();
        let nodes = if of_nodes { nodes } else { &[] };
        let faults = self.kind.faults("rate", nodes, self.length, self.code, self.servers)?;
        let count = u32::try_from(faults.len()).unwrap_or(u32::MAX).max(1);
        let until = self.until.map_or(JobTime::NEVER, |until| JobTime::from_duration(until.0));
        within("rate", Poisson::new([Rate { faults, every: self.every.0 / count }], until))
    }
}
