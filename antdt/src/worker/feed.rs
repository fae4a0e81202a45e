//! Samples for a training loop: leases from the shard service, cut into batches.

use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Batcher, TrainError};
use antdt_core::port::ShardSource;
use antdt_core::{Ack, AckOutcome, FetchOutcome, RequestId};

use super::PATIENCE;
use super::error::WorkerError;

/// Leases of one worker.
#[derive(Debug)]
pub(super) struct DataFeed<'a, S> {
    agent: &'a Agent,
    source: S,
    batcher: Batcher,
    requests: u64,
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
        Self { agent, source, batcher: Batcher::new(), requests: 0, registered: false, end_of_data: false }
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
        if !self.registered {
            self.agent.block_on(self.source.register(self.agent.holder()))?;
            self.registered = true;
        }
        while !self.end_of_data && self.batcher.unread() < want {
            let wait = if self.batcher.unread() == 0 { patience } else { Duration::ZERO };
            self.requests += 1;
            let request = RequestId(self.requests);
            match self.agent.block_on(self.source.fetch(self.agent.holder(), request, wait))? {
                FetchOutcome::Granted(grant) => self.batcher.granted(grant),
                FetchOutcome::EndOfData => self.end_of_data = true,
                FetchOutcome::Wait { .. } | FetchOutcome::AtLimit => break,
            }
        }
        Ok(self.batcher.take(want))
    }

    /// The batch is part of the model: acknowledge it.
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), WorkerError> {
        let acks = batch.acks();
        self.settled(batch);
        if acks.is_empty() {
            return Ok(());
        }
        let outcomes = self.agent.block_on(self.source.ack(self.agent.holder(), &acks))?;
        for (ack, outcome) in acks.iter().zip(outcomes) {
            match outcome {
                AckOutcome::Accepted => {}
                AckOutcome::StaleLease => {
                    tracing::warn!(holder = %self.agent.holder(), lease = %ack.lease, "lease ended without us");
                    self.batcher.revoke(ack.lease);
                }
            }
        }
        Ok(())
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
        self.batcher.abort(batch);
        let Some(fragment) = fragment else { return Err(WorkerError::Train(error.clone())) };
        self.batcher.revoke(fragment.lease);
        let at = Ack { lease: fragment.lease, offset: fragment.from };
        tracing::warn!(holder = %self.agent.holder(), sample, why, "sample cannot be read");
        self.agent.block_on(self.source.fail(self.agent.holder(), at, why))?;
        Ok(())
    }

    /// Gives all leases back.
    pub(super) fn release(&mut self) -> Result<(), WorkerError> {
        let acks = self.batcher.release();
        if !acks.is_empty() {
            self.agent.block_on(self.source.release(self.agent.holder(), &acks))?;
        }
        Ok(())
    }
}
