//! Hears everything that is said to a ledger, and by it, and believes none of it.

use std::collections::BTreeMap;

use antdt_core::{
    Ack, AckOutcome, FetchOutcome, Generation, Grant, Held, Holder, LeaseId, RequestId, ShardKey,
};
use antdt_shard::{Answer, DatasetSpec, Event, Record, ShardLedger};

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    SampleLost,
    SampleTwice,
    TwoHolders,
    LeaseReused,
    LeaseRefused,
    DeadLeaseCounts,
    FencedActs,
    LiveRefused,
    GenerationNotNewer,
    WaitsForNobody,
    RecordsDiffer,
    AccountsDiffer,
}

impl Broken {
    pub(crate) const ALL: [Self; 12] = [
        Self::SampleLost,
        Self::SampleTwice,
        Self::TwoHolders,
        Self::LeaseReused,
        Self::LeaseRefused,
        Self::DeadLeaseCounts,
        Self::FencedActs,
        Self::LiveRefused,
        Self::GenerationNotNewer,
        Self::WaitsForNobody,
        Self::RecordsDiffer,
        Self::AccountsDiffer,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SampleLost => "at the end every sample is acknowledged or given up",
            Self::SampleTwice => "no sample is acknowledged twice",
            Self::TwoHolders => "a shard has at most one live lease",
            Self::LeaseReused => "no lease is granted twice",
            Self::LeaseRefused => "a live lease counts",
            Self::DeadLeaseCounts => "a lease that has ended counts nothing",
            Self::FencedActs => "a fenced life changes nothing",
            Self::LiveRefused => "a life that is not fenced is not refused",
            Self::GenerationNotNewer => "generations grow",
            Self::WaitsForNobody => "nobody waits for nobody",
            Self::RecordsDiffer => "the records say what the answers said",
            Self::AccountsDiffer => "the accounts add up",
        }
    }
}

/// What was said and not taken back: it follows from the events, and once more from the records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Truth {
    pub(crate) generation: Generation,
    /// Samples of each shard that are acknowledged, from its start.
    done: BTreeMap<ShardKey, u64>,
    faults: BTreeMap<ShardKey, u32>,
    /// Samples given up.
    given_up: BTreeMap<ShardKey, u64>,
    /// The newest ended life of each worker.
    fences: BTreeMap<u32, u32>,
}

impl Truth {
    pub(crate) fn is_fenced(&self, holder: Holder) -> bool {
        self.fences.get(&holder.node.index).is_some_and(|through| *through >= holder.incarnation.0)
    }

    fn fence(&mut self, node: u32, through: u32) {
        let fence = self.fences.entry(node).or_insert(through);
        *fence = through.max(*fence);
    }

    fn done(&self, key: ShardKey) -> u64 {
        self.done.get(&key).copied().unwrap_or(0)
    }

    /// An offset of 0 is what an untouched shard has anyway.
    fn set_done(&mut self, key: ShardKey, offset: u64) {
        if offset > 0 {
            self.done.insert(key, offset);
        }
    }

    fn fault(&mut self, key: ShardKey, spec: &DatasetSpec) {
        let faults = self.faults.entry(key).or_insert(0);
        *faults += 1;
        if *faults >= spec.max_data_faults {
            self.given_up.insert(key, spec.shard(key.index).len() - self.done(key));
        }
    }

    fn acked(&self) -> u64 {
        self.done.values().sum()
    }

    fn quarantined(&self) -> u64 {
        self.given_up.values().sum()
    }

    /// The ledger is set back to what was true then, but no worker comes back to life.
    pub(crate) fn set_back(&mut self, then: &Self) {
        let fences = std::mem::take(&mut self.fences);
        *self = Self { generation: self.generation, ..then.clone() };
        for (node, through) in fences {
            self.fence(node, through);
        }
    }

    /// What a record adds. `kept` is what was true at the snapshot that a ledger can be set back to.
    pub(crate) fn record(&mut self, record: &Record, spec: &DatasetSpec, kept: Option<&Self>) {
        let key = |epoch, position| ShardKey { epoch, index: spec.shard_order(epoch).at(position) };
        match record {
            Record::GenerationStarted { generation } => self.generation = *generation,
            Record::Acked { epoch, position, offset } => self.set_done(key(*epoch, *position), *offset),
            Record::Failed { epoch, position } => self.fault(key(*epoch, *position), spec),
            Record::Fenced { node, through } => self.fence(node.index, through.0),
            Record::Restored(_) => self.set_back(kept.expect("only the kept snapshot is restored")),
            _ => {}
        }
    }
}

/// A lease that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Live {
    holder: Holder,
    key: ShardKey,
    offset: u64,
    len: u64,
}

/// What it knows from the events of this life of the service.
#[derive(Debug, Clone, Default)]
pub(crate) struct Witness {
    pub(crate) truth: Truth,
    live: BTreeMap<LeaseId, Live>,
    /// The holder that finished each lease: the repetition of that ack is accepted.
    finished: BTreeMap<LeaseId, (Holder, u64)>,
    /// The last grant of each holder.
    granted: BTreeMap<Holder, (RequestId, Grant)>,
    /// Leases are numbered upwards.
    newest: Option<LeaseId>,
    /// What was held in this generation, or an earlier one, went into a model that was set back with the ledger.
    pub(crate) restored: Option<Generation>,
}

impl Witness {
    /// A new life of the service: no lease, no registration and no answer of an earlier one counts.
    pub(crate) fn begin_generation(&mut self, generation: Generation) {
        self.truth.generation = generation;
        self.live.clear();
        self.finished.clear();
        self.granted.clear();
    }

    /// An event, and what the ledger answered. `changed` is whether anything in the ledger did; `recorded` is what its
    /// records say.
    pub(crate) fn hear(
        &mut self,
        event: &Event,
        answer: &Answer,
        changed: bool,
        recorded: &Truth,
        spec: &DatasetSpec,
    ) -> Result<(), Broken> {
        let fenced = |holder: &Holder| self.truth.is_fenced(*holder);
        match (event, answer) {
            (
                Event::Register { holder, .. }
                | Event::Exchange { holder, .. }
                | Event::Release { holder, .. }
                | Event::Fail { holder, .. }
                | Event::WorkerLost { holder },
                _,
            ) if fenced(holder) && changed => Err(Broken::FencedActs),
            (Event::Register { holder, held }, Answer::Register(answer)) => match answer {
                Ok(_) if fenced(holder) => Err(Broken::FencedActs),
                Ok(told) if told.generation != self.truth.generation => Err(Broken::GenerationNotNewer),
                Ok(told) => {
                    if let Some(before) = holder.incarnation.0.checked_sub(1) {
                        self.lose(holder.node.index, before);
                    }
                    held.iter().zip(&told.adopted).try_for_each(|(held, adopted)| {
                        self.presented(*holder, held, adopted.as_ref(), recorded)
                    })
                }
                Err(_) if fenced(holder) => Ok(()),
                Err(_) => Err(Broken::LiveRefused),
            },
            (Event::Exchange { holder, generation, request, acks, .. }, Answer::Exchange(Ok(told))) => {
                if fenced(holder) {
                    return Err(Broken::FencedActs);
                }
                if *generation != self.truth.generation {
                    return Err(Broken::GenerationNotNewer);
                }
                for (ack, outcome) in acks.iter().zip(&told.outcomes) {
                    self.acked(*holder, *ack, *outcome)?;
                }
                told.fetched.iter().try_for_each(|fetched| self.fetched(*holder, *request, fetched, spec))
            }
            (Event::Release { holder, acks }, Answer::Ack(Ok(outcomes))) => {
                for (ack, outcome) in acks.iter().zip(outcomes) {
                    self.acked(*holder, *ack, *outcome)?;
                    self.end(*holder, ack.lease);
                }
                Ok(())
            }
            (Event::Fail { holder, ack }, Answer::Fail(Ok(outcome))) => {
                self.acked(*holder, *ack, *outcome)?;
                if let Some(live) = self.end(*holder, ack.lease) {
                    self.truth.fault(live.key, spec);
                }
                Ok(())
            }
            (Event::WorkerLost { holder }, _) => {
                self.lose(holder.node.index, holder.incarnation.0);
                Ok(())
            }
            // An error: a client that is to register again, or a message that was overtaken.
            _ if changed => Err(Broken::DeadLeaseCounts),
            _ => Ok(()),
        }
    }

    /// A holder presented a lease of an earlier generation, and was told which one takes its place.
    fn presented(
        &mut self,
        holder: Holder,
        held: &Held,
        adopted: Option<&Grant>,
        recorded: &Truth,
    ) -> Result<(), Broken> {
        let owner = self.live.iter().find(|(_, live)| live.key == held.key);
        let done = self.truth.done(held.key);
        match (adopted, owner) {
            (Some(grant), Some((lease, live))) => {
                // It is said again.
                let same = live.holder == holder && grant.lease == *lease && grant.resume_at == live.offset;
                if same { Ok(()) } else { Err(Broken::TwoHolders) }
            }
            (Some(grant), None) => {
                if self.restored.is_some_and(|restored| held.lease.generation <= restored) {
                    return Err(Broken::DeadLeaseCounts);
                }
                if grant.resume_at != held.offset
                    || held.offset < done
                    || held.offset == grant.len
                    || self.truth.given_up.contains_key(&held.key)
                {
                    return Err(Broken::SampleTwice);
                }
                self.truth.set_done(held.key, held.offset);
                self.begin(holder, grant)
            }
            // If it presented all of a shard, that is counted and nothing is left to hold. Only the records tell.
            (None, None) if recorded.done(held.key) == held.offset => {
                self.truth.set_done(held.key, held.offset);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// A new lease.
    fn begin(&mut self, holder: Holder, grant: &Grant) -> Result<(), Broken> {
        if self.newest.is_some_and(|newest| newest >= grant.lease) {
            return Err(Broken::LeaseReused);
        }
        self.newest = Some(grant.lease);
        let live = Live { holder, key: grant.key, offset: grant.resume_at, len: grant.len };
        self.live.insert(grant.lease, live);
        Ok(())
    }

    fn fetched(
        &mut self,
        holder: Holder,
        request: RequestId,
        outcome: &FetchOutcome,
        spec: &DatasetSpec,
    ) -> Result<(), Broken> {
        let counted = self.truth.acked() + self.truth.quarantined();
        match outcome {
            FetchOutcome::EndOfData if counted != world_total(spec) => Err(Broken::SampleLost),
            FetchOutcome::Wait { .. } if self.live.is_empty() => Err(Broken::WaitsForNobody),
            FetchOutcome::Wait { .. } | FetchOutcome::EndOfData | FetchOutcome::AtLimit => Ok(()),
            FetchOutcome::Granted(grant) => {
                if let Some((last, again)) = self.granted.get(&holder)
                    && *last == request
                {
                    return if again == grant { Ok(()) } else { Err(Broken::TwoHolders) };
                }
                if self.live.values().any(|live| live.key == grant.key) {
                    return Err(Broken::TwoHolders);
                }
                let done = self.truth.done(grant.key);
                if grant.resume_at > done {
                    return Err(Broken::SampleLost);
                }
                if grant.resume_at < done || done == grant.len || self.truth.given_up.contains_key(&grant.key)
                {
                    return Err(Broken::SampleTwice);
                }
                self.granted.insert(holder, (request, *grant));
                self.begin(holder, grant)
            }
        }
    }

    fn acked(&mut self, holder: Holder, ack: Ack, outcome: AckOutcome) -> Result<(), Broken> {
        let live = self.live.get_mut(&ack.lease).filter(|live| live.holder == holder);
        let Some(live) = live else {
            let repeated = self.finished.get(&ack.lease) == Some(&(holder, ack.offset));
            return if outcome == AckOutcome::Accepted && !repeated {
                Err(Broken::DeadLeaseCounts)
            } else {
                Ok(())
            };
        };
        if outcome == AckOutcome::StaleLease {
            return Err(Broken::LeaseRefused);
        }
        if ack.offset < live.offset || ack.offset > live.len {
            return Err(Broken::SampleTwice);
        }
        live.offset = ack.offset;
        self.truth.set_done(live.key, ack.offset);
        if live.offset == live.len {
            self.live.remove(&ack.lease);
            self.finished.insert(ack.lease, (holder, ack.offset));
        }
        Ok(())
    }

    fn end(&mut self, holder: Holder, lease: LeaseId) -> Option<Live> {
        self.live.get(&lease).filter(|live| live.holder == holder)?;
        self.live.remove(&lease)
    }

    fn lose(&mut self, node: u32, through: u32) {
        let lives = |holder: &Holder| holder.node.index != node || holder.incarnation.0 > through;
        self.truth.fence(node, through);
        self.live.retain(|_, live| lives(&live.holder));
        self.finished.retain(|_, (holder, _)| lives(holder));
        self.granted.retain(|holder, _| lives(holder));
    }

    /// Whether the ledger's own view of itself is this one.
    pub(crate) fn compare(&self, ledger: &ShardLedger) -> Result<(), Broken> {
        let counts = ledger.counts();
        let doing: u64 = self.live.values().map(|live| live.len - live.offset).sum();
        let leases = ledger.outstanding().map(|lease| {
            (lease.lease, Live { holder: lease.holder, key: lease.key, offset: lease.offset, len: lease.len })
        });
        let ours = (self.truth.acked(), doing, self.truth.quarantined());
        let same = counts.balance()
            && (counts.acked, counts.doing, counts.quarantined) == ours
            && ledger.generation() == self.truth.generation
            && leases.eq(self.live.iter().map(|(id, live)| (*id, *live)));
        if same { Ok(()) } else { Err(Broken::AccountsDiffer) }
    }
}

/// Samples of all epochs.
fn world_total(spec: &DatasetSpec) -> u64 {
    match spec.epochs {
        antdt_shard::Epochs::Finite(epochs) => spec.num_samples * u64::from(epochs),
        antdt_shard::Epochs::Infinite => u64::MAX,
    }
}
