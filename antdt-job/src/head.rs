//! [`Head`]: the master's state machine, which contains the monitor and the controller.
//!
//! Events come from nodes, from the launcher and from the ledger; effects go to the launcher, the ledger, and the
//! callers that wait. Nothing here reads a clock or touches a socket, so the same type can be driven by a test.

use antdt_controller::RestartEvent;
use antdt_core::{
    CheckpointId, Counts, Holder, Incarnation, InvalidValue, JobTime, Machine, NodeId, PlanVersion, Standing,
};

use crate::mode::{HeadHalf, SyncMode};

mod answer;
mod asked;
mod checkpoints;
mod config;
mod core;
mod diagnosis;
mod effect;
mod evaluations;
mod event;
mod handover;
mod joins;
mod keeping;
mod lives;
mod memory;
mod mode_choice;
mod note;
mod participants;
mod plans;
mod preempt;
mod regroup;
mod restart;
mod restarts;
mod rollback;
mod scale;
mod timers;
mod verdicts;

pub use answer::{HeadAnswer, Seen};
pub use asked::AskedCheckpoint;
use checkpoints::Checkpoints;
pub use checkpoints::{CheckpointEvery, CheckpointSchedule};
pub use config::HeadConfig;
pub use core::HeadCore;
use core::Phase;
pub use diagnosis::{Diagnosis, Done, HostLoad, NodeDiagnosis, SlowHost};
pub use effect::HeadEffect;
pub use evaluations::EvaluationSchedule;
use evaluations::Evaluations;
pub use event::{HeadEvent, NodeNews, Registration};
use handover::{Handover, ServerRestart};
pub use mode_choice::ModeChoice;
use mode_choice::Probe;
pub use note::{EventKind, Note};
use regroup::Regroup;
pub use restart::{HeadRecord, NodeRecord};
use restart::{Recorded, Spent};
use restarts::Restarts;
pub use rollback::RolledBack;
use scale::Retiring;
use timers::Timers;

/// The master of one job, as a state machine: what all sync modes share, and the head half of the job's mode.
#[derive(Debug)]
pub struct Head {
    core: HeadCore,
    mode: Box<dyn HeadHalf>,
    restarts: Restarts,
    regroup: Regroup,
    checkpoints: Option<Checkpoints>,
    /// The checkpoint that ended last: where it lies, or why there is none.
    last_ended: Option<(CheckpointId, Result<String, String>)>,
    /// The newest event that a checkpoint was not taken or not written, as its text has it.
    no_checkpoint: Option<String>,
    evaluations: Option<Evaluations>,
    /// Measures the first steps, until the mode is chosen.
    probe: Option<Probe>,
    /// The mode for which the job is stopping.
    next_mode: Option<SyncMode>,
    retiring: Retiring,
    /// Servers that are to follow those that the job has.
    handover: Option<Handover>,
    /// Restarts of servers that end with it.
    server_restarts: Vec<ServerRestart>,
    /// Workers that came while a checkpoint was taken.
    held_joins: Vec<(Holder, Standing)>,
    /// Why the job ends once the checkpoint under way is complete, and when it ends at the latest.
    stopping: Option<(JobTime, String)>,
    /// Whether a checkpoint waits for its keeper, or for its copies.
    keeping: bool,
    /// Workers that lost a server which is not known to have ended.
    doubts: Timers<Holder>,
    /// What a successor was told to know, if there may be one.
    recorded: Option<Recorded>,
    /// What the master before has spent, if this is such a successor and has not begun.
    resumed: Option<Spent>,
}

impl Head {
    /// Returns the master of a job in which nothing has happened yet.
    ///
    /// # Errors
    /// If the windows and limits of the detector are invalid.
    pub fn new(config: HeadConfig) -> Result<Self, InvalidValue> {
        Self::new_after(config, PlanVersion(0))
    }

    /// The master of a job in which plans up to this one were published before.
    fn new_after(config: HeadConfig, plan: PlanVersion) -> Result<Self, InvalidValue> {
        Ok(Self {
            mode: config.sync.head(),
            restarts: Restarts::new(config.max_restarts),
            regroup: Regroup::default(),
            checkpoints: config.checkpoints.clone().map(Checkpoints::new),
            last_ended: None,
            no_checkpoint: None,
            evaluations: config.evaluations.clone().map(Evaluations::new),
            probe: config
                .choice
                .clone()
                .map(|choice| Probe::new(choice, config.workers, config.global_batch_size)),
            next_mode: None,
            retiring: Retiring::new(),
            handover: None,
            server_restarts: Vec::new(),
            held_joins: Vec::new(),
            stopping: None,
            keeping: false,
            doubts: Timers::new(),
            recorded: None,
            resumed: None,
            core: HeadCore::new(config, plan)?,
        })
    }

    fn begin(&mut self, now: JobTime) -> HeadAnswer {
        self.hand_out();
        if let Some(spent) = self.resumed.take() {
            self.take_over(now, spent);
            return HeadAnswer::Noted;
        }
        let nodes: Vec<NodeId> = self.core.nodes.iter().map(|(node, _)| node).collect();
        // Servers first: workers need them.
        for node in nodes.into_iter().rev() {
            self.core.launch(now, Holder::new(node, Incarnation(0)));
        }
        HeadAnswer::Noted
    }

    /// What every event ends with.
    fn settle(&mut self, now: JobTime) {
        self.core.detector_effects(now);
        if self.core.phase == Phase::Over {
            self.end_choice(now);
        }
        self.note_record();
    }

    fn tick(&mut self, now: JobTime, counts: Option<Counts>) -> HeadAnswer {
        if let Some(counts) = counts {
            self.core.counts = counts;
        }
        self.launch_due_nodes(now);
        self.retire_ready_workers(now);
        self.core.end_nodes_that_never_register(now);
        self.choose_mode(now);
        let samples_per_second = self.core.detector.samples_per_second();
        let data_left = self.core.counts.acked + self.core.counts.quarantined < self.core.counts.total;
        if self.core.phase == Phase::Running && self.core.started && data_left && !self.core.joined.is_empty()
        {
            self.core.tick += 1;
            let view = self.core.view(now, samples_per_second);
            self.core.membership_changed = false;
            self.core.dispatcher.tick(now, &view);
            self.core.dispatch_effects(now);
            self.begin_restarts(now);
            self.begin_handover(now);
            self.begin_checkpoint(now, false);
        }
        HeadAnswer::Seen(Seen {
            samples_per_second,
            members: self.core.membership.live_count(),
            stragglers: self.core.detector.stragglers().count(),
        })
    }
}

impl Machine for Head {
    type Event = HeadEvent;
    type Answer = HeadAnswer;
    type Effect = HeadEffect;

    fn handle(&mut self, now: JobTime, event: HeadEvent) -> HeadAnswer {
        let answer = match event {
            HeadEvent::Begin => self.begin(now),
            HeadEvent::Register(registration) => self.register(now, registration),
            HeadEvent::Heartbeat { holder, .. } if !self.core.is_current(holder) => HeadAnswer::Fenced,
            HeadEvent::Heartbeat { holder, reports, plan_ready, plan_applied, news } => {
                for news in news {
                    self.news(now, holder, news);
                }
                self.heartbeat(now, holder, reports, plan_ready, plan_applied.0)
            }
            HeadEvent::Stalled { holder, stall } => self.told(now, holder, NodeNews::Stalled(stall)),
            HeadEvent::Loaded { holder, load } => self.told(now, holder, NodeNews::Loaded(load)),
            HeadEvent::Transferred { holder, links } => self.told(now, holder, NodeNews::Transferred(links)),
            HeadEvent::Averaged { holder, distance } => self.told(now, holder, NodeNews::Averaged(distance)),
            HeadEvent::Preempted(holder) => self.told(now, holder, NodeNews::Preempted),
            HeadEvent::Join { holder, standing } => self.join(now, holder, standing),
            HeadEvent::Ready { holder, step, readiness } => self.ready(now, holder, step, readiness),
            HeadEvent::Leave { holder, end_of_data, can_evaluate } => {
                self.leave(now, holder, end_of_data, can_evaluate)
            }
            HeadEvent::Evaluated { holder, samples, metrics } => {
                self.evaluated(now, holder, samples, metrics)
            }
            HeadEvent::Placed { holder, host } => {
                self.core.place(holder, host);
                HeadAnswer::Noted
            }
            HeadEvent::Started(holder) => {
                self.restart_event(now, holder.node, RestartEvent::Started(holder));
                HeadAnswer::Noted
            }
            HeadEvent::LaunchFailed(holder, why) => {
                self.restart_event(now, holder.node, RestartEvent::LaunchFailed(holder));
                self.core.fail(why);
                HeadAnswer::Noted
            }
            HeadEvent::Exited(holder, exit, tail) => {
                self.exited(now, holder, exit, &tail);
                HeadAnswer::Noted
            }
            HeadEvent::Tick(counts) => self.tick(now, counts),
            HeadEvent::Scale { workers } => self.scale(now, workers),
            HeadEvent::ScaleServers { servers } => self.scale_servers(now, servers),
            HeadEvent::Restart(node) => self.restart_asked(now, node),
            HeadEvent::Checkpoint(asked) => self.checkpoint_asked(now, asked),
            HeadEvent::Diagnose => HeadAnswer::Diagnosed(Box::new(self.core.diagnose(now))),
            HeadEvent::Rest { holder, checkpoint } => self.rest(now, holder, checkpoint),
            HeadEvent::Cut { checkpoint, taken } => {
                self.cut(now, checkpoint, taken);
                HeadAnswer::Noted
            }
            HeadEvent::Stored { checkpoint } => self.stored(checkpoint),
            HeadEvent::Kept { checkpoint, outcome } => {
                self.kept(now, checkpoint, outcome);
                HeadAnswer::Noted
            }
            HeadEvent::RolledBack { rollback, outcome } => {
                self.rolled_back(now, rollback, outcome);
                HeadAnswer::Noted
            }
            HeadEvent::Stop(why) => {
                self.next_mode = None;
                self.stop(now, why);
                HeadAnswer::Noted
            }
        };
        self.begin_rollback(now);
        self.note_keeping(now);
        self.settle(now);
        answer
    }

    fn poll_effect(&mut self) -> Option<HeadEffect> {
        self.core.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        let stop = self.stopping.as_ref().map(|(until, _)| *until);
        let checkpoint = self.checkpoints.as_ref().and_then(Checkpoints::deadline);
        let due = [
            self.restarts.deadline(),
            self.retiring.deadline(),
            self.core.detector.deadline(),
            checkpoint,
            stop,
            self.core.rollbacks.deadline(),
            self.doubts.next(),
        ];
        due.into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: JobTime) {
        if self.deadline().is_some_and(|due| now.since(due) > self.core.config.heartbeat) {
            // The master itself was away, stopped at the terminal or starved: the silence of a node proves nothing.
            for (id, node) in self.core.nodes.iter() {
                self.core.detector.heartbeat(now, Holder::new(id, node.incarnation));
            }
        }
        self.restarts.on_deadline(now, |old| self.core.alone_has_model(old));
        self.carry_out_restarts(now);
        self.end_workers_that_do_not_retire(now);
        self.checkpoint_deadline(now);
        self.rollback_deadline(now);
        self.begin_rollback(now);
        self.note_keeping(now);
        if self.core.detector.deadline().is_some_and(|at| at <= now) {
            self.core.detector.on_deadline(now);
        }
        self.settle(now);
    }
}

#[cfg(feature = "serde")]
mod settings;

#[cfg(feature = "serde")]
pub use settings::HeadSettings;

#[cfg(test)]
mod tests;
