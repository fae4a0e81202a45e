//! [`StragglerDetector`]: judges nodes from their batch reports.
//!
//! Pace is judged on local compute time **per sample**. Other times do not show stragglers, for two reasons:
//! * *the barrier hides stragglers*: in synchronous training every node has the same step time;
//! * *new batch sizes hide stragglers*: after a rebalancing every node has the same batch time.
//!
//! A node's ratio is its time per sample over the lower median of all live nodes of its role and device
//! class, itself included. With two nodes that compares the slower with the faster one; with three or four it
//! finds one slow node; with half of them slow it finds that half. If all nodes are equally slow, none is a
//! straggler: their ratios are 1. A node without peers gets no verdict.
//!
//! By the [default rule](crate::rule::RatioRule) a node is no straggler while noise can explain its ratio: see [`ERROR_RATE`](crate::ERROR_RATE).
//!
//! Verdicts are given once for every [`beat_batches`](crate::WindowConfig::beat_batches) batches of the mean node
//! of a role. The reaction lag to a change is therefore half a short window plus a quarter: 15 batches.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{
    BatchReport, BatchView, Holder, Incarnation, InvalidValue, JobTime, LinkReport, Machine, NodeId,
    NodeInfo, NodeLoad, NodeMap, Pace, PaceEstimate, Phase, Role, Stall, StepView, StragglerKind,
};

use crate::baseline::Baseline;
use crate::config::MonitorConfig;
use crate::deadlines::Deadlines;
use crate::hang::Suspicion;
use crate::links::{LinkChange, LinkVerdict, LinkWatch};
use crate::liveness::{Liveness, LivenessTracker};
use crate::segment::Segment;
use crate::stats::lower_median;
use crate::steps::{BatchLog, StepArrival};
use crate::window::{LongWindow, SampleTime, ShortWindow};

mod role;
mod watched;

use role::RoleState;
use watched::Watched;

/// A part of a batch longer than this is a broken clock, not a batch.
const PART_MAX: Duration = Duration::from_secs(24 * 3600);

/// Batches of each worker after which the silence limit follows the longest of them, until there is a median.
const EARLY_BATCHES: u64 = 3;

/// An input of a [`StragglerDetector`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectorEvent {
    /// An incarnation of a node registered.
    Joined(NodeInfo),
    /// An incarnation of a node ended, for any reason.
    Left(Holder),
    /// A heartbeat of a node arrived.
    Heartbeat(Holder),
    /// A node reported a finished batch.
    Report(BatchReport),
}

/// Whether the detector used an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportAnswer {
    /// The detector used the event.
    Accepted,
    /// The detector ignored the event: it does not watch this node, or watches a later incarnation of it.
    UnknownHolder,
    /// The detector ignored the report: it used this one or a later one before.
    Repeated,
    /// The detector refused the report because its numbers are impossible; the text names them.
    Malformed(&'static str),
}

/// A change of which the detector informs its driver.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum MonitorEffect {
    /// The verdict on a node changed.
    PaceChanged {
        /// Node and incarnation that the verdict is about.
        holder: Holder,
        /// Previous verdict.
        from: Pace,
        /// New verdict.
        to: Pace,
        /// Time per sample over the median of the peers, in the short window; `None` while unknown.
        slowness_ratio: Option<f64>,
    },
    /// All workers together have become slower than they were under the same plan, by this factor; `None`
    /// when that ends.
    GlobalSlowdown(Option<f64>),
    /// A node has missed heartbeats. The driver need not act yet.
    Late(Holder),
    /// A node is silent for so long that it counts as lost: the driver fences it, then replaces it.
    Silent(Holder),
    /// A worker has made no progress for longer than usual. The driver need not act yet.
    Stalled(Holder, Stall),
    /// The training thread of a worker hangs: the driver fences the worker, then replaces it.
    Hung(Holder, Stall),
    /// The verdict on a connection between two nodes changed.
    Link(LinkChange),
}

/// The detector's knowledge of one node: the monitor's part of a [`NodeView`](antdt_core::NodeView).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Verdict on the node's pace.
    pub pace: Pace,
    /// Median compute time per sample over the short window, from batches under the newest plan only; `None`
    /// until they fill half of it (the warm-up of a new incarnation counts towards the half).
    pub sample_time_short: Option<Duration>,
    /// Median compute time per sample over the long window. Before the first verdict it is the median over
    /// the short window, or `None`.
    pub sample_time_long: Option<Duration>,
    /// Estimate of the time per sample from the batches since the last change of pace; `None` before the
    /// second batch after the warm-up.
    pub estimate: Option<PaceEstimate>,
    /// Durations of the node's batches under the newest plan; `None` before the first.
    pub batch: Option<BatchView>,
    /// Estimated time at which the node's pace changed last: the report that showed the change, less the
    /// duration of the batches since. Without a change it is the start of the incarnation's first batch;
    /// `None` before the first report.
    pub pace_since: Option<JobTime>,
    /// Time per sample over the median of the peers, in the short window at the last verdict; `None` while
    /// unknown.
    pub slowness_ratio: Option<f64>,
    /// Share of the long window in which the node was slow, 0 to 1.
    pub slow_fraction_long: f64,
    /// Time since the node's newest report, whether it trained, evaluated or did anything else; `None` before the
    /// first report.
    pub last_report_age: Option<Duration>,
    /// Whether the node's heartbeats arrive.
    pub liveness: Liveness,
}

/// Judges the pace of every node from its batch reports, and detects silent nodes. It takes no action itself.
///
/// Memory is bounded per node: 80 batches, 40 verdicts, and the times of the 20 newest batches and of 32 under the newest plan by
/// default.
#[derive(Debug)]
pub struct StragglerDetector {
    config: MonitorConfig,
    nodes: NodeMap<Watched>,
    roles: BTreeMap<Role, RoleState>,
    liveness: LivenessTracker,
    links: LinkWatch,
    effects: VecDeque<MonitorEffect>,
}

impl StragglerDetector {
    /// Returns a detector that judges by [`MonitorConfig::rule`].
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: MonitorConfig) -> Result<Self, InvalidValue> {
        config.validate()?;
        Ok(Self {
            nodes: NodeMap::new(),
            roles: BTreeMap::new(),
            liveness: LivenessTracker::new(config.liveness),
            links: LinkWatch::default(),
            config,
            effects: VecDeque::new(),
        })
    }

    /// Records that an incarnation of a node registered. Everything known of earlier incarnations is
    /// forgotten; a registration of the same or an earlier one changes nothing.
    pub fn node_joined(&mut self, now: JobTime, info: &NodeInfo) -> ReportAnswer {
        let Holder { node, incarnation } = info.holder;
        if let Some(known) = self.nodes.get(node).map(|watched| watched.incarnation) {
            if incarnation < known {
                return ReportAnswer::UnknownHolder;
            }
            if incarnation == known {
                return ReportAnswer::Repeated;
            }
            self.node_left(now, Holder::new(node, known));
        }
        let role = self.roles.entry(node.role).or_insert_with(|| RoleState::new(&self.config));
        let class = role.enter(&info.device);
        let config = &self.config.window;
        self.nodes.insert(
            node,
            Watched {
                incarnation,
                class,
                short: ShortWindow::new(*config),
                long: LongWindow::new(config),
                segment: Segment::default(),
                batches: BatchLog::default(),
                last_sequence: None,
                last_report: None,
                pace_since: None,
                pace_peers: Pace::Unknown,
                pace: Pace::Unknown,
                slowness_ratio: None,
                suspicion: Suspicion::None,
                load: None,
                host: info.host.as_str().into(),
            },
        );
        self.liveness.watch(now, info.holder);
        ReportAnswer::Accepted
    }

    /// Records that an incarnation of a node ended. A later incarnation of the same node is not affected.
    pub fn node_left(&mut self, _now: JobTime, holder: Holder) -> ReportAnswer {
        let known = self.nodes.get(holder.node).filter(|watched| watched.incarnation == holder.incarnation);
        let Some(class) = known.map(|watched| watched.class) else { return ReportAnswer::UnknownHolder };
        let gone = self.nodes.remove(holder.node);
        self.liveness.forget(holder);
        self.effects.extend(self.links.forget(holder.node).into_iter().map(MonitorEffect::Link));
        let role = self.roles.get_mut(&holder.node.role).expect("a role is entered before its first node");
        if let Some(mut gone) = gone {
            gone.segment.leave(&mut role.device_classes[class].noise);
        }
        role.leave(class);
        ReportAnswer::Accepted
    }

    /// Records at `now` that a heartbeat of the node arrived.
    pub fn heartbeat(&mut self, now: JobTime, holder: Holder) -> ReportAnswer {
        match self.liveness.heard(now, holder) {
            Some(_) => ReportAnswer::Accepted,
            None => ReportAnswer::UnknownHolder,
        }
    }

    /// Records that the training thread of a worker makes no progress while its heartbeats go on.
    pub fn stalled(&mut self, holder: Holder, stall: Stall) -> ReportAnswer {
        let others = self.step_longest();
        let watched = self.nodes.get_mut(holder.node);
        let Some(watched) = watched.filter(|watched| watched.incarnation == holder.incarnation) else {
            return ReportAnswer::UnknownHolder;
        };
        let suspicion = self.config.hang.judge(stall, watched.short.step_time(), others);
        if suspicion > watched.suspicion {
            self.effects.push_back(match suspicion {
                Suspicion::Hung => MonitorEffect::Hung(holder, stall),
                _ => MonitorEffect::Stalled(holder, stall),
            });
        }
        watched.suspicion = suspicion;
        ReportAnswer::Accepted
    }

    /// Records a node's load, as the node's operating system reports it. Reports show the load to people; no
    /// verdict follows from it.
    pub fn loaded(&mut self, holder: Holder, load: NodeLoad) -> ReportAnswer {
        let watched = self.nodes.get_mut(holder.node);
        match watched.filter(|watched| watched.incarnation == holder.incarnation) {
            Some(watched) => {
                watched.load = Some(Box::new(load));
                ReportAnswer::Accepted
            }
            None => ReportAnswer::UnknownHolder,
        }
    }

    /// Records what went from a node to its peers.
    pub fn transferred(&mut self, now: JobTime, holder: Holder, reports: &[LinkReport]) -> ReportAnswer {
        let sender = self.nodes.get(holder.node).filter(|watched| watched.incarnation == holder.incarnation);
        let Some(sender) = sender else { return ReportAnswer::UnknownHolder };
        for report in reports {
            // What went to a node that has ended is of no use any more.
            let Some(receiver) = self.nodes.get(report.to) else { continue };
            let within = receiver.host == sender.host;
            let changes = self.links.reported(now, holder.node, within, report);
            self.effects.extend(changes.into_iter().map(MonitorEffect::Link));
        }
        ReportAnswer::Accepted
    }

    /// Returns the connections that are slower than the others, ordered by their nodes.
    pub fn slow_links(&self) -> impl Iterator<Item = &LinkVerdict> {
        self.links.slow()
    }

    /// Returns the newest load that a node has reported; `None` if the node is not watched, or has reported
    /// none.
    pub fn load(&self, node: NodeId) -> Option<NodeLoad> {
        self.nodes.get(node)?.load.as_deref().copied()
    }

    /// Returns the share of a node's batch time that the node waited for data: `data_wait / (data_wait +
    /// compute)`, over its batches under the newest plan. 0 before the first batch, and for a node that is
    /// not watched.
    pub fn data_wait_share(&self, node: NodeId) -> f64 {
        self.nodes.get(node).map_or(0.0, |watched| watched.batches.data_wait_share())
    }

    /// Returns when a worker comes to the steps that all take together, and how long it waits there for the others; `None`
    /// before the first step under the newest plan, and for a node that is not watched. The value has no meaning in modes whose
    /// workers do not wait for each other in every step.
    pub fn arrival(&self, node: NodeId) -> Option<StepArrival> {
        self.roles.get(&node.role)?.steps.arrival(node, &self.nodes.get(node)?.batches)
    }

    /// Records a finished batch. It counts as a heartbeat; only batches of [`Phase::Train`] are judged. That of
    /// [`Phase::WarmUp`] is one of those that a window [skips](crate::WindowConfig::warmup_batches).
    pub fn report(&mut self, now: JobTime, report: &BatchReport) -> ReportAnswer {
        let node = report.holder.node;
        let watched = self.nodes.get_mut(node);
        let Some(watched) = watched.filter(|watched| watched.incarnation == report.holder.incarnation) else {
            return ReportAnswer::UnknownHolder;
        };
        if let Some(what) = malformed(report) {
            return ReportAnswer::Malformed(what);
        }
        if watched.last_sequence.is_some_and(|last| report.sequence <= last) {
            return ReportAnswer::Repeated;
        }
        watched.last_sequence = Some(report.sequence);
        watched.last_report = Some(now);
        watched.suspicion = Suspicion::None;
        self.liveness.heard(now, report.holder);
        let is_warm = match report.phase {
            Phase::Train => true,
            Phase::WarmUp => false,
            Phase::Evaluate | Phase::Checkpoint => return ReportAnswer::Accepted,
        };
        watched.short.push(report);
        if is_warm && node.role == Role::Worker {
            watched.batches.push(report);
        }

        let role = self.roles.get_mut(&node.role).expect("a role is entered before its first node");
        if let Some(time) = SampleTime::of(report.compute, report.samples) {
            let changed = watched.segment.push(time, &mut role.device_classes[watched.class].noise);
            let first = watched.pace_since.is_none().then_some(1);
            if let Some(batches) = changed.or(first) {
                let batches = u32::try_from(batches).unwrap_or(u32::MAX);
                watched.pace_since = Some(now - report.wall().saturating_mul(batches));
            }
        }
        if node.role == Role::Worker && role.step_median.is_none() {
            let (batches, longest) = &mut role.early;
            *batches += 1;
            *longest = (*longest).max(report.wall());
            role.step_longest = Some(*longest);
            if *batches >= role.live * EARLY_BATCHES {
                self.liveness.follow(*longest);
            }
        }
        role.steps.push(report, role.live);
        if report.plan > role.plan {
            role.plan = report.plan;
            role.device_classes.iter_mut().for_each(|class| class.baseline = Baseline::default());
        }
        role.reports_since_beat += 1;
        if role.reports_since_beat >= role.live * u64::from(self.config.window.beat_batches()) {
            role.reports_since_beat = 0;
            self.beat(node.role);
        }
        ReportAnswer::Accepted
    }

    /// Returns what the detector knows of a node; `None` if the node is not watched.
    pub fn observe(&self, now: JobTime, node: NodeId) -> Option<Observation> {
        let watched = self.nodes.get(node)?;
        let role = &self.roles[&node.role];
        let step = role.step_median.or_else(|| watched.short.step_time()).unwrap_or_default();
        let short = watched.short.sample_time_under(role.plan, step);
        Some(Observation {
            incarnation: watched.incarnation,
            pace: watched.pace,
            sample_time_short: short.map(SampleTime::duration),
            sample_time_long: watched.long.sample_time().or(short).map(SampleTime::duration),
            estimate: watched.segment.estimate(&role.device_classes[watched.class].noise),
            batch: watched.batches.view(),
            pace_since: watched.pace_since,
            slowness_ratio: watched.slowness_ratio,
            slow_fraction_long: watched.long.slow_fraction(),
            last_report_age: watched.last_report.map(|last| now.since(last)),
            liveness: self.liveness.state(Holder::new(node, watched.incarnation))?,
        })
    }

    fn step_longest(&self) -> Option<Duration> {
        self.roles.get(&Role::Worker).and_then(|role| role.step_longest)
    }

    /// Returns the deadlines of the job, derived from the settings and from the present duration of its
    /// steps.
    pub fn deadlines(&self) -> Deadlines {
        Deadlines::derive(&self.config, self.step_longest())
    }

    /// Returns the samples per second of all workers together, over the short window, waiting included.
    pub fn samples_per_second(&self) -> f64 {
        let step = self.roles.get(&Role::Worker).and_then(|role| role.step_median);
        self.nodes
            .of_role(Role::Worker)
            .map(|(_, watched)| {
                let step = step.or_else(|| watched.short.step_time()).unwrap_or_default();
                watched.short.samples_per_second(step)
            })
            .sum()
    }

    /// Returns the duration of synchronous steps that all workers completed under the newest plan; `None`
    /// before the first one. The value has no meaning in modes whose workers do not wait for each other in
    /// every step.
    pub fn steps(&self) -> Option<StepView> {
        self.roles.get(&Role::Worker).and_then(|role| role.steps.view())
    }

    /// Returns the factor by which all workers together are slower than they were at their best under the same plan, such as 2 for
    /// twice the time per sample; `None` while they are not.
    pub fn global_slowdown(&self) -> Option<f64> {
        self.roles.get(&Role::Worker).and_then(|role| role.slowdown)
    }

    /// Returns the stragglers of all kinds, in the order of their node ids.
    pub fn stragglers(&self) -> impl Iterator<Item = (NodeId, StragglerKind)> + '_ {
        self.nodes.iter().filter_map(|(id, watched)| match watched.pace {
            Pace::Straggler(kind) => Some((id, kind)),
            Pace::Unknown | Pace::Normal | Pace::Leader => None,
        })
    }

    /// Judges every node of a role.
    fn beat(&mut self, role: Role) {
        let state = self.roles.get_mut(&role).expect("a role is entered before its first node");
        let mut steps: Vec<Duration> = Vec::new();
        for (_, watched) in self.nodes.of_role(role) {
            steps.extend(watched.short.step_time());
        }
        state.step_longest = steps.iter().max().copied().or(state.step_longest);
        state.step_median = lower_median(&mut steps);
        let Some(step) = state.step_median else { return };
        if role == Role::Worker {
            self.liveness.follow(step);
        }

        let mut known: Vec<Vec<SampleTime>> = vec![Vec::new(); state.device_classes.len()];
        for (_, watched) in self.nodes.of_role(role) {
            known[watched.class].extend(watched.short.sample_time(step));
        }
        let peers: Vec<usize> = known.iter().map(Vec::len).collect();
        let medians: Vec<Option<SampleTime>> = known.iter_mut().map(|times| lower_median(times)).collect();
        for (class, median) in state.device_classes.iter_mut().zip(&medians) {
            if let Some(median) = median {
                class.baseline.push(*median, |ratio| self.config.rule.is_slow(ratio));
            }
        }
        if role == Role::Worker {
            let slowdown = state.slowdown_of_all(&medians);
            if slowdown.is_some() != state.slowdown.is_some() {
                self.effects.push_back(MonitorEffect::GlobalSlowdown(slowdown));
            }
            state.slowdown = slowdown;
        }
        let by_name = state.device_classes.iter().zip(&medians);
        let by_name = by_name.filter_map(|(class, median)| Some((class.name.clone(), (*median)?))).collect();
        state.slow_classes.push(&by_name, |ratio| self.config.rule.is_slow(ratio));
        let references = state.references(&peers, &medians);

        for (id, watched) in self.nodes.of_role_mut(role) {
            let pace = watched.judge(step, &references[watched.class], &self.config.rule);
            if pace != watched.pace {
                self.effects.push_back(MonitorEffect::PaceChanged {
                    holder: Holder::new(id, watched.incarnation),
                    from: watched.pace,
                    to: pace,
                    slowness_ratio: watched.slowness_ratio,
                });
                watched.pace = pace;
            }
        }
    }
}

/// Names the numbers of a report that cannot be true.
fn malformed(report: &BatchReport) -> Option<&'static str> {
    if [report.data_wait, report.compute, report.communicate, report.barrier_wait]
        .iter()
        .any(|part| *part > PART_MAX)
    {
        return Some("a part of the batch took longer than a day");
    }
    if report.samples == 0 && !report.compute.is_zero() && report.phase == Phase::Train {
        return Some("compute time without samples");
    }
    if report.samples > 0 && report.compute.is_zero() && report.phase == Phase::Train {
        return Some("samples without compute time");
    }
    None
}

impl Machine for StragglerDetector {
    type Event = DetectorEvent;
    type Answer = ReportAnswer;
    type Effect = MonitorEffect;

    fn handle(&mut self, now: JobTime, event: DetectorEvent) -> ReportAnswer {
        match event {
            DetectorEvent::Joined(info) => self.node_joined(now, &info),
            DetectorEvent::Left(holder) => self.node_left(now, holder),
            DetectorEvent::Heartbeat(holder) => self.heartbeat(now, holder),
            DetectorEvent::Report(report) => self.report(now, &report),
        }
    }

    fn poll_effect(&mut self) -> Option<MonitorEffect> {
        self.effects.pop_front()
    }

    /// When the next node becomes late or lost.
    fn deadline(&self) -> Option<JobTime> {
        self.liveness.deadline()
    }

    fn on_deadline(&mut self, now: JobTime) {
        self.effects.extend(self.liveness.check(now).into_iter().map(|(holder, state)| match state {
            Liveness::OnTime | Liveness::Late => MonitorEffect::Late(holder),
            Liveness::Lost => MonitorEffect::Silent(holder),
        }));
    }
}

#[cfg(test)]
mod tests;
