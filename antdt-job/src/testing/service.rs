//! A shard service in a few lines: obviously right, and durable.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{
    Ack, AckOutcome, Acks, Counts, Epoch, Exchanged, FetchOutcome, Generation, Grant, Held, Holder, LeaseId,
    Registered, ShardKey,
};

#[derive(Debug)]
struct Shard {
    start: u64,
    len: u64,
    acked: u64,
    lease: Option<(Holder, LeaseId)>,
}

/// The holder of each shard, and how much of it is done.
#[derive(Debug)]
pub(super) struct Service {
    shards: Vec<Shard>,
    /// The shard behind every lease that ever was.
    names: BTreeMap<LeaseId, usize>,
    generation: Generation,
    sequence: u64,
    /// Those that have registered in this generation.
    known: BTreeSet<Holder>,
    /// Those that shall give back what they have not begun.
    pub(super) recall: BTreeSet<Holder>,
}

impl Service {
    pub(super) fn new(lens: &[u8]) -> Self {
        let mut start = 0;
        let shard = |len: &u8| {
            let shard = Shard { start, len: u64::from(*len), acked: 0, lease: None };
            start += shard.len;
            shard
        };
        Self {
            shards: lens.iter().map(shard).collect(),
            names: BTreeMap::new(),
            generation: Generation(1),
            sequence: 0,
            known: BTreeSet::new(),
            recall: BTreeSet::new(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let total = self.shards.iter().map(|shard| shard.len).sum();
        let acked = self.shards.iter().map(|shard| shard.acked).sum();
        let held = self.shards.iter().filter(|shard| shard.lease.is_some());
        let doing = held.map(|shard| shard.len - shard.acked).sum();
        Counts { total, acked, doing, todo: total - acked - doing, ..Counts::default() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.shards.iter().all(|shard| shard.acked == shard.len)
    }

    /// Numbers of the samples that are acknowledged.
    pub(super) fn acked(&self) -> impl Iterator<Item = u64> + '_ {
        self.shards.iter().flat_map(|shard| shard.start..shard.start + shard.acked)
    }

    /// Whether the service was restarted since the holder registered.
    pub(super) fn knows(&self, holder: Holder) -> bool {
        self.known.contains(&holder)
    }

    pub(super) fn restart(&mut self) {
        self.generation = self.generation.next();
        self.known.clear();
    }

    /// Samples of each shard that are acknowledged.
    pub(super) fn progress(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.acked).collect()
    }

    /// Goes back to this progress. Returns the generation that begins: leases of before are void.
    pub(super) fn set_back(&mut self, progress: &[u64]) -> Generation {
        self.restart();
        self.names.clear();
        self.recall.clear();
        for (shard, acked) in self.shards.iter_mut().zip(progress) {
            (shard.acked, shard.lease) = (*acked, None);
        }
        self.generation
    }

    fn lease(&mut self, at: usize, holder: Holder) -> Grant {
        self.sequence += 1;
        let lease = LeaseId { generation: self.generation, sequence: self.sequence };
        self.names.insert(lease, at);
        let shard = &mut self.shards[at];
        shard.lease = Some((holder, lease));
        let index = u64::try_from(at).unwrap_or(u64::MAX);
        let key = ShardKey { epoch: Epoch(0), index };
        Grant { lease, key, start: shard.start, len: shard.len, resume_at: shard.acked, seed: None }
    }

    pub(super) fn register(&mut self, holder: Holder, held: &[Held]) -> Registered {
        self.known.insert(holder);
        // What it does not present it does not hold.
        for shard in &mut self.shards {
            let own =
                |(by, lease): &(Holder, LeaseId)| *by == holder && !held.iter().any(|h| h.lease == *lease);
            if shard.lease.as_ref().is_some_and(own) {
                shard.lease = None;
            }
        }
        let mut adopted = Vec::new();
        for held in held {
            let at = self.names.get(&held.lease).copied();
            let at = at.filter(|at| self.shards[*at].lease == Some((holder, held.lease)));
            adopted.push(at.and_then(|at| {
                let shard = &mut self.shards[at];
                shard.acked = shard.acked.max(held.offset);
                if shard.acked == shard.len {
                    shard.lease = None;
                    return None;
                }
                Some(self.lease(at, holder))
            }));
        }
        Registered { generation: self.generation, adopted }
    }

    /// Counts what is done of a lease. Whether the holder has it, if one is named.
    fn ack(&mut self, holder: Option<Holder>, ack: Ack) -> bool {
        let Some(at) = self.names.get(&ack.lease).copied() else { return false };
        let shard = &mut self.shards[at];
        if holder.is_some_and(|holder| shard.lease != Some((holder, ack.lease))) {
            return false;
        }
        shard.acked = shard.acked.max(ack.offset.min(shard.len));
        if shard.acked == shard.len {
            shard.lease = None;
        }
        true
    }

    pub(super) fn exchange(&mut self, holder: Holder, acks: &Acks, want: u32) -> Exchanged {
        let outcome = |service: &mut Self, ack: &Ack| {
            if service.ack(Some(holder), *ack) { AckOutcome::Accepted } else { AckOutcome::StaleLease }
        };
        let outcomes = acks.iter().map(|ack| outcome(self, ack)).collect();
        let mut grants = Vec::new();
        while grants.len() < want as usize {
            let free = self.shards.iter().position(|shard| shard.lease.is_none() && shard.acked < shard.len);
            let Some(at) = free else { break };
            grants.push(self.lease(at, holder));
        }
        let mut grants = grants.into_iter();
        let fetched = (want > 0).then(|| match grants.next() {
            Some(grant) => FetchOutcome::Granted(grant),
            None if self.is_done() => FetchOutcome::EndOfData,
            None => FetchOutcome::Wait { retry_after: std::time::Duration::ZERO },
        });
        let recalled = if self.recall.remove(&holder) { self.leases_of(holder) } else { Vec::new() };
        Exchanged { outcomes, fetched, more: grants.collect(), recalled }
    }

    fn leases_of(&self, holder: Holder) -> Vec<LeaseId> {
        let own = |shard: &Shard| shard.lease.filter(|(by, _)| *by == holder).map(|(_, lease)| lease);
        self.shards.iter().filter_map(own).collect()
    }

    /// Leases go back, done so far.
    pub(super) fn release(&mut self, holder: Holder, acks: &[Ack]) {
        for ack in acks {
            if self.ack(Some(holder), *ack) {
                self.shards[self.names[&ack.lease]].lease = None;
            }
        }
    }

    /// The master says what is committed, in place of the holder.
    pub(super) fn settle(&mut self, acks: &[Ack]) {
        for ack in acks {
            self.ack(None, *ack);
        }
    }

    /// The holder is dead: its leases go back.
    pub(super) fn lost(&mut self, holder: Holder) {
        for shard in &mut self.shards {
            if shard.lease.is_some_and(|(by, _)| by == holder) {
                shard.lease = None;
            }
        }
    }
}
