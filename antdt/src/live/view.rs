//! [`JobView`]: what an operator sees of a running job.

use std::collections::{BTreeMap, VecDeque};

use antdt_core::{BatchReport, JobTime, Metric, NodeId, Role};
use antdt_job::{EventKind, Note};

use super::members::{Absence, MemberChange, Members};
use super::totals::Totals;
use crate::master::{JobNote, JobStart};
use crate::report::{LiveProgress, LossSeries, Outcome};

/// Newest happenings that are kept: a page shows no more.
const HAPPENED_MAX: usize = 200;

/// Evaluations that are kept: the newest ones.
const EVALUATIONS_MAX: usize = 200;

/// What a job was started with, as far as it is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct ViewStart {
    pub(super) job: String,
    pub(super) mode: String,
    pub(super) policy: String,
    pub(super) dry_run: bool,
    pub(super) data: String,
    pub(super) epochs: u32,
    /// Whether workers tell the loss of their batches.
    knows_loss: bool,
}

/// An action, a death or another event that an operator would like to know of.
#[derive(Debug, Clone)]
pub(super) struct Happening {
    pub(super) at: JobTime,
    /// Name of the action, or kind of the event.
    pub(super) kind: &'static str,
    /// Node that it concerns; empty for the whole job.
    pub(super) node: String,
    pub(super) text: String,
    pub(super) is_action: bool,
    /// Version of the view that it made.
    pub(super) version: u64,
}

/// An evaluation of the model.
#[derive(Debug, Clone)]
pub(super) struct Evaluated {
    pub(super) at: JobTime,
    pub(super) samples: u64,
    pub(super) metrics: BTreeMap<String, f64>,
}

/// State of a job, from its notes. The notes must come in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobView {
    /// Number of notes so far.
    version: u64,
    pub(super) now: JobTime,
    pub(super) start: Option<ViewStart>,
    pub(super) progress: LiveProgress,
    pub(super) members: Members,
    pub(super) totals: Totals,
    pub(super) loss: LossSeries,
    pub(super) evaluations: VecDeque<Evaluated>,
    pub(super) happened: VecDeque<Happening>,
    pub(super) outcome: Option<Outcome>,
}

impl JobView {
    /// Takes a note. `at` is the time since the start of the job.
    pub(crate) fn note(&mut self, at: JobTime, note: &JobNote) {
        self.version += 1;
        self.now = self.now.max(at);
        match note {
            JobNote::Started(start) => self.started(at, start),
            JobNote::Head(note) => self.head_note(at, note),
            JobNote::Progress(progress) => self.progressed(*progress),
            JobNote::Ended(outcome) => self.outcome = Some(outcome.clone()),
        }
    }

    /// Number of notes so far.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Whether the job is over.
    pub(crate) const fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Number of evaluations so far.
    pub(crate) const fn evaluated(&self) -> u64 {
        self.totals.evaluations
    }

    /// The launcher has placed these nodes.
    pub(crate) fn placed(&mut self, hosts: impl IntoIterator<Item = (NodeId, String)>) {
        self.version += 1;
        for (node, host) in hosts {
            self.members.placed(node, &host, self.version);
        }
    }

    fn started(&mut self, at: JobTime, JobStart { job, spec, .. }: &JobStart) {
        for (node, change) in self.members.restart(at) {
            self.changed(at, node, change);
        }
        let data = spec.data.as_ref().map_or_else(|| "its program's".to_owned(), ToString::to_string);
        self.start = Some(ViewStart {
            job: job.clone(),
            mode: spec.sync.to_string(),
            policy: spec.policy.clone(),
            dry_run: spec.dry_run,
            data,
            epochs: spec.epochs,
            knows_loss: !spec.has_own_model(),
        });
    }

    fn progressed(&mut self, progress: LiveProgress) {
        let totals = &mut self.totals;
        totals.samples.reached(progress.committed);
        totals.duplicated.reached(progress.duplicated);
        totals.lost.reached(progress.lost);
        totals.steps.reached(progress.step);
        let shards = progress.shards;
        for (lease, count) in
            totals.leases.iter_mut().zip([shards.done, shards.released, shards.lost, shards.failed])
        {
            lease.reached(count);
        }
        self.progress = progress;
    }

    fn head_note(&mut self, at: JobTime, note: &Note) {
        for (node, change) in self.members.note(at, note, self.version) {
            self.changed(at, node, change);
        }
        match note {
            Note::Action { kind, target, reason } => {
                self.totals.action(kind);
                self.happened(at, (kind, target.clone()), reason.clone(), true);
            }
            Note::Event { node, kind, text } => self.event(at, *node, *kind, text),
            Note::Batches(reports) => {
                for (report, loss_sum) in reports {
                    self.batch(at, report, *loss_sum);
                }
            }
            Note::Evaluated { samples, metrics } => {
                self.totals.evaluations += 1;
                let metrics = metrics.iter().map(|metric| (metric.name.clone(), metric.value)).collect();
                self.evaluations.push_back(Evaluated { at, samples: *samples, metrics });
                while self.evaluations.len() > EVALUATIONS_MAX {
                    self.evaluations.pop_front();
                }
            }
            Note::StoppedEarly(text) | Note::ModeChosen { text, .. } => {
                self.happened(at, ("decided", String::new()), text.clone(), false);
            }
            Note::Stored(took) => self.totals.checkpoints.add(*took),
            Note::Launched(_)
            | Note::Published(_)
            | Note::Applied(..)
            | Note::Averaged(..)
            | Note::Completed
            | Note::EpochEvaluated(_)
            | Note::NextEpochs(_) => {}
        }
    }

    fn changed(&mut self, at: JobTime, node: NodeId, change: MemberChange) {
        match change {
            MemberChange::Lost => self.totals.lost_life(node.role),
            MemberChange::Restarted => self.totals.restarted(node.role),
            MemberChange::Absent { lasted, why, joined } if node.role == Role::Worker => {
                self.totals.absent(why, lasted);
                if joined && why == Absence::Recovery {
                    self.totals.recovery.add(lasted);
                    let what = (EventKind::Joined.name(), node.to_string());
                    self.happened(at, what, "takes part again".to_owned(), false);
                }
            }
            MemberChange::Absent { .. } => {}
        }
    }

    fn event(&mut self, at: JobTime, node: Option<NodeId>, kind: EventKind, text: &str) {
        *self.totals.events.entry(kind.name()).or_default() += 1;
        let slow = match (kind, node.map(|node| node.role)) {
            (EventKind::Straggler, Some(Role::Server)) => Some("server"),
            (EventKind::Straggler, _) => Some("worker"),
            (EventKind::SlowLink, _) => Some("link"),
            (EventKind::GlobalSlowdown, _) => Some("job"),
            _ => None,
        };
        if let Some(scope) = slow {
            *self.totals.stragglers.entry((kind.name(), scope)).or_default() += 1;
        }
        if is_shown(kind) {
            let node = node.map(|node| node.to_string()).unwrap_or_default();
            self.happened(at, (kind.name(), node), text.to_owned(), false);
        }
    }

    fn happened(&mut self, at: JobTime, (kind, node): (&'static str, String), text: String, is_action: bool) {
        self.happened.push_back(Happening { at, kind, node, text, is_action, version: self.version });
        while self.happened.len() > HAPPENED_MAX {
            self.happened.pop_front();
        }
    }

    fn batch(&mut self, at: JobTime, report: &BatchReport, loss_sum: f64) {
        if report.holder.node.role != Role::Worker || report.samples == 0 {
            return;
        }
        self.totals.batch(report);
        self.members.trained(report, self.version);
        #[allow(clippy::cast_precision_loss, reason = "a mean")]
        let mean = loss_sum / report.samples as f64;
        if self.start.as_ref().is_none_or(|start| start.knows_loss) {
            self.loss.push(at.as_secs_f64(), report.samples, mean);
        }
    }

    /// The newest evaluation, and its loss.
    pub(super) fn newest_evaluation(&self) -> Option<(&Evaluated, Option<f64>)> {
        let newest = self.evaluations.back()?;
        Some((newest, newest.metrics.get(Metric::LOSS).copied()))
    }
}

/// Whether an operator wants to know of such an event at once. What is usual, counted elsewhere, or comes with every decision is in
/// the report.
pub(super) const fn is_shown(kind: EventKind) -> bool {
    match kind {
        EventKind::Stalled
        | EventKind::Lost
        | EventKind::Preempted
        | EventKind::Retired
        | EventKind::Restart
        | EventKind::Rollback
        | EventKind::Straggler
        | EventKind::GlobalSlowdown
        | EventKind::SlowLink
        | EventKind::Recovered
        | EventKind::Memory
        | EventKind::Checkpoint
        | EventKind::NoCheckpoint
        | EventKind::Refused => true,
        EventKind::Joined
        | EventKind::Left
        | EventKind::Finished
        | EventKind::Late
        | EventKind::Membership
        | EventKind::Plan
        | EventKind::Forecast
        | EventKind::None => false,
    }
}
