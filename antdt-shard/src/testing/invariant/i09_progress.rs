//! As long as one worker (of each share) lives, fetches and acknowledges, every history ends within a known
//! number of events, which is checked at the end of each history. A waiting worker is woken as soon as a
//! shard can be granted.

use antdt_core::{Ack, FetchOutcome, Holder, Incarnation, NodeId, RequestId};

use super::{CheckResult, Moment};
use crate::testing::call::{Call, CallReply};
use crate::testing::model::Model;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    for holder in &moment.journal.waiting {
        let again = moment.model.naive.would_answer(*holder);
        holds!(
            matches!(again, Ok(FetchOutcome::Wait { .. })),
            "{holder} waits and should have been woken: it would be answered {again:?}"
        );
    }
    Ok(())
}

/// A subject that takes events and checks the answers.
pub(crate) trait Told {
    /// Description of the fault.
    type Error;
    /// Tells it of an event.
    fn tell(&mut self, call: Call) -> Result<CallReply, Self::Error>;
    /// What ought to have happened so far.
    fn model(&self) -> &Model;
    /// The error of a history that does not end.
    fn broken(&self, what: String) -> Self::Error;
}

/// Lets every worker die and one new worker for each share finish. Every history must end this way.
pub(crate) fn drain<T: Told>(told: &mut T) -> Result<(), T::Error> {
    told.tell(Call::Thaw)?;
    if told.model().has_failed() {
        return Ok(()); // Nothing more is granted, and that is checked with every question.
    }
    let next = |model: &Model, node: NodeId| {
        let after = model.book.lost.get(&node).map(|lost| lost.next());
        let live = model.book.members.get(&node).copied();
        Holder::new(node, after.into_iter().chain(live).max().unwrap_or(Incarnation(0)))
    };
    let known = told.model().book.members.keys().copied();
    let mut nodes: Vec<NodeId> = (0..8).map(NodeId::worker).chain(known).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for node in nodes {
        let holder = next(told.model(), node);
        told.tell(Call::Lost { holder })?;
    }
    let workers = told.model().workers();
    let heirs: Vec<Holder> = (0..workers).map(|index| next(told.model(), NodeId::worker(index))).collect();
    for holder in heirs.iter().copied() {
        let registered = told.tell(Call::Register { holder, held: Vec::new() })?;
        if registered.is_refusal() {
            return Err(told.broken(format!("{holder}, which is new, was answered {registered:?}")));
        }
    }
    let spec = &told.model().book.spec;
    let shards = spec.shard_count() * u64::from(spec.epoch_limit());
    let mut done = false;
    for request in 1..=(shards + 1) * u64::from(workers) + 1 {
        done = true;
        for holder in heirs.iter().copied() {
            let (generation, request) = (told.model().book.generation, RequestId(request));
            let reply = told.tell(Call::Fetch { holder, generation, request })?;
            match reply.fetched() {
                Some(FetchOutcome::Granted(grant)) => {
                    let acks = vec![Ack { lease: grant.lease, offset: grant.len }];
                    told.tell(Call::Ack { holder, acks })?;
                    done = false;
                }
                Some(FetchOutcome::EndOfData) => {}
                Some(FetchOutcome::Wait { .. }) => done = false,
                Some(FetchOutcome::AtLimit) | None => {
                    return Err(told.broken(format!("{holder} was answered {reply:?}")));
                }
            }
        }
        if done {
            break;
        }
    }
    let counts = told.model().naive.counts();
    if !done || counts.acked + counts.quarantined != counts.total {
        return Err(told.broken(format!("the history does not end: {counts:?}")));
    }
    Ok(())
}
