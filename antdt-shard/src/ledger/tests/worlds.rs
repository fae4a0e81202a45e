use std::collections::BTreeSet;

use antdt_core::{Ack, Grant, Held, Holder, JobTime, RequestId};

use super::pair::{Pair, small};
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle};
use crate::testing::call::{Call, worker};

/// Everything that can happen next in a small world of two workers. Leases are the newest and the oldest of all there
/// were, so that acks of ended leases are among them.
fn steps(pair: &Pair, request: u64) -> Vec<Call> {
    let (zero, one, reborn) = (worker(0, 0), worker(1, 0), worker(0, 1));
    let (generation, request) = (pair.generation(), RequestId(request));
    let fetch = |holder| Call::Fetch { holder, generation, request };
    let exchange = |holder, acks, want| Call::Exchange { holder, generation, request, acks, want };
    let mut steps = vec![
        fetch(zero),
        fetch(one),
        fetch(reborn),
        exchange(zero, vec![], 3),
        Call::Register { holder: reborn, held: vec![] },
        Call::Lost { holder: zero },
        Call::Freeze { until: JobTime(1) },
        Call::Tick { now: JobTime(1) },
        Call::Keep,
        Call::Cut { committed: 1 },
    ];
    let part =
        |(grant, holder): (Grant, Holder)| (holder, Ack { lease: grant.lease, offset: grant.resume_at + 1 });
    let all = |(grant, holder): (Grant, Holder)| (holder, Ack { lease: grant.lease, offset: grant.len });
    if let Some(newest) = pair.grants().last().copied() {
        let ((holder, part), (_, all)) = (part(newest), all(newest));
        steps.push(Call::Ack { holder, acks: vec![part] });
        steps.push(exchange(holder, vec![all], 1));
        steps.push(Call::Fail { holder, ack: part });
        // The same question again, and what it holds again.
        if let Some((last, _)) = pair.model.book.answered.get(&holder) {
            steps.push(Call::Exchange { holder, generation, request: *last, acks: vec![part], want: 2 });
        }
    }
    if let [oldest, _, ..] = *pair.grants() {
        let ((holder, part), (_, all)) = (part(oldest), all(oldest));
        steps.push(Call::Ack { holder, acks: vec![all] });
        steps.push(Call::Release { holder, acks: vec![part] });
    }
    if pair.model.book.kept() > 0 {
        steps.push(Call::Restore { which: 0 });
    }
    let (written, least) = (pair.real.log().len(), pair.model.kept_least());
    if written > least {
        steps.push(Call::Restart { kept: written, compacted: Some(written) });
        steps.push(Call::Restart { kept: written - 1, compacted: None });
    }
    // A worker that held a lease in an earlier generation says so: truly, a sample further, and for another.
    let old = |grant: &Grant| grant.lease.generation < generation;
    if let Some((grant, holder)) = pair.grants().iter().rev().find(|(grant, _)| old(grant)) {
        let offset = pair.model.book.account.offset(grant.key);
        let held = |offset| vec![Held { lease: grant.lease, key: grant.key, offset }];
        let other = if *holder == one { zero } else { one };
        steps.push(Call::Register { holder: *holder, held: held(offset) });
        steps.push(Call::Register { holder: *holder, held: held(offset + 1) });
        steps.push(Call::Register { holder: other, held: held(offset) });
    }
    steps
}

struct Explored {
    histories: u64,
    /// Ends that were drained already: what follows from one depends on nothing else.
    ends: BTreeSet<Vec<u8>>,
}

fn explore(pair: &Pair, depth: u64, explored: &mut Explored) {
    explored.histories += 1;
    if depth == 0 {
        if explored.ends.insert(pair.ledger().snapshot().to_bytes()) {
            pair.clone().drain();
        }
        return;
    }
    for call in steps(pair, 10 - depth) {
        let mut next = pair.clone();
        next.say(&call);
        // What changed nothing leads to a history that is one shorter.
        let (was, now) = (pair.ledger(), next.ledger());
        let same = was.book == now.book && was.standing == now.standing;
        if !same || next.model.book.kept() > pair.model.book.kept() {
            explore(&next, depth - 1, explored);
        }
    }
}

fn explore_all(depth: u64, least: u64) {
    let base = DatasetSpec { shuffle: Shuffle::None, max_leases_per_holder: 1, ..small(3, 2) };
    let worlds = [
        base.clone(),
        DatasetSpec { epochs: Epochs::Finite(2), shuffle: Shuffle::ShardsAndSamples, ..small(1, 1) },
        DatasetSpec { epochs: Epochs::Finite(2), epoch_overlap: 1, ..base.clone() },
        DatasetSpec {
            max_data_faults: 1,
            on_quarantine: OnQuarantine::Continue { max_samples: 2 },
            max_leases_per_holder: 2,
            ..base.clone()
        },
        DatasetSpec { max_leases_per_holder: 3, cut: Cut::At([1, 3, 4, 5, 6].into()), ..small(6, 1) },
        DatasetSpec { assignment: Assignment::Static { workers: 2 }, epochs: Epochs::Finite(2), ..base },
    ];
    for world in worlds {
        let mut pair = Pair::new(world);
        pair.register(worker(0, 0));
        pair.register(worker(1, 0));
        let mut explored = Explored { histories: 0, ends: BTreeSet::new() };
        explore(&pair, depth, &mut explored);
        // Once more from where a worker has something to present.
        pair.fetch(worker(0, 0), 1);
        pair.fetch(worker(1, 0), 1);
        pair.ack(worker(0, 0), &[Ack { lease: pair.grants()[0].0.lease, offset: 1 }]);
        pair.say(&Call::Keep);
        pair.restart(0);
        explore(&pair, depth, &mut explored);
        assert!(explored.histories > least, "only {} histories", explored.histories);
    }
}

#[test]
fn every_history_of_every_small_world_adds_up() {
    explore_all(4, 8_000);
}
