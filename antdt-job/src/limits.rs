//! Timeouts of the parts of a job for each other, the same in every driver.

use std::time::Duration;

use antdt_core::Holder;

/// Deadline of a call that the master answers at once.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without an answer after which a node counts the master as lost.
pub const MASTER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which the master asks the caller of an open call to call again. It is shorter than the idle
/// timeouts of proxies and firewalls.
pub const PARK_MAX: Duration = Duration::from_secs(30);

/// Longest wait for a peer that becomes longer with every failure.
const TIMEOUT_MOST: Duration = Duration::from_secs(3600);

/// Returns the timeout for a peer in the next group. `broken` are the members of the group that broke,
/// `members` those of the next. If both are the same, no member died: a member is slower than `timeout`, and
/// the timeout grows, so that the step does not fail for ever. A member that hangs is found by the master,
/// which gets no heartbeats from it.
pub fn next_timeout(
    timeout: Duration,
    broken: &[Holder],
    members: impl ExactSizeIterator<Item = Holder>,
) -> Duration {
    let same = broken.len() == members.len() && broken.iter().copied().eq(members);
    if same { timeout.saturating_mul(4).min(TIMEOUT_MOST.max(timeout)) } else { timeout }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn a_group_that_breaks_without_a_death_waits_longer_the_next_time() {
        let worker = |index, life| Holder::new(NodeId::worker(index), Incarnation(life));
        let group = [worker(0, 0), worker(1, 0)];
        let next = |timeout, broken: &[Holder], members: &[Holder]| {
            next_timeout(timeout, broken, members.iter().copied())
        };
        let second = Duration::from_secs(1);
        assert_eq!(next(second, &[], &group), second, "nothing broke");
        assert_eq!(next(second, &group, &group), second * 4);
        assert_eq!(next(second, &group, &[worker(0, 0), worker(1, 1)]), second, "one died");
        assert_eq!(next(second, &group, &group[..1]), second, "one is missing");
        assert_eq!(next(TIMEOUT_MOST, &group, &group), TIMEOUT_MOST);
        assert_eq!(next(TIMEOUT_MOST * 2, &group, &group), TIMEOUT_MOST * 2, "the user's own");
    }
}
