//! A life that registers ends all earlier ones of its node; the end of a life survives restores, and restarts once it is
//! written down. After it nothing that the life says changes anything; a later life does not notice.

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
