//! Why a collective failed, and whose doing it was.

use std::io;
use std::time::Duration;

use antdt_core::{Holder, MembershipVersion};

use crate::frame::Tag;

/// A collective failed. The buffers of the call are as they were before it.
///
/// After any error the transport refuses every further call with the same error: the members no longer stand at the
/// same call. Form a new group and call again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A peer did not send or take what was due before the deadline.
    #[error(
        "{peer} kept this rank waiting for {waited:.1?} in {at}, {missing} bytes are missing; look at that node, then form a new group"
    )]
    Timeout {
        /// The late one.
        peer: Holder,
        /// Tag of the call.
        at: Tag,
        /// Since the call began.
        waited: Duration,
        /// Bytes still to be exchanged with it in this round.
        missing: u64,
    },
    /// A peer's connection ended.
    #[error("{peer} closed its connection in {at}; form a new group without it")]
    PeerClosed {
        /// The one that is gone.
        peer: Holder,
        /// Tag of the call.
        at: Tag,
    },
    /// This process, or a peer, gave up.
    #[error("aborted by {}: {reason}", by.map_or_else(|| "this process".to_owned(), |by| by.to_string()))]
    Aborted {
        /// The peer that gave up; `None` for this process's own abort handle.
        by: Option<Holder>,
        /// Member that caused the failure, if it is known.
        culprit: Option<Holder>,
        /// Reason, in words.
        reason: String,
    },
    /// Two members disagree about the call or the group.
    #[error(
        "{peer} is in {theirs}, this rank in {ours}; every member must make the same calls in the same order"
    )]
    Mismatch {
        /// The other one.
        peer: Holder,
        /// Call of the peer.
        theirs: String,
        /// Call of this rank.
        ours: String,
    },
    /// A newer group exists; this process has missed it.
    #[error("membership {ours} is over, {theirs} has begun; ask the master for the new group")]
    StaleMembership {
        /// The group of the call.
        ours: MembershipVersion,
        /// The newer one.
        theirs: MembershipVersion,
    },
    /// A peer is where this transport does not reach.
    #[error(
        "{peer} is on another host, where shared memory does not reach; choose the transport `auto` or `tcp`"
    )]
    OtherHost {
        /// The other one.
        peer: Holder,
    },
    /// Bytes were damaged on the way.
    #[error("damaged data from {peer}: {what}")]
    Corrupt {
        /// Member that sent the message.
        peer: Holder,
        /// Description of the fault.
        what: String,
    },
    /// The call itself cannot be served.
    #[error("{what}")]
    Invalid {
        /// What is wrong and what would be accepted.
        what: String,
    },
    /// The operating system refused something on this host.
    #[error("{what}: {kind}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The system's answer.
        kind: io::ErrorKind,
    },
}

impl CollectiveError {
    /// The system's refusal of `what` this process was doing.
    pub fn io(what: &str, e: &io::Error) -> Self {
        // The kind alone would hide what the system said in words.
        Self::Io { what: format!("{what}: {e}"), kind: e.kind() }
    }

    /// Whether the next group would meet the same error: the call itself, or where the members are, cannot be served.
    pub const fn is_permanent(&self) -> bool {
        matches!(self, Self::OtherHost { .. } | Self::Invalid { .. })
    }

    /// The member on whose account the call failed, if it is known: the late, dead or disagreeing one.
    pub const fn culprit(&self) -> Option<Holder> {
        match self {
            Self::Timeout { peer, .. }
            | Self::PeerClosed { peer, .. }
            | Self::Mismatch { peer, .. }
            | Self::Corrupt { peer, .. } => Some(*peer),
            Self::Aborted { culprit, .. } => *culprit,
            Self::StaleMembership { .. }
            | Self::OtherHost { .. }
            | Self::Invalid { .. }
            | Self::Io { .. } => None,
        }
    }
}
