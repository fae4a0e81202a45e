//! What happens in a simulated job, as the checkers and the trace see it.

use antdt_agent::AgentSession;
use antdt_core::{Holder, JobTime};
use antdt_job::{Call, HeadAnswer, HeadEffect, HeadEvent, Reply};
use antdt_shard::ledger::{Answer, Event, Record};

use crate::model::Fault;

/// Something that happened in a simulated job, as observers see it.
#[derive(Debug, Clone, Copy)]
pub enum Happening<'a> {
    /// The ledger answered an event.
    Ledger(&'a Event, &'a Answer),
    /// The ledger wrote this down before it answered.
    Record(&'a Record),
    /// The ledger wakes the workers that it told to wait, after it has answered.
    Wake,
    /// The head answered an event.
    Head(&'a HeadEvent, &'a HeadAnswer),
    /// A deadline of the head passed.
    HeadDeadline,
    /// The head asked for this effect.
    Effect(&'a HeadEffect),
    /// A life of a worker got a reply and made its next call.
    Worker(Holder, &'a Reply, &'a Call),
    /// The master's answer to a heartbeat reached a life.
    Beat(Holder, &'a AgentSession),
    /// A process began to run.
    Born(Holder),
    /// A process ended.
    Died(Holder),
    /// A fault hit the job.
    Fault(Fault),
    /// The master's process ended; another one goes on at this time.
    MasterEnded(JobTime),
    /// Another master goes on with the job from here.
    TakenOver,
    /// A message between this life and another process was lost on its way.
    Lost(Holder),
    /// A message of this life to the master arrives before one that it sent earlier.
    Overtaken(Holder),
    /// No fault happens from now on.
    Calm,
    /// The job ended: everything is committed, or why not.
    Ended(&'a Result<(), String>),
}

/// Receives everything that happens in a simulated job, in order.
pub trait Observer {
    /// Whether it looks at all. If not, nothing is copied for it.
    fn watches(&self) -> bool {
        true
    }

    /// This happened at `at`. An error ends the simulation.
    ///
    /// # Errors
    /// If it must not have happened.
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
