//! The state of every shard: who trains it, how far it is, and that nothing is lost or counted twice.
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
//! log, and this file for leases and fences. Shards that came back are handed out before all that nobody has had, the
//! first in the epoch's order first.
//!
//! Source: the three states and the pull are AntDT's; leases, offsets, fences and quarantine are our design
//! (`antdt.md` §2), each an answer to a defect seen in `DLRover` (§10.2). Tried and rejected: putting a lost shard at
//! the back of the queue, which lets it wait behind a whole epoch; and storing what is done, which grows with the job.

mod account;
mod book;
pub(crate) mod codec;
mod machine;
mod pass;
mod ranges;
mod record;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, LeaseId, NodeId,
    RequestId, Role, SampleRange, ShardKey,
};

use self::book::{After, Book, Taken};
pub use self::machine::{Answer, Event, LedgerStatus};
pub use self::record::{Record, Recovery};
pub use self::snapshot::LedgerSnapshot;
use crate::error::{AckError, FetchError, RecoverError, RegisterError};
use crate::spec::DatasetSpec;

/// How long a holder that was told to wait may wait before it asks again, should no wake-up reach it. A larger one
/// delays the end of an epoch when a message is lost; a smaller one makes idle workers poll.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A lease, as others may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outstanding {
    /// The lease.
    pub lease: LeaseId,
    /// Who has it.
    pub holder: Holder,
    /// The shard.
    pub key: ShardKey,
    /// Samples of the shard that are done.
    pub offset: u64,
    /// Samples of the shard.
    pub len: u64,
}

/// A shard that was given up after too many data faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantined {
    /// The shard.
    pub key: ShardKey,
    /// Its samples in the data set; of these, in the permuted order, the first `offset` were trained.
    pub samples: SampleRange,
    /// Samples that were trained before it was given up.
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    holder: Holder,
    taken: Taken,
}

/// A worker, as long as this generation lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    live: Incarnation,
    held: u32,
    last: Option<(RequestId, Grant)>,
    /// Leases that the live incarnation finished lately, with their lengths: the repetition of an ack whose answer
    /// was lost is recognised. As many as it can hold are enough, because a holder acknowledges one call at a time.
    completed: VecDeque<(u64, u64)>,
}

impl Member {
    /// Most finished leases remembered. A lease cap above it is legal; the repetition of an ack that finished more
    /// shards than this in one call is then answered as stale, which costs a count of the agent, not a sample.
    const COMPLETED_MAX: usize = 1024;

    const fn new(live: Incarnation) -> Self {
        Self { live, held: 0, last: None, completed: VecDeque::new() }
    }
}

/// What a new generation starts without: leases, registrations, request answers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Standing {
    generation: Generation,
    sequence: u64,
    leases: BTreeMap<u64, Lease>,
    members: BTreeMap<NodeId, Member>,
}

impl Standing {
    const fn new(generation: Generation) -> Self {
        Self { generation, sequence: 0, leases: BTreeMap::new(), members: BTreeMap::new() }
    }
}

/// The ledger of one data set. O(outstanding leases + holes + nodes) memory, for any number of shards and epochs.
///
/// Every change queues the [`Record`]s that make it durable; drain them with [`poll_effect`](antdt_core::Machine::poll_effect)
/// after every call, and release the answer when they are stored.
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
/// // The node dies. Somebody else gets the shard, and only what was not done.
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
    standing: Standing,
    records: VecDeque<Record>,
    wake: bool,
}

/// What the outside must do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Append durably, before the answer of the same event is released.
    Record(Record),
    /// Somebody who was told to wait should ask again.
    Wake,
}

impl ShardLedger {
    /// A ledger of a data set that nobody has trained on.
    ///
    /// # Errors
    /// If the data set cannot be registered.
    pub fn new(spec: DatasetSpec, generation: Generation) -> Result<Self, RecoverError> {
        Self::begin(Book::new(spec)?, generation)
    }

    fn standing(book: Book, standing: Standing, first: Record) -> Self {
        Self { book, standing, records: VecDeque::from([first]), wake: false }
    }

    /// Lets a life of a worker take part. All its earlier lives have ended by that. Repeating it changes nothing.
    ///
    /// # Errors
    /// If that life has ended itself, or the node has no share of the data.
    pub fn register(&mut self, holder: Holder) -> Result<Generation, RegisterError> {
        let Holder { node, incarnation } = holder;
        if node.role != Role::Worker {
            return Err(RegisterError::NotAWorker { node });
        }
        if self.book.spec.share_of(node).is_none() {
            return Err(RegisterError::NoShare { node, workers: self.book.spec.share_count() });
        }
        if let Some(through) = self.fence(holder) {
            return Err(RegisterError::Fenced { holder, through });
        }
        if let Some(before) = incarnation.0.checked_sub(1) {
            self.worker_lost(Holder::new(node, Incarnation(before)));
        }
        self.standing.members.entry(node).or_insert_with(|| Member::new(incarnation));
        Ok(self.standing.generation)
    }

    /// Asks for a shard. Repeating the request that was last answered with a grant gives the same grant.
    ///
    /// # Errors
    /// If the holder must register, exit or count its requests upwards, or if too many samples are unreadable.
    pub fn fetch(
        &mut self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
    ) -> Result<FetchOutcome, FetchError> {
        let current = self.standing.generation;
        if generation != current {
            return Err(FetchError::WrongGeneration { given: generation, current });
        }
        if let Some(through) = self.fence(holder) {
            return Err(FetchError::Fenced { holder, through });
        }
        let member = self.standing.members.get_mut(&holder.node);
        let member = member.filter(|member| member.live == holder.incarnation);
        let Some(member) = member else {
            return Err(FetchError::UnknownHolder { holder });
        };
        match member.last {
            Some((last, grant)) if last == request => return Ok(FetchOutcome::Granted(grant)),
            Some((last, _)) if last > request => {
                return Err(FetchError::OldRequest { holder, request, last });
            }
            Some(_) | None => {}
        }
        let (samples, limit) = (self.book.account().job().quarantined, self.book.spec.quarantine_limit());
        if samples > limit
            && let Some(given_up) = self.book.quarantined().next()
        {
            return Err(FetchError::Quarantined { key: given_up.key, samples, limit });
        }
        if member.held >= self.book.spec.max_leases_per_holder {
            return Ok(FetchOutcome::AtLimit);
        }
        let share = self.book.spec.share_of(holder.node).expect("a registered worker has a share");
        if let Some(epoch) = self.book.open_if_due(share) {
            // Nobody needs to be woken for it: what made it possible, the end of an older epoch, woke everybody.
            self.records.push_back(Record::EpochOpened { share, epoch });
        }
        let Some(taken) = self.book.take_first(share) else {
            return Ok(if self.is_finished() {
                FetchOutcome::EndOfData
            } else {
                FetchOutcome::Wait { retry_after: RETRY_AFTER }
            });
        };
        self.standing.sequence += 1;
        let grant = Grant {
            lease: LeaseId { generation: current, sequence: self.standing.sequence },
            key: taken.key,
            start: self.book.spec.shard(taken.key.index).start,
            len: taken.len,
            resume_at: taken.begun.offset,
            seed: self.book.sample_seed(&taken),
        };
        self.standing.leases.insert(self.standing.sequence, Lease { holder, taken });
        member.held += 1;
        member.last = Some((request, grant));
        Ok(FetchOutcome::Granted(grant))
    }

    /// Samples of a lease are done. Repeating the ack that finished a shard is accepted and counts nothing.
    ///
    /// # Errors
    /// If the offset goes back or beyond the shard. Nothing is changed then.
    pub fn ack(&mut self, holder: Holder, ack: Ack) -> Result<AckOutcome, AckError> {
        self.check(holder, ack)?;
        Ok(self.ack_checked(holder, ack))
    }

    /// [`ack`](Self::ack) for several leases: all are checked before the first is counted. One outcome for each, in order.
    ///
    /// # Errors
    /// If any entry is wrong, two entries of one lease go back, or there is none. Nothing is changed then.
    pub fn ack_all(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.check_all(holder, acks)?;
        Ok(acks.iter().map(|ack| self.ack_checked(holder, *ack)).collect())
    }

    /// The master's ack for a holder that can no longer speak: its gradient was part of a step that the others
    /// committed. Counts only while the lease is live, so it must come before [`worker_lost`](Self::worker_lost).
    ///
    /// # Errors
    /// As [`ack_all`](Self::ack_all).
    pub fn settle(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        // The ledger asks whose lease it is, not who speaks for him.
        self.ack_all(holder, acks)
    }

    /// Gives leases back: samples below each offset are done, the rest waits for somebody else.
    ///
    /// # Errors
    /// As [`ack_all`](Self::ack_all).
    pub fn release(&mut self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, AckError> {
        self.check_all(holder, acks)?;
        let release = |ack: &Ack| {
            let outcome = self.ack_checked(holder, *ack);
            if let Some(taken) = self.end_lease(holder, ack.lease) {
                self.book.put_back(&taken);
                self.wake = true;
            }
            outcome
        };
        Ok(acks.iter().map(release).collect())
    }

    /// The data of a lease cannot be read. Samples below `ack.offset` are done; the shard waits for another try, or is
    /// quarantined if it has had its last.
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
        let outcome = self.ack_checked(holder, ack);
        if let Some(taken) = self.end_lease(holder, ack.lease) {
            let (epoch, position) = (taken.place.epoch, taken.place.position);
            self.book.fault(taken);
            self.records.push_back(Record::Failed { epoch, position });
            self.wake = true;
        }
        Ok(outcome)
    }

    /// A life of a node, and all before it, have ended. What they held waits again at the last acked offset, and
    /// nothing they say later counts. Repeating it, or saying it late, changes nothing.
    ///
    /// O(outstanding leases).
    pub fn worker_lost(&mut self, holder: Holder) {
        let Holder { node, incarnation } = holder;
        if node.role != Role::Worker || !self.book.raise_fence(node, incarnation) {
            return;
        }
        self.records.push_back(Record::Fenced { node, through: incarnation });
        // The lost holder may itself be waiting for an answer.
        self.wake = true;
        let Standing { members, leases, .. } = &mut self.standing;
        // No later life can be live: its registration would have raised the fence this far.
        if members.remove(&node).is_none_or(|member| member.held == 0) {
            return;
        }
        let book = &mut self.book;
        // A lease of this node is one of the life that was live, for earlier ones ended when it registered.
        leases.retain(|_, lease| {
            let keep = lease.holder.node != node;
            if !keep {
                book.put_back(&lease.taken);
            }
            keep
        });
    }

    /// The sample accounts of the job.
    pub const fn counts(&self) -> Counts {
        self.book.account().job()
    }

    /// The sample accounts of one epoch; `None` if the job has no such epoch.
    pub fn epoch_counts(&self, epoch: Epoch) -> Option<Counts> {
        self.book.account().epoch(epoch)
    }

    /// Whether every sample of every epoch is acknowledged or quarantined.
    pub const fn is_finished(&self) -> bool {
        self.book.is_finished()
    }

    /// The data set.
    pub const fn spec(&self) -> &DatasetSpec {
        &self.book.spec
    }

    /// The current life of the service.
    pub const fn generation(&self) -> Generation {
        self.standing.generation
    }

    /// The live leases, oldest first.
    pub fn outstanding(&self) -> impl Iterator<Item = Outstanding> {
        self.standing.leases.iter().map(|(sequence, lease)| Outstanding {
            lease: LeaseId { generation: self.standing.generation, sequence: *sequence },
            holder: lease.holder,
            key: lease.taken.key,
            offset: lease.taken.begun.offset,
            len: lease.taken.len,
        })
    }

    /// The shards that were given up.
    pub fn quarantined(&self) -> impl Iterator<Item = Quarantined> {
        self.book.quarantined().map(|given_up| Quarantined {
            key: given_up.key,
            samples: self.book.spec.shard(given_up.key.index),
            offset: given_up.offset,
        })
    }

    /// The newest ended life of the holder's node, if the holder is of that life or an earlier one.
    fn fence(&self, holder: Holder) -> Option<Incarnation> {
        self.book.fence(holder.node).filter(|through| *through >= holder.incarnation)
    }

    fn lease(&self, holder: Holder, id: LeaseId) -> Option<&Lease> {
        let lease = self.standing.leases.get(&id.sequence)?;
        (id.generation == self.standing.generation && lease.holder == holder).then_some(lease)
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
        let mut highest: BTreeMap<LeaseId, u64> = BTreeMap::new();
        for ack in acks {
            self.check(holder, *ack)?;
            if let Some(have) = highest.insert(ack.lease, ack.offset).filter(|have| *have > ack.offset) {
                return Err(AckError::OffsetRegression { lease: ack.lease, offset: ack.offset, have });
            }
        }
        Ok(())
    }

    fn ack_checked(&mut self, holder: Holder, ack: Ack) -> AckOutcome {
        let Ack { lease: id, offset } = ack;
        let Standing { generation, leases, members, .. } = &mut self.standing;
        let current = id.generation == *generation;
        let lease = leases.get_mut(&id.sequence).filter(|lease| current && lease.holder == holder);
        let Some(lease) = lease else {
            let finished = members.get(&holder.node).is_some_and(|member| {
                member.live == holder.incarnation && member.completed.contains(&(id.sequence, offset))
            });
            return if current && finished { AckOutcome::Accepted } else { AckOutcome::StaleLease };
        };
        if offset == lease.taken.begun.offset {
            return AckOutcome::Accepted;
        }
        let (epoch, position) = (lease.taken.place.epoch, lease.taken.place.position);
        self.records.push_back(Record::Acked { epoch, position, offset });
        let after = self.book.ack(&mut lease.taken, offset);
        if after != After::Begun {
            leases.remove(&id.sequence);
            let member = members.get_mut(&holder.node).expect("the holder of a live lease is a member");
            member.held -= 1;
            let remembered = (self.book.spec.max_leases_per_holder as usize).min(Member::COMPLETED_MAX);
            if member.completed.len() >= remembered {
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
        let lease = self.standing.leases.remove(&id.sequence)?;
        let member = self.standing.members.get_mut(&holder.node);
        member.expect("the holder of a live lease is a member").held -= 1;
        Some(lease.taken)
    }
}

#[cfg(test)]
mod tests;
