//! A platform takes its machine back: it tells a process to leave (SIGTERM) some time before it ends it.
//!
//! A worker finishes its step, gives its leases back and leaves; another life of it is launched, wherever the launcher finds a
//! place. If no other process has the part of the model that this one has, on a server or as the last copy, the job takes a
//! checkpoint, ends the process and goes back to that checkpoint. Without checkpoints it stays until the platform ends it.
//!
//! Source: our design; the grace between the two is the platform's (30 s in Kubernetes, recalled), so no limit is set here.

use std::time::Duration;

use antdt_core::{Holder, JobTime, NodeStatus, Role};

use super::{Head, HeadAnswer, HeadEffect};

impl Head {
    pub(super) fn preempted(&mut self, now: JobTime, holder: Holder) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        // Whoever leaves already is told again with every heartbeat; a server stays for as long as it may.
        let is_news = self.core.nodes.get(holder.node).is_some_and(|node| node.status == NodeStatus::Running)
            && self.preempted.insert(holder);
        if !is_news {
            return HeadAnswer::Noted;
        }
        let text = format!("{holder} is told to leave by its platform");
        self.core.event(now, Some(holder.node), "preempted", text);
        if holder.node.role == Role::Server || self.core.alone_has_model(holder) {
            self.begin_checkpoint(now, true);
        }
        if holder.node.role == Role::Worker {
            self.core.draining.insert(holder);
            self.core.set_status(holder.node, NodeStatus::Draining);
        }
        HeadAnswer::Noted
    }

    /// A checkpoint is complete: those that stayed for it, with the only copy of something, may go. The job goes back to it.
    pub(super) fn end_preempted(&mut self) {
        let (stayed, others) = std::mem::take(&mut self.preempted)
            .into_iter()
            .partition(|holder| holder.node.role == Role::Server || self.core.alone_has_model(*holder));
        self.preempted = others;
        for holder in stayed {
            self.core.effects.push_back(HeadEffect::Kill(holder));
        }
    }

    /// A worker has left in order; if it did so because its platform said so, another life of it follows.
    pub(super) fn follow_preempted(&mut self, now: JobTime, holder: Holder) {
        if !self.preempted.remove(&holder) || self.sagas.contains_key(&holder.node) {
            return;
        }
        // The end of its process, whenever the news of it comes, is that of an older life.
        let next = self.core.succeed(now, holder);
        if self.core.rollbacks.is_restoring() {
            self.core.rollbacks.launch_later(next, Duration::ZERO);
        } else {
            self.core.launch(now, next);
        }
    }
}
