//! The parameter servers of a running job hand their parameters over to others, all at once: to more of them, to fewer, to as many
//! when one of them has to go, or to as many that divide the parameters by other weights.
//!
//! The parts of a checkpoint can be read into any number of servers, so the job goes over through one. It takes the checkpoint and
//! stands still from the moment of the copies until the checkpoint is complete; then it goes back to it as after the death of a
//! server, but nothing was trained since, so that nothing is undone. Workers keep their processes.
//!
//! If the checkpoint is not taken, the servers stay and the training goes on. If a server dies before the checkpoint is complete,
//! all servers start again anyway, from the checkpoint before, and there are as many of them as the job is to have.
//!
//! Weights hold until the next change: the servers have equal ones again when their number changes, when a slow one is started again,
//! which may cure it, and under the next master. They keep theirs when a server dies or is taken back by its platform.
//!
//! Source: our design.

use antdt_core::{
    ActionId, ActionOutcome, CheckpointId, Holder, JobTime, NodeAction, NodeId, NodeStatus, Role,
    ServerWeights,
};

use super::core::{HeadCore, Node, Phase};
use super::{EventKind, Head, HeadAnswer, HeadEffect};

/// How far a hand-over is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No checkpoint for it could begin yet.
    Wanted,
    /// The checkpoint is being taken.
    Taking(CheckpointId),
    /// The checkpoint is complete.
    Taken,
}

/// What the policy asked for the sake of a slow server, its restart or other weights: it ends with the hand-over.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerRestart {
    id: ActionId,
    node: NodeId,
    since: JobTime,
}

/// Servers that follow those that the job has.
#[derive(Debug, Clone)]
pub(super) struct Handover {
    /// Number of servers that the job is to have.
    servers: u32,
    /// Their weights.
    weights: ServerWeights,
    /// The reason, for the user.
    why: String,
    stage: Stage,
}

impl Handover {
    pub(super) const fn servers(&self) -> u32 {
        self.servers
    }

    pub(super) const fn weights(&self) -> &ServerWeights {
        &self.weights
    }

    /// Whether the servers start from a checkpoint that was taken for them.
    pub(super) fn is_taken(&self) -> bool {
        self.stage == Stage::Taken
    }
}

impl Head {
    /// Begins to change the number of servers.
    pub(super) fn scale_servers(&mut self, now: JobTime, servers: u32) -> HeadAnswer {
        if let Some(why) = self.why_no_handover(servers) {
            return HeadAnswer::Refused(why);
        }
        let before = self.core.config.servers;
        if before != servers {
            let why = format!("from {before} to {servers} servers, as the user wants");
            self.core.action(now, "SCALE", "servers".to_owned(), why.clone());
            let weights = ServerWeights::default();
            self.handover = Some(Handover { servers, weights, why, stage: Stage::Wanted });
            self.begin_handover(now);
        }
        HeadAnswer::Scaled { before }
    }

    /// Has all servers hand over to as many others of these weights, for this reason. Returns whether they do, now or as soon as they can:
    /// a hand-over that is under way is as good.
    pub(super) fn replace_servers(&mut self, now: JobTime, weights: ServerWeights, why: String) -> bool {
        if self.handover.is_none() {
            let servers = self.core.config.servers;
            if self.why_no_handover(servers).is_some() {
                return false;
            }
            self.handover = Some(Handover { servers, weights, why, stage: Stage::Wanted });
            self.begin_handover(now);
        }
        true
    }

    /// Carries out the restart of a server.
    pub(super) fn restart_server(&mut self, now: JobTime, action: &NodeAction) {
        let NodeAction { id, target: Holder { node, .. }, reason, .. } = action;
        let why = format!("{node} is started again: {reason}");
        self.server_restarts.push(ServerRestart { id: *id, node: *node, since: now });
        // A restart may cure it.
        if !self.replace_servers(now, ServerWeights::default(), why) {
            self.servers_stayed(now, "its servers cannot hand over now");
        }
    }

    /// Divides the parameters among the servers by other weights.
    pub(super) fn repartition(&mut self, now: JobTime, action: &NodeAction, weights: &ServerWeights) {
        let NodeAction { id, target: Holder { node, .. }, reason, .. } = action;
        let why = format!("weights of the servers change from {} to {weights}: {reason}", self.core.weights);
        // One that is under way is not as good: it is for other weights.
        let is_free = self.handover.is_none() && weights.fits(self.core.config.servers);
        self.server_restarts.push(ServerRestart { id: *id, node: *node, since: now });
        if !is_free || !self.replace_servers(now, weights.clone(), why) {
            self.server_restarts.retain(|other| other.id != *id);
            let why = "its servers cannot hand over now".to_owned();
            self.restart_ended(now, *node, &ActionOutcome::RestartFailed { id: *id, why });
        }
    }

    /// All servers are up: those that were to be started again were, unless they are still to hand over.
    pub(super) fn servers_began(&mut self, now: JobTime) {
        if self.handover.is_some() {
            return;
        }
        for ServerRestart { id, node, since } in std::mem::take(&mut self.server_restarts) {
            let incarnation =
                self.core.nodes.get(node).map_or_else(Default::default, |state| state.incarnation);
            let (holder, took) = (Holder::new(node, incarnation), now.since(since));
            self.restart_ended(now, node, &ActionOutcome::Restarted { id, holder, took });
        }
    }

    /// The servers stay: those that were to be started again were not.
    fn servers_stayed(&mut self, now: JobTime, why: &str) {
        for ServerRestart { id, node, .. } in std::mem::take(&mut self.server_restarts) {
            self.restart_ended(now, node, &ActionOutcome::RestartFailed { id, why: why.to_owned() });
        }
    }

    fn why_no_handover(&self, servers: u32) -> Option<String> {
        if !self.core.capabilities().needs_servers() {
            let sync = self.core.sync();
            Some(format!("--sync {sync} keeps the model in the workers, and has no servers"))
        } else if servers == 0 {
            Some(format!("--sync {} has at least 1 server", self.core.sync()))
        } else if self.checkpoints.is_none() || !self.core.config.can_roll_back {
            Some(
                "servers hand their parameters over through a checkpoint, and the job takes none: it has no --report-dir, --run-dir or --checkpoint-dir"
                    .to_owned(),
            )
        } else if self.core.phase == Phase::Over || self.stopping.is_some() {
            Some("the job is ending".to_owned())
        } else if self.core.is_complete() {
            Some("nothing is left to train: every sample is committed".to_owned())
        } else if self.core.rollbacks.is_busy() {
            Some("the job is going back to its newest checkpoint; ask again in a moment".to_owned())
        } else if !self.core.started {
            Some("nothing is trained yet; ask again in a moment".to_owned())
        } else {
            let under_way = self.handover.as_ref()?;
            Some(format!("it is changing already, {}; ask again in a moment", under_way.why))
        }
    }

    /// Begins the checkpoint of a hand-over, as soon as that is possible: none is being written, and there is a worker to take it.
    /// Begins it again if a worker died that it needed.
    pub(super) fn begin_handover(&mut self, now: JobTime) {
        let stage = self.handover.as_ref().map(|handover| handover.stage);
        let waits = match (stage, &self.checkpoints) {
            (Some(Stage::Wanted), _) => true,
            (Some(Stage::Taking(checkpoint)), Some(kept)) => !kept.is_under_way(checkpoint),
            _ => false,
        };
        if !waits || self.core.rollbacks.is_busy() || self.stopping.is_some() {
            return;
        }
        self.begin_checkpoint(now, true);
        if let (Some(handover), Some(checkpoints)) = (&mut self.handover, &mut self.checkpoints) {
            handover.stage = checkpoints.hold_training().map_or(Stage::Wanted, Stage::Taking);
        }
    }

    /// A checkpoint is complete. If it is that of a hand-over, the servers end and others start from it.
    pub(super) fn hand_over(&mut self, now: JobTime, checkpoint: CheckpointId) {
        let is_due = self.core.phase == Phase::Running && self.stopping.is_none();
        let handover = self.handover.as_mut().filter(|handover| handover.stage == Stage::Taking(checkpoint));
        if let Some(handover) = handover.filter(|_| is_due) {
            handover.stage = Stage::Taken;
            self.core.rollbacks.want(handover.why.clone());
            self.begin_rollback(now);
        }
    }

    /// There is no checkpoint, for this reason. If it was that of a hand-over, the servers stay.
    pub(super) fn keep_servers(&mut self, now: JobTime, checkpoint: CheckpointId, why: &str) {
        let is_its = |handover: &mut Handover| handover.stage == Stage::Taking(checkpoint);
        if let Some(Handover { why: change, .. }) = self.handover.take_if(is_its) {
            let text =
                format!("{change}: the servers stay, since checkpoint {checkpoint} was not taken: {why}");
            self.core.event(now, None, EventKind::Refused, text);
            self.servers_stayed(now, why);
        }
    }
}

impl HeadCore {
    /// The job goes on with this number of servers, while none of them lives. Returns the lives that begin with it.
    pub(super) fn resize_servers(&mut self, servers: u32) -> Vec<Holder> {
        let before = std::mem::replace(&mut self.config.servers, servers);
        let mut new = Vec::new();
        for node in (0..servers.max(before)).map(NodeId::server) {
            let is_new = node.index >= before;
            if self.nodes.get(node).is_none() {
                self.nodes.insert(node, Node { exited: true, ..Node::new() });
                self.set_status(node, NodeStatus::Lost);
            }
            let state = &mut self.nodes[node];
            state.retired = node.index >= servers;
            if is_new {
                // What a server that comes back was given last time was never launched.
                new.push(Holder::new(node, state.incarnation));
            }
        }
        self.changes += 1;
        self.find_servers();
        if before != servers {
            self.effects.push_back(HeadEffect::Servers(servers));
        }
        new
    }

    /// The servers have these weights from now on, while none of them lives.
    pub(super) fn reweigh_servers(&mut self, weights: &ServerWeights) {
        if self.weights != *weights {
            self.weights = weights.clone();
            self.effects.push_back(HeadEffect::Weights(weights.clone()));
        }
    }

    /// Servers that the job has.
    pub(super) fn count_servers(&self) -> u32 {
        let present = self.nodes.of_role(Role::Server).filter(|(_, node)| !node.retired).count();
        u32::try_from(present).unwrap_or(u32::MAX)
    }
}
