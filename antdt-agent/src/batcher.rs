//! [`Batcher`]: cuts batches of any size from the shards that a worker has leased.
//!
//! The batch size changes at run time and divides no shard length, so a batch takes fragments of several
//! leases, in the order in which they were granted. "Read" and "committed" are two cursors: a lease is
//! acknowledged up to the committed one, which moves only when the update that contains the samples is part
//! of the model.

use antdt_core::{Acks, Fragment, Grant, Held, LeaseId, NearQueue};
use smallvec::SmallVec;

/// Samples that a worker computes together, and the leases that they were taken from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Pieces of leases, in the order of the samples; none is empty. Most batches have one or two.
    pub fragments: SmallVec<[Fragment; 2]>,
}

impl Clone for Batch {
    fn clone(&self) -> Self {
        // As one piece of memory: a derived clone goes through the fragments one by one.
        Self { fragments: SmallVec::from_slice(&self.fragments) }
    }
}

impl Batch {
    /// Returns the number of samples in the batch.
    pub fn len(&self) -> u64 {
        self.fragments.iter().map(Fragment::len).sum()
    }

    /// Returns whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Returns the numbers of the samples in the data set, computed as the caller asks for them.
    pub fn samples(&self) -> impl Iterator<Item = u64> {
        self.fragments.iter().flat_map(Fragment::samples)
    }

    /// Returns the pass over the data that each sample belongs to, in the order of [`samples`](Self::samples).
    pub fn epochs(&self) -> impl Iterator<Item = u32> {
        let of = |fragment: &Fragment| {
            let len = usize::try_from(fragment.len()).unwrap_or(usize::MAX);
            std::iter::repeat_n(fragment.grant.key.epoch.0, len)
        };
        self.fragments.iter().flat_map(of)
    }

    /// Returns the part of this batch that is the micro-batch `micro`.
    #[must_use]
    pub fn piece(&self, micro: MicroBatch) -> Self {
        let (index, count, len) = (u64::from(micro.index), u64::from(micro.count.max(1)), self.len());
        // The first ones have one more if the batch cannot be divided.
        let begin = |piece: u64| ((len / count) * piece + piece.min(len % count)).min(len);
        let mut skip = begin(index);
        let mut want = begin(index + 1) - skip;
        let mut piece = Self::default();
        for fragment in &self.fragments {
            let skipped = skip.min(fragment.len());
            let from = fragment.from + skipped;
            let taken = want.min(fragment.to - from);
            (skip, want) = (skip - skipped, want - taken);
            if taken > 0 {
                piece.fragments.push(Fragment { grant: fragment.grant, from, to: from + taken });
            }
        }
        piece
    }

    /// Returns the acknowledgements that are due once the batch is committed: one for each lease that it takes samples
    /// from.
    pub fn acks(&self) -> Acks {
        self.fragments.iter().map(Fragment::ack).collect()
    }
}

/// One of the micro-batches in which a batch is computed. The micro-batches cover the batch in order, their
/// sizes differ by at most one sample, and their gradients add up to that of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// Number of the micro-batch in its batch, from 0.
    pub index: u32,
    /// Number of micro-batches in the batch, at least 1.
    pub count: u32,
}

impl MicroBatch {
    /// The only micro-batch of a batch that is computed as a whole.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns whether this is the first micro-batch, whose gradient begins the sum.
    pub const fn is_first(self) -> bool {
        self.index == 0
    }

    /// Returns whether this is the last micro-batch, whose gradient completes the sum.
    pub const fn is_last(self) -> bool {
        self.index + 1 >= self.count
    }

    /// Returns the next micro-batch of the same batch; `None` after the last.
    pub const fn next(self) -> Option<Self> {
        if self.is_last() { None } else { Some(Self { index: self.index + 1, ..self }) }
    }
}

#[derive(Debug, Clone)]
struct Reading {
    grant: Grant,
    /// Offsets below are in a batch or done.
    read: u64,
    /// Offsets below are part of the model.
    committed: u64,
}

impl Reading {
    const fn as_held(&self) -> Held {
        Held { lease: self.grant.lease, key: self.grant.key, offset: self.committed }
    }
}

/// Holds the leases of one worker and cuts batches from them.
///
/// The training loop takes a batch, then [commits](Self::commit) or [aborts](Self::abort) it. Several batches
/// may be taken at a time; they are aborted in reverse order, the last one first.
#[derive(Debug, Clone, Default)]
pub struct Batcher {
    /// Samples that are leased and in no batch.
    unread: u64,
    /// Leases held that were adopted under another name, by which batches that are out may know them: old and new.
    renamed: Vec<(LeaseId, LeaseId)>,
    /// In the order in which they were granted.
    held: NearQueue<Reading>,
}

impl Batcher {
    /// Returns a batcher without leases.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of samples that are leased and in no batch yet.
    pub const fn unread(&self) -> u64 {
        self.unread
    }

    /// Returns the samples that are leased and in no batch yet, in the order in which batches take them.
    pub fn upcoming(&self) -> impl Iterator<Item = u64> {
        let unread = self.held.iter().filter(|held| held.read < held.grant.len);
        let rest = |held: &Reading| Fragment { grant: held.grant, from: held.read, to: held.grant.len };
        unread.flat_map(move |held| rest(held).samples())
    }

    /// Returns the number of leases held.
    pub fn leases(&self) -> usize {
        self.held.len()
    }

    /// Returns whether the worker holds this lease.
    pub fn holds(&self, lease: LeaseId) -> bool {
        self.held.iter().any(|held| held.grant.lease == lease)
    }

    /// Adds a granted lease. A grant of a lease that is held already is a repetition and changes nothing.
    pub fn granted(&mut self, grant: Grant) {
        if self.held.iter().all(|held| held.grant.lease != grant.lease) {
            let at = grant.resume_at.min(grant.len);
            self.held.push_back(Reading { grant, read: at, committed: at });
            self.unread += grant.len - at;
        }
    }

    /// Returns the next batch, of `want` samples; of fewer if fewer are leased.
    pub fn take(&mut self, want: u64) -> Batch {
        let mut batch = Batch::default();
        let mut missing = want;
        for held in self.held.iter_mut() {
            let take = missing.min(held.grant.len - held.read);
            if take == 0 {
                continue;
            }
            batch.fragments.push(Fragment { grant: held.grant, from: held.read, to: held.read + take });
            held.read += take;
            missing -= take;
            if missing == 0 {
                break;
            }
        }
        self.unread -= want - missing;
        batch
    }

    /// Records that the batch is part of the model. Returns the leases whose last sample was in it; the
    /// batcher no longer holds them. The caller presents them again if the shard service restarts before it
    /// has received their acknowledgements.
    pub fn commit(&mut self, batch: &Batch) -> SmallVec<[Held; 1]> {
        let mut done = SmallVec::new();
        for fragment in &batch.fragments {
            let lease = self.name_of(fragment.grant.lease);
            let place = self.held.iter().position(|held| held.grant.lease == lease);
            let Some((place, held)) = place.and_then(|place| Some((place, self.held.get_mut(place)?))) else {
                continue;
            };
            held.committed = held.committed.max(fragment.to);
            if held.committed >= held.grant.len {
                done.push(held.as_held());
                self.unread -= held.grant.len - held.read;
                self.held.remove(place);
            }
        }
        self.forget_names();
        done
    }

    /// Records that the batch is not part of the model: its samples are read again, in the same order.
    pub fn abort(&mut self, batch: &Batch) {
        for fragment in batch.fragments.iter().rev() {
            let lease = self.name_of(fragment.grant.lease);
            if let Some(held) = self.held.iter_mut().find(|held| held.grant.lease == lease) {
                self.unread += held.read.saturating_sub(fragment.from);
                held.read = held.read.min(fragment.from);
            }
        }
        self.forget_names();
    }

    /// Drops the names of leases that are no longer held.
    fn forget_names(&mut self) {
        let held = &self.held;
        self.renamed.retain(|(_, new)| held.iter().any(|held| held.grant.lease == *new));
    }

    /// Drops a lease that the shard service has ended. Commits of its samples have no effect any more.
    pub fn revoke(&mut self, lease: LeaseId) {
        self.held.retain_mut(|held| held.grant.lease != lease);
        self.count();
    }

    /// Counts what is unread anew, when leases are gone.
    fn count(&mut self) {
        self.unread = self.held.iter().map(|held| held.grant.len - held.read).sum();
    }

    /// Gives up those of `leases` of which no sample is in a batch yet, so that other workers can train them
    /// at once. Returns the leases that were given up.
    pub fn recall(&mut self, leases: &[LeaseId]) -> Vec<Held> {
        if leases.is_empty() {
            return Vec::new();
        }
        let unstarted = |held: &Reading| {
            held.read == held.grant.resume_at
                && held.committed == held.read
                && leases.contains(&held.grant.lease)
        };
        let given_up = self.held.iter().filter(|held| unstarted(held));
        let given_up = given_up.map(Reading::as_held).collect();
        self.held.retain_mut(|held| !unstarted(held));
        self.count();
        given_up
    }

    /// Returns every lease with its committed offset: the worker presents them to a shard service that was
    /// restarted.
    pub fn held(&self) -> Vec<Held> {
        self.held.iter().map(Reading::as_held).collect()
    }

    /// Takes a restarted service's answers to the leases that were [presented](Self::held), in the same
    /// order. An adopted lease gets its new id, also in batches that are not committed yet; a lease that was
    /// not adopted is dropped.
    pub fn adopted(&mut self, answers: &[Option<Grant>]) {
        let mut answers = answers.iter();
        let renamed = &mut self.renamed;
        self.held.retain_mut(|held| {
            let Some(grant) = answers.next().copied().flatten() else { return false };
            for (_, new) in renamed.iter_mut().filter(|(_, new)| *new == held.grant.lease) {
                *new = grant.lease;
            }
            renamed.push((held.grant.lease, grant.lease));
            held.grant.lease = grant.lease;
            true
        });
        self.count();
    }

    /// Returns the present id of a lease. A batch that is not committed yet may know the lease by an older id.
    pub fn name_of(&self, lease: LeaseId) -> LeaseId {
        self.renamed.iter().find(|(old, _)| *old == lease).map_or(lease, |(_, new)| *new)
    }

    /// Gives up every lease. Returns the leases with their committed offsets.
    pub fn release(&mut self) -> Vec<Held> {
        self.unread = 0;
        std::mem::take(&mut self.held).iter().map(Reading::as_held).collect()
    }
}

#[cfg(test)]
mod tests;
