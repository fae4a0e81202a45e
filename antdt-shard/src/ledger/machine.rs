//! The ledger as a [`Machine`]: calls arrive as [`Event`]s and return [`Answer`]s. This file only dispatches.

use antdt_core::{
    Ack, AckOutcome, Acks, Counts, Epoch, Exchanged, Generation, Held, Holder, JobTime, Machine, Registered,
    RequestId,
};

use super::{Effect, LedgerSnapshot, Missing, Outstanding, Quarantined, ShardLedger};
use crate::error::{AckError, ExchangeError, RecoverError, RegisterError};

/// A call to a ledger as a value, for services, recordings and replays. Each variant is one method of
/// [`ShardLedger`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Event {
    /// Registers a worker: [`ShardLedger::register_holding`].
    Register {
        /// Worker and incarnation that registers.
        holder: Holder,
        /// Leases of an earlier generation that the worker still holds.
        held: Vec<Held>,
    },
    /// Acknowledges samples and asks for shards in one call: [`ShardLedger::exchange`].
    Exchange {
        /// Worker and incarnation that asks.
        holder: Holder,
        /// Generation that the worker registered in.
        generation: Generation,
        /// Number of the request.
        request: RequestId,
        /// Leases with the offsets that the worker acknowledges.
        acks: Acks,
        /// Largest number of shards that the worker asks for.
        want: u32,
    },
    /// Acknowledges samples for a worker that died after its gradient was committed: [`ShardLedger::settle`].
    Settle {
        /// Worker and incarnation that holds the leases.
        holder: Holder,
        /// Leases with the acknowledged offsets.
        acks: Vec<Ack>,
    },
    /// Gives leases back: [`ShardLedger::release`].
    Release {
        /// Worker and incarnation that holds the leases.
        holder: Holder,
        /// Leases to give back, each with the offset up to which its samples are done.
        acks: Vec<Ack>,
    },
    /// Reports a data fault: [`ShardLedger::fail`].
    Fail {
        /// Worker and incarnation that holds the lease.
        holder: Holder,
        /// Lease with the unreadable data, and the offset up to which its samples are done.
        ack: Ack,
    },
    /// Declares a worker lost: [`ShardLedger::worker_lost`].
    WorkerLost {
        /// Worker and incarnation that is lost.
        holder: Holder,
    },
    /// Stops granting shards: [`ShardLedger::freeze`].
    Freeze {
        /// Job time at which the ledger grants shards again, even without [`Event::Thaw`].
        until: JobTime,
    },
    /// Resumes granting shards: [`ShardLedger::thaw`].
    Thaw,
    /// Ends the data after this many epochs for now: [`ShardLedger::end_after`].
    EndAfter {
        /// Number of epochs that are handed out.
        epochs: u32,
    },
    /// Asks for the ledger's progress: [`ShardLedger::status`].
    Status,
    /// Asks for the sample counts of one epoch: [`ShardLedger::epoch_counts`].
    EpochCounts {
        /// Epoch to count.
        epoch: Epoch,
    },
    /// Asks for the live leases: [`ShardLedger::outstanding`].
    Outstanding,
    /// Asks for the quarantined shards: [`ShardLedger::quarantined`].
    Quarantined,
    /// Asks for the samples that are not done: [`ShardLedger::missing`].
    Missing {
        /// Epoch to search.
        epoch: Epoch,
        /// Largest number of shards to report on.
        shards: usize,
    },
    /// Asks for a snapshot: [`ShardLedger::snapshot`].
    Snapshot,
    /// Restores a snapshot: [`ShardLedger::restore`]. A recording can hold this event but cannot be read back
    /// beyond it, because a snapshot cannot be decoded without the settings of its data set.
    #[cfg_attr(feature = "serde", serde(skip_deserializing))]
    Restore {
        /// Snapshot to restore.
        snapshot: Box<LedgerSnapshot>,
        /// Generation that begins with the restore.
        generation: Generation,
    },
}

/// The answer of a ledger to an [`Event`]; each variant says which events it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Answer {
    /// Answer to [`Event::Register`].
    Register(Result<Registered, RegisterError>),
    /// Answer to [`Event::Exchange`].
    Exchange(Result<Exchanged, ExchangeError>),
    /// Answer to [`Event::Settle`] and [`Event::Release`]: one outcome for each entry, in order.
    Ack(Result<Vec<AckOutcome>, AckError>),
    /// Answer to [`Event::Fail`].
    Fail(Result<AckOutcome, AckError>),
    /// Answer to [`Event::WorkerLost`].
    WorkerLost,
    /// Answer to [`Event::Freeze`], [`Event::Thaw`] and [`Event::EndAfter`].
    Frozen,
    /// Answer to [`Event::Status`].
    Status(LedgerStatus),
    /// Answer to [`Event::EpochCounts`]; `None` if the job has no such epoch.
    EpochCounts(Option<Counts>),
    /// Answer to [`Event::Outstanding`].
    Outstanding(Vec<Outstanding>),
    /// Answer to [`Event::Quarantined`].
    Quarantined(Vec<Quarantined>),
    /// Answer to [`Event::Missing`].
    Missing(Vec<Missing>),
    /// Answer to [`Event::Snapshot`].
    Snapshot(Box<LedgerSnapshot>),
    /// Answer to [`Event::Restore`].
    Restore(Result<(), RecoverError>),
}

/// Progress of a ledger: its sample counts, and whether it is finished or has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LedgerStatus {
    /// Current generation of the service.
    pub generation: Generation,
    /// Number of samples in each state, over all epochs.
    pub counts: Counts,
    /// Whether every sample is acknowledged or quarantined.
    pub finished: bool,
    /// Whether the limit of quarantined samples is exceeded, so that the ledger grants no more shards.
    pub failed: bool,
}

impl ShardLedger {
    /// Returns the ledger's progress in one value.
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
            Event::EndAfter { epochs } => {
                self.end_after(epochs);
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
        // Records first: a worker that is woken asks for what they made durable.
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
