//! Everything that happens in a simulated job, as the invariants and the trace see it.

use antdt_agent::AgentSession;
use antdt_core::{CheckpointId, Holder, JobTime};
use antdt_job::{Call, HeadAnswer, HeadEffect, HeadEvent, Reply};
use antdt_shard::ledger::{Answer, Event, Record};

use crate::invariant::Committed;
use crate::model::Fault;

/// Something that happened in a simulated job, as observers see it.
#[derive(Debug, Clone, Copy)]
pub enum Happening<'a> {
    /// The ledger answered an event.
    Ledger(&'a Event, &'a Answer),
    /// The ledger wrote this record, before it answered.
    Record(&'a Record),
    /// The ledger wakes the workers that wait for a shard, after it has answered.
    Wake,
    /// The head answered an event.
    Head(&'a HeadEvent, &'a HeadAnswer),
    /// A deadline of the head passed.
    HeadDeadline,
    /// The head asked for this effect.
    Effect(&'a HeadEffect),
    /// A worker's incarnation got a reply and made its next call.
    Worker(Holder, &'a Reply, &'a Call),
    /// The master's answer to a heartbeat reached a node's incarnation.
    Beat(Holder, &'a AgentSession),
    /// The process of this incarnation began to run.
    Born(Holder),
    /// The process of this incarnation ended.
    Died(Holder),
    /// A fault hit the job.
    Fault(Fault),
    /// The master's process ended; a successor takes over at this time.
    MasterEnded(JobTime),
    /// The master's successor has taken the job over.
    TakenOver,
    /// A copy of the model exists for this checkpoint; this incarnation of a worker took it, or made the
    /// servers take it.
    Copied(Holder, CheckpointId),
    /// The ledger is cut for a checkpoint.
    Cut(CheckpointId),
    /// A checkpoint is complete: a rollback sets the job back to this one from now on.
    Kept(CheckpointId),
    /// A message between this incarnation and another process was lost.
    Lost(Holder),
    /// A message of this incarnation to the master arrived before one that it sent earlier.
    Overtaken(Holder),
    /// All processes of the job ended at once. Nothing happens after that.
    AllCrashed,
    /// The job continues one that ended: this was in the newest checkpoint of that one. Comes before the ledger's
    /// first record; the driver that continues the job tells the observers, because no machine knows it.
    Resumed(&'a Committed),
    /// From now on no fault happens.
    Calm,
    /// The job ended: `Ok` if every sample is committed, otherwise the reason.
    Ended(&'a Result<(), String>),
}

/// Receives everything that happens in a simulated job, in order.
pub trait Observer {
    /// Returns whether the observer looks at anything. If not, the simulator copies nothing for it.
    fn watches(&self) -> bool {
        true
    }

    /// Called when `what` has happened at the virtual time `at`. An error ends the simulation.
    ///
    /// # Errors
    /// If `what` must not have happened.
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), crate::Violation>;
}

/// Both look on: the first one sees everything before the second one does.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn watches(&self) -> bool {
        self.0.watches() || self.1.watches()
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), crate::Violation> {
        self.0.saw(at, what)?;
        self.1.saw(at, what)
    }
}

/// Observes, if there is an observer.
impl<O: Observer> Observer for Option<O> {
    fn watches(&self) -> bool {
        self.as_ref().is_some_and(Observer::watches)
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), crate::Violation> {
        self.as_mut().map_or(Ok(()), |observer| observer.saw(at, what))
    }
}
