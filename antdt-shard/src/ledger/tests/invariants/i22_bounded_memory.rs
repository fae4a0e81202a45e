//! What is remembered follows what waits (as ranges), what is out and who takes part; not what is done, and not how many
//! epochs there were.

use std::collections::BTreeMap;

use antdt_core::{Ack, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, RequestId, Seed};

use super::Moment;
use crate::ledger::pass::Begun;
use crate::ledger::tests::cases::{all, drained, grant, ledger};
use crate::ledger::tests::pair::worker;
use crate::spec::{DatasetSpec, Epochs};

pub(super) fn check(moment: &Moment<'_>) {
    let ledger = &moment.real.ledger;
    // One entry for each shard that was begun, and for each run of neighbours that nobody has had.
    let mut entries = 0;
    let mut untouched: BTreeMap<(u64, Epoch), Vec<u64>> = BTreeMap::new();
    for (key, begun) in ledger.book.todo() {
        if begun == Begun::default() {
            let (share, position) = moment.place(key);
            untouched.entry((share, key.epoch)).or_default().push(position);
        } else {
            entries += 1;
        }
    }
    for positions in untouched.values_mut() {
        positions.sort_unstable();
        entries += 1 + positions.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    }
    assert_eq!(ledger.book.entries(), entries);
    let most = ledger.spec().max_leases_per_holder as usize;
    for member in ledger.standing.members.iter().map(|(_, member)| member) {
        assert!(member.completed.len() <= most);
        assert!(member.last.as_ref().is_none_or(|last| last.more.len() < most));
    }
    assert_eq!(ledger.standing.members.len(), moment.model.book.members.len());
    let unknown = ledger.standing.idle.iter().find(|node| !ledger.standing.members.contains(**node));
    assert_eq!(unknown, None, "waits, and does not take part");
}

#[test]
fn an_endless_data_set_never_ends_and_never_grows() {
    let spec = DatasetSpec { epochs: Epochs::Infinite, ..DatasetSpec::new("d", 7, 2) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    for request in 1..=4_000 {
        let grant = grant(&mut ledger, worker(0, 0), request);
        ledger.ack(worker(0, 0), all(&grant)).unwrap();
        drained(&mut ledger);
    }
    assert_eq!(ledger.counts(), Counts { total: 7_000, acked: 7_000, ..Counts::default() });
    assert_eq!(ledger.epoch_counts(Epoch(999)).unwrap().acked, 7);
    assert_eq!(ledger.epoch_counts(Epoch(1_000)).unwrap().todo, 7);
    assert!(!ledger.is_finished());
    assert_eq!(ledger.book.entries(), 0, "closed epochs leave nothing behind");
}

#[test]
fn memory_follows_what_is_out_not_what_is_done() {
    // 10^12 shards cannot be listed anywhere.
    let spec = DatasetSpec { max_leases_per_holder: 4, ..DatasetSpec::new("d", 10_u64.pow(15), 1_000) };
    let mut ledger = ledger(spec);
    let mut rng = Seed(9).rng();
    let mut out: Vec<(Holder, Grant)> = Vec::new();
    for index in 0..8 {
        ledger.register(worker(index, 0)).unwrap();
    }
    for request in 1..=20_000 {
        let holder = worker(u32::try_from(rng.below(8)).unwrap(), 0);
        if let Ok(FetchOutcome::Granted(grant)) = ledger.fetch(holder, Generation(1), RequestId(request)) {
            out.push((holder, grant));
        }
        if out.len() > 20 {
            let (holder, grant) = out.swap_remove(usize::try_from(rng.below(out.len() as u64)).unwrap());
            let offset = if rng.below(4) == 0 {
                rng.below(grant.len - grant.resume_at) + grant.resume_at
            } else {
                grant.len
            };
            ledger.release(holder, &[Ack { lease: grant.lease, offset }]).unwrap();
        }
        drained(&mut ledger);
        assert!(ledger.snapshot().book.entries() <= 2 * (8 * 4 + 1), "{}", ledger.snapshot().book.entries());
    }
    assert!(ledger.counts().acked > 1_000_000);
}
