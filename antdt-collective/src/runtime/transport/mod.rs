//! The seam that schedules run over.

pub mod mem;
pub mod tcp;

use std::fmt;
use std::time::Instant;

use antdt_core::Rank;

pub use mem::MemTransport;
pub use tcp::{Listener, TcpTransport};

use crate::error::CollectiveError;
use crate::frame::Tag;
use crate::group::Group;

/// One round of one collective.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Which.
    pub tag: Tag,
    /// When the collective began; for error messages.
    pub started: Instant,
    /// When it must be over.
    pub deadline: Instant,
}

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// To whom.
    pub to: Rank,
    /// What; at least one byte.
    pub bytes: &'a [u8],
}

/// A message to receive.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// From whom.
    pub from: Rank,
    /// Where it goes; it must be exactly as long.
    pub sink: Sink<'a>,
}

/// Where a received message goes.
pub enum Sink<'a> {
    /// Into place.
    Place(&'a mut [u8]),
    /// Piece by piece, while more arrives, to somebody who folds it in.
    Fold(&'a mut dyn Fold),
}

impl Sink<'_> {
    /// Length of the expected message, in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Place(bytes) => bytes.len(),
            Self::Fold(fold) => fold.len_bytes(),
        }
    }
}

impl fmt::Debug for Sink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Place(_) => "Place",
            Self::Fold(_) => "Fold",
        };
        write!(f, "{name}({} bytes)", self.len_bytes())
    }
}

/// Takes a message in pieces.
pub trait Fold {
    /// Length of the whole message, in bytes.
    fn len_bytes(&self) -> usize;

    /// Takes the bytes that lie `at` bytes into the message. Pieces come in order, each once, and begin and end at
    /// multiples of 64 bytes or at the message's end.
    fn fold(&mut self, at: usize, bytes: &[u8]);
}

/// Carries messages between the members of one group.
///
/// Implementers: run `runtime::testing::check_transport` (feature `testing`) on your transport.
pub trait Transport: Send {
    /// The members.
    fn group(&self) -> &Group;

    /// Carries one round's messages: all of them progress together, so that it cannot matter who sends first.
    /// At most one message goes to, and one comes from, each peer. Returns once all were handed over and received.
    ///
    /// # Errors
    /// If a peer is late, gone, or at another call; if the abort handle was used; if data were damaged. The other
    /// members are told, and every later call fails with the same error.
    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError>;

    /// Gives up: tells the other members and makes every later call fail. Returns the error that stays, which is the
    /// first one.
    fn fail(&mut self, error: CollectiveError) -> CollectiveError;
}
