use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, LeaseId, Machine,
    NodeId, RequestId, ShardKey,
};

use crate::error::FetchError;
use crate::ledger::{Effect, LedgerSnapshot, Recovery, ShardLedger};
use crate::spec::{Assignment, DatasetSpec, Epochs, OnQuarantine};
use crate::testing::NaiveLedger;

pub(super) const fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

/// The real ledger and the naive one, given the same events. After every event their replies and states are compared,
/// the records written so far are replayed, and the invariants of `antdt.md` §11.1 are checked on a book of its own:
/// which leases are alive, which samples were acknowledged, how many faults each shard had.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) real: ShardLedger,
    pub(super) naive: NaiveLedger,
    replay: Recovery,
    spec: DatasetSpec,
    pub(super) generation: Generation,
    /// Every grant there ever was, with its holder.
    pub(super) grants: Vec<(Grant, Holder)>,
    ids: BTreeSet<LeaseId>,
    live: BTreeMap<LeaseId, Own>,
    own: Account,
    /// Lives that ended.
    lost: BTreeMap<NodeId, Incarnation>,
    ended: bool,
    snapshots: Vec<(LedgerSnapshot, NaiveLedger, Account)>,
    /// Whether the last event woke those who wait.
    pub(super) woke: bool,
    /// Who was told to wait, and not woken since.
    waiting: BTreeSet<Holder>,
    /// What happened how often.
    pub(super) seen: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy)]
struct Own {
    holder: Holder,
    grant: Grant,
    offset: u64,
}

/// What the harness itself knows to be done.
#[derive(Clone, Default)]
struct Account {
    samples: BTreeSet<(Epoch, u64)>,
    offsets: BTreeMap<ShardKey, u64>,
    faults: BTreeMap<ShardKey, u32>,
}

impl Pair {
    pub(super) fn new(spec: DatasetSpec) -> Self {
        let generation = Generation(1);
        let mut pair = Self {
            real: ShardLedger::new(spec.clone(), generation).unwrap(),
            naive: NaiveLedger::new(spec.clone(), generation),
            replay: Recovery::new(spec.clone()).unwrap(),
            spec,
            generation,
            grants: Vec::new(),
            ids: BTreeSet::new(),
            live: BTreeMap::new(),
            own: Account::default(),
            lost: BTreeMap::new(),
            ended: false,
            snapshots: Vec::new(),
            woke: false,
            waiting: BTreeSet::new(),
            seen: BTreeMap::new(),
        };
        pair.check();
        pair
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    /// The life of a worker that may take part: the newest, or the next if that has ended.
    pub(super) fn able(&self, index: u32) -> Holder {
        let newest =
            self.grants.iter().filter(|(_, holder)| holder.node.index == index).map(|(_, h)| h.incarnation);
        let after = self.lost.get(&NodeId::worker(index)).map(|lost| lost.next());
        worker(index, newest.chain(after).max().unwrap_or_default().0)
    }

    pub(super) fn register(&mut self, holder: Holder) -> bool {
        let real = self.real.register(holder);
        assert_eq!(real, self.naive.register(holder), "register {holder}");
        let fenced = self.lost.get(&holder.node).is_some_and(|lost| *lost >= holder.incarnation);
        assert!(!(fenced && real.is_ok()), "{holder} came back from the dead");
        if real.is_ok()
            && let Some(before) = holder.incarnation.0.checked_sub(1)
        {
            self.forget(holder.node, Incarnation(before));
        }
        self.check();
        real.is_ok()
    }

    pub(super) fn fetch(
        &mut self,
        holder: Holder,
        generation: Generation,
        request: u64,
    ) -> Option<FetchOutcome> {
        let before = self.real.counts();
        let real = self.real.fetch(holder, generation, RequestId(request));
        assert_eq!(
            real,
            self.naive.fetch(holder, generation, RequestId(request)),
            "fetch {request} of {holder}"
        );
        let fenced = self.lost.get(&holder.node).is_some_and(|lost| *lost >= holder.incarnation);
        assert!(!(fenced && real.is_ok()), "{holder} is fenced and was answered {real:?}");
        self.saw(match &real {
            Ok(FetchOutcome::Granted(grant)) if self.ids.contains(&grant.lease) => "granted again",
            Ok(FetchOutcome::Granted(grant)) if grant.resume_at > 0 => "resumed",
            Ok(FetchOutcome::Granted(_)) => "granted",
            Ok(FetchOutcome::Wait { .. }) => "wait",
            Ok(FetchOutcome::AtLimit) => "at limit",
            Ok(FetchOutcome::EndOfData) => "end of data",
            Err(FetchError::Quarantined { .. }) => "stopped by quarantine",
            Err(_) => "refused fetch",
        });
        match real {
            Ok(FetchOutcome::Granted(grant)) => self.granted(holder, grant, before),
            Ok(FetchOutcome::EndOfData) => {
                let quarantined: u64 = self.quarantined().map(|(_, left)| left).sum();
                let expected = self.spec.num_samples * u64::from(self.spec.epoch_limit());
                assert_eq!(self.own.samples.len() as u64 + quarantined, expected, "an end that is none");
                assert!(self.live.is_empty(), "the end while somebody holds a lease");
                self.ended = true;
            }
            Ok(FetchOutcome::Wait { .. }) => {
                assert_eq!(before, self.real.counts(), "waiting changes nothing");
                self.waiting.insert(holder);
            }
            Ok(FetchOutcome::AtLimit) => {
                let held = self.live.values().filter(|own| own.holder == holder).count();
                assert_eq!(held, self.spec.max_leases_per_holder as usize);
            }
            Err(_) => assert_eq!(before, self.real.counts(), "an error changes nothing"),
        }
        self.check();
        real.ok()
    }

    fn granted(&mut self, holder: Holder, grant: Grant, before: Counts) {
        if self.grants.iter().any(|(g, _)| g.lease == grant.lease) {
            let (first, owner) = *self.grants.iter().find(|(g, _)| g.lease == grant.lease).unwrap();
            assert_eq!((first, owner), (grant, holder), "a lease was given twice");
            assert_eq!(before, self.real.counts(), "a repeated grant allocates nothing");
            return;
        }
        assert!(!self.ended, "a grant after the end");
        assert!(self.ids.insert(grant.lease), "lease {} was used before", grant.lease);
        assert!(self.live.values().all(|own| own.grant.key != grant.key), "{:?} has two holders", grant.key);
        assert_eq!(
            grant.resume_at,
            self.own.offsets.get(&grant.key).copied().unwrap_or(0),
            "resumes elsewhere"
        );
        assert_eq!(grant.seed, self.spec.sample_seed(grant.key), "the order follows the holder");
        let range = self.spec.shard(grant.key.index);
        assert_eq!((range.start, range.len()), (grant.start, grant.len));
        if self.spec.epoch_overlap == 0 && self.spec.assignment == Assignment::Dynamic {
            for epoch in 0..grant.key.epoch.0 {
                let counts = self.real.epoch_counts(Epoch(epoch)).unwrap();
                assert_eq!(
                    counts.todo + counts.doing,
                    0,
                    "epoch {} began before {epoch} ended",
                    grant.key.epoch
                );
            }
        }
        if let Assignment::Static { workers } = self.spec.assignment {
            let order = self.spec.shard_order(grant.key.epoch);
            let position = (0..order.len()).find(|p| order.at(*p) == grant.key.index).unwrap();
            let first =
                (0..u64::from(workers)).find(|s| position < order.len() * (s + 1) / u64::from(workers));
            assert_eq!(first, Some(u64::from(holder.node.index)), "{holder} was given another's shard");
        }
        self.grants.push((grant, holder));
        self.live.insert(grant.lease, Own { holder, grant, offset: grant.resume_at });
    }

    /// One ack, or several in one call.
    pub(super) fn ack(&mut self, holder: Holder, acks: &[Ack]) -> Option<Vec<AckOutcome>> {
        let before = self.real.counts();
        let real = self.real.ack_all(holder, acks);
        assert_eq!(real, self.naive.ack_all(holder, acks), "ack {acks:?} of {holder}");
        self.acked(holder, acks, &real, before);
        self.check();
        real.ok()
    }

    pub(super) fn release(&mut self, holder: Holder, acks: &[Ack]) -> Option<Vec<AckOutcome>> {
        let before = self.real.counts();
        let real = self.real.release(holder, acks);
        assert_eq!(real, self.naive.release(holder, acks), "release {acks:?} of {holder}");
        // In one call the second entry for a lease finds it gone, whatever it says.
        let mut first = BTreeSet::new();
        let acks: Vec<Ack> = acks.iter().copied().filter(|ack| first.insert(ack.lease)).collect();
        self.acked(holder, &acks, &real, before);
        if real.is_ok() {
            for ack in acks {
                let mine = self.live.get(&ack.lease).is_some_and(|own| own.holder == holder);
                if mine {
                    self.live.remove(&ack.lease);
                    self.saw("released");
                }
            }
        }
        self.check();
        real.ok()
    }

    pub(super) fn fail(&mut self, holder: Holder, ack: Ack) -> Option<AckOutcome> {
        let before = self.real.counts();
        let real = self.real.fail(holder, ack);
        assert_eq!(real, self.naive.fail(holder, ack), "fail {ack:?} of {holder}");
        self.acked(holder, &[ack], &real.clone().map(|outcome| vec![outcome]), before);
        if real == Ok(AckOutcome::Accepted) {
            let own = self.live.remove(&ack.lease).expect("only a live lease can fail");
            self.saw("failed");
            *self.own.faults.entry(own.grant.key).or_insert(0) += 1;
        }
        self.check();
        real.ok()
    }

    fn acked<E>(&mut self, holder: Holder, acks: &[Ack], real: &Result<Vec<AckOutcome>, E>, before: Counts) {
        match real {
            Ok(outcomes) => outcomes.iter().for_each(|outcome| {
                self.saw(match outcome {
                    AckOutcome::Accepted => "accepted",
                    AckOutcome::StaleLease => "stale",
                });
            }),
            Err(_) => self.saw("refused ack"),
        }
        let mine = |live: &BTreeMap<LeaseId, Own>, ack: &Ack| {
            live.get(&ack.lease).copied().filter(|own| own.holder == holder)
        };
        if real.is_err() || acks.iter().all(|ack| mine(&self.live, ack).is_none()) {
            assert_eq!(before, self.real.counts(), "{holder} moved samples without a lease or with an error");
            return;
        }
        for ack in acks {
            let Some(mut own) = mine(&self.live, ack) else { continue };
            let order = own.grant.order();
            for offset in own.offset..ack.offset {
                let sample = own.grant.sample(order.as_ref(), offset);
                let new = self.own.samples.insert((own.grant.key.epoch, sample));
                assert!(new, "sample {sample} of epoch {} counts twice", own.grant.key.epoch);
            }
            own.offset = ack.offset;
            self.own.offsets.insert(own.grant.key, ack.offset);
            if ack.offset == own.grant.len {
                self.saw("completed");
                self.live.remove(&ack.lease);
            } else {
                self.live.insert(ack.lease, own);
            }
        }
    }

    pub(super) fn lose(&mut self, holder: Holder) {
        self.real.worker_lost(holder);
        self.naive.worker_lost(holder);
        self.saw("fenced");
        self.forget(holder.node, holder.incarnation);
        self.check();
    }

    fn forget(&mut self, node: NodeId, through: Incarnation) {
        let lost = self.lost.entry(node).or_insert(through);
        *lost = (*lost).max(through);
        self.live.retain(|_, own| own.holder.node != node || own.holder.incarnation > through);
    }

    pub(super) fn keep_snapshot(&mut self) {
        self.snapshots.push((self.real.snapshot(), self.naive.snapshot(), self.own.clone()));
    }

    /// Sets both back to one of the snapshots kept so far.
    pub(super) fn restore(&mut self, which: usize) {
        let Some((real, naive, own)) = self.snapshots.get(which % self.snapshots.len().max(1)).cloned()
        else {
            return;
        };
        assert!(self.real.restore(&real, self.generation).is_err(), "a generation is used once");
        self.generation = self.generation.next();
        self.real.restore(&real, self.generation).unwrap();
        self.naive.restore(&naive, self.generation);
        self.saw("restored");
        self.own = own;
        self.live.clear();
        self.ended = false;
        self.check();
    }

    /// Shards that must be in quarantine, with their remaining samples.
    fn quarantined(&self) -> impl Iterator<Item = (ShardKey, u64)> {
        let most = self.spec.max_data_faults;
        self.own.faults.iter().filter(move |(_, faults)| **faults >= most).map(|(key, _)| {
            let offset = self.own.offsets.get(key).copied().unwrap_or(0);
            (*key, self.spec.shard(key.index).len() - offset)
        })
    }

    /// Everything that must hold in every state.
    pub(super) fn check(&mut self) {
        // Accounting, by the real one, by counting, and by the harness's own samples.
        let counts = self.real.counts();
        assert!(counts.balance(), "{counts:?}");
        assert_eq!(counts, self.naive.counts());
        assert_eq!(counts.acked, self.own.samples.len() as u64);
        let limit = self.spec.epoch_limit();
        for epoch in 0..=limit {
            let of_epoch = self.real.epoch_counts(Epoch(epoch));
            assert_eq!(of_epoch, self.naive.epoch_counts(Epoch(epoch)), "epoch {epoch}");
            assert!(of_epoch.is_none_or(|counts| counts.balance() && counts.total == self.spec.num_samples));
        }
        assert_eq!(self.real.is_finished(), self.naive.is_finished());

        // One state for each shard, and exclusive leases under the cap, held by nobody who is lost.
        let outstanding: Vec<_> = self.real.outstanding().collect();
        assert_eq!(outstanding, self.naive.outstanding());
        assert_eq!(outstanding.len(), self.live.len());
        for lease in &outstanding {
            let own = self.live[&lease.lease];
            assert_eq!((lease.holder, lease.key, lease.offset), (own.holder, own.grant.key, own.offset));
            assert!(lease.offset < lease.len);
            assert!(self.lost.get(&lease.holder.node).is_none_or(|lost| *lost < lease.holder.incarnation));
            let held = outstanding.iter().filter(|l| l.holder.node == lease.holder.node).count();
            assert!(held <= self.spec.max_leases_per_holder as usize);
        }
        let todo: Vec<_> = self.real.book.todo().collect();
        let by_key: BTreeMap<_, _> =
            todo.iter().map(|(key, begun)| (*key, (begun.offset, begun.faults))).collect();
        assert_eq!(todo.len(), by_key.len(), "a shard waits twice");
        assert_eq!(by_key, self.naive.todo());
        assert!(outstanding.iter().all(|lease| !by_key.contains_key(&lease.key)), "leased and waiting");
        let quarantined: BTreeMap<_, _> = self.real.quarantined().map(|q| (q.key, q.offset)).collect();
        assert_eq!(quarantined, self.naive.quarantined());
        let left: BTreeMap<_, _> =
            self.real.quarantined().map(|q| (q.key, q.samples.len() - q.offset)).collect();
        assert_eq!(left, self.quarantined().collect(), "quarantine if and only if there were enough faults");
        assert!(self.real.book.open_epochs().all(|open| open <= self.spec.epoch_overlap as usize + 1));

        // The records so far give the same state, leases void.
        self.woke = false;
        while let Some(effect) = self.real.poll_effect() {
            match effect {
                Effect::Record(record) => self.replay.apply(&record).unwrap(),
                Effect::Wake => self.woke = true,
            }
        }
        if self.woke && !self.waiting.is_empty() {
            self.saw("woken");
            self.waiting.clear();
        }
        for holder in &self.waiting {
            let again = self.real.clone().fetch(*holder, self.generation, RequestId(u64::MAX));
            assert!(
                matches!(again, Ok(FetchOutcome::Wait { .. })),
                "{holder} should have been woken: {again:?}"
            );
        }
        assert_eq!(self.replay.snapshot(), self.real.snapshot(), "replay differs from the live state");
        assert_eq!(self.real.snapshot().counts().acked, counts.acked);
    }

    /// Lets everybody die and one worker for each share finish. Every history must end this way.
    pub(super) fn drain(&mut self) {
        let limited = match self.spec.on_quarantine {
            OnQuarantine::FailJob => 0,
            OnQuarantine::Continue { max_samples } => max_samples,
        };
        if self.real.counts().quarantined > limited {
            return; // Nothing more is granted, and that is checked with every fetch.
        }
        let workers = match self.spec.assignment {
            Assignment::Dynamic => 1,
            Assignment::Static { workers } => workers,
        };
        for index in 0..8 {
            let lost = self.lost.get(&NodeId::worker(index)).map_or(0, |lost| lost.0);
            self.lose(worker(index, lost + 1));
        }
        let heirs: Vec<Holder> = (0..workers)
            .map(|index| worker(index, self.lost.get(&NodeId::worker(index)).map_or(0, |lost| lost.0 + 1)))
            .collect();
        for heir in &heirs {
            assert!(self.register(*heir));
        }
        let shards = self.spec.shard_count() * u64::from(self.spec.epoch_limit());
        let mut done = false;
        for request in 1..=(shards + 1) * u64::from(workers) + 1 {
            done = true;
            for heir in &heirs {
                match self.fetch(*heir, self.generation, request) {
                    Some(FetchOutcome::Granted(grant)) => {
                        self.ack(*heir, &[Ack { lease: grant.lease, offset: grant.len }]);
                        done = false;
                    }
                    Some(FetchOutcome::EndOfData) => {}
                    other => {
                        assert!(
                            matches!(other, Some(FetchOutcome::Wait { .. })),
                            "{heir} was answered {other:?}"
                        );
                        done = false;
                    }
                }
            }
            if done {
                break;
            }
        }
        assert!(done && self.ended, "the history does not end");
        let counts = self.real.counts();
        assert_eq!(counts.acked + counts.quarantined, counts.total);
        assert_eq!(counts.acked, self.own.samples.len() as u64);
    }
}

/// A small data set whose every setting a test can change.
pub(super) fn small(num_samples: u64, shard_len: u64) -> DatasetSpec {
    DatasetSpec {
        epochs: Epochs::Finite(1),
        max_data_faults: 2,
        ..DatasetSpec::new("small", num_samples, shard_len)
    }
}
