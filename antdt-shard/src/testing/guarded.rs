//! A ledger behind sources that a user of this crate wrote, for [`Invariants`](super::Invariants).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{Ack, AckOutcome, Epoch, Exchanged, Generation, Held, Holder, Registered, RequestId, Retry};

use super::block::block_on;
use super::call::{Call, CallReply};
use super::invariant::{Breach, Invariant};
use super::subject::{Journal, Ram, Served, Subject};
use super::view::View;
use crate::error::SourceError;
use crate::ledger::{LedgerSnapshot, Missing, Record, ShardLedger};
use crate::spec::DatasetSpec;

type Ledger = Served<ShardLedger, fn(ShardLedger) -> ShardLedger, Ram>;

/// A ledger, and what it was found to do wrong meanwhile.
#[derive(Debug)]
struct Shared {
    ledger: Ledger,
    breach: Option<Breach>,
}

/// A [`ShardSource`] that calls the ledger of a history directly: it answers at once, and needs no runtime.
#[derive(Debug, Clone)]
pub struct LedgerSource {
    shared: Arc<Mutex<Shared>>,
    /// The generation of the last registration; 0, which no service has, before the first.
    generation: Arc<AtomicU64>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // The thread that panicked ended the history.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LedgerSource {
    fn say(&self, call: &Call) -> Result<CallReply, SourceError> {
        let mut shared = lock(&self.shared);
        shared.ledger.say(call).map_err(|breach| {
            let error = SourceError::Rejected(breach.what.clone());
            shared.breach = Some(breach);
            error
        })
    }

    fn other(reply: &CallReply) -> SourceError {
        SourceError::Rejected(format!("answered {reply:?}"))
    }
}

impl ShardSource for LedgerSource {
    type Error = SourceError;

    async fn register(&self, holder: Holder, held: &[Held]) -> Result<Registered, SourceError> {
        match self.say(&Call::Register { holder, held: held.to_vec() })? {
            CallReply::Registered(registered) => {
                let registered = registered?;
                self.generation.store(registered.generation.0, Ordering::Relaxed);
                Ok(registered)
            }
            reply => Err(Self::other(&reply)),
        }
    }

    async fn exchange(
        &self,
        holder: Holder,
        request: RequestId,
        acks: &[Ack],
        want: u32,
        _wait: Duration,
    ) -> Result<Exchanged, SourceError> {
        let generation = Generation(self.generation.load(Ordering::Relaxed));
        match self.say(&Call::Exchange { holder, generation, request, acks: acks.to_vec(), want })? {
            CallReply::Exchanged(exchanged) => Ok(exchanged?),
            reply => Err(Self::other(&reply)),
        }
    }

    async fn release(&self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, SourceError> {
        match self.say(&Call::Release { holder, acks: acks.to_vec() })? {
            CallReply::Acked(outcomes) => Ok(outcomes?),
            reply => Err(Self::other(&reply)),
        }
    }

    async fn fail(&self, holder: Holder, ack: Ack, _why: &str) -> Result<AckOutcome, SourceError> {
        match self.say(&Call::Fail { holder, ack })? {
            CallReply::Failed(outcome) => Ok(outcome?),
            reply => Err(Self::other(&reply)),
        }
    }
}

/// A ledger whose workers reach it through sources that were wrapped.
pub(crate) struct Guarded<F, S> {
    shared: Arc<Mutex<Shared>>,
    wrap: F,
    /// One for each life.
    sources: BTreeMap<Holder, S>,
}

impl<F: FnMut(LedgerSource) -> S, S: ShardSource> Guarded<F, S> {
    pub(crate) fn new(spec: DatasetSpec, wrap: F) -> Result<Self, Breach> {
        let make: fn(ShardLedger) -> ShardLedger = |ledger| ledger;
        let shared = Shared { ledger: Served::new(spec, make, Ram)?, breach: None };
        Ok(Self { shared: Arc::new(Mutex::new(shared)), wrap, sources: BTreeMap::new() })
    }

    /// The answer of a life's source to a call of it; `None` if that is no worker's.
    fn ask(&mut self, call: &Call) -> Option<Result<CallReply, String>> {
        let holder = call.caller()?;
        let straight = LedgerSource { shared: Arc::clone(&self.shared), generation: Arc::default() };
        let source = self.sources.entry(holder).or_insert_with(|| (self.wrap)(straight));
        let refused = |error: S::Error| CallReply::Refused(retry(&error), error.to_string());
        Some(block_on(async {
            match call {
                Call::Register { held, .. } => source
                    .register(holder, held)
                    .await
                    .map_or_else(refused, |registered| CallReply::Registered(Ok(registered))),
                Call::Fetch { request, .. } => source
                    .fetch(holder, *request, Duration::ZERO)
                    .await
                    .map_or_else(refused, |fetched| CallReply::Fetched(Ok(fetched))),
                Call::Exchange { request, acks, want, .. } => source
                    .exchange(holder, *request, acks, *want, Duration::ZERO)
                    .await
                    .map_or_else(refused, |exchanged| CallReply::Exchanged(Ok(exchanged))),
                Call::Ack { acks, .. } => source
                    .ack(holder, acks)
                    .await
                    .map_or_else(refused, |outcomes| CallReply::Acked(Ok(outcomes))),
                Call::Release { acks, .. } => source
                    .release(holder, acks)
                    .await
                    .map_or_else(refused, |outcomes| CallReply::Acked(Ok(outcomes))),
                Call::Fail { ack, .. } => source
                    .fail(holder, *ack, "a history says so")
                    .await
                    .map_or_else(refused, |outcome| CallReply::Failed(Ok(outcome))),
                Call::Lost { .. }
                | Call::Freeze { .. }
                | Call::Tick { .. }
                | Call::Thaw
                | Call::Keep
                | Call::Cut { .. }
                | Call::Restore { .. }
                | Call::Restart { .. } => CallReply::Nothing,
            }
        }))
    }
}

fn retry(error: &impl SeamError) -> Retry {
    error.retry()
}

impl<F: FnMut(LedgerSource) -> S, S: ShardSource> Subject for Guarded<F, S> {
    fn say(&mut self, call: &Call) -> Result<CallReply, Breach> {
        let Some(reply) = self.ask(call) else { return lock(&self.shared).ledger.say(call) };
        if let Some(breach) = lock(&self.shared).breach.take() {
            return Err(breach);
        }
        reply.map_err(|what| Breach { invariant: Invariant::Progress, what })
    }

    fn view(&mut self) -> Result<View, Breach> {
        lock(&self.shared).ledger.view()
    }

    fn missing(&mut self, epoch: Epoch, shards: usize) -> Result<Vec<Missing>, Breach> {
        lock(&self.shared).ledger.missing(epoch, shards)
    }

    fn twin(&mut self) -> Result<Box<LedgerSnapshot>, Breach> {
        lock(&self.shared).ledger.twin()
    }

    fn journal(&self) -> Journal {
        lock(&self.shared).ledger.journal()
    }

    fn records(&self) -> Vec<Record> {
        lock(&self.shared).ledger.records()
    }

    fn may_lose_records(&self) -> bool {
        true
    }

    fn is_source(&self) -> bool {
        true
    }
}
