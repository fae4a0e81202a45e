//! At most `epoch_overlap + 1` epochs are unfinished; without an overlap no epoch opens before the previous
//! one ended.

use super::{CheckResult, Moment};
use crate::spec::Assignment;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    let (open, most) = (moment.after.snapshot.open_epochs(), book.spec.epoch_overlap as usize + 1);
    holds!(open <= most, "{open} epochs are open, {most} may be");
    if book.spec.epoch_overlap > 0 || book.spec.assignment != Assignment::Dynamic {
        return Ok(());
    }
    for (grant, _) in &book.facts.granted {
        for (epoch, counts) in moment.after.epochs.iter().take(grant.key.epoch.0 as usize).enumerate() {
            let left = counts.map_or(0, |counts| counts.todo + counts.doing);
            same!(left, 0, "epoch {} began before epoch {epoch} ended", grant.key.epoch);
        }
    }
    Ok(())
}
