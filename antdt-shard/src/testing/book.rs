//! The bookkeeper: an independent record of what a history did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use antdt_core::{
    Ack, AckOutcome, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, JobTime, LeaseId, NodeId,
    Permutation, RequestId, ShardKey,
};

use super::Note;
use super::call::{Call, CallReply};
use crate::error::FetchError;
use crate::ledger::Record;
use crate::spec::{Assignment, DatasetSpec};

/// What is done, in samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) samples: BTreeSet<(Epoch, u64)>,
    offsets: BTreeMap<ShardKey, u64>,
    faults: BTreeMap<ShardKey, u32>,
}

impl Account {
    /// Samples of a shard that are done.
    pub(crate) fn offset(&self, key: ShardKey) -> u64 {
        self.offsets.get(&key).copied().unwrap_or(0)
    }

    /// Data faults of a shard.
    pub(crate) fn faults(&self, key: ShardKey) -> u32 {
        self.faults.get(&key).copied().unwrap_or(0)
    }

    /// Shards that had so many data faults, with the samples that are left of them.
    pub(crate) fn given_up(&self, spec: &DatasetSpec) -> BTreeMap<ShardKey, u64> {
        let faulty = self.faults.iter().filter(|(_, faults)| **faults >= spec.max_data_faults);
        faulty.map(|(key, _)| (*key, spec.shard(key.index).len() - self.offset(*key))).collect()
    }
}

/// A line of the log, as the book-keeper writes it.
#[derive(Debug, Clone)]
enum Line {
    Acked(ShardKey, u64),
    Failed(ShardKey),
    Fenced(NodeId, Incarnation),
    /// The ledger was restored to the copy of this index; all earlier leases are void.
    Restored(usize, Generation),
    Other,
}

/// A lease that is alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own {
    pub(crate) holder: Holder,
    pub(crate) grant: Grant,
    pub(crate) offset: u64,
}

/// What one event did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Whether the life that spoke had ended.
    pub(crate) caller_had_ended: bool,
    /// Leases that are new, with their holders: first those of a question, in order.
    pub(crate) granted: Vec<(Grant, Holder)>,
    /// Samples of a shard that were counted: from and to.
    pub(crate) counted: Vec<(ShardKey, u64, u64)>,
    /// Of these, those that were counted before.
    pub(crate) twice: Vec<(Epoch, u64)>,
    /// What was counted though no lease that was alive, and no lease that was presented and not void, says so.
    pub(crate) unfounded: Vec<(ShardKey, u64)>,
    /// The grants that the same request was answered with before.
    pub(crate) repeated: Option<Vec<Grant>>,
}

/// The book-keeper: he is told what happened and what was answered, trusts neither ledger, and keeps his own list of
/// leases that are alive, samples that are done, faults, and lives that ended.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    pub(crate) spec: DatasetSpec,
    /// Share and position of each shard, found by going through every order.
    pub(crate) places: Arc<BTreeMap<ShardKey, (u64, u64)>>,
    pub(crate) generation: Generation,
    /// Every grant there ever was, with its holder.
    pub(crate) grants: Vec<(Grant, Holder)>,
    pub(crate) live: BTreeMap<LeaseId, Own>,
    /// Leases that were alive when the last generation ended.
    pub(crate) left: Vec<Own>,
    pub(crate) account: Account,
    /// The same, by what was written down only.
    pub(crate) written: Account,
    /// Lives that ended.
    pub(crate) lost: BTreeMap<NodeId, Incarnation>,
    /// Leases up to this generation belong to a model that is no more.
    pub(crate) void: Option<Generation>,
    /// A worker was told that this is the end.
    pub(crate) ended: bool,
    /// Time until which nothing is granted.
    pub(crate) frozen: Option<JobTime>,
    /// Workers registered in this generation.
    pub(crate) members: BTreeMap<NodeId, Incarnation>,
    /// The last question of each life that was answered with grants.
    pub(crate) answered: BTreeMap<Holder, (RequestId, Vec<Grant>)>,
    pub(crate) facts: Facts,
    /// What was done, and which lives had ended, whenever that was kept.
    kept: Vec<(Account, BTreeMap<NodeId, Incarnation>)>,
    lines: Vec<Line>,
    /// What happened how often.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

fn places(spec: &DatasetSpec) -> BTreeMap<ShardKey, (u64, u64)> {
    let shares = match spec.assignment {
        Assignment::Dynamic => 1,
        Assignment::Static { workers } => u64::from(workers),
    };
    let mut places = BTreeMap::new();
    for epoch in (0..spec.epoch_limit()).map(Epoch) {
        let order = spec.shard_order(epoch);
        for position in 0..order.len() {
            let share = (0..shares).find(|share| position < order.len() * (share + 1) / shares);
            places.insert(
                ShardKey { epoch, index: order.at(position) },
                (share.expect("every position has a share"), position),
            );
        }
    }
    places
}

impl Book {
    pub(crate) fn new(spec: DatasetSpec, generation: Generation) -> Self {
        let places = Arc::new(places(&spec));
        Self {
            spec,
            places,
            generation,
            grants: Vec::new(),
            live: BTreeMap::new(),
            left: Vec::new(),
            account: Account::default(),
            written: Account::default(),
            lost: BTreeMap::new(),
            void: None,
            ended: false,
            frozen: None,
            members: BTreeMap::new(),
            answered: BTreeMap::new(),
            facts: Facts::default(),
            kept: Vec::new(),
            lines: vec![Line::Other],
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    pub(crate) fn has_ended(&self, holder: Holder) -> bool {
        self.lost.get(&holder.node).is_some_and(|lost| *lost >= holder.incarnation)
    }

    /// Snapshots that were kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Takes a call, its answer, and what was written down for it.
    pub(crate) fn hear(&mut self, call: &Call, reply: &CallReply, notes: &[Note]) {
        self.facts = Facts {
            caller_had_ended: call.caller().is_some_and(|holder| self.has_ended(holder)),
            ..Facts::default()
        };
        if reply.is_refusal() {
            self.saw("refused");
        }
        match call {
            Call::Register { holder, .. } => self.registered(*holder, call, reply, notes),
            Call::Fetch { holder, .. } => self.asked(*holder, call, reply),
            Call::Exchange { holder, acks, .. } => {
                self.acked(*holder, acks, reply);
                self.asked(*holder, call, reply);
                if let CallReply::Exchanged(Ok(exchanged)) = reply {
                    (0..exchanged.recalled.len()).for_each(|_| self.saw("recalled"));
                    (0..exchanged.more.len()).for_each(|_| self.saw("several at once"));
                }
            }
            Call::Ack { holder, acks } => self.acked(*holder, acks, reply),
            Call::Release { holder, acks } => {
                // In one call the second entry for a lease finds it gone, whatever it says.
                let mut first = BTreeSet::new();
                let acks: Vec<Ack> = acks.iter().copied().filter(|ack| first.insert(ack.lease)).collect();
                self.acked(*holder, &acks, reply);
                for ack in acks.iter().filter(|_| !reply.is_refusal()) {
                    if self.mine(*holder, ack.lease).is_some() {
                        self.live.remove(&ack.lease);
                        self.saw("released");
                    }
                }
            }
            Call::Fail { holder, ack } => {
                self.acked(*holder, &[*ack], reply);
                if let Some(own) = self.mine(*holder, ack.lease).filter(|_| !reply.is_refusal()) {
                    self.live.remove(&ack.lease);
                    *self.account.faults.entry(own.grant.key).or_insert(0) += 1;
                    self.saw("failed");
                }
            }
            Call::Lost { holder } => {
                self.end_life(holder.node, holder.incarnation);
                self.saw("fenced");
            }
            Call::Freeze { until } => {
                self.frozen = Some(*until);
                self.saw("frozen");
            }
            Call::Tick { now } => self.frozen = self.frozen.filter(|until| until > now),
            Call::Thaw => self.frozen = None,
            Call::Keep => self.kept.push((self.account.clone(), self.lost.clone())),
            Call::Cut { .. } => {
                if !reply.is_refusal() {
                    self.kept.push((self.account.clone(), self.lost.clone()));
                    self.saw("cut");
                }
            }
            Call::Restore { which } => self.restored(*which),
            Call::Restart { kept, .. } => self.restarted(*kept),
        }
        for note in notes {
            self.write(note, call);
        }
    }

    fn registered(&mut self, holder: Holder, call: &Call, reply: &CallReply, notes: &[Note]) {
        let Call::Register { held, .. } = call else { return };
        let CallReply::Registered(Ok(registered)) = reply else { return };
        if let Some(before) = holder.incarnation.0.checked_sub(1) {
            self.end_life(holder.node, Incarnation(before));
        }
        let first = self.members.insert(holder.node, holder.incarnation).is_none();
        // Which of them the ledger believed it says in its log; whether it may, in `held` and in what is void.
        for note in notes {
            if let Note::Record(Record::Acked { epoch, position, offset }) = note {
                let key = self.key(*epoch, *position);
                let presented = held.iter().any(|held| {
                    (held.key, held.offset) == (key, *offset)
                        && held.lease.generation < self.generation
                        && self.void.is_none_or(|void| held.lease.generation > void)
                });
                if !first || !presented || self.live.values().any(|own| own.grant.key == key) {
                    self.facts.unfounded.push((key, *offset));
                }
                self.saw("counted at adoption");
                let order = self.order(key);
                self.count(key, *offset, |offset| order.as_ref().map_or(offset, |order| order.at(offset)));
            }
        }
        for grant in registered.adopted.iter().flatten() {
            if self.live.contains_key(&grant.lease) {
                self.saw("adopted again");
                continue;
            }
            self.saw("adopted");
            if !first {
                self.facts.unfounded.push((grant.key, grant.resume_at));
            }
            self.lend(*grant, holder);
        }
        let void = registered.adopted.iter().filter(|grant| grant.is_none()).count();
        (0..void).for_each(|_| self.saw("not adopted"));
    }

    fn asked(&mut self, holder: Holder, call: &Call, reply: &CallReply) {
        if let Some((request, _)) = call.asks() {
            let before = self.answered.get(&holder).filter(|(last, _)| *last == request);
            let same_life = self.members.get(&holder.node) == Some(&holder.incarnation);
            self.facts.repeated = before.filter(|_| same_life).map(|(_, grants)| grants.clone());
        }
        let repeated = self.facts.repeated.is_some();
        match (reply.fetched(), reply.fetch_error()) {
            (Some(FetchOutcome::Granted(grant)), _) if call.asks().is_some() => {
                self.saw(match () {
                    () if repeated => "granted again",
                    () if grant.resume_at > 0 => "resumed",
                    () => "granted",
                });
                if !repeated {
                    for grant in reply.grants() {
                        self.lend(grant, holder);
                    }
                    let (request, _) = call.asks().expect("it was answered");
                    self.answered.insert(holder, (request, reply.grants()));
                }
            }
            (Some(FetchOutcome::Granted(grant)), _) => {
                self.facts.unfounded.push((grant.key, grant.resume_at));
            }
            (Some(FetchOutcome::Wait { .. }), _) => self.saw("wait"),
            (Some(FetchOutcome::AtLimit), _) => self.saw("at limit"),
            (Some(FetchOutcome::EndOfData), _) => {
                self.saw("end of data");
                self.ended = true;
            }
            (None, Some(FetchError::Quarantined { .. })) => self.saw("stopped by quarantine"),
            (None, Some(_)) => self.saw("refused question"),
            (None, None) => {}
        }
    }

    fn lend(&mut self, grant: Grant, holder: Holder) {
        self.facts.granted.push((grant, holder));
        self.grants.push((grant, holder));
        self.live.insert(grant.lease, Own { holder, grant, offset: grant.resume_at });
    }

    fn mine(&self, holder: Holder, lease: LeaseId) -> Option<Own> {
        self.live.get(&lease).copied().filter(|own| own.holder == holder)
    }

    fn acked(&mut self, holder: Holder, acks: &[Ack], reply: &CallReply) {
        for outcome in reply.outcomes() {
            self.saw(match outcome {
                AckOutcome::Accepted => "accepted",
                AckOutcome::StaleLease => "stale",
            });
        }
        if reply.is_refusal() {
            self.saw("refused ack");
            return;
        }
        for ack in acks {
            let Some(mut own) = self.mine(holder, ack.lease) else { continue };
            if ack.offset < own.offset || ack.offset > own.grant.len {
                // No ledger may take it.
                self.facts.unfounded.push((own.grant.key, ack.offset));
                continue;
            }
            let order = own.grant.order();
            self.count(own.grant.key, ack.offset, |offset| {
                own.grant.sample(order.as_ref(), offset) - own.grant.start
            });
            own.offset = ack.offset;
            if ack.offset == own.grant.len {
                self.saw("completed");
                self.live.remove(&ack.lease);
            } else {
                self.live.insert(ack.lease, own);
            }
        }
    }

    /// Samples of a shard up to `to` are done; `at` says which sample of the shard is at an offset.
    fn count(&mut self, key: ShardKey, to: u64, at: impl Fn(u64) -> u64) {
        let from = self.account.offset(key);
        self.facts.counted.push((key, from, to));
        let start = self.spec.shard(key.index).start;
        for offset in from..to {
            let sample = (key.epoch, start + at(offset));
            if !self.account.samples.insert(sample) {
                self.facts.twice.push(sample);
            }
        }
        // An ack of nothing is no news.
        if to > from {
            self.account.offsets.insert(key, to);
        }
    }

    fn end_life(&mut self, node: NodeId, through: Incarnation) {
        self.bury(node, through);
        self.live.retain(|_, own| own.holder.node != node || own.holder.incarnation > through);
        self.members.retain(|member, live| *member != node || *live > through);
        self.answered.retain(|holder, _| holder.node != node || holder.incarnation > through);
    }

    fn bury(&mut self, node: NodeId, through: Incarnation) {
        let lost = self.lost.entry(node).or_insert(through);
        *lost = (*lost).max(through);
    }

    fn new_generation(&mut self) {
        self.generation = self.generation.next();
        self.left = std::mem::take(&mut self.live).into_values().collect();
        self.members.clear();
        self.answered.clear();
        self.ended = false;
        self.frozen = None;
    }

    fn restored(&mut self, which: usize) {
        self.void = Some(self.generation);
        self.account = self.kept[which].0.clone();
        self.new_generation();
        self.saw("restored");
    }

    fn restarted(&mut self, kept: usize) {
        if kept < self.lines.len() {
            self.saw("restarted without the end of its log");
        }
        self.lines.truncate(kept);
        (self.written, self.void, self.lost) = (Account::default(), None, BTreeMap::new());
        for line in self.lines.clone() {
            self.read(&line);
        }
        self.account = self.written.clone();
        self.new_generation();
        self.saw("restarted");
    }

    fn write(&mut self, note: &Note, call: &Call) {
        let line = match (note, call) {
            (Note::Record(Record::Acked { epoch, position, offset }), _) => {
                Line::Acked(self.key(*epoch, *position), *offset)
            }
            (Note::Record(Record::Failed { epoch, position }), _) => {
                Line::Failed(self.key(*epoch, *position))
            }
            (Note::Record(Record::Fenced { node, through }), _) => Line::Fenced(*node, *through),
            (Note::Restored(_), Call::Restore { which }) => {
                Line::Restored(*which, self.void.expect("it was restored"))
            }
            (Note::Record(_) | Note::Restored(_), _) => Line::Other,
        };
        self.read(&line);
        self.lines.push(line);
    }

    fn read(&mut self, line: &Line) {
        match line {
            Line::Acked(key, offset) => {
                let (start, order) = (self.spec.shard(key.index).start, self.order(*key));
                let done = 0..*offset;
                let at = |offset| order.as_ref().map_or(offset, |order| order.at(offset));
                self.written.samples.extend(done.map(|offset| (key.epoch, start + at(offset))));
                self.written.offsets.insert(*key, *offset);
            }
            Line::Failed(key) => *self.written.faults.entry(*key).or_insert(0) += 1,
            Line::Fenced(node, through) => self.bury(*node, *through),
            Line::Restored(which, void) => {
                let (account, lost) = self.kept[*which].clone();
                (self.written, self.void) = (account, Some(*void));
                lost.into_iter().for_each(|(node, through)| self.bury(node, through));
            }
            Line::Other => {}
        }
    }

    fn key(&self, epoch: Epoch, position: u64) -> ShardKey {
        ShardKey { epoch, index: self.spec.shard_order(epoch).at(position) }
    }

    fn order(&self, key: ShardKey) -> Option<Permutation> {
        self.spec.sample_seed(key).map(|seed| Permutation::new(seed, self.spec.shard(key.index).len()))
    }

    /// The life of a worker that may take part: the newest, or the next if that has ended.
    pub(crate) fn able(&self, index: u32) -> Holder {
        let node = NodeId::worker(index);
        let newest = self.grants.iter().filter(|(_, holder)| holder.node == node).map(|(_, h)| h.incarnation);
        let after = self.lost.get(&node).map(|lost| lost.next());
        let incarnation = newest.chain(after).chain(self.members.get(&node).copied()).max();
        Holder::new(node, incarnation.unwrap_or_default())
    }
}
