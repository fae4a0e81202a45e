//! The expected behaviour of a ledger: the naive ledger, and a bookkeeper that watches.

use antdt_core::Generation;

use super::book::Book;
use super::call::{Call, CallReply};
use super::{NaiveLedger, Note};
use crate::error::CutError;
use crate::ledger::Record;
use crate::spec::{Assignment, DatasetSpec, OnQuarantine};

/// What ought to happen: the naive ledger, and a book-keeper that watches it.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) naive: NaiveLedger,
    pub(crate) book: Book,
    kept: Vec<NaiveLedger>,
}

impl Model {
    pub(crate) const FIRST: Generation = Generation(1);

    pub(crate) fn new(spec: DatasetSpec) -> Self {
        let naive = NaiveLedger::new(spec.clone(), Self::FIRST);
        Self { naive, book: Book::new(spec, Self::FIRST), kept: Vec::new() }
    }

    /// The answer that is right, of which the book-keeper hears.
    #[cfg(test)]
    pub(crate) fn say(&mut self, call: &Call) -> CallReply {
        let (reply, written) = self.answer(call);
        self.hear(call, &reply, written);
        reply
    }

    /// Tells the book-keeper what a ledger answered, and what the naive one wrote down.
    pub(crate) fn hear(&mut self, call: &Call, reply: &CallReply, written: usize) {
        self.book.hear(call, reply, &self.naive.notes()[written..]);
    }

    /// The answer that is right, of which the book-keeper has not heard; and how many notes there were before it.
    pub(crate) fn answer(&mut self, call: &Call) -> (CallReply, usize) {
        let mut written = self.naive.notes().len();
        let next = self.book.generation.next();
        let naive = &mut self.naive;
        let reply = match call.clone() {
            Call::Register { holder, held } => CallReply::Registered(naive.register_holding(holder, &held)),
            Call::Fetch { holder, generation, request } => {
                CallReply::Fetched(naive.fetch(holder, generation, request))
            }
            Call::Exchange { holder, generation, request, acks, want } => {
                CallReply::Exchanged(naive.exchange(holder, generation, request, &acks, want))
            }
            Call::Ack { holder, acks } => CallReply::Acked(naive.ack_all(holder, &acks)),
            Call::Release { holder, acks } => CallReply::Acked(naive.release(holder, &acks)),
            Call::Fail { holder, ack } => CallReply::Failed(naive.fail(holder, ack)),
            Call::Lost { holder } => {
                naive.worker_lost(holder);
                CallReply::Nothing
            }
            Call::Freeze { .. } => {
                naive.freeze();
                CallReply::Nothing
            }
            Call::Tick { now } => {
                if self.book.frozen.is_some_and(|until| until <= now) {
                    naive.thaw();
                }
                CallReply::Nothing
            }
            Call::Thaw => {
                naive.thaw();
                CallReply::Nothing
            }
            Call::Keep => {
                self.kept.push(naive.snapshot());
                CallReply::Nothing
            }
            Call::Cut { committed } => {
                let acked = naive.counts().acked;
                CallReply::Cut(if acked == committed {
                    self.kept.push(naive.snapshot());
                    Ok(())
                } else {
                    Err(CutError::NotQuiesced { committed, acked })
                })
            }
            Call::Restore { which } => {
                naive.restore(&self.kept[which], next);
                CallReply::Nothing
            }
            Call::Restart { kept, .. } => {
                *naive = naive.recover(kept, next);
                written = kept;
                CallReply::Nothing
            }
        };
        (reply, written)
    }

    /// How few records can be left after a crash: all that were read when this life of the service began, and that it
    /// began, are there before any client hears of it.
    pub(crate) fn kept_least(&self) -> usize {
        let began = |note: &Note| matches!(note, Note::Record(Record::GenerationStarted { .. }));
        self.naive.notes().iter().rposition(began).map_or(0, |at| at + 1)
    }

    /// Workers that have to take part so that the job comes to its end.
    pub(crate) const fn workers(&self) -> u32 {
        match self.book.spec.assignment {
            Assignment::Dynamic => 1,
            Assignment::Static { workers } => workers,
        }
    }

    /// Whether so much cannot be read that nothing more is granted.
    pub(crate) fn has_failed(&self) -> bool {
        let limit = match self.book.spec.on_quarantine {
            OnQuarantine::FailJob => 0,
            OnQuarantine::Continue { max_samples } => max_samples,
        };
        self.naive.counts().quarantined > limit
    }
}
