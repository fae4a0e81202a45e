//! A platform takes its machine back: it tells a process to leave (SIGTERM) some time before it ends it.
//!
//! A worker finishes its step, gives its leases back and leaves; when its process has ended, another life of it is launched, wherever
//! the launcher finds a place: until then its memory, devices and ports are taken. One that left and does not end is killed.
//!
//! If no other process has the part of the model that this one has, it stays for a checkpoint. A server [hands over](super::handover) with all
//! others, and nothing is undone; if that comes to nothing, it goes after the next checkpoint. The last worker with the model ends
//! after one, to which the job goes back. Without checkpoints both stay until the platform ends them.
//!
//! Source: our design; the grace between the two is the platform's (30 s in Kubernetes, recalled), so no limit is set here.

use std::time::Duration;

use antdt_core::{Holder, JobTime, NodeStatus, Role};

use super::{EventKind, Head, HeadEffect};

impl Head {
    /// The platform of a node that is not fenced has told it to leave.
    pub(super) fn preempted(&mut self, now: JobTime, holder: Holder) {
        // A node that leaves already is told again with every heartbeat; a server stays for as long as it may.
        let is_news = self.core.nodes.get(holder.node).is_some_and(|node| node.status == NodeStatus::Running)
            && self.restarts.preempt(holder);
        if !is_news {
            return;
        }
        let text = format!("{holder} is told to leave by its platform");
        self.core.event(now, Some(holder.node), EventKind::Preempted, text);
        let has_model = self.core.alone_has_model(holder);
        let (weights, why) =
            (self.core.weights.clone(), format!("{} goes, as its platform says", holder.node));
        let hands_over = holder.node.role == Role::Server && self.replace_servers(now, weights, why);
        if !hands_over && (holder.node.role == Role::Server || has_model) {
            self.begin_checkpoint(now, true);
        }
        if holder.node.role == Role::Worker {
            self.core.draining.insert(holder);
            self.core.set_status(holder.node, NodeStatus::Draining);
        }
    }

    /// A checkpoint is complete: those that stayed for it, with the only copy of something, may go. The job goes back to it. Servers
    /// that are about to hand over stay.
    pub(super) fn end_preempted(&mut self) {
        let hands_over = self.handover.is_some();
        let stayed = self.restarts.take_staying(|holder| match holder.node.role {
            Role::Server => !hands_over,
            Role::Worker => self.core.alone_has_model(*holder),
        });
        self.core.effects.extend(stayed.into_iter().map(HeadEffect::Kill));
    }

    /// The process of a worker that had left has ended. Returns whether another life follows because the platform took it back.
    pub(super) fn follows_preempted(&mut self, now: JobTime, holder: Holder) -> bool {
        if !self.restarts.follows(holder) {
            return false;
        }
        let next = self.core.succeed(now, holder);
        if self.core.rollbacks.is_restoring() {
            self.core.rollbacks.launch_later(next, Duration::ZERO);
        } else {
            self.core.launch(now, next);
        }
        true
    }
}
