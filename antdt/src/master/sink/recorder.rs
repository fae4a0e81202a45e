//! Collects the content of the report while the job runs.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{
    BatchReport, Capabilities, Holder, JobTime, ModelDistance, NodeId, Plan, PlanVersion, Role,
};
use antdt_job::{EventKind, Note};

use super::JobNote;
use crate::master::waits::Waits;
use crate::report::{
    ActionEntry, CheckpointEntry, EvaluationEntry, EventEntry, FinalQuality, LossSeries, ModelSpread,
    WorkerEntry,
};

/// Steps behind the newest one that may still be reported for the first time.
const STEP_MEMORY: usize = 4096;

/// Batches whose loss makes up "the loss now".
const LOSS_MEMORY: f64 = 0.95;

/// The growing record of one job.
#[derive(Debug, Clone)]
pub(in crate::master) struct Recorder {
    mode: Capabilities,
    pub(in crate::master) actions: Vec<ActionEntry>,
    pub(in crate::master) events: Vec<EventEntry>,
    pub(in crate::master) workers: BTreeMap<NodeId, WorkerEntry>,
    pub(in crate::master) loss: LossSeries,
    pub(in crate::master) quality: FinalQuality,
    /// What the evaluations after so many epochs found.
    pub(in crate::master) evaluations: Vec<EvaluationEntry>,
    /// Why the job ended before its last epoch, in words, if it did.
    pub(in crate::master) stopped_early: Option<String>,
    pub(in crate::master) steps: u64,
    /// The first moment at which everything was known to be committed.
    pub(in crate::master) completed: Option<JobTime>,
    /// What the job went on from, in words.
    pub(in crate::master) resumed: Option<String>,
    /// Why the job is in this sync mode, if it was chosen, in words.
    pub(in crate::master) chosen: Option<String>,
    /// The newest complete checkpoint.
    pub(in crate::master) checkpoint: Option<CheckpointEntry>,
    /// Why there is no checkpoint that is newer, in words, if the last attempt failed.
    pub(in crate::master) not_kept: Option<String>,
    /// Of each worker, how far its model was from the newest average of all that it told of, and when it did.
    distances: BTreeMap<NodeId, (JobTime, ModelDistance)>,
    waits: Waits,
    plans: BTreeMap<PlanVersion, Plan>,
    recent_steps: BTreeSet<u64>,
    loss_now: Option<f64>,
    /// Whether workers tell the loss of their batches.
    knows_loss: bool,
}

impl Recorder {
    pub(in crate::master) fn new(mode: Capabilities, workers: u32) -> Self {
        let workers = (0..workers).map(NodeId::worker).map(|node| (node, WorkerEntry::new(node))).collect();
        Self {
            mode,
            actions: Vec::new(),
            events: Vec::new(),
            workers,
            loss: LossSeries::default(),
            quality: FinalQuality::default(),
            evaluations: Vec::new(),
            stopped_early: None,
            steps: 0,
            completed: None,
            resumed: None,
            chosen: None,
            checkpoint: None,
            not_kept: None,
            distances: BTreeMap::new(),
            waits: Waits::default(),
            plans: BTreeMap::new(),
            recent_steps: BTreeSet::new(),
            loss_now: None,
            knows_loss: true,
        }
    }

    /// Of a job that has these evaluations behind it.
    pub(in crate::master) fn after(self, mut evaluations: Vec<EvaluationEntry>) -> Self {
        evaluations.retain(|entry| entry.samples > 0);
        Self { evaluations, ..self }
    }

    /// Of a job whose workers tell the loss of their batches, or whose programs keep it to themselves.
    pub(in crate::master) fn knowing_loss(self, knows_loss: bool) -> Self {
        Self { knows_loss, ..self }
    }

    /// Goes on with the record of a job whose processes were started again.
    pub(in crate::master) fn later(mut self, mode: Capabilities) -> Self {
        self.waits.restart();
        Self {
            mode,
            // It counts its own, and numbers its plans and steps anew.
            quality: FinalQuality::default(),
            completed: None,
            distances: BTreeMap::new(),
            plans: BTreeMap::new(),
            recent_steps: BTreeSet::new(),
            ..self
        }
    }

    /// A checkpoint is complete; it may have been overtaken by a newer one.
    pub(in crate::master) fn kept(&mut self, checkpoint: CheckpointEntry) {
        if self.checkpoint.as_ref().is_none_or(|newest| newest.id < checkpoint.id) {
            (self.checkpoint, self.not_kept) = (Some(checkpoint), None);
        }
    }

    /// Returns the epoch after which the job ended, if it was not to be the last one.
    pub(in crate::master) fn ended_early_after(&self) -> Option<u32> {
        self.stopped_early.as_ref().and_then(|_| self.evaluations.last()).map(|last| last.epoch)
    }

    /// Returns how a job ended, given how its training did: training that is complete is no success if the model is in no
    /// checkpoint because the last one failed.
    pub(in crate::master) fn ended(&self, trained: Result<(), String>, acked: u64) -> Result<(), String> {
        let Some(failure) = &self.not_kept else { return trained };
        match (trained, &self.checkpoint) {
            (Ok(()), Some(kept)) if kept.samples == acked => Ok(()),
            (Ok(()), kept) => {
                let next = match kept {
                    Some(kept) => format!("go on with --resume {}", kept.folder.display()),
                    None => "run the job again".to_owned(),
                };
                Err(format!(
                    "the trained model is in no checkpoint: {failure}; mend that or name another --checkpoint-dir, and {next}"
                ))
            }
            (Err(why), _) if why.contains(failure) => Err(why),
            (Err(why), _) => Err(format!("{why}, and {failure}")),
        }
    }

    /// Steps so far, and the mean training loss of the last batches.
    pub(in crate::master) const fn pulse(&self) -> (u64, Option<f64>) {
        (self.steps, self.loss_now)
    }

    /// Batch sizes of the newest plan.
    pub(in crate::master) fn newest_plan(&self) -> BTreeMap<NodeId, u32> {
        self.plans.last_key_value().map(|(_, plan)| (*plan.batch_sizes).clone()).unwrap_or_default()
    }

    /// Writes down what is of use to the report.
    pub(in crate::master) fn note(&mut self, at: JobTime, note: &JobNote) {
        match note {
            JobNote::Head(note) => self.head_note(at, note),
            JobNote::Started(start) => self.resumed = start.resumed.clone().or_else(|| self.resumed.take()),
            // The report is made of the ledger's balance and of the outcome.
            JobNote::Progress(_) | JobNote::Ended(_) => {}
        }
    }

    fn head_note(&mut self, at: JobTime, note: &Note) {
        let time_s = at.as_secs_f64();
        match note {
            Note::Action { kind, target, reason } => {
                let (kind, target, reason) = ((*kind).to_owned(), target.clone(), reason.clone());
                self.actions.push(ActionEntry { time_s, kind, target, reason });
            }
            Note::Event { node, kind, text } => {
                if *kind == EventKind::NoCheckpoint {
                    self.not_kept = Some(text.clone());
                } else if *kind == EventKind::Rollback {
                    // Steps are numbered anew from there on.
                    self.recent_steps.clear();
                    self.waits.restart();
                }
                let node = node.map(|node| node.to_string()).unwrap_or_default();
                self.events.push(EventEntry {
                    time_s,
                    node,
                    kind: kind.name().to_owned(),
                    text: text.clone(),
                });
            }
            Note::Launched(holder) => self.launched(*holder),
            Note::Published(plan) => {
                self.plans.insert(plan.version, plan.clone());
            }
            Note::Applied(node, version) => self.applied(*node, *version),
            Note::Batches(reports) => self.batches(at, reports),
            Note::Averaged(node, distance) => {
                self.distances.insert(*node, (at, *distance));
            }
            Note::Stored(_) => {}
            Note::Completed => {
                self.completed.get_or_insert(at);
            }
            Note::Evaluated { samples, metrics } => self.quality = FinalQuality::of(*samples, metrics),
            Note::EpochEvaluated(entry) => {
                self.evaluations.retain(|earlier| earlier.epoch < entry.epoch);
                self.evaluations.extend((entry.samples > 0).then(|| entry.clone()));
            }
            Note::NextEpochs(_) => {
                // The model is another one from now on.
                self.quality = FinalQuality::default();
                self.distances.clear();
            }
            Note::StoppedEarly(why) => self.stopped_early = Some(why.clone()),
            Note::ModeChosen { text, .. } => self.chosen = Some(text.clone()),
        }
    }

    /// How far the models were apart at the average that was told of last. Workers tell of it one after another: who has told
    /// of another one only has no part in it.
    pub(in crate::master) fn model_spread(&self) -> Option<ModelSpread> {
        let (_, newest) = self.distances.values().max_by_key(|(at, _)| *at)?;
        let of_it = || self.distances.iter().filter(|(_, (_, told))| told.average == newest.average);
        let first = of_it().map(|(_, (at, _))| *at).min()?;
        let distances = of_it().map(|(node, (_, told))| (*node, told.relative)).collect();
        ModelSpread::of(first.as_secs_f64(), &distances)
    }

    /// Ends the account of the workers' times, and enters it.
    pub(in crate::master) fn enter_times(&mut self) {
        for (node, times) in std::mem::take(&mut self.waits).ended() {
            self.worker(node).times = times;
        }
    }

    /// A plan is in force on a worker.
    fn applied(&mut self, node: NodeId, version: PlanVersion) {
        let samples = self.plans.get(&version).and_then(|plan| plan.batch_sizes.get(&node)).copied();
        if let Some(samples) = samples.filter(|_| node.role == Role::Worker) {
            self.worker(node).note_batch_size(samples);
        }
    }

    fn worker(&mut self, node: NodeId) -> &mut WorkerEntry {
        self.workers.entry(node).or_insert_with(|| WorkerEntry::new(node))
    }

    /// A life of a worker began.
    fn launched(&mut self, holder: Holder) {
        // A worker that was added later is new here.
        if holder.node.role == Role::Worker {
            self.worker(holder.node).restarts = holder.incarnation.0;
        }
    }

    /// Reports of one heartbeat, oldest first; the newest ended just before `now`.
    fn batches(&mut self, now: JobTime, reports: &[(BatchReport, f64)]) {
        // The reporter's clock is used for durations only: count back from the arrival.
        let mut ends = Vec::with_capacity(reports.len());
        let mut end = now;
        for (report, _) in reports.iter().rev() {
            ends.push(end);
            end = end - report.wall();
        }
        for ((report, loss_sum), end) in reports.iter().zip(ends.into_iter().rev()) {
            self.batch(end, report, *loss_sum);
        }
    }

    fn batch(&mut self, end: JobTime, report: &BatchReport, loss_sum: f64) {
        let node = report.holder.node;
        if node.role != Role::Worker || report.samples == 0 {
            return;
        }
        self.waits.push(report, self.mode.steps_in_common());
        if self.mode.steps_in_common() {
            self.steps += u64::from(self.recent_steps.insert(report.iteration.0));
            while self.recent_steps.len() > STEP_MEMORY {
                self.recent_steps.pop_first();
            }
        } else {
            self.steps += 1;
        }
        let batch_size = self
            .plans
            .get(&report.plan)
            .and_then(|plan| plan.batch_sizes.get(&node).copied())
            .unwrap_or_else(|| u32::try_from(report.samples).unwrap_or(u32::MAX));
        self.worker(node).series.push(
            end.as_secs_f64(),
            report.compute.as_secs_f64(),
            report.wall().as_secs_f64(),
            batch_size,
            report.samples,
        );
        #[allow(clippy::cast_precision_loss, reason = "a mean")]
        let mean = loss_sum / report.samples as f64;
        if mean.is_finite() && self.knows_loss {
            self.loss.push(end.as_secs_f64(), report.samples, mean);
            self.loss_now =
                Some(self.loss_now.map_or(mean, |now| LOSS_MEMORY * now + (1.0 - LOSS_MEMORY) * mean));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use antdt_core::Phase;
    use antdt_job::SyncMode;

    use super::*;

    #[test]
    fn a_late_report_of_an_older_average_does_not_hide_the_newest_one() {
        let mode: SyncMode = "local-sgd=4".parse().unwrap();
        let mut recorder = Recorder::new(mode.capabilities(), 3);
        let mut tell = |at, index, average, relative| {
            let distance = ModelDistance { average, relative };
            let note = Note::Averaged(NodeId::worker(index), distance);
            recorder.head_note(JobTime::from_duration(Duration::from_secs(at)), &note);
        };
        tell(1, 2, 15, 0.5);
        tell(2, 1, 16, 0.3);
        tell(3, 0, 15, 0.1);
        tell(4, 0, 16, 0.4);
        let spread = recorder.model_spread().unwrap();
        assert_eq!(spread.workers, [("worker-0".to_owned(), 0.4), ("worker-1".to_owned(), 0.3)].into());
        assert_eq!(spread.time_s, 2.0, "when the first was heard of that average");
    }

    fn event(recorder: &mut Recorder, kind: EventKind, text: &str) {
        recorder.head_note(JobTime::ZERO, &Note::Event { node: None, kind, text: text.to_owned() });
    }

    #[test]
    fn a_job_whose_last_checkpoint_failed_did_not_go_well() {
        let mut recorder = Recorder::new(SyncMode::default().capabilities(), 1);
        assert_eq!(recorder.ended(Ok(()), 90), Ok(()));
        event(&mut recorder, EventKind::NoCheckpoint, "checkpoint 1 was not written: the disk is full");
        let why = recorder.ended(Ok(()), 90).unwrap_err();
        assert!(why.contains("checkpoint 1 was not written: the disk is full; mend that"), "{why}");
        assert!(why.ends_with("and run the job again"), "{why}");
        let why = recorder.ended(Err("interrupted".to_owned()), 90).unwrap_err();
        assert_eq!(why, "interrupted, and checkpoint 1 was not written: the disk is full");

        let kept = |samples| CheckpointEntry { id: 2, samples, folder: "/c".into() };
        recorder.kept(kept(60));
        assert_eq!(recorder.ended(Err("interrupted".to_owned()), 90), Err("interrupted".to_owned()));
        event(&mut recorder, EventKind::NoCheckpoint, "checkpoint 3 was given up");
        assert!(recorder.ended(Ok(()), 90).unwrap_err().ends_with("and go on with --resume /c"));
        assert_eq!(recorder.ended(Ok(()), 60), Ok(()), "the model is in the one before");
    }

    #[test]
    fn a_checkpoint_that_ends_after_a_newer_one_is_not_the_newest() {
        let mut recorder = Recorder::new(SyncMode::default().capabilities(), 1);
        let of = |id, samples| CheckpointEntry { id, samples, folder: "/c".into() };
        recorder.kept(of(3, 90));
        recorder.kept(of(2, 60));
        assert_eq!(recorder.checkpoint.map(|newest| newest.id), Some(3));
    }

    #[test]
    fn a_worker_that_was_added_later_has_an_entry() {
        let mut recorder = Recorder::new(SyncMode::default().capabilities(), 1);
        let added = Holder::new(NodeId::worker(3), antdt_core::Incarnation(0));
        recorder.head_note(JobTime::ZERO, &Note::Launched(added));
        recorder.head_note(JobTime::ZERO, &Note::Launched(Holder { node: NodeId::server(5), ..added }));
        let ids: Vec<&str> = recorder.workers.values().map(|worker| &*worker.id).collect();
        assert_eq!(ids, ["worker-0", "worker-3"]);
    }

    #[test]
    fn steps_after_a_rollback_are_counted_too() {
        let mut recorder = Recorder::new("allreduce".parse::<SyncMode>().unwrap().capabilities(), 1);
        let step = |recorder: &mut Recorder, iteration| {
            let report = BatchReport {
                holder: Holder::new(NodeId::worker(0), antdt_core::Incarnation(0)),
                sequence: 0,
                iteration: antdt_core::Iteration(iteration),
                plan: PlanVersion(0),
                phase: Phase::Train,
                samples: 4,
                micro_batches: 1,
                data_wait: Duration::ZERO,
                compute: Duration::ZERO,
                communicate: Duration::ZERO,
                barrier_wait: Duration::ZERO,
            };
            recorder.head_note(JobTime::ZERO, &Note::Batches(vec![(report, 1.0)]));
        };
        for iteration in [0, 1, 1] {
            step(&mut recorder, iteration);
        }
        event(&mut recorder, EventKind::Rollback, "went back to the start of the job");
        step(&mut recorder, 0);
        assert_eq!(recorder.steps, 3);
    }
}
