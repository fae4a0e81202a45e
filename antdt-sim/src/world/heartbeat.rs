//! Heartbeats of the nodes of a simulated job.

use std::time::Duration;

use antdt_agent::{BeatReply, Notice, Reported, SessionState};
use antdt_core::{BatchReport, Exit, Iteration, MembershipVersion, Phase, PlanVersion, Role, Stall};
use antdt_job::HeadEvent;

use super::life::{Life, LifeId, Stage};
use super::{Due, World};
use crate::happening::{Happening, Observer};

impl<O: Observer> World<O> {
    pub(super) fn beat(&mut self, id: LifeId) {
        let every = self.setup.heartbeat;
        let life = &mut self.lives[id];
        if life.stage != Stage::Running && life.stage != Stage::Leaving {
            return;
        }
        if life.worker.is_none() && life.holder.node.role == Role::Server {
            life.report_service(every);
        }
        self.send_beat(id);
        self.queue.push(self.now + every, Due::Beat(id));
    }

    pub(super) fn send_beat(&mut self, id: LifeId) {
        let life = &self.lives[id];
        let (holder, preempted, (since, until)) = (life.holder, life.session.preempted, life.hung);
        // Both travel with the heartbeat, which is more than one message here.
        if preempted {
            self.send_head(id, 0, HeadEvent::Preempted(holder));
        }
        if self.now < until {
            let stall = Stall { work: antdt_core::Work::Training, lasts: self.now.since(since) };
            self.send_head(id, 0, HeadEvent::Stalled { holder, stall });
        }
        let life = &mut self.lives[id];
        let beat = match self.spare_reports.pop_front() {
            Some(mut spare) => {
                // That a vector taken over so keeps its memory is how the library does it; without, it would cost time only.
                spare.clear();
                life.session.beat_with(spare.into_iter().map(reported).collect())
            }
            None => life.session.beat(),
        };
        let links = beat.links;
        if !links.is_empty() {
            self.send_head(id, 0, HeadEvent::Transferred { holder, links });
        }
        let reports = beat.reports.into_iter().map(|r| (r.report, r.loss_sum)).collect();
        let event = HeadEvent::heartbeat(holder, reports, beat.plan_ready, beat.plan_applied);
        self.send_head(id, 0, event);
    }

    pub(super) fn beat_failed(
        &mut self,
        id: LifeId,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: (PlanVersion, u64),
    ) {
        let reports = reports.into_iter().map(reported).collect();
        let life = &mut self.lives[id];
        // Models are not simulated, and so neither is how far they are apart.
        let (model_distance, links) = (None, Vec::new());
        let beat = antdt_agent::Beat { reports, plan_ready, plan_applied, model_distance, links };
        life.session.beat_failed(self.now, beat);
        if life.session.state() == SessionState::MasterLost {
            self.exit(id, Exit::CODE_RETRY);
        }
    }

    pub(super) fn beaten(&mut self, id: LifeId, reply: BeatReply) {
        let life = &mut self.lives[id];
        if life.is_dead() {
            return;
        }
        let notice = reply.broken_group.map(Notice::GroupBroken);
        life.session.beat_answered(self.now, reply);
        let state = life.session.state();
        let is_server = life.holder.node.role == Role::Server;
        if self.observer.watches() {
            let (holder, session) = (life.holder, life.session.clone());
            self.saw(&Happening::Beat(holder, &session));
        }
        match state {
            SessionState::Fenced | SessionState::MasterLost => return self.exit(id, Exit::CODE_RETRY),
            SessionState::Draining | SessionState::Finished if is_server => return self.exit(id, 0),
            _ => {}
        }
        if let Some(Notice::GroupBroken(version)) = notice {
            let life = &self.lives[id];
            let is_part = |group: MembershipVersion| group == version || life.home == Some(version);
            if life.in_group_call && life.group.is_some_and(|(group, _)| is_part(group)) {
                self.break_off(id);
            }
        }
    }
}

impl Life {
    /// A server says what it served `since` the last time.
    fn report_service(&mut self, since: Duration) {
        let (bytes, time) = std::mem::take(&mut self.served);
        if bytes == 0 {
            return;
        }
        self.reports += 1;
        let report = BatchReport {
            holder: self.holder,
            sequence: self.reports,
            iteration: Iteration(self.reports),
            plan: PlanVersion(0),
            phase: Phase::Train,
            samples: bytes,
            micro_batches: 1,
            data_wait: since.saturating_sub(time),
            compute: time,
            communicate: Duration::ZERO,
            barrier_wait: Duration::ZERO,
        };
        self.session.report(Reported { report, loss_sum: 0.0 });
    }
}

/// What the head heard, as the session says it.
fn reported((report, loss_sum): (BatchReport, f64)) -> Reported {
    Reported { report, loss_sum }
}
