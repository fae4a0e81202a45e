//! Settings of a communicator.

use std::time::Duration;

use crate::schedule::Choice;

/// Settings of a communicator: timeouts, limits and the choice of algorithms. They must be the same on all
/// members.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommunicatorConfig {
    /// Longest duration of one collective, including the wait for the slowest member. After it a silent
    /// member is reported as late; the death of a member is noticed at once. Default 60 s: well above any
    /// step of a straggler.
    ///
    /// All other limits follow from it and from observed durations. Once a few calls of about one length are
    /// over, their limit is that of [`Patience`](crate::patience::Patience), but at least a sixth of this
    /// one. A member that falls silent within a message is reported after a quarter of the call's limit.
    pub timeout: Duration,
    /// How many times longer than usual a call may take: `k` of [`Patience`](crate::patience::Patience).
    /// Default 10.
    pub patience: f64,
    /// Largest total length of a gathered or broadcast message, in bytes, as a guard against a defective
    /// member. Default 4 GiB.
    pub bytes_max: u64,
    /// How an all-reduce picks its algorithm.
    pub algorithm: Choice,
    /// Bytes for each member in a slice of an all-reduce over messages: a longer buffer is reduced slice by
    /// slice, where its algorithm [asks for it](crate::schedule::Algorithm::slices). The values are summed in
    /// the order that the algorithm has for a buffer of a slice's length, which may change the rounding.
    /// Default: 512 KiB; more where a round of such a slice would take less than eight times the latency.
    pub slice: Option<usize>,
    /// Whether an all-reduce ends with a round in which all members tell each other that they have the
    /// result, so that either all of them commit it or none: see [`outcome`](crate::outcome). Costs one round
    /// of the shortest messages. Default: no; workers that average gradients agree on the step as a whole
    /// anyway.
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
