//! The lives of nodes: they register, report, leave and end.

use std::sync::Arc;
use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_controller::{Relaunch, RestartEvent};
use antdt_core::{BatchReport, Exit, Holder, JobTime, NodeStatus, PlanVersion, Role};

use super::core::{HeadCore, Phase, Registered};
use super::{EventKind, Head, HeadAnswer, NodeNews, Note, Registration};
use crate::mode::Departure;

impl Head {
    pub(super) fn register(&mut self, now: JobTime, registration: Registration) -> HeadAnswer {
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
            self.core.event(now, Some(holder.node), EventKind::Joined, text);
        }
        self.restart_event(now, holder.node, RestartEvent::Registered(holder));
        if holder.node.role == Role::Server && self.core.knows_servers() {
            self.go_on(now);
        }
        HeadAnswer::Registered {
            heartbeat: self.core.config.heartbeat,
            plan: self.core.plan_newer_than(PlanVersion(0), holder.node),
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        now: JobTime,
        holder: Holder,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: PlanVersion,
    ) -> HeadAnswer {
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
        if let Some(probe) = &mut self.probe {
            probe.note(now, &reports);
        }
        if !reports.is_empty() {
            self.core.note(now, Note::Batches(reports));
        }
        let node = &mut self.core.nodes[holder.node];
        if stepped && !node.first_report {
            node.first_report = true;
            self.restarts.committed(holder.node);
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

    /// A node says what it says with a heartbeat, without one.
    pub(super) fn told(&mut self, now: JobTime, holder: Holder, news: NodeNews) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.news(now, holder, news);
        HeadAnswer::Noted
    }

    pub(super) fn news(&mut self, now: JobTime, holder: Holder, news: NodeNews) {
        let core = &mut self.core;
        // The detector knows nothing of a node that has left, which may still say so.
        match news {
            NodeNews::Preempted => self.preempted(now, holder),
            NodeNews::Stalled(stall) => {
                core.detector.stalled(holder, stall);
            }
            NodeNews::Loaded(load) => {
                core.detector.loaded(holder, load);
            }
            NodeNews::Transferred(links) => {
                core.detector.transferred(now, holder, &links);
            }
            NodeNews::Averaged(distance) => core.note(now, Note::Averaged(holder.node, distance)),
        }
    }

    pub(super) fn leave(
        &mut self,
        now: JobTime,
        holder: Holder,
        end_of_data: bool,
        can_evaluate: bool,
    ) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        if end_of_data && self.core.is_undone(holder) {
            self.leaves_undone(now, holder);
            return left();
        }
        self.core.membership.leave(holder);
        self.core.joined.remove(holder);
        if !end_of_data {
            self.drained(now, holder);
            return left();
        }
        self.core.set_status(holder.node, NodeStatus::Finished);
        // A restart that was under way is pointless now.
        self.restarts.cancel(holder.node);
        self.core.draining.remove(&holder);
        let goes_on = self.is_between_epochs();
        self.core.complete(now, goes_on);
        self.core.event(
            now,
            Some(holder.node),
            EventKind::Finished,
            format!("{holder} saw the end of the data"),
        );
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
        if let Some(evaluations) = &mut self.evaluations {
            evaluations.takes(checkpoint);
            if goes_on {
                evaluations.wait(holder);
            }
        }
        let pushes = self.core.push_marks();
        self.gone_from_checkpoint(now, holder);
        self.end_if_done(now);
        HeadAnswer::Left { evaluate, checkpoint, pushes, goes_on }
    }

    /// A worker leaves before the end of the data, and its leases went back.
    fn drained(&mut self, now: JobTime, holder: Holder) {
        self.core.set_status(holder.node, NodeStatus::Lost);
        self.core.remember_pace(now, holder.node);
        self.core.detector.node_left(now, holder);
        self.core.membership_changed = true;
        // From now on nothing of it counts.
        self.core.lost.push(holder);
        self.core.release_leases(holder);
        self.core.event(now, Some(holder.node), EventKind::Left, format!("{holder} drained"));
        self.restart_event(now, holder.node, RestartEvent::Drained(holder));
        let retired = self.retired(now, holder);
        self.mode.left(now, &mut self.core, holder, Departure::Drained);
        self.gone_from_checkpoint(now, holder);
        if !retired {
            self.restarts.left(now, holder);
        }
    }

    /// A worker leaves at an end of the data that is undone, and its process is about to exit: another life follows.
    fn leaves_undone(&mut self, now: JobTime, holder: Holder) {
        // The end that it saw is undone, and its process is about to exit.
        self.lose(now, holder);
        let next = self.core.succeed(now, holder);
        if self.retired_without_leaving(now, next) {
            return;
        }
        if self.core.rollbacks.is_restoring() {
            self.core.rollbacks.launch_later(next, Duration::ZERO);
        } else {
            self.core.launch(now, next);
        }
    }

    /// A life ended without leaving.
    pub(super) fn lose(&mut self, now: JobTime, holder: Holder) {
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
        self.restarts.forget(holder);
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

    pub(super) fn exited(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
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
            self.core.event(now, Some(holder.node), EventKind::Lost, ended(holder, exit, tail));
            self.model_ended(now, holder, exit, tail);
            return;
        }
        if status == NodeStatus::Finished {
            self.finished_ended(now, holder, exit, tail);
            return;
        }
        let unregistered = status == NodeStatus::Pending;
        if !self.core.config.must_register
            && self.core.nodes[holder.node].registered.is_none()
            && exit != Exit::NotStarted
        {
            self.program_ended(now, holder, exit, tail);
            return;
        }
        let ordered = self.restarts.is_ordered(holder);
        self.lose(now, holder);
        self.restart_event(now, holder.node, RestartEvent::Exited(holder));
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
        self.core.event(now, Some(holder.node), EventKind::Lost, ended(holder, exit, tail));
        self.relaunch(now, holder, exit, tail);
    }

    /// The process of a worker ended that had left at the end of the data.
    fn finished_ended(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
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
            self.lacks_checkpoint(now, Some(holder.node), text);
        }
        if self.core.evaluator == Some(holder) && !self.core.evaluated {
            // The training is complete all the same; the report says that the quality of the model is unknown.
            self.core.evaluated = true;
            self.core.event(
                now,
                Some(holder.node),
                EventKind::Lost,
                format!("{holder} ended while it evaluated ({exit})"),
            );
        }
        self.end_if_done(now);
    }

    /// Another life follows one that ended by itself, as far as the budget goes.
    fn relaunch(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        match self.restarts.exited(holder, exit) {
            Relaunch::Repeated => {}
            Relaunch::Again { holder: next, after, reason } => {
                self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
                self.restarts.launch_at(now + after, next);
                self.launch_due_nodes(now);
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
    pub(super) fn replaces(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) -> bool {
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
        let Relaunch::Again { holder: next, after, reason } = self.restarts.exited(holder, exit) else {
            return false;
        };
        self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
        self.core.evaluator = None;
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.without_last();
        }
        self.core.set_status(holder.node, NodeStatus::Lost);
        self.restarts.launch_at(now + after, next);
        self.launch_due_nodes(now);
        true
    }

    pub(super) fn finish_quietly(&mut self, now: JobTime, holder: Holder) {
        self.core.set_status(holder.node, NodeStatus::Finished);
        self.core.membership.give_up(holder.node);
        self.core.event(now, Some(holder.node), EventKind::Finished, format!("{holder} ended"));
        self.end_if_done(now);
    }
}

impl HeadCore {
    /// Learns from the launcher on which host a life runs, before or after it registers.
    pub(super) fn place(&mut self, holder: Holder, host: String) {
        let Some(node) = self.nodes.get_mut(holder.node) else { return };
        if node.incarnation != holder.incarnation {
            return;
        }
        let host: Arc<str> = host.into();
        if let Some(registered) = &mut node.registered
            && registered.host != host
        {
            registered.info.host = host.to_string();
            registered.host = Arc::clone(&host);
            self.changes += 1;
        }
        node.placed = Some(host);
    }
}

/// The answer to a worker that leaves and has nothing to do any more.
fn left() -> HeadAnswer {
    HeadAnswer::Left { evaluate: false, checkpoint: None, pushes: Arc::default(), goes_on: false }
}

/// How a process ended, and why, if its launcher knows it.
pub(super) fn ended(holder: Holder, exit: Exit, tail: &[String]) -> String {
    let why = cause(tail).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{holder} ended: {exit}{why}")
}

/// Why a process ended, if its launcher knows it.
pub(super) fn cause(tail: &[String]) -> Option<&str> {
    tail.last().and_then(|line| line.strip_prefix(Exit::CAUSE))
}

/// Marks the first line of a panic in Rust; a hint about backtraces is the last one.
const PANIC: &str = " panicked at ";

/// Why a process ended, or the last thing that it said, for the message about its end.
pub(super) fn last_words(tail: &[String]) -> String {
    if let Some(cause) = cause(tail) {
        return format!(": {cause}");
    }
    let is_telling = |line: &String| line.contains("error:") || line.contains(PANIC);
    let Some(at) = tail.iter().rposition(is_telling).or(tail.len().checked_sub(1)) else {
        return String::new();
    };
    let said = tail[at].trim();
    // The text of a panic is in the line after the one that names its place.
    let text = match (said.split_once(PANIC), tail.get(at + 1)) {
        (Some((_, place)), Some(text)) => format!("panicked at {} {}", place.trim(), text.trim()),
        _ => said.trim_start_matches("error: ").to_owned(),
    };
    format!("; it said: {text}")
}
