//! Transports: the interface that schedules run over, and its implementations.

pub mod fabric;
pub mod registry;

pub mod mem;
pub mod mixed;
pub mod paced;
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
pub use paced::PacedFabric;
pub use registry::{DEFAULT, Entry, REGISTRY};
pub use tcp::{Listener, TcpChannel, TcpTransport};

use crate::error::CollectiveError;
use crate::frame::{Operation, Tag};
use crate::group::Group;
use crate::runtime::region::Region;
use crate::schedule::CostModel;

/// Identity and time limits of one round of a collective.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Tag of the round.
    pub tag: Tag,
    /// Time at which the collective began, for error messages.
    pub started: Instant,
    /// Deadline of the round.
    pub deadline: Instant,
    /// Longest gap between two bytes of a message once its first byte has moved. It has no effect when it is
    /// longer than the time left until `deadline`.
    pub stall: Duration,
}

impl Exchange {
    /// Returns the call in which members that are connected tell each other what more they need to know,
    /// before the first collective of the group.
    pub fn meeting(group: &Group, deadline: Instant) -> Self {
        let tag =
            Tag { membership: group.membership(), sequence: 0, round: 0, operation: Operation::CONNECT };
        let started = Instant::now();
        let stall = deadline.saturating_duration_since(started);
        Self { tag, started, deadline, stall }
    }
}

/// A message to send in a round.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Receiving rank.
    pub to: Rank,
    /// Bytes of the message; at least one.
    pub bytes: &'a [u8],
}

/// A message to receive in a round.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Sending rank.
    pub from: Rank,
    /// Destination of the message, which must have exactly its length.
    pub sink: Sink<'a>,
}

/// A message that another member reads in this member's memory, and may answer there.
#[derive(Debug)]
pub struct Loan<'a> {
    /// Rank of the member that reads the message.
    pub to: Rank,
    /// The message, as long as `into`; `None` if `into` itself holds the message.
    pub from: Option<&'a [u8]>,
    /// Memory into which the other member writes its answer; at least one byte.
    pub into: &'a mut [u8],
}

impl Loan<'_> {
    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        self.from.unwrap_or(self.into)
    }

    /// Returns the message as one that is sent and gets no answer.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing { to: self.to, bytes: self.bytes() }
    }
}

/// A part of a message that another member lent to this one, with the place for the answer.
#[derive(Debug)]
pub enum Piece<'a> {
    /// A part of a message whose sender wants no answer.
    Read(&'a [u8]),
    /// A part of a message whose answer replaces it in place.
    Within(&'a mut [u8]),
    /// A part of a message whose answer goes to other memory.
    Apart {
        /// Bytes of the message.
        from: &'a [u8],
        /// Memory for the answer, as long as the message.
        into: &'a mut [u8],
    },
}

impl Piece<'_> {
    /// Returns the bytes of the message, or those of the answer that replaced it in place.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Within(bytes) => bytes,
            Self::Apart { from, .. } => from,
        }
    }

    /// Returns the memory for the answer, if one is wanted.
    pub fn answer(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Read(_) => None,
            Self::Within(bytes) => Some(bytes),
            Self::Apart { into, .. } => Some(into),
        }
    }
}

/// Destination of a received message.
pub enum Sink<'a> {
    /// The bytes are stored in this slice.
    Place(&'a mut [u8]),
    /// The bytes are passed to a [`Fold`] piece by piece, while more arrive.
    Fold(&'a mut dyn Fold),
}

impl Sink<'_> {
    /// Returns the length of the expected message, in bytes.
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

/// A consumer of a message that arrives in pieces, for example one that adds them to a buffer.
pub trait Fold {
    /// Returns the length of the whole message, in bytes.
    fn len_bytes(&self) -> usize;

    /// Consumes the piece that begins `at` bytes into the message. Pieces come in order, each once, and begin
    /// and end at multiples of 64 bytes or at the message's end.
    fn fold(&mut self, at: usize, bytes: &[u8]);
}

/// A consumer of the messages of all other members, piece by piece, that computes an answer for each.
pub trait Merge {
    /// Returns the length of each message, in bytes.
    fn len_bytes(&self) -> usize;

    /// Consumes the piece that begins `at` bytes into each message, and writes an answer into each piece that
    /// wants one. `pieces` are in order of rank. Pieces come in order, each once, and begin and end at
    /// multiples of 64 bytes or at the end.
    fn merge(&mut self, at: usize, pieces: &mut [Piece<'_>]);
}

/// Bytes that this rank sent to one other member of a group, and the time that they took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Receiving rank.
    pub to: Rank,
    /// Number of bytes.
    pub bytes: u64,
    /// Time that the network took for the bytes. The time in which there was nothing to send is no part of
    /// it, nor the time in which the receiver had no room.
    pub time: Duration,
}

/// Carries messages between the members of one group.
///
/// An implementation should pass the tests of `transport_conforms!` (feature `testing`).
pub trait Transport: Send {
    /// Returns the members of the group.
    fn group(&self) -> &Group;

    /// Carries the messages of one round. All of them progress together, so the order of sends does not
    /// matter. At most one message goes to each peer, and one comes from it. Returns once all were handed
    /// over and received.
    ///
    /// # Errors
    /// If a peer is late, has died, or is at another call; if the abort handle was used; if data were
    /// damaged. The other members are told, and every later call fails with the same error.
    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError>;

    /// Lends a message to every other member, and passes the messages of all others, which have equal
    /// lengths, to `merge`, which answers them. Returns once all answers have arrived. A trade takes two
    /// rounds: that of `call` and the next.
    ///
    /// If the transport [lends](Self::lends), the memory of every loan must be one that the transport
    /// [owns](Self::owns).
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange). Answers may still arrive afterwards: memory that was lent in a trade
    /// that failed must not be used again.
    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        trade_by_exchange(self, call, loans, merge)
    }

    /// Gathers every member's block, in order of rank. `blocks` consists of one block of equal length per
    /// member; the caller has filled the block of this rank. For short blocks, for which a transport may have
    /// a faster way than a round of messages.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        gather_by_exchange(self, call, blocks)
    }

    /// Returns the host of each rank: ranks with the same number share a host. `None` if the transport does
    /// not know, or makes no difference. The result is the same on all members.
    fn hosts(&self) -> Option<&[u32]> {
        None
    }

    /// Returns the cost model that is assumed until the network is measured. It is the same on all members.
    fn cost(&self) -> CostModel {
        CostModel::LOOPBACK
    }

    /// Returns the bytes that this rank sent to each other member since the last call, and the time that the
    /// network took for them. Empty by default, for transports that cannot measure the time. Members that are
    /// reached without a network are left out.
    fn transfers(&mut self) -> Vec<Transfer> {
        Vec::new()
    }

    /// Returns memory of `len_bytes` bytes for a buffer that will be reduced many times; from the heap by
    /// default.
    ///
    /// # Errors
    /// If the system has no memory left.
    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        Ok(Region::heap(len_bytes))
    }

    /// Returns whether the other members read and answer messages in a [region](Self::region) in place,
    /// without a copy. It is the same on all members.
    fn lends(&self) -> bool {
        false
    }

    /// Returns whether this transport made the [region](Self::region), and so moves its bytes fastest.
    fn owns(&self, region: &Region) -> bool {
        let _ = region;
        true
    }

    /// Notices connections that have broken although a peer may need what was sent over them. The communicator
    /// calls it when a call begins and when a reduction ends, so it costs one system call at most. What it finds is
    /// told to the other members, and every later call fails with it. Does nothing by default, for transports
    /// that lose nothing silently.
    fn check(&mut self) {}

    /// Looks as [`check`](Self::check) does, and hears peers that have given up. For a caller that waits or
    /// computes between two calls, many times a second if it wishes.
    fn attend(&mut self) {
        self.check();
    }

    /// Aborts the group: tells the other members, and makes every later call fail. Returns the error of all
    /// later calls, which is the first one reported.
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

// One round of messages from every rank to every rank.
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
