//! A worker's end of the data: leases from a ledger, batches from leases.

use antdt_agent::{Batch, Batcher};
use antdt_core::{FetchOutcome, Generation, Holder, RequestId};
use antdt_shard::ShardLedger;

/// A worker's source of batches: leases shards from the ledger and cuts batches out of them.
#[derive(Debug, Clone, Default)]
pub struct Feeder {
    /// Batcher with the leases that the worker holds.
    pub batcher: Batcher,
    /// Whether the ledger has told the worker that every sample is accounted for.
    pub end_of_data: bool,
    requests: u64,
}

impl Feeder {
    /// Returns a batch of `want` samples, or of fewer if the ledger grants no more leases now.
    ///
    /// # Panics
    /// If the ledger refuses a live holder.
    pub fn take(
        &mut self,
        ledger: &mut ShardLedger,
        generation: Generation,
        holder: Holder,
        want: u64,
    ) -> Batch {
        while !self.end_of_data && self.batcher.unread() < want {
            self.requests += 1;
            match ledger.fetch(holder, generation, RequestId(self.requests)).expect("a live holder") {
                FetchOutcome::Granted(grant) => self.batcher.granted(grant),
                FetchOutcome::EndOfData => self.end_of_data = true,
                FetchOutcome::Wait { .. } | FetchOutcome::AtLimit => break,
            }
        }
        self.batcher.take(want)
    }
}
