//! The task that owns one ledger: events in, records to the store, answers out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use antdt_core::{
    Ack, AckOutcome, AckOutcomes, Acks, CheckpointId, Counts, Epoch, Exchanged, FetchOutcome, Generation,
    Held, Holder, JobTime, Machine, Registered, RequestId,
};
use antdt_rt::{CancellationToken, JobClock, Mailbox, Recorder, Runner, drive_recorded, mailbox};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::error::{RecoverError, SourceError};
use crate::ledger::{
    Answer, CutBinding, Effect, Event, LedgerCut, LedgerSnapshot, LedgerStatus, Missing, Outstanding,
    Quarantined, Record, Recovery, ShardLedger,
};
use crate::spec::{DatasetSpec, WAIT_MAX};
use crate::store::LedgerStore;

use super::stored::Stored;

/// Reason why the service of a data set could not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError<E: std::error::Error + 'static> {
    /// The records in the store do not give a ledger: they are damaged, or belong to another data set.
    #[error("the ledger of {dataset:?} cannot be recovered")]
    Recover {
        /// Name of the data set.
        dataset: String,
        /// Reason why the ledger could not be recovered.
        #[source]
        source: RecoverError,
    },
    /// The store failed. The service gave no answer whose records were not stored.
    #[error("the store of data set {dataset:?} failed; free or replace it and start the service again")]
    Store {
        /// Name of the data set.
        dataset: String,
        /// Error of the store.
        #[source]
        source: E,
    },
    /// The service's task panicked, which is a defect.
    #[error("the task of data set {dataset:?} panicked")]
    Panicked {
        /// Name of the data set.
        dataset: String,
    },
}

/// The running service of one data set.
///
/// The task ends when `shutdown` is cancelled, when every handle is dropped, or when the store fails; callers then get
/// [`SourceError::Unavailable`].
///
/// A store that [is full](LedgerStore::is_full) has not failed: until it has room again every fetch is answered with
/// `Wait`, and acks are counted in memory. If the process ends before, their samples are trained again.
#[derive(Debug)]
pub struct ShardService<E: std::error::Error + 'static> {
    handle: ShardHandle,
    task: JoinHandle<Result<ShardLedger, E>>,
}

/// Events that may wait for the task; a caller beyond that waits its turn. More would only move the queue from the
/// network into memory.
const INBOX_BOUND: usize = 1024;

impl<E: std::error::Error + Send + Sync + 'static> ShardService<E> {
    /// Starts a service: replays the records in the store, begins the next generation, and serves.
    ///
    /// # Errors
    /// If the store fails, or its records are damaged or of another data set.
    pub async fn start<S: LedgerStore<Error = E>>(
        spec: DatasetSpec,
        store: S,
        clock: JobClock,
        shutdown: CancellationToken,
    ) -> Result<Self, ServiceError<E>> {
        Self::start_watched(spec, store, clock, shutdown, ()).await
    }

    /// Starts a service as [`start`](Self::start) does, with a watcher that sees every event, its answer and
    /// its effects, from the first event of the new generation on. While the store is full, answers are those
    /// of the service, not of the ledger alone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_watched<S: LedgerStore<Error = E>>(
        spec: DatasetSpec,
        mut store: S,
        clock: JobClock,
        shutdown: CancellationToken,
        watcher: impl Recorder<Event, Answer, Effect> + 'static,
    ) -> Result<Self, ServiceError<E>> {
        let dataset = spec.name.clone();
        let failed = |source| ServiceError::Store { dataset: dataset.clone(), source };
        let refused = |source| ServiceError::Recover { dataset: dataset.clone(), source };

        let recovery = Recovery::new(spec).map_err(refused)?;
        let recovery = store.load(recovery).await.map_err(failed)?;
        let generation = recovery.snapshot().generation().unwrap_or_default().next();
        let mut ledger = recovery.finish(generation).map_err(refused)?;
        // The generation must be on record before any worker can hold a lease of it.
        store.append(&take_records(&mut ledger)).await.map_err(failed)?;

        let (mailbox, inbox) = mailbox(INBOX_BOUND);
        let (wake, woken) = watch::channel(());
        let handle = ShardHandle { dataset, mailbox, woken, first_fault: Arc::default() };
        let task = tokio::spawn(async move {
            let (failure, failed) = tokio::sync::oneshot::channel();
            let full = Arc::new(AtomicBool::new(false));
            let stored = Stored::new(ledger, full.clone());
            let runner = LedgerRunner { store, wake, failure: Some(failure), records: Vec::new(), full };
            tokio::select! {
                biased;
                // The loop is dropped with its unreleased answers: what was not stored is not answered.
                Ok(error) = failed => Err(error),
                stored = drive_recorded(stored, inbox, runner, clock, shutdown, watcher) => Ok(stored.ledger),
            }
        });
        Ok(Self { handle, task })
    }

    /// Returns a handle through which callers in this process reach the service.
    pub fn handle(&self) -> ShardHandle {
        self.handle.clone()
    }

    /// Waits for the end of the service's task and returns the final ledger. Cancel its `shutdown` before, or
    /// drop all other handles; otherwise this waits for as long as the service lives.
    ///
    /// # Errors
    /// If the store failed.
    pub async fn join(self) -> Result<ShardLedger, ServiceError<E>> {
        let Self { handle: ShardHandle { dataset, mailbox, .. }, task } = self;
        drop(mailbox);
        match task.await {
            Ok(Ok(ledger)) => Ok(ledger),
            Ok(Err(source)) => Err(ServiceError::Store { dataset, source }),
            Err(_) => Err(ServiceError::Panicked { dataset }),
        }
    }
}

fn take_records(ledger: &mut ShardLedger) -> Vec<Record> {
    let effects = std::iter::from_fn(|| ledger.poll_effect());
    let record = |effect| match effect {
        Effect::Record(record) => Some(record),
        Effect::Wake => None,
    };
    effects.filter_map(record).collect()
}

struct LedgerRunner<S: LedgerStore> {
    store: S,
    wake: watch::Sender<()>,
    failure: Option<tokio::sync::oneshot::Sender<S::Error>>,
    /// Not stored yet. Left over from earlier rounds only while the store is full.
    records: Vec<Record>,
    /// Shared with the machine, which grants nothing while it is set.
    full: Arc<AtomicBool>,
}

impl<S: LedgerStore> LedgerRunner<S> {
    /// Stores what there is, or finds the store full, which is no failure: acks are answered from memory then, and if
    /// they are lost with the process their samples are trained again.
    async fn store_records(&mut self) -> Result<(), S::Error> {
        let was_full = self.full.load(Ordering::Relaxed);
        match self.store.append(&self.records).await {
            Ok(()) => {
                if was_full {
                    tracing::info!(records = self.records.len(), "the ledger store has room again");
                }
                self.records.clear();
                self.full.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if S::is_full(&error) => {
                if !was_full {
                    tracing::error!(%error, "the ledger store is full; no shards are granted until it has room");
                }
                self.full.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl<S: LedgerStore> Runner<Stored> for LedgerRunner<S> {
    async fn carry_out(&mut self, _now: JobTime, effects: &mut Vec<Effect>) {
        let mut wake = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Record(record) => self.records.push(record),
                Effect::Wake => wake = true,
            }
        }
        if !self.records.is_empty() {
            let was_full = self.full.load(Ordering::Relaxed);
            if let Err(error) = self.store_records().await {
                tracing::error!(%error, "the ledger store failed; the shard service stops");
                if let Some(failure) = self.failure.take() {
                    let _ = failure.send(error);
                }
                // The task ends by the failure; returning would release answers that were not stored.
                std::future::pending::<()>().await;
            }
            // The workers that were told to wait for room.
            wake |= was_full && !self.full.load(Ordering::Relaxed);
        }
        if wake {
            self.wake.send_replace(());
        }
    }
}

/// A handle to the service of one data set, for callers in the same process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ShardHandle {
    dataset: String,
    mailbox: Mailbox<Stored>,
    woken: watch::Receiver<()>,
    first_fault: Arc<OnceLock<String>>,
}

/// The answer of the variant that belongs to the event.
macro_rules! ask {
    ($handle:expr, $event:expr, $answer:pat => $value:expr) => {
        match $handle.call($event).await? {
            $answer => $value,
            answer => unreachable!("an event is answered by the variant of its name, not by {answer:?}"),
        }
    };
}

impl ShardHandle {
    /// Returns why data could not be read that were the first of which that was reported to this service; `None` if there are none.
    pub fn first_fault(&self) -> Option<&str> {
        self.first_fault.get().map(String::as_str)
    }

    /// Returns the name of the data set.
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    async fn call(&self, event: Event) -> Result<Answer, SourceError> {
        self.mailbox.call(event).await.map_err(|_| self.gone())
    }

    fn gone(&self) -> SourceError {
        let why = format!("the service of data set {:?} has shut down", self.dataset);
        SourceError::Unavailable { why, after: Duration::ZERO }
    }

    /// Registers a worker with the leases that it still holds: [`ShardLedger::register_holding`].
    ///
    /// # Errors
    /// As [`ShardLedger::register_holding`], or if the service has ended.
    pub async fn register(&self, holder: Holder, held: Vec<Held>) -> Result<Registered, SourceError> {
        ask!(self, Event::Register { holder, held }, Answer::Register(result) => Ok(result?))
    }

    /// Acknowledges samples and asks for shards: [`ShardLedger::exchange`]. While there is nothing to grant,
    /// the answer is held for up to `wait` (at most 30 s).
    ///
    /// # Errors
    /// As [`ShardLedger::exchange`], or if the service has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the worker may have been granted shards, and its acks may count. Repeat the
    /// request to learn the answer.
    pub async fn exchange(
        &self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
        acks: Acks,
        want: u32,
        wait: Duration,
    ) -> Result<Exchanged, SourceError> {
        let deadline = Instant::now() + wait.min(WAIT_MAX);
        let mut woken = self.woken.clone();
        let mut acks = acks;
        let mut outcomes = AckOutcomes::new();
        loop {
            // What happens from here on is noticed below, even if it happens before the answer arrives.
            woken.mark_unchanged();
            let event =
                Event::Exchange { holder, generation, request, acks: std::mem::take(&mut acks), want };
            let mut exchanged = ask!(self, event, Answer::Exchange(result) => result?);
            // Only the first round has acks.
            outcomes.append(&mut exchanged.outcomes);
            if !matches!(exchanged.fetched, Some(FetchOutcome::Wait { .. })) {
                return Ok(Exchanged { outcomes, ..exchanged });
            }
            match timeout_at(deadline, woken.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(self.gone()),
                Err(_) => return Ok(Exchanged { outcomes, ..exchanged }),
            }
        }
    }

    /// Acknowledges samples in place of a worker that can no longer do so: [`ShardLedger::settle`]. Call it
    /// before [`worker_lost`](Self::worker_lost).
    ///
    /// # Errors
    /// As [`ShardLedger::settle`], or if the service has ended.
    pub async fn settle(&self, holder: Holder, acks: Vec<Ack>) -> Result<Vec<AckOutcome>, SourceError> {
        ask!(self, Event::Settle { holder, acks }, Answer::Ack(result) => Ok(result?))
    }

    /// Gives leases back: [`ShardLedger::release`].
    ///
    /// # Errors
    /// As [`ShardLedger::release`], or if the service has ended.
    pub async fn release(&self, holder: Holder, acks: Vec<Ack>) -> Result<Vec<AckOutcome>, SourceError> {
        ask!(self, Event::Release { holder, acks }, Answer::Ack(result) => Ok(result?))
    }

    /// Reports that data cannot be read: [`ShardLedger::fail`]. `why` is written to the process's log.
    ///
    /// # Errors
    /// As [`ShardLedger::fail`], or if the service has ended.
    pub async fn fail(&self, holder: Holder, ack: Ack, why: &str) -> Result<AckOutcome, SourceError> {
        let outcome = ask!(self, Event::Fail { holder, ack }, Answer::Fail(result) => result?);
        if outcome == AckOutcome::Accepted {
            self.first_fault.get_or_init(|| why.to_owned());
            let dataset = &self.dataset;
            tracing::warn!(%dataset, %holder, lease = %ack.lease, offset = ack.offset, why, "data fault");
        }
        Ok(outcome)
    }

    /// Declares a worker lost: [`ShardLedger::worker_lost`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn worker_lost(&self, holder: Holder) -> Result<(), SourceError> {
        ask!(self, Event::WorkerLost { holder }, Answer::WorkerLost => Ok(()))
    }

    /// Returns the ledger's progress: [`ShardLedger::status`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn status(&self) -> Result<LedgerStatus, SourceError> {
        ask!(self, Event::Status, Answer::Status(status) => Ok(status))
    }

    /// Returns the sample counts of one epoch: [`ShardLedger::epoch_counts`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn epoch_counts(&self, epoch: Epoch) -> Result<Option<Counts>, SourceError> {
        ask!(self, Event::EpochCounts { epoch }, Answer::EpochCounts(counts) => Ok(counts))
    }

    /// Returns the live leases, oldest first: [`ShardLedger::outstanding`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn outstanding(&self) -> Result<Vec<Outstanding>, SourceError> {
        ask!(self, Event::Outstanding, Answer::Outstanding(leases) => Ok(leases))
    }

    /// Returns the quarantined shards: [`ShardLedger::quarantined`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn quarantined(&self) -> Result<Vec<Quarantined>, SourceError> {
        ask!(self, Event::Quarantined, Answer::Quarantined(shards) => Ok(shards))
    }

    /// Returns the samples of an epoch that are not done: [`ShardLedger::missing`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn missing(&self, epoch: Epoch, shards: usize) -> Result<Vec<Missing>, SourceError> {
        ask!(self, Event::Missing { epoch, shards }, Answer::Missing(missing) => Ok(missing))
    }

    /// Stops granting shards until `until` (on the service's clock) or [`thaw`](Self::thaw):
    /// [`ShardLedger::freeze`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn freeze(&self, until: JobTime) -> Result<(), SourceError> {
        ask!(self, Event::Freeze { until }, Answer::Frozen => Ok(()))
    }

    /// Resumes granting shards: [`ShardLedger::thaw`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn thaw(&self) -> Result<(), SourceError> {
        ask!(self, Event::Thaw, Answer::Frozen => Ok(()))
    }

    /// Ends the data after this many epochs for now: [`ShardLedger::end_after`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn end_after(&self, epochs: u32) -> Result<(), SourceError> {
        ask!(self, Event::EndAfter { epochs }, Answer::Frozen => Ok(()))
    }

    /// Cuts the ledger for a checkpoint: [`ShardLedger::cut`]. The task of the service is busy only as long
    /// as a copy takes; the caller's task makes the bytes.
    ///
    /// # Errors
    /// As [`ShardLedger::cut`], or if the service has ended.
    pub async fn cut(&self, checkpoint: CheckpointId, committed: u64) -> Result<LedgerCut, SourceError> {
        let cut = self.snapshot().await?.cut(checkpoint, committed);
        cut.map_err(|e| SourceError::Rejected(e.to_string()))
    }

    /// Restores the ledger's half of a checkpoint: [`ShardLedger::restore_cut`]. Returns the new generation.
    ///
    /// # Errors
    /// As [`ShardLedger::restore_cut`], or if the service has ended.
    pub async fn restore_cut(&self, cut: &LedgerCut, model: &CutBinding) -> Result<Generation, SourceError> {
        cut.check(model).map_err(|e| SourceError::Rejected(e.to_string()))?;
        self.restore(cut.snapshot().clone()).await
    }

    /// Returns a snapshot of the ledger: [`ShardLedger::snapshot`].
    ///
    /// # Errors
    /// If the service has ended.
    pub async fn snapshot(&self) -> Result<LedgerSnapshot, SourceError> {
        ask!(self, Event::Snapshot, Answer::Snapshot(snapshot) => Ok(*snapshot))
    }

    /// Restores the ledger to a snapshot: [`ShardLedger::restore`]. Returns the new generation.
    ///
    /// # Errors
    /// If the snapshot is of another data set, or the service has ended.
    pub async fn restore(&self, snapshot: LedgerSnapshot) -> Result<Generation, SourceError> {
        let current = self.status().await?.generation;
        let generation = current.max(snapshot.generation().unwrap_or_default()).next();
        let event = Event::Restore { snapshot: Box::new(snapshot), generation };
        ask!(self, event, Answer::Restore(result) => {
            result.map(|()| generation).map_err(|e| SourceError::Rejected(e.to_string()))
        })
    }
}
