//! The service: the real ledger, a journal of its records, and what a crash leaves of both.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher};

use antdt_core::{Ack, JobTime, Machine};
use antdt_shard::{Answer, DatasetSpec, Effect, Event, LedgerSnapshot, Record, Recovery, ShardLedger};

use super::witness::{Broken, Truth, Witness};

/// Records that a crash may take with it.
const TAIL: usize = 2;

/// A defect of the service around the ledger, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Acks are answered and never written down.
    AnswersBeforeItRecords,
    /// A caller that names the number of a lease is taken for its holder, in any generation.
    TakesTheLeaseAsProofOfItsHolder,
    /// After a crash it goes on in the generation in which it was.
    KeepsNoGenerations,
}

/// The end of the journal, which a crash may take, and what is before it.
#[derive(Debug, Clone)]
struct Journal {
    durable: Recovery,
    durable_truth: Truth,
    /// Each with what was true when it was written.
    tail: VecDeque<(Record, Truth)>,
}

/// What stands for a service in a comparison.
#[derive(Debug, Clone, Copy)]
struct Prints {
    all: u64,
    ledger: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Service {
    ledger: ShardLedger,
    pub(crate) witness: Witness,
    /// `None` when there will be no crash any more.
    journal: Option<Journal>,
    /// What the records say, wherever they went.
    recorded: Truth,
    /// A snapshot that the ledger can be set back to, and what was true then.
    kept: Option<(LedgerSnapshot, Truth)>,
    flaw: Option<Flaw>,
    prints: Option<Prints>,
}

impl Service {
    pub(crate) fn start(spec: &DatasetSpec, flaw: Option<Flaw>, crashes: bool) -> Self {
        let generation = antdt_core::Generation(1);
        let durable = Recovery::new(spec.clone()).expect("a valid data set");
        let journal = Journal { durable, durable_truth: Truth::default(), tail: VecDeque::new() };
        let mut service = Self {
            ledger: ShardLedger::new(spec.clone(), generation).expect("a valid data set"),
            witness: Witness::default(),
            journal: crashes.then_some(journal),
            recorded: Truth::default(),
            kept: None,
            flaw,
            prints: Some(Prints { all: 0, ledger: 0 }),
        };
        service.witness.begin_generation(generation);
        service.write_down().expect("the first record is that of the generation");
        service.take_prints();
        service
    }

    pub(crate) fn print(&self) -> u64 {
        self.prints.map_or(0, |prints| prints.all)
    }

    /// A copy that will not be compared, crash or be set back.
    pub(crate) fn bare(&self) -> Self {
        Self {
            ledger: self.ledger.clone(),
            witness: self.witness.clone(),
            journal: None,
            recorded: self.recorded.clone(),
            kept: None,
            flaw: self.flaw,
            prints: None,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.ledger.is_finished()
    }

    pub(crate) fn has_snapshot(&self) -> bool {
        self.kept.is_some()
    }

    /// An event comes in. What it is answered with.
    pub(crate) fn handle(&mut self, event: &Event) -> Result<Answer, Broken> {
        let before = self.prints.map(|prints| prints.ledger);
        let given = self.given(event);
        let answer = self.ledger.handle(JobTime::ZERO, given);
        let records = self.write_down();
        let changed = before.is_some_and(|before| before != print(&self.ledger));
        self.witness.hear(event, &answer, changed, &self.recorded, self.ledger.spec())?;
        self.witness.compare(&self.ledger)?;
        records?;
        if self.recorded != self.witness.truth {
            return Err(Broken::RecordsDiffer);
        }
        self.take_prints();
        Ok(answer)
    }

    /// What the ledger is told of an event: the event, if the service is sound.
    fn given(&self, event: &Event) -> Event {
        if self.flaw == Some(Flaw::TakesTheLeaseAsProofOfItsHolder)
            && let Event::Exchange { acks, .. } = event
            && let Some(ack) = acks.first()
            && let Some(owner) = self.ledger.outstanding().find(|l| l.lease.sequence == ack.lease.sequence)
        {
            return Event::Settle { holder: owner.holder, acks: vec![Ack { lease: owner.lease, ..*ack }] };
        }
        event.clone()
    }

    /// The process dies, the last `lost` of its records with it, and another one begins.
    pub(crate) fn crash(&mut self, lost: usize) -> Result<(), Broken> {
        let Some(Journal { mut durable, durable_truth, mut tail }) = self.journal.take() else {
            return Ok(());
        };
        tail.truncate(tail.len() - lost);
        for (record, _) in &tail {
            durable.apply(record).map_err(|_| Broken::RecordsDiffer)?;
        }
        let truth = tail.pop_back().map_or(durable_truth, |(_, truth)| truth);
        let current = self.witness.truth.generation;
        let generation = match self.flaw {
            Some(Flaw::KeepsNoGenerations) => current,
            _ => durable.snapshot().generation().unwrap_or_default().next(),
        };
        if generation <= current {
            return Err(Broken::GenerationNotNewer);
        }
        self.ledger = durable.finish(generation).map_err(|_| Broken::GenerationNotNewer)?;
        self.recorded.clone_from(&truth);
        self.witness.truth = truth;
        self.witness.begin_generation(generation);
        self.write_down()?;
        self.take_prints();
        self.witness.compare(&self.ledger)
    }

    pub(crate) fn keep(&mut self) {
        self.kept = Some((self.ledger.snapshot(), self.witness.truth.clone()));
        self.take_prints();
    }

    /// The ledger is set back to the kept snapshot.
    pub(crate) fn set_back(&mut self) -> Result<(), Broken> {
        let Some((snapshot, truth)) = self.kept.clone() else { return Ok(()) };
        let generation = self.witness.truth.generation.next();
        let event = Event::Restore { snapshot: Box::new(snapshot), generation };
        let Answer::Restore(Ok(())) = self.ledger.handle(JobTime::ZERO, event) else {
            return Err(Broken::GenerationNotNewer);
        };
        self.witness.restored = Some(self.witness.truth.generation);
        self.witness.truth.set_back(&truth);
        self.witness.begin_generation(generation);
        self.write_down()?;
        self.kept = None;
        self.take_prints();
        self.witness.compare(&self.ledger)?;
        if self.recorded == self.witness.truth { Ok(()) } else { Err(Broken::RecordsDiffer) }
    }

    /// There will be no crash any more.
    pub(crate) fn forget_journal(&mut self) {
        if self.journal.take().is_some() {
            self.take_prints();
        }
    }

    /// How many of the last records a crash may lose.
    pub(crate) fn at_risk(&self) -> Option<usize> {
        self.journal.as_ref().map(|journal| journal.tail.len())
    }

    /// Takes the ledger's records into the journal. That of a generation is durable, with all before it, before the
    /// generation begins.
    fn write_down(&mut self) -> Result<(), Broken> {
        let kept = self.kept.as_ref().map(|(_, truth)| truth);
        while let Some(effect) = self.ledger.poll_effect() {
            let Effect::Record(record) = effect else { continue };
            if self.flaw == Some(Flaw::AnswersBeforeItRecords) && matches!(record, Record::Acked { .. }) {
                continue;
            }
            self.recorded.record(&record, self.ledger.spec(), kept);
            let Some(journal) = &mut self.journal else { continue };
            let begins = matches!(record, Record::GenerationStarted { .. });
            journal.tail.push_back((record, self.recorded.clone()));
            while journal.tail.len() > if begins { 0 } else { TAIL } {
                let (record, truth) = journal.tail.pop_front().expect("there is more than none");
                journal.durable.apply(&record).map_err(|_| Broken::RecordsDiffer)?;
                journal.durable_truth = truth;
            }
        }
        Ok(())
    }

    /// `Debug` shows every field of a ledger, in a fixed order.
    fn take_prints(&mut self) {
        if self.prints.take().is_some() {
            let all = print(&(&self.ledger, &self.witness, &self.journal, &self.recorded, &self.kept));
            self.prints = Some(Prints { all, ledger: print(&self.ledger) });
        }
    }
}

fn print(of: &impl fmt::Debug) -> u64 {
    struct Print(DefaultHasher);
    impl fmt::Write for Print {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut print = Print(DefaultHasher::new());
    write!(print, "{of:?}").expect("hashing does not fail");
    print.0.finish()
}
