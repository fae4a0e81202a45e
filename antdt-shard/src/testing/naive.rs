//! A ledger that is obviously right: every sample is a flag, every lease ever granted is in a list, and every
//! question is answered by looking at all of them. It shares no code with the real one but the orders of the
//! spec.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, Exchanged, FetchOutcome, Generation, Grant, Held, Holder, Incarnation,
    LeaseId, NodeId, Permutation, Registered, RequestId, Role, SampleRange, ShardKey,
};

use crate::error::{AckError, ExchangeError, FetchError, RegisterError};
use crate::ledger::{Missing, MissingWhy, Outstanding, Record};
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine};

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
    /// The sample at each offset.
    samples: Vec<u64>,
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
    /// Samples below this offset are done. Whether that is news.
    fn reach(&mut self, offset: u64) -> bool {
        let news = offset > self.offset();
        self.acked.iter_mut().take(usize::try_from(offset).expect("small")).for_each(|done| *done = true);
        if self.offset() == self.len() {
            self.state = State::Done;
        }
        news
    }
    fn fault(&mut self, most: u32) {
        self.faults += 1;
        self.state = if self.faults == most { State::Quarantined } else { State::Todo };
    }
}

#[derive(Debug, Clone)]
struct Lease {
    id: LeaseId,
    holder: Holder,
    key: ShardKey,
    resumed_at: u64,
    /// Running number of its completion.
    completed: Option<usize>,
}

/// An entry in the log of a [`NaiveLedger`], from which it [recovers](NaiveLedger::recover).
#[derive(Debug, Clone)]
pub enum Note {
    /// A record that the real ledger must write to its log, too.
    Record(Record),
    /// The ledger was restored to this copy of itself.
    Restored(Box<NaiveLedger>),
}

/// A reference ledger for tests: slow, and simple enough to be obviously right. It lists every sample, so it
/// takes finite data sets only.
#[derive(Debug, Clone)]
pub struct NaiveLedger {
    spec: DatasetSpec,
    generation: Generation,
    shards: Vec<Shard>,
    opened: Vec<u32>,
    leases: Vec<Lease>,
    completions: usize,
    /// How many of a holder's completions are remembered.
    remembered: BTreeMap<Holder, usize>,
    fences: BTreeMap<NodeId, Incarnation>,
    live: BTreeMap<NodeId, Incarnation>,
    grants: BTreeMap<Holder, (RequestId, Vec<Grant>)>,
    idle: BTreeSet<NodeId>,
    frozen: bool,
    restored: Option<Generation>,
    notes: Vec<Note>,
}

impl NaiveLedger {
    /// Returns the ledger of a new data set.
    ///
    /// # Panics
    /// If the spec is invalid or has infinite epochs.
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
            remembered: BTreeMap::new(),
            fences: BTreeMap::new(),
            live: BTreeMap::new(),
            grants: BTreeMap::new(),
            idle: BTreeSet::new(),
            frozen: false,
            restored: None,
            notes: vec![Note::Record(Record::GenerationStarted { generation })],
        }
    }

    /// Returns the entries of the log, oldest first.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn note(&mut self, record: Record) {
        self.notes.push(Note::Record(record));
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

    /// Registers a worker, as [`ShardLedger::register`](crate::ShardLedger::register).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
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
        if holder.incarnation > Incarnation(0) {
            self.worker_lost(Holder::new(node, Incarnation(holder.incarnation.0 - 1)));
        }
        self.live.insert(node, holder.incarnation);
        Ok(self.generation)
    }

    /// Registers a worker with leases, as
    /// [`ShardLedger::register_holding`](crate::ShardLedger::register_holding).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
    pub fn register_holding(&mut self, holder: Holder, held: &[Held]) -> Result<Registered, RegisterError> {
        let known = self.live.contains_key(&holder.node) && self.live[&holder.node] == holder.incarnation;
        let generation = self.register(holder)?;
        let mut adopted = Vec::new();
        for held in held {
            let mine = self.outstanding().into_iter().find(|l| l.holder == holder && l.key == held.key);
            if let Some(mine) = mine {
                let shard = self.shards.iter().find(|shard| shard.key == held.key).expect("it is leased");
                adopted.push(Some(self.grant_of(mine.lease, shard)));
                continue;
            }
            let void = self.restored.is_some_and(|restored| held.lease.generation <= restored);
            let share = self.share_of(holder);
            let full = self.held(holder) >= self.spec.max_leases_per_holder as usize;
            let shard = self.shards.iter_mut().find(|shard| {
                shard.key == held.key
                    && shard.share == share as u64
                    && shard.state == State::Todo
                    && shard.offset() <= held.offset
                    && held.offset <= shard.len()
            });
            let Some(shard) =
                shard.filter(|_| !known && !void && !full && held.lease.generation < generation)
            else {
                adopted.push(None);
                continue;
            };
            let news = shard.reach(held.offset);
            let (key, position, state) = (shard.key, shard.position, shard.state);
            if news {
                self.note(Record::Acked { epoch: key.epoch, position, offset: held.offset });
            }
            adopted.push((state == State::Todo).then(|| self.lend(holder, key)));
        }
        Ok(Registered { generation, adopted })
    }

    fn held(&self, holder: Holder) -> usize {
        self.outstanding().iter().filter(|lease| lease.holder == holder).count()
    }

    fn share_of(&self, holder: Holder) -> usize {
        match self.spec.assignment {
            Assignment::Dynamic => 0,
            Assignment::Static { .. } => holder.node.index as usize,
        }
    }

    fn grant_of(&self, lease: LeaseId, shard: &Shard) -> Grant {
        Grant {
            lease,
            key: shard.key,
            start: shard.start,
            len: shard.len(),
            resume_at: shard.offset(),
            seed: self.spec.sample_seed(shard.key),
        }
    }

    fn lend(&mut self, holder: Holder, key: ShardKey) -> Grant {
        let id = LeaseId { generation: self.generation, sequence: self.leases.len() as u64 + 1 };
        let shard = self.shards.iter_mut().find(|shard| shard.key == key).expect("it is opened");
        shard.state = State::Doing(id);
        let resumed_at = shard.offset();
        self.leases.push(Lease { id, holder, key, resumed_at, completed: None });
        let shard = self.shards.iter().find(|shard| shard.key == key).expect("it is opened");
        self.grant_of(id, shard)
    }

    fn first_waiting(&self, share: usize) -> Option<ShardKey> {
        let todo = self.shards.iter().filter(|s| s.share == share as u64 && s.state == State::Todo);
        todo.min_by_key(|shard| (shard.key.epoch, shard.position)).map(|shard| shard.key)
    }

    fn check_caller(&self, holder: Holder, generation: Generation) -> Result<(), FetchError> {
        if generation != self.generation {
            return Err(FetchError::WrongGeneration { given: generation, current: self.generation });
        }
        if let Some(through) = self.fenced(holder) {
            return Err(FetchError::Fenced { holder, through });
        }
        if self.live.get(&holder.node) != Some(&holder.incarnation) {
            return Err(FetchError::UnknownHolder { holder });
        }
        Ok(())
    }

    fn check_request(&self, holder: Holder, request: RequestId) -> Result<(), FetchError> {
        if let Some((last, _)) = self.grants.get(&holder) {
            if *last == request {
                return Ok(());
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
        Ok(())
    }

    /// Asks for one shard, as [`ShardLedger::fetch`](crate::ShardLedger::fetch).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
    pub fn fetch(
        &mut self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
    ) -> Result<FetchOutcome, FetchError> {
        self.check_caller(holder, generation)?;
        self.check_request(holder, request)?;
        Ok(self.answer(holder, request, 1).0)
    }

    /// Acknowledges samples and asks for shards, as [`ShardLedger::exchange`](crate::ShardLedger::exchange).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
    pub fn exchange(
        &mut self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
        acks: &[Ack],
        want: u32,
    ) -> Result<Exchanged, ExchangeError> {
        self.check_caller(holder, generation)?;
        if want > 0 {
            self.check_request(holder, request)?;
        }
        if want == 0 || !acks.is_empty() {
            self.checked(holder, acks)?;
        }
        let outcomes = acks.iter().map(|ack| self.ack_one(holder, *ack, acks.len())).collect();
        let (mut fetched, mut more) = (None, Vec::new());
        if want > 0 {
            let answer = self.answer(holder, request, want);
            fetched = Some(answer.0);
            more = answer.1;
        }
        Ok(Exchanged { outcomes, fetched, more, recalled: self.recall(holder) })
    }

    fn recall(&self, holder: Holder) -> Vec<LeaseId> {
        if self.spec.assignment != Assignment::Dynamic {
            return Vec::new();
        }
        let others = self.idle.iter().filter(|node| **node != holder.node).count();
        let mut mine: Vec<&Lease> = self
            .leases
            .iter()
            .filter(|lease| self.outstanding().iter().any(|o| o.lease == lease.id && o.holder == holder))
            .collect();
        mine.sort_by_key(|lease| lease.id);
        let offset = |key| self.shards.iter().find(|shard| shard.key == key).expect("leased").offset();
        let unstarted = |lease: &&Lease| offset(lease.key) == lease.resumed_at;
        mine.into_iter().skip(1).rev().filter(unstarted).take(others).map(|lease| lease.id).collect()
    }

    fn answer(&mut self, holder: Holder, request: RequestId, want: u32) -> (FetchOutcome, Vec<Grant>) {
        if let Some((_, grants)) = self.grants.get(&holder).filter(|(last, _)| *last == request) {
            return (FetchOutcome::Granted(grants[0]), grants[1..].to_vec());
        }
        let room = (self.spec.max_leases_per_holder as usize).saturating_sub(self.held(holder));
        if room == 0 {
            return (FetchOutcome::AtLimit, Vec::new());
        }
        let wait = FetchOutcome::Wait { retry_after: std::time::Duration::from_secs(1) };
        if self.frozen {
            return (wait, Vec::new());
        }
        let share = self.share_of(holder);
        self.open_if_due(share);
        let Some(key) = self.first_waiting(share) else {
            if self.is_finished() {
                return (FetchOutcome::EndOfData, Vec::new());
            }
            self.idle.insert(holder.node);
            return (wait, Vec::new());
        };
        let mut grants = vec![self.lend(holder, key)];
        let waiting =
            self.shards.iter().filter(|s| s.share == share as u64 && s.state == State::Todo).count();
        let fair = waiting / (2 * self.live.len());
        while grants.len() < fair.min(room).min(want as usize) {
            let key = self.first_waiting(share).expect("fair counts those that wait");
            grants.push(self.lend(holder, key));
        }
        self.idle.remove(&holder.node);
        self.grants.insert(holder, (request, grants.clone()));
        (FetchOutcome::Granted(grants[0]), grants[1..].to_vec())
    }

    /// Stops granting shards until [`thaw`](Self::thaw), as
    /// [`ShardLedger::freeze`](crate::ShardLedger::freeze) does without a deadline.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Resumes granting shards, as [`ShardLedger::thaw`](crate::ShardLedger::thaw).
    pub fn thaw(&mut self) {
        self.frozen = false;
    }

    /// Returns the shard of a sample, by counting the ends before it.
    fn shard_of(&self, sample: u64) -> u64 {
        match &self.spec.cut {
            Cut::Every(len) => sample / len,
            Cut::At(ends) => ends.iter().filter(|end| **end <= sample).count() as u64,
        }
    }

    fn open_if_due(&mut self, share: usize) {
        let of_share = self.shards.iter().filter(|shard| shard.share == share as u64);
        let ended = self.opened[share] == self.epochs() || self.share_positions(share).is_empty();
        if ended || of_share.clone().any(|shard| shard.state == State::Todo) {
            return;
        }
        let open = of_share.filter(|shard| matches!(shard.state, State::Todo | State::Doing(_)));
        let mut unclosed: Vec<Epoch> = open.map(|shard| shard.key.epoch).collect();
        unclosed.sort_unstable();
        unclosed.dedup();
        if unclosed.len() > self.spec.epoch_overlap as usize {
            return;
        }
        self.note(Record::EpochOpened { share: share as u32, epoch: Epoch(self.opened[share]) });
        self.open(share);
    }

    fn open(&mut self, share: usize) {
        let epoch = Epoch(self.opened[share]);
        let order = self.spec.shard_order(epoch);
        for position in self.share_positions(share) {
            let key = ShardKey { epoch, index: order.at(position) };
            let samples: Vec<u64> =
                (0..self.spec.num_samples).filter(|s| self.shard_of(*s) == key.index).collect();
            let permuted =
                self.spec.sample_seed(key).map(|seed| Permutation::new(seed, samples.len() as u64));
            let at = |offset: usize| {
                let permuted = permuted.map(|order| usize::try_from(order.at(offset as u64)).expect("small"));
                samples[permuted.unwrap_or(offset)]
            };
            self.shards.push(Shard {
                share: share as u64,
                position,
                key,
                start: samples[0],
                samples: (0..samples.len()).map(at).collect(),
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

    fn ack_one(&mut self, holder: Holder, ack: Ack, acks: usize) -> AckOutcome {
        let live = self.live.get(&holder.node) == Some(&holder.incarnation);
        if let Some(shard) = self.doing(holder, ack.lease) {
            let news = shard.reach(ack.offset);
            let (key, position, state) = (shard.key, shard.position, shard.state);
            if news {
                self.note(Record::Acked { epoch: key.epoch, position, offset: ack.offset });
            }
            if state == State::Done {
                self.completions += 1;
                let completions = self.completions;
                let lease = self.leases.iter_mut().find(|l| l.id == ack.lease).expect("it is being done");
                lease.completed = Some(completions);
                self.remembered
                    .insert(holder, acks.clamp(16, 1024).min(self.spec.max_leases_per_holder as usize));
            }
            return AckOutcome::Accepted;
        }
        // The last few leases that this very life completed are remembered: the more, the more its last call spoke of.
        let cap = self.remembered.get(&holder).copied().unwrap_or_default();
        let mut completed: Vec<&Lease> =
            self.leases.iter().filter(|l| l.holder == holder && l.completed.is_some()).collect();
        completed.sort_unstable_by_key(|l| std::cmp::Reverse(l.completed));
        let lease = completed.into_iter().take(cap).find(|l| l.id == ack.lease);
        let len = lease.and_then(|l| self.shards.iter().find(|shard| shard.key == l.key)).map(Shard::len);
        if live && len == Some(ack.offset) { AckOutcome::Accepted } else { AckOutcome::StaleLease }
    }

    /// Acknowledges samples, as [`ShardLedger::ack_all`](crate::ShardLedger::ack_all).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
    pub fn ack_all(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.checked(holder, acks)?;
        Ok(acks.iter().map(|ack| self.ack_one(holder, *ack, acks.len())).collect())
    }

    /// Gives leases back, as [`ShardLedger::release`](crate::ShardLedger::release).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
    pub fn release(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.checked(holder, acks)?;
        let mut outcomes = Vec::new();
        for ack in acks {
            outcomes.push(self.ack_one(holder, *ack, acks.len()));
            if let Some(shard) = self.doing(holder, ack.lease) {
                shard.state = State::Todo;
            }
        }
        Ok(outcomes)
    }

    /// Reports a data fault, as [`ShardLedger::fail`](crate::ShardLedger::fail).
    ///
    /// # Errors
    /// As the method of [`ShardLedger`](crate::ShardLedger).
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
        let news = shard.reach(ack.offset);
        shard.fault(most);
        let (epoch, position) = (shard.key.epoch, shard.position);
        if news {
            self.note(Record::Acked { epoch, position, offset: ack.offset });
        }
        self.note(Record::Failed { epoch, position });
        Ok(AckOutcome::Accepted)
    }

    /// Declares a worker lost, as [`ShardLedger::worker_lost`](crate::ShardLedger::worker_lost).
    pub fn worker_lost(&mut self, holder: Holder) {
        if holder.node.role == Role::Server {
            return;
        }
        if self.fenced(holder).is_none() {
            self.note(Record::Fenced { node: holder.node, through: holder.incarnation });
            self.fences.insert(holder.node, holder.incarnation);
        }
        self.live.retain(|node, live| *node != holder.node || *live > holder.incarnation);
        if !self.live.contains_key(&holder.node) {
            self.idle.remove(&holder.node);
        }
        for lease in self.outstanding() {
            if lease.holder.node == holder.node && lease.holder.incarnation <= holder.incarnation {
                self.doing(lease.holder, lease.lease).expect("it is outstanding").state = State::Todo;
            }
        }
    }

    /// What a holder would be told that asks again, with a request that is new.
    pub(crate) fn would_answer(&self, holder: Holder) -> Result<FetchOutcome, FetchError> {
        let mut copy = Self {
            spec: self.spec.clone(),
            generation: self.generation,
            shards: self.shards.clone(),
            opened: self.opened.clone(),
            leases: self.leases.clone(),
            completions: self.completions,
            remembered: BTreeMap::new(),
            fences: self.fences.clone(),
            live: self.live.clone(),
            grants: BTreeMap::new(),
            idle: self.idle.clone(),
            frozen: self.frozen,
            restored: self.restored,
            notes: Vec::new(),
        };
        copy.fetch(holder, self.generation, RequestId(u64::MAX))
    }

    /// Returns a copy of this ledger with every lease void, and without its log.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let mut copy = self.clone();
        copy.notes.clear();
        copy.void();
        copy
    }

    /// A life of the service ends: no worker holds a lease, is registered or waits.
    fn void(&mut self) {
        for shard in &mut self.shards {
            if matches!(shard.state, State::Doing(_)) {
                shard.state = State::Todo;
            }
        }
        self.leases.clear();
        self.live.clear();
        self.grants.clear();
        self.idle.clear();
        self.frozen = false;
    }

    fn set_back(&mut self, snapshot: &Self) {
        let mut fences = snapshot.fences.clone();
        for (node, through) in &self.fences {
            let fence = fences.entry(*node).or_insert(*through);
            *fence = (*fence).max(*through);
        }
        // No lease of before, of either life, is worth anything now.
        let generation = self.generation.max(snapshot.generation);
        let notes = std::mem::take(&mut self.notes);
        *self = Self { generation, fences, restored: Some(generation), notes, ..snapshot.clone() };
    }

    /// Sets this ledger back to a copy, as [`ShardLedger::restore`](crate::ShardLedger::restore) does.
    /// `generation` must be a new one.
    pub fn restore(&mut self, snapshot: &Self, generation: Generation) {
        self.set_back(snapshot);
        self.generation = generation;
        self.notes.push(Note::Restored(Box::new(snapshot.clone())));
        self.note(Record::GenerationStarted { generation });
    }

    /// Returns the ledger as a restarted service recovers it from the first `kept` entries of the log.
    ///
    /// # Panics
    /// If `kept` is larger than the log, or an entry does not follow from those before it.
    #[must_use]
    pub fn recover(&self, kept: usize, generation: Generation) -> Self {
        let mut next = Self::new(self.spec.clone(), Generation(0));
        next.notes.clear();
        for note in &self.notes[..kept] {
            next.reread(note);
            next.notes.push(note.clone());
        }
        next.void();
        next.generation = generation;
        next.note(Record::GenerationStarted { generation });
        next
    }

    fn reread(&mut self, note: &Note) {
        let most = self.spec.max_data_faults;
        match note {
            Note::Restored(snapshot) => self.set_back(snapshot),
            Note::Record(Record::GenerationStarted { generation }) => self.generation = *generation,
            Note::Record(Record::EpochOpened { share, epoch }) => {
                assert_eq!(self.opened[*share as usize], epoch.0, "epochs open one after the other");
                self.open(*share as usize);
            }
            Note::Record(Record::Acked { epoch, position, offset }) => {
                self.at(*epoch, *position).reach(*offset);
            }
            Note::Record(Record::Failed { epoch, position }) => self.at(*epoch, *position).fault(most),
            Note::Record(Record::Fenced { node, through }) => {
                self.fences.insert(*node, *through);
            }
            Note::Record(record @ (Record::Base(_) | Record::Restored(_))) => {
                panic!("the model does not write {record:?}")
            }
        }
    }

    fn at(&mut self, epoch: Epoch, position: u64) -> &mut Shard {
        let mut shards = self.shards.iter_mut();
        shards.find(|s| (s.key.epoch, s.position) == (epoch, position)).expect("its epoch is open")
    }

    /// Returns the samples of an epoch that are not done, found by looking at every sample.
    pub fn missing(&self, epoch: Epoch) -> Vec<Missing> {
        let mut missing: Vec<Missing> = Vec::new();
        let samples = if epoch.0 < self.epochs() { self.spec.num_samples } else { 0 };
        for sample in 0..samples {
            let key = ShardKey { epoch, index: self.shard_of(sample) };
            let why = match self.shards.iter().find(|shard| shard.key == key) {
                None => MissingWhy::Waiting,
                Some(shard) => {
                    let offset = shard.samples.iter().position(|s| *s == sample).expect("it is in its shard");
                    match shard.state {
                        _ if shard.acked[offset] => continue,
                        State::Todo => MissingWhy::Waiting,
                        State::Doing(_) => MissingWhy::Leased,
                        State::Done => unreachable!("a shard is done with samples left"),
                        State::Quarantined => MissingWhy::Quarantined,
                    }
                }
            };
            match missing.last_mut().filter(|last| last.samples.end == sample && last.why == why) {
                Some(last) => last.samples.end += 1,
                None => {
                    let samples = SampleRange { start: sample, end: sample + 1 };
                    missing.push(Missing { epoch, samples, why });
                }
            }
        }
        missing
    }

    /// Returns the number of samples in each state, found by looking at every sample.
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

    /// Returns the number of samples of one epoch in each state; `None` if the job has no such epoch.
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

    /// Returns whether every epoch was opened, and each of its shards is done or quarantined.
    pub fn is_finished(&self) -> bool {
        let shares = 0..self.opened.len();
        shares.into_iter().all(|s| self.opened[s] == self.epochs() || self.share_positions(s).is_empty())
            && self.shards.iter().all(|shard| matches!(shard.state, State::Done | State::Quarantined))
    }

    /// Returns the live leases, oldest first.
    pub fn outstanding(&self) -> Vec<Outstanding> {
        let doing = |lease: &Lease| {
            let shard = self.shards.iter().find(|shard| shard.state == State::Doing(lease.id))?;
            let (key, offset, len) = (shard.key, shard.offset(), shard.len());
            Some(Outstanding { lease: lease.id, holder: lease.holder, key, offset, len })
        };
        self.leases.iter().filter_map(doing).collect()
    }

    /// Returns the waiting shards of open epochs by key, each with its offset and its number of data faults.
    pub fn todo(&self) -> BTreeMap<ShardKey, (u64, u32)> {
        let todo = self.shards.iter().filter(|shard| shard.state == State::Todo);
        todo.map(|shard| (shard.key, (shard.offset(), shard.faults))).collect()
    }

    /// Returns the quarantined shards by key, each with its offset.
    pub fn quarantined(&self) -> BTreeMap<ShardKey, u64> {
        let quarantined = self.shards.iter().filter(|shard| shard.state == State::Quarantined);
        quarantined.map(|shard| (shard.key, shard.offset())).collect()
    }
}
