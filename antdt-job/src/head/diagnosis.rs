//! What a person asks about a running job: which nodes are slow, how that is known, and what was done about it.

use std::collections::{BTreeMap, VecDeque};

use antdt_controller::DecisionRecord;
use antdt_controller::speed::{Slowness, slowness};
use antdt_core::{
    ClusterView, DeviceClass, Holder, JobTime, NodeId, NodeLoad, NodeStatus, NodeView, Pace, PaceEstimate,
    PlanVersion, Role, StepView,
};
use antdt_monitor::{LinkVerdict, StepArrival};

use super::core::HeadCore;

/// Chance that noise alone puts a ratio outside of its bounds: 0.1 %, that of the policy `nd`.
const ERROR_RATE: f64 = 0.001;

/// Ratio from which a node counts as a straggler before it has a label, if noise explains none of it: 1.3, that of the labels.
const STRAGGLER_RATIO: f64 = 1.3;

/// Share of the time of a host's CPUs from which on load by others counts as the cause of its slowness. 0.25: services of an idle
/// system take a few percent, and a single busy process on up to four CPUs takes as much.
const OTHERS_MIN: f64 = 0.25;

/// Share of that time in which the CPUs must be busy for it. 0.75: with more of them idle, a thread that may run finds one.
const BUSY_MIN: f64 = 0.75;

/// Share of steal from which on it counts as the cause whatever else is idle, for what was stolen was wanted. 0.1: a plan that gains less is
/// hardly worth its change.
const STEAL_MIN: f64 = 0.1;

/// Actions that are kept for a diagnosis: the newest so many.
const DONE_KEPT: usize = 32;

/// A decision of the policy or of the head, as a diagnosis shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Done {
    /// Time of the decision.
    pub at: JobTime,
    /// Name of the action, such as `ADJUST_BS`, `KILL_RESTART` or `NONE`.
    pub kind: String,
    /// Node that the action concerns, or `all`.
    pub target: String,
    /// Reason of the decision.
    pub reason: String,
}

impl From<&DecisionRecord> for Done {
    fn from(record: &DecisionRecord) -> Self {
        let target = record.target().map_or_else(|| "all".to_owned(), |holder| holder.node.to_string());
        Self { at: record.at, kind: record.kind().to_owned(), target, reason: record.reason() }
    }
}

/// The newest actions of a job, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct DoneLog(VecDeque<Done>);

impl DoneLog {
    pub(super) fn push(&mut self, done: Done) {
        if self.0.len() == DONE_KEPT {
            self.0.pop_front();
        }
        self.0.push_back(done);
    }
}

/// What the master knows about the pace of one node.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeDiagnosis {
    /// The node and its present incarnation.
    pub holder: Holder,
    /// Stage of the node in its life.
    pub status: NodeStatus,
    /// Device class of the node.
    pub device: DeviceClass,
    /// Pace of the node, as the monitor judges it by whole windows.
    pub pace: Pace,
    /// Whether the node counts as a straggler: by its pace, or because it takes at least 1.3 times as long
    /// per sample as its peers and noise explains no part of that.
    pub straggler: bool,
    /// The node's time per sample divided by the lower median of all workers; `None` for a server, and while
    /// too little is known.
    pub ratio: Option<f64>,
    /// Lower and upper bound of `ratio`, at the error rate of the diagnosis.
    pub bounds: Option<(f64, f64)>,
    /// Number of batches that the ratio is based on: those since the node's pace last changed, at most 64.
    pub batches: u32,
    /// Approximate time at which the pace last changed, or the node's first batch began.
    pub pace_since: Option<JobTime>,
    /// Share of the long window in which the node was slow, 0 to 1.
    pub slow_share: f64,
    /// Samples per batch in the plan in force; 0 for a server.
    pub batch_size: u32,
    /// Share of the node's time that it waits for data, `data_wait / (data_wait + compute)`, 0 to 1.
    pub data_wait_share: f64,
    /// When the worker comes to the common steps, and how long it waits there for others; `None` for a server, before the
    /// first step under the plan in force, and in modes whose workers do not wait for each other.
    #[cfg_attr(feature = "serde", serde(default))]
    pub arrival: Option<StepArrival>,
    /// Name of the host that the node runs on, as the node reports it.
    pub host: String,
    /// Newest load that the node's operating system reported; `None` before the first report.
    #[cfg_attr(feature = "serde", serde(default))]
    pub load: Option<NodeLoad>,
}

/// A host all of whose workers are slow: while workers of other hosts are not, or while all workers are slower than before and the
/// host's CPUs are busy with others.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlowHost {
    /// Name of the host, as its nodes report it.
    pub host: String,
    /// Workers that run on the host.
    pub workers: Vec<NodeId>,
    /// Lower median of the slowness ratios of the host's workers; `None` if none is known, and where all hosts are slow.
    pub ratio: Option<f64>,
    /// Load of the host's CPUs; `None` if the systems of its nodes do not say.
    #[cfg_attr(feature = "serde", serde(default))]
    pub load: Option<HostLoad>,
}

/// Load of the CPUs of a host, in shares of the time of all of them, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostLoad {
    /// Share in which the CPUs were busy.
    pub busy: f64,
    /// Share that went to others than the nodes of this job, `steal` included. The master of the job counts as another.
    pub others: f64,
    /// Share that other guests of the host's machine had while it was wanted here; `None` if not known.
    pub steal: Option<f64>,
}

impl HostLoad {
    /// The load of a host by what its nodes report; `None` if one of them does not say what it uses.
    fn of(nodes: &[&NodeDiagnosis]) -> Option<Self> {
        let loads: Vec<NodeLoad> = nodes.iter().map(|node| node.load).collect::<Option<_>>()?;
        let own: f64 = loads.iter().map(|load| load.own_busy).sum::<Option<f64>>()?;
        // Each node says the same of the host, but for when it looked.
        let middle = |of: fn(&NodeLoad) -> Option<f64>| {
            let mut shares: Vec<f64> = loads.iter().filter_map(of).collect();
            shares.sort_by(f64::total_cmp);
            shares.get(shares.len().saturating_sub(1) / 2).copied()
        };
        let busy = middle(|load| load.host_busy)?;
        Some(Self { busy, others: (busy - own).max(0.0), steal: middle(|load| load.host_steal) })
    }

    /// Returns whether the load by others explains that the nodes of the host are slow: others have at least a quarter of CPUs that are
    /// busy for at least three quarters of the time, or at least a tenth is stolen.
    pub fn explains(&self) -> bool {
        let of_others = self.others >= OTHERS_MIN && self.busy >= BUSY_MIN;
        of_others || self.steal.is_some_and(|steal| steal >= STEAL_MIN)
    }
}

/// Answer to the question which nodes of a running job are slow, and what was done about them.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Diagnosis {
    /// Name of the policy.
    pub policy: String,
    /// Whether the decisions of the policy are only recorded.
    pub dry_run: bool,
    /// Chance that noise alone puts a ratio outside of its bounds.
    pub error_rate: f64,
    /// Version of the plan in force.
    pub plan: PlanVersion,
    /// Durations of the steps under the newest plan; `None` before the first step, and in modes whose workers
    /// do not wait for each other.
    pub step: Option<StepView>,
    /// Factor by which all workers together are slower than at their best under the same plan; `None` while
    /// they are not slower.
    pub slowdown: Option<f64>,
    /// Hosts of at least two workers, all of which are stragglers while workers of other hosts are not; and while all workers are
    /// slower than before, the hosts whose CPUs are busy with others. Ordered by name.
    pub hosts: Vec<SlowHost>,
    /// Connections that are slower than the others, ordered by their nodes.
    #[cfg_attr(feature = "serde", serde(default))]
    pub links: Vec<LinkVerdict>,
    /// All workers and servers, ordered by id.
    pub nodes: Vec<NodeDiagnosis>,
    /// The newest decision; `None` before the first.
    pub decision: Option<Done>,
    /// The newest actions, oldest first.
    pub done: Vec<Done>,
}

impl HeadCore {
    pub(super) fn diagnose(&self, now: JobTime) -> Diagnosis {
        let view = self.view(now, self.detector.samples_per_second());
        let nodes = self.diagnose_nodes(now, &view);
        Diagnosis {
            policy: self.dispatcher.policy().to_owned(),
            dry_run: self.dispatcher.is_dry_run(),
            error_rate: ERROR_RATE,
            plan: view.plan,
            step: view.step,
            slowdown: self.detector.global_slowdown(),
            hosts: slow_hosts(&nodes, self.detector.global_slowdown().is_some()),
            links: self.detector.slow_links().copied().collect(),
            nodes,
            decision: self.dispatcher.newest_decision().map(Done::from),
            done: self.done.0.iter().cloned().collect(),
        }
    }

    fn diagnose_nodes(&self, now: JobTime, view: &ClusterView) -> Vec<NodeDiagnosis> {
        let is_live = |node: &NodeView| node.status == NodeStatus::Running;
        let estimates: Vec<Option<PaceEstimate>> =
            view.workers.iter().map(|node| node.estimate.filter(|_| is_live(node))).collect();
        let ratios = slowness(&estimates, ERROR_RATE).into_iter().chain(std::iter::repeat(None));
        let of_node = |(node, known): (&NodeView, Option<Slowness>)| {
            let is_slow = |it: Slowness| it.low > 1.0 && it.ratio >= STRAGGLER_RATIO;
            NodeDiagnosis {
                holder: Holder::new(node.id, node.incarnation),
                status: node.status,
                device: node.device.clone(),
                pace: node.pace,
                straggler: is_live(node) && (node.pace.is_straggler() || known.is_some_and(is_slow)),
                ratio: known.map(|it| it.ratio),
                bounds: known.map(|it| (it.low, it.high)),
                batches: node.estimate.map_or(0, |it| it.batches),
                pace_since: self.detector.observe(now, node.id).and_then(|it| it.pace_since),
                slow_share: node.slow_fraction_long,
                batch_size: node.batch_size,
                data_wait_share: self.detector.data_wait_share(node.id),
                arrival: view.step.and_then(|_| self.detector.arrival(node.id)).filter(|_| is_live(node)),
                host: self.host(Holder::new(node.id, node.incarnation)).to_owned(),
                load: self.detector.load(node.id),
            }
        };
        view.workers.iter().chain(&view.servers).zip(ratios).map(of_node).collect()
    }
}

/// Hosts all of whose workers are stragglers, at least two, while a worker of another host is none. While all workers are slower than
/// before no peer shows it: then those whose CPUs are busy with others.
fn slow_hosts(nodes: &[NodeDiagnosis], all_are_slow: bool) -> Vec<SlowHost> {
    let mut hosts: BTreeMap<&str, Vec<&NodeDiagnosis>> = BTreeMap::new();
    let is_there = |node: &&NodeDiagnosis| node.status == NodeStatus::Running && !node.host.is_empty();
    for node in nodes.iter().filter(is_there) {
        hosts.entry(&node.host).or_default().push(node);
    }
    let loads: BTreeMap<&str, HostLoad> =
        hosts.iter().filter_map(|(host, nodes)| Some((*host, HostLoad::of(nodes)?))).collect();
    for nodes in hosts.values_mut() {
        nodes.retain(|node| node.holder.node.role == Role::Worker);
    }
    hosts.retain(|_, workers| !workers.is_empty());
    let is_slow = |workers: &[&NodeDiagnosis]| workers.iter().all(|worker| worker.straggler);
    let is_peerless = hosts.values().all(|workers| is_slow(workers));
    let slow = hosts.into_iter().filter(|(host, workers)| {
        let stands_out = !is_peerless && workers.len() > 1 && is_slow(workers);
        stands_out || (all_are_slow && loads.get(host).is_some_and(HostLoad::explains))
    });
    slow.map(|(host, workers)| {
        let load = loads.get(host).copied();
        let mut ratios: Vec<f64> = workers.iter().filter_map(|worker| worker.ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let is_known = !is_peerless && is_slow(&workers);
        let ratio = ratios.get(ratios.len().saturating_sub(1) / 2).copied().filter(|_| is_known);
        let workers = workers.iter().map(|worker| worker.holder.node).collect();
        SlowHost { host: host.to_owned(), workers, ratio, load }
    })
    .collect()
}
