//! The seam that schedules run over.

pub mod fabric;
pub mod registry;

pub mod mem;
pub mod mixed;
pub mod tcp;

mod boxed;
mod channel;

pub(in crate::runtime) mod shm;

use std::fmt;
use std::time::{Duration, Instant};

use antdt_core::Rank;

pub use channel::{Channel, ChannelError};
pub use fabric::{Fabric, Regroup};
pub use mem::MemTransport;
pub use mixed::{MixedConfig, MixedTransport};
pub use registry::{DEFAULT, Entry, REGISTRY};
pub use tcp::{Listener, TcpChannel, TcpTransport};

use crate::error::CollectiveError;
use crate::frame::Tag;
use crate::group::Group;
use crate::runtime::region::Region;
use crate::schedule::CostModel;

/// One round of one collective.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Tag of the call.
    pub tag: Tag,
    /// When the collective began; for error messages.
    pub started: Instant,
    /// When it must be over.
    pub deadline: Instant,
    /// Longest silence of a peer within a message: once its first byte is there, or the first byte for it was taken,
    /// it has arrived and has nothing to wait for. Shorter than what is left until the deadline, or without meaning.
    pub stall: Duration,
}

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Receiving rank.
    pub to: Rank,
    /// What; at least one byte.
    pub bytes: &'a [u8],
}

/// A message to receive.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Sending rank.
    pub from: Rank,
    /// Where it goes; it must be exactly as long.
    pub sink: Sink<'a>,
}

/// A message that another member reads where it lies, and whose answer it leaves there.
#[derive(Debug)]
pub struct Loan<'a> {
    /// Receiving rank.
    pub to: Rank,
    /// The message, if it is not in `into`; as long.
    pub from: Option<&'a [u8]>,
    /// Where the answer goes; at least one byte.
    pub into: &'a mut [u8],
}

impl Loan<'_> {
    /// The message.
    pub fn bytes(&self) -> &[u8] {
        self.from.unwrap_or(self.into)
    }

    /// The message as one that wants no answer.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing { to: self.to, bytes: self.bytes() }
    }
}

/// A part of a message that was lent by another member.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Its sender wants no answer.
    Read(&'a [u8]),
    /// The answer goes where the message is.
    Within(&'a mut [u8]),
    /// The answer goes somewhere else.
    Apart {
        /// The message.
        from: &'a [u8],
        /// As long as the message.
        into: &'a mut [u8],
    },
}

impl Piece<'_> {
    /// The message, or what was put in its place.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Within(bytes) => bytes,
            Self::Apart { from, .. } => from,
        }
    }

    /// Where the answer goes, if one is wanted.
    pub fn answer(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Read(_) => None,
            Self::Within(bytes) => Some(bytes),
            Self::Apart { into, .. } => Some(into),
        }
    }
}

/// Where a received message goes.
pub enum Sink<'a> {
    /// Into place.
    Place(&'a mut [u8]),
    /// Handed to a [`Fold`] piece by piece, while more arrives.
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

/// Takes the messages of all other members together, and answers them.
pub trait Merge {
    /// Length of each message, in bytes.
    fn len_bytes(&self) -> usize;

    /// Takes the bytes that lie `at` bytes into each message, and puts the answer to these bytes where it is wanted; the
    /// messages are in order of rank. Pieces come in order, each once, and begin and end at multiples of 64 bytes or at
    /// the end.
    fn merge(&mut self, at: usize, pieces: &mut [Piece<'_>]);
}

/// Carries messages between the members of one group.
///
/// Implementers: run `transport_conforms!` (feature `testing`) on your transport.
pub trait Transport: Send {
    /// The members.
    fn group(&self) -> &Group;

    /// Carries one round's messages: all of them progress together, so that the order of sends cannot matter.
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

    /// Lends a message to every other member, and answers those of all others, which are equally long and are taken
    /// together once all are there. Returns once all answers are here. Takes this round and the next one.
    ///
    /// Where the transport [lends](Self::lends), all of a loan must lie in memory that it [owns](Self::owns).
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange). Answers may still arrive afterwards: memory that was lent in a trade that failed
    /// must not be used again.
    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        trade_by_exchange(self, call, loans, merge)
    }

    /// Every member's block, by rank: `blocks` falls into as many blocks of equal length as there are members, and the
    /// one of this rank is filled on entry. For short blocks, where the delay counts and not the bytes; a transport
    /// that has a shorter way than a round of messages takes it.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        gather_by_exchange(self, call, blocks)
    }

    /// The host of each rank, where the transport knows and it matters: ranks with the same number share one. The same
    /// on all members.
    fn hosts(&self) -> Option<&[u32]> {
        None
    }

    /// Returns the cost of messages that is assumed before a measurement. The same on all members.
    fn cost(&self) -> CostModel {
        CostModel::LOOPBACK
    }

    /// Memory for a buffer of `len_bytes` that will be reduced many times; on the heap, unless the transport knows
    /// better.
    ///
    /// # Errors
    /// If the system has no memory left that can be handed out.
    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        Ok(Region::heap(len_bytes))
    }

    /// Whether every other member reads what is sent out of a [region](Self::region) where it lies, leaves there what it
    /// answers, and nothing carries it there. The same on all members.
    fn lends(&self) -> bool {
        false
    }

    /// Whether a [region](Self::region) is one of this transport's, and so as fast as it can be.
    fn owns(&self, region: &Region) -> bool {
        let _ = region;
        true
    }

    /// Gives up: tells the other members and makes every later call fail. Returns the error that stays, which is the
    /// first one.
    fn fail(&mut self, error: CollectiveError) -> CollectiveError;
}

// The messages side by side, taken when all are whole; then the answers.
fn trade_by_exchange<T: Transport + ?Sized>(
    transport: &mut T,
    call: &Exchange,
    loans: &mut [Loan<'_>],
    merge: &mut dyn Merge,
) -> Result<(), CollectiveError> {
    let (me, world) = (transport.group().me(), transport.group().world());
    let others = || (0..world).map(Rank).filter(|rank| *rank != me);
    let len = merge.len_bytes();
    let mut kept = vec![0_u8; len * (world as usize - 1)];
    let sends: Vec<Outgoing<'_>> = loans.iter().map(Loan::outgoing).collect();
    let mut receives: Vec<Incoming<'_>> = others()
        .zip(kept.chunks_exact_mut(len.max(1)))
        .map(|(from, place)| Incoming { from, sink: Sink::Place(place) })
        .collect();
    transport.exchange(call, &sends, &mut receives)?;
    let mut pieces: Vec<Piece<'_>> = kept.chunks_exact_mut(len.max(1)).map(Piece::Within).collect();
    merge.merge(0, &mut pieces);
    let answers = kept.chunks_exact(len.max(1));
    let sends: Vec<Outgoing<'_>> = others().zip(answers).map(|(to, bytes)| Outgoing { to, bytes }).collect();
    let mut receives: Vec<Incoming<'_>> =
        loans.iter_mut().map(|loan| Incoming { from: loan.to, sink: Sink::Place(&mut *loan.into) }).collect();
    let tag = Tag { round: call.tag.round + 1, ..call.tag };
    transport.exchange(&Exchange { tag, ..*call }, &sends, &mut receives)
}

// One round of messages from everybody to everybody.
fn gather_by_exchange<T: Transport + ?Sized>(
    transport: &mut T,
    call: &Exchange,
    blocks: &mut [u8],
) -> Result<(), CollectiveError> {
    let (me, world) = (transport.group().me().0 as usize, transport.group().world() as usize);
    let block = blocks.len() / world;
    if block == 0 || world == 1 {
        return Ok(());
    }
    let (before, rest) = blocks.split_at_mut(me * block);
    let (mine, after) = rest.split_at_mut(block);
    let ranks = || (0..transport.group().world()).map(Rank).filter(|rank| rank.0 as usize != me);
    let sends: Vec<Outgoing<'_>> = ranks().map(|to| Outgoing { to, bytes: mine }).collect();
    let places = before.chunks_exact_mut(block).chain(after.chunks_exact_mut(block));
    let mut receives: Vec<Incoming<'_>> =
        ranks().zip(places).map(|(from, place)| Incoming { from, sink: Sink::Place(place) }).collect();
    transport.exchange(call, &sends, &mut receives)
}
