//! A checkpoint that the user asks for, and the restart of a worker.
//!
//! The master answers with the number of the checkpoint; the user's command asks again with that number until the checkpoint is
//! complete or has failed. If a checkpoint is under way already, the answer is its number.

use antdt_core::{CheckpointId, Holder, JobTime, NodeId, NodeStatus, Role};

use super::core::Phase;
use super::{Head, HeadAnswer, HeadEffect};

/// State of a checkpoint that a user asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AskedCheckpoint {
    /// The checkpoint is being taken.
    UnderWay,
    /// The checkpoint is complete; the text says where it is stored.
    Complete(String),
    /// There is no checkpoint; the text says why.
    Failed(String),
}

impl Head {
    /// Begins a checkpoint because the user wants one, or says what became of the one that they asked for.
    pub(super) fn checkpoint_asked(&mut self, now: JobTime, asked: Option<CheckpointId>) -> HeadAnswer {
        if let Some(checkpoint) = asked {
            return HeadAnswer::Checkpointed { checkpoint, state: self.became_of(checkpoint) };
        }
        if let Some(why) = self.why_no_checkpoint() {
            return HeadAnswer::Refused(why.to_owned());
        }
        self.begin_checkpoint(now, true);
        let under_way = self.checkpoints.as_ref().filter(|checkpoints| checkpoints.is_busy());
        match under_way.map(super::Checkpoints::attempt_id) {
            Some(checkpoint) => HeadAnswer::Checkpointed { checkpoint, state: AskedCheckpoint::UnderWay },
            None => HeadAnswer::Refused("no worker can take one at the moment; ask again".to_owned()),
        }
    }

    /// Kills the process of a worker because the user wants another one. The exit, which the launcher tells, does the rest: whatever
    /// the worker had not committed is trained by others, and a new life follows.
    pub(super) fn restart_asked(&mut self, now: JobTime, node: NodeId) -> HeadAnswer {
        if let Some(why) = self.why_no_restart(node) {
            return HeadAnswer::Refused(why);
        }
        let holder = Holder::new(node, self.core.nodes[node].incarnation);
        let reason = "killed and started again, as the user wants".to_owned();
        self.core.action(now, "KILL", node.to_string(), reason);
        // It is not the node that failed.
        self.restarts.committed(node);
        self.core.effects.push_back(HeadEffect::Kill(holder));
        HeadAnswer::Noted
    }

    fn why_no_restart(&self, node: NodeId) -> Option<String> {
        let state = self.core.nodes.get(node).filter(|_| node.role == Role::Worker);
        if self.core.phase == Phase::Over || self.stopping.is_some() {
            Some("the job is ending".to_owned())
        } else if self.core.is_complete() {
            Some("nothing is left to train: every sample is committed".to_owned())
        } else if self.restarts.is_restarting(node) {
            Some(format!("{node} is being restarted already"))
        } else if self.retiring.is_to_leave(node) {
            Some(format!("the job goes on without {node}"))
        } else if state.is_none_or(|state| state.exited || state.status != NodeStatus::Running) {
            Some(format!("{node} is no worker that takes part now"))
        } else {
            None
        }
    }

    fn why_no_checkpoint(&self) -> Option<&'static str> {
        if self.checkpoints.is_none() {
            Some(
                "it takes no checkpoints: it has no --report-dir, --run-dir or --checkpoint-dir, or it runs a program of your own",
            )
        } else if self.core.phase == Phase::Over || self.stopping.is_some() {
            Some("the job is ending, with a checkpoint of its own")
        } else if !self.core.started {
            Some("nothing is trained yet")
        } else if self.core.is_complete() {
            Some("nothing is left to train, and the last checkpoint is taken anyway")
        } else if self.core.rollbacks.is_busy() {
            Some("the job is going back to its newest checkpoint; ask again in a moment")
        } else {
            None
        }
    }

    fn became_of(&self, checkpoint: CheckpointId) -> AskedCheckpoint {
        if self.checkpoints.as_ref().is_some_and(|kept| kept.is_under_way(checkpoint)) {
            return AskedCheckpoint::UnderWay;
        }
        match &self.last_ended {
            Some((last, Ok(place))) if *last == checkpoint => AskedCheckpoint::Complete(place.clone()),
            Some((last, Err(why))) if *last == checkpoint => AskedCheckpoint::Failed(why.clone()),
            _ => AskedCheckpoint::Failed("a node that it needed was lost meanwhile; ask again".to_owned()),
        }
    }
}
