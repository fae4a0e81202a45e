//! The state of every shard: its holder and its progress, such that no sample is lost or counted twice.
//!
//! A shard of an open epoch is TODO, DOING under one lease, DONE, or QUARANTINED after too many data faults:
//!
//! | from | event | to |
//! |---|---|---|
//! | – | its epoch opens | TODO at offset 0 |
//! | TODO | fetch | DOING under a new lease |
//! | DOING | ack of a part | DOING at that offset |
//! | DOING | ack of all | DONE |
//! | DOING | release | TODO at the offset, in front |
//! | DOING | the holder is lost | TODO at the last acked offset, in front; no fault is counted |
//! | DOING | fail | TODO in front with one fault more, or QUARANTINED |
//! | any | anything with a lease that has ended | unchanged: `StaleLease` |
//!
//! Read `book.rs` for what is remembered for ever, `pass.rs` for how little of an epoch that is, `record.rs` for the
//! log, and this file for leases and fences. Shards that came back are handed out before new shards, the
//! first in the epoch's order first.
//!
//! Source: the three states and the pull are AntDT's; leases, offsets, fences and quarantine are our design,
//! each an answer to a defect seen in `DLRover` (`tests/regressions.rs`). Tried and rejected: putting a lost shard at
//! the back of the queue, which lets it wait behind a whole epoch; and storing what is done, which grows with the job.

mod account;
mod book;
pub(crate) mod codec;
mod cut;
#[cfg(any(test, feature = "testing"))]
mod inspect;
mod leases;
mod machine;
mod missing;
mod pass;
mod ranges;
pub(crate) mod reader;
mod record;
mod report;
mod snapshot;
mod standing;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, Exchanged, FetchOutcome, Generation, Grant, Held, Holder, Incarnation,
    JobTime, LeaseId, Registered, RequestId, Role, ShardKey,
};

use self::book::{After, Book, Taken};
pub use self::cut::{CutBinding, LedgerCut};
use self::leases::Lease;
pub use self::machine::{Answer, Event, LedgerStatus};
pub use self::missing::{Missing, MissingWhy};
pub use self::record::{Record, Recovery};
pub use self::report::{Outstanding, Quarantined};
pub use self::snapshot::LedgerSnapshot;
use self::standing::{Answered, GenerationState, Member};
use crate::error::{AckError, ExchangeError, FetchError, RecoverError, RegisterError};
use crate::spec::{Assignment, DatasetSpec};

/// How long a holder that was told to wait may wait before it asks again, should no wake-up reach it. A larger one
/// delays the end of an epoch when a message is lost; a smaller one makes idle workers poll.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The state of all shards of one data set: which samples are done, and which worker holds which shard.
///
/// It takes O(outstanding leases + holes + nodes) memory, for any number of shards and epochs. Workers are
/// numbered from 0; a worker with a large number takes as much memory as a [`NodeMap`](antdt_core::NodeMap) says.
///
/// Every change queues the [`Record`]s that make it durable. Drain them with
/// [`poll_effect`](antdt_core::Machine::poll_effect) after every call, and release the answer when they are stored.
///
/// ```
/// use antdt_core::{Ack, FetchOutcome, Generation, Holder, Incarnation, NodeId, RequestId};
/// use antdt_shard::{DatasetSpec, ShardLedger};
///
/// let mut ledger = ShardLedger::new(DatasetSpec::new("clicks", 1_000, 100), Generation(1))?;
/// let holder = Holder::new(NodeId::worker(0), Incarnation(0));
/// let generation = ledger.register(holder)?;
/// let FetchOutcome::Granted(grant) = ledger.fetch(holder, generation, RequestId(1))? else { unreachable!() };
/// ledger.ack(holder, Ack { lease: grant.lease, offset: 60 })?;
///
/// // The node dies. Another worker gets the shard, and only the samples that are not done.
/// ledger.worker_lost(holder);
/// let heir = Holder::new(NodeId::worker(1), Incarnation(0));
/// ledger.register(heir)?;
/// let FetchOutcome::Granted(again) = ledger.fetch(heir, generation, RequestId(1))? else { unreachable!() };
/// assert_eq!((again.key, again.resume_at), (grant.key, 60));
/// assert_eq!(ledger.counts().acked, 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "DDS")]
#[derive(Debug, Clone)]
pub struct ShardLedger {
    book: Book,
    standing: GenerationState,
    records: VecDeque<Record>,
    wake: bool,
    /// Epochs that are handed out for now. Not durable: the caller sets it again.
    end_after: u32,
}

/// Effect of a call that the driver of the ledger must carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Effect {
    /// Store the record durably before releasing the answer to the same event.
    Record(Record),
    /// Tell workers that wait for a shard to ask again: one may be granted now.
    Wake,
}

impl ShardLedger {
    /// Returns the ledger of a new data set, in its first generation.
    ///
    /// # Errors
    /// If the data set cannot be registered.
    pub fn new(spec: DatasetSpec, generation: Generation) -> Result<Self, RecoverError> {
        Self::begin(Book::new(spec)?, generation)
    }

    fn standing(book: Book, standing: GenerationState, first: Record) -> Self {
        Self { book, standing, records: VecDeque::from([first]), wake: false, end_after: u32::MAX }
    }

    /// Registers an incarnation of a worker, which fences all its earlier ones, and returns the current
    /// generation. Repeating the call changes nothing.
    ///
    /// # Errors
    /// If that incarnation is fenced itself, the node is not a worker, or it has no share of the data.
    pub fn register(&mut self, holder: Holder) -> Result<Generation, RegisterError> {
        Ok(self.register_holding(holder, &[])?.generation)
    }

    /// Registers an incarnation that still holds leases of an earlier generation, as
    /// [`register`](Self::register) does. The ledger adopts the leases where that is safe: the shard gets a
    /// new lease, and the samples below the presented offset count as done. Safe means that
    ///
    /// - the ledger was not restored after the lease was granted, so the model that the samples went into is
    ///   still the one that is trained;
    /// - the shard waits, at an offset that is not beyond the presented one;
    /// - the worker stays within its lease cap, and this is its first registration in this generation. A
    ///   repeated one is answered with the leases that it has, so a late message cannot adopt leases without
    ///   the worker's knowledge.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_holding(&mut self, holder: Holder, held: &[Held]) -> Result<Registered, RegisterError> {
        let Holder { node, incarnation } = holder;
        if node.role != Role::Worker {
            return Err(RegisterError::NotAWorker { node });
        }
        let Some(share) = self.book.spec.share_of(node) else {
            return Err(RegisterError::NoShare { node, workers: self.book.spec.share_count() });
        };
        if let Some(through) = self.fence(holder) {
            return Err(RegisterError::Fenced { holder, through });
        }
        if let Some(before) = incarnation.0.checked_sub(1) {
            self.worker_lost(Holder::new(node, Incarnation(before)));
        }
        let first = !self.standing.members.contains(node);
        if first {
            self.standing.members.insert(node, Member::new(incarnation));
        }
        let adopt = |held: &Held| {
            let again = self.held_again(holder, held.key);
            if first && again.is_none() { self.adopt(holder, share, held) } else { again }
        };
        let adopted = held.iter().map(adopt).collect();
        Ok(Registered { generation: self.standing.generation, adopted })
    }

    /// The lease that a holder has on a shard, granted as it stands.
    fn held_again(&self, holder: Holder, key: ShardKey) -> Option<Grant> {
        let member = self.standing.members.get(holder.node)?;
        let lease = member.leases.iter().find(|lease| lease.taken.key == key)?;
        Some(self.grant(lease.sequence, &lease.taken))
    }

    fn adopt(&mut self, holder: Holder, share: u32, held: &Held) -> Option<Grant> {
        let void = self.book.restored.is_some_and(|restored| held.lease.generation <= restored);
        let has_room = self.standing.members.get(holder.node)?.held() < self.book.spec.max_leases_per_holder;
        if void || held.lease.generation >= self.standing.generation || !has_room {
            return None;
        }
        let mut taken = self.book.take_at(share, held.key, held.offset)?;
        if held.offset > taken.begun.offset {
            let (epoch, position) = (taken.place.epoch, taken.place.position);
            self.records.push_back(Record::Acked { epoch, position, offset: held.offset });
            let after = self.book.ack(&mut taken, held.offset);
            self.wake |= after == After::Closed;
            if after != After::Begun {
                return None; // Done. There is nothing left to hold.
            }
        }
        Some(self.lend(holder, taken))
    }

    /// Asks for one shard. Repeating the request that was last answered with a grant returns the same grant.
    ///
    /// # Errors
    /// If the worker must register, must exit, or sent an old request number, or if too many samples are
    /// unreadable.
    pub fn fetch(
        &mut self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
    ) -> Result<FetchOutcome, FetchError> {
        self.check_caller(holder, generation)?;
        Ok(self.fetch_many(holder, request, 1)?.0)
    }

    /// Acknowledges samples and asks for up to `want` shards, in one call. All acks are checked before any of
    /// them counts.
    ///
    /// With a `want` of 0 it only acknowledges. Otherwise the worker gets at most as many shards as its lease
    /// cap allows. Near the end of an epoch, when few shards wait, it gets no more than half of its equal
    /// part of them, so that the prefetch of a slow worker does not make the others wait (guided
    /// self-scheduling: Polychronopoulos and Kuck, 1987, recalled).
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch), but only for the caller's identity if `want` is 0; and as
    /// [`ack_all`](Self::ack_all), except that `acks` may be empty if `want` is not 0.
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
        if !acks.is_empty() || want == 0 {
            self.check_all(holder, acks)?;
        }
        let mut exchanged = Exchanged {
            outcomes: acks.iter().map(|ack| self.ack_checked(holder, *ack, acks.len())).collect(),
            ..Exchanged::default()
        };
        if want > 0 {
            let (fetched, more) = self.fetch_many(holder, request, want)?;
            exchanged.fetched = Some(fetched);
            exchanged.more = more;
        }
        exchanged.recalled = self.recall(holder);
        Ok(exchanged)
    }

    /// Whether the caller may say anything.
    fn check_caller(&self, holder: Holder, generation: Generation) -> Result<(), FetchError> {
        let current = self.standing.generation;
        if generation != current {
            return Err(FetchError::WrongGeneration { given: generation, current });
        }
        // A live member is not fenced: the fence that ends a life puts it out.
        let member = self.standing.members.get(holder.node);
        if member.is_none_or(|member| member.live != holder.incarnation) {
            let fenced = self.fence(holder).map(|through| FetchError::Fenced { holder, through });
            return Err(fenced.unwrap_or(FetchError::UnknownHolder { holder }));
        }
        Ok(())
    }

    /// Whether a member may ask with this request; `true` if it was answered with a grant before.
    fn check_request(&self, holder: Holder, request: RequestId) -> Result<bool, FetchError> {
        match self.standing.members.get(holder.node).and_then(|member| member.last.as_ref()) {
            Some(last) if last.request == request => return Ok(true),
            Some(last) if last.request > request => {
                return Err(FetchError::OldRequest { holder, request, last: last.request });
            }
            Some(_) | None => {}
        }
        let (samples, limit) = (self.book.account().job().quarantined, self.book.spec.quarantine_limit());
        if samples > limit
            && let Some(given_up) = self.book.quarantined().next()
        {
            return Err(FetchError::Quarantined { key: given_up.key, samples, limit });
        }
        Ok(false)
    }

    /// Up to `want` shards for a member, at least one if there is one.
    fn fetch_many(
        &mut self,
        holder: Holder,
        request: RequestId,
        want: u32,
    ) -> Result<(FetchOutcome, Vec<Grant>), FetchError> {
        let repeated = self.check_request(holder, request)?;
        let members = self.standing.members.len() as u64;
        let member = self.standing.members.get(holder.node).expect("the caller was checked");
        if let Some(last) = member.last.as_ref().filter(|_| repeated) {
            return Ok((FetchOutcome::Granted(last.first), last.more.clone()));
        }
        let room = self.book.spec.max_leases_per_holder.saturating_sub(member.held());
        if room == 0 {
            return Ok((FetchOutcome::AtLimit, Vec::new()));
        }
        let share = self.book.spec.share_of(holder.node).expect("a registered worker has a share");
        if self.standing.frozen_until.is_some() {
            return Ok((FetchOutcome::Wait { retry_after: RETRY_AFTER }, Vec::new()));
        }
        if let Some(epoch) = self.book.open_if_due(share, self.end_after) {
            // No worker needs to be woken for it: the end of an older epoch, which made it possible, woke all.
            self.records.push_back(Record::EpochOpened { share, epoch });
        }
        let Some(taken) = self.book.take_first(share) else {
            if self.is_finished() {
                return Ok((FetchOutcome::EndOfData, Vec::new()));
            }
            self.standing.idle.insert(holder.node);
            return Ok((FetchOutcome::Wait { retry_after: RETRY_AFTER }, Vec::new()));
        };
        let fair = self.book.waiting(share) / (2 * members);
        let first = self.lend(holder, taken);
        let mut more = Vec::new();
        for _ in 1..u64::from(want.min(room)).min(fair) {
            let Some(taken) = self.book.take_first(share) else { break };
            more.push(self.lend(holder, taken));
        }
        let member = self.standing.members.get_mut(holder.node).expect("the caller was checked");
        member.last = Some(Answered { request, first, more: more.clone() });
        self.standing.idle.remove(&holder.node);
        Ok((FetchOutcome::Granted(first), more))
    }

    /// Leases a taken shard to a member.
    fn lend(&mut self, holder: Holder, taken: Taken) -> Grant {
        self.standing.sequence += 1;
        let sequence = self.standing.sequence;
        let grant = self.grant(sequence, &taken);
        let member = self.standing.members.get_mut(holder.node).expect("only members are lent to");
        member.leases.push(Lease { sequence, resumed_at: taken.begun.offset, taken });
        grant
    }

    fn grant(&self, sequence: u64, taken: &Taken) -> Grant {
        Grant {
            lease: LeaseId { generation: self.standing.generation, sequence },
            key: taken.key,
            start: self.book.spec.shard(taken.key.index).start,
            len: taken.len,
            resume_at: taken.begun.offset,
            seed: self.book.sample_seed(taken),
        }
    }

    /// Leases of this holder that others could begin at once: newest first, none that it has acknowledged samples of,
    /// not the oldest, which it is about to begin, and no more than there are idle holders.
    fn recall(&self, holder: Holder) -> Vec<LeaseId> {
        let GenerationState { generation, members, idle, .. } = &self.standing;
        // With a static assignment no other worker may have them.
        let in_vain = idle.is_empty() || self.book.spec.assignment != Assignment::Dynamic;
        let Some(member) = members.get(holder.node).filter(|_| !in_vain) else { return Vec::new() };
        let others = idle.len() - usize::from(idle.contains(&holder.node));
        // All but the oldest.
        let newest = member.leases.iter().rev().take(member.leases.len().saturating_sub(1));
        let unstarted = newest.filter(|l| l.taken.begun.offset == l.resumed_at).take(others);
        unstarted.map(|lease| LeaseId { generation: *generation, sequence: lease.sequence }).collect()
    }

    /// Stops granting shards until [`thaw`](Self::thaw) or the deadline `until`: every request is answered
    /// with a wait. Acks still count. It lets a job come to rest before a [cut](Self::cut).
    ///
    /// Only a driver of the [`Machine`](antdt_core::Machine) notices the deadline; a caller of the methods
    /// must thaw.
    pub fn freeze(&mut self, until: JobTime) {
        self.standing.frozen_until = Some(until);
    }

    /// Resumes granting shards after a [`freeze`](Self::freeze).
    pub fn thaw(&mut self) {
        if self.standing.frozen_until.take().is_some() {
            self.wake = true;
        }
    }

    /// Ends the data after this many epochs, for now: once they are done, requests are answered with the end of the data, until
    /// a larger number is set. It lets a job come to its end between two epochs, for an evaluation of its model. Survives a
    /// [restore](Self::restore), but not the ledger's process.
    pub fn end_after(&mut self, epochs: u32) {
        self.end_after = epochs;
        self.wake = true;
    }

    /// Acknowledges the samples of a lease below an offset. Repeating the ack that finished a shard is
    /// accepted and counts nothing.
    ///
    /// # Errors
    /// If the offset is below an earlier one or beyond the shard. Nothing is changed then.
    pub fn ack(&mut self, holder: Holder, ack: Ack) -> Result<AckOutcome, AckError> {
        self.check(holder, ack)?;
        Ok(self.ack_checked(holder, ack, 1))
    }

    /// Acknowledges samples of several leases, as [`ack`](Self::ack) does for one. All entries are checked
    /// before the first is counted. Returns one outcome for each, in order.
    ///
    /// # Errors
    /// If an entry is wrong, an entry has a lower offset than an earlier entry of the same lease, or `acks`
    /// is empty. Nothing is changed then.
    pub fn ack_all(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.check_all(holder, acks)?;
        Ok(acks.iter().map(|ack| self.ack_checked(holder, *ack, acks.len())).collect())
    }

    /// Acknowledges samples in place of a worker that can no longer do so: the master calls it when the
    /// worker's gradient was part of a step that the other workers committed. It counts only while the lease
    /// is live, so it must come before [`worker_lost`](Self::worker_lost).
    ///
    /// # Errors
    /// As [`ack_all`](Self::ack_all).
    pub fn settle(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        // The ledger asks for the owner of the lease, not for the caller that speaks for it.
        self.ack_all(holder, acks)
    }

    /// Gives leases back: samples below each offset are done, and the rest of the shard waits for another
    /// worker.
    ///
    /// # Errors
    /// As [`ack_all`](Self::ack_all).
    pub fn release(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.check_all(holder, acks)?;
        let release = |ack: &Ack| {
            let outcome = self.ack_checked(holder, *ack, acks.len());
            if let Some(taken) = self.end_lease(holder, ack.lease) {
                self.book.put_back(&taken);
                self.wake = true;
            }
            outcome
        };
        Ok(acks.iter().map(release).collect())
    }

    /// Reports that the data of a lease cannot be read. Samples below `ack.offset` are done; the shard waits
    /// for another try, or is quarantined if this was the last fault that the settings tolerate.
    ///
    /// # Errors
    /// If the offset goes back, or is not below the length of the shard. Nothing is changed then.
    pub fn fail(&mut self, holder: Holder, ack: Ack) -> Result<AckOutcome, AckError> {
        self.check(holder, ack)?;
        let Some(lease) = self.lease(holder, ack.lease) else {
            return Ok(AckOutcome::StaleLease);
        };
        let len = lease.taken.len;
        if ack.offset == len {
            return Err(AckError::OffsetOutOfRange { lease: ack.lease, offset: ack.offset, len });
        }
        let outcome = self.ack_checked(holder, ack, 1);
        if let Some(taken) = self.end_lease(holder, ack.lease) {
            let (epoch, position) = (taken.place.epoch, taken.place.position);
            self.book.fault(taken);
            self.records.push_back(Record::Failed { epoch, position });
            self.wake = true;
        }
        Ok(outcome)
    }

    /// Declares an incarnation of a worker lost, and all before it. Their shards wait again at the last
    /// acknowledged offset, and later messages of these incarnations change nothing. Repeated or late calls
    /// change nothing either.
    ///
    /// O(leases of the worker).
    pub fn worker_lost(&mut self, holder: Holder) {
        let Holder { node, incarnation } = holder;
        if node.role != Role::Worker || !self.book.raise_fence(node, incarnation) {
            return;
        }
        self.records.push_back(Record::Fenced { node, through: incarnation });
        // The lost holder may itself be waiting for an answer.
        self.wake = true;
        self.standing.idle.remove(&node);
        // No later life can be live: its registration would have raised the fence this far. So every lease of the node
        // is one of the life that was live, for earlier ones ended when it registered.
        if let Some(member) = self.standing.members.remove(node) {
            for lease in member.leases.iter() {
                self.book.put_back(&lease.taken);
            }
        }
    }

    /// Returns the number of samples in each state, over all epochs.
    pub const fn counts(&self) -> Counts {
        self.book.account().job()
    }

    /// Returns the number of samples of one epoch in each state; `None` if the job has no such epoch.
    pub fn epoch_counts(&self, epoch: Epoch) -> Option<Counts> {
        self.book.account().epoch(epoch)
    }

    /// Returns whether every sample of every epoch is acknowledged or quarantined, or of as many epochs as are handed out
    /// [for now](Self::end_after).
    pub const fn is_finished(&self) -> bool {
        let Counts { acked, quarantined, .. } = self.counts();
        let handed_out = self.book.spec.num_samples.saturating_mul(self.end_after as u64);
        self.book.is_finished() || acked + quarantined >= handed_out
    }

    /// Returns the settings of the data set.
    pub const fn spec(&self) -> &DatasetSpec {
        &self.book.spec
    }

    /// Returns the current generation of the service.
    pub const fn generation(&self) -> Generation {
        self.standing.generation
    }

    /// The newest ended life of the holder's node, if the holder is of that life or an earlier one.
    fn fence(&self, holder: Holder) -> Option<Incarnation> {
        self.book.fence(holder.node).filter(|through| *through >= holder.incarnation)
    }

    fn lease(&self, holder: Holder, id: LeaseId) -> Option<&Lease> {
        let member = self.standing.members.get(holder.node)?;
        let lease = member.leases.get(id.sequence)?;
        (id.generation == self.standing.generation && member.live == holder.incarnation).then_some(lease)
    }

    fn check(&self, holder: Holder, ack: Ack) -> Result<(), AckError> {
        let Ack { lease: id, offset } = ack;
        let Some(lease) = self.lease(holder, id) else {
            return Ok(()); // Not wrong, but stale.
        };
        let (have, len) = (lease.taken.begun.offset, lease.taken.len);
        if offset < have {
            return Err(AckError::OffsetRegression { lease: id, offset, have });
        }
        if offset > len {
            return Err(AckError::OffsetOutOfRange { lease: id, offset, len });
        }
        Ok(())
    }

    fn check_all(&self, holder: Holder, acks: &[Ack]) -> Result<(), AckError> {
        if acks.is_empty() {
            return Err(AckError::Empty);
        }
        // In the order of the leases, as workers that train them in order say it, none contradicts another.
        let ascending = acks.is_sorted_by(|one, next| one.lease < next.lease);
        let mut highest: BTreeMap<LeaseId, u64> = BTreeMap::new();
        for ack in acks {
            self.check(holder, *ack)?;
            let before = if ascending { None } else { highest.insert(ack.lease, ack.offset) };
            if let Some(have) = before.filter(|have| *have > ack.offset) {
                return Err(AckError::OffsetRegression { lease: ack.lease, offset: ack.offset, have });
            }
        }
        Ok(())
    }

    /// One of a call's acks, which are so many.
    fn ack_checked(&mut self, holder: Holder, ack: Ack, acks: usize) -> AckOutcome {
        let Ack { lease: id, offset } = ack;
        let GenerationState { generation, members, .. } = &mut self.standing;
        let current = id.generation == *generation;
        let member =
            members.get_mut(holder.node).filter(|member| current && member.live == holder.incarnation);
        let Some(member) = member else { return AckOutcome::StaleLease };
        let Some(lease) = member.leases.get_mut(id.sequence) else {
            let finished = member.completed.contains(&(id.sequence, offset));
            return if finished { AckOutcome::Accepted } else { AckOutcome::StaleLease };
        };
        if offset == lease.taken.begun.offset {
            return AckOutcome::Accepted;
        }
        let (epoch, position) = (lease.taken.place.epoch, lease.taken.place.position);
        self.records.push_back(Record::Acked { epoch, position, offset });
        let after = self.book.ack(&mut lease.taken, offset);
        if after != After::Begun {
            member.leases.remove(id.sequence);
            let remembered = Member::remembered(self.book.spec.max_leases_per_holder, acks);
            while member.completed.len() >= remembered {
                member.completed.pop_front();
            }
            member.completed.push_back((id.sequence, offset));
        }
        // An epoch can open now, or the job is at its end.
        self.wake |= after == After::Closed;
        AckOutcome::Accepted
    }

    fn end_lease(&mut self, holder: Holder, id: LeaseId) -> Option<Taken> {
        self.lease(holder, id)?;
        let member = self.standing.members.get_mut(holder.node)?;
        Some(member.leases.remove(id.sequence)?.taken)
    }
}

#[cfg(test)]
mod tests;
