//! A ledger that is obviously right: every sample is a flag, every lease that ever was is in a list, and every
//! question is answered by looking at all of them. It shares no code with the real one but the orders of the spec.

use std::collections::BTreeMap;

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, LeaseId, NodeId,
    RequestId, Role, ShardKey,
};

use crate::error::{AckError, FetchError, RegisterError};
use crate::ledger::Outstanding;
use crate::spec::{Assignment, DatasetSpec, Epochs, OnQuarantine};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Todo,
    Doing(LeaseId),
    Done,
    Quarantined,
}

#[derive(Debug, Clone)]
struct Shard {
    share: u64,
    position: u64,
    key: ShardKey,
    start: u64,
    acked: Vec<bool>,
    faults: u32,
    state: State,
}

impl Shard {
    fn offset(&self) -> u64 {
        self.acked.iter().take_while(|done| **done).count() as u64
    }
    fn len(&self) -> u64 {
        self.acked.len() as u64
    }
}

#[derive(Debug, Clone)]
struct Lease {
    id: LeaseId,
    holder: Holder,
    key: ShardKey,
    /// Running number of its completion.
    completed: Option<usize>,
}

/// The reference model. Finite data sets only; everything is materialised.
#[derive(Debug, Clone)]
pub struct NaiveLedger {
    spec: DatasetSpec,
    generation: Generation,
    shards: Vec<Shard>,
    opened: Vec<u32>,
    leases: Vec<Lease>,
    completions: usize,
    fences: BTreeMap<NodeId, Incarnation>,
    live: BTreeMap<NodeId, Incarnation>,
    grants: BTreeMap<Holder, (RequestId, Grant)>,
}

impl NaiveLedger {
    /// Nothing has happened yet.
    ///
    /// # Panics
    /// If the spec is invalid or has no end.
    pub fn new(spec: DatasetSpec, generation: Generation) -> Self {
        spec.validate().expect("the model is for valid data sets");
        assert_ne!(spec.epochs, Epochs::Infinite, "the model materialises every epoch");
        let shares = match spec.assignment {
            Assignment::Dynamic => 1,
            Assignment::Static { workers } => workers as usize,
        };
        Self {
            spec,
            generation,
            shards: Vec::new(),
            opened: vec![0; shares],
            leases: Vec::new(),
            completions: 0,
            fences: BTreeMap::new(),
            live: BTreeMap::new(),
            grants: BTreeMap::new(),
        }
    }

    fn epochs(&self) -> u32 {
        match self.spec.epochs {
            Epochs::Finite(epochs) => epochs,
            Epochs::Infinite => unreachable!("refused by new"),
        }
    }

    /// Positions of a share: those `p` for which share `s` is the first with `p < K·(s + 1)/n`.
    fn share_positions(&self, share: usize) -> Vec<u64> {
        let (k, n) = (self.spec.shard_count(), self.opened.len() as u64);
        (0..k).filter(|p| (0..n).find(|s| *p < k * (s + 1) / n) == Some(share as u64)).collect()
    }

    fn fenced(&self, holder: Holder) -> Option<Incarnation> {
        self.fences.get(&holder.node).copied().filter(|through| holder.incarnation <= *through)
    }

    /// As the real one.
    ///
    /// # Errors
    /// As the real one.
    pub fn register(&mut self, holder: Holder) -> Result<Generation, RegisterError> {
        let node = holder.node;
        if node.role == Role::Server {
            return Err(RegisterError::NotAWorker { node });
        }
        if let Assignment::Static { workers } = self.spec.assignment
            && node.index >= workers
        {
            return Err(RegisterError::NoShare { node, workers });
        }
        if let Some(through) = self.fenced(holder) {
            return Err(RegisterError::Fenced { holder, through });
        }
        for older in 0..holder.incarnation.0 {
            self.worker_lost(Holder::new(node, Incarnation(older)));
        }
        self.live.insert(node, holder.incarnation);
        Ok(self.generation)
    }

    /// As the real one.
    ///
    /// # Errors
    /// As the real one.
    pub fn fetch(
        &mut self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
    ) -> Result<FetchOutcome, FetchError> {
        if generation != self.generation {
            return Err(FetchError::WrongGeneration { given: generation, current: self.generation });
        }
        if let Some(through) = self.fenced(holder) {
            return Err(FetchError::Fenced { holder, through });
        }
        if self.live.get(&holder.node) != Some(&holder.incarnation) {
            return Err(FetchError::UnknownHolder { holder });
        }
        if let Some((last, grant)) = self.grants.get(&holder) {
            if *last == request {
                return Ok(FetchOutcome::Granted(*grant));
            }
            if *last > request {
                return Err(FetchError::OldRequest { holder, request, last: *last });
            }
        }
        let limit = match self.spec.on_quarantine {
            OnQuarantine::FailJob => 0,
            OnQuarantine::Continue { max_samples } => max_samples,
        };
        let given_up = self.shards.iter().filter(|shard| shard.state == State::Quarantined);
        let samples: u64 = given_up.clone().map(|shard| shard.len() - shard.offset()).sum();
        if samples > limit {
            let first = given_up.min_by_key(|shard| (shard.key.epoch, shard.position)).map(|shard| shard.key);
            return Err(FetchError::Quarantined { key: first.expect("samples > 0"), samples, limit });
        }
        let held = self.outstanding().iter().filter(|lease| lease.holder == holder).count();
        if held >= self.spec.max_leases_per_holder as usize {
            return Ok(FetchOutcome::AtLimit);
        }
        let share = match self.spec.assignment {
            Assignment::Dynamic => 0,
            Assignment::Static { .. } => holder.node.index as usize,
        };
        self.open_if_due(share);
        let mine =
            self.shards.iter_mut().filter(|shard| shard.share == share as u64 && shard.state == State::Todo);
        let Some(shard) = mine.min_by_key(|shard| (shard.key.epoch, shard.position)) else {
            return Ok(if self.is_finished() {
                FetchOutcome::EndOfData
            } else {
                FetchOutcome::Wait { retry_after: std::time::Duration::from_secs(1) }
            });
        };
        let lease = LeaseId { generation, sequence: self.leases.len() as u64 + 1 };
        shard.state = State::Doing(lease);
        let grant = Grant {
            lease,
            key: shard.key,
            start: shard.start,
            len: shard.len(),
            resume_at: shard.offset(),
            seed: self.spec.sample_seed(shard.key),
        };
        self.leases.push(Lease { id: lease, holder, key: shard.key, completed: None });
        self.grants.insert(holder, (request, grant));
        Ok(FetchOutcome::Granted(grant))
    }

    fn open_if_due(&mut self, share: usize) {
        let of_share = self.shards.iter().filter(|shard| shard.share == share as u64);
        if of_share.clone().any(|shard| shard.state == State::Todo) || self.opened[share] == self.epochs() {
            return;
        }
        let open = of_share.filter(|shard| matches!(shard.state, State::Todo | State::Doing(_)));
        let mut unclosed: Vec<Epoch> = open.map(|shard| shard.key.epoch).collect();
        unclosed.sort_unstable();
        unclosed.dedup();
        if unclosed.len() > self.spec.epoch_overlap as usize {
            return;
        }
        let epoch = Epoch(self.opened[share]);
        let order = self.spec.shard_order(epoch);
        for position in self.share_positions(share) {
            let key = ShardKey { epoch, index: order.at(position) };
            let samples: Vec<u64> =
                (0..self.spec.num_samples).filter(|s| s / self.spec.shard_len == key.index).collect();
            self.shards.push(Shard {
                share: share as u64,
                position,
                key,
                start: samples[0],
                acked: vec![false; samples.len()],
                faults: 0,
                state: State::Todo,
            });
        }
        self.opened[share] += 1;
    }

    fn doing(&mut self, holder: Holder, lease: LeaseId) -> Option<&mut Shard> {
        let owner = self.leases.iter().find(|l| l.id == lease)?.holder;
        self.shards.iter_mut().find(|shard| owner == holder && shard.state == State::Doing(lease))
    }

    fn checked(&mut self, holder: Holder, acks: &[Ack]) -> Result<(), AckError> {
        if acks.is_empty() {
            return Err(AckError::Empty);
        }
        for (i, ack) in acks.iter().enumerate() {
            let Ack { lease, offset } = *ack;
            if let Some(shard) = self.doing(holder, lease) {
                let (have, len) = (shard.offset(), shard.len());
                if offset < have {
                    return Err(AckError::OffsetRegression { lease, offset, have });
                }
                if offset > len {
                    return Err(AckError::OffsetOutOfRange { lease, offset, len });
                }
            }
            if let Some(before) =
                acks[..i].iter().rev().find(|a| a.lease == lease).filter(|a| a.offset > offset)
            {
                return Err(AckError::OffsetRegression { lease, offset, have: before.offset });
            }
        }
        Ok(())
    }

    fn ack_one(&mut self, holder: Holder, ack: Ack) -> AckOutcome {
        let live = self.live.get(&holder.node) == Some(&holder.incarnation);
        let cap = self.spec.max_leases_per_holder as usize;
        if let Some(shard) = self.doing(holder, ack.lease) {
            shard
                .acked
                .iter_mut()
                .take(usize::try_from(ack.offset).expect("small"))
                .for_each(|done| *done = true);
            if shard.offset() == shard.len() {
                shard.state = State::Done;
                self.completions += 1;
                let completions = self.completions;
                let lease = self.leases.iter_mut().find(|l| l.id == ack.lease).expect("it is being done");
                lease.completed = Some(completions);
            }
            return AckOutcome::Accepted;
        }
        // The last few leases that this very life completed are remembered.
        let mut completed: Vec<&Lease> =
            self.leases.iter().filter(|l| l.holder == holder && l.completed.is_some()).collect();
        completed.sort_unstable_by_key(|l| std::cmp::Reverse(l.completed));
        let lease = completed.into_iter().take(cap).find(|l| l.id == ack.lease);
        let len = lease.and_then(|l| self.shards.iter().find(|shard| shard.key == l.key)).map(Shard::len);
        if live && len == Some(ack.offset) { AckOutcome::Accepted } else { AckOutcome::StaleLease }
    }

    /// As the real one.
    ///
    /// # Errors
    /// As the real one.
    pub fn ack_all(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.checked(holder, acks)?;
        Ok(acks.iter().map(|ack| self.ack_one(holder, *ack)).collect())
    }

    /// As the real one.
    ///
    /// # Errors
    /// As the real one.
    pub fn release(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.checked(holder, acks)?;
        let mut outcomes = Vec::new();
        for ack in acks {
            outcomes.push(self.ack_one(holder, *ack));
            if let Some(shard) = self.doing(holder, ack.lease) {
                shard.state = State::Todo;
            }
        }
        Ok(outcomes)
    }

    /// As the real one.
    ///
    /// # Errors
    /// As the real one.
    pub fn fail(&mut self, holder: Holder, ack: Ack) -> Result<AckOutcome, AckError> {
        self.checked(holder, &[ack])?;
        let most = self.spec.max_data_faults;
        let Some(shard) = self.doing(holder, ack.lease) else {
            return Ok(AckOutcome::StaleLease);
        };
        if ack.offset == shard.len() {
            return Err(AckError::OffsetOutOfRange {
                lease: ack.lease,
                offset: ack.offset,
                len: shard.len(),
            });
        }
        shard
            .acked
            .iter_mut()
            .take(usize::try_from(ack.offset).expect("small"))
            .for_each(|done| *done = true);
        shard.faults += 1;
        shard.state = if shard.faults == most { State::Quarantined } else { State::Todo };
        Ok(AckOutcome::Accepted)
    }

    /// As the real one.
    pub fn worker_lost(&mut self, holder: Holder) {
        if holder.node.role == Role::Server {
            return;
        }
        let fence = self.fences.entry(holder.node).or_insert(holder.incarnation);
        *fence = (*fence).max(holder.incarnation);
        self.live.retain(|node, live| *node != holder.node || *live > holder.incarnation);
        for lease in self.outstanding() {
            if lease.holder.node == holder.node && lease.holder.incarnation <= holder.incarnation {
                self.doing(lease.holder, lease.lease).expect("it is outstanding").state = State::Todo;
            }
        }
    }

    /// A copy with every lease void.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let mut copy = self.clone();
        for shard in &mut copy.shards {
            if matches!(shard.state, State::Doing(_)) {
                shard.state = State::Todo;
            }
        }
        copy.leases.clear();
        copy.live.clear();
        copy.grants.clear();
        copy
    }

    /// As the real one, with a generation that is known to be new.
    pub fn restore(&mut self, snapshot: &Self, generation: Generation) {
        let mut fences = snapshot.fences.clone();
        for (node, through) in &self.fences {
            let fence = fences.entry(*node).or_insert(*through);
            *fence = (*fence).max(*through);
        }
        *self = Self { generation, fences, ..snapshot.clone() };
    }

    /// By counting.
    pub fn counts(&self) -> Counts {
        let all = (0..self.epochs()).filter_map(|epoch| self.epoch_counts(Epoch(epoch)));
        all.fold(Counts::default(), |a, b| Counts {
            total: a.total + b.total,
            acked: a.acked + b.acked,
            todo: a.todo + b.todo,
            doing: a.doing + b.doing,
            quarantined: a.quarantined + b.quarantined,
        })
    }

    /// By counting.
    pub fn epoch_counts(&self, epoch: Epoch) -> Option<Counts> {
        if epoch.0 >= self.epochs() {
            return None;
        }
        let mut counts = Counts { total: self.spec.num_samples, ..Counts::default() };
        for shard in self.shards.iter().filter(|shard| shard.key.epoch == epoch) {
            let left = shard.len() - shard.offset();
            counts.acked += shard.offset();
            match shard.state {
                State::Todo => counts.todo += left,
                State::Doing(_) => counts.doing += left,
                State::Done => assert_eq!(left, 0, "a shard is done with samples left"),
                State::Quarantined => counts.quarantined += left,
            }
        }
        // Shards of this epoch that no share has opened yet.
        counts.todo += counts.total - counts.acked - counts.todo - counts.doing - counts.quarantined;
        Some(counts)
    }

    /// Whether every shard of every epoch was opened and has ended.
    pub fn is_finished(&self) -> bool {
        let shares = 0..self.opened.len();
        shares.into_iter().all(|s| self.opened[s] == self.epochs() || self.share_positions(s).is_empty())
            && self.shards.iter().all(|shard| matches!(shard.state, State::Done | State::Quarantined))
    }

    /// The live leases, oldest first.
    pub fn outstanding(&self) -> Vec<Outstanding> {
        let doing = |lease: &Lease| {
            let shard = self.shards.iter().find(|shard| shard.state == State::Doing(lease.id))?;
            let (key, offset, len) = (shard.key, shard.offset(), shard.len());
            Some(Outstanding { lease: lease.id, holder: lease.holder, key, offset, len })
        };
        self.leases.iter().filter_map(doing).collect()
    }

    /// Waiting shards of open epochs with their offsets and faults, by key.
    pub fn todo(&self) -> BTreeMap<ShardKey, (u64, u32)> {
        let todo = self.shards.iter().filter(|shard| shard.state == State::Todo);
        todo.map(|shard| (shard.key, (shard.offset(), shard.faults))).collect()
    }

    /// Shards that were given up, with their offsets, by key.
    pub fn quarantined(&self) -> BTreeMap<ShardKey, u64> {
        let quarantined = self.shards.iter().filter(|shard| shard.state == State::Quarantined);
        quarantined.map(|shard| (shard.key, shard.offset())).collect()
    }
}
