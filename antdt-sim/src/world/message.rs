//! Messages between the processes of a simulated job: how they travel, get lost or arrive twice, and are answered.

use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_core::{Exit, JobTime, Metrics, Role};
use antdt_job::limits::{CALL_TIMEOUT, MASTER_TIMEOUT};
use antdt_job::{HeadAnswer, HeadEvent, Reply, WorkerLoop};
use antdt_shard::Event as LedgerEvent;

use super::life::{LifeId, Stage};
use super::{COPY_DELAY, Due, Lost, MESSAGE_BYTES, Message, Question, REPORT_BYTES, Work, World};
use crate::happening::{Happening, Observer};
use crate::model::Site;

impl<O: Observer> World<O> {
    /// When a message of a life arrives at the master or back; `None` if it is lost.
    pub(super) fn travel(&mut self, id: LifeId, bytes: u64, to_master: bool) -> Option<JobTime> {
        let life = &self.lives[id];
        if self.now < life.cut_until {
            return None;
        }
        let node = Site::Node(life.holder.node);
        let (from, to) = if to_master { (node, Site::Master) } else { (Site::Master, node) };
        let holder = life.holder;
        let arrives = self.models.network.message(self.now, from, to, bytes, &mut self.network_rng);
        if arrives.is_none() {
            self.saw(&Happening::Lost(holder));
        }
        arrives
    }

    /// When a second copy of a message of a life arrives that arrives at `at`; `None` if there is none.
    pub(super) fn second_arrival(&mut self, id: LifeId, at: JobTime) -> Option<JobTime> {
        let life = &mut self.lives[id];
        let overtakes = at < life.newest_arrival;
        life.newest_arrival = life.newest_arrival.max(at);
        let (holder, doubled) = (life.holder, self.now < life.doubled_until);
        if overtakes {
            self.saw(&Happening::Overtaken(holder));
        }
        doubled.then(|| at + COPY_DELAY.mul_f64(self.network_rng.unit()))
    }

    pub(super) fn send_head(&mut self, id: LifeId, call: u64, event: HeadEvent) {
        let bytes = match &event {
            HeadEvent::Heartbeat { reports, .. } => MESSAGE_BYTES + REPORT_BYTES * reports.len() as u64,
            _ => MESSAGE_BYTES,
        };
        match self.travel(id, bytes, true) {
            Some(at) => {
                if let Some(later) = self.second_arrival(id, at) {
                    let copy = Message(self.messages.insert(event.clone()));
                    self.queue.push(later, Due::Copied(copy));
                }
                let message = Message(self.messages.insert(event));
                self.queue.push(at, Due::ToHead(id, call, message));
            }
            None => self.lost(id, call, Lost::Head(event)),
        }
    }

    pub(super) fn send_ledger(&mut self, id: LifeId, call: u64, event: LedgerEvent, wait: Duration) {
        match self.travel(id, MESSAGE_BYTES, true) {
            Some(at) => {
                if let Some(later) = self.second_arrival(id, at) {
                    let copy = Question(self.questions.insert((event.clone(), Duration::ZERO)));
                    self.queue.push(later, Due::AskedAgain(copy, self.ledger.generation()));
                }
                let question = Question(self.questions.insert((event, wait)));
                self.queue.push(at, Due::ToLedger(id, call, question));
            }
            None => self.lost(id, call, Lost::Ledger(event, wait)),
        }
    }

    /// The caller notices after a while, and asks again.
    pub(super) fn lost(&mut self, id: LifeId, call: u64, lost: Lost) {
        if matches!(
            lost,
            Lost::Head(HeadEvent::Preempted(_) | HeadEvent::Stalled { .. } | HeadEvent::Transferred { .. })
        ) {
            // It is said again with the next heartbeat; what went to peers is missing in one.
            return;
        }
        if matches!(lost, Lost::Head(HeadEvent::Heartbeat { .. })) {
            let Lost::Head(HeadEvent::Heartbeat { reports, plan_ready, plan_applied, .. }) = lost else {
                return;
            };
            self.beat_failed(id, reports, plan_ready, plan_applied);
            return;
        }
        let life = &mut self.lives[id];
        life.attempts = life.attempts.saturating_add(1);
        if CALL_TIMEOUT * u32::from(life.attempts) > MASTER_TIMEOUT {
            // It gives the master up.
            let code = Exit::CODE_RETRY;
            self.queue.push(self.now + CALL_TIMEOUT, Due::Dies(id, code, 0));
            return;
        }
        self.queue.push(self.now + CALL_TIMEOUT, Due::Again(id, call, Box::new(lost)));
    }

    /// Whether a life still waits in this call.
    pub(super) fn is_under_way(&self, id: LifeId, call: u64) -> bool {
        let life = &self.lives[id];
        !life.is_dead() && life.call == call
    }

    pub(super) fn again(&mut self, id: LifeId, call: u64, lost: Lost) {
        if !self.is_under_way(id, call) {
            return;
        }
        match lost {
            Lost::Head(event) => self.send_head(id, call, event),
            Lost::Ledger(event, wait) => self.send_ledger(id, call, event, wait),
        }
    }

    /// A second copy of a message reached the head: its copier drops the answer.
    pub(super) fn copied(&mut self, message: Message) {
        let event = self.messages.remove(message.0);
        if self.next_master().is_none() {
            self.ask_head(event);
        }
    }

    /// A life's message reached the head.
    pub(super) fn at_head(&mut self, id: LifeId, call: u64, message: Message) {
        let event = self.messages.remove(message.0);
        if self.next_master().is_some() {
            if !self.lives[id].is_dead() {
                self.lost(id, call, Lost::Head(event));
            }
            return;
        }
        let is_beat = matches!(event, HeadEvent::Heartbeat { .. });
        let is_parked =
            matches!(event, HeadEvent::Join { .. } | HeadEvent::Ready { .. } | HeadEvent::Rest { .. });
        // The way back is decided before, so that what is lost can be sent again.
        let dead = self.lives[id].is_dead();
        let back = if dead { None } else { self.travel(id, MESSAGE_BYTES, false) };
        let again = ((back.is_none() || self.master_is_doomed()) && !dead).then(|| event.clone());
        let answer = self.ask_head(event);
        if dead {
            return;
        }
        // It ended before it could answer.
        let back = back.filter(|_| self.next_master().is_none());
        match (answer, back) {
            (HeadAnswer::Beat(reply), Some(at)) => self.queue.push(at, Due::Beaten(id, reply)),
            (HeadAnswer::Fenced, Some(at)) if is_beat => {
                let reply = BeatReply { fenced: true, ..BeatReply::default() };
                self.queue.push(at, Due::Beaten(id, Box::new(reply)));
            }
            // An effect brings the answer, or has brought it.
            (HeadAnswer::Parked, _) if is_parked => {}
            (answer, Some(at)) => self.queue.push(at, Due::Told(id, call, Box::new(answer))),
            (_, None) => {
                if let Some(event) = again {
                    self.lost(id, call, Lost::Head(event));
                }
            }
        }
    }

    /// The head's answer to the training thread, or to the process that starts or leaves.
    pub(super) fn told(&mut self, id: LifeId, call: u64, answer: HeadAnswer) {
        if !self.is_under_way(id, call) {
            return;
        }
        self.lives[id].attempts = 0;
        match answer {
            HeadAnswer::Registered { plan, .. } => self.registered(id, plan),
            HeadAnswer::Left { evaluate, checkpoint, goes_on, .. } => {
                let life = &mut self.lives[id];
                life.call += 1;
                (life.last, life.evaluates, life.goes_on) = (checkpoint, evaluate, goes_on);
                match checkpoint {
                    Some(checkpoint) => self.copy_model(id, self.now, checkpoint),
                    None => self.leave(id),
                }
            }
            // To an evaluation.
            HeadAnswer::Noted => self.left(id),
            HeadAnswer::Fenced => self.exit(id, Exit::CODE_RETRY),
            HeadAnswer::Refused(_) => self.exit(id, Exit::CODE_NEVER),
            HeadAnswer::Undone => {
                self.lives[id].parked = None;
                self.advance(id, &Reply::Broken);
            }
            HeadAnswer::Beat(_)
            | HeadAnswer::Parked
            | HeadAnswer::Seen(_)
            | HeadAnswer::Diagnosed(_)
            | HeadAnswer::Checkpointed { .. }
            | HeadAnswer::Scaled { .. } => {}
        }
    }

    /// What is left to do for a worker that has left: it evaluates the model, or that is all.
    pub(super) fn leave(&mut self, id: LifeId) {
        let life = &self.lives[id];
        if life.evaluates {
            let (call, holder) = (life.call, life.holder);
            let found = HeadEvent::Evaluated { holder, samples: 0, metrics: Metrics::default() };
            self.send_head(id, call, found);
        } else {
            self.left(id);
        }
    }

    /// A worker that has left has done all that it was to do: it exits, or joins again for the epochs that follow.
    fn left(&mut self, id: LifeId) {
        let life = &mut self.lives[id];
        if !std::mem::take(&mut life.goes_on) {
            return self.exit(id, 0);
        }
        (life.stage, life.evaluates, life.last) = (Stage::Running, false, None);
        (life.trained, life.home, life.place) = (false, None, None);
        life.call += 1;
        life.worker = Some(WorkerLoop::new(life.holder, &self.setup.sync, self.now));
        let call = life.call;
        self.queue.push(self.now, Due::Over(id, call, Work::Begin));
    }

    pub(super) fn registered(&mut self, id: LifeId, plan: Option<antdt_core::Plan>) {
        let life = &mut self.lives[id];
        life.session.beat_answered(self.now, BeatReply { plan, ..BeatReply::default() });
        life.call += 1;
        self.queue.push(self.now, Due::Beat(id));
        if life.holder.node.role == Role::Worker {
            let (call, holder) = (life.call, life.holder);
            let ready = self.now + self.models.scheduler.ready(self.now, holder, &mut self.scheduler_rng);
            // What comes before is in no report.
            self.lives[id].worker = Some(WorkerLoop::new(holder, &self.setup.sync, ready));
            self.queue.push(ready, Due::Over(id, call, Work::Begin));
        }
    }
}
