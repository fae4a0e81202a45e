//! The ledger as a [`Machine`]: events in, answers out. Everything here only dispatches.

use antdt_core::{
    Ack, AckOutcome, Acks, Counts, Epoch, Exchanged, Generation, Held, Holder, JobTime, Machine, Registered,
    RequestId,
};

use super::{Effect, LedgerSnapshot, Missing, Outstanding, Quarantined, ShardLedger};
use crate::error::{AckError, ExchangeError, RecoverError, RegisterError};

/// Everything that can happen to a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Event {
    /// [`ShardLedger::register_holding`].
    Register {
        /// Node and incarnation.
        holder: Holder,
        /// The leases it still has from an earlier generation.
        held: Vec<Held>,
    },
    /// [`ShardLedger::exchange`].
    Exchange {
        /// Node and incarnation.
        holder: Holder,
        /// The generation it registered in.
        generation: Generation,
        /// Number of the request.
        request: RequestId,
        /// Offsets that are acknowledged.
        acks: Acks,
        /// Shards it asks for.
        want: u32,
    },
    /// [`ShardLedger::settle`].
    Settle {
        /// Holder of the leases.
        holder: Holder,
        /// Offsets that are acknowledged.
        acks: Vec<Ack>,
    },
    /// [`ShardLedger::release`].
    Release {
        /// Node and incarnation.
        holder: Holder,
        /// What is done of what is given back.
        acks: Vec<Ack>,
    },
    /// [`ShardLedger::fail`].
    Fail {
        /// Node and incarnation.
        holder: Holder,
        /// What is done of what cannot be read.
        ack: Ack,
    },
    /// [`ShardLedger::worker_lost`].
    WorkerLost {
        /// Node and incarnation.
        holder: Holder,
    },
    /// [`ShardLedger::freeze`].
    Freeze {
        /// When it thaws by itself.
        until: JobTime,
    },
    /// [`ShardLedger::thaw`].
    Thaw,
    /// [`ShardLedger::counts`] and what belongs to them.
    Status,
    /// See [`ShardLedger::epoch_counts`].
    EpochCounts {
        /// The epoch.
        epoch: Epoch,
    },
    /// [`ShardLedger::outstanding`].
    Outstanding,
    /// [`ShardLedger::quarantined`].
    Quarantined,
    /// [`ShardLedger::missing`].
    Missing {
        /// The epoch.
        epoch: Epoch,
        /// Of how many shards at most.
        shards: usize,
    },
    /// [`ShardLedger::snapshot`].
    Snapshot,
    /// [`ShardLedger::restore`]. A recording holds it, but cannot be read from there on: a snapshot is of no use
    /// without the settings of its data set.
    #[cfg_attr(feature = "serde", serde(skip_deserializing))]
    Restore {
        /// Snapshot that the ledger returns to.
        snapshot: Box<LedgerSnapshot>,
        /// In which new life of the service.
        generation: Generation,
    },
}

/// What the sender of an event is told; the variant has the event's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Answer {
    /// To [`Event::Register`].
    Register(Result<Registered, RegisterError>),
    /// To [`Event::Exchange`].
    Exchange(Result<Exchanged, ExchangeError>),
    /// To [`Event::Settle`] and [`Event::Release`]: one for each entry, in order.
    Ack(Result<Vec<AckOutcome>, AckError>),
    /// To [`Event::Fail`].
    Fail(Result<AckOutcome, AckError>),
    /// To [`Event::WorkerLost`].
    WorkerLost,
    /// To [`Event::Freeze`] and [`Event::Thaw`].
    Frozen,
    /// To [`Event::Status`].
    Status(LedgerStatus),
    /// To [`Event::EpochCounts`].
    EpochCounts(Option<Counts>),
    /// To [`Event::Outstanding`].
    Outstanding(Vec<Outstanding>),
    /// To [`Event::Quarantined`].
    Quarantined(Vec<Quarantined>),
    /// To [`Event::Missing`].
    Missing(Vec<Missing>),
    /// To [`Event::Snapshot`].
    Snapshot(Box<LedgerSnapshot>),
    /// To [`Event::Restore`].
    Restore(Result<(), RecoverError>),
}

/// Progress of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

    // Only a thaw depends on the time: whether a holder is alive is the membership's to say.
    fn handle(&mut self, _now: JobTime, event: Event) -> Answer {
        match event {
            Event::Register { holder, held } => Answer::Register(self.register_holding(holder, &held)),
            Event::Exchange { holder, generation, request, acks, want } => {
                Answer::Exchange(self.exchange(holder, generation, request, &acks, want))
            }
            Event::Settle { holder, acks } => Answer::Ack(self.settle(holder, &acks)),
            Event::Release { holder, acks } => Answer::Ack(self.release(holder, &acks)),
            Event::Fail { holder, ack } => Answer::Fail(self.fail(holder, ack)),
            Event::WorkerLost { holder } => {
                self.worker_lost(holder);
                Answer::WorkerLost
            }
            Event::Freeze { until } => {
                self.freeze(until);
                Answer::Frozen
            }
            Event::Thaw => {
                self.thaw();
                Answer::Frozen
            }
            Event::Status => Answer::Status(self.status()),
            Event::EpochCounts { epoch } => Answer::EpochCounts(self.epoch_counts(epoch)),
            Event::Outstanding => Answer::Outstanding(self.outstanding().collect()),
            Event::Quarantined => Answer::Quarantined(self.quarantined().collect()),
            Event::Missing { epoch, shards } => Answer::Missing(self.missing(epoch, shards)),
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
        self.standing.frozen_until
    }

    fn on_deadline(&mut self, now: JobTime) {
        if self.standing.frozen_until.is_some_and(|until| until <= now) {
            self.thaw();
        }
    }
}
