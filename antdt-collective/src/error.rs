//! Errors of collectives: what failed, and which member caused it.

use std::io;
use std::time::Duration;

use antdt_core::{Holder, MembershipVersion};

use crate::frame::Tag;

/// Reason why a collective failed. The buffers of the call are as they were before it.
///
/// After any error the transport refuses every further call with the same error, because the members may have
/// stopped at different calls. Form a new group and call again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A peer did not send, or did not take, a message before the deadline.
    #[error(
        "{peer} kept this rank waiting for {waited:.1?} in {at}, {missing} bytes are missing; look at that node, then form a new group"
    )]
    Timeout {
        /// Member from which a message, or the acceptance of one, is missing.
        peer: Holder,
        /// Position of the call in the history of the group.
        at: Tag,
        /// Time since the call began.
        waited: Duration,
        /// Bytes that this rank still had to exchange with the peer in this round.
        missing: u64,
    },
    /// The connection to a peer ended, most often because its process has died.
    #[error("{peer} closed its connection in {at}; form a new group without it")]
    PeerClosed {
        /// Member whose connection ended.
        peer: Holder,
        /// Position of the call in the history of the group.
        at: Tag,
    },
    /// This process, or a peer, aborted the call.
    #[error("aborted by {}: {reason}", by.map_or_else(|| "this process".to_owned(), |by| by.to_string()))]
    Aborted {
        /// Member that aborted; `None` if this process's own abort handle ended the call.
        by: Option<Holder>,
        /// Member that caused the abort, if it is known.
        culprit: Option<Holder>,
        /// Reason of the abort, in words.
        reason: String,
    },
    /// Two members disagree about the call or about the group.
    #[error(
        "{peer} is in {theirs}, this rank in {ours}; every member must make the same calls in the same order"
    )]
    Mismatch {
        /// Member that disagrees with this one.
        peer: Holder,
        /// The peer's call or group, in words.
        theirs: String,
        /// This rank's call or group, in words.
        ours: String,
    },
    /// A newer group exists, which this process has not joined: the caller must get the new list of members
    /// and join that group.
    #[error("membership {ours} is over, {theirs} has begun; ask the master for the new group")]
    StaleMembership {
        /// Membership version of this process's group.
        ours: MembershipVersion,
        /// Membership version of the newer group.
        theirs: MembershipVersion,
    },
    /// A peer is on a host that this transport does not reach.
    #[error(
        "{peer} is on another host, where shared memory does not reach; choose the transport `auto` or `tcp`"
    )]
    OtherHost {
        /// Member that cannot be reached.
        peer: Holder,
    },
    /// Bytes were damaged on the way.
    #[error("damaged data from {peer}: {what}")]
    Corrupt {
        /// Member that sent the message.
        peer: Holder,
        /// Description of the damage.
        what: String,
    },
    /// The arguments are wrong in any group; the caller must correct them.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what would be accepted.
        what: String,
    },
    /// The operating system refused an operation on this host.
    #[error("{what}: {kind}")]
    Io {
        /// Name of the operation.
        what: String,
        /// Kind of the system's error.
        kind: io::ErrorKind,
    },
}

impl CollectiveError {
    /// Returns the error for an operation, `what`, that the operating system refused with `e`.
    pub fn io(what: &str, e: &io::Error) -> Self {
        // The kind alone would hide what the system said in words.
        Self::Io { what: format!("{what}: {e}"), kind: e.kind() }
    }

    /// Returns whether a new group would meet the same error: the arguments are wrong, or the members are on
    /// hosts that the transport does not connect.
    pub const fn is_permanent(&self) -> bool {
        matches!(self, Self::OtherHost { .. } | Self::Invalid { .. })
    }

    /// Returns the member that made the call fail, if it is known: the member that is late, dead, or in
    /// disagreement.
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
