//! File descriptors: how many a process of a job may have, and how many callers a port takes.

use antdt_core::DoorwayLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a process raises its limit to, where it may: enough for the master of 16,000 nodes. Not the largest number that
/// the system allows, because there are programs that try every descriptor up to their limit, and nodes inherit it.
const RAISED: u64 = 65_536;

/// Part of a process's descriptors that callers may take that are unknown, at most two each.
const OF_STRANGERS: u64 = 8;

/// Returns the limits of a port of this process for callers that are unknown: the default ones where there are enough descriptors.
pub(crate) fn doorway() -> DoorwayLimits {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let default = DoorwayLimits::default();
    let most = usize::try_from(limit / OF_STRANGERS).unwrap_or(usize::MAX).clamp(1, default.most);
    DoorwayLimits { most, ..default }
}

/// Returns the largest limit that this process has or can [`raise`] its own to.
pub(crate) fn most() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = limit.maximum.map_or(RAISED, |hard| hard.min(RAISED));
    limit.current.unwrap_or(u64::MAX).max(raised)
}

/// Raises the soft limit of this process to the hard one.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < most()) {
        // Where it stays as it is, what then cannot be opened says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most()), ..limit });
    }
}
