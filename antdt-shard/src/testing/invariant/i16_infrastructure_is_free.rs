//! Losses of nodes, ends of services and released leases, however many, never count as data faults, and no
//! shard is quarantined for them.

use super::{CheckResult, Moment};
use crate::testing::call::Call;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    if matches!(moment.call, Call::Fail { .. }) || moment.call.ends_a_generation() {
        return Ok(());
    }
    same!(moment.after.quarantined, moment.before.quarantined, "a shard was given up without a data fault");
    for (key, (_, now)) in &moment.after.waiting {
        let was = moment.before.waiting.get(key).map_or(0, |(_, was)| *was);
        same!(*now, was, "a data fault is held against {key:?} that nobody reported");
    }
    Ok(())
}
