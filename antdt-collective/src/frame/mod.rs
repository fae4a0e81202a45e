//! The wire format of messages: a header of 64 bytes, then the payload. Pure; sockets are in `runtime`.
//!
//! Every header carries the membership, collective, round and segment that it belongs to, and the sender's
//! description of the collective. A late message of an earlier round therefore cannot be taken for a current
//! one, and two ranks that disagree about the operation find out with their first frame.

pub mod notice;

use std::cmp::Ordering;
use std::fmt;

use antdt_core::{MembershipVersion, Rank};

use crate::element::ElementType;
use crate::op::ReduceOp;

/// Kind of a collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OperationKind {
    /// Members connect to each other.
    Connect = 0,
    /// Every rank gets the reduction over all ranks' buffers.
    AllReduce = 1,
    /// Every rank gets the blocks of all ranks.
    AllGather = 2,
    /// Every rank gets the root's bytes.
    Broadcast = 3,
    /// No rank leaves before every rank has entered.
    Barrier = 4,
    /// Every rank gets its own block of the reduction over all ranks.
    ReduceScatter = 5,
    /// The root gets the blocks of all ranks.
    Gather = 6,
    /// Every rank gets its own block of the root's buffer.
    Scatter = 7,
    /// Every rank gets, from each other rank, the block that is meant for it.
    AllToAll = 8,
    /// The members of a new group tell each other which results of the earlier group they have committed.
    Regroup = 9,
    /// Ranks that lack a buffer get it from ranks that have it.
    Copy = 10,
}

impl OperationKind {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Connect,
            1 => Self::AllReduce,
            2 => Self::AllGather,
            3 => Self::Broadcast,
            4 => Self::Barrier,
            5 => Self::ReduceScatter,
            6 => Self::Gather,
            7 => Self::Scatter,
            8 => Self::AllToAll,
            9 => Self::Regroup,
            10 => Self::Copy,
            _ => return None,
        })
    }
}

/// Description of a collective by one rank. All ranks of a call must agree in all fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Kind of the collective.
    pub kind: OperationKind,
    /// Type of the elements of the collective.
    pub element: ElementType,
    /// Reduction; [`ReduceOp::Sum`] where nothing is reduced.
    pub op: ReduceOp,
    /// [`code`](crate::schedule::Algorithm::code) of the algorithm.
    pub algorithm: u8,
    /// Root rank; rank 0 where there is no root.
    pub root: Rank,
    /// Number of elements; 0 for collectives in which ranks may have different numbers.
    pub len: u64,
}

impl Operation {
    /// Description of the exchange in which members connect.
    pub const CONNECT: Self = Self {
        kind: OperationKind::Connect,
        element: ElementType::U8,
        op: ReduceOp::Sum,
        algorithm: 0,
        root: Rank(0),
        len: 0,
    };

    /// Returns the description of an operation without elements, root or reduction.
    pub const fn plain(kind: OperationKind) -> Self {
        Self { kind, element: ElementType::U8, op: ReduceOp::Sum, algorithm: 0, root: Rank(0), len: 0 }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            OperationKind::Connect => f.write_str("connect"),
            OperationKind::AllReduce | OperationKind::ReduceScatter => {
                let name =
                    if self.kind == OperationKind::AllReduce { "all-reduce" } else { "reduce-scatter" };
                write!(
                    f,
                    "{name}({} of {} {}, algorithm {})",
                    self.op, self.len, self.element, self.algorithm
                )
            }
            OperationKind::AllGather => f.write_str("all-gather"),
            OperationKind::Broadcast => write!(f, "broadcast(root {})", self.root),
            OperationKind::Barrier => f.write_str("barrier"),
            OperationKind::Gather => write!(f, "gather(root {})", self.root),
            OperationKind::Scatter => write!(f, "scatter(root {})", self.root),
            OperationKind::AllToAll => f.write_str("all-to-all"),
            OperationKind::Regroup => f.write_str("regroup"),
            OperationKind::Copy => f.write_str("copy"),
        }
    }
}

/// Position of a message in the history of a group: membership, collective and round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Membership version of the group.
    pub membership: MembershipVersion,
    /// Running number of the collective in the group, from its first call.
    pub sequence: u64,
    /// Index of the round within the collective.
    pub round: u32,
    /// The sender's description of the collective.
    pub operation: Operation,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, call {}, round {}, membership {}",
            self.operation, self.sequence, self.round, self.membership
        )
    }
}

/// Result of comparing a received message's tag with the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeliness {
    /// The message is the expected one.
    Expected,
    /// The message belongs to an earlier call or group; the receiver drops it.
    Old,
    /// The message belongs to a later round or call; the receiver keeps it until then.
    Early,
    /// The sender is in a newer group, so this group has ended.
    NewerMembership,
    /// The sender describes this call differently: the ranks disagree.
    Different,
}

impl Tag {
    /// Compares the tag `theirs` of a received message with the expected tag `self`.
    pub fn judge(&self, theirs: &Self) -> Timeliness {
        match theirs.membership.cmp(&self.membership) {
            Ordering::Less => return Timeliness::Old,
            Ordering::Greater => return Timeliness::NewerMembership,
            Ordering::Equal => {}
        }
        match theirs.sequence.cmp(&self.sequence) {
            Ordering::Less => return Timeliness::Old,
            Ordering::Greater => return Timeliness::Early,
            Ordering::Equal => {}
        }
        if theirs.operation != self.operation {
            return Timeliness::Different;
        }
        match theirs.round.cmp(&self.round) {
            Ordering::Less => Timeliness::Old,
            Ordering::Equal => Timeliness::Expected,
            Ordering::Greater => Timeliness::Early,
        }
    }
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A segment of a message.
    Data = 1,
    /// The sender has aborted; the payload holds the reason.
    Abort = 2,
    /// First frame of a connection in a membership: the payload names the sender.
    Hello = 3,
    /// The sender has arrived at this round and is receiving the message, of which more bytes are to come. No
    /// payload.
    Taking = 4,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Tag of the message that the frame belongs to.
    pub tag: Tag,
    /// Index of the segment within the message, from 0.
    pub segment: u32,
    /// Length of the payload, in bytes.
    pub len: u32,
    /// CRC-32C of the payload; `None` where the transport cannot damage it.
    pub crc: Option<u32>,
}

/// Reason why bytes are not a frame of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first four bytes are not [`Header::MAGIC`]: the sender speaks another protocol.
    #[error("not a frame of this protocol (magic {0:#010x})")]
    Magic(u32),
    /// The sender speaks another version of the protocol: run the same release on all members.
    #[error(
        "protocol version {theirs}, this process speaks {}; start all processes from one build",
        Header::VERSION
    )]
    Version {
        /// Version of the sender.
        theirs: u8,
    },
    /// The header's checksum does not match.
    #[error("the header's checksum is wrong")]
    HeaderChecksum,
    /// The payload's checksum does not match.
    #[error("the payload's checksum is wrong")]
    PayloadChecksum,
    /// A field has a value that no sender of this protocol writes.
    #[error("{field} is {value}, which means nothing")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// The payload is longer than [`Header::PAYLOAD_MAX`].
    #[error("a payload of {len} bytes, at most {most} are accepted")]
    TooLong {
        /// Length in the header, in bytes.
        len: u64,
        /// Longest accepted length, in bytes.
        most: u64,
    },
}

impl Header {
    /// Length of a header, in bytes.
    pub const LEN: usize = 64;
    /// First four bytes of every frame.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"ADTC");
    /// Version of the protocol. Members with different versions refuse each other.
    pub const VERSION: u8 = 2;
    /// Longest payload, in bytes. Segments are far shorter; a longer payload means damage or a foreign
    /// sender.
    pub const PAYLOAD_MAX: u32 = 16 << 20;

    /// Returns the header of a payload, with its checksum.
    ///
    /// # Panics
    /// If the payload is longer than [`PAYLOAD_MAX`](Self::PAYLOAD_MAX).
    pub fn of(kind: FrameKind, tag: Tag, segment: u32, payload: &[u8]) -> Self {
        Self { crc: Some(crc32c::crc32c(payload)), ..Self::plain(kind, tag, segment, payload.len()) }
    }

    /// Returns the header of a payload of `len` bytes, without a checksum.
    ///
    /// # Panics
    /// If the payload is longer than [`PAYLOAD_MAX`](Self::PAYLOAD_MAX).
    pub fn plain(kind: FrameKind, tag: Tag, segment: u32, len: usize) -> Self {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        assert!(len <= Self::PAYLOAD_MAX, "a payload of {len} bytes was not cut into segments");
        Self { kind, tag, segment, len, crc: None }
    }

    /// Encodes the header for the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let Self { kind, tag, segment, len, crc } = self;
        let Tag { membership, sequence, round, operation } = tag;
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        bytes[4] = Self::VERSION;
        bytes[5] = *kind as u8;
        bytes[6] = operation.kind as u8;
        bytes[7] = operation.element.code();
        bytes[8] = operation.op.code();
        bytes[9] = operation.algorithm;
        bytes[10] = u8::from(crc.is_some());
        bytes[12..16].copy_from_slice(&round.to_le_bytes());
        bytes[16..24].copy_from_slice(&membership.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&operation.len.to_le_bytes());
        bytes[40..44].copy_from_slice(&operation.root.0.to_le_bytes());
        bytes[44..48].copy_from_slice(&segment.to_le_bytes());
        bytes[48..52].copy_from_slice(&len.to_le_bytes());
        bytes[52..56].copy_from_slice(&crc.unwrap_or(0).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses and checks the bytes of a header.
    ///
    /// # Errors
    /// If the header belongs to another protocol, is damaged, or announces a payload that is too long.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | (u64::from(u32_at(at + 4)) << 32);
        let field = |field: &'static str, value: u8| FrameError::Field { field, value: u64::from(value) };
        if u32_at(0) != Self::MAGIC {
            return Err(FrameError::Magic(u32_at(0)));
        }
        if bytes[4] != Self::VERSION {
            return Err(FrameError::Version { theirs: bytes[4] });
        }
        if crc32c::crc32c(&bytes[..60]) != u32_at(60) {
            return Err(FrameError::HeaderChecksum);
        }
        let kind = match bytes[5] {
            1 => FrameKind::Data,
            2 => FrameKind::Abort,
            3 => FrameKind::Hello,
            4 => FrameKind::Taking,
            other => return Err(field("kind", other)),
        };
        let operation = Operation {
            kind: OperationKind::from_code(bytes[6]).ok_or_else(|| field("operation", bytes[6]))?,
            element: ElementType::from_code(bytes[7]).ok_or_else(|| field("element", bytes[7]))?,
            op: ReduceOp::from_code(bytes[8]).ok_or_else(|| field("op", bytes[8]))?,
            algorithm: bytes[9],
            root: Rank(u32_at(40)),
            len: u64_at(32),
        };
        let crc = match bytes[10] {
            0 => None,
            1 => Some(u32_at(52)),
            other => return Err(field("checked", other)),
        };
        let len = u32_at(48);
        if len > Self::PAYLOAD_MAX {
            return Err(FrameError::TooLong { len: u64::from(len), most: u64::from(Self::PAYLOAD_MAX) });
        }
        Ok(Self {
            kind,
            tag: Tag {
                membership: MembershipVersion(u64_at(16)),
                sequence: u64_at(24),
                round: u32_at(12),
                operation,
            },
            segment: u32_at(44),
            len,
            crc,
        })
    }

    /// Checks the payload that came with this header against its checksum.
    ///
    /// # Errors
    /// If the payload was damaged.
    pub fn verify(&self, payload: &[u8]) -> Result<(), FrameError> {
        self.verify_crc(self.crc.map_or(0, |_| crc32c::crc32c(payload)))
    }

    /// Checks a payload as [`verify`](Self::verify) does, given the CRC-32C that was computed while it was
    /// received. `crc` is ignored if the header has none.
    ///
    /// # Errors
    /// If the payload was damaged.
    pub fn verify_crc(&self, crc: u32) -> Result<(), FrameError> {
        match self.crc {
            Some(announced) if announced != crc => Err(FrameError::PayloadChecksum),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
