//! From leases to batches of any size.
//!
//! The batch size changes at run time and divides no shard length, so a batch takes fragments of several leases,
//! first come first served. "Read" and "committed" are two cursors: a lease is acknowledged up to the committed one,
//! which moves only when the update that contains the samples is part of the model.

use std::collections::VecDeque;

use antdt_core::{Ack, Fragment, Grant, LeaseId, Permutation};

/// Samples to compute together, and where they came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Pieces of leases, in the order of the samples.
    pub fragments: Vec<Fragment>,
    /// Numbers of the samples in the data set.
    pub samples: Vec<u64>,
}

impl Batch {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The acks that are due once the batch is committed: one for each lease it takes from.
    pub fn acks(&self) -> Vec<Ack> {
        self.fragments.iter().map(Fragment::ack).collect()
    }
}

#[derive(Debug, Clone)]
struct Held {
    grant: Grant,
    order: Option<Permutation>,
    /// Offsets below are in a batch or done.
    read: u64,
    /// Offsets below are part of the model.
    committed: u64,
}

/// Holds leases and cuts batches from them.
///
/// One batch is out at a time: take it, then [`commit`](Self::commit) or [`abort`](Self::abort) it.
#[derive(Debug, Clone, Default)]
pub struct Batcher {
    held: VecDeque<Held>,
}

impl Batcher {
    /// A batcher without leases.
    pub fn new() -> Self {
        Self::default()
    }

    /// Samples that are leased and in no batch.
    pub fn unread(&self) -> u64 {
        self.held.iter().map(|held| held.grant.len - held.read).sum()
    }

    /// Leases held.
    pub fn leases(&self) -> usize {
        self.held.len()
    }

    /// Takes a lease in. A lease that is held already changes nothing: the grant was repeated.
    pub fn granted(&mut self, grant: Grant) {
        if self.held.iter().all(|held| held.grant.lease != grant.lease) {
            let at = grant.resume_at.min(grant.len);
            self.held.push_back(Held { order: grant.order(), grant, read: at, committed: at });
        }
    }

    /// Cuts the next batch of `want` samples; shorter if fewer are leased.
    pub fn take(&mut self, want: u64) -> Batch {
        let mut batch = Batch::default();
        let mut missing = want;
        for held in &mut self.held {
            let take = missing.min(held.grant.len - held.read);
            if take == 0 {
                continue;
            }
            let fragment = Fragment { lease: held.grant.lease, from: held.read, to: held.read + take };
            let order = held.order.as_ref();
            batch.samples.extend((fragment.from..fragment.to).map(|offset| held.grant.sample(order, offset)));
            batch.fragments.push(fragment);
            held.read = fragment.to;
            missing -= take;
            if missing == 0 {
                break;
            }
        }
        batch
    }

    /// The batch is part of the model. Leases that are done with it are dropped.
    pub fn commit(&mut self, batch: &Batch) {
        for fragment in &batch.fragments {
            if let Some(held) = self.held.iter_mut().find(|held| held.grant.lease == fragment.lease) {
                held.committed = held.committed.max(fragment.to);
            }
        }
        self.held.retain(|held| held.committed < held.grant.len);
    }

    /// The batch is not part of the model: its samples are read again, in the same order.
    pub fn abort(&mut self, batch: &Batch) {
        for fragment in batch.fragments.iter().rev() {
            if let Some(held) = self.held.iter_mut().find(|held| held.grant.lease == fragment.lease) {
                held.read = held.read.min(fragment.from);
            }
        }
    }

    /// The lease ended without us: drop it, and do not count its samples.
    pub fn revoke(&mut self, lease: LeaseId) {
        self.held.retain(|held| held.grant.lease != lease);
    }

    /// Gives every lease up. Returns them with what is committed of each.
    pub fn release(&mut self) -> Vec<Ack> {
        self.held.drain(..).map(|held| Ack { lease: held.grant.lease, offset: held.committed }).collect()
    }
}

#[cfg(test)]
mod tests;
