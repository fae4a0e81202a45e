//! A snapshot is the ledger without its leases: leased shards wait at their offsets. A ledger that is
//! restored to it continues from there, grants again what was acknowledged after it and nothing from before,
//! and forgets no fence. Encoding and decoding a snapshot does not change it.

use antdt_core::Generation;

use super::{CheckResult, Moment};
use crate::ledger::{LedgerSnapshot, ShardLedger};
use crate::testing::call::Call;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let (view, book) = (moment.after, &moment.model.book);
    let (counts, now) = (view.snapshot.counts(), view.counts());
    same!((counts.acked, counts.quarantined), (now.acked, now.quarantined), "the snapshot of what is done");
    same!((counts.todo, counts.doing), (now.todo + now.doing, 0), "what was out waits");
    for lease in &view.outstanding {
        let at = view.waiting.get(&lease.key).map(|(offset, _)| *offset);
        same!(at, Some(lease.offset), "what was out waits at its offset: {lease:?}");
    }
    let bytes = view.snapshot.to_bytes();
    let read = LedgerSnapshot::from_bytes(&bytes, &book.spec);
    same!(read.as_ref(), Ok(&*view.snapshot), "a snapshot survives its way through bytes");
    let mut again = ShardLedger::new(book.spec.clone(), Generation(1)).map_err(|error| error.to_string())?;
    let restored = again.restore(&view.snapshot, view.status.generation.next());
    restored.map_err(|error| format!("a snapshot is refused: {error}"))?;
    same!(again.snapshot().waiting(), view.waiting, "a ledger that is set back goes on from there");
    if let Call::Restore { .. } = moment.call {
        holds!(view.outstanding.is_empty(), "a lease survives a restore");
        let fences = view.snapshot.fences();
        let mut ended = moment.before.snapshot.fences().iter();
        let forgotten = ended.find(|(node, through)| fences.get(*node).is_none_or(|fence| fence < *through));
        same!(forgotten, None, "a fence is forgotten by a restore");
    }
    Ok(())
}
