//! Which worker held which shard when, and what each worker committed, derived from the events and answers of
//! the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use antdt_core::{Ack, AckOutcome, Epoch, Grant, Holder, JobTime, LeaseId, NodeId, ShardKey};
use antdt_rt::Recorder;
use antdt_shard::ledger::{Answer, Effect, Event};

use crate::report::{LiveShards, ShardOutcome, ShardSpan};

/// Spans kept at most: a chart shows no more, and the report stays readable.
const SPANS_MAX: usize = 20_000;

#[derive(Debug, Clone, Copy)]
struct Open {
    holder: Holder,
    grant: Grant,
    offset: u64,
    since: JobTime,
}

/// Watches one ledger.
#[derive(Debug, Default)]
pub(super) struct ShardWatch {
    open: BTreeMap<LeaseId, Open>,
    spans: Vec<ShardSpan>,
    committed: BTreeMap<NodeId, u64>,
    /// Committed samples of shards that are not complete.
    partial: BTreeMap<ShardKey, u64>,
    /// One bit for each complete shard, 64 shards of an epoch in a word: an observer must remember on its own.
    complete: BTreeMap<(Epoch, u64), u64>,
    duplicated: u64,
    /// Of the leases that have ended, and none that is open.
    ended: LiveShards,
}

/// Shows what happens to a ledger to its watch.
#[derive(Debug)]
pub(super) struct ShardTap {
    watch: Arc<Mutex<ShardWatch>>,
    /// The question that was not answered yet, if the watch wants to see it.
    asked: Option<Event>,
}

impl ShardTap {
    pub(super) const fn new(watch: Arc<Mutex<ShardWatch>>) -> Self {
        Self { watch, asked: None }
    }
}

impl Recorder<Event, Answer, Effect> for ShardTap {
    fn event(&mut self, _now: JobTime, event: &Event) {
        // Questions about the state change nothing and can be large.
        self.asked = matches!(
            event,
            Event::Register { .. }
                | Event::Exchange { .. }
                | Event::Settle { .. }
                | Event::Release { .. }
                | Event::Fail { .. }
                | Event::WorkerLost { .. }
                | Event::Restore { .. }
        )
        .then(|| event.clone());
    }

    fn answer(&mut self, now: JobTime, answer: &Answer) {
        if let Some(event) = self.asked.take() {
            super::lock(&self.watch).saw(now, &event, answer);
        }
    }
}

impl ShardWatch {
    /// The ledger answered `event` with `answer`.
    pub(super) fn saw(&mut self, now: JobTime, event: &Event, answer: &Answer) {
        match (event, answer) {
            (Event::Exchange { holder, acks, .. }, Answer::Exchange(Ok(exchanged))) => {
                self.acked(now, acks, &exchanged.outcomes);
                for grant in exchanged.grants() {
                    let open = Open { holder: *holder, grant, offset: grant.resume_at, since: now };
                    self.open.entry(grant.lease).or_insert(open);
                }
            }
            (Event::Settle { acks, .. }, Answer::Ack(Ok(outcomes))) => self.acked(now, acks, outcomes),
            (Event::Release { acks, .. }, Answer::Ack(Ok(outcomes))) => {
                self.acked(now, acks, outcomes);
                for ack in acks {
                    self.close(now, ack.lease, ShardOutcome::Released);
                }
            }
            (Event::Fail { ack, .. }, Answer::Fail(Ok(outcome))) => {
                self.acked(now, &[*ack], &[*outcome]);
                self.close(now, ack.lease, ShardOutcome::Failed);
            }
            (Event::WorkerLost { holder }, _) | (Event::Register { holder, .. }, Answer::Register(Ok(_))) => {
                let lost = matches!(event, Event::WorkerLost { .. });
                let ended = |open: &Open| {
                    let (theirs, ours) = (open.holder.incarnation, holder.incarnation);
                    open.holder.node == holder.node && (theirs < ours || (lost && theirs == ours))
                };
                let leases: Vec<LeaseId> =
                    self.open.iter().filter(|(_, open)| ended(open)).map(|(lease, _)| *lease).collect();
                for lease in leases {
                    self.close(now, lease, ShardOutcome::Lost);
                }
            }
            (Event::Restore { .. }, Answer::Restore(Ok(()))) => {
                // What was committed since is undone; which shards were complete before, this watch does not know.
                self.partial.clear();
                self.complete.clear();
                let leases: Vec<LeaseId> = self.open.keys().copied().collect();
                for lease in leases {
                    self.close(now, lease, ShardOutcome::Lost);
                }
            }
            _ => {}
        }
    }

    fn acked(&mut self, now: JobTime, acks: &[Ack], outcomes: &[AckOutcome]) {
        for (ack, outcome) in acks.iter().zip(outcomes) {
            let Some(open) = self.open.get_mut(&ack.lease).filter(|_| *outcome == AckOutcome::Accepted)
            else {
                continue;
            };
            let newly = ack.offset.saturating_sub(open.offset);
            let (key, len, from) = (open.grant.key, open.grant.len, open.offset);
            open.offset += newly;
            let known = if is_complete(&self.complete, key) {
                len
            } else {
                self.partial.get(&key).copied().unwrap_or(0)
            };
            // Offsets from..ack.offset were committed now, 0..known before.
            self.duplicated += known.min(ack.offset).saturating_sub(from);
            if ack.offset >= len {
                self.partial.remove(&key);
                set_complete(&mut self.complete, key);
            } else if ack.offset > known {
                self.partial.insert(key, ack.offset);
            }
            *self.committed.entry(open.holder.node).or_default() += newly;
            if open.offset >= open.grant.len {
                self.close(now, ack.lease, ShardOutcome::Done);
            }
        }
    }

    fn close(&mut self, now: JobTime, lease: LeaseId, outcome: ShardOutcome) {
        let Some(Open { holder, grant, since, .. }) = self.open.remove(&lease) else { return };
        *match outcome {
            ShardOutcome::Done => &mut self.ended.done,
            ShardOutcome::Released => &mut self.ended.released,
            ShardOutcome::Lost => &mut self.ended.lost,
            ShardOutcome::Failed => &mut self.ended.failed,
        } += 1;
        if self.spans.len() < SPANS_MAX {
            self.spans.push(ShardSpan {
                worker: holder.node.to_string(),
                epoch: grant.key.epoch.0,
                index: grant.key.index,
                from_s: since.as_secs_f64(),
                to_s: now.as_secs_f64(),
                outcome,
            });
        }
    }

    /// Samples that were committed more than once.
    pub(super) const fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// Leases by state.
    pub(super) fn shards(&self) -> LiveShards {
        LiveShards { leased: self.open.len() as u64, ..self.ended }
    }

    /// The spans in order of their start, and the samples that each worker committed.
    pub(super) fn finish(mut self, now: JobTime) -> (Vec<ShardSpan>, BTreeMap<NodeId, u64>) {
        let still_open: Vec<LeaseId> = self.open.keys().copied().collect();
        for lease in still_open {
            self.close(now, lease, ShardOutcome::Lost);
        }
        self.spans.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        (self.spans, self.committed)
    }
}

fn is_complete(complete: &BTreeMap<(Epoch, u64), u64>, key: ShardKey) -> bool {
    complete.get(&(key.epoch, key.index / 64)).is_some_and(|bits| bits & (1 << (key.index % 64)) != 0)
}

fn set_complete(complete: &mut BTreeMap<(Epoch, u64), u64>, key: ShardKey) {
    *complete.entry((key.epoch, key.index / 64)).or_default() |= 1 << (key.index % 64);
}

#[cfg(test)]
mod tests {
    use antdt_core::{Exchanged, FetchOutcome, Generation, Incarnation};

    use super::*;

    fn holder(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(0))
    }

    fn lease(sequence: u64) -> LeaseId {
        LeaseId { generation: Generation(1), sequence }
    }

    fn granted(watch: &mut ShardWatch, at: u64, to: Holder, sequence: u64) {
        granted_from(watch, at, to, sequence, sequence, 0);
    }

    fn granted_from(watch: &mut ShardWatch, at: u64, to: Holder, sequence: u64, index: u64, resume_at: u64) {
        let grant = Grant {
            lease: lease(sequence),
            key: ShardKey { epoch: Epoch(0), index },
            start: 0,
            len: 10,
            resume_at,
            seed: None,
        };
        let event = Event::Exchange {
            holder: to,
            generation: Generation(1),
            request: antdt_core::RequestId(sequence),
            acks: vec![].into(),
            want: 1,
        };
        let fetched = Some(FetchOutcome::Granted(grant));
        watch.saw(JobTime(at), &event, &Answer::Exchange(Ok(Exchanged { fetched, ..Exchanged::default() })));
    }

    fn acked(watch: &mut ShardWatch, at: u64, by: Holder, sequence: u64, offset: u64, outcome: AckOutcome) {
        let event = Event::Settle { holder: by, acks: vec![Ack { lease: lease(sequence), offset }] };
        watch.saw(JobTime(at), &event, &Answer::Ack(Ok(vec![outcome])));
    }

    #[test]
    fn samples_go_to_the_worker_that_committed_them_and_spans_end_as_they_did() {
        let mut watch = ShardWatch::default();
        granted(&mut watch, 1, holder(0), 1);
        granted(&mut watch, 2, holder(1), 2);
        acked(&mut watch, 3, holder(0), 1, 4, AckOutcome::Accepted);
        acked(&mut watch, 4, holder(0), 1, 4, AckOutcome::Accepted);
        acked(&mut watch, 5, holder(0), 1, 10, AckOutcome::Accepted);
        acked(&mut watch, 6, holder(1), 2, 7, AckOutcome::StaleLease);
        watch.saw(JobTime(7), &Event::WorkerLost { holder: holder(1) }, &Answer::WorkerLost);
        assert_eq!(watch.duplicated(), 0);
        assert_eq!(watch.shards(), LiveShards { done: 1, lost: 1, ..LiveShards::default() });
        let (spans, committed) = watch.finish(JobTime(9));
        assert_eq!(committed, [(NodeId::worker(0), 10)].into_iter().collect());
        let outcomes: Vec<ShardOutcome> = spans.iter().map(|span| span.outcome).collect();
        assert_eq!(outcomes, [ShardOutcome::Done, ShardOutcome::Lost]);
    }

    /// A ledger that forgot an offset, or a whole shard, would be found out.
    #[test]
    fn samples_that_are_committed_again_are_counted() {
        let mut watch = ShardWatch::default();
        granted_from(&mut watch, 1, holder(0), 1, 7, 0);
        acked(&mut watch, 2, holder(0), 1, 6, AckOutcome::Accepted);
        watch.saw(JobTime(3), &Event::WorkerLost { holder: holder(0) }, &Answer::WorkerLost);
        // Resumed at 4, though 6 were done.
        granted_from(&mut watch, 4, holder(1), 2, 7, 4);
        acked(&mut watch, 5, holder(1), 2, 10, AckOutcome::Accepted);
        assert_eq!(watch.duplicated(), 2);
        // Granted again, though complete.
        granted_from(&mut watch, 6, holder(1), 3, 7, 0);
        acked(&mut watch, 7, holder(1), 3, 10, AckOutcome::Accepted);
        assert_eq!(watch.duplicated(), 12);
    }

    #[test]
    fn a_resumed_shard_is_no_repetition() {
        let mut watch = ShardWatch::default();
        granted_from(&mut watch, 1, holder(0), 1, 70, 0);
        acked(&mut watch, 2, holder(0), 1, 6, AckOutcome::Accepted);
        watch.saw(JobTime(3), &Event::WorkerLost { holder: holder(0) }, &Answer::WorkerLost);
        granted_from(&mut watch, 4, holder(1), 2, 70, 6);
        acked(&mut watch, 5, holder(1), 2, 8, AckOutcome::Accepted);
        acked(&mut watch, 6, holder(1), 2, 10, AckOutcome::Accepted);
        assert_eq!(watch.duplicated(), 0);
    }
}
