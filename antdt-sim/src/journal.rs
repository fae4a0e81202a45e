//! The result of a simulated job, for reports and charts.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{BatchReport, Counts, Exit, Holder, JobTime, NodeId, PlanVersion, Role};
use antdt_job::{EventKind, Note};

use crate::Setup;
use crate::world::Moment;

/// Events kept at most; a chart shows no more.
const EVENTS_MAX: usize = 10_000;

/// Points of a series at most.
const POINTS_MAX: usize = 400;

/// An action of the policy or the master in a simulated job, also one that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalAction {
    /// Time of the action.
    pub at: JobTime,
    /// Newest step of the job at the time of the action.
    pub step: u64,
    /// Name of the action, such as `ADJUST_BS` or `KILL_RESTART`.
    pub kind: &'static str,
    /// Node that the action concerns, or `all`.
    pub target: String,
    /// Reason for the action, in words.
    pub reason: String,
}

/// An event of a simulated job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEvent {
    /// Time of the event.
    pub at: JobTime,
    /// Node that the event concerns; `None` for the whole job.
    pub node: Option<NodeId>,
    /// Kind of the event.
    pub kind: EventKind,
    /// Description of the event for people.
    pub text: String,
}

/// Time that one incarnation of a node was alive and busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The node and its incarnation.
    pub holder: Holder,
    /// Time from the launch of the process to its end.
    pub alive: Duration,
    /// Time that the process spent computing gradients.
    pub busy: Duration,
}

/// Consecutive batches of one worker, merged into one point of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Time at which the last of these batches ended.
    pub at: JobTime,
    /// Number of batches.
    pub batches: u32,
    /// Number of samples in all of these batches.
    pub samples: u64,
    /// Part of `wall` in which the worker computed gradients.
    pub compute: Duration,
    /// Sum of the batches' wall times: computation and all waits.
    pub wall: Duration,
}

/// The result of a simulated job: how it ended, and what happened in it.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedJob {
    /// `Ok` if every sample was committed; otherwise the reason for which the job ended.
    pub result: Result<(), String>,
    /// Job completion time: the time at which every sample was committed, or the end of the simulation if
    /// that never happened.
    pub completed: JobTime,
    /// Number of steps taken.
    pub steps: u64,
    /// Sample counts of the ledger at the end.
    pub counts: Counts,
    /// Actions that were taken or refused, in order.
    pub actions: Vec<JournalAction>,
    /// Events, in order; a job with very many events keeps only the first ones.
    pub events: Vec<JournalEvent>,
    /// For each plan, the time at which the master heard that the last worker had switched to it. The workers
    /// switched up to a heartbeat earlier. If not all workers lived to see the plan, it is the time of the
    /// last one that did.
    pub switches: Vec<(JobTime, PlanVersion)>,
    /// Exits of processes, with time and incarnation.
    pub exits: Vec<(JobTime, Holder, Exit)>,
    /// Time that each incarnation of a node was alive and busy, in order of launch.
    pub usage: Vec<Usage>,
    /// Batches of each worker over time; neighbours are merged if there are many.
    pub series: BTreeMap<NodeId, Vec<Point>>,
    /// The newest complete checkpoint, with which [`World::resumed`](crate::World::resumed) continues; `None` if
    /// the job took none.
    pub kept: Option<Moment>,
    /// Number of events that the simulator processed.
    pub simulated: u64,
}

impl SimulatedJob {
    /// Returns the number of committed samples per second of virtual time.
    pub fn goodput(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let acked = self.counts.acked as f64;
        acked / self.completed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the share of the workers' time in which they did not compute, 0 to 1.
    pub fn idle_share(&self) -> f64 {
        let workers = self.usage.iter().filter(|usage| usage.holder.node.role == Role::Worker);
        let (mut alive, mut busy) = (0.0, 0.0);
        for usage in workers {
            alive += usage.alive.as_secs_f64();
            busy += usage.busy.as_secs_f64();
        }
        if alive > 0.0 { (1.0 - busy / alive).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Writes down what becomes the [`SimulatedJob`].
#[derive(Debug)]
pub(crate) struct Journal {
    steps: u64,
    committed: Option<u64>,
    completed: Option<JobTime>,
    actions: Vec<JournalAction>,
    events: Vec<JournalEvent>,
    switches: BTreeMap<PlanVersion, JobTime>,
    exits: Vec<(JobTime, Holder, Exit)>,
    series: BTreeMap<NodeId, Series>,
    /// With very many workers a chart of each shows nothing.
    with_series: bool,
}

#[derive(Debug, Default)]
struct Series {
    points: Vec<Point>,
    /// Batches in a full point.
    grain: u32,
}

/// Workers whose series is kept.
const SERIES_WORKERS: u32 = 256;

impl Journal {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            steps: 0,
            committed: None,
            completed: None,
            actions: Vec::new(),
            events: Vec::new(),
            switches: BTreeMap::new(),
            exits: Vec::new(),
            series: BTreeMap::new(),
            with_series: setup.workers <= SERIES_WORKERS,
        }
    }

    /// All-reduce: a step was agreed on.
    pub(crate) const fn step(&mut self, samples: u64) {
        if samples > 0 {
            self.steps += 1;
        }
    }

    /// Servers in step: a step was committed. Every worker is told, so that it comes more than once.
    pub(crate) fn committed(&mut self, step: u64, samples: u64) {
        if self.committed.is_none_or(|last| last < step) {
            self.committed = Some(step);
            self.steps += u64::from(samples > 0);
        }
    }

    /// Servers, each at its own pace: a push was applied.
    pub(crate) const fn pushed(&mut self) {
        self.steps += 1;
    }

    pub(crate) fn exited(&mut self, at: JobTime, holder: Holder, exit: Exit) {
        self.exits.push((at, holder, exit));
    }

    pub(crate) fn note(&mut self, at: JobTime, note: Note) {
        match note {
            Note::Action { kind, target, reason } => {
                self.actions.push(JournalAction { at, step: self.steps, kind, target, reason });
            }
            Note::Event { node, kind, text } => {
                if self.events.len() < EVENTS_MAX {
                    self.events.push(JournalEvent { at, node, kind, text });
                }
            }
            Note::Applied(_, version) => {
                self.switches.insert(version, at);
            }
            Note::Completed => {
                self.completed.get_or_insert(at);
            }
            Note::Batches(reports) => self.batches(at, &reports),
            Note::Launched(_)
            | Note::Published(_)
            | Note::Averaged(..)
            | Note::Stored(_)
            | Note::Evaluated { .. }
            | Note::EpochEvaluated(_)
            | Note::NextEpochs(_)
            | Note::StoppedEarly(_)
            | Note::ModeChosen { .. } => {}
        }
    }

    /// The reports of a heartbeat, as [`Note::Batches`] has them.
    pub(crate) fn batches(&mut self, at: JobTime, reports: &[(BatchReport, f64)]) {
        if !self.with_series {
            return;
        }
        // The newest one ended just now; the others before it.
        let mut end = at;
        let mut points = Vec::with_capacity(reports.len());
        for (report, _) in reports.iter().rev() {
            let wall = report.wall();
            if report.holder.node.role == Role::Worker && report.samples > 0 {
                let (samples, compute) = (report.samples, report.compute);
                let point = Point { at: end, batches: 1, samples, compute, wall };
                points.push((report.holder.node, point));
            }
            end = end - wall;
        }
        for (node, point) in points.into_iter().rev() {
            self.series.entry(node).or_default().push(point);
        }
    }

    pub(crate) fn finish(
        self,
        result: Result<(), String>,
        now: JobTime,
        simulated: u64,
        counts: Counts,
        kept: Option<Moment>,
        usage: impl Iterator<Item = Usage>,
    ) -> SimulatedJob {
        SimulatedJob {
            result,
            completed: self.completed.unwrap_or(now),
            steps: self.steps,
            counts,
            actions: self.actions,
            events: self.events,
            switches: self.switches.into_iter().map(|(version, at)| (at, version)).collect(),
            exits: self.exits,
            usage: usage.collect(),
            series: self.series.into_iter().map(|(node, series)| (node, series.points)).collect(),
            kept,
            simulated,
        }
    }
}

/// Points of which neighbours are merged where there are many.
pub(crate) fn merged(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut series = Series::default();
    points.for_each(|point| series.push(point));
    series.points
}

impl Series {
    fn push(&mut self, point: Point) {
        self.grain = self.grain.max(1);
        if let Some(last) = self.points.last_mut().filter(|last| last.batches < self.grain) {
            *last = last.with(&point);
            return;
        }
        if self.points.len() >= POINTS_MAX {
            self.points =
                self.points.chunks(2).map(|pair| pair[1..].iter().fold(pair[0], |a, b| a.with(b))).collect();
            self.grain *= 2;
        }
        self.points.push(point);
    }
}

impl Point {
    fn with(&self, later: &Self) -> Self {
        Self {
            at: later.at,
            batches: self.batches + later.batches,
            samples: self.samples + later.samples,
            compute: self.compute + later.compute,
            wall: self.wall + later.wall,
        }
    }
}
