//! The durable part of a ledger: which samples are done, which are quarantined, and which incarnations are
//! fenced.
//!
//! The book knows no leases. [`Record`]s are applied to it, snapshots are copies of it, and the ledger moves
//! shards in and out of it.

use std::collections::BTreeMap;

use antdt_core::{Epoch, Generation, Incarnation, InvalidValue, NodeId, Seed, ShardKey};

use super::account::{Account, Move};
use super::pass::{Begun, Pass};
use super::record::Record;
use crate::error::RecoverError;
use crate::spec::DatasetSpec;

/// One part of each epoch's order, and the passes over it that are not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Epochs opened so far.
    pub(super) opened: u32,
    /// Ascending, at most `epoch_overlap + 1`.
    pub(super) open: Vec<Pass>,
}

/// Where a shard is in the book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) epoch: Epoch,
    pub(crate) position: u64,
}

/// A leased shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) share: u32,
    pub(crate) place: Place,
    pub(crate) key: ShardKey,
    /// Number of samples in the shard.
    pub(crate) len: u64,
    pub(crate) begun: Begun,
}

impl Taken {
    /// Samples that are not done.
    pub(crate) const fn left(&self) -> u64 {
        self.len - self.begun.offset
    }
}

/// What an ack made of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The shard has samples left.
    Begun,
    /// The shard is done.
    Done,
    /// The shard is done, and was the last of its share's pass over the epoch.
    Closed,
}

/// A shard that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) key: ShardKey,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Book {
    pub(crate) spec: DatasetSpec,
    /// The newest generation that was begun.
    pub(crate) generation: Option<Generation>,
    /// The newest generation whose leases a restore made void for good: the model went back with them.
    pub(crate) restored: Option<Generation>,
    pub(super) shares: Vec<Share>,
    /// Shares that have shards left, now or in epochs to come.
    pub(super) unfinished: u32,
    pub(super) quarantined: BTreeMap<Place, GivenUp>,
    /// The newest life of each node that has ended.
    pub(super) fences: BTreeMap<NodeId, Incarnation>,
    pub(super) account: Account,
}

impl Book {
    pub(crate) fn new(spec: DatasetSpec) -> Result<Self, InvalidValue> {
        spec.validate()?;
        let limit = spec.epoch_limit();
        let shares: Vec<Share> = (0..spec.share_count())
            .map(|share| {
                let (start, end) = spec.share_bounds(share);
                // With fewer shards than shares some are empty and have nothing to open.
                Share { start, end, opened: if start == end { limit } else { 0 }, open: Vec::new() }
            })
            .collect();
        let unfinished = shares.iter().filter(|share| share.opened < limit).count();
        let unfinished = u32::try_from(unfinished).expect("share_count is a u32");
        let account = Account::new(&spec);
        let (quarantined, fences) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { spec, generation: None, restored: None, shares, unfinished, quarantined, fences, account })
    }

    /// The same account under settings that hand out the same, perhaps for more epochs, and in which no node has lived yet.
    pub(crate) fn for_new_job(&self, spec: DatasetSpec) -> Self {
        let limit = spec.epoch_limit();
        let mut shares = self.shares.clone();
        for share in &mut shares {
            if share.start == share.end {
                share.opened = limit;
            }
        }
        let unfinished = shares.iter().filter(|share| share.opened < limit || !share.open.is_empty()).count();
        Self {
            generation: None,
            restored: None,
            unfinished: u32::try_from(unfinished).expect("share_count is a u32"),
            shares,
            quarantined: self.quarantined.clone(),
            fences: BTreeMap::new(),
            account: self.account.for_epochs(&spec),
            spec,
        }
    }

    pub(crate) const fn account(&self) -> &Account {
        &self.account
    }

    pub(crate) const fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    pub(crate) fn quarantined(&self) -> impl Iterator<Item = &GivenUp> {
        self.quarantined.values()
    }

    pub(crate) fn fence(&self, node: NodeId) -> Option<Incarnation> {
        self.fences.get(&node).copied()
    }

    /// Ends a life of a node and all before it. `false` if that is old news.
    pub(crate) fn raise_fence(&mut self, node: NodeId, through: Incarnation) -> bool {
        if self.fences.get(&node).is_some_and(|fence| *fence >= through) {
            return false;
        }
        self.fences.insert(node, through);
        true
    }

    /// Takes the fences of another book where they are higher: no fence is ever lowered.
    pub(crate) fn merge_fences(&mut self, other: &Self) {
        for (node, through) in &other.fences {
            self.raise_fence(*node, *through);
        }
    }

    /// Opens the next epoch of a share if nothing of it waits, epochs remain, of which there are `most`, and few enough are unclosed.
    pub(crate) fn open_if_due(&mut self, share: u32, most: u32) -> Option<Epoch> {
        let state = &self.shares[share as usize];
        let due = state.opened < self.spec.epoch_limit().min(most)
            && state.open.len() <= self.spec.epoch_overlap as usize
            && !state.open.iter().any(Pass::has_todo);
        due.then(|| self.open(share))
    }

    fn open(&mut self, share: u32) -> Epoch {
        let state = &mut self.shares[share as usize];
        let epoch = Epoch(state.opened);
        state.open.push(Pass::open(&self.spec, epoch, state.start, state.end));
        state.opened += 1;
        self.account.open(epoch, &self.spec);
        epoch
    }

    /// Takes the first waiting shard of the oldest unclosed epoch of a share.
    pub(crate) fn take_first(&mut self, share: u32) -> Option<Taken> {
        let pass = self.shares[share as usize].open.iter_mut().find(|pass| pass.has_todo())?;
        let (position, begun) = pass.take_first()?;
        let place = Place { epoch: pass.epoch(), position };
        let key = pass.key(position);
        let taken = Taken { share, place, key, len: self.spec.shard(key.index).len(), begun };
        self.account.shift(place.epoch, Move::Grant, taken.left());
        Some(taken)
    }

    /// Takes a shard of a share if it waits at no more than `offset`, and has as many samples.
    pub(crate) fn take_at(&mut self, share: u32, key: ShardKey, offset: u64) -> Option<Taken> {
        let state = &self.shares[share as usize];
        let pass = state.open.iter().find(|pass| pass.epoch() == key.epoch)?;
        let position = pass.position_of(key.index)?;
        if !(state.start..state.end).contains(&position) || offset > self.spec.shard(key.index).len() {
            return None;
        }
        let taken = self.take(Place { epoch: key.epoch, position }).ok()?;
        if taken.begun.offset > offset {
            self.put_back(&taken);
            return None;
        }
        Some(taken)
    }

    /// Shards that wait in the open epochs of a share.
    pub(crate) fn waiting(&self, share: u32) -> u64 {
        self.shares[share as usize].open.iter().map(Pass::waiting).sum()
    }

    /// Where the seed of the samples of a taken shard comes from.
    pub(crate) fn sample_seed(&self, taken: &Taken) -> Option<Seed> {
        let open = &self.shares[taken.share as usize].open;
        let pass = open.iter().find(|pass| pass.epoch() == taken.place.epoch);
        pass.expect("a pass with a taken shard is open").sample_seed(taken.key)
    }

    fn pass_mut(&mut self, taken: &Taken) -> &mut Pass {
        let open = &mut self.shares[taken.share as usize].open;
        let pass = open.iter_mut().find(|pass| pass.epoch() == taken.place.epoch);
        pass.expect("a pass with a taken shard is open")
    }

    /// Samples of a taken shard up to `offset` are done. If that is all of them, the shard is gone.
    pub(crate) fn ack(&mut self, taken: &mut Taken, offset: u64) -> After {
        self.account.shift(taken.place.epoch, Move::Ack, offset - taken.begun.offset);
        taken.begun.offset = offset;
        if offset == taken.len { self.end(taken.share as usize, taken.place.epoch) } else { After::Begun }
    }

    /// A taken shard waits again.
    pub(crate) fn put_back(&mut self, taken: &Taken) {
        self.pass_mut(taken).put_back(taken.place.position, taken.begun);
        self.account.shift(taken.place.epoch, Move::Return, taken.left());
    }

    /// A data fault of a taken shard: it waits again or is given up, whichever its count says.
    pub(crate) fn fault(&mut self, mut taken: Taken) {
        taken.begun.faults = taken.begun.faults.saturating_add(1);
        if taken.begun.faults < self.spec.max_data_faults {
            self.put_back(&taken);
            return;
        }
        let given_up = GivenUp { key: taken.key, offset: taken.begun.offset, len: taken.len };
        self.quarantined.insert(taken.place, given_up);
        self.account.shift(taken.place.epoch, Move::Quarantine, taken.left());
        self.end(taken.share as usize, taken.place.epoch);
    }

    /// A taken shard of a share will not come back.
    fn end(&mut self, share: usize, epoch: Epoch) -> After {
        let share = &mut self.shares[share];
        let pass = share.open.iter_mut().find(|pass| pass.epoch() == epoch);
        let pass = pass.expect("a pass with a taken shard is open");
        pass.end();
        if !pass.is_closed() {
            return After::Done;
        }
        share.open.retain(|pass| !pass.is_closed());
        if share.opened == self.spec.epoch_limit() && share.open.is_empty() {
            self.unfinished -= 1;
        }
        After::Closed
    }

    /// Applies one record of the log. The book is unchanged if it is refused.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<(), RecoverError> {
        let unfit = |why| RecoverError::Unfit { record: format!("{record:?}"), why };
        match record {
            Record::GenerationStarted { generation } => {
                if let Some(last) = self.generation.filter(|last| last >= generation) {
                    return Err(RecoverError::GenerationNotNewer { given: *generation, last });
                }
                self.generation = Some(*generation);
            }
            Record::EpochOpened { share, epoch } => {
                let state =
                    self.shares.get(*share as usize).ok_or_else(|| unfit("there is no such share"))?;
                if state.opened != epoch.0 || state.opened >= self.spec.epoch_limit() {
                    return Err(unfit("it is not the epoch that comes next"));
                }
                if state.open.len() > self.spec.epoch_overlap as usize {
                    return Err(unfit("too many earlier epochs are unclosed"));
                }
                self.open(*share);
            }
            Record::Acked { epoch, position, offset } => {
                let place = Place { epoch: *epoch, position: *position };
                self.ack_waiting(place, *offset).map_err(unfit)?;
            }
            Record::Failed { epoch, position } => {
                let taken = self.take(Place { epoch: *epoch, position: *position }).map_err(unfit)?;
                self.fault(taken);
            }
            Record::Fenced { node, through } => {
                self.raise_fence(*node, *through);
            }
            Record::Restored(snapshot) => {
                if snapshot.book.spec != self.spec {
                    return Err(RecoverError::SpecMismatch { name: self.spec.name.clone() });
                }
                let mut book = snapshot.book.clone();
                book.merge_fences(self);
                book.generation = book.generation.max(self.generation);
                // Whatever was out, at any time before now, was trained into a model that is no more.
                book.restored = book.generation;
                *self = book;
            }
            Record::Base(snapshot) => {
                if snapshot.book.spec != self.spec {
                    return Err(RecoverError::SpecMismatch { name: self.spec.name.clone() });
                }
                if self.generation.is_some() {
                    return Err(unfit("a base stands only at the beginning of a log"));
                }
                *self = snapshot.book.clone();
            }
        }
        Ok(())
    }

    /// Samples of a waiting shard up to `offset` are done: [`take`](Self::take), [`ack`](Self::ack) and, if some of it is
    /// left, [`put_back`](Self::put_back) in one.
    fn ack_waiting(&mut self, place: Place, offset: u64) -> Result<(), &'static str> {
        let (share, pass) = Self::find(&mut self.shares, place)?;
        let len = pass.len_at(&self.spec, place.position);
        let begun = pass.take(place.position).ok_or("the shard is done or given up")?;
        if offset <= begun.offset || offset > len {
            pass.put_back(place.position, begun);
            return Err("the offset lies outside what was left of the shard");
        }
        if offset < len {
            pass.put_back(place.position, Begun { offset, ..begun });
        }
        self.account.shift(place.epoch, Move::Replay, offset - begun.offset);
        if offset == len {
            self.end(share, place.epoch);
        }
        Ok(())
    }

    /// The pass to which a place belongs, and the index of its share.
    fn find(shares: &mut [Share], place: Place) -> Result<(usize, &mut Pass), &'static str> {
        let share = shares.partition_point(|share| share.end <= place.position);
        let state = shares.get_mut(share).ok_or("the epoch has no such position")?;
        let open = state.open.iter_mut().find(|pass| pass.epoch() == place.epoch);
        Ok((share, open.ok_or("the epoch is not open")?))
    }

    /// Takes a waiting shard by its place.
    fn take(&mut self, place: Place) -> Result<Taken, &'static str> {
        let (share, pass) = Self::find(&mut self.shares, place)?;
        let begun = pass.take(place.position).ok_or("the shard is done or given up")?;
        let key = pass.key(place.position);
        let share = u32::try_from(share).expect("share_count is a u32");
        let taken = Taken { share, place, key, len: self.spec.shard(key.index).len(), begun };
        self.account.shift(place.epoch, Move::Grant, taken.left());
        Ok(taken)
    }

    /// Unclosed epochs of each share, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn open_epochs(&self) -> impl Iterator<Item = usize> {
        self.shares.iter().map(|share| share.open.len())
    }

    /// Runs and single shards remembered for all open passes: what an epoch costs, for tests.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.shares.iter().flat_map(|share| &share.open).map(Pass::entries).sum()
    }

    /// Waiting shards of all open passes, for tests; O(waiting shards).
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn todo(&self) -> impl Iterator<Item = (ShardKey, Begun)> {
        let passes = self.shares.iter().flat_map(|share| &share.open);
        passes.flat_map(|pass| pass.todo().map(|(position, begun)| (pass.key(position), begun)))
    }
}
