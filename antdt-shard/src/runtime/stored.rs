//! A ledger with its store, as the service runs it; the store may be full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use antdt_core::{Exchanged, FetchOutcome, JobTime, Machine};

use crate::ledger::{Answer, Effect, Event, ShardLedger};

/// How often a full store is tried again, and how long workers that ask for shards are told to wait. Longer: training
/// stands still for longer than the disk is full; shorter: more useless tries.
const RETRY_FULL: Duration = Duration::from_secs(1);

/// A ledger, and whether its store has room.
///
/// While it has none, nothing is granted: what is out bounds the records that must be kept in memory. `Wait` is the
/// answer, also at the end, for the end must not be announced before it is stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) ledger: ShardLedger,
    /// Shared with the runner, which finds out.
    pub(super) full: Arc<AtomicBool>,
    retry_at: JobTime,
    retry: bool,
}

impl Stored {
    pub(super) fn new(ledger: ShardLedger, full: Arc<AtomicBool>) -> Self {
        Self { ledger, full, retry_at: JobTime::default(), retry: false }
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }
}

impl Machine for Stored {
    type Event = Event;
    type Answer = Answer;
    type Effect = Effect;

    fn handle(&mut self, now: JobTime, mut event: Event) -> Answer {
        let full = self.is_full();
        let Event::Exchange { acks, want: want @ 1.., .. } = &mut event else {
            return self.ledger.handle(now, event);
        };
        if !full {
            return self.ledger.handle(now, event);
        }
        *want = 0;
        let fetched = Some(FetchOutcome::Wait { retry_after: RETRY_FULL });
        if acks.is_empty() {
            return Answer::Exchange(Ok(Exchanged { fetched, ..Exchanged::default() }));
        }
        match self.ledger.handle(now, event) {
            Answer::Exchange(Ok(exchanged)) => Answer::Exchange(Ok(Exchanged { fetched, ..exchanged })),
            refused => refused,
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        let effect = self.ledger.poll_effect();
        effect.or_else(|| std::mem::take(&mut self.retry).then_some(Effect::Wake))
    }

    fn deadline(&self) -> Option<JobTime> {
        let retry = self.is_full().then_some(self.retry_at);
        retry.into_iter().chain(self.ledger.deadline()).min()
    }

    fn on_deadline(&mut self, now: JobTime) {
        self.ledger.on_deadline(now);
        if self.is_full() && self.retry_at <= now {
            // Any effect makes the runner try the store again.
            self.retry = true;
            self.retry_at = now + RETRY_FULL;
        }
    }
}
