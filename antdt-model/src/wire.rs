//! The messages between workers and parameter servers: a header of 24 bytes, then a [`PsRequest`] or [`PsReply`] as `postcard`
//! writes it. Pure; sockets are in `runtime`.
//!
//! Many numbers of one kind are written as the bytes that they have in memory (`bulk`): as numbers of variable length they would cost
//! a branch each, on the way of every step.
//!
//! Decoders check every length against what has come before they reserve memory, so that a damaged or foreign message
//! costs an error and nothing else.

use std::borrow::Cow;

use antdt_collective::JobToken;
use antdt_core::{CheckpointId, Holder, Iteration, ParamLayout, PushMark, ServerWeights};
use serde::{Deserialize, Serialize};

use crate::rule::Trained;
use crate::server::{CommitToken, InitOutcome, PushOutcome};

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
    /// The message is longer than the receiver accepts.
    #[error("a message of {len} bytes, at most {most} are accepted")]
    TooLong {
        /// Length in the header, in bytes.
        len: u64,
        /// Longest accepted length, in bytes.
        most: u64,
    },
    /// The payload is not one that a sender of this protocol writes.
    #[error("a payload of {len} bytes makes no sense")]
    Payload {
        /// Length of the payload, in bytes.
        len: u64,
    },
}

/// The header of a message. It is encoded by code of its own, because its length and the place of its
/// checksum are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// Length of the payload, in bytes.
    pub len: u64,
    crc: u32,
}

impl MessageHeader {
    /// Length of a header, in bytes.
    pub const LEN: usize = 24;
    const MAGIC: [u8; 8] = *b"ADTP\x05\0\0\0";

    /// Writes the header of the message in `message[LEN..]` into its first bytes, which were kept free.
    fn seal(message: &mut [u8]) {
        let (header, payload) = message.split_at_mut(Self::LEN);
        header[..8].copy_from_slice(&Self::MAGIC);
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
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if !bytes.starts_with(&Self::MAGIC) {
            return Err(WireError::Foreign);
        }
        if crc32c::crc32c(&bytes[..20]) != u32_at(20) {
            return Err(WireError::Checksum);
        }
        let len = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
        if len > most {
            return Err(WireError::TooLong { len, most });
        }
        Ok(Self { len, crc: u32_at(16) })
    }

    /// Checks the payload that came with this header against its checksum.
    ///
    /// # Errors
    /// If the payload was damaged.
    pub fn verify(&self, payload: &[u8]) -> Result<(), WireError> {
        if crc32c::crc32c(payload) == self.crc { Ok(()) } else { Err(WireError::Checksum) }
    }
}

/// First message of a worker on a connection: its identity, and the server and model that it expects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Number of rows and number of values per row, for each table.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PsRequest<'a> {
    /// First request of a connection: the worker introduces itself.
    Hello(PsHello),
    /// Sets the initial values of the server's piece of the flat vector.
    Init(#[serde(borrow, with = "bulk")] Cow<'a, [f32]>),
    /// Reads parameter values, after the server has committed a step, if one is given.
    Pull {
        /// Step that the server commits before it reads the values; `None` if there is none to commit.
        commit: Option<Cow<'a, CommitToken>>,
        /// Rows to read, ascending.
        #[serde(borrow, with = "bulk")]
        rows: Cow<'a, [u64]>,
    },
    /// Sends a gradient.
    Push {
        /// Number of the step.
        step: Iteration,
        /// Number of samples that the gradient is the sum of.
        samples: u64,
        /// Share of the learning rate that the plan in force sets; `None` if it sets none.
        rate_share: Option<f32>,
        /// Gradient of the server's piece of the flat vector.
        #[serde(borrow, with = "bulk")]
        dense: Cow<'a, [f32]>,
        /// The server's rows that the gradient touches.
        #[serde(borrow, with = "bulk")]
        rows: Cow<'a, [u64]>,
        /// Gradients of these rows, one after another.
        #[serde(borrow, with = "bulk")]
        values: Cow<'a, [f32]>,
    },
    /// In asynchronous training: applies these pushes, which count.
    Count(Cow<'a, [PushMark]>),
    /// Copies the parameters for a checkpoint, after the server has committed a step, if one is given.
    Copy {
        /// Step that the server commits before it copies the parameters; `None` if there is none to commit.
        commit: Option<Cow<'a, CommitToken>>,
        /// Checkpoint that the copy is for.
        checkpoint: CheckpointId,
    },
}

/// Reason why a server refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PsRefusal {
    /// The request is invalid for this server.
    Invalid,
    /// The worker is of another job, or expects another server or model.
    Stranger,
    /// No worker has sent initial values yet.
    NotInitialised,
    /// This incarnation of the worker was declared lost or replaced: it must exit.
    Fenced,
    /// The step was committed already.
    Stale,
    /// The commit does not fit the pushes that the server has.
    Commit,
    /// The server has as many connections as it accepts.
    Full,
}

/// Reply of a server to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PsReply<'a> {
    /// Answer to a hello: the worker is accepted. It has to know how much of the model each server holds.
    Welcome(ServerWeights),
    /// Answer to initial values.
    Init(InitOutcome),
    /// Answer to a pull: the requested values, as bytes of `f32`.
    Pulled {
        /// The server's piece of the flat vector.
        #[serde(serialize_with = "bulk::serialize")]
        dense: &'a [u8],
        /// Values of the requested rows, one after another.
        #[serde(serialize_with = "bulk::serialize")]
        rows: &'a [u8],
    },
    /// Answer to a push.
    Pushed(PushOutcome),
    /// Answer to a request to apply what counts.
    Counted,
    /// Answer to a copy: the progress of training of the copied parameters.
    Copied(Trained),
    /// The server refused the request.
    Refused {
        /// Kind of refusal, for the caller to act on.
        refusal: PsRefusal,
        /// Reason why the server refused, in words.
        why: &'a str,
    },
}

impl<'a> PsRequest<'a> {
    /// Writes the whole message into `into`, whose content is replaced.
    pub fn encode(&self, into: &mut Vec<u8>) {
        encode(self, into);
    }

    /// Decodes the payload of a request.
    ///
    /// # Errors
    /// If the payload is not a request.
    pub fn decode(payload: &'a [u8]) -> Result<Self, WireError> {
        decode(payload)
    }
}

impl<'a> PsReply<'a> {
    /// Writes the whole message into `into`, whose content is replaced.
    pub fn encode(&self, into: &mut Vec<u8>) {
        encode(self, into);
    }

    /// Decodes the payload of a reply.
    ///
    /// # Errors
    /// If the payload is not a reply.
    pub fn decode(payload: &'a [u8]) -> Result<Self, WireError> {
        decode(payload)
    }
}

fn encode(message: &impl Serialize, into: &mut Vec<u8>) {
    let mut bytes = std::mem::take(into);
    bytes.clear();
    bytes.resize(MessageHeader::LEN, 0);
    *into = postcard::to_extend(message, bytes).expect("a message has a form as bytes");
    MessageHeader::seal(into);
}

fn decode<'a, M: Deserialize<'a>>(payload: &'a [u8]) -> Result<M, WireError> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(WireError::Payload { len: payload.len() as u64 }),
    }
}

/// Numbers as the bytes that they have in memory. What is read stays where it is if it lies as its type must.
mod bulk {
    use std::borrow::Cow;

    use serde::de::Error;

    use super::Deserialize;

    pub(super) fn serialize<E: bytemuck::NoUninit, S: serde::Serializer>(
        values: &[E],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytemuck::cast_slice(values))
    }

    pub(super) fn deserialize<'a, E, D>(deserializer: D) -> Result<Cow<'a, [E]>, D::Error>
    where
        E: bytemuck::AnyBitPattern + bytemuck::NoUninit,
        D: serde::Deserializer<'a>,
    {
        let bytes: &[u8] = Deserialize::deserialize(deserializer)?;
        if !bytes.len().is_multiple_of(size_of::<E>()) {
            return Err(D::Error::custom("a number is cut off"));
        }
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(values) => Cow::Borrowed(values),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
        })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId, TableSpec};
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

    fn requests() -> Vec<PsRequest<'static>> {
        let layout = ParamLayout::dense(5).with_table(TableSpec::new("table", 9, 2, 0.1)).unwrap();
        let hello = PsHello::new(JobToken::new("x"), holder(1), 2, 3, &layout);
        let commit = CommitToken {
            step: Iteration(9),
            contributors: vec![holder(0), holder(4)],
            samples: 77,
            everyone: false,
        };
        let commit = Cow::Owned::<CommitToken>(commit);
        let push = PsRequest::Push {
            step: Iteration(6),
            samples: 4,
            rate_share: Some(0.5),
            dense: Cow::Borrowed(&[1.0, 2.0]),
            rows: Cow::Borrowed(&[3, 4]),
            values: Cow::Borrowed(&[0.5; 6]),
        };
        vec![
            PsRequest::Hello(hello),
            PsRequest::Init(Cow::Borrowed(&[1.5])),
            PsRequest::Pull { commit: None, rows: Cow::Borrowed(&[7, u64::MAX]) },
            PsRequest::Pull { commit: Some(commit.clone()), rows: Cow::Borrowed(&[]) },
            PsRequest::Copy { commit: Some(commit), checkpoint: CheckpointId(4) },
            PsRequest::Count(Cow::Owned(vec![PushMark { holder: holder(1), step: Some(6) }])),
            push,
        ]
    }

    fn bytes_of(request: &PsRequest<'_>) -> Vec<u8> {
        let mut bytes = vec![9; 3];
        request.encode(&mut bytes);
        bytes
    }

    #[test]
    fn requests_and_replies_read_back_as_they_were_written() {
        for request in requests() {
            let bytes = bytes_of(&request);
            let (_, payload) = split(&bytes);
            assert_eq!(PsRequest::decode(payload), Ok(request));
        }
        let replies = [
            PsReply::Welcome(ServerWeights::default()),
            PsReply::Welcome(ServerWeights::new(&[64, 21]).unwrap()),
            PsReply::Init(InitOutcome::AlreadyInitialised),
            PsReply::Pulled { dense: &[1, 2, 3, 4], rows: &[] },
            PsReply::Pushed(PushOutcome::Duplicate),
            PsReply::Counted,
            PsReply::Copied(Trained { steps: 3, samples: 40 }),
            PsReply::Refused { refusal: PsRefusal::Stale, why: "over" },
        ];
        let mut out = Vec::new();
        for reply in replies {
            reply.encode(&mut out);
            let (_, payload) = split(&out);
            assert_eq!(PsReply::decode(payload), Ok(reply));
        }
    }

    #[test]
    fn messages_that_are_cut_off_or_too_long_are_refused() {
        for bytes in requests().iter().map(bytes_of) {
            let (header, payload) = split(&bytes);
            for len in 0..payload.len() {
                assert!(PsRequest::decode(&payload[..len]).is_err());
            }
            assert!(PsRequest::decode(&[payload, &[0]].concat()).is_err());
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

    #[test]
    fn numbers_that_are_cut_off_are_no_numbers() {
        let mut bytes = bytes_of(&PsRequest::Init(Cow::Borrowed(&[1.5])));
        let payload = &mut bytes[MessageHeader::LEN..];
        // The variant, the length in bytes, four bytes.
        payload[1] -= 1;
        let refused = WireError::Payload { len: 5 };
        assert_eq!(PsRequest::decode(&payload[..5]), Err(refused));
    }

    proptest! {
        #[test]
        fn numbers_read_back_wherever_they_lie(
            values in prop::collection::vec(any::<u64>(), 0..20),
            samples in any::<u64>(),
        ) {
            let floats: Vec<f32> = values.iter().map(|value| f32::from_bits(*value as u32)).collect();
            let request = PsRequest::Push {
                step: Iteration(samples / 2),
                samples,
                rate_share: None,
                dense: Cow::Borrowed(&floats),
                rows: Cow::Borrowed(&values),
                values: Cow::Borrowed(&floats),
            };
            let bytes = bytes_of(&request);
            for shift in 0..8 {
                let shifted = [&vec![0; shift][..], &bytes].concat();
                let read = PsRequest::decode(&shifted[shift + MessageHeader::LEN..]).unwrap();
                prop_assert_eq!(bytes_of(&read), bytes.clone());
            }
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = PsRequest::decode(&bytes);
            let _ = PsReply::decode(&bytes);
        }

        #[test]
        fn no_damage_makes_a_decoder_panic(which in 0_usize..7, at in 0_usize..200, value in any::<u8>()) {
            let mut bytes = bytes_of(&requests()[which]);
            let payload = &mut bytes[MessageHeader::LEN..];
            let at = at % payload.len();
            payload[at] = value;
            let _ = PsRequest::decode(payload);
        }
    }
}
