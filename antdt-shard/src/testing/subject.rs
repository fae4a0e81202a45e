//! The subject of a history: a ledger, its log, and the way to it.

use std::collections::BTreeSet;

use antdt_core::{CheckpointId, Epoch, FetchOutcome, Generation, Holder, JobTime, Machine};

use super::block::block_on;
use super::call::{Call, CallReply};
use super::invariant::{Breach, Invariant};
use super::view::View;
use crate::error::ExchangeError;
use crate::ledger::{
    Answer, CutBinding, Effect, Event, LedgerCut, LedgerSnapshot, Missing, Record, Recovery, ShardLedger,
};
use crate::spec::DatasetSpec;
use crate::store::LedgerStore;

/// What a history is played against.
pub(crate) trait Subject {
    /// Tells it of an event.
    fn say(&mut self, call: &Call) -> Result<CallReply, Breach>;
    /// Looks at it.
    fn view(&mut self) -> Result<View, Breach>;
    /// Its answer to [`Event::Missing`].
    fn missing(&mut self, epoch: Epoch, shards: usize) -> Result<Vec<Missing>, Breach>;
    /// Returns the snapshot of its twin.
    fn twin(&mut self) -> Result<Box<LedgerSnapshot>, Breach>;
    /// What was written down so far.
    fn journal(&self) -> Journal;
    /// All records so far.
    fn records(&self) -> Vec<Record>;
    /// Whether a restart may come without the last records.
    fn may_lose_records(&self) -> bool;
    /// Whether calls go through a [`ShardSource`](antdt_core::port::ShardSource), which knows the generation.
    fn is_source(&self) -> bool;
}

/// What was written down so far.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    pub(crate) records: usize,
    /// The newest records, oldest first: as many as an event may leave.
    pub(crate) newest: Vec<Record>,
    /// Their fold.
    pub(crate) fold: LedgerSnapshot,
    /// Holders that were told to wait, and were not woken since.
    pub(crate) waiting: BTreeSet<Holder>,
}

impl Journal {
    /// No event leaves more records.
    pub(crate) const NEWEST: usize = 9;
}

/// Where a subject keeps its records.
pub(crate) trait Log {
    /// Whether it is told how much of it is lost with a crash.
    const MAY_LOSE: bool;
    /// Appends records.
    fn append(&mut self, records: &[Record]) -> Result<(), String>;
    /// The service ends and begins again. `log` is what should be left, of which the first so many were compacted.
    fn reopen(
        &mut self,
        spec: &DatasetSpec,
        log: &[Record],
        compacted: Option<usize>,
    ) -> Result<Recovery, String>;
}

/// Records in memory: what is left of them is what the history says.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ram;

impl Log for Ram {
    const MAY_LOSE: bool = true;

    fn append(&mut self, _records: &[Record]) -> Result<(), String> {
        Ok(())
    }

    fn reopen(
        &mut self,
        spec: &DatasetSpec,
        log: &[Record],
        compacted: Option<usize>,
    ) -> Result<Recovery, String> {
        let mut recovery = fold(spec, &[])?;
        let (old, new) = log.split_at(compacted.unwrap_or(0));
        if compacted.is_some() {
            let base = Record::Base(Box::new(fold(spec, old)?.snapshot()));
            recovery.apply(&base).map_err(|error| error.to_string())?;
        }
        for record in new {
            recovery.apply(record).map_err(|error| error.to_string())?;
        }
        Ok(recovery)
    }
}

/// The state that records give.
pub(crate) fn fold(spec: &DatasetSpec, records: &[Record]) -> Result<Recovery, String> {
    let mut recovery = Recovery::new(spec.clone()).map_err(|error| error.to_string())?;
    for record in records {
        recovery.apply(record).map_err(|error| format!("{record:?} does not follow: {error}"))?;
    }
    Ok(recovery)
}

/// A user's store, which is opened anew whenever the service begins.
pub(crate) struct Opened<F, S> {
    open: F,
    store: Option<S>,
}

impl<F: FnMut() -> S, S> Opened<F, S> {
    pub(crate) fn new(mut open: F) -> Self {
        let store = Some(open());
        Self { open, store }
    }
}

impl<F: FnMut() -> S, S: LedgerStore> Log for Opened<F, S> {
    const MAY_LOSE: bool = false;

    fn append(&mut self, records: &[Record]) -> Result<(), String> {
        let store = self.store.get_or_insert_with(&mut self.open);
        let appended = block_on(store.append(records)).map_err(|late| format!("append: {late}"))?;
        appended.map_err(|error| format!("append of {} records: {error}", records.len()))
    }

    fn reopen(&mut self, spec: &DatasetSpec, log: &[Record], _: Option<usize>) -> Result<Recovery, String> {
        self.store = None; // Before it is opened again: a folder has one store at a time.
        let store = self.store.insert((self.open)());
        let loaded = block_on(store.load(fold(spec, &[])?)).map_err(|late| format!("load: {late}"))?;
        let loaded = loaded.map_err(|error| format!("load of {} records: {error}", log.len()))?;
        let found = loaded.snapshot();
        let mut prefix = fold(spec, &[])?;
        for (at, record) in log.iter().enumerate() {
            if prefix.snapshot() == found {
                return Err(format!(
                    "the store gives {at} of {} records back: {record:?} is gone",
                    log.len()
                ));
            }
            prefix.apply(record).map_err(|error| error.to_string())?;
        }
        if prefix.snapshot() == found {
            return Ok(loaded);
        }
        let (have, want) = (found.counts(), prefix.snapshot().counts());
        Err(format!(
            "the store gives other records back than the {} it got: {have:?}, not {want:?}",
            log.len()
        ))
    }
}

/// A snapshot that is kept outside of the ledger.
#[derive(Debug, Clone)]
enum Kept {
    Snapshot(Box<LedgerSnapshot>),
    Cut(Vec<u8>, CutBinding),
}

/// A ledger and its log. A twin is told the same, and has to say the same.
#[derive(Debug, Clone)]
pub(crate) struct Served<M, F, L> {
    spec: DatasetSpec,
    make: F,
    pub(crate) ledger: M,
    twin: M,
    store: L,
    pub(crate) log: Vec<Record>,
    /// What the log says.
    replay: Recovery,
    generation: Generation,
    /// Whether the last call woke waiting workers.
    pub(crate) woke: bool,
    /// Workers that were told to wait and were not woken since.
    waiting: BTreeSet<Holder>,
    /// Number of times that a waiting worker was woken.
    pub(crate) wakes: u64,
    kept: Vec<Kept>,
}

fn breach(invariant: Invariant, what: impl Into<String>) -> Breach {
    Breach { invariant, what: what.into() }
}

impl<M, F, L> Served<M, F, L>
where
    M: Machine<Event = Event, Answer = Answer, Effect = Effect>,
    F: FnMut(ShardLedger) -> M,
    L: Log,
{
    pub(crate) fn new(spec: DatasetSpec, mut make: F, store: L) -> Result<Self, Breach> {
        let begins = |error: crate::error::RecoverError| breach(Invariant::JournalReplay, error.to_string());
        let generation = super::model::Model::FIRST;
        let ledger = ShardLedger::new(spec.clone(), generation).map_err(begins)?;
        let replay = Recovery::new(spec.clone()).map_err(begins)?;
        let (ledger, twin) = (make(ledger.clone()), make(ledger));
        let mut served = Self {
            spec,
            make,
            ledger,
            twin,
            store,
            log: Vec::new(),
            replay,
            generation,
            woke: false,
            waiting: BTreeSet::new(),
            wakes: 0,
            kept: Vec::new(),
        };
        served.store()?;
        Ok(served)
    }

    fn handle(&mut self, event: Event) -> Result<Answer, Breach> {
        let (answer, again) =
            (self.ledger.handle(JobTime::ZERO, event.clone()), self.twin.handle(JobTime::ZERO, event));
        if answer == again {
            return Ok(answer);
        }
        Err(breach(Invariant::Determinism, format!("one event, two answers: {answer:?} and {again:?}")))
    }

    fn carry_out(&mut self, call: &Call) -> Result<CallReply, Breach> {
        if let Some(event) = event(call) {
            let answer = self.handle(event)?;
            return reply(call, answer).map_err(|answer| {
                breach(Invariant::Refinement, format!("{call:?} was answered {answer:?}"))
            });
        }
        match call {
            Call::Tick { now } => {
                for machine in [&mut self.ledger, &mut self.twin] {
                    if machine.deadline().is_some() {
                        machine.on_deadline(*now);
                    }
                }
            }
            Call::Keep => {
                let snapshot = self.snapshot()?;
                self.kept.push(Kept::Snapshot(snapshot));
            }
            Call::Cut { committed } => {
                let cut = self.snapshot()?.cut(CheckpointId(self.kept.len() as u64), *committed);
                return Ok(CallReply::Cut(
                    cut.map(|cut| self.kept.push(Kept::Cut(cut.to_bytes(), cut.binding()))),
                ));
            }
            Call::Restore { which } => self.restore(*which)?,
            Call::Restart { kept, compacted } => self.restart(*kept, *compacted)?,
            Call::Register { .. }
            | Call::Fetch { .. }
            | Call::Exchange { .. }
            | Call::Ack { .. }
            | Call::Release { .. }
            | Call::Fail { .. }
            | Call::Lost { .. }
            | Call::Freeze { .. }
            | Call::Thaw => unreachable!("these are events"),
        }
        Ok(CallReply::Nothing)
    }

    fn snapshot(&mut self) -> Result<Box<LedgerSnapshot>, Breach> {
        match self.handle(Event::Snapshot)? {
            Answer::Snapshot(snapshot) => Ok(snapshot),
            answer => Err(breach(Invariant::SnapshotRestore, format!("a snapshot is not {answer:?}"))),
        }
    }

    fn restore(&mut self, which: usize) -> Result<(), Breach> {
        let broken = |what: String| breach(Invariant::SnapshotRestore, what);
        let snapshot = match &self.kept[which] {
            Kept::Snapshot(snapshot) => snapshot.clone(),
            Kept::Cut(bytes, model) => {
                let cut = LedgerCut::from_bytes(bytes, &self.spec)
                    .map_err(|error| broken(format!("the bytes of a cut are refused: {error}")))?;
                let other = CutBinding { checkpoint: model.checkpoint.next(), ..*model };
                if cut.check(&other).is_ok() || cut.check(model).is_err() {
                    return Err(broken("a cut belongs to its own model, and to no other".into()));
                }
                Box::new(cut.snapshot().clone())
            }
        };
        let restore = |generation| Event::Restore { snapshot: snapshot.clone(), generation };
        let used = self.generation;
        if self.handle(restore(used))? == Answer::Restore(Ok(())) {
            return Err(breach(Invariant::ExclusiveLease, format!("generation {used} is used twice")));
        }
        self.generation = used.next();
        match self.handle(restore(used.next()))? {
            Answer::Restore(Ok(())) => Ok(()),
            answer => Err(broken(format!("a restore of its own snapshot is answered {answer:?}"))),
        }
    }

    fn restart(&mut self, kept: usize, compacted: Option<usize>) -> Result<(), Breach> {
        let broken = |what: String| breach(Invariant::JournalReplay, what);
        self.log.truncate(kept);
        self.replay = fold(&self.spec, &self.log).map_err(broken)?;
        let recovery = self.store.reopen(&self.spec, &self.log, compacted).map_err(broken)?;
        self.generation = self.generation.next();
        let ledger = recovery.finish(self.generation).map_err(|error| broken(error.to_string()))?;
        self.twin = (self.make)(ledger.clone());
        self.ledger = (self.make)(ledger);
        Ok(())
    }

    /// Takes what has to be stored.
    fn store(&mut self) -> Result<(), Breach> {
        let broken = |what: String| breach(Invariant::JournalReplay, what);
        self.woke = false;
        let mut records = Vec::new();
        loop {
            let (effect, again) = (self.ledger.poll_effect(), self.twin.poll_effect());
            if effect != again {
                let what = format!("one event, two effects: {effect:?} and {again:?}");
                return Err(breach(Invariant::Determinism, what));
            }
            match effect {
                Some(Effect::Record(record)) => {
                    let applied = self.replay.apply(&record);
                    applied.map_err(|error| broken(format!("{record:?} does not follow: {error}")))?;
                    records.push(record);
                }
                Some(Effect::Wake) => self.woke = true,
                None => break,
            }
        }
        if !records.is_empty() {
            self.store.append(&records).map_err(broken)?;
        }
        self.log.append(&mut records);
        Ok(())
    }
}

impl<M, F, L> Subject for Served<M, F, L>
where
    M: Machine<Event = Event, Answer = Answer, Effect = Effect>,
    F: FnMut(ShardLedger) -> M,
    L: Log,
{
    fn say(&mut self, call: &Call) -> Result<CallReply, Breach> {
        let reply = self.carry_out(call)?;
        self.store()?;
        // With the process of the service the calls of waiting workers end too; a restore has to wake them.
        if self.woke || matches!(call, Call::Restart { .. }) {
            self.wakes += u64::from(!self.waiting.is_empty());
            self.waiting.clear();
        }
        if let Some(FetchOutcome::Wait { .. }) = reply.fetched() {
            self.waiting.extend(call.caller());
        }
        Ok(reply)
    }

    fn view(&mut self) -> Result<View, Breach> {
        let none = || breach(Invariant::Refinement, "a question was answered with the answer to another");
        View::of(&mut self.ledger, &self.spec).ok_or_else(none)
    }

    fn twin(&mut self) -> Result<Box<LedgerSnapshot>, Breach> {
        match self.twin.handle(JobTime::ZERO, Event::Snapshot) {
            Answer::Snapshot(snapshot) => Ok(snapshot),
            answer => Err(breach(Invariant::SnapshotRestore, format!("a snapshot is not {answer:?}"))),
        }
    }

    fn missing(&mut self, epoch: Epoch, shards: usize) -> Result<Vec<Missing>, Breach> {
        match self.ledger.handle(JobTime::ZERO, Event::Missing { epoch, shards }) {
            Answer::Missing(missing) => Ok(missing),
            answer => Err(breach(Invariant::Refinement, format!("what is missing is not {answer:?}"))),
        }
    }

    fn journal(&self) -> Journal {
        let newest = self.log[self.log.len().saturating_sub(Journal::NEWEST)..].to_vec();
        let (records, fold) = (self.log.len(), self.replay.snapshot());
        Journal { records, newest, fold, waiting: self.waiting.clone() }
    }

    fn records(&self) -> Vec<Record> {
        self.log.clone()
    }

    fn may_lose_records(&self) -> bool {
        L::MAY_LOSE
    }

    fn is_source(&self) -> bool {
        false
    }
}

/// The event that a call is; `None` if it is none of the ledger's.
fn event(call: &Call) -> Option<Event> {
    Some(match call.clone() {
        Call::Register { holder, held } => Event::Register { holder, held },
        Call::Fetch { holder, generation, request } => {
            Event::Exchange { holder, generation, request, acks: Vec::new().into(), want: 1 }
        }
        Call::Exchange { holder, generation, request, acks, want } => {
            Event::Exchange { holder, generation, request, acks: acks.into(), want }
        }
        Call::Ack { holder, acks } => Event::Settle { holder, acks },
        Call::Release { holder, acks } => Event::Release { holder, acks },
        Call::Fail { holder, ack } => Event::Fail { holder, ack },
        Call::Lost { holder } => Event::WorkerLost { holder },
        Call::Freeze { until } => Event::Freeze { until },
        Call::Thaw => Event::Thaw,
        Call::Tick { .. } | Call::Keep | Call::Cut { .. } | Call::Restore { .. } | Call::Restart { .. } => {
            return None;
        }
    })
}

/// The answer to a call, unless it is one to another call.
fn reply(call: &Call, answer: Answer) -> Result<CallReply, Box<Answer>> {
    Ok(match (call, answer) {
        (Call::Register { .. }, Answer::Register(registered)) => CallReply::Registered(registered),
        (Call::Fetch { .. }, Answer::Exchange(Ok(exchanged))) => match exchanged.fetched {
            Some(fetched) => CallReply::Fetched(Ok(fetched)),
            None => return Err(Box::new(Answer::Exchange(Ok(exchanged)))),
        },
        (Call::Fetch { .. }, Answer::Exchange(Err(ExchangeError::Fetch(error)))) => {
            CallReply::Fetched(Err(error))
        }
        (Call::Exchange { .. }, Answer::Exchange(exchanged)) => CallReply::Exchanged(exchanged),
        (Call::Ack { .. } | Call::Release { .. }, Answer::Ack(outcomes)) => CallReply::Acked(outcomes),
        (Call::Fail { .. }, Answer::Fail(outcome)) => CallReply::Failed(outcome),
        (Call::Lost { .. }, Answer::WorkerLost) | (Call::Freeze { .. } | Call::Thaw, Answer::Frozen) => {
            CallReply::Nothing
        }
        (_, answer) => return Err(Box::new(answer)),
    })
}
