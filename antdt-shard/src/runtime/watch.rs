//! Lets somebody watch a ledger at work: a master that keeps a record of who had which shard when.

use std::fmt;

use antdt_core::{JobTime, Machine};

use crate::ledger::{Answer, Effect, Event, ShardLedger};

/// Sees every event with its answer, in order. Called by the task that owns the ledger, so it must be quick; it sees
/// an answer before the records behind it are stored.
pub type Tap = Box<dyn FnMut(JobTime, &Event, &Answer) + Send>;

/// A ledger, and perhaps somebody who watches.
pub(super) struct Watched {
    pub(super) ledger: ShardLedger,
    pub(super) tap: Option<Tap>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("ledger", &self.ledger).field("tapped", &self.tap.is_some()).finish()
    }
}

impl Machine for Watched {
    type Event = Event;
    type Answer = Answer;
    type Effect = Effect;

    fn handle(&mut self, now: JobTime, event: Event) -> Answer {
        let Some(tap) = &mut self.tap else { return self.ledger.handle(now, event) };
        // Questions about the state change nothing and can be large; nobody needs to see them.
        let seen = matches!(
            event,
            Event::Register { .. }
                | Event::Fetch { .. }
                | Event::Ack { .. }
                | Event::Release { .. }
                | Event::Fail { .. }
                | Event::WorkerLost { .. }
        )
        .then(|| event.clone());
        let answer = self.ledger.handle(now, event);
        if let Some(event) = seen {
            tap(now, &event, &answer);
        }
        answer
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.ledger.poll_effect()
    }

    fn deadline(&self) -> Option<JobTime> {
        self.ledger.deadline()
    }

    fn on_deadline(&mut self, now: JobTime) {
        self.ledger.on_deadline(now);
    }
}
