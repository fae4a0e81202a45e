//! No worker holds more leases than the cap says, and a worker that is not registered holds none.

use antdt_core::FetchOutcome;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    let most = book.spec.max_leases_per_holder as usize;
    let held_by = |holder| moment.after.outstanding.iter().filter(|lease| lease.holder == holder).count();
    for lease in &moment.after.outstanding {
        let held = held_by(lease.holder);
        holds!(held <= most, "{} holds {held} leases of {most}", lease.holder);
        let live = book.members.get(&lease.holder.node);
        same!(live, Some(&lease.holder.incarnation), "{lease:?} is held by nobody who takes part");
    }
    if let (Some(FetchOutcome::AtLimit), Some(holder)) = (moment.reply.fetched(), moment.call.caller()) {
        same!(held_by(holder), most, "{holder} is told that it is at its limit");
    }
    Ok(())
}
