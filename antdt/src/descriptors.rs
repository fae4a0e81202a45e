//! File descriptors: how many a process of a job may have, and how many a master needs.

use std::fmt;

use antdt_core::DoorwayLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a process raises its limit to, where it may: enough for the master of 16,000 nodes. Not the largest number that
/// the system allows, because there are programs that try every descriptor up to their limit, and nodes inherit it.
const RAISED: u64 = 65_536;

/// Descriptors that a master needs beside those of its nodes. Measured were 16: standard streams, run directory, journals, port and
/// timers; the others are for what is open for a moment, as at the start of a process or of a checkpoint, and for operators. That many
/// also suffice on each node: of n, a worker had 23 + 2n, and a server 16 + 4n.
const OF_MASTER: u64 = 32;

/// Descriptors that a master needs for each node, as measured: for both streams of its output, its file, its process and its
/// connection.
const OF_NODE: u64 = 5;

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

/// Adds the limit to the text of an error that came of it.
pub(crate) fn explained(error: String) -> String {
    // As the standard library ends the text of EMFILE; most errors here carry their cause as text.
    if !error.contains("(os error 24)") {
        return error;
    }
    match getrlimit(Resource::Nofile).current {
        Some(limit) => format!(
            "{error}: this process may have {limit} files open (RLIMIT_NOFILE), raise it by `ulimit -n`"
        ),
        None => error,
    }
}

/// The limit on descriptors of this process is too low for a job of so many nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFewDescriptors {
    nodes: u64,
    needed: u64,
    limit: u64,
}

impl fmt::Display for TooFewDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, needed, limit } = self;
        write!(
            f,
            "this process may have {limit} files open (RLIMIT_NOFILE), and the master of {nodes} nodes needs {needed}; run \
             `ulimit -n {needed}` before it, or have LimitNOFILE or limits.conf raised"
        )
    }
}

/// Checks that the master of a job with so many workers and servers has descriptors for all of them.
pub(crate) fn check_master(workers: u32, servers: u32) -> Result<(), TooFewDescriptors> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    within(u64::from(workers) + u64::from(servers), limit)
}

fn within(nodes: u64, limit: u64) -> Result<(), TooFewDescriptors> {
    let needed = OF_MASTER + OF_NODE * nodes;
    if needed <= limit { Ok(()) } else { Err(TooFewDescriptors { nodes, needed, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_of_a_master_grows_with_its_nodes_and_the_error_names_the_limit_and_the_remedy() {
        assert_eq!(within(198, 1024), Ok(()));
        let error = within(199, 1024).unwrap_err().to_string();
        assert!(error.contains("1024 files") && error.contains("`ulimit -n 1027`"), "{error}");
    }
}
