//! Limits and choices of a communicator.

use std::time::Duration;

use crate::schedule::Choice;

/// Limits and choices. The same on all members.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommunicatorConfig {
    /// How long one collective may take at most, waiting for the slowest member included. A silent member is given up
    /// after this; a dead one is noticed at once. Default 60 s: well above any step of a straggler, well below the
    /// patience of a user.
    ///
    /// All other limits follow from it and from what was seen: once a few calls of about one length are over, the limit
    /// is that of [`Patience`](crate::patience::Patience), a sixth of this at least; a member that falls silent within a
    /// message is given up after a quarter of the call's limit.
    pub timeout: Duration,
    /// How many times longer than usual a call may take: `k` of [`Patience`](crate::patience::Patience). Default 10.
    pub patience: f64,
    /// Bytes that a gathered or broadcast message may have in all, a guard against a member gone mad. Default 4 GiB.
    pub bytes_max: u64,
    /// How all-reduces pick their algorithm.
    pub algorithm: Choice,
    /// Bytes for each member in a slice of an all-reduce over messages: what is longer is reduced slice by slice, where its
    /// algorithm [asks for it](crate::schedule::Algorithm::slices). Where the order of summation shows in the result, it
    /// is that of the slices. Default: 512 KiB, more where the latency of a slice's rounds would tell.
    pub slice: Option<usize>,
    /// Whether an all-reduce ends with a round in which all members tell each other that they have the result, so that
    /// either all of them take it over or none: see [`outcome`](crate::outcome). Costs one round of the shortest
    /// messages. Default: no; workers that average gradients agree on the step as a whole anyway.
    pub unanimous: bool,
}

impl Default for CommunicatorConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            patience: 10.0,
            bytes_max: 4 << 30,
            algorithm: Choice::default(),
            slice: None,
            unanimous: false,
        }
    }
}
