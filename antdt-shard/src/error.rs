//! Errors of the ledger and its services, one enum for each operation. No error ever means "end of data".

use std::time::Duration;

use crate::ledger::CutBinding;
use antdt_core::port::SeamError;
use antdt_core::{
    Generation, Holder, Incarnation, InvalidValue, LeaseId, NodeId, RequestId, Retry, ShardKey,
};

/// Reason why a worker's registration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum RegisterError {
    /// This incarnation, or a later one, was declared lost or was replaced: the worker must exit.
    #[error("{holder} is fenced: lives through {through} have ended; exit and start as a later incarnation")]
    Fenced {
        /// Worker and incarnation that tried to register.
        holder: Holder,
        /// Newest fenced incarnation of the node.
        through: Incarnation,
    },
    /// The node is a parameter server; only workers lease shards.
    #[error("{node} is not a worker; only workers take shards")]
    NotAWorker {
        /// Node that tried to register.
        node: NodeId,
    },
    /// The assignment is static, and the worker's index is not below its number of workers.
    #[error("{node} has no share: the static assignment is for {workers} workers")]
    NoShare {
        /// Node that tried to register.
        node: NodeId,
        /// Number of workers in the static assignment.
        workers: u32,
    },
}

/// Reason why a request for shards was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum FetchError {
    /// The service restarted after the worker registered: the worker must register again and present its
    /// leases.
    #[error(
        "generation {given} is over, {current} is current; register again and present the leases you hold"
    )]
    WrongGeneration {
        /// Generation in the request.
        given: Generation,
        /// Current generation of the service.
        current: Generation,
    },
    /// The worker has not registered in this generation: it must register first.
    #[error("{holder} is not registered; register first")]
    UnknownHolder {
        /// Worker and incarnation that sent the request.
        holder: Holder,
    },
    /// This incarnation, or a later one, was declared lost or was replaced: the worker must exit.
    #[error("{holder} is fenced: lives through {through} have ended; exit and start as a later incarnation")]
    Fenced {
        /// Worker and incarnation that sent the request.
        holder: Holder,
        /// Newest fenced incarnation of the node.
        through: Incarnation,
    },
    /// The ledger already answered a request of this worker with a higher number: a delayed message, which
    /// the worker may ignore, or a defect of the caller.
    #[error(
        "request {request} of {holder} is older than its request {last}, which was granted; count upwards"
    )]
    OldRequest {
        /// Worker and incarnation that sent the request.
        holder: Holder,
        /// Number of the refused request.
        request: RequestId,
        /// Highest request number of this worker that was answered with a grant.
        last: RequestId,
    },
    /// More samples were quarantined after data faults than [`OnQuarantine`](crate::OnQuarantine) allows. No
    /// more shards are granted: the user has to look at the data.
    #[error(
        "{samples} samples could not be read and at most {limit} may be given up, shard {} of epoch {} among them; \
         mend the data or let the job continue without them (--max-quarantined, `on_quarantine`)",
        key.index, key.epoch
    )]
    Quarantined {
        /// One of the quarantined shards.
        key: ShardKey,
        /// Samples in quarantined shards.
        samples: u64,
        /// Samples that may be quarantined before the job fails.
        limit: u64,
    },
}

/// Reason why an exchange (acks, with a request for shards) was refused. A refused exchange changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ExchangeError {
    /// The request for shards was refused.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// One of the acks is wrong.
    #[error(transparent)]
    Ack(#[from] AckError),
}

/// Reason why a consistent cut of ledger and model is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The number of samples in the model differs from the number of samples that are acknowledged: let acks
    /// and pushes arrive, then cut again.
    #[error(
        "the model has committed {committed} samples and {acked} are acknowledged; \
         stop at a step boundary, let every ack arrive, and take the cut again"
    )]
    NotQuiesced {
        /// Samples that are in the model, as the caller says.
        committed: u64,
        /// Samples that are acknowledged in the ledger.
        acked: u64,
    },
}

/// Reason why an ack, a release or a report of a data fault was refused: a defect of the caller. Nothing was
/// changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum AckError {
    /// The ack's offset is below an offset of the same lease that was acknowledged before.
    #[error("offset {offset} of lease {lease} goes back: {have} samples are done already")]
    OffsetRegression {
        /// Lease that the refused ack, release or report names.
        lease: LeaseId,
        /// Offset that the caller reported, in samples from the start of the shard.
        offset: u64,
        /// Offset up to which the samples of the shard are acknowledged already.
        have: u64,
    },
    /// The offset lies beyond the end of the shard. A report of a data fault is also refused when its offset
    /// is the end of the shard, because no unreadable sample is left there.
    #[error("offset {offset} of lease {lease} is outside its shard of {len} samples")]
    OffsetOutOfRange {
        /// Lease that the refused ack, release or report names.
        lease: LeaseId,
        /// Offset that the caller reported, in samples from the start of the shard.
        offset: u64,
        /// Number of samples in the shard.
        len: u64,
    },
    /// The call names no lease; an ack, release or report needs at least one.
    #[error("the request names no lease; send at least one")]
    Empty,
}

/// Reason why a ledger could not be recovered from its log, or restored from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum RecoverError {
    /// The settings of the data set are invalid.
    #[error(transparent)]
    Spec(#[from] InvalidValue),
    /// The snapshot was taken of a data set with other settings.
    #[error(
        "the snapshot is of a data set with other settings than {name:?} has now; restore with the settings it was made with"
    )]
    SpecMismatch {
        /// Name of the data set.
        name: String,
    },
    /// The ledger's cut and the model's checkpoint were not taken together: restore the two halves of one
    /// checkpoint.
    #[error("the ledger was cut as {ledger} and the model as {model}; restore a pair that was cut together")]
    CutMismatch {
        /// Binding that the ledger's cut contains.
        ledger: CutBinding,
        /// Binding that the manifest of the model's checkpoint contains.
        model: CutBinding,
    },
    /// A generation with this number, or a higher one, was used before; a worker may still hold a lease of
    /// it.
    #[error("generation {given} is not newer than {last}, which was used before; take a higher one")]
    GenerationNotNewer {
        /// Generation that the caller asked for.
        given: Generation,
        /// Highest generation in the log or the snapshot.
        last: Generation,
    },
    /// A record of the log does not follow from the records before it: the log is damaged, or belongs to
    /// another data set.
    #[error("record {record} does not fit: {why}; the log is damaged or belongs to another data set")]
    Unfit {
        /// The record that does not follow, as text.
        record: String,
        /// How the record contradicts the earlier ones.
        why: &'static str,
    },
}

/// Reason why bytes cannot be decoded as a record, a snapshot or a cut of a data set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end too early, or a length field promises more bytes than follow.
    #[error("{needed} bytes are needed at byte {at} and {left} are left; the bytes are cut short or damaged")]
    Truncated {
        /// Byte offset at which the missing bytes should begin.
        at: usize,
        /// Number of bytes that should follow at this offset.
        needed: u64,
        /// Number of bytes that do follow at this offset.
        left: usize,
    },
    /// Bytes are left over after the end of the value.
    #[error("{extra} bytes follow after the end; the bytes are damaged or not what they are said to be")]
    Trailing {
        /// Number of bytes after the end of the value.
        extra: usize,
    },
    /// The bytes do not begin with the mark of a ledger snapshot.
    #[error("this is not a ledger snapshot")]
    NotASnapshot,
    /// The bytes do not begin with the mark of a ledger cut.
    #[error("this is not a cut of a ledger")]
    NotACut,
    /// A later release of this crate wrote the bytes: read them with that release.
    #[error(
        "format version {version} is unknown, the newest known one is {newest}; read it with the release that wrote it"
    )]
    UnknownVersion {
        /// Format version of the bytes.
        version: u16,
        /// Newest format version that this release reads.
        newest: u16,
    },
    /// The checksum does not match: some bits have changed since the bytes were written.
    #[error(
        "the checksum is {found:#010x} and must be {expected:#010x}; the bytes are damaged, use another copy"
    )]
    Checksum {
        /// Checksum (CRC-32C) that is stored in the bytes.
        found: u32,
        /// Checksum (CRC-32C) computed from the bytes.
        expected: u32,
    },
    /// The bytes belong to a data set with other settings.
    #[error("these are not of data set {name:?} as it is set now; use the settings they were written with")]
    SpecMismatch {
        /// Name of the data set that the caller passed.
        name: String,
    },
    /// A byte that encodes an enum variant has a value that this release does not know.
    #[error("{what} {value} at byte {at} is unknown; the bytes are damaged or written by a later release")]
    Unknown {
        /// Name of the field or enum that the byte encodes.
        what: &'static str,
        /// Value of the unknown byte.
        value: u8,
        /// Byte offset of the unknown value.
        at: usize,
    },
    /// Two parts of the decoded value contradict each other: no ledger can be in this state.
    #[error("{what} (before byte {at}); the bytes are damaged")]
    Inconsistent {
        /// Description of the contradiction.
        what: &'static str,
        /// Byte offset of the end of the part at which the decoder noticed the contradiction.
        at: usize,
    },
    /// The settings in the bytes are invalid.
    #[error(transparent)]
    Spec(#[from] InvalidValue),
}

/// Reason why a [`ShardSource`](antdt_core::port::ShardSource) failed. Each variant asks for one reaction of
/// the caller.
///
/// | variant | what happened | the caller |
/// |---|---|---|
/// | `Unavailable` | the service cannot be reached, is shutting down, or its store has failed | backs off and sends the same request |
/// | `Reregister` | the service restarted, or the worker never registered | registers, presents its leases, drops those not adopted |
/// | `Fenced` | this incarnation was declared lost or replaced | exits |
/// | `DataLost` | too many samples are unreadable | exits; starting again cannot help |
/// | `Rejected` | the request is wrong | aborts with the error |
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The service did not answer in time, or answered that it cannot serve now. Send the same request again
    /// later.
    #[error("the shard service is unavailable for {after:?}: {why}")]
    Unavailable {
        /// Error of the last attempt.
        why: String,
        /// Time that the client spent on retries; zero after a single attempt.
        after: Duration,
    },
    /// The service does not know this incarnation in its current generation: register, and present the
    /// leases.
    #[error("{0}")]
    Reregister(String),
    /// This incarnation was declared lost or replaced: exit.
    #[error("{0}")]
    Fenced(String),
    /// Too many samples cannot be read. Starting the job again cannot help.
    #[error("{0}")]
    DataLost(String),
    /// The request is wrong; sending it again cannot help.
    #[error("{0}")]
    Rejected(String),
}

impl SeamError for SourceError {
    fn retry(&self) -> Retry {
        match self {
            Self::Unavailable { .. } => Retry::Later,
            Self::Reregister(_) => Retry::Register,
            Self::Fenced(_) | Self::DataLost(_) | Self::Rejected(_) => Retry::Never,
        }
    }
}

impl From<RegisterError> for SourceError {
    fn from(e: RegisterError) -> Self {
        match e {
            RegisterError::Fenced { .. } => Self::Fenced(e.to_string()),
            RegisterError::NotAWorker { .. } | RegisterError::NoShare { .. } => Self::Rejected(e.to_string()),
        }
    }
}

impl From<FetchError> for SourceError {
    fn from(e: FetchError) -> Self {
        match e {
            FetchError::WrongGeneration { .. } | FetchError::UnknownHolder { .. } => {
                Self::Reregister(e.to_string())
            }
            FetchError::Fenced { .. } => Self::Fenced(e.to_string()),
            FetchError::OldRequest { .. } => Self::Rejected(e.to_string()),
            FetchError::Quarantined { .. } => Self::DataLost(e.to_string()),
        }
    }
}

impl From<ExchangeError> for SourceError {
    fn from(e: ExchangeError) -> Self {
        match e {
            ExchangeError::Fetch(e) => e.into(),
            ExchangeError::Ack(e) => e.into(),
        }
    }
}

impl From<AckError> for SourceError {
    fn from(e: AckError) -> Self {
        Self::Rejected(e.to_string())
    }
}
