//! TCP beside another medium: for a transport that carries its messages by other means, and keeps the group's TCP connections to
//! hear that a peer has ended and why.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use antdt_core::Rank;

use super::{Ended, TcpTransport};
use crate::error::CollectiveError;
use crate::runtime::transport::Exchange;

impl TcpTransport {
    /// Begins a round of which no message goes over TCP.
    pub fn begin_beside(&mut self, call: &Exchange) {
        self.begin(call, &[]);
    }

    /// Waits until a peer has something to say, the descriptor can be read, the abort handle is used, or `until` has passed.
    /// A signal makes it return early.
    ///
    /// # Errors
    /// If a peer has aborted, a connection has broken, or what came is damaged.
    pub fn sleep_beside(
        &mut self,
        call: &Exchange,
        until: Instant,
        events: BorrowedFd<'_>,
    ) -> Result<(), Ended> {
        self.sleep_or(call, until, &mut [], Some(events))
    }

    /// Returns the error of every later call, if the group has failed.
    pub const fn failure(&self) -> Option<&CollectiveError> {
        self.failed.as_ref()
    }

    /// Returns whether the connection to a peer has ended, as far as it was looked at.
    pub fn is_closed(&self, rank: Rank) -> bool {
        self.links[rank.0 as usize].as_ref().is_some_and(|link| link.socket.has_ended())
    }

    /// Returns the reason why a peer cannot be reached by other means than its connection, if that is known
    /// here.
    pub fn hears_why(&mut self, rank: Rank) -> Option<Ended> {
        self.listen();
        if let Some(error) = self.certain(rank) {
            return Some(Ended::Failed(error));
        }
        self.is_closed(rank).then_some(Ended::Gone(rank))
    }

    /// Returns the end of a round in which this rank waited for a message by other means; `late` names the
    /// rank that it waited for, which only the caller knows.
    pub fn settle(&mut self, call: &Exchange, ended: Ended, late: CollectiveError) -> Ended {
        match ended {
            Ended::Told { from, waited: true } if self.said(from).is_none_or(|notice| notice.suspects) => {
                Ended::Silent(late)
            }
            Ended::Gone(rank) => {
                self.listen();
                if let Some(error) = self.certain(rank) {
                    return Ended::Failed(error);
                }
                if self.said(rank).is_some() {
                    return Ended::Silent(late);
                }
                Ended::Failed(CollectiveError::PeerClosed { peer: self.group.holder(rank), at: call.tag })
            }
            ended => ended,
        }
    }

    /// Tells the other members that the round has ended, finds out which member caused it, and returns the
    /// error of this and every later call.
    pub fn conclude_beside(&mut self, call: &Exchange, ended: Ended) -> CollectiveError {
        self.conclude(call, ended, &[])
    }
}
