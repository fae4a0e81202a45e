//! Training with all-reduce: every worker holds a replica, and every step takes every worker.

use antdt_agent::{AgentSession, Part, SessionState};
use antdt_collective::lanes::{Lanes, Verdict};
use antdt_core::{JobTime, Joined, StepResult, SyncMode};

use super::{At, Call, End, Then, WorkerLoop};

impl WorkerLoop {
    /// Whether it was told of this group before.
    pub(super) fn knows(&self, joined: &Joined) -> bool {
        self.sync == SyncMode::AllReduce && !joined.finished && joined.membership <= self.group
    }

    /// A group was formed. What the last one left open is decided first.
    pub(super) fn joined(&mut self, joined: Box<Joined>) -> Call {
        if joined.finished {
            return self.over(End::EndOfData { trained: self.trained });
        }
        self.group = joined.membership;
        self.step = joined.next_step;
        if let Some(prepared) = &self.prepared {
            if joined.commit_prepared && prepared.step + 1 == joined.next_step {
                return self.ask(At::Settling(joined), Call::Apply);
            }
            self.prepared = None;
            self.feed.abort(&self.batch);
        }
        self.enter(joined)
    }

    /// The step that was left open is part of the model.
    pub(super) fn settled(&mut self, joined: Box<Joined>) -> Call {
        self.applied = self.prepared.take();
        match self.feed.commit(&self.batch) {
            Some(call) => self.ask(At::Feeding(Then::Enter(joined)), call),
            None => self.enter(joined),
        }
    }

    pub(super) fn enter(&mut self, joined: Box<Joined>) -> Call {
        self.switch.regroup(joined.membership, &joined.plan);
        self.alone = joined.members.len() == 1;
        self.first = joined.members.first().is_some_and(|(holder, _)| *holder == self.holder);
        self.ask(At::Entering { has_source: joined.source.is_some() }, Call::Enter(joined))
    }

    /// The worker is in the group and has its model.
    pub(super) fn entered(&mut self, session: &mut AgentSession, has_source: bool) -> Call {
        if has_source && !self.trained {
            // It has the model after this step, but no part in it.
            let step = self.step.saturating_sub(1);
            self.applied = Some(StepResult { step, contributions: [].into() });
        }
        self.trained = true;
        self.note_plans(session);
        self.begin_step(session)
    }

    fn begin_step(&mut self, session: &mut AgentSession) -> Call {
        self.offer_plan(session);
        // Whoever is alone has the only copy of the model. In a larger group all have it once a step was made there.
        self.draining = session.state() == SessionState::Draining && !self.alone;
        self.take_batch(self.patience())
    }

    pub(super) fn loaded(&mut self, now: JobTime) -> Call {
        self.meter.enter(now, Part::Compute);
        self.ask(At::Computing, Call::Compute)
    }

    /// Neither asks the session nor tells it anything: a simulation may take this step before its time.
    pub(super) fn computed(&mut self, now: JobTime) -> Call {
        self.meter.enter(now, Part::Communicate);
        let combine = Call::Combine { step: self.step, samples: self.batch.len(), acks: self.batch.acks() };
        self.ask(At::Combining, combine)
    }

    /// Everybody's gradients are here, but nobody knows yet who else has them.
    pub(super) fn combined(&mut self, session: &AgentSession, result: StepResult) -> Call {
        self.prepared = Some(result);
        let (samples, loss_sum) = self.computed;
        let lanes = Lanes {
            samples,
            end_of_data: self.feed.end_of_data(),
            plan_ready: self.switch.ready(),
            reform: self.draining || session.reform(),
            leaving: self.draining,
            loss_sum,
        };
        self.ask(At::Agreeing, Call::Agree(lanes))
    }

    /// The group broke before the result was here. A draining worker meets the others too.
    pub(super) fn broken_without_result(&mut self, now: JobTime) -> Call {
        self.feed.abort(&self.batch);
        self.broken_with_result(now)
    }

    /// The group broke when the result was here: the others may have it, and commit it.
    pub(super) fn broken_with_result(&mut self, now: JobTime) -> Call {
        self.meter.restart(now);
        self.join()
    }

    /// Everybody contributed to the control values, so everybody has the result; it is part of the model.
    pub(super) fn applied(&mut self, now: JobTime, session: &mut AgentSession, verdict: Verdict) -> Call {
        self.applied = self.prepared.take();
        match self.feed.commit(&self.batch) {
            Some(call) => self.ask(At::Feeding(Then::Finish(verdict)), call),
            None => self.finish(now, session, &verdict),
        }
    }

    /// The step is done.
    pub(super) fn finish(&mut self, now: JobTime, session: &mut AgentSession, verdict: &Verdict) -> Call {
        self.report(now, session, self.computed.0);
        self.step += 1;
        if let Some(version) = verdict.plan_agreed {
            self.switch.agreed(version);
        }
        self.note_plans(session);
        self.idle = verdict.samples == 0;
        if verdict.end_of_data && self.idle {
            self.over(End::EndOfData { trained: true })
        } else if verdict.reform && self.draining && !(verdict.all_leaving && self.first) {
            self.over(End::Drained)
        } else if verdict.reform {
            self.join()
        } else {
            self.begin_step(session)
        }
    }
}
