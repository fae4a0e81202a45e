//! Training with parameter servers: pull, compute, push; in step with all others, or at the worker's own pace.

use antdt_agent::{AgentSession, Part, SessionState};
use antdt_core::{JobTime, Joined, Readiness, StepCommit, SyncMode};

use super::{At, Call, End, PATIENCE_ALONE, Then, WorkerLoop};

impl WorkerLoop {
    pub(super) fn joined_servers(&mut self, session: &mut AgentSession, joined: &Joined) -> Call {
        self.step = joined.next_step;
        self.switch.offer(joined.plan.clone());
        self.switch.apply_now();
        self.note_plans(session);
        if joined.finished {
            return self.over(End::EndOfData { trained: true });
        }
        self.begin_push(session)
    }

    fn begin_push(&mut self, session: &mut AgentSession) -> Call {
        if session.state() == SessionState::Draining {
            return self.over(End::Drained);
        }
        self.offer_plan(session);
        if self.in_step() {
            return self.take_batch(self.patience());
        }
        self.switch.apply_now();
        self.take_batch(PATIENCE_ALONE)
    }

    fn in_step(&self) -> bool {
        self.sync == SyncMode::PsBsp
    }

    pub(super) fn loaded_for_servers(&mut self, now: JobTime, session: &mut AgentSession) -> Call {
        if !self.batch.is_empty() {
            self.meter.enter(now, Part::Communicate);
            return self.ask(At::Pulling, Call::Pull);
        }
        if self.in_step() {
            self.computed = (0, 0.0);
            self.ready(now)
        } else if self.feed.end_of_data() {
            self.over(End::EndOfData { trained: true })
        } else {
            self.begin_push(session)
        }
    }

    pub(super) fn pulled(&mut self, now: JobTime) -> Call {
        self.meter.enter(now, Part::Compute);
        self.ask(At::Computing, Call::Compute)
    }

    pub(super) fn computed_for_servers(&mut self, now: JobTime) -> Call {
        self.meter.enter(now, Part::Communicate);
        self.ask(At::Pushing, Call::Push { step: self.step, samples: self.batch.len() })
    }

    pub(super) fn pushed(&mut self, now: JobTime, session: &mut AgentSession) -> Call {
        if self.in_step() {
            return self.ready(now);
        }
        // The servers have applied it.
        match self.feed.commit(&self.batch) {
            Some(call) => self.ask(At::Feeding(Then::Next), call),
            None => self.next_alone(now, session),
        }
    }

    /// At its own pace: the batch is done.
    pub(super) fn next_alone(&mut self, now: JobTime, session: &mut AgentSession) -> Call {
        self.report(now, session, self.batch.len());
        // The plan was in force in the step that is over.
        self.note_plans(session);
        self.step += 1;
        self.begin_push(session)
    }

    fn ready(&mut self, now: JobTime) -> Call {
        self.meter.enter(now, Part::BarrierWait);
        let readiness = Readiness {
            samples: self.batch.len(),
            end_of_data: self.feed.end_of_data(),
            plan: self.switch.ready(),
            acks: self.batch.acks().into_vec(),
        };
        self.ask(At::Readying, Call::Ready { step: self.step, readiness })
    }

    /// In step: the master committed the step, and acknowledged its samples.
    pub(super) fn committed(
        &mut self,
        now: JobTime,
        session: &mut AgentSession,
        commit: &StepCommit,
    ) -> Call {
        if !self.batch.is_empty() {
            if !commit.contributors.contains_key(&self.holder) {
                return self.fail(format!("step {} was committed without this worker's push", commit.step));
            }
            self.feed.settled(&self.batch);
        }
        self.idle = commit.samples == 0;
        self.report(now, session, self.batch.len());
        self.step = commit.step + 1;
        if let Some(version) = commit.apply {
            self.switch.agreed(version);
        }
        self.note_plans(session);
        if commit.end { self.over(End::EndOfData { trained: true }) } else { self.begin_push(session) }
    }
}
