//! The shard service as a worker meets it: questions that wait, a log, and a restart from it.

use antdt_core::{AckOutcomes, Exit, FetchOutcome, Generation, JobTime, Machine};
use antdt_job::Reply;
use antdt_shard::{Answer, Effect, Event, Record, Recovery, WAIT_MAX};

use super::life::LifeId;
use super::{Due, Lost, MESSAGE_BYTES, Question, World};
use crate::happening::{Happening, Observer};

/// Records after which the log is folded into what it says.
const LOG_MAX: usize = 4096;

/// A question that the service keeps until there is something to grant.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) life: LifeId,
    call: u64,
    event: Event,
    /// What the acks of the question were answered with.
    outcomes: AckOutcomes,
    until: JobTime,
}

impl<O: Observer> World<O> {
    /// The ledger takes an event and writes down what it must.
    pub(super) fn ask_ledger(&mut self, event: Event) -> Answer {
        let seen = self.observer.watches().then(|| event.clone());
        let answer = self.ledger.handle(self.now, event);
        let mut wake = false;
        while let Some(effect) = self.ledger.poll_effect() {
            match effect {
                Effect::Record(record) => self.write_down(record),
                Effect::Wake => {
                    wake = true;
                    self.saw(&Happening::Wake);
                }
                _ => {}
            }
        }
        // What was written down comes first: the answer waits for it.
        if let Some(event) = seen {
            self.saw(&Happening::Ledger(&event, &answer));
        }
        self.fold_log();
        if wake {
            self.wake();
        }
        answer
    }

    fn write_down(&mut self, record: Record) {
        self.saw(&Happening::Record(&record));
        if let Some(log) = &mut self.log {
            log.push(record);
        }
    }

    /// Keeps the log short.
    fn fold_log(&mut self) {
        let (Some(log), Some(recovery)) = (&mut self.log, &mut self.recovery) else { return };
        if log.len() < LOG_MAX {
            return;
        }
        for record in log.drain(..) {
            recovery.apply(&record).expect("the ledger wrote it");
        }
    }

    /// Lets the workers that were told to wait ask again.
    fn wake(&mut self) {
        for held in std::mem::take(&mut self.kept) {
            self.answer(held.life, held.call, held.event, held.outcomes, held.until);
        }
    }

    /// A question of a life reached the service.
    pub(super) fn at_ledger(&mut self, id: LifeId, call: u64, question: Question) {
        let (event, wait) = self.questions.remove(question.0);
        if self.next_master().is_some() {
            if !self.lives[id].is_dead() {
                self.lost(id, call, Lost::Ledger(event, wait));
            }
            return;
        }
        let until = self.now + wait.min(WAIT_MAX);
        self.answer(id, call, event, AckOutcomes::new(), until);
    }

    /// A second copy of a question reached the service: its copier drops the answer. A copy does not outlive the connection to
    /// the service of its generation.
    pub(super) fn asked_again(&mut self, question: Question, generation: Generation) {
        let (event, _) = self.questions.remove(question.0);
        if generation == self.ledger.generation() && self.next_master().is_none() {
            self.ask_ledger(event);
        }
    }

    /// Asks the ledger for a life, and answers it or keeps the question.
    fn answer(&mut self, id: LifeId, call: u64, event: Event, outcomes: AckOutcomes, until: JobTime) {
        let dead = self.lives[id].is_dead();
        let back = if dead { None } else { self.travel(id, MESSAGE_BYTES, false) };
        let may_wait = until > self.now;
        // What may be needed again: to ask once more, or because the answer is lost.
        let mut kept = (may_wait || (back.is_none() && !dead)).then(|| event.clone());
        let mut answer = self.ask_ledger(event);
        if dead {
            return;
        }
        if let Answer::Exchange(Ok(exchanged)) = &mut answer {
            if !outcomes.is_empty() {
                exchanged.outcomes.insert_many(0, outcomes);
            }
            if may_wait
                && matches!(exchanged.fetched, Some(FetchOutcome::Wait { .. }))
                && let Some(mut event) = kept.take()
            {
                if let Event::Exchange { acks, .. } = &mut event {
                    // Only the first round has acks.
                    acks.clear();
                }
                self.queue.push(until, Due::Unkept(id, call));
                let outcomes = std::mem::take(&mut exchanged.outcomes);
                self.kept.push(Held { life: id, call, event, outcomes, until });
                return;
            }
        }
        match back {
            Some(at) => {
                if let Some(reply) = self.reply_of(id, call, answer) {
                    self.send_reply(at, id, call, reply);
                }
            }
            None => {
                if let Some(event) = kept {
                    self.lost(id, call, Lost::Ledger(event, until.since(self.now)));
                }
            }
        }
    }

    /// A question was kept long enough: the answer is "wait".
    pub(super) fn unkept(&mut self, id: LifeId, call: u64) {
        let Some(at) = self.kept.iter().position(|held| held.life == id && held.call == call) else { return };
        let held = self.kept.swap_remove(at);
        self.answer(held.life, held.call, held.event, held.outcomes, self.now);
    }

    /// What the client makes of an answer; `None` if the process ends of it.
    fn reply_of(&mut self, id: LifeId, call: u64, answer: Answer) -> Option<Reply> {
        use antdt_core::Retry;
        use antdt_core::port::SeamError;
        use antdt_shard::SourceError;

        let failed = |error: SourceError| match error.retry() {
            Retry::Register => Ok(Reply::ServiceRestarted),
            _ => {
                Err(if matches!(error, SourceError::Fenced(_)) { Exit::CODE_RETRY } else { Exit::CODE_NEVER })
            }
        };
        let reply = match answer {
            Answer::Register(Ok(registered)) => {
                if self.lives[id].call == call {
                    self.lives[id].generation = registered.generation;
                }
                Ok(Reply::Registered(registered))
            }
            Answer::Register(Err(error)) => failed(error.into()),
            Answer::Exchange(Ok(exchanged)) => Ok(Reply::Exchanged(exchanged)),
            Answer::Exchange(Err(error)) => failed(error.into()),
            Answer::Ack(Ok(outcomes)) => Ok(Reply::returned(&outcomes)),
            Answer::Fail(Ok(outcome)) => Ok(Reply::returned(&[outcome])),
            Answer::Ack(Err(error)) | Answer::Fail(Err(error)) => failed(error.into()),
            _ => Ok(Reply::Released),
        };
        match reply {
            Ok(reply) => Some(reply),
            Err(code) => {
                self.queue.push(self.now, Due::Dies(id, code, 0));
                None
            }
        }
    }

    /// The service is started again from what it wrote down.
    pub(super) fn restart_ledger(&mut self) {
        let generation = self.ledger.generation().next();
        let mut recovery: Recovery = self.recovery.clone().expect("who restarts the service keeps its log");
        for record in self.log.iter().flatten() {
            recovery.apply(record).expect("the ledger wrote it");
        }
        self.ledger = recovery.finish(generation).expect("the next generation is new");
        // Its first record says that the generation began.
        while let Some(effect) = self.ledger.poll_effect() {
            if let Effect::Record(record) = effect {
                self.write_down(record);
            }
        }
    }

    /// The connections broke: a client that waited asks again.
    pub(super) fn let_askers_go(&mut self) {
        for held in std::mem::take(&mut self.kept) {
            self.lost(held.life, held.call, Lost::Ledger(held.event, held.until.since(self.now)));
        }
    }
}
