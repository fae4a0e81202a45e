use antdt_core::{Ack, Holder};

use super::pair::{Pair, small, worker};
use crate::spec::{Assignment, DatasetSpec, Epochs, OnQuarantine, Shuffle};

/// One of the things that can happen next in a small world. Leases are the newest and the oldest of all there were,
/// so that acks of ended leases are among them.
fn step(pair: &Pair, which: usize, requests: u64) -> Option<Pair> {
    let mut next = pair.clone();
    let newest = pair.grants.last().copied();
    let oldest = pair.grants.first().copied().filter(|oldest| Some(*oldest) != newest);
    let part = |(grant, holder): (antdt_core::Grant, Holder)| {
        (holder, Ack { lease: grant.lease, offset: grant.resume_at + 1 })
    };
    let all = |(grant, holder): (antdt_core::Grant, Holder)| {
        (holder, Ack { lease: grant.lease, offset: grant.len })
    };
    match which {
        0 => drop(next.fetch(worker(0, 0), next.generation, requests)),
        1 => drop(next.fetch(worker(1, 0), next.generation, requests)),
        2 => newest.map(part).map(|(holder, ack)| next.ack(holder, &[ack])).map(drop)?,
        3 => newest.map(all).map(|(holder, ack)| next.ack(holder, &[ack])).map(drop)?,
        4 => oldest.map(all).map(|(holder, ack)| next.ack(holder, &[ack])).map(drop)?,
        5 => newest.map(part).map(|(holder, ack)| next.fail(holder, ack)).map(drop)?,
        6 => oldest.map(part).map(|(holder, ack)| next.release(holder, &[ack])).map(drop)?,
        7 => next.lose(worker(0, 0)),
        8 => drop(next.register(worker(0, 1))),
        9 => drop(next.fetch(worker(0, 1), next.generation, requests)),
        10 => next.keep_snapshot(),
        11 => next.restore(0),
        _ => return None,
    }
    Some(next)
}

fn explore(pair: &Pair, depth: u64, histories: &mut u64) {
    *histories += 1;
    if depth == 0 {
        pair.clone().drain();
        return;
    }
    for which in 0..12 {
        if let Some(next) = step(pair, which, 10 - depth) {
            // What changed nothing leads to a history that is one shorter.
            let same = next.real.book == pair.real.book && next.real.standing == pair.real.standing;
            if !same || which == 10 {
                explore(&next, depth - 1, histories);
            }
        }
    }
}

#[test]
fn every_history_of_every_small_world_adds_up() {
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
        DatasetSpec { assignment: Assignment::Static { workers: 2 }, epochs: Epochs::Finite(2), ..base },
    ];
    for world in worlds {
        let mut pair = Pair::new(world);
        pair.register(worker(0, 0));
        pair.register(worker(1, 0));
        let mut histories = 0;
        explore(&pair, 5, &mut histories);
        assert!(histories > 1_000, "only {histories} histories");
    }
}
