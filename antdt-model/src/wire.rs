//! The messages between workers and parameter servers: a header of 24 bytes, then the payload. Pure; sockets
//! are in `runtime`.
//!
//! Decoders check every length against what has come before they reserve memory, so that a damaged or foreign message
//! costs an error and nothing else.

use antdt_collective::JobToken;
use antdt_core::{CheckpointId, Holder, Incarnation, Iteration, NodeId, ParamLayout, Role};

use crate::gradient::SparseGradient;
use crate::rule::Trained;
use crate::server::{CommitToken, InitOutcome, Push, PushOutcome};

/// Reason why bytes are not a message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are of another protocol, or of another version of this one.
    #[error("not a message of this protocol; start all processes from one build")]
    Foreign,
    /// The checksum does not match: the message was damaged on the way.
    #[error("a checksum is wrong")]
    Checksum,
    /// The message is longer than is accepted.
    #[error("a message of {len} bytes, at most {most} are accepted")]
    TooLong {
        /// Length in the header, in bytes.
        len: u64,
        /// Longest accepted length, in bytes.
        most: u64,
    },
    /// A field, named here, has a value that no sender of this protocol writes.
    #[error("{0} makes no sense")]
    Field(&'static str),
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// Kind of the message.
    pub kind: u8,
    /// Length of the payload, in bytes.
    pub len: u64,
    crc: u32,
}

impl MessageHeader {
    /// Length of a header, in bytes.
    pub const LEN: usize = 24;
    const MAGIC: [u8; 4] = *b"ADTP";
    const VERSION: u8 = 1;

    /// Writes the header of the message in `message[LEN..]` into its first bytes, which were kept free.
    fn seal(message: &mut [u8], kind: u8) {
        let (header, payload) = message.split_at_mut(Self::LEN);
        header.fill(0);
        header[..4].copy_from_slice(&Self::MAGIC);
        header[4] = Self::VERSION;
        header[5] = kind;
        header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        header[16..20].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        let checksum = crc32c::crc32c(&header[..20]);
        header[20..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Parses and checks a header.
    ///
    /// # Errors
    /// If the header is not of this protocol, is damaged, or announces more than `most` bytes.
    pub fn decode(bytes: &[u8; Self::LEN], most: u64) -> Result<Self, WireError> {
        let mut reader = Reader(bytes);
        if reader.take(4)? != Self::MAGIC || reader.u8()? != Self::VERSION {
            return Err(WireError::Foreign);
        }
        let kind = reader.u8()?;
        reader.take(2)?;
        let (len, crc) = (reader.u64()?, reader.u32()?);
        if crc32c::crc32c(&bytes[..20]) != reader.u32()? {
            return Err(WireError::Checksum);
        }
        if len > most {
            return Err(WireError::TooLong { len, most });
        }
        Ok(Self { kind, len, crc })
    }

    /// Checks the payload that came with this header against its checksum.
    ///
    /// # Errors
    /// If the payload was damaged.
    pub fn verify(&self, payload: &[u8]) -> Result<(), WireError> {
        if crc32c::crc32c(payload) == self.crc { Ok(()) } else { Err(WireError::Checksum) }
    }
}

const HELLO: u8 = 1;
const INIT: u8 = 2;
const PULL: u8 = 3;
const PUSH: u8 = 4;
const COPY: u8 = 5;
const WELCOME: u8 = 129;
const INIT_DONE: u8 = 130;
const PULLED: u8 = 131;
const PUSHED: u8 = 132;
const COPIED: u8 = 133;
const REFUSED: u8 = 255;

/// First message of a worker on a connection: its identity, and the server and model that it expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PsHello {
    /// Token of the worker's job.
    pub job: JobToken,
    /// Worker and incarnation that connects.
    pub holder: Holder,
    /// Index of the server that the worker expects at this address.
    pub server: u32,
    /// Number of servers.
    pub servers: u32,
    /// Length of the model's whole flat vector.
    pub dense_len: u64,
    /// Number of rows, and of values per row, of each table.
    pub tables: Vec<(u64, u64)>,
}

impl PsHello {
    /// Returns the hello of worker `holder` to server `server` of `servers`, which hold a model of this
    /// shape.
    pub fn new(job: JobToken, holder: Holder, server: u32, servers: u32, layout: &ParamLayout) -> Self {
        let tables = layout.tables().iter().map(|table| (table.rows, table.dim as u64)).collect();
        Self { job, holder, server, servers, dense_len: layout.dense_len() as u64, tables }
    }
}

/// Request of a worker to a server.
#[derive(Debug, Clone, PartialEq)]
pub enum PsRequest {
    /// First request of a connection: the worker introduces itself.
    Hello(PsHello),
    /// Sets the initial values of the server's piece of the flat vector.
    Init(Vec<f32>),
    /// Reads values, after the commit was carried out.
    Pull {
        /// Step to commit first.
        commit: Option<CommitToken>,
        /// Rows to read.
        rows: Vec<u64>,
    },
    /// Sends a gradient.
    Push {
        /// Number of the step.
        step: Iteration,
        /// The gradient with its number of samples.
        push: Push,
    },
    /// Copies the parameters for a checkpoint, after the commit was carried out.
    Copy {
        /// Step to commit first.
        commit: Option<CommitToken>,
        /// Checkpoint that the copy is for.
        checkpoint: CheckpointId,
    },
}

/// Reason why a server refused a request, as a number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum PsRefusal {
    /// The request is invalid for this server.
    Invalid = 1,
    /// The worker is of another job, or expects another server or model.
    Stranger = 2,
    /// No worker has sent initial values yet.
    NotInitialised = 3,
    /// This incarnation of the worker was declared lost or replaced: it must exit.
    Fenced = 4,
    /// The step was committed already.
    Stale = 5,
    /// The commit does not fit the pushes that the server has.
    Commit = 6,
    /// The server has as many connections as it accepts.
    Full = 7,
}

impl PsRefusal {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Invalid,
            2 => Self::Stranger,
            3 => Self::NotInitialised,
            4 => Self::Fenced,
            5 => Self::Stale,
            6 => Self::Commit,
            7 => Self::Full,
            _ => return None,
        })
    }
}

/// Reply of a server to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum PsReply<'a> {
    /// Answer to a hello: the worker is accepted.
    Welcome,
    /// Answer to initial values.
    Init(InitOutcome),
    /// Answer to a pull: the requested values, as bytes of `f32`.
    Pulled {
        /// The server's piece of the flat vector.
        dense: &'a [u8],
        /// Values of the requested rows, one after another.
        rows: &'a [u8],
    },
    /// Answer to a push.
    Pushed(PushOutcome),
    /// Answer to a copy: how far the copied parameters are trained.
    Copied(Trained),
    /// The server refused the request.
    Refused {
        /// Kind of refusal, for the caller to act on.
        refusal: PsRefusal,
        /// Reason, in words.
        why: &'a str,
    },
}

// The message is built in `into`, which is cleared first.
fn message(into: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    into.clear();
    into.resize(MessageHeader::LEN, 0);
    payload(into);
    MessageHeader::seal(into, kind);
}

impl PsRequest {
    /// Encodes a hello into `into`.
    pub fn hello(into: &mut Vec<u8>, hello: &PsHello) {
        message(into, HELLO, |out| {
            put_u64(out, hello.job.0);
            put_holder(out, hello.holder);
            put_u32(out, hello.server);
            put_u32(out, hello.servers);
            put_u64(out, hello.dense_len);
            let tables: Vec<u64> = hello.tables.iter().flat_map(|(rows, dim)| [*rows, *dim]).collect();
            put_slice(out, &tables);
        });
    }

    /// Encodes initial values into `into`.
    pub fn init(into: &mut Vec<u8>, values: &[f32]) {
        message(into, INIT, |out| put_slice(out, values));
    }

    /// Encodes a pull into `into`.
    pub fn pull(into: &mut Vec<u8>, commit: Option<&CommitToken>, rows: &[u64]) {
        message(into, PULL, |out| {
            put_commit(out, commit);
            put_slice(out, rows);
        });
    }

    /// Encodes the request for a copy into `into`.
    pub fn copy(into: &mut Vec<u8>, commit: Option<&CommitToken>, checkpoint: CheckpointId) {
        message(into, COPY, |out| {
            put_commit(out, commit);
            put_u64(out, checkpoint.0);
        });
    }

    /// Encodes a push into `into`; `values` are those of all rows, one after another.
    pub fn push(
        into: &mut Vec<u8>,
        step: Iteration,
        samples: u64,
        dense: &[f32],
        rows: &[u64],
        values: &[f32],
    ) {
        message(into, PUSH, |out| {
            put_u64(out, step.0);
            put_u64(out, samples);
            put_slice(out, dense);
            put_slice(out, rows);
            put_slice(out, values);
        });
    }

    fn table(words: &[u64]) -> Result<(u64, u64), WireError> {
        match words {
            [rows, dim] => Ok((*rows, *dim)),
            _ => Err(WireError::Field("the shape of a table")),
        }
    }

    /// Decodes the payload of a request.
    ///
    /// # Errors
    /// If the payload is not a request of this kind.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader(payload);
        let request = match kind {
            HELLO => Self::Hello(PsHello {
                job: JobToken(reader.u64()?),
                holder: reader.holder()?,
                server: reader.u32()?,
                servers: reader.u32()?,
                dense_len: reader.u64()?,
                tables: reader.slice::<u64>()?.chunks(2).map(Self::table).collect::<Result<_, _>>()?,
            }),
            INIT => Self::Init(reader.slice()?),
            PULL => {
                let commit = reader.commit()?;
                Self::Pull { commit, rows: reader.slice()? }
            }
            COPY => {
                let commit = reader.commit()?;
                Self::Copy { commit, checkpoint: CheckpointId(reader.u64()?) }
            }
            PUSH => {
                let (step, samples) = (Iteration(reader.u64()?), reader.u64()?);
                let (dense, rows, values) = (reader.slice()?, reader.slice()?, reader.slice()?);
                Self::Push { step, push: Push { samples, dense, rows: SparseGradient { rows, values } } }
            }
            _ => return Err(WireError::Field("the kind of a request")),
        };
        reader.end()?;
        Ok(request)
    }
}

impl<'a> PsReply<'a> {
    /// Encodes the reply into `into`.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Welcome => message(into, WELCOME, |_| {}),
            Self::Init(outcome) => message(into, INIT_DONE, |out| {
                out.push(match outcome {
                    InitOutcome::Stored => 0,
                    InitOutcome::AlreadyInitialised => 1,
                });
            }),
            Self::Pulled { dense, rows } => message(into, PULLED, |out| {
                put_slice(out, dense);
                put_slice(out, rows);
            }),
            Self::Pushed(outcome) => message(into, PUSHED, |out| {
                out.push(match outcome {
                    PushOutcome::Buffered => 0,
                    PushOutcome::Applied => 1,
                    PushOutcome::Duplicate => 2,
                });
            }),
            Self::Copied(Trained { steps, samples }) => message(into, COPIED, |out| {
                put_u64(out, *steps);
                put_u64(out, *samples);
            }),
            Self::Refused { refusal, why } => message(into, REFUSED, |out| {
                out.push(*refusal as u8);
                put_slice(out, why.as_bytes());
            }),
        }
    }

    /// Decodes the payload of a reply.
    ///
    /// # Errors
    /// If the payload is not a reply of this kind.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader(payload);
        let reply = match kind {
            WELCOME => Self::Welcome,
            INIT_DONE => Self::Init(match reader.u8()? {
                0 => InitOutcome::Stored,
                1 => InitOutcome::AlreadyInitialised,
                _ => return Err(WireError::Field("the outcome of initial values")),
            }),
            PULLED => Self::Pulled { dense: reader.bytes()?, rows: reader.bytes()? },
            PUSHED => Self::Pushed(match reader.u8()? {
                0 => PushOutcome::Buffered,
                1 => PushOutcome::Applied,
                2 => PushOutcome::Duplicate,
                _ => return Err(WireError::Field("the outcome of a push")),
            }),
            COPIED => Self::Copied(Trained { steps: reader.u64()?, samples: reader.u64()? }),
            REFUSED => {
                let refusal =
                    PsRefusal::from_code(reader.u8()?).ok_or(WireError::Field("the reason of a refusal"))?;
                let why = std::str::from_utf8(reader.bytes()?)
                    .map_err(|_| WireError::Field("the text of a refusal"))?;
                Self::Refused { refusal, why }
            }
            _ => return Err(WireError::Field("the kind of a reply")),
        };
        reader.end()?;
        Ok(reply)
    }
}

const HOLDER_LEN: usize = 9;

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_commit(out: &mut Vec<u8>, commit: Option<&CommitToken>) {
    out.push(u8::from(commit.is_some()));
    if let Some(CommitToken { step, contributors, samples }) = commit {
        put_u64(out, step.0);
        put_u64(out, *samples);
        put_u64(out, contributors.len() as u64);
        contributors.iter().for_each(|holder| put_holder(out, *holder));
    }
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_holder(out: &mut Vec<u8>, holder: Holder) {
    out.push(match holder.node.role {
        Role::Worker => 0,
        Role::Server => 1,
    });
    put_u32(out, holder.node.index);
    put_u32(out, holder.incarnation.0);
}

// Length in bytes, then the bytes.
fn put_slice<E: bytemuck::NoUninit>(out: &mut Vec<u8>, values: &[E]) {
    put_u64(out, size_of_val(values) as u64);
    out.extend_from_slice(bytemuck::cast_slice(values));
}

struct Reader<'a>(&'a [u8]);

const CUT_OFF: WireError = WireError::Field("a message that is cut off");

impl<'a> Reader<'a> {
    fn commit(&mut self) -> Result<Option<CommitToken>, WireError> {
        match self.u8()? {
            0 => Ok(None),
            1 => {
                let (step, samples, count) = (Iteration(self.u64()?), self.u64()?, self.u64()?);
                let most = (self.0.len() / HOLDER_LEN) as u64;
                if count > most {
                    return Err(WireError::Field("the number of contributors"));
                }
                let contributors = (0..count).map(|_| self.holder()).collect::<Result<_, _>>()?;
                Ok(Some(CommitToken { step, contributors, samples }))
            }
            _ => Err(WireError::Field("the flag of a commit")),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| CUT_OFF)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn holder(&mut self) -> Result<Holder, WireError> {
        let role = match self.u8()? {
            0 => Role::Worker,
            1 => Role::Server,
            _ => return Err(WireError::Field("a role")),
        };
        Ok(Holder::new(NodeId { role, index: self.u32()? }, Incarnation(self.u32()?)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.u64()?).map_err(|_| CUT_OFF)?;
        self.take(len)
    }

    fn slice<E: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&mut self) -> Result<Vec<E>, WireError> {
        let bytes = self.bytes()?;
        if bytes.len() % size_of::<E>() != 0 {
            return Err(WireError::Field("the length of a list"));
        }
        Ok(bytemuck::pod_collect_to_vec(bytes))
    }

    fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Field("a message with something behind it")) }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::TableSpec;
    use proptest::prelude::*;

    use super::*;

    fn split(message: &[u8]) -> (MessageHeader, &[u8]) {
        let (header, payload) = message.split_first_chunk().unwrap();
        let header = MessageHeader::decode(header, 1 << 20).unwrap();
        assert_eq!(header.len as usize, payload.len());
        header.verify(payload).unwrap();
        (header, payload)
    }

    fn holder(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(3))
    }

    fn requests() -> Vec<(Vec<u8>, PsRequest)> {
        let layout = ParamLayout::dense(5).with_table(TableSpec::new("table", 9, 2, 0.1)).unwrap();
        let hello = PsHello::new(JobToken::new("x"), holder(1), 2, 3, &layout);
        let commit =
            CommitToken { step: Iteration(9), contributors: vec![holder(0), holder(4)], samples: 77 };
        let push = Push {
            samples: 4,
            dense: vec![1.0, 2.0],
            rows: SparseGradient { rows: vec![3, 4], values: vec![0.5; 6] },
        };
        let mut all = Vec::new();
        let mut out = Vec::new();
        PsRequest::hello(&mut out, &hello);
        all.push((out.clone(), PsRequest::Hello(hello)));
        PsRequest::init(&mut out, &[1.5]);
        all.push((out.clone(), PsRequest::Init(vec![1.5])));
        PsRequest::pull(&mut out, None, &[7, 8]);
        all.push((out.clone(), PsRequest::Pull { commit: None, rows: vec![7, 8] }));
        PsRequest::pull(&mut out, Some(&commit), &[]);
        all.push((out.clone(), PsRequest::Pull { commit: Some(commit.clone()), rows: Vec::new() }));
        PsRequest::copy(&mut out, Some(&commit), CheckpointId(4));
        all.push((out.clone(), PsRequest::Copy { commit: Some(commit), checkpoint: CheckpointId(4) }));
        PsRequest::push(&mut out, Iteration(6), 4, &push.dense, &push.rows.rows, &push.rows.values);
        all.push((out, PsRequest::Push { step: Iteration(6), push }));
        all
    }

    #[test]
    fn requests_and_replies_read_back_as_they_were_written() {
        for (bytes, request) in requests() {
            let (header, payload) = split(&bytes);
            assert_eq!(PsRequest::decode(header.kind, payload), Ok(request));
        }
        let replies = [
            PsReply::Welcome,
            PsReply::Init(InitOutcome::AlreadyInitialised),
            PsReply::Pulled { dense: &[1, 2, 3, 4], rows: &[] },
            PsReply::Pushed(PushOutcome::Duplicate),
            PsReply::Copied(Trained { steps: 3, samples: 40 }),
            PsReply::Refused { refusal: PsRefusal::Stale, why: "over" },
        ];
        let mut out = Vec::new();
        for reply in replies {
            reply.encode(&mut out);
            let (header, payload) = split(&out);
            assert_eq!(PsReply::decode(header.kind, payload), Ok(reply));
        }
    }

    #[test]
    fn messages_that_are_cut_off_or_too_long_are_refused() {
        for (bytes, _) in requests() {
            let (header, payload) = split(&bytes);
            for len in 0..payload.len() {
                assert!(PsRequest::decode(header.kind, &payload[..len]).is_err());
            }
            assert!(PsRequest::decode(header.kind, &[payload, &[0]].concat()).is_err());
            let first: &[u8; MessageHeader::LEN] = bytes.first_chunk().unwrap();
            if header.len > 0 {
                let refused = WireError::TooLong { len: header.len, most: header.len - 1 };
                assert_eq!(MessageHeader::decode(first, header.len - 1), Err(refused));
            }
            for bit in 0..MessageHeader::LEN * 8 {
                let mut damaged = *first;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(MessageHeader::decode(&damaged, 1 << 20).is_err(), "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(kind in 0_u8..=255, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = PsRequest::decode(kind, &bytes);
            let _ = PsReply::decode(kind, &bytes);
        }

        #[test]
        fn no_damage_makes_a_decoder_panic(which in 0_usize..5, at in 0_usize..200, value in any::<u8>()) {
            let (mut bytes, _) = requests().swap_remove(which);
            let kind = bytes[5];
            let payload = &mut bytes[MessageHeader::LEN..];
            let at = at % payload.len().max(1);
            if let Some(byte) = payload.get_mut(at) {
                *byte = value;
            }
            let _ = PsRequest::decode(kind, payload);
        }
    }
}
