//! [`Head`]: the master's state machine, which contains the monitor and the controller.
//!
//! Events come from nodes, from the launcher and from the ledger; effects go to the launcher, the ledger, and the
//! callers that wait. Nothing here reads a clock or touches a socket, so the same type can be driven by a test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_controller::action::ActionValues;
use antdt_controller::{
    Policy, Relaunch, RelaunchBudget, RelaunchConfig, RestartConfig, RestartEffect, RestartEvent, RestartSaga,
};
use antdt_core::{
    ActionOutcome, BatchReport, CheckpointId, Contribution, Counts, Exit, Holder, Incarnation, InvalidValue,
    JobTime, Joined, LinkReport, Machine, Metrics, ModelDistance, NodeActionKind, NodeId, NodeInfo, NodeLoad,
    NodeStatus, Plan, PlanVersion, PushMark, Readiness, Role, RollbackId, ServerWeights, Stall, Standing,
    StepCommit,
};
use antdt_monitor::MonitorConfig;

use crate::mode::{Departure, HeadHalf, SyncMode};

mod asked;
mod checkpoints;
mod core;
mod diagnosis;
mod handover;
mod memory;
mod participants;
mod preempt;
mod restart;
mod rollback;
mod scale;
mod timers;

pub use asked::AskedCheckpoint;
pub use checkpoints::{CheckpointEvery, CheckpointSchedule};
use checkpoints::{Checkpoints, Rested};
pub use core::HeadCore;
use core::{Phase, Registered};
pub use diagnosis::{Diagnosis, Done, HostLoad, NodeDiagnosis, SlowHost};
use handover::{Handover, ServerRestart};
pub use restart::{HeadRecord, NodeRecord};
use restart::{Recorded, Spent};
pub use rollback::RolledBack;
use scale::Retiring;
use timers::Timers;

/// Settings of a [`Head`].
#[derive(Debug)]
pub struct HeadConfig {
    /// Sync mode: how gradients or models of the workers are combined.
    pub sync: SyncMode,
    /// Number of workers that the job starts with.
    pub workers: u32,
    /// Number of parameter servers that the job starts with; 0 where the model lives in the workers.
    pub servers: u32,
    /// Samples of one synchronous step, over all workers together.
    pub global_batch_size: u32,
    /// Time between two heartbeats of a node.
    pub heartbeat: Duration,
    /// Largest number of restarts of a node in a row, without a committed step in between.
    pub max_restarts: u32,
    /// Smallest number of workers with which the job goes on when a worker that exceeds `max_restarts` is
    /// given up; with fewer the job ends.
    pub min_workers: u32,
    /// Whether every process must register with the master. False for a user's own program, which need not speak the
    /// protocol.
    pub must_register: bool,
    /// Policy that decides on batch sizes and restarts.
    pub policy: Box<dyn Policy>,
    /// Dry run: the decisions of the policy are recorded and not carried out.
    pub dry_run: bool,
    /// Settings of the straggler detector: windows, limits, pace rule.
    pub monitor: MonitorConfig,
    /// Settings of the checkpoints; `None` if the job takes no checkpoints.
    pub checkpoints: Option<CheckpointSchedule>,
    /// Whether a job whose model is lost goes back to its newest checkpoint, or to its start. Otherwise it ends.
    pub can_roll_back: bool,
    /// Hosts that the launcher may choose among, by the names that nodes give; empty if it cannot choose.
    pub hosts: Arc<BTreeSet<String>>,
}

/// What a node sends when it registers with the master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registration {
    /// Identity and capabilities of the node.
    pub info: NodeInfo,
    /// Address of the node's data plane, "host:port"; empty if it has none.
    pub data_address: String,
    /// Process id of the node on its host, for messages to the user.
    pub process_id: u32,
}

/// An input of the head: a call of a node, a change of a process, a tick, or a command of the user. The
/// driver passes it on.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeadEvent {
    /// The job begins: the head launches all nodes.
    Begin,
    /// A node registers.
    Register(Registration),
    /// Heartbeat of a node, with its reports since the last one.
    Heartbeat {
        /// Node and incarnation that sent the heartbeat.
        holder: Holder,
        /// The node's batches since its last heartbeat, oldest first, each with the sum of its samples'
        /// losses.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "settings::read_reports"))]
        reports: Vec<(BatchReport, f64)>,
        /// Newest plan that the node has received.
        plan_ready: PlanVersion,
        /// Version of the plan in force on the node, and the step of the node from which on it is in force.
        plan_applied: (PlanVersion, u64),
    },
    /// The training thread of a worker makes no progress, though the worker's heartbeats arrive.
    Stalled {
        /// Worker and incarnation whose training thread stalls.
        holder: Holder,
        /// The work of the training thread, and the time that it has made no progress.
        stall: Stall,
    },
    /// A node reports its load, as its operating system measures it.
    Loaded {
        /// Node and incarnation that sent the report.
        holder: Holder,
        /// The reported load.
        load: NodeLoad,
    },
    /// A worker reports how many bytes it sent to its peers, and how long they took.
    Transferred {
        /// Worker and incarnation that sent the report.
        holder: Holder,
        /// Bytes and times, by peer.
        links: Vec<LinkReport>,
    },
    /// A worker has averaged its model with those of all other workers.
    Averaged {
        /// Worker and incarnation that averaged.
        holder: Holder,
        /// Distance of the worker's model from the average, before it took the average over.
        distance: ModelDistance,
    },
    /// The platform has told this incarnation of a node to leave, and will end it soon.
    Preempted(Holder),
    /// A worker asks to take part in the training.
    Join {
        /// Worker and incarnation that asks.
        holder: Holder,
        /// Group and model that the worker has.
        standing: Standing,
    },
    /// A worker's push of a step is on all servers.
    Ready {
        /// Worker and incarnation that pushed.
        holder: Holder,
        /// Step that the push belongs to.
        step: u64,
        /// Samples and acknowledgements of the push.
        readiness: Readiness,
    },
    /// A worker stops training.
    Leave {
        /// Worker and incarnation that stops.
        holder: Holder,
        /// `true` if no samples are left, `false` if the worker was drained.
        end_of_data: bool,
        /// Whether the worker can evaluate: it has the model and held-out samples.
        can_evaluate: bool,
    },
    /// A worker has evaluated the model.
    Evaluated {
        /// Worker and incarnation that evaluated the model.
        holder: Holder,
        /// Number of held-out samples.
        samples: u64,
        /// Metrics of the evaluation.
        #[cfg_attr(feature = "serde", serde(default))]
        metrics: Metrics,
    },
    /// A worker has paused between two steps for a checkpoint.
    Rest {
        /// Worker and incarnation that has paused.
        holder: Holder,
        /// Checkpoint for which the worker was asked to pause.
        checkpoint: CheckpointId,
    },
    /// Model and ledger were copied for a checkpoint, or could not be.
    Cut {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// `Err` with the reason if the copies could not be made.
        taken: Result<(), String>,
    },
    /// A checkpoint was written, or could not be written.
    Kept {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// Location of the checkpoint, or the reason why it could not be written.
        outcome: Result<String, String>,
    },
    /// The ledger was set back to a checkpoint, or could not be set back.
    RolledBack {
        /// Number of the rollback.
        rollback: RollbackId,
        /// State that the ledger was set back to, or the reason why it could not be.
        outcome: Result<RolledBack, String>,
    },
    /// The launcher has started the process of this incarnation.
    Started(Holder),
    /// The launcher has learned the host of this incarnation, which was not known when it was launched.
    Placed {
        /// Node and incarnation that was placed.
        holder: Holder,
        /// The launcher's name of the host; it counts in place of the one that the node gives.
        host: String,
    },
    /// The launcher could not start the process of this incarnation, for the reason in the text.
    LaunchFailed(Holder, String),
    /// The process of this incarnation ended; the strings are the last lines of its output.
    Exited(Holder, Exit, Vec<String>),
    /// A control tick, with the sample counts of the ledger; `None` if the job has no ledger.
    Tick(Option<Counts>),
    /// The user asks for this number of workers.
    Scale {
        /// Number of workers, at least 1.
        workers: u32,
    },
    /// The user asks for this number of parameter servers.
    ScaleServers {
        /// Number of servers, at least 1.
        servers: u32,
    },
    /// The user asks for a checkpoint now, or, with the number of an earlier answer, for the state of that
    /// checkpoint.
    Checkpoint(Option<CheckpointId>),
    /// The user asks which nodes are slow, and what was done about them. Changes nothing.
    Diagnose,
    /// The user asks the job to end, for the reason in the text.
    Stop(String),
}

/// Answer that the sender of an event gets at once.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeadAnswer {
    /// The registration is accepted.
    Registered {
        /// Interval at which the node must send heartbeats.
        #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
        heartbeat: Duration,
        /// Newest plan that names the node; `None` if there is none.
        plan: Option<Plan>,
    },
    /// Answer to [`HeadEvent::Heartbeat`].
    Beat(Box<BeatReply>),
    /// The call stays open; a later [`HeadEffect`] answers it.
    Parked,
    /// Answer to [`HeadEvent::Leave`].
    Left {
        /// Whether the worker must evaluate the model on the held-out samples.
        evaluate: bool,
        /// Last checkpoint of the job, which the worker must take before it evaluates; `None` if there is
        /// none to take.
        checkpoint: Option<CheckpointId>,
        /// Pushes that count and that the servers may still have to apply before that.
        pushes: Arc<[PushMark]>,
    },
    /// The event was handled; it needs no answer.
    Noted,
    /// Answer to [`HeadEvent::Tick`], for the progress line.
    Seen(Seen),
    /// Answer to [`HeadEvent::Scale`] and [`HeadEvent::ScaleServers`]: the number of workers, or of servers, is
    /// changing.
    Scaled {
        /// Number before the change.
        before: u32,
    },
    /// Answer to [`HeadEvent::Checkpoint`].
    Checkpointed {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// State of the checkpoint.
        state: AskedCheckpoint,
    },
    /// Answer to [`HeadEvent::Diagnose`].
    Diagnosed(Box<Diagnosis>),
    /// The request was refused, for the reason in the text.
    Refused(String),
    /// Answer to a worker whose step a rollback has undone: the worker must join again.
    Undone,
    /// The sender was declared dead, or replaced by a newer incarnation, and must exit.
    Fenced,
}

/// State of the job at a tick, for the progress line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seen {
    /// Samples per second of all workers together, over the monitor's short window.
    pub samples_per_second: f64,
    /// Number of workers that take part.
    pub members: usize,
    /// Number of stragglers, of workers and servers.
    pub stragglers: usize,
}

/// Effect that the driver must carry out, in the order in which the head returns them.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum HeadEffect {
    /// Start a process for this incarnation of a node.
    Launch(Holder),
    /// End the process of this incarnation of a node.
    Kill(Holder),
    /// Carry out these action values of the plan in force in the cluster, by
    /// [`action::order`](antdt_controller::action::order). Incarnations that are launched later must follow
    /// them.
    Order(ActionValues),
    /// Tell the ledger to count these samples as committed, because their worker is dead or the master
    /// commits for all workers.
    Settle(Contribution),
    /// Give the leases of this worker back to the ledger.
    LedgerLost(Holder),
    /// Answer this worker, which waits to join. Workers that get the same answer share it, so that a driver
    /// can encode it once.
    Joined(Holder, Arc<Joined>),
    /// Answer this worker, which waits for the commit of its step.
    Committed(Holder, Box<StepCommit>),
    /// Tell this worker that a rollback has undone the step whose commit it waits for; it must join again.
    Undone(Holder),
    /// Set the ledger back to the newest checkpoint, or to the start of the job; servers that are launched
    /// later start from there. The driver reports the result by [`HeadEvent::RolledBack`].
    RollBack(RollbackId),
    /// The job has this number of servers from now on: those that are launched later share the parameters
    /// among so many. Emitted while none is up.
    Servers(u32),
    /// The servers have these weights from now on: those that are launched later divide the parameters by
    /// them. Emitted while none is up. Until the first such effect all servers have the same weight.
    Weights(ServerWeights),
    /// Answer a worker that has paused for a checkpoint.
    Rested {
        /// Worker and incarnation that has paused.
        holder: Holder,
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// `true` if the worker must copy the model, or make the servers copy theirs, before its next step;
        /// `false` if it goes on at once.
        keep: bool,
        /// Pushes that count and that the servers may still have to apply before they copy their parts.
        pushes: Arc<[PushMark]>,
    },
    /// Store this state for a successor of the master, durably, before any later effect is carried out. Only
    /// a [journaled](Head::journaled) head emits it.
    Record(Box<HeadRecord>),
    /// The job is over: `Ok` if all samples are committed, otherwise the reason.
    End(Result<(), String>),
    /// Add an entry to the log and the report. No other effect depends on it.
    Note {
        /// Job time of the entry.
        at: JobTime,
        /// Content of the entry.
        note: Note,
    },
}

/// Entry of the report of a job.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Note {
    /// The job took an action, or refused to take it.
    Action {
        /// Name of the action, such as `ADJUST_BS` or `KILL_RESTART`.
        kind: &'static str,
        /// Node that the action concerns, or `all`.
        target: String,
        /// Reason, for the user.
        reason: String,
    },
    /// An event that is no action, such as a node that joins or is lost.
    Event {
        /// Node that the event concerns; `None` for the whole job.
        node: Option<NodeId>,
        /// Kind of the event, in one word.
        kind: &'static str,
        /// Text for the user.
        text: String,
    },
    /// An incarnation of a node was launched.
    Launched(Holder),
    /// A plan was published to the nodes.
    Published(Plan),
    /// A plan has come into force on a node.
    Applied(NodeId, PlanVersion),
    /// Reports of one heartbeat, oldest first, each with the sum of its samples' losses.
    Batches(Vec<(BatchReport, f64)>),
    /// A worker averaged its model with all others. The value is the distance between its model before the
    /// average and the average.
    Averaged(NodeId, ModelDistance),
    /// Every sample of the job is committed.
    Completed,
    /// A worker has evaluated the model.
    Evaluated {
        /// Number of held-out samples.
        samples: u64,
        /// Metrics of the evaluation.
        metrics: Metrics,
    },
}

impl Note {
    /// Kind of the event that a checkpoint was not taken or not written; its text says why.
    pub const NO_CHECKPOINT: &'static str = "no-checkpoint";
}

/// The master of one job, as a state machine: what all sync modes share, and the head half of the job's mode.
#[derive(Debug)]
pub struct Head {
    core: HeadCore,
    mode: Box<dyn HeadHalf>,
    sagas: BTreeMap<NodeId, RestartSaga>,
    saga_due: Timers<()>,
    relaunch: RelaunchBudget,
    relaunch_due: Timers<Holder>,
    checkpoints: Option<Checkpoints>,
    /// The checkpoint that ended last: where it lies, or why there is none.
    last_ended: Option<(CheckpointId, Result<String, String>)>,
    retiring: Retiring,
    /// Servers that are to follow those that the job has.
    handover: Option<Handover>,
    /// Restarts of servers that end with it.
    server_restarts: Vec<ServerRestart>,
    /// Lives of workers that leave because their platform told them to; others follow them.
    preempted: BTreeSet<Holder>,
    /// When those of them that have left are killed, if they have not ended.
    leaving_due: Timers<Holder>,
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

/// How long a job that was told to stop may take for its checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(30);

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
            sagas: BTreeMap::new(),
            saga_due: Timers::new(),
            relaunch: RelaunchBudget::new(RelaunchConfig {
                max_restarts: config.max_restarts,
                ..RelaunchConfig::default()
            }),
            relaunch_due: Timers::new(),
            checkpoints: config.checkpoints.clone().map(Checkpoints::new),
            last_ended: None,
            retiring: Retiring::new(),
            handover: None,
            server_restarts: Vec::new(),
            preempted: BTreeSet::new(),
            leaving_due: Timers::new(),
            held_joins: Vec::new(),
            stopping: None,
            keeping: false,
            doubts: Timers::new(),
            recorded: None,
            resumed: None,
            core: HeadCore::new(config, plan)?,
        })
    }

    fn begin(&mut self, now: JobTime) {
        if let Some(spent) = self.resumed.take() {
            self.take_over(now, spent);
            return;
        }
        let nodes: Vec<NodeId> = self.core.nodes.iter().map(|(node, _)| node).collect();
        // Servers first: workers need them.
        for node in nodes.into_iter().rev() {
            self.core.launch(now, Holder::new(node, Incarnation(0)));
        }
    }

    fn register(&mut self, now: JobTime, registration: Registration) -> HeadAnswer {
        let holder = registration.info.holder;
        let Some(node) = self.core.nodes.get_mut(holder.node) else {
            return HeadAnswer::Refused(format!("this job has no {}", holder.node));
        };
        let repeated = node.status == NodeStatus::Running;
        if holder.incarnation != node.incarnation || !(repeated || node.status == NodeStatus::Pending) {
            return HeadAnswer::Fenced;
        }
        let Registration { mut info, data_address, process_id } = registration;
        if let Some(host) = &node.placed {
            info.host = host.to_string();
        }
        node.registered = Some(Box::new(Registered {
            host: info.host.as_str().into(),
            info: info.clone(),
            data_address,
            process_id,
        }));
        self.core.set_status(holder.node, NodeStatus::Running);
        if holder.node.role == Role::Worker {
            self.core.membership.register(holder);
        }
        if repeated {
            // The answer was lost, and the heartbeats wait for it: this is a sign of life.
            self.core.detector.heartbeat(now, holder);
        } else {
            self.core.detector.node_joined(now, &info);
            let text = format!("{holder} registered as process {process_id}");
            self.core.event(now, Some(holder.node), "joined", text);
        }
        self.saga_event(now, holder.node, RestartEvent::Registered(holder));
        if holder.node.role == Role::Server && self.core.knows_servers() {
            self.go_on(now);
        }
        HeadAnswer::Registered {
            heartbeat: self.core.config.heartbeat,
            plan: self.core.plan_newer_than(PlanVersion(0), holder.node),
        }
    }

    fn heartbeat(
        &mut self,
        now: JobTime,
        holder: Holder,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: PlanVersion,
    ) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.detector.heartbeat(now, holder);
        for (report, _) in &reports {
            self.core.detector.report(now, report);
        }
        if let Some(checkpoints) = &mut self.checkpoints
            && holder.node.role == Role::Worker
            && !self.core.is_undone(holder)
            && let Some((report, _)) = reports.iter().rfind(|(report, _)| report.is_step())
        {
            checkpoints.stepped(report.iteration.0);
        }
        let stepped = reports.iter().any(|(report, _)| report.is_step());
        if !reports.is_empty() {
            self.core.note(now, Note::Batches(reports));
        }
        let node = &mut self.core.nodes[holder.node];
        if stepped && !node.first_report {
            node.first_report = true;
            self.relaunch.committed(holder.node);
            self.core.changes += 1;
            let took = now.since(node.launched);
            // Half old, half new: the last start says most about the next.
            self.core.start_delay = Some(self.core.start_delay.map_or(took, |before| (before + took) / 2));
        }
        if plan_applied > node.plan_applied {
            node.plan_applied = plan_applied;
            self.core.joined.applied(holder, plan_applied);
            self.core.note(now, Note::Applied(holder.node, plan_applied));
        }
        self.core.note_applied(now);
        let plan = self.core.plan_newer_than(plan_ready, holder.node);
        let lost = match holder.node.role {
            Role::Server => self.core.lost_marks(),
            Role::Worker => Vec::new(),
        };
        let drain = self.core.draining.contains(&holder);
        let checkpoint = self.checkpoints.as_ref().and_then(|checkpoints| checkpoints.order(holder));
        if holder.node.role == Role::Worker && (drain || checkpoint.is_some()) {
            self.mode.ordered(&mut self.core, holder);
        }
        let waits = self.core.detector.deadlines();
        HeadAnswer::Beat(Box::new(BeatReply {
            plan,
            drain,
            reform: self.core.membership.reform_wanted() && self.core.joined.contains(holder),
            fenced: false,
            lost,
            finished: self.core.phase == Phase::Over,
            broken_group: self.core.membership.broken().filter(|_| self.core.joined.contains(holder)),
            checkpoint,
            rollback: self.core.rollbacks.newest(),
            peer_wait: Some(waits.peer),
            master_wait: Some(waits.master),
        }))
    }

    fn stalled(&mut self, holder: Holder, stall: Stall) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.detector.stalled(holder, stall);
        HeadAnswer::Noted
    }

    fn loaded(&mut self, holder: Holder, load: NodeLoad) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.detector.loaded(holder, load);
        HeadAnswer::Noted
    }

    fn transferred(&mut self, now: JobTime, holder: Holder, links: &[LinkReport]) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.detector.transferred(now, holder, links);
        HeadAnswer::Noted
    }

    fn averaged(&mut self, now: JobTime, holder: Holder, distance: ModelDistance) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.note(now, Note::Averaged(holder.node, distance));
        HeadAnswer::Noted
    }

    fn join(&mut self, now: JobTime, holder: Holder, standing: Standing) -> HeadAnswer {
        if !self.core.may_ask(holder) || holder.node.role != Role::Worker {
            return HeadAnswer::Fenced;
        }
        if self.core.phase == Phase::Over {
            self.core.send_home(holder);
            return HeadAnswer::Parked;
        }
        // It was let in, and comes back because it has lost a server. If that has ended, the news of it is on its way.
        let doubts = self.core.capabilities().needs_servers()
            && standing.group.0 > 0
            && self.core.joined.contains(holder)
            && !self.core.is_undone(holder)
            && !self.core.rollbacks.is_busy();
        if doubts {
            let limit = self.core.config.monitor.liveness.lost_after.saturating_mul(2);
            self.doubts.set(holder.node, now + limit, holder);
        }
        if doubts || self.holds_joins() {
            self.held_joins.retain(|(other, _)| *other != holder);
            self.held_joins.push((holder, standing));
            return HeadAnswer::Parked;
        }
        self.let_join(now, holder, standing);
        HeadAnswer::Parked
    }

    /// Whether workers that come have to wait, for a checkpoint or a rollback.
    fn holds_joins(&self) -> bool {
        self.core.rollbacks.is_busy() || self.checkpoints.as_ref().is_some_and(Checkpoints::holds_joins)
    }

    fn let_held_join(&mut self, now: JobTime) {
        if self.holds_joins() {
            return;
        }
        for (holder, standing) in std::mem::take(&mut self.held_joins) {
            if self.doubts.contains(holder.node) {
                self.held_joins.push((holder, standing));
            } else if self.core.is_current(holder) && self.core.phase == Phase::Running {
                self.let_join(now, holder, standing);
            }
        }
    }

    fn let_join(&mut self, now: JobTime, holder: Holder, standing: Standing) {
        let started = self.core.started;
        self.mode.joining(now, &mut self.core, holder, standing);
        self.note_start(now, started);
    }

    /// Tells the checkpoints that training began, if it had not `before`.
    fn note_start(&mut self, now: JobTime, before: bool) {
        if !before
            && self.core.started
            && let Some(checkpoints) = &mut self.checkpoints
        {
            checkpoints.started(now, self.core.counts.acked, self.core.counts.total);
        }
    }

    // Rollbacks.

    /// Begins the rollback that is wanted, if one is: from now on nothing counts that was trained since the checkpoint.
    fn begin_rollback(&mut self, now: JobTime) {
        let Some(why) = self.core.rollbacks.take_wanted() else { return };
        if self.core.phase == Phase::Over {
            return;
        }
        let rollback = self.core.rollbacks.begin(now);
        let handover = self.handover.take();
        let text = match &handover {
            Some(handover) if handover.is_taken() => {
                format!("{why}; all servers start again from the checkpoint that was taken for it")
            }
            _ => format!("{why}; the job goes back to its newest checkpoint"),
        };
        self.core.event(now, None, "rollback", text);
        let told = self.checkpoints.as_mut().map_or_else(Vec::new, |checkpoints| checkpoints.roll_back(now));
        self.doubts = Timers::new();
        self.mode.set_back(now, &mut self.core);
        for (old, next) in self.core.set_back(now) {
            // Its end, however late the news of it, is that of an older life.
            self.core.effects.push_back(HeadEffect::Kill(old));
            self.sagas.remove(&old.node);
            self.saga_due.clear(old.node);
            self.relaunch_due.clear(old.node);
            self.core.rollbacks.launch_later(next, Duration::ZERO);
            self.preempted.remove(&old);
        }
        if let Some(handover) = handover {
            for next in self.core.resize_servers(handover.servers()) {
                self.core.rollbacks.launch_later(next, Duration::ZERO);
            }
            self.core.reweigh_servers(handover.weights());
        }
        // Whoever stands still goes on when no server is left that would take a push.
        for told in told {
            self.core.tell_rested(told);
        }
        self.core.effects.push_back(HeadEffect::RollBack(rollback));
        self.stop_if_kept(now);
    }

    /// The ledger was set back: starts what is missing.
    fn rolled_back(&mut self, now: JobTime, rollback: RollbackId, outcome: Result<RolledBack, String>) {
        let is_asked = rollback == self.core.rollbacks.newest() && self.core.rollbacks.is_restoring();
        if !is_asked || self.core.phase == Phase::Over {
            return;
        }
        let RolledBack { checkpoint, counts, text } = match outcome {
            Ok(to) => to,
            Err(why) => {
                self.core.fail(format!("the model was lost, and the job cannot go back: {why}"));
                return;
            }
        };
        self.core.counts = counts;
        self.core.event(now, None, "rollback", text);
        let Some((launches, after)) = self.core.rollbacks.restored(rollback, checkpoint) else { return };
        for holder in launches {
            // What the job did meanwhile stands: a worker that it wants no more, and a newer life of one it wants again.
            let node = &self.core.nodes[holder.node];
            let is_newer = node.incarnation > holder.incarnation
                || (node.incarnation == holder.incarnation && node.status != NodeStatus::Lost);
            if node.retired || is_newer {
                continue;
            }
            self.relaunch_due.set(holder.node, now + after, holder);
        }
        self.relaunch_what_is_due(now);
        if self.core.knows_servers() {
            self.go_on(now);
        }
    }

    /// The servers are known, if the job has any: workers may begin, or begin again.
    fn go_on(&mut self, now: JobTime) {
        self.core.rollbacks.started();
        if self.core.rollbacks.is_busy() {
            return;
        }
        self.servers_began(now);
        let started = self.core.started;
        self.mode.go_on(now, &mut self.core);
        self.note_start(now, started);
        self.let_held_join(now);
    }

    fn rollback_deadline(&mut self, now: JobTime) {
        if self.core.rollbacks.deadline().is_some_and(|at| at <= now) {
            self.core.fail("the model was lost, and it took too long to set the ledger back".to_owned());
        }
        for (node, holder) in self.doubts.take_due(now) {
            self.held_joins.retain(|(other, _)| *other != holder);
            let text = format!("{holder} cannot reach a server that others can; it is started again");
            self.core.event(now, Some(node), "lost", text);
            // Its exit, which the launcher tells, does the rest.
            self.core.effects.push_back(HeadEffect::Kill(holder));
        }
    }

    /// The end of a server, or of the worker with the only copy of the model: it is started again within its budget, and the job
    /// goes back.
    fn model_ended(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        let lost =
            format!("{} ended ({exit}), and the parameters it held with it{}", holder.node, last_words(tail));
        if !self.core.config.can_roll_back {
            self.core.fail(lost);
            return;
        }
        match self.relaunch.exited(holder, exit) {
            Relaunch::Repeated => {}
            Relaunch::Again { after, reason, holder: next } => {
                self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
                self.core.rollbacks.want(lost);
                self.begin_rollback(now);
                self.core.rollbacks.launch_later(next, after);
            }
            Relaunch::Finished | Relaunch::Hopeless(_) => self.core.fail(lost),
            Relaunch::Exhausted(_) => {
                let limit = self.core.config.max_restarts;
                let text = format!("{lost}; it was restarted {limit} times already (--max-restarts)");
                self.core.fail(text);
            }
        }
    }

    // Checkpoints.

    /// Begins a checkpoint that is due, or one that is asked for. Not once the job is over: its processes end, which looks as if
    /// their platform took them back, and servers close their connections.
    fn begin_checkpoint(&mut self, now: JobTime, asked: bool) {
        if self.core.phase == Phase::Over {
            return;
        }
        let Counts { acked, total, .. } = self.core.counts;
        let Some(checkpoints) = &mut self.checkpoints else { return };
        if checkpoints.is_busy() || !(asked || checkpoints.is_due(now, acked, total)) {
            return;
        }
        // A worker that is about to leave is no help.
        let stays = |holder: &Holder| !self.core.draining.contains(holder) && self.mode.may_keep(*holder);
        let Some(first) = self.core.joined.iter().find(stays) else { return };
        let keeper = self.core.capabilities().waits_for_a_keeper().then_some(first);
        checkpoints.begin(now, keeper, acked, total);
    }

    /// Tells the mode when a checkpoint begins to wait for its keeper, and when its copies exist or it is given up.
    fn note_keeping(&mut self, now: JobTime) {
        let keeping = self.checkpoints.as_ref().is_some_and(Checkpoints::is_gathering);
        if keeping != std::mem::replace(&mut self.keeping, keeping) {
            self.mode.keeping(now, &mut self.core, keeping);
        }
    }

    fn rest(&mut self, now: JobTime, holder: Holder, checkpoint: CheckpointId) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        let told = match &mut self.checkpoints {
            Some(checkpoints) => checkpoints.rests(holder, checkpoint, self.core.joined.iter()),
            None => Some(Rested { holder, checkpoint, keep: false }),
        };
        self.tell_rested(now, told);
        HeadAnswer::Parked
    }

    fn tell_rested(&mut self, now: JobTime, told: impl IntoIterator<Item = Rested>) {
        for told in told {
            self.core.tell_rested(told);
        }
        self.let_held_join(now);
    }

    fn cut(&mut self, now: JobTime, checkpoint: CheckpointId, taken: Result<(), String>) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let told = checkpoints.cut(now, checkpoint, taken.is_ok());
        if let Err(why) = taken {
            if checkpoints.last_of_all() == Some(checkpoint) {
                checkpoints.without_last();
            }
            // Servers end with the job, and what is copied from them then is for nothing.
            if self.core.phase != Phase::Over {
                let text = format!("checkpoint {checkpoint} was not taken: {why}");
                self.core.event(now, None, Note::NO_CHECKPOINT, text);
            }
            self.keep_servers(now, checkpoint, &why);
            self.last_ended = Some((checkpoint, Err(why)));
        }
        self.tell_rested(now, told);
        self.end_if_done(now);
    }

    fn kept(&mut self, now: JobTime, checkpoint: CheckpointId, outcome: Result<String, String>) {
        let Some(checkpoints) = &self.checkpoints else { return };
        let is_kept = outcome.is_ok();
        if let Some(took) = checkpoints.writes_for(now, checkpoint).filter(|_| is_kept) {
            self.core.checkpoint_time = Some(took);
        }
        let overtaken = checkpoints.overtaken(checkpoint);
        let (kind, text) = match (&outcome, overtaken) {
            (Ok(place), _) => ("checkpoint", format!("checkpoint {checkpoint} is complete: {place}")),
            (Err(_), Some(newer)) => (
                "checkpoint",
                format!("checkpoint {checkpoint} is given up: {newer}, which is newer, is complete"),
            ),
            (Err(why), None) => {
                (Note::NO_CHECKPOINT, format!("checkpoint {checkpoint} was not written: {why}"))
            }
        };
        self.core.event(now, None, kind, text);
        match &outcome {
            Ok(_) => self.hand_over(now, checkpoint),
            Err(why) => self.keep_servers(now, checkpoint, why),
        }
        self.last_ended = Some((checkpoint, outcome));
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let told = checkpoints.ended(now, checkpoint, is_kept);
        self.tell_rested(now, told);
        if is_kept {
            self.end_preempted();
        }
        self.end_if_done(now);
    }

    /// A worker is gone that may have been waited for.
    fn gone_from_checkpoint(&mut self, now: JobTime, holder: Holder) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        // Otherwise servers write, and its end changes nothing for them.
        let writes = self.core.config.sync.capabilities().workers_have_model();
        let told = checkpoints.gone(now, holder, writes, self.core.joined.iter());
        self.tell_rested(now, told);
        self.stop_if_kept(now);
    }

    /// Gives up a checkpoint that takes too long, and a stop that waits for one.
    fn checkpoint_deadline(&mut self, now: JobTime) {
        if let Some(checkpoint) =
            self.checkpoints.as_mut().and_then(|checkpoints| checkpoints.give_up_last(now))
        {
            let text = format!("the last checkpoint, {checkpoint}, was given up: it took too long");
            self.core.event(now, None, Note::NO_CHECKPOINT, text);
            self.end_if_done(now);
        }
        if let Some(checkpoints) = &mut self.checkpoints
            && checkpoints.deadline().is_some_and(|at| at <= now)
        {
            let checkpoint = checkpoints.attempt_id();
            let told = checkpoints.give_up(now);
            let text = format!("checkpoint {checkpoint} was given up: it took too long");
            self.core.event(now, None, Note::NO_CHECKPOINT, text);
            self.keep_servers(now, checkpoint, "it took too long");
            self.last_ended = Some((checkpoint, Err("it took too long".to_owned())));
            self.tell_rested(now, told);
        }
        self.stop_if_kept(now);
    }

    /// Ends the job for good, after its checkpoint if it can take one.
    fn stop(&mut self, now: JobTime, why: String) {
        let can = self.stopping.is_none()
            && self.checkpoints.is_some()
            && self.core.phase == Phase::Running
            && self.core.started;
        if can && !self.core.is_complete() {
            self.begin_checkpoint(now, true);
        }
        let busy = self.checkpoints.as_ref().is_some_and(Checkpoints::is_busy);
        // Whoever resumes the job goes on from a checkpoint of the end, and evaluates nothing before it.
        if can && (busy || self.is_keeping_last() || self.core.is_evaluating()) {
            self.stopping = Some((now + STOP_LIMIT, why));
        } else {
            self.core.fail(why);
        }
    }

    /// Whether the checkpoint is under way that the worker takes that saw the end of the data.
    fn is_keeping_last(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.last_of_all().is_some())
    }

    fn stop_if_kept(&mut self, now: JobTime) {
        // The data may have come to its end meanwhile: then the last checkpoint and the evaluation are waited for, too.
        let under_way = self.checkpoints.as_ref().and_then(|checkpoints| {
            checkpoints.is_busy().then(|| checkpoints.attempt_id()).or_else(|| checkpoints.last_of_all())
        });
        let busy = under_way.is_some() || self.core.is_evaluating();
        if let Some((_, why)) = self.stopping.take_if(|(until, _)| !busy || *until <= now) {
            if let Some(checkpoint) = under_way {
                let text =
                    format!("checkpoint {checkpoint} was given up: a job that ends does not wait longer");
                self.core.event(now, None, Note::NO_CHECKPOINT, text);
            }
            self.core.fail(why);
        }
    }

    fn end_if_done(&mut self, now: JobTime) {
        self.stop_if_kept(now);
        let keeping = self.is_keeping_last();
        if !keeping {
            self.core.end_if_done(now);
        }
    }

    fn ready(&mut self, now: JobTime, holder: Holder, step: u64, readiness: Readiness) -> HeadAnswer {
        if !self.core.may_ask(holder) {
            return HeadAnswer::Fenced;
        }
        if self.core.is_undone(holder) {
            return HeadAnswer::Undone;
        }
        match self.mode.ready(now, &mut self.core, holder, step, readiness) {
            Ok(()) => HeadAnswer::Parked,
            Err(why) => HeadAnswer::Refused(why),
        }
    }

    fn leave(&mut self, now: JobTime, holder: Holder, end_of_data: bool, can_evaluate: bool) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        if end_of_data && self.core.is_undone(holder) {
            // The end that it saw is undone, and its process is about to exit.
            self.lose(now, holder);
            let next = self.core.succeed(now, holder);
            if self.retired_without_leaving(now, next) {
                return left();
            }
            if self.core.rollbacks.is_restoring() {
                self.core.rollbacks.launch_later(next, Duration::ZERO);
            } else {
                self.core.launch(now, next);
            }
            return left();
        }
        self.core.membership.leave(holder);
        self.core.joined.remove(holder);
        if !end_of_data {
            self.core.set_status(holder.node, NodeStatus::Lost);
            self.core.remember_pace(now, holder.node);
            self.core.detector.node_left(now, holder);
            self.core.membership_changed = true;
            // It gave its leases back; from now on nothing of it counts.
            self.core.lost.push(holder);
            self.core.release_leases(holder);
            self.core.event(now, Some(holder.node), "left", format!("{holder} drained"));
            self.saga_event(now, holder.node, RestartEvent::Drained(holder));
            let retired = self.retired(now, holder);
            self.mode.left(now, &mut self.core, holder, Departure::Drained);
            self.gone_from_checkpoint(now, holder);
            if !retired {
                self.left_preempted(now, holder);
            }
            return left();
        }
        self.core.set_status(holder.node, NodeStatus::Finished);
        // A restart that was under way is pointless now.
        self.sagas.remove(&holder.node);
        self.saga_due.clear(holder.node);
        self.core.draining.remove(&holder);
        self.core.complete(now);
        self.core.event(now, Some(holder.node), "finished", format!("{holder} saw the end of the data"));
        self.mode.left(now, &mut self.core, holder, Departure::EndOfData);
        // The same answer to a call that was repeated.
        let mine = self.core.evaluator.is_none_or(|evaluator| evaluator == holder);
        let evaluate = can_evaluate && mine && !self.core.evaluated;
        let mut checkpoint = None;
        if evaluate {
            // It stays under watch: the job waits for what it finds.
            let asked_before = self.core.evaluator.replace(holder).is_some();
            checkpoint = self.checkpoints.as_mut().and_then(|checkpoints| match asked_before {
                true => checkpoints.last_of_all(),
                false => Some(checkpoints.take_last(now)),
            });
        } else {
            self.core.detector.node_left(now, holder);
        }
        self.gone_from_checkpoint(now, holder);
        self.end_if_done(now);
        HeadAnswer::Left { evaluate, checkpoint, pushes: self.core.push_marks() }
    }

    /// A life ended without leaving.
    fn lose(&mut self, now: JobTime, holder: Holder) {
        let Some(node) = self.core.nodes.get(holder.node) else { return };
        if node.incarnation != holder.incarnation
            || matches!(node.status, NodeStatus::Lost | NodeStatus::Finished)
        {
            return;
        }
        self.core.set_status(holder.node, NodeStatus::Lost);
        self.core.remember_pace(now, holder.node);
        self.core.detector.node_left(now, holder);
        self.core.draining.remove(&holder);
        self.preempted.remove(&holder);
        if holder.node.role != Role::Worker {
            return;
        }
        self.doubts.clear(holder.node);
        self.core.lost.push(holder);
        let took_part = self.core.joined.remove(holder);
        for released in self.core.membership.lost(holder) {
            self.core.release_leases(released);
        }
        if took_part {
            self.core.membership_changed = true;
        }
        self.mode.lost(now, &mut self.core, holder, took_part);
        self.gone_from_checkpoint(now, holder);
    }

    fn exited(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        let Some(node) = self.core.nodes.get_mut(holder.node) else { return };
        if node.incarnation != holder.incarnation {
            return;
        }
        node.exited = true;
        let status = node.status;
        // Servers that the job has no more were ended by the master, and nothing waits for them.
        let is_surplus = holder.node.role == Role::Server && node.retired;
        if self.core.phase == Phase::Over || is_surplus {
            return;
        }
        if exit == Exit::OutOfMemory && holder.node.role == Role::Worker {
            self.core.ran_out_of_memory(now, holder);
        }
        if holder.node.role == Role::Server {
            self.core.set_status(holder.node, NodeStatus::Lost);
            self.core.detector.node_left(now, holder);
            self.core.event(now, Some(holder.node), "lost", format!("{holder} ended: {exit}"));
            self.model_ended(now, holder, exit, tail);
            return;
        }
        if status == NodeStatus::Finished {
            self.core.detector.node_left(now, holder);
            if self.core.evaluator == Some(holder)
                && !self.core.evaluated
                && self.replaces(now, holder, exit, tail)
            {
                return;
            }
            if self.core.evaluator == Some(holder)
                && let Some(checkpoints) = &mut self.checkpoints
                && let Some(checkpoint) = checkpoints.last_of_all()
                && !self.core.evaluated
            {
                checkpoints.without_last();
                let text = format!("the last checkpoint, {checkpoint}, was not taken: {holder} ended before");
                self.core.event(now, Some(holder.node), Note::NO_CHECKPOINT, text);
            }
            if self.core.evaluator == Some(holder) && !self.core.evaluated {
                // The training is complete all the same; the report says that nobody knows how good the model is.
                self.core.evaluated = true;
                self.core.event(
                    now,
                    Some(holder.node),
                    "lost",
                    format!("{holder} ended while it evaluated ({exit})"),
                );
            }
            self.end_if_done(now);
            return;
        }
        let unregistered = status == NodeStatus::Pending;
        let ordered = self.sagas.get(&holder.node).is_some_and(|saga| saga.old() == holder);
        self.lose(now, holder);
        self.saga_event(now, holder.node, RestartEvent::Exited(holder));
        if ordered || self.retired_without_leaving(now, holder) {
            return;
        }
        if status == NodeStatus::Lost && self.follows_preempted(now, holder) {
            return;
        }
        if exit == Exit::Finished && unregistered {
            // A program that takes no part in the protocol: it is done when it says so.
            self.finish_quietly(now, holder);
            return;
        }
        self.core.event(now, Some(holder.node), "lost", format!("{holder} ended: {exit}"));
        match self.relaunch.exited(holder, exit) {
            Relaunch::Repeated => {}
            Relaunch::Again { holder: next, after, reason } => {
                self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
                self.relaunch_due.set(holder.node, now + after, next);
                self.relaunch_what_is_due(now);
            }
            Relaunch::Finished => {
                self.core.fail(format!("{holder} ended before the end of the data{}", last_words(tail)));
            }
            Relaunch::Hopeless(reason) => self.core.fail(format!("{reason}{}", last_words(tail))),
            Relaunch::Exhausted(reason) => {
                let limit = self.core.config.max_restarts;
                let why = format!(
                    "{reason}; it was restarted {limit} times already (--max-restarts){}",
                    last_words(tail)
                );
                if self.can_spare_one() {
                    self.give_up(now, holder, why);
                } else {
                    self.core.fail(why);
                }
            }
        }
    }

    /// A worker ended that was to take the last checkpoint and to evaluate. Returns whether another life does.
    fn replaces(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) -> bool {
        if !self.core.config.can_roll_back || !exit.retryable() {
            return false;
        }
        if self.core.capabilities().workers_have_model() {
            // All others have left: with it went the model, unless the last checkpoint has it.
            let lost = self.checkpoints.as_ref().is_some_and(|kept| kept.last_of_all().is_some());
            if lost {
                self.model_ended(now, holder, exit, tail);
            }
            return lost;
        }
        // The servers have the model; if it ended because one of them did, the news of that is on its way.
        let Relaunch::Again { holder: next, after, reason } = self.relaunch.exited(holder, exit) else {
            return false;
        };
        self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
        self.core.evaluator = None;
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.without_last();
        }
        self.core.set_status(holder.node, NodeStatus::Lost);
        self.relaunch_due.set(holder.node, now + after, next);
        self.relaunch_what_is_due(now);
        true
    }

    fn finish_quietly(&mut self, now: JobTime, holder: Holder) {
        self.core.set_status(holder.node, NodeStatus::Finished);
        self.core.membership.give_up(holder.node);
        self.core.event(now, Some(holder.node), "finished", format!("{holder} ended"));
        self.end_if_done(now);
    }

    fn relaunch_what_is_due(&mut self, now: JobTime) {
        for (_, holder) in self.relaunch_due.take_due(now) {
            self.core.launch(now, holder);
        }
    }

    /// Begins the restarts that the policy asked for.
    fn begin_restarts(&mut self, now: JobTime) {
        while let Some(action) = self.core.actions.pop_front() {
            let node = action.target.node;
            self.core.changes += 1;
            match &action.kind {
                NodeActionKind::Repartition { weights } => self.repartition(now, &action, weights),
                _ if node.role == Role::Server => self.restart_server(now, &action),
                _ => {
                    self.sagas.insert(node, RestartSaga::begin(now, &action, RestartConfig::default()));
                    self.saga_effects(now, node);
                }
            }
        }
    }

    fn saga_event(&mut self, now: JobTime, node: NodeId, event: RestartEvent) {
        if let Some(saga) = self.sagas.get_mut(&node) {
            saga.event(now, event);
            self.saga_effects(now, node);
        }
    }

    fn saga_effects(&mut self, now: JobTime, node: NodeId) {
        while let Some(effect) = self.sagas.get_mut(&node).and_then(RestartSaga::poll_effect) {
            match effect {
                RestartEffect::Drain(holder) => {
                    self.core.draining.insert(holder);
                    if let Some(state) = self.core.nodes.get(node)
                        && state.incarnation == holder.incarnation
                        && state.status == NodeStatus::Running
                    {
                        self.core.set_status(node, NodeStatus::Draining);
                    }
                }
                RestartEffect::Fence(holder) => self.lose(now, holder),
                RestartEffect::Kill(holder) => self.core.effects.push_back(HeadEffect::Kill(holder)),
                RestartEffect::Launch(holder) => {
                    self.core.draining.remove(&saga_old(&self.sagas, node));
                    self.core.launch(now, holder);
                }
                RestartEffect::Outcome(outcome) => self.restart_ended(now, node, &outcome),
                _ => {}
            }
        }
        if self.sagas.get(&node).is_some_and(RestartSaga::is_over) {
            self.sagas.remove(&node);
        }
        match self.sagas.get(&node).and_then(Machine::deadline) {
            Some(at) => self.saga_due.set(node, at, ()),
            None => self.saga_due.clear(node),
        }
    }

    fn restart_ended(&mut self, now: JobTime, node: NodeId, outcome: &ActionOutcome) {
        self.core.event(now, Some(node), "restart", format!("{outcome:?}"));
        self.core.dispatcher.action_ended(now, outcome);
        self.core.changes += 1;
    }

    fn tick(&mut self, now: JobTime, counts: Option<Counts>) -> HeadAnswer {
        if let Some(counts) = counts {
            self.core.counts = counts;
        }
        self.relaunch_what_is_due(now);
        self.retire_who_may(now);
        self.core.end_what_never_registers(now);
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

/// The answer to a worker that leaves and has nothing to do any more.
fn left() -> HeadAnswer {
    HeadAnswer::Left { evaluate: false, checkpoint: None, pushes: Arc::default() }
}

fn saga_old(sagas: &BTreeMap<NodeId, RestartSaga>, node: NodeId) -> Holder {
    sagas.get(&node).map_or(Holder::new(node, Incarnation(0)), RestartSaga::old)
}

/// The last thing a process said, for the message about its end.
fn last_words(tail: &[String]) -> String {
    let said = tail.iter().rev().find(|line| line.contains("error:")).or_else(|| tail.last());
    said.map(|line| format!("; it said: {}", line.trim().trim_start_matches("error: "))).unwrap_or_default()
}

impl Machine for Head {
    type Event = HeadEvent;
    type Answer = HeadAnswer;
    type Effect = HeadEffect;

    fn handle(&mut self, now: JobTime, event: HeadEvent) -> HeadAnswer {
        let answer = match event {
            HeadEvent::Begin => {
                self.begin(now);
                HeadAnswer::Noted
            }
            HeadEvent::Register(registration) => self.register(now, registration),
            HeadEvent::Heartbeat { holder, reports, plan_ready, plan_applied } => {
                self.heartbeat(now, holder, reports, plan_ready, plan_applied.0)
            }
            HeadEvent::Stalled { holder, stall } => self.stalled(holder, stall),
            HeadEvent::Loaded { holder, load } => self.loaded(holder, load),
            HeadEvent::Transferred { holder, links } => self.transferred(now, holder, &links),
            HeadEvent::Averaged { holder, distance } => self.averaged(now, holder, distance),
            HeadEvent::Preempted(holder) => self.preempted(now, holder),
            HeadEvent::Join { holder, standing } => self.join(now, holder, standing),
            HeadEvent::Ready { holder, step, readiness } => self.ready(now, holder, step, readiness),
            HeadEvent::Leave { holder, end_of_data, can_evaluate } => {
                self.leave(now, holder, end_of_data, can_evaluate)
            }
            HeadEvent::Evaluated { holder, samples, metrics } => {
                if self.core.evaluator == Some(holder) {
                    self.core.note(now, Note::Evaluated { samples, metrics });
                    self.core.evaluated = true;
                    self.end_if_done(now);
                }
                HeadAnswer::Noted
            }
            HeadEvent::Placed { holder, host } => {
                self.core.place(holder, host);
                HeadAnswer::Noted
            }
            HeadEvent::Started(holder) => {
                self.saga_event(now, holder.node, RestartEvent::Started(holder));
                HeadAnswer::Noted
            }
            HeadEvent::LaunchFailed(holder, why) => {
                self.saga_event(now, holder.node, RestartEvent::LaunchFailed(holder));
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
            HeadEvent::Checkpoint(asked) => self.checkpoint_asked(now, asked),
            HeadEvent::Diagnose => HeadAnswer::Diagnosed(Box::new(self.core.diagnose(now))),
            HeadEvent::Rest { holder, checkpoint } => self.rest(now, holder, checkpoint),
            HeadEvent::Cut { checkpoint, taken } => {
                self.cut(now, checkpoint, taken);
                HeadAnswer::Noted
            }
            HeadEvent::Kept { checkpoint, outcome } => {
                self.kept(now, checkpoint, outcome);
                HeadAnswer::Noted
            }
            HeadEvent::RolledBack { rollback, outcome } => {
                self.rolled_back(now, rollback, outcome);
                HeadAnswer::Noted
            }
            HeadEvent::Stop(why) => {
                self.stop(now, why);
                HeadAnswer::Noted
            }
        };
        self.begin_rollback(now);
        self.note_keeping(now);
        self.core.detector_effects(now);
        self.note_record();
        answer
    }

    fn poll_effect(&mut self) -> Option<HeadEffect> {
        self.core.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        let stop = self.stopping.as_ref().map(|(until, _)| *until);
        let checkpoint = self.checkpoints.as_ref().and_then(Checkpoints::deadline);
        let due = [
            self.saga_due.next(),
            self.relaunch_due.next(),
            self.leaving_due.next(),
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
            // The master itself was away, stopped at the terminal or starved: nobody's silence proves anything.
            for (id, node) in self.core.nodes.iter() {
                self.core.detector.heartbeat(now, Holder::new(id, node.incarnation));
            }
        }
        let due = self.saga_due.take_due(now);
        for (node, ()) in &due {
            let needed =
                self.sagas.get(node).map(RestartSaga::old).filter(|old| self.core.alone_has_model(*old));
            if let Some(saga) = self.sagas.get_mut(node) {
                if let Some(old) = needed {
                    saga.event(now, RestartEvent::Needed(old));
                }
                saga.on_deadline(now);
            }
        }
        for (node, ()) in due {
            self.saga_effects(now, node);
        }
        self.relaunch_what_is_due(now);
        self.end_what_does_not_leave(now);
        self.end_what_does_not_retire(now);
        self.checkpoint_deadline(now);
        self.rollback_deadline(now);
        self.begin_rollback(now);
        self.note_keeping(now);
        if self.core.detector.deadline().is_some_and(|at| at <= now) {
            self.core.detector.on_deadline(now);
        }
        self.core.detector_effects(now);
        self.note_record();
    }
}

#[cfg(feature = "serde")]
mod settings;

#[cfg(feature = "serde")]
pub use settings::HeadSettings;

#[cfg(test)]
mod tests;
