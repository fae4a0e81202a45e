//! Little histories by hand, for the tests of the checkers: three shards of ten samples, in the order of the data set.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_agent::{Batch, Batcher};
use antdt_core::{
    Ack, AckOutcome, Counts, DeviceClass, Epoch, Exchanged, FetchOutcome, Generation, Grant, Holder,
    Incarnation, JobTime, Joined, LeaseId, MembershipVersion, NodeId, NodeInfo, Plan, PlanVersion,
    Registered, RequestId, RollbackId, ShardKey, StepCommit, StepResult,
};
use antdt_job::{Call, EventKind, HeadAnswer, HeadEffect, HeadEvent, Note, Registration, Reply};
use antdt_shard::ledger::{Answer, Event, LedgerStatus, Record};
use antdt_shard::{DatasetSpec, Shuffle};

use super::Invariant;
use crate::happening::Happening;

pub(super) fn spec() -> DatasetSpec {
    DatasetSpec { shuffle: Shuffle::None, ..DatasetSpec::new("train", 30, 10) }
}

pub(super) fn holder(index: u32) -> Holder {
    life(index, 0)
}

pub(super) fn life(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

pub(super) fn lease(sequence: u64) -> LeaseId {
    LeaseId { generation: Generation(1), sequence }
}

pub(super) fn grant(sequence: u64, index: u64, resume_at: u64) -> Grant {
    let key = ShardKey { epoch: Epoch(0), index };
    Grant { lease: lease(sequence), key, start: index * 10, len: 10, resume_at, seed: None }
}

pub(super) fn ack(sequence: u64, offset: u64) -> Ack {
    Ack { lease: lease(sequence), offset }
}

/// A plan for the first workers, in the first group.
pub(super) fn plan(version: u64, sizes: &[u32]) -> Plan {
    let sizes = sizes.iter().zip(0..).map(|(size, index)| (NodeId::worker(index), *size)).collect();
    Plan::new(PlanVersion(version), MembershipVersion(1), sizes)
}

/// What the members of a group are told.
pub(super) fn joined(membership: u64, members: &[Holder], plan: Plan, next_step: u64) -> Joined {
    Joined {
        membership: MembershipVersion(membership),
        members: members.iter().map(|holder| (*holder, String::new())).collect(),
        commit_prepared: false,
        source: None,
        next_step,
        plan,
        last_commit: None,
        pushes: [].into(),
        rollback: RollbackId(0),
        checkpoint: None,
        servers: [].into(),
        finished: false,
    }
}

/// The master's answer to a worker's question: it averages in this group.
pub(super) fn group_go(to: u32, asked: u64, group: u64, members: &[u32]) -> HeadEffect {
    let contributors = members.iter().map(|index| (holder(*index), Vec::new())).collect::<BTreeMap<_, _>>();
    let contributors = contributors.into();
    let commit = StepCommit {
        step: group,
        contributors,
        asked,
        counted: true,
        everyone: true,
        ..StepCommit::default()
    };
    HeadEffect::Committed(holder(to), Box::new(commit))
}

/// The master's answer to a worker that has averaged: the group is committed.
pub(super) fn group_commit(to: u32, asked: u64, group: u64, members: &[u32]) -> HeadEffect {
    assert!(asked % 2 == 1, "an even question asks for a group");
    group_go(to, asked, group, members)
}

/// The result of a step to which the holders contributed these acks.
pub(super) fn result(step: u64, acks: &[(Holder, Ack)]) -> StepResult {
    let contributions = acks
        .iter()
        .map(|(holder, ack)| antdt_core::Contribution { holder: *holder, acks: vec![*ack].into() })
        .collect();
    StepResult { step, contributions }
}

/// A call that says nothing to a checker.
pub(super) const IDLE: Call = Call::Sleep(Duration::ZERO);

/// A batch of the first samples of a shard.
pub(super) fn batch(len: u64) -> Batch {
    let mut batcher = Batcher::new();
    batcher.granted(Grant { len: len.max(1), ..grant(1, 0, 0) });
    batcher.take(len)
}

/// A worker that registers, and takes batches of these sizes.
pub(super) fn registered(
    holder: Holder,
    batch_size_min: u32,
    batch_size_max: u32,
) -> (HeadEvent, HeadAnswer) {
    let info = NodeInfo {
        holder,
        host: String::new(),
        device: DeviceClass::default(),
        memory_bytes: None,
        batch_size_min,
        batch_size_max,
    };
    let registration = Registration { info, data_address: String::new(), process_id: 1 };
    let answer = HeadAnswer::Registered { heartbeat: Duration::ZERO, plan: None };
    (HeadEvent::Register(registration), answer)
}

/// The note of an action.
pub(super) fn action(seconds: u64, kind: &'static str, target: &str) -> HeadEffect {
    let (target, reason) = (target.to_owned(), "a reason".to_owned());
    note(seconds, Note::Action { kind, target, reason })
}

/// The note of an event.
pub(super) fn event(seconds: u64, node: &str, kind: EventKind) -> HeadEffect {
    note(seconds, Note::Event { node: node.parse().ok(), kind, text: String::new() })
}

fn note(seconds: u64, note: Note) -> HeadEffect {
    HeadEffect::Note { at: JobTime::ZERO + Duration::from_secs(seconds), note }
}

/// A history, and whether the invariant held in it so far.
pub(super) struct History<I> {
    invariant: I,
    now: JobTime,
    held: Result<(), String>,
}

impl<I: Invariant> History<I> {
    pub(super) fn new(invariant: I) -> Self {
        Self { invariant, now: JobTime::ZERO, held: Ok(()) }
    }

    pub(super) fn saw(&mut self, what: &Happening<'_>) -> &mut Self {
        if self.held.is_ok() {
            self.held = self.invariant.saw(self.now, what);
        }
        self
    }

    pub(super) fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = JobTime::ZERO + Duration::from_secs(seconds);
        self
    }

    #[track_caller]
    pub(super) fn holds(&mut self) -> &mut Self {
        assert_eq!(self.held, Ok(()));
        self
    }

    #[track_caller]
    pub(super) fn fails(&mut self, part: &str) {
        let error = self.held.clone().expect_err("the invariant holds");
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }

    pub(super) fn finish(&mut self) -> &mut Self {
        if self.held.is_ok() {
            self.held = self.invariant.finish(self.now);
        }
        self
    }

    pub(super) fn ledger(&mut self, event: &Event, answer: &Answer) -> &mut Self {
        self.saw(&Happening::Ledger(event, answer))
    }

    pub(super) fn generation(&mut self, number: u64) -> &mut Self {
        self.saw(&Happening::Record(&Record::GenerationStarted { generation: Generation(number) }))
    }

    pub(super) fn register(&mut self, holder: Holder) -> &mut Self {
        let registered = Registered { generation: Generation(1), adopted: vec![] };
        self.ledger(&Event::Register { holder, held: vec![] }, &Answer::Register(Ok(registered)))
    }

    pub(super) fn fetched(&mut self, holder: Holder, request: u64, outcome: FetchOutcome) -> &mut Self {
        self.exchanged(holder, request, &Exchanged { fetched: Some(outcome), ..Exchanged::default() })
    }

    pub(super) fn granted(&mut self, holder: Holder, request: u64, grants: &[Grant]) -> &mut Self {
        let fetched = grants.first().map(|grant| FetchOutcome::Granted(*grant));
        let more = grants.get(1..).unwrap_or_default().to_vec();
        self.exchanged(holder, request, &Exchanged { fetched, more, ..Exchanged::default() })
    }

    fn exchanged(&mut self, holder: Holder, request: u64, exchanged: &Exchanged) -> &mut Self {
        let (generation, request) = (Generation(1), RequestId(request));
        let event = Event::Exchange { holder, generation, request, acks: vec![].into(), want: 1 };
        self.ledger(&event, &Answer::Exchange(Ok(exchanged.clone())))
    }

    pub(super) fn settled(&mut self, holder: Holder, acks: &[Ack], outcomes: &[AckOutcome]) -> &mut Self {
        self.ledger(&Event::Settle { holder, acks: acks.to_vec() }, &Answer::Ack(Ok(outcomes.to_vec())))
    }

    pub(super) fn lost(&mut self, holder: Holder) -> &mut Self {
        self.ledger(&Event::WorkerLost { holder }, &Answer::WorkerLost)
    }

    pub(super) fn recorded_ack(&mut self, position: u64, offset: u64) -> &mut Self {
        self.saw(&Happening::Record(&Record::Acked { epoch: Epoch(0), position, offset }))
    }

    pub(super) fn status(&mut self, counts: Counts) -> &mut Self {
        let finished = counts.acked + counts.quarantined == counts.total;
        let status = LedgerStatus { generation: Generation(1), counts, finished, failed: false };
        self.ledger(&Event::Status, &Answer::Status(status))
    }

    pub(super) fn head(&mut self, event: &HeadEvent, answer: &HeadAnswer) -> &mut Self {
        self.saw(&Happening::Head(event, answer))
    }

    pub(super) fn effect(&mut self, effect: &HeadEffect) -> &mut Self {
        self.saw(&Happening::Effect(effect))
    }

    pub(super) fn worker(&mut self, holder: Holder, reply: &Reply, call: &Call) -> &mut Self {
        self.saw(&Happening::Worker(holder, reply, call))
    }

    #[allow(clippy::needless_pass_by_value, reason = "reads like the story it is")]
    pub(super) fn ended(&mut self, result: Result<(), String>) -> &mut Self {
        self.saw(&Happening::Ended(&result))
    }
}
