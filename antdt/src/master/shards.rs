//! Who held which shard when, and what each worker committed: read off the ledger's own questions and answers.

use std::collections::BTreeMap;

use antdt_core::{Ack, AckOutcome, FetchOutcome, Grant, Holder, JobTime, LeaseId, NodeId};
use antdt_shard::ledger::{Answer, Event};

use crate::report::{ShardOutcome, ShardSpan};

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
}

impl ShardWatch {
    /// The ledger answered `event` with `answer`.
    pub(super) fn saw(&mut self, now: JobTime, event: &Event, answer: &Answer) {
        match (event, answer) {
            (Event::Fetch { holder, .. }, Answer::Fetch(Ok(FetchOutcome::Granted(grant)))) => {
                let open = Open { holder: *holder, grant: *grant, offset: grant.resume_at, since: now };
                self.open.entry(grant.lease).or_insert(open);
            }
            (Event::Ack { acks, .. }, Answer::Ack(Ok(outcomes))) => self.acked(now, acks, outcomes),
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
            (Event::WorkerLost { holder }, _) | (Event::Register { holder }, Answer::Register(Ok(_))) => {
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
            open.offset += newly;
            *self.committed.entry(open.holder.node).or_default() += newly;
            if open.offset >= open.grant.len {
                self.close(now, ack.lease, ShardOutcome::Done);
            }
        }
    }

    fn close(&mut self, now: JobTime, lease: LeaseId, outcome: ShardOutcome) {
        let Some(Open { holder, grant, since, .. }) = self.open.remove(&lease) else { return };
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

#[cfg(test)]
mod tests {
    use antdt_core::{Epoch, Generation, Incarnation, ShardKey};

    use super::*;

    fn holder(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(0))
    }

    fn lease(sequence: u64) -> LeaseId {
        LeaseId { generation: Generation(1), sequence }
    }

    fn granted(watch: &mut ShardWatch, at: u64, to: Holder, sequence: u64) {
        let grant = Grant {
            lease: lease(sequence),
            key: ShardKey { epoch: Epoch(0), index: sequence },
            start: 0,
            len: 10,
            resume_at: 0,
            seed: None,
        };
        let event =
            Event::Fetch { holder: to, generation: Generation(1), request: antdt_core::RequestId(sequence) };
        watch.saw(JobTime(at), &event, &Answer::Fetch(Ok(FetchOutcome::Granted(grant))));
    }

    fn acked(watch: &mut ShardWatch, at: u64, by: Holder, sequence: u64, offset: u64, outcome: AckOutcome) {
        let event = Event::Ack { holder: by, acks: vec![Ack { lease: lease(sequence), offset }] };
        watch.saw(JobTime(at), &event, &Answer::Ack(Ok(vec![outcome])));
    }

    #[test]
    fn samples_go_to_whoever_committed_them_and_spans_end_as_they_did() {
        let mut watch = ShardWatch::default();
        granted(&mut watch, 1, holder(0), 1);
        granted(&mut watch, 2, holder(1), 2);
        acked(&mut watch, 3, holder(0), 1, 4, AckOutcome::Accepted);
        acked(&mut watch, 4, holder(0), 1, 4, AckOutcome::Accepted);
        acked(&mut watch, 5, holder(0), 1, 10, AckOutcome::Accepted);
        acked(&mut watch, 6, holder(1), 2, 7, AckOutcome::StaleLease);
        watch.saw(JobTime(7), &Event::WorkerLost { holder: holder(1) }, &Answer::WorkerLost);
        let (spans, committed) = watch.finish(JobTime(9));
        assert_eq!(committed, [(NodeId::worker(0), 10)].into_iter().collect());
        let outcomes: Vec<ShardOutcome> = spans.iter().map(|span| span.outcome).collect();
        assert_eq!(outcomes, [ShardOutcome::Done, ShardOutcome::Lost]);
    }
}
