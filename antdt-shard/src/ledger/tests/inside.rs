//! What only this crate sees of a ledger, after every event: the promises that a user can check are in `testing::invariant`.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Epoch, Machine, Registered, ShardKey};

use crate::ledger::ShardLedger;
use crate::ledger::pass::Begun;
use crate::testing::call::{Call, CallReply};
use crate::testing::model::Model;

pub(super) fn check(
    call: &Call,
    reply: &CallReply,
    model: &Model,
    before: &ShardLedger,
    after: &ShardLedger,
) {
    one_state(model, after);
    remembered(model, after);
    if reply.is_refusal() || model.book.facts.caller_had_ended {
        assert_eq!((&before.book, &before.standing), (&after.book, &after.standing), "{call:?}");
    }
    if model.book.facts.repeated.is_some() && !reply.is_refusal() {
        assert_eq!(before.standing.sequence, after.standing.sequence, "a repetition allocates nothing");
    }
    if let Call::Restore { .. } = call {
        assert!(after.standing.members.is_empty(), "everybody has to register");
    }
    // Nothing is answered that is not written down.
    assert_eq!(after.records.len(), 0);

    // The methods do what the machine does.
    let mut again = before.clone();
    if let Some(said) = tell(&mut again, call) {
        assert_eq!(&said, reply, "{call:?}");
        assert_eq!(again.snapshot().to_bytes(), after.snapshot().to_bytes(), "{call:?}");
        assert_eq!(again.standing, after.standing, "{call:?}");
    }
}

fn one_state(model: &Model, ledger: &ShardLedger) {
    let mut seen: BTreeSet<ShardKey> = BTreeSet::new();
    let mut once = |key: ShardKey| assert!(seen.insert(key), "{key:?} is in two states");
    ledger.book.todo().for_each(|(key, _)| once(key));
    ledger.outstanding().for_each(|lease| once(lease.key));
    ledger.quarantined().for_each(|given_up| once(given_up.key));
    let waiting: u64 = (0..model.workers()).map(|share| ledger.book.waiting(share)).sum();
    assert_eq!(waiting, ledger.book.todo().count() as u64, "they are counted as they are listed");
    let todo: BTreeMap<_, _> =
        ledger.book.todo().map(|(key, begun)| (key, (begun.offset, begun.faults))).collect();
    assert_eq!(todo, model.naive.todo());
    for (_, lease) in ledger.standing.leases() {
        assert_eq!(lease.taken.begun.faults, model.book.account.faults(lease.taken.key));
    }
}

fn remembered(model: &Model, ledger: &ShardLedger) {
    // One entry for each shard that was begun, and for each run of neighbours that were not.
    let mut entries = 0;
    let mut untouched: BTreeMap<(u64, Epoch), Vec<u64>> = BTreeMap::new();
    for (key, begun) in ledger.book.todo() {
        if begun == Begun::default() {
            let (share, position) = model.book.places[&key];
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
    for (node, member) in ledger.standing.members.iter() {
        assert!(member.completed.len() <= most);
        assert!(member.last.as_ref().is_none_or(|last| last.more.len() < most));
        let held = ledger.outstanding().filter(|lease| lease.holder.node == node).count();
        assert_eq!(member.leases.len(), held);
    }
    assert_eq!(ledger.standing.members.len(), model.book.members.len());
    let unknown = ledger.standing.idle.iter().find(|node| !ledger.standing.members.contains(**node));
    assert_eq!(unknown, None, "waits, and does not take part");
}

/// A call that is the ledger's alone, by its method; `None` if it needs the store.
fn tell(ledger: &mut ShardLedger, call: &Call) -> Option<CallReply> {
    let reply = match call {
        Call::Register { holder, held } if held.is_empty() => {
            let registered = |generation| Registered { generation, adopted: Vec::new() };
            CallReply::Registered(ledger.register(*holder).map(registered))
        }
        Call::Register { holder, held } => CallReply::Registered(ledger.register_holding(*holder, held)),
        Call::Fetch { holder, generation, request } => {
            CallReply::Fetched(ledger.fetch(*holder, *generation, *request))
        }
        Call::Exchange { holder, generation, request, acks, want } => {
            CallReply::Exchanged(ledger.exchange(*holder, *generation, *request, acks, *want))
        }
        Call::Ack { holder, acks } => CallReply::Acked(ledger.ack_all(*holder, acks)),
        Call::Release { holder, acks } => CallReply::Acked(ledger.release(*holder, acks)),
        Call::Fail { holder, ack } => CallReply::Failed(ledger.fail(*holder, *ack)),
        Call::Lost { holder } => {
            ledger.worker_lost(*holder);
            CallReply::Nothing
        }
        Call::Freeze { until } => {
            ledger.freeze(*until);
            CallReply::Nothing
        }
        Call::Tick { now } => {
            if ledger.deadline().is_some() {
                ledger.on_deadline(*now);
            }
            CallReply::Nothing
        }
        Call::Thaw => {
            ledger.thaw();
            CallReply::Nothing
        }
        Call::Keep | Call::Cut { .. } | Call::Restore { .. } | Call::Restart { .. } => return None,
    };
    Some(reply)
}
