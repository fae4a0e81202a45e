//! The histories and invariants as a user has them: over stores, sources and ledgers with planted defects, each of which
//! must be found, shrunk to a few steps, named, and found again by the line that replays it.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_core::port::ShardSource;
use antdt_core::{
    Ack, AckOutcome, Epoch, Exchanged, FetchOutcome, Grant, Held, Holder, JobTime, Machine, Registered,
    RequestId, Seed,
};
use antdt_shard::error::SourceError;
use antdt_shard::testing::{History, Invariant, Invariants, LedgerSource, Violation, find_break, history};
use antdt_shard::{
    Answer, Effect, Event, LedgerSnapshot, LedgerStore, MemStore, Record, RecoverError, Recovery, ShardLedger,
};

/// Plays random histories; the violation of the smallest history that breaks a promise.
fn broken(check: impl Fn(&History) -> Result<(), Violation>) -> Option<Violation> {
    let violation = find_break(200, history::any(), check).err()?;
    assert!(violation.history().steps().len() <= 12, "not small: {:?}", violation.history());
    Some(violation)
}

/// A store that forgets the last record of those that it kept when it is opened again.
struct Forgetful(MemStore);

impl LedgerStore for Forgetful {
    type Error = RecoverError;

    async fn load(&mut self, mut recovery: Recovery) -> Result<Recovery, RecoverError> {
        let records = self.0.records();
        for record in &records[..records.len().saturating_sub(1)] {
            recovery.apply(record)?;
        }
        Ok(recovery)
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), RecoverError> {
        self.0.append(records).await
    }
}

/// A store that keeps no acks.
struct Thrifty(MemStore);

impl LedgerStore for Thrifty {
    type Error = RecoverError;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, RecoverError> {
        self.0.load(recovery).await
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), RecoverError> {
        let kept = records.iter().filter(|record| !matches!(record, Record::Acked { .. }));
        let kept: Vec<_> = kept.cloned().collect();
        self.0.append(&kept).await
    }
}

/// A store that never answers.
struct Silent;

impl LedgerStore for Silent {
    type Error = RecoverError;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, RecoverError> {
        Ok(recovery)
    }

    async fn append(&mut self, _records: &[Record]) -> Result<(), RecoverError> {
        Err(Recovery::new(antdt_shard::DatasetSpec::new("", 1, 1)).unwrap_err())
    }
}

#[test]
fn a_store_that_keeps_everything_breaks_nothing() {
    let sound = broken(|history| {
        let disk = MemStore::default();
        Invariants::all().check(history, || disk.clone())
    });
    assert_eq!(sound, None);
}

#[test]
fn a_store_that_forgets_its_last_record_is_found() {
    let violation = broken(|history| {
        let disk = MemStore::default();
        Invariants::all().check(history, || Forgetful(disk.clone()))
    });
    let violation = violation.unwrap();
    assert_eq!(violation.invariant(), Invariant::JournalReplay);
    assert!(violation.what().ends_with("is gone"), "{violation}");
}

#[test]
fn a_store_that_keeps_no_acks_is_found() {
    let violation = broken(|history| {
        let disk = MemStore::default();
        Invariants::all().check(history, || Thrifty(disk.clone()))
    });
    let violation = violation.unwrap();
    assert_eq!(violation.invariant(), Invariant::JournalReplay);
    assert!(violation.history().steps().len() >= 2, "an ack follows a registration and a grant: {violation}");
}

#[test]
fn a_store_that_fails_is_found() {
    let violation = broken(|history| Invariants::all().check(history, || Silent)).unwrap();
    assert_eq!((violation.invariant(), violation.step()), (Invariant::JournalReplay, 0));
    assert!(violation.what().starts_with("append of 1 records: "), "{violation}");
}

/// What is wrong with a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// Every question is asked twice, as after an answer that was lost. A source may do so.
    Repeats,
    /// Acks are answered and not sent.
    SwallowsAcks,
    /// A worker that should wait is sent home.
    EndsEarly,
    /// The first grants are given to every worker that asks.
    Caches,
}

struct Source {
    inner: LedgerSource,
    fault: Fault,
    cached: Arc<Mutex<Option<Exchanged>>>,
}

impl ShardSource for Source {
    type Error = SourceError;

    async fn register(&self, holder: Holder, held: &[Held]) -> Result<Registered, SourceError> {
        self.inner.register(holder, held).await
    }

    async fn exchange(
        &self,
        holder: Holder,
        request: RequestId,
        acks: &[Ack],
        want: u32,
        wait: Duration,
    ) -> Result<Exchanged, SourceError> {
        if self.fault == Fault::SwallowsAcks && want == 0 && !acks.is_empty() {
            let outcomes = acks.iter().map(|_| AckOutcome::Accepted).collect();
            return Ok(Exchanged { outcomes, ..Exchanged::default() });
        }
        if let (Fault::Caches, Some(cached)) = (self.fault, self.cached.lock().unwrap().clone()) {
            return Ok(cached);
        }
        if self.fault == Fault::Repeats && acks.is_empty() && want > 0 {
            let _lost = self.inner.exchange(holder, request, acks, want, wait).await;
        }
        let mut exchanged = self.inner.exchange(holder, request, acks, want, wait).await?;
        if let (Fault::EndsEarly, Some(FetchOutcome::Wait { .. })) = (self.fault, exchanged.fetched) {
            exchanged.fetched = Some(FetchOutcome::EndOfData);
        }
        if let Some(FetchOutcome::Granted(_)) = exchanged.fetched {
            *self.cached.lock().unwrap() = Some(exchanged.clone());
        }
        Ok(exchanged)
    }

    async fn release(&self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, SourceError> {
        self.inner.release(holder, acks).await
    }

    async fn fail(&self, holder: Holder, ack: Ack, why: &str) -> Result<AckOutcome, SourceError> {
        self.inner.fail(holder, ack, why).await
    }
}

#[test]
fn a_defect_of_a_source_is_found_and_named() {
    let cases = [
        (Fault::Nothing, vec![]),
        (Fault::Repeats, vec![]),
        (
            Fault::SwallowsAcks,
            vec![Invariant::ExactlyOnceAck, Invariant::ExclusiveLease, Invariant::OneState],
        ),
        (Fault::EndsEarly, vec![Invariant::Coverage]),
        (Fault::Caches, vec![Invariant::ExclusiveLease, Invariant::OneState]),
    ];
    for (fault, names) in cases {
        let violation = broken(|history| {
            let cached = Arc::default();
            let wrap = |inner| Source { inner, fault, cached: Arc::clone(&cached) };
            Invariants::all().check_source(history, wrap)
        });
        match violation {
            None => assert!(names.is_empty(), "{fault:?} was not found"),
            Some(found) => assert!(names.contains(&found.invariant()), "{fault:?}: {found}"),
        }
    }
}

/// A ledger with a defect, by the promise that it breaks; sound without one.
struct Broken {
    inner: ShardLedger,
    breaks: Option<Invariant>,
    /// The second of a pair that is made.
    second: bool,
    first_snapshot: Option<Box<LedgerSnapshot>>,
    first_grant: Option<Grant>,
    requests: u64,
    ended: bool,
}

impl Broken {
    fn new(inner: ShardLedger, breaks: Option<Invariant>, second: bool) -> Self {
        let (first_snapshot, first_grant) = (None, None);
        Self { inner, breaks, second, first_snapshot, first_grant, requests: 0, ended: false }
    }

    fn is(&self, invariant: Invariant) -> bool {
        self.breaks == Some(invariant)
    }

    /// The event as the inner ledger hears of it; or the answer, if it does not.
    fn before(&mut self, event: Event) -> Result<Event, Box<Answer>> {
        Ok(match event {
            Event::Exchange { holder, generation, request, acks, mut want } => {
                if self.is(Invariant::ExactlyOnceAck) && want == 0 && !acks.is_empty() {
                    let outcomes = acks.iter().map(|_| AckOutcome::Accepted).collect();
                    return Err(Box::new(Answer::Exchange(Ok(Exchanged {
                        outcomes,
                        ..Exchanged::default()
                    }))));
                }
                let mut asked = request;
                if self.is(Invariant::IdempotentFetch) {
                    self.requests += 1;
                    asked = RequestId(request.0 * 1_000 + self.requests);
                }
                if self.is(Invariant::FairShare) && want == 1 {
                    want = 3;
                }
                Event::Exchange { holder, generation, request: asked, acks, want }
            }
            Event::Settle { holder, acks } if self.is(Invariant::MonotoneOffset) && acks.len() > 1 => {
                let _first = self.inner.settle(holder, &acks[..1]);
                Event::Settle { holder, acks }
            }
            Event::WorkerLost { .. } if self.is(Invariant::Fencing) => {
                return Err(Box::new(Answer::WorkerLost));
            }
            Event::WorkerLost { holder } if self.is(Invariant::InfrastructureIsFree) => {
                let leases: Vec<_> =
                    self.inner.outstanding().filter(|lease| lease.holder == holder).collect();
                for lease in leases {
                    let _faulty = self.inner.fail(holder, Ack { lease: lease.lease, offset: lease.offset });
                }
                Event::WorkerLost { holder }
            }
            Event::Fail { holder, ack } if self.is(Invariant::Quarantine) => {
                let released = self.inner.release(holder, &[ack]);
                return Err(Box::new(Answer::Fail(released.map(|outcomes| outcomes[0]))));
            }
            event => event,
        })
    }

    fn spoil(&mut self, grant: &mut Grant, holder: Holder) {
        if self.is(Invariant::Partition) {
            grant.start += 1;
        }
        if self.is(Invariant::ExclusiveLease) {
            grant.lease.sequence = 1;
        }
        if self.is(Invariant::Resume) {
            grant.resume_at = 0;
        }
        if self.is(Invariant::OrderOfSamples) {
            grant.seed = Some(Seed(holder.node.index.into()));
        }
        if self.is(Invariant::EpochWindow) {
            grant.key.epoch = Epoch(grant.key.epoch.0 + 1);
        }
    }

    fn after(&mut self, mut answer: Answer, holder: Option<Holder>) -> Answer {
        match &mut answer {
            Answer::Exchange(Ok(exchanged)) => {
                let mut grants: Vec<Grant> = exchanged.grants().collect();
                grants.iter_mut().for_each(|grant| self.spoil(grant, holder.unwrap()));
                if self.is(Invariant::Permutation) {
                    grants.reverse();
                }
                self.first_grant = self.first_grant.or(grants.first().copied());
                if let Some(FetchOutcome::Granted(grant)) = &mut exchanged.fetched {
                    *grant = grants.remove(0);
                    exchanged.more = grants;
                }
                if let Some(FetchOutcome::Wait { retry_after }) = &mut exchanged.fetched {
                    if self.is(Invariant::Refinement) || self.is(Invariant::Determinism) && self.second {
                        *retry_after *= 2;
                    }
                    if self.is(Invariant::LeaseCap) {
                        exchanged.fetched = Some(FetchOutcome::AtLimit);
                    } else if self.is(Invariant::Coverage) {
                        exchanged.fetched = Some(FetchOutcome::EndOfData);
                    }
                }
                if let (Some(FetchOutcome::EndOfData), Some(first)) = (exchanged.fetched, self.first_grant) {
                    if self.ended && self.is(Invariant::NoEarlyEnd) {
                        exchanged.fetched = Some(FetchOutcome::Granted(first));
                    }
                    self.ended = true;
                }
            }
            Answer::Outstanding(leases) if self.is(Invariant::OneState) => {
                leases.pop();
            }
            Answer::Status(status) if self.is(Invariant::Accounting) => status.counts.acked += 1,
            Answer::Snapshot(snapshot) if self.is(Invariant::SnapshotRestore) => {
                *snapshot = self.first_snapshot.get_or_insert_with(|| snapshot.clone()).clone();
            }
            _ => {}
        }
        answer
    }
}

impl Machine for Broken {
    type Event = Event;
    type Answer = Answer;
    type Effect = Effect;

    fn handle(&mut self, now: JobTime, event: Event) -> Answer {
        let holder = if let Event::Exchange { holder, .. } = &event { Some(*holder) } else { None };
        match self.before(event) {
            Ok(event) => {
                let answer = self.inner.handle(now, event);
                self.after(answer, holder)
            }
            Err(answer) => *answer,
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        loop {
            match self.inner.poll_effect()? {
                Effect::Wake if self.is(Invariant::Progress) => {}
                Effect::Record(Record::Acked { .. }) if self.is(Invariant::JournalReplay) => {}
                effect => return Some(effect),
            }
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.inner.deadline()
    }

    fn on_deadline(&mut self, now: JobTime) {
        self.inner.on_deadline(now);
    }
}

fn check_broken(
    history: &History,
    invariants: &Invariants,
    breaks: Option<Invariant>,
) -> Result<(), Violation> {
    let mut made = 0_u32;
    invariants.check_ledger(history, |inner| {
        made += 1;
        Broken::new(inner, breaks, made.is_multiple_of(2))
    })
}

#[test]
fn a_sound_ledger_breaks_nothing() {
    assert_eq!(broken(|history| check_broken(history, &Invariants::all(), None)), None);
}

#[test]
fn every_promise_that_is_broken_is_found_by_its_own_check() {
    for invariant in Invariant::ALL {
        let only = Invariants::only([invariant]);
        let violation = broken(|history| check_broken(history, &only, Some(invariant)));
        let violation = violation.unwrap_or_else(|| panic!("{invariant} was broken and not found"));
        assert_eq!(violation.invariant(), invariant, "{violation}");
    }
}

#[test]
fn every_broken_promise_is_found_when_all_are_checked() {
    for invariant in Invariant::ALL {
        let violation = broken(|history| check_broken(history, &Invariants::all(), Some(invariant)));
        assert!(violation.is_some(), "{invariant} was broken and nothing was found");
    }
}

#[test]
fn a_line_that_is_none_is_refused_by_name() {
    for (line, expected) in
        [("", "history = "), ("{}", "history = "), (r#"{"spec":{"name":"x"},"steps":[]}"#, "history = ")]
    {
        let error = line.parse::<History>().unwrap_err().to_string();
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
    }
    let spec = antdt_shard::DatasetSpec::new("large", 1 << 40, 1 << 20);
    let error = History::new(spec, Vec::new()).unwrap_err().to_string();
    assert_eq!(error, "num_samples = 1099511627776: must be at most 65536 over all epochs of a history");
}

/// The grant that arrives late is in the log before the service begins again.
#[test]
fn records_of_a_late_call_just_before_a_restart_are_in_a_foreign_store() {
    let spec = r#"{"name":"history","num_samples":1,"cut":{"Every":1},"epochs":{"Finite":1},"shuffle":"None","seed":0,"epoch_overlap":0,"delivery":"AtLeastOnce","max_data_faults":1,"on_quarantine":"FailJob","max_leases_per_holder":1,"assignment":"Dynamic"}"#;
    let ask = |want| {
        format!(
            r#"{{"exchange":{{"node":0,"life":0,"back":0,"generations_back":0,"forgetful":false,"acks":[],"want":{want}}}}}"#
        )
    };
    let steps = [
        r#"{"register":{"node":0,"life":0,"held":[]}}"#.to_owned(),
        format!(r#"{{"late":{{"by":2,"step":{}}}}}"#, ask(1)),
        ask(0),
        r#"{"restart":{"lost":0,"compacted":null}}"#.to_owned(),
    ];
    let line = format!(r#"{{"spec":{spec},"steps":[{}]}}"#, steps.join(","));
    let disk = MemStore::default();
    Invariants::all().check(&history::replay(&line), || disk.clone()).unwrap();
}
