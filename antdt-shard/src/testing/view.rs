//! The visible state of a ledger: its answers to questions that change nothing.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Counts, Epoch, JobTime, Machine, ShardKey};

use crate::ledger::{Answer, Event, LedgerSnapshot, LedgerStatus, Outstanding, Quarantined};
use crate::spec::DatasetSpec;

/// What a ledger says about itself after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) status: LedgerStatus,
    /// The counts of each epoch.
    pub(crate) epochs: Vec<Option<Counts>>,
    pub(crate) outstanding: Vec<Outstanding>,
    pub(crate) quarantined: Vec<Quarantined>,
    pub(crate) snapshot: Box<LedgerSnapshot>,
    /// Offsets and faults of all shards that would wait if no lease were held.
    pub(crate) waiting: BTreeMap<ShardKey, (u64, u32)>,
}

impl View {
    /// Asks a ledger. `None` if it answers another question than it was asked.
    pub(crate) fn of<M>(machine: &mut M, spec: &DatasetSpec) -> Option<Self>
    where
        M: Machine<Event = Event, Answer = Answer>,
    {
        let mut ask = |event| machine.handle(JobTime::ZERO, event);
        let Answer::Status(status) = ask(Event::Status) else { return None };
        let Answer::Outstanding(outstanding) = ask(Event::Outstanding) else { return None };
        let Answer::Quarantined(quarantined) = ask(Event::Quarantined) else { return None };
        let Answer::Snapshot(snapshot) = ask(Event::Snapshot) else { return None };
        let mut epochs = Vec::new();
        for epoch in (0..=spec.epoch_limit()).map(Epoch) {
            let Answer::EpochCounts(counts) = ask(Event::EpochCounts { epoch }) else { return None };
            epochs.push(counts);
        }
        let waiting = snapshot.waiting();
        Some(Self { status, epochs, outstanding, quarantined, snapshot, waiting })
    }

    /// The shards that wait, with their offsets and faults.
    pub(crate) fn todo(&self) -> BTreeMap<ShardKey, (u64, u32)> {
        let out: BTreeSet<ShardKey> = self.outstanding.iter().map(|lease| lease.key).collect();
        self.waiting.iter().filter(|(key, _)| !out.contains(key)).map(|(key, at)| (*key, *at)).collect()
    }

    /// The counts of the job.
    pub(crate) const fn counts(&self) -> Counts {
        self.status.counts
    }
}
