//! An incarnation that registers fences all earlier ones of its node. A fence survives restores, and restarts
//! once it is in the log. No later message of a fenced incarnation changes anything, and a newer incarnation
//! is not affected.

use antdt_core::{AckOutcome, Holder};

use super::{CheckResult, Moment};
use crate::testing::call::Call;
use crate::testing::view::View;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    same!(moment.after.snapshot.fences(), &book.lost, "lives that ended");
    if book.facts.caller_had_ended {
        holds!(moment.before == moment.after, "the dead changed something");
        let heard = moment.reply.grants().is_empty()
            && moment.reply.adopted().is_empty()
            && moment.reply.outcomes().iter().all(|outcome| *outcome == AckOutcome::StaleLease);
        holds!(heard, "the dead were answered {:?}", moment.reply);
        if let Call::Register { .. } | Call::Fetch { .. } | Call::Exchange { .. } = moment.call {
            holds!(moment.reply.is_refusal(), "the dead were answered {:?}", moment.reply);
        }
    }
    for lease in &moment.after.outstanding {
        holds!(!book.has_ended(lease.holder), "the dead hold {lease:?}");
    }
    if let Call::Lost { holder } = moment.call {
        let other = |lease: &Holder| lease.node != holder.node || lease.incarnation > holder.incarnation;
        let of_others = |view: &View| -> Vec<_> {
            view.outstanding.iter().filter(|lease| other(&lease.holder)).copied().collect()
        };
        same!(of_others(moment.after), of_others(moment.before), "the end of {holder} took leases of others");
    }
    Ok(())
}
