//! Equal events give equal answers, equal records and byte-identical snapshots. Every ledger has a twin that
//! gets the same events; `subject.rs` compares the answers and records of the two.

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let equal = moment.after.snapshot.to_bytes() == moment.twin.to_bytes();
    holds!(equal, "equal events gave two states, or a question changed something");
    Ok(())
}
