//! Samples for a training loop: leases from the shard service, cut into batches.
//!
//! A shard is asked for as late as possible, so that none waits in the hands of a slow worker while others are idle:
//! in the call that acknowledges a batch, if what is left does not fill the next one.

use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Batcher, TrainError};
use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{Ack, AckOutcome, Exchanged, FetchOutcome, Held, RequestId, Retry};

use super::PATIENCE;
use super::error::WorkerError;

/// Restarts of the service that one exchange outlives. More in so short a time is a service that does not stay.
const RESTARTS_MAX: u32 = 8;

/// Leases of one worker.
#[derive(Debug)]
pub(super) struct DataFeed<'a, S> {
    agent: &'a Agent,
    source: S,
    batcher: Batcher,
    /// Requests that were answered with shards.
    granted: u64,
    /// Samples of the last batch that was asked for, and of the last shard that was granted.
    batch_len: u64,
    shard_len: u64,
    registered: bool,
    end_of_data: bool,
}

impl<'a, S> DataFeed<'a, S>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    /// Leases from `source`, none yet.
    pub(super) fn new(agent: &'a Agent, source: S) -> Self {
        Self {
            agent,
            source,
            batcher: Batcher::new(),
            granted: 0,
            batch_len: 0,
            shard_len: 1,
            registered: false,
            end_of_data: false,
        }
    }

    /// Whether every sample of the job is accounted for.
    pub(super) const fn end_of_data(&self) -> bool {
        self.end_of_data
    }

    /// The next batch: `want` samples, fewer at the tail, none while there is nothing to take.
    ///
    /// When nothing is held, the source may keep the call for `patience` in case a peer's shard comes back.
    ///
    /// The first call registers with the source, which ends the leases of the node's earlier lives. Not sooner: until
    /// this life has joined, the survivors may still have to settle what an earlier one did last.
    pub(super) fn next(&mut self, want: u64, patience: Duration) -> Result<Batch, WorkerError> {
        if want == 0 {
            // There is no batch size yet; it comes with a heartbeat. Until then the training loop must not spin.
            std::thread::sleep(patience.min(PATIENCE));
            return Ok(Batch::default());
        }
        self.batch_len = want;
        if !self.registered {
            self.agent.block_on(self.source.register(self.agent.holder(), &[]))?;
            self.registered = true;
        }
        while !self.end_of_data && self.batcher.unread() < want {
            let wait = if self.batcher.unread() == 0 { patience } else { Duration::ZERO };
            let (_, exchanged) = self.exchange(Vec::new(), Vec::new(), self.shards_missing(), wait)?;
            self.give_back(&exchanged)?;
            if matches!(exchanged.fetched, Some(FetchOutcome::Wait { .. } | FetchOutcome::AtLimit)) {
                break;
            }
        }
        Ok(self.batcher.take(want))
    }

    /// Shards that the next batch needs, as far as their length is known. Near the end there may be fewer.
    fn shards_missing(&self) -> u32 {
        let samples = self.batch_len.saturating_sub(self.batcher.unread());
        u32::try_from(samples.div_ceil(self.shard_len)).unwrap_or(u32::MAX)
    }

    /// Acknowledges, asks, and takes in what is granted. `done` are the leases that the acks finish. Returns the acks as
    /// they were sent at last: if the service was restarted meanwhile, it heard of the other ones by registration.
    fn exchange(
        &mut self,
        mut acks: Vec<Ack>,
        mut done: Vec<Held>,
        want: u32,
        wait: Duration,
    ) -> Result<(Vec<Ack>, Exchanged), WorkerError> {
        let holder = self.agent.holder();
        let mut restarts = 0;
        let exchanged = loop {
            if acks.is_empty() && want == 0 {
                break Exchanged::default();
            }
            let request = RequestId(self.granted + 1);
            let call = self.source.exchange(holder, request, &acks, want, wait);
            match self.agent.block_on(call) {
                Ok(exchanged) => break exchanged,
                Err(error) if error.retry() == Retry::Register && restarts < RESTARTS_MAX => {
                    restarts += 1;
                    let mut held = self.batcher.held();
                    let going_on = held.len();
                    held.append(&mut done);
                    let registered = self.agent.block_on(self.source.register(holder, &held))?;
                    tracing::warn!(%holder, %error, held = held.len(), "registered again with the leases held");
                    self.batcher.adopted(registered.adopted.get(..going_on).unwrap_or_default());
                    // What was presented says all that the acks say.
                    acks.clear();
                }
                Err(error) => return Err(error.into()),
            }
        };
        // Only now: a late copy of a question that was answered with "wait" may be granted, and asking it again is how
        // one hears of that.
        self.granted += u64::from(matches!(exchanged.fetched, Some(FetchOutcome::Granted(_))));
        for grant in exchanged.grants() {
            self.shard_len = grant.len.max(1);
            self.batcher.granted(grant);
        }
        self.end_of_data |= exchanged.fetched == Some(FetchOutcome::EndOfData);
        Ok((acks, exchanged))
    }

    /// Returns what others could begin at once.
    fn give_back(&mut self, exchanged: &Exchanged) -> Result<(), WorkerError> {
        let given_up = self.batcher.recall(&exchanged.recalled);
        if given_up.is_empty() {
            return Ok(());
        }
        let released = self.agent.block_on(self.source.release(self.agent.holder(), &given_up));
        unless_restarted(released.map(drop))
    }

    /// The batch is part of the model: acknowledge it.
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), WorkerError> {
        let mut acks = batch.acks();
        acks.iter_mut().for_each(|ack| ack.lease = self.batcher.name_of(ack.lease));
        let done = self.batcher.commit(batch);
        if acks.is_empty() {
            return Ok(());
        }
        let want = if self.end_of_data { 0 } else { self.shards_missing() };
        let (acks, exchanged) = self.exchange(acks, done, want, Duration::ZERO)?;
        for (ack, outcome) in acks.iter().zip(&exchanged.outcomes) {
            match outcome {
                AckOutcome::Accepted => {}
                AckOutcome::StaleLease => {
                    tracing::warn!(holder = %self.agent.holder(), lease = %ack.lease, "lease ended without us");
                    self.batcher.revoke(ack.lease);
                }
            }
        }
        self.give_back(&exchanged)
    }

    /// The batch is part of the model and was acknowledged by somebody else.
    pub(super) fn settled(&mut self, batch: &Batch) {
        self.batcher.commit(batch);
    }

    /// The batch is not part of the model: its samples come again.
    pub(super) fn abort(&mut self, batch: &Batch) {
        self.batcher.abort(batch);
    }

    /// A sample of the batch cannot be read: its lease counts as a data fault. What was read before it in the same
    /// lease and is committed stays so; the other leases of the batch are read again.
    pub(super) fn fault(&mut self, batch: &Batch, error: &TrainError) -> Result<(), WorkerError> {
        let TrainError::Data { sample, why } = error else {
            return Err(WorkerError::Train(error.clone()));
        };
        let mut before = 0;
        let position = batch.samples.iter().position(|s| s == sample).unwrap_or(0) as u64;
        let fragment = batch.fragments.iter().find(|fragment| {
            let hit = position < before + fragment.len();
            before += fragment.len();
            hit
        });
        // Its name before the batch is forgotten: it may have been adopted under another one.
        let at = fragment
            .map(|fragment| Ack { lease: self.batcher.name_of(fragment.lease), offset: fragment.from });
        self.batcher.abort(batch);
        let Some(at) = at else { return Err(WorkerError::Train(error.clone())) };
        self.batcher.revoke(at.lease);
        tracing::warn!(holder = %self.agent.holder(), sample, why, "sample cannot be read");
        unless_restarted(self.agent.block_on(self.source.fail(self.agent.holder(), at, why)).map(drop))
    }

    /// Gives all leases back.
    pub(super) fn release(&mut self) -> Result<(), WorkerError> {
        let acks = self.batcher.release();
        if acks.is_empty() {
            return Ok(());
        }
        unless_restarted(self.agent.block_on(self.source.release(self.agent.holder(), &acks)).map(drop))
    }
}

/// A lease that is given up is void anyway if the service was restarted: the next exchange registers again.
fn unless_restarted<E>(answer: Result<(), E>) -> Result<(), WorkerError>
where
    E: SeamError,
    WorkerError: From<E>,
{
    match answer {
        Err(error) if error.retry() == Retry::Register => Ok(()),
        answer => Ok(answer?),
    }
}
