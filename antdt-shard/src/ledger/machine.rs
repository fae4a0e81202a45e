//! The ledger as a [`Machine`]: events in, answers out. Everything here only dispatches.

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, FetchOutcome, Generation, Holder, JobTime, Machine, RequestId,
};

use super::{Effect, LedgerSnapshot, Outstanding, Quarantined, ShardLedger};
use crate::error::{AckError, FetchError, RecoverError, RegisterError};

/// Everything that can happen to a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// [`ShardLedger::register`].
    Register {
        /// Who.
        holder: Holder,
    },
    /// [`ShardLedger::fetch`].
    Fetch {
        /// Who.
        holder: Holder,
        /// The generation it registered in.
        generation: Generation,
        /// Its running number.
        request: RequestId,
    },
    /// [`ShardLedger::ack_all`], or [`ShardLedger::settle`] if the master says it.
    Ack {
        /// Whose leases.
        holder: Holder,
        /// What is done.
        acks: Vec<Ack>,
    },
    /// [`ShardLedger::release`].
    Release {
        /// Who.
        holder: Holder,
        /// What is done of what is given back.
        acks: Vec<Ack>,
    },
    /// [`ShardLedger::fail`].
    Fail {
        /// Who.
        holder: Holder,
        /// What is done of what cannot be read.
        ack: Ack,
    },
    /// [`ShardLedger::worker_lost`].
    WorkerLost {
        /// Who.
        holder: Holder,
    },
    /// [`ShardLedger::counts`] and what belongs to them.
    Status,
    /// [`ShardLedger::epoch_counts`].
    EpochCounts {
        /// Which.
        epoch: Epoch,
    },
    /// [`ShardLedger::outstanding`].
    Outstanding,
    /// [`ShardLedger::quarantined`].
    Quarantined,
    /// [`ShardLedger::snapshot`].
    Snapshot,
    /// [`ShardLedger::restore`].
    Restore {
        /// To what.
        snapshot: Box<LedgerSnapshot>,
        /// In which new life of the service.
        generation: Generation,
    },
}

/// What the sender of an event is told; the variant has the event's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// To [`Event::Register`].
    Register(Result<Generation, RegisterError>),
    /// To [`Event::Fetch`].
    Fetch(Result<FetchOutcome, FetchError>),
    /// To [`Event::Ack`] and [`Event::Release`]: one for each entry, in order.
    Ack(Result<Vec<AckOutcome>, AckError>),
    /// To [`Event::Fail`].
    Fail(Result<AckOutcome, AckError>),
    /// To [`Event::WorkerLost`].
    WorkerLost,
    /// To [`Event::Status`].
    Status(LedgerStatus),
    /// To [`Event::EpochCounts`].
    EpochCounts(Option<Counts>),
    /// To [`Event::Outstanding`].
    Outstanding(Vec<Outstanding>),
    /// To [`Event::Quarantined`].
    Quarantined(Vec<Quarantined>),
    /// To [`Event::Snapshot`].
    Snapshot(Box<LedgerSnapshot>),
    /// To [`Event::Restore`].
    Restore(Result<(), RecoverError>),
}

/// Where a ledger stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerStatus {
    /// The current life of the service.
    pub generation: Generation,
    /// Sample accounts of the job.
    pub counts: Counts,
    /// Whether every sample is accounted for.
    pub finished: bool,
    /// Whether so much is quarantined that nothing more is granted.
    pub failed: bool,
}

impl ShardLedger {
    /// Where it stands, in one value.
    pub const fn status(&self) -> LedgerStatus {
        let counts = self.counts();
        LedgerStatus {
            generation: self.generation(),
            counts,
            finished: self.is_finished(),
            failed: counts.quarantined > self.spec().quarantine_limit(),
        }
    }
}

impl Machine for ShardLedger {
    type Event = Event;
    type Answer = Answer;
    type Effect = Effect;

    // Nothing the ledger does depends on the time: whether a holder is alive is the membership's to say.
    fn handle(&mut self, _now: JobTime, event: Event) -> Answer {
        match event {
            Event::Register { holder } => Answer::Register(self.register(holder)),
            Event::Fetch { holder, generation, request } => {
                Answer::Fetch(self.fetch(holder, generation, request))
            }
            Event::Ack { holder, acks } => Answer::Ack(self.ack_all(holder, &acks)),
            Event::Release { holder, acks } => Answer::Ack(self.release(holder, &acks)),
            Event::Fail { holder, ack } => Answer::Fail(self.fail(holder, ack)),
            Event::WorkerLost { holder } => {
                self.worker_lost(holder);
                Answer::WorkerLost
            }
            Event::Status => Answer::Status(self.status()),
            Event::EpochCounts { epoch } => Answer::EpochCounts(self.epoch_counts(epoch)),
            Event::Outstanding => Answer::Outstanding(self.outstanding().collect()),
            Event::Quarantined => Answer::Quarantined(self.quarantined().collect()),
            Event::Snapshot => Answer::Snapshot(Box::new(self.snapshot())),
            Event::Restore { snapshot, generation } => Answer::Restore(self.restore(&snapshot, generation)),
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        // Records first: who is woken asks for what they made durable.
        let record = self.records.pop_front().map(Effect::Record);
        record.or_else(|| std::mem::take(&mut self.wake).then_some(Effect::Wake))
    }

    fn deadline(&self) -> Option<JobTime> {
        None
    }

    fn on_deadline(&mut self, _now: JobTime) {}
}
