//! A ledger as the service runs it: perhaps somebody watches, and its store may be full.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use antdt_core::{Exchanged, FetchOutcome, JobTime, Machine};

use crate::ledger::{Answer, Effect, Event, ShardLedger};

/// Sees every event with its answer, in order. Called by the task that owns the ledger, so it must be quick; it sees
/// an answer before the records behind it are stored.
pub type Tap = Box<dyn FnMut(JobTime, &Event, &Answer) + Send>;

/// How often a full store is tried again, and how long those who ask for shards are told to wait. Longer: training
/// stands still for longer than the disk is full; shorter: more useless tries.
const RETRY_FULL: Duration = Duration::from_secs(1);

/// A ledger, perhaps somebody who watches, and whether the store has room.
///
/// While it has none, nothing is granted: what is out bounds the records that must be kept in memory. `Wait` is the
/// answer, also at the end, for the end must not be announced before it is stored.
pub(super) struct Watched {
    pub(super) ledger: ShardLedger,
    pub(super) tap: Option<Tap>,
    /// Shared with the runner, which finds out.
    pub(super) full: Arc<AtomicBool>,
    retry_at: JobTime,
    retry: bool,
}

impl Watched {
    pub(super) fn new(ledger: ShardLedger, tap: Option<Tap>, full: Arc<AtomicBool>) -> Self {
        Self { ledger, tap, full, retry_at: JobTime::default(), retry: false }
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    fn answer(&mut self, now: JobTime, mut event: Event) -> Answer {
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
        if self.tap.is_none() {
            return self.answer(now, event);
        }
        // Questions about the state change nothing and can be large; nobody needs to see them.
        let seen = matches!(
            event,
            Event::Register { .. }
                | Event::Exchange { .. }
                | Event::Settle { .. }
                | Event::Release { .. }
                | Event::Fail { .. }
                | Event::WorkerLost { .. }
        )
        .then(|| event.clone());
        let answer = self.answer(now, event);
        if let (Some(event), Some(tap)) = (seen, &mut self.tap) {
            tap(now, &event, &answer);
        }
        answer
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
