//! What the ledger's questions, answers and records say of leases and shards: the notes that several checkers take.
//!
//! A checker trusts nothing but what it sees. So this keeps its own account instead of asking the ledger.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use antdt_core::{
    Ack, AckOutcome, CheckpointId, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, LeaseId,
    NodeId, RequestId, ShardKey,
};
use antdt_shard::ledger::{Answer, Event, Record};
use antdt_shard::{DatasetSpec, Epochs};

use crate::happening::Happening;

/// Finished leases remembered of each holder: the ledger accepts the repetition of an ack that finished one of its
/// last 1,024.
const FINISHED_MAX: usize = 1024;

/// A lease that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) holder: Holder,
    pub(super) grant: Grant,
    /// Samples `0..offset` of the shard are acknowledged.
    pub(super) offset: u64,
}

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All its samples are acknowledged.
    Done,
    /// Given back.
    Released,
    /// Its data cannot be read.
    Failed,
    /// Its holder ended.
    Lost,
    /// The service was started again.
    Void,
}

/// What an answer changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// A lease that did not exist before.
    Granted(Holder, Grant),
    /// An ack was accepted for a lease of another worker, or for an unheld lease that this worker did not finish.
    Odd(Holder, Ack),
    /// A lease is no more; as it was.
    Ended(Lease, Ended),
}

/// All live leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    live: BTreeMap<LeaseId, Lease>,
    of_node: BTreeMap<NodeId, BTreeSet<LeaseId>>,
    /// The request that a life was answered with shards last, and with which.
    answered: BTreeMap<Holder, (RequestId, Vec<LeaseId>)>,
    finished: BTreeMap<Holder, VecDeque<LeaseId>>,
    fences: BTreeMap<NodeId, Incarnation>,
    moves: Vec<Move>,
}

impl Leases {
    /// What this happening changed, in order.
    pub(super) fn saw(&mut self, what: &Happening<'_>) -> &[Move] {
        self.moves.clear();
        match what {
            Happening::Record(Record::GenerationStarted { .. }) => {
                for (_, lease) in std::mem::take(&mut self.live) {
                    self.moves.push(Move::Ended(lease, Ended::Void));
                }
                self.of_node.clear();
                self.answered.clear();
                self.finished.clear();
            }
            Happening::Ledger(event, answer) => self.answered(event, answer),
            _ => {}
        }
        &self.moves
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.live.len()
    }

    fn answered(&mut self, event: &Event, answer: &Answer) {
        match (event, answer) {
            (Event::Register { holder, held }, Answer::Register(Ok(registered))) => {
                if let Some(before) = holder.incarnation.0.checked_sub(1) {
                    self.lose(Holder::new(holder.node, Incarnation(before)));
                }
                for (_, adopted) in held.iter().zip(&registered.adopted) {
                    if let Some(grant) = adopted.filter(|grant| !self.live.contains_key(&grant.lease)) {
                        self.lend(*holder, grant);
                    }
                }
            }
            (Event::Exchange { holder, request, acks, .. }, Answer::Exchange(Ok(exchanged))) => {
                self.acked(*holder, acks, &exchanged.outcomes);
                if !matches!(exchanged.fetched, Some(FetchOutcome::Granted(_))) {
                    return;
                }
                let repeated = self.answered.get(holder).is_some_and(|(last, _)| last == request);
                let leases: Vec<LeaseId> = exchanged.grants().map(|grant| grant.lease).collect();
                if repeated && self.answered.get(holder).is_some_and(|(_, said)| *said == leases) {
                    return;
                }
                for grant in exchanged.grants() {
                    self.lend(*holder, grant);
                }
                self.answered.insert(*holder, (*request, leases));
            }
            (Event::Settle { holder, acks }, Answer::Ack(Ok(outcomes))) => {
                self.acked(*holder, acks, outcomes);
            }
            (Event::Release { holder, acks }, Answer::Ack(Ok(outcomes))) => {
                self.acked(*holder, acks, outcomes);
                for ack in acks {
                    self.end(*holder, ack.lease, Ended::Released);
                }
            }
            (Event::Fail { holder, ack }, Answer::Fail(Ok(outcome))) => {
                self.acked(*holder, &[*ack], &[*outcome]);
                self.end(*holder, ack.lease, Ended::Failed);
            }
            (Event::WorkerLost { holder }, Answer::WorkerLost) => self.lose(*holder),
            _ => {}
        }
    }

    fn lend(&mut self, holder: Holder, grant: Grant) {
        self.live.insert(grant.lease, Lease { holder, grant, offset: grant.resume_at });
        self.of_node.entry(holder.node).or_default().insert(grant.lease);
        self.moves.push(Move::Granted(holder, grant));
    }

    fn acked(&mut self, holder: Holder, acks: &[Ack], outcomes: &[AckOutcome]) {
        for (ack, _) in acks.iter().zip(outcomes).filter(|(_, outcome)| **outcome == AckOutcome::Accepted) {
            match self.live.get_mut(&ack.lease) {
                Some(lease) if lease.holder == holder => {
                    lease.offset = lease.offset.max(ack.offset);
                    if lease.offset >= lease.grant.len {
                        self.end(holder, ack.lease, Ended::Done);
                        let finished = self.finished.entry(holder).or_default();
                        finished.push_back(ack.lease);
                        if finished.len() > FINISHED_MAX {
                            finished.pop_front();
                        }
                    }
                }
                Some(_) => self.moves.push(Move::Odd(holder, *ack)),
                None => {
                    if !self.finished.get(&holder).is_some_and(|finished| finished.contains(&ack.lease)) {
                        self.moves.push(Move::Odd(holder, *ack));
                    }
                }
            }
        }
    }

    fn end(&mut self, holder: Holder, id: LeaseId, how: Ended) {
        if let Some(lease) = self.live.get(&id).copied().filter(|lease| lease.holder == holder) {
            self.live.remove(&id);
            if let Some(leases) = self.of_node.get_mut(&holder.node) {
                leases.remove(&id);
            }
            self.moves.push(Move::Ended(lease, how));
        }
    }

    /// This life and all before it ended.
    fn lose(&mut self, holder: Holder) {
        let fence = self.fences.entry(holder.node).or_insert(holder.incarnation);
        *fence = holder.incarnation.max(*fence);
        let through = *fence;
        self.answered.retain(|life, _| life.node != holder.node || life.incarnation > through);
        self.finished.retain(|life, _| life.node != holder.node || life.incarnation > through);
        let leases = self.of_node.get(&holder.node).into_iter().flatten();
        let ended: Vec<LeaseId> = leases
            .copied()
            .filter(|id| self.live.get(id).is_some_and(|lease| lease.holder.incarnation <= through))
            .collect();
        for id in ended {
            if let Some(lease) = self.live.get(&id).copied() {
                self.end(lease.holder, id, Ended::Lost);
            }
        }
    }

    /// The newest life of the node that ended, if `holder` is of that life or an earlier one.
    pub(super) fn fence(&self, holder: Holder) -> Option<Incarnation> {
        self.fences.get(&holder.node).copied().filter(|through| *through >= holder.incarnation)
    }

    /// Leases that the node has.
    pub(super) fn held(&self, node: NodeId) -> usize {
        self.of_node.get(&node).map_or(0, BTreeSet::len)
    }

    /// The live lease with this name.
    pub(super) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.live.get(&id)
    }

    /// Returns the holder of a lease on the shard. O(leases).
    pub(super) fn holder_of(&self, key: ShardKey) -> Option<Holder> {
        self.live.values().find(|lease| lease.grant.key == key).map(|lease| lease.holder)
    }

    /// Samples that are leased and not acknowledged. O(leases).
    pub(super) fn doing(&self) -> u64 {
        self.live.values().map(|lease| lease.grant.len - lease.offset).sum()
    }
}

/// What is acknowledged at one moment, and what is given up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Acknowledged samples of shards that are not complete.
    partial: BTreeMap<ShardKey, u64>,
    /// One bit for each complete shard, 64 shards of an epoch in a word.
    whole: BTreeMap<(Epoch, u64), u64>,
    faults: BTreeMap<ShardKey, u32>,
    acked: u64,
    quarantined: u64,
}

impl Done {
    /// Acknowledged samples.
    pub(super) const fn acked(&self) -> u64 {
        self.acked
    }

    fn has(&self, key: ShardKey) -> bool {
        let word = self.whole.get(&(key.epoch, key.index / 64));
        word.is_some_and(|bits| bits & (1 << (key.index % 64)) != 0)
    }
}

/// How far each shard is, by the ledger's records.
#[derive(Debug)]
pub(super) struct Progress {
    spec: DatasetSpec,
    done: Done,
    pub(super) generation: Generation,
    /// When the ledger was cut for checkpoints, and for the newest that is whole.
    cuts: BTreeMap<CheckpointId, Done>,
    kept: Done,
}

impl Progress {
    pub(super) fn new(spec: &DatasetSpec) -> Self {
        Self {
            spec: spec.clone(),
            done: Done::default(),
            generation: Generation::default(),
            cuts: BTreeMap::new(),
            kept: Done::default(),
        }
    }

    /// Acknowledged samples.
    pub(super) const fn acked(&self) -> u64 {
        self.done.acked
    }

    /// What is acknowledged in the newest whole checkpoint.
    pub(super) const fn kept(&self) -> &Done {
        &self.kept
    }

    /// Samples that are given up.
    pub(super) const fn quarantined(&self) -> u64 {
        self.done.quarantined
    }

    /// Samples of all epochs; `None` if there is no end.
    pub(super) fn total(&self) -> Option<u64> {
        match self.spec.epochs {
            Epochs::Finite(epochs) => Some(self.spec.num_samples * u64::from(epochs)),
            Epochs::Infinite => None,
        }
    }

    /// Whether every sample is acknowledged or given up.
    pub(super) fn is_finished(&self) -> bool {
        self.total() == Some(self.done.acked + self.done.quarantined)
    }

    /// Which shard a record is about; `None` if there is none at that position.
    pub(super) fn key(&self, epoch: Epoch, position: u64) -> Option<ShardKey> {
        let order = self.spec.shard_order(epoch);
        (position < order.len()).then(|| ShardKey { epoch, index: order.at(position) })
    }

    pub(super) fn len(&self, key: ShardKey) -> u64 {
        self.spec.shard(key.index).len()
    }

    /// Samples of the shard that are acknowledged.
    pub(super) fn offset(&self, key: ShardKey) -> u64 {
        self.offset_in(&self.done, key)
    }

    fn offset_in(&self, done: &Done, key: ShardKey) -> u64 {
        if done.has(key) { self.len(key) } else { done.partial.get(&key).copied().unwrap_or(0) }
    }

    pub(super) fn is_done(&self, key: ShardKey) -> bool {
        self.done.has(key)
    }

    pub(super) fn is_given_up(&self, key: ShardKey) -> bool {
        self.done.faults.get(&key).is_some_and(|faults| *faults >= self.spec.max_data_faults)
    }

    /// Takes in what happens, if it is about the ledger.
    ///
    /// # Errors
    /// If a record is about a shard that does not exist, or that is complete or given up, or goes back in it; or if the ledger
    /// goes back to another moment than that of the newest whole checkpoint, or of the start of the job.
    pub(super) fn saw(&mut self, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Record(record) => self.recorded(record)?,
            Happening::Cut(checkpoint) => {
                self.cuts.insert(*checkpoint, self.done.clone());
            }
            Happening::Kept(checkpoint) => {
                self.kept = self
                    .cuts
                    .remove(checkpoint)
                    .ok_or_else(|| format!("checkpoint {checkpoint} is whole without a cut of the ledger"))?;
                self.cuts = self.cuts.split_off(checkpoint);
            }
            Happening::Resumed(committed) => self.kept = committed.done.clone(),
            _ => {}
        }
        Ok(())
    }

    /// What the ledger had acknowledged of a shard when it was cut for this checkpoint.
    pub(super) fn at_cut(&self, checkpoint: CheckpointId, key: ShardKey) -> Option<u64> {
        self.cuts.get(&checkpoint).map(|done| self.offset_in(done, key))
    }

    /// What it had acknowledged in all.
    pub(super) fn acked_at_cut(&self, checkpoint: CheckpointId) -> Option<u64> {
        self.cuts.get(&checkpoint).map(|done| done.acked)
    }

    fn recorded(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::GenerationStarted { generation } => self.generation = *generation,
            Record::Acked { epoch, position, offset } => {
                let key = self.writable(*epoch, *position)?;
                let (before, len) = (self.offset(key), self.len(key));
                if *offset <= before || *offset > len {
                    return Err(format!(
                        "{} is acknowledged up to {offset} of {len} samples after {before}",
                        shard(key)
                    ));
                }
                self.done.acked += offset - before;
                if *offset == len {
                    self.done.partial.remove(&key);
                    *self.done.whole.entry((key.epoch, key.index / 64)).or_default() |= 1 << (key.index % 64);
                } else {
                    self.done.partial.insert(key, *offset);
                }
            }
            Record::Failed { epoch, position } => {
                let key = self.writable(*epoch, *position)?;
                *self.done.faults.entry(key).or_default() += 1;
                if self.is_given_up(key) {
                    self.done.quarantined += self.len(key) - self.offset(key);
                }
            }
            Record::Restored(snapshot) => {
                let (counts, kept) = (snapshot.counts(), &self.kept);
                if (counts.acked, counts.quarantined) != (kept.acked, kept.quarantined) {
                    let Done { acked, quarantined, .. } = kept;
                    return Err(format!(
                        "the ledger goes back to {counts:?}; the newest checkpoint has {acked} acknowledged samples and \
                         {quarantined} given up"
                    ));
                }
                self.done = self.kept.clone();
                self.cuts.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn writable(&self, epoch: Epoch, position: u64) -> Result<ShardKey, String> {
        let key = self
            .key(epoch, position)
            .ok_or_else(|| format!("there is no shard at position {position} of epoch {epoch}"))?;
        if self.is_done(key) {
            return Err(format!("{} is complete, and something is recorded of it", shard(key)));
        }
        if self.is_given_up(key) {
            return Err(format!("{} is given up, and something is recorded of it", shard(key)));
        }
        Ok(key)
    }
}

/// As people say it.
pub(super) fn shard(key: ShardKey) -> String {
    format!("shard {} of epoch {}", key.index, key.epoch)
}
