//! [`Facts`]: the events of a recorded job as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use antdt_core::trace::{EntryKind, TraceEnd};
use antdt_core::{BatchReport, Counts, DeviceClass, Exit, Holder, JobTime, NodeId, Role};
use antdt_job::{HeadEvent, HeadSettings};
use antdt_shard::DatasetSpec;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Recording, RecordingError};
use crate::tracer::is_simulated;

/// Facts about a recorded job, read from its recording. The batches of all workers take about 100 MB at most;
/// everything else is small.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Whether the recorded job was a simulated one; its facts are then only as real as its models.
    pub simulated: bool,
    /// Settings of the master's head, such as sync mode, number of workers and policy.
    pub head: HeadSettings,
    /// Settings of the data set; `None` if no ledger handed out shards.
    pub dataset: Option<DatasetSpec>,
    /// The other settings of the job by name, in text form.
    pub settings: BTreeMap<String, String>,
    /// Training batches of each worker, over all its incarnations, in order of their ends. With more than a
    /// million batches in all, neighbours are merged into one entry.
    pub batches: BTreeMap<NodeId, Vec<BatchFact>>,
    /// Device class of each node, as it registered last.
    pub devices: BTreeMap<NodeId, DeviceClass>,
    /// Largest batch, or micro-batch, in samples, with which each node registered last.
    pub batch_sizes_max: BTreeMap<NodeId, u32>,
    /// Starts of processes, in order of time.
    pub starts: Vec<StartFact>,
    /// In all-reduce modes: time from the master's answer to all members of the first group until all of them
    /// had connected and asked for shards; `None` if they did not.
    pub formed: Option<Duration>,
    /// Ends of processes before the job was over, in order of time.
    pub ends: Vec<EndFact>,
    /// Actions of the policy, and restarts of dead nodes, taken or refused.
    pub actions: Vec<ActionFact>,
    /// Number of steps of which a batch was reported; in modes without common steps, the sum over the
    /// workers.
    pub steps: u64,
    /// Sample counts of the ledger at the last control tick.
    pub counts: Counts,
    /// Job completion time: the time at which the master knew that every sample was committed; `None` if that
    /// never happened.
    pub completed: Option<JobTime>,
    /// Result of the job; `None` if the recording ends before the job does.
    pub outcome: Option<Result<(), String>>,
    /// Time of the last entry.
    pub last: JobTime,
    /// Content of the recording's last entry; `None` if the recording was cut off.
    pub end: Option<TraceEnd>,
    /// Number of bytes of an incomplete last line; `None` if the last line is complete.
    pub torn: Option<u64>,
}

/// A batch as its worker reported it, or several consecutive batches merged into one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchFact {
    /// Time at which the batch ended, on the master's clock, computed from the arrival of its report. For
    /// merged batches, the end of the last one.
    pub end: JobTime,
    /// Number of batches that were merged into this entry.
    pub batches: u32,
    /// Number of earlier incarnations of the worker.
    pub life: u32,
    /// Number of samples.
    pub samples: u64,
    /// Time spent waiting for data.
    pub data_wait: Duration,
    /// Time spent computing the gradient.
    pub compute: Duration,
    /// Time spent sending and receiving.
    pub communicate: Duration,
    /// Time spent waiting for other workers.
    pub barrier_wait: Duration,
}

impl BatchFact {
    /// Returns the time from the beginning of the batch to its end.
    pub fn wall(&self) -> Duration {
        self.data_wait + self.compute + self.communicate + self.barrier_wait
    }

    /// Returns the nanoseconds of compute time per sample; `None` without samples.
    #[allow(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
    pub fn nanos_per_sample(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.compute.as_nanos() as f64 / self.samples as f64)
    }

    /// Both, of which `later` is the later one.
    fn with(&self, later: &Self) -> Self {
        Self {
            end: later.end,
            batches: self.batches + later.batches,
            life: later.life,
            samples: self.samples + later.samples,
            data_wait: self.data_wait + later.data_wait,
            compute: self.compute + later.compute,
            communicate: self.communicate + later.communicate,
            barrier_wait: self.barrier_wait + later.barrier_wait,
        }
    }
}

/// A start of a process that the master ordered, and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartFact {
    /// Node and incarnation that was started.
    pub life: Holder,
    /// Time of the order.
    pub at: JobTime,
    /// Time from the order until the process registered; `None` if it never did.
    pub took: Option<Duration>,
    /// For a worker: time from its registration (with servers, from the moment at which the master told it
    /// their addresses) until it asked to join the group; `None` if it never asked.
    pub ready: Option<Duration>,
}

/// The end of a process before the job was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndFact {
    /// Node and incarnation whose process ended.
    pub life: Holder,
    /// Time at which the master learnt of the end.
    pub at: JobTime,
    /// Exit of the process.
    pub exit: Exit,
    /// Whether the end was expected: the master had ordered it, or the worker had left in order.
    pub expected: bool,
}

/// An action that was taken or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionFact {
    /// Time of the action.
    pub at: JobTime,
    /// Name of the action, such as `ADJUST_BS` or `KILL_RESTART`.
    pub kind: String,
    /// Node that the action concerns, or `all`.
    pub target: String,
    /// Reason for the action, in words.
    pub reason: String,
}

/// A [`HeadEffect`](antdt_job::HeadEffect) as far as it is of interest here. A trace holds names that only the machine
/// itself knows as constants, so that effects cannot be read back as what they were.
#[derive(Deserialize)]
enum Effect {
    Launch(Holder),
    Kill(Holder),
    Order(IgnoredAny),
    Settle(IgnoredAny),
    LedgerLost(IgnoredAny),
    Joined(Holder, IgnoredAny),
    Committed(IgnoredAny, IgnoredAny),
    Undone(IgnoredAny),
    RollBack(IgnoredAny),
    Epochs(IgnoredAny),
    GoOn(IgnoredAny),
    Servers(IgnoredAny),
    Weights(IgnoredAny),
    Rested(IgnoredAny),
    End(Result<(), String>),
    Note { at: JobTime, note: Note },
}

/// A [`Note`](antdt_job::Note) as far as it is of interest here.
#[derive(Deserialize)]
enum Note {
    Action { kind: String, target: String, reason: String },
    Event(IgnoredAny),
    Launched(IgnoredAny),
    Published(IgnoredAny),
    Applied(IgnoredAny, IgnoredAny),
    Batches(IgnoredAny),
    Completed,
    Averaged(IgnoredAny, IgnoredAny),
    Stored(IgnoredAny),
    Evaluated(IgnoredAny),
    EpochEvaluated(IgnoredAny),
    NextEpochs(IgnoredAny),
    StoppedEarly(IgnoredAny),
    ModeChosen(IgnoredAny),
}

/// An [`Event`](antdt_shard::Event) of the ledger by which a worker begins.
#[derive(Deserialize)]
enum LedgerEvent {
    Register { holder: Holder },
}

/// Batches that are kept of all workers together: 100 MB.
const BATCHES_MAX: usize = 1 << 20;

/// Steps behind the newest one that may still be reported for the first time.
const STEP_MEMORY: usize = 4096;

impl Recording {
    /// Reads the whole recording and returns the facts about its job.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub fn facts(&self) -> Result<Facts, RecordingError> {
        self.facts_within(BATCHES_MAX)
    }

    pub(super) fn facts_within(&self, batches_max: usize) -> Result<Facts, RecordingError> {
        let mut gathering = Gathering {
            facts: Facts {
                simulated: is_simulated(&self.header),
                head: self.head()?,
                dataset: self.dataset()?,
                settings: self.header.settings.clone(),
                batches: BTreeMap::new(),
                devices: BTreeMap::new(),
                batch_sizes_max: BTreeMap::new(),
                starts: Vec::new(),
                formed: None,
                ends: Vec::new(),
                actions: Vec::new(),
                steps: 0,
                counts: Counts::default(),
                completed: None,
                outcome: None,
                last: JobTime::ZERO,
                end: None,
                torn: None,
            },
            expected: BTreeSet::new(),
            begun: BTreeMap::new(),
            told: JobTime::ZERO,
            entering: BTreeSet::new(),
            recent_steps: BTreeSet::new(),
            kept: 0,
            grain: 1,
            batches_max,
        };
        let mut entries = self.entries()?;
        while let Some(entry) = entries.next() {
            let (entry, line) = (entry?, entries.line());
            gathering.facts.last = gathering.facts.last.max(entry.at);
            if entry.machine != "head" {
                // What else the ledger is told is not even looked at.
                if entry.kind == EntryKind::Event
                    && !gathering.entering.is_empty()
                    && let Ok(LedgerEvent::Register { holder }) = entry.read()
                {
                    gathering.entered(entry.at, holder);
                }
                continue;
            }
            let wrong = |e| self.value_error(line, &entry, e);
            match entry.kind {
                EntryKind::Event => gathering.event(entry.at, entry.read().map_err(wrong)?),
                EntryKind::Effect => gathering.effect(entry.at, entry.read().map_err(wrong)?),
                EntryKind::Answer | EntryKind::Deadline | EntryKind::Restart | EntryKind::End => {}
            }
        }
        gathering.facts.end = entries.end();
        gathering.facts.torn = entries.torn();
        for batches in gathering.facts.batches.values_mut() {
            batches.sort_by_key(|batch| batch.end);
        }
        Ok(gathering.facts)
    }
}

struct Gathering {
    facts: Facts,
    /// Incarnations whose end is expected.
    expected: BTreeSet<Holder>,
    /// Workers that have registered and not met the others: since when they could.
    begun: BTreeMap<Holder, JobTime>,
    /// When the newest member of the first group was told of it.
    told: JobTime,
    /// Members of the first group that are not in it yet.
    entering: BTreeSet<Holder>,
    recent_steps: BTreeSet<u64>,
    /// Batches that are kept, of all workers.
    kept: usize,
    /// Batches that are merged into one.
    grain: u32,
    batches_max: usize,
}

impl Gathering {
    fn event(&mut self, at: JobTime, event: HeadEvent) {
        match event {
            HeadEvent::Register(registration) => {
                let life = registration.info.holder;
                self.facts.batch_sizes_max.insert(life.node, registration.info.batch_size_max);
                self.facts.devices.insert(life.node, registration.info.device);
                if life.node.role == Role::Worker {
                    self.begun.insert(life, at);
                }
                let start = self.facts.starts.iter_mut().rev().find(|start| start.life == life);
                if let Some(start) = start {
                    start.took.get_or_insert(at.since(start.at));
                }
            }
            HeadEvent::Heartbeat { reports, .. } => {
                // The reporter's clock is used for durations only: count back from the arrival.
                let mut ends = Vec::with_capacity(reports.len());
                let mut end = at;
                for (report, _) in reports.iter().rev() {
                    ends.push(end);
                    end = end - report.wall();
                }
                for ((report, _), end) in reports.iter().zip(ends.into_iter().rev()) {
                    self.batch(end, report);
                }
            }
            HeadEvent::Leave { holder, .. } => {
                self.expected.insert(holder);
            }
            HeadEvent::Exited(life, exit, _) if self.facts.outcome.is_none() => {
                let expected = exit == Exit::Finished || self.expected.contains(&life);
                self.facts.ends.push(EndFact { life, at, exit, expected });
            }
            HeadEvent::Tick(Some(counts)) => self.facts.counts = counts,
            HeadEvent::Join { holder, .. } => {
                if let Some(since) = self.begun.remove(&holder)
                    && let Some(start) = self.facts.starts.iter_mut().rev().find(|start| start.life == holder)
                {
                    start.ready = Some(at.since(since));
                }
            }
            HeadEvent::Begin
            | HeadEvent::Ready { .. }
            | HeadEvent::Loaded { .. }
            | HeadEvent::Transferred { .. }
            | HeadEvent::Averaged { .. }
            | HeadEvent::Evaluated { .. }
            | HeadEvent::Rest { .. }
            | HeadEvent::Cut { .. }
            | HeadEvent::Stored { .. }
            | HeadEvent::RolledBack { .. }
            | HeadEvent::Kept { .. }
            | HeadEvent::Started(_)
            | HeadEvent::Placed { .. }
            | HeadEvent::LaunchFailed(..)
            | HeadEvent::Exited(..)
            | HeadEvent::Checkpoint(_)
            | HeadEvent::Restart(_)
            | HeadEvent::Scale { .. }
            | HeadEvent::ScaleServers { .. }
            | HeadEvent::Stalled { .. }
            | HeadEvent::Preempted(_)
            | HeadEvent::Tick(None)
            | HeadEvent::Diagnose
            | HeadEvent::Stop(_) => {}
        }
    }

    /// A member of the first group asks for shards.
    fn entered(&mut self, at: JobTime, holder: Holder) {
        if self.entering.remove(&holder) {
            self.facts.formed = Some(at.since(self.told));
        }
    }

    fn batch(&mut self, end: JobTime, report: &BatchReport) {
        let node = report.holder.node;
        if node.role != Role::Worker || report.samples == 0 {
            return;
        }
        if self.facts.head.sync.capabilities().steps_in_common() {
            self.facts.steps += u64::from(self.recent_steps.insert(report.iteration.0));
            while self.recent_steps.len() > STEP_MEMORY {
                self.recent_steps.pop_first();
            }
        } else {
            self.facts.steps += 1;
        }
        let batch = BatchFact {
            end,
            batches: 1,
            life: report.holder.incarnation.0,
            samples: report.samples,
            data_wait: report.data_wait,
            compute: report.compute,
            communicate: report.communicate,
            barrier_wait: report.barrier_wait,
        };
        let batches = self.facts.batches.entry(node).or_default();
        match batches.last_mut().filter(|last| last.batches < self.grain && last.life == batch.life) {
            Some(last) => *last = last.with(&batch),
            None => {
                batches.push(batch);
                self.kept += 1;
            }
        }
        if self.kept > self.batches_max {
            self.grain = self.grain.saturating_mul(2);
            self.kept = 0;
            for batches in self.facts.batches.values_mut() {
                let pair = |pair: &[BatchFact]| pair[1..].iter().fold(pair[0], |a, b| a.with(b));
                *batches = batches.chunks(2).map(pair).collect();
                self.kept += batches.len();
            }
        }
    }

    fn effect(&mut self, at: JobTime, effect: Effect) {
        match effect {
            Effect::Launch(life) => self.facts.starts.push(StartFact { life, at, took: None, ready: None }),
            Effect::Kill(life) => {
                self.expected.insert(life);
            }
            Effect::End(outcome) => self.facts.outcome = Some(outcome),
            Effect::Note { at, note } => match note {
                Note::Action { kind, target, reason } => {
                    self.facts.actions.push(ActionFact { at, kind, target, reason });
                }
                Note::Completed => {
                    self.facts.completed.get_or_insert(at);
                }
                Note::Event(_)
                | Note::Launched(_)
                | Note::Published(_)
                | Note::Applied(..)
                | Note::Batches(_)
                | Note::Averaged(..)
                | Note::Stored(_)
                | Note::Evaluated(_)
                | Note::EpochEvaluated(_)
                | Note::NextEpochs(_)
                | Note::StoppedEarly(_)
                | Note::ModeChosen(_) => {}
            },
            Effect::Joined(holder, _) => {
                if self.facts.formed.is_none() && self.facts.head.sync.capabilities().forms_groups() {
                    self.told = at;
                    self.entering.insert(holder);
                }
            }
            Effect::Order(_)
            | Effect::Settle(_)
            | Effect::LedgerLost(_)
            | Effect::Committed(..)
            | Effect::Undone(_)
            | Effect::RollBack(_)
            | Effect::Epochs(_)
            | Effect::GoOn(_)
            | Effect::Servers(_)
            | Effect::Weights(_)
            | Effect::Rested(_) => {}
        }
    }
}
