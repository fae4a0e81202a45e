//! What can go wrong, one enum for each operation. None of these ever means "end of data".

use std::time::Duration;

use crate::ledger::CutBinding;
use antdt_core::port::SeamError;
use antdt_core::{
    Generation, Holder, Incarnation, InvalidValue, LeaseId, NodeId, RequestId, Retry, ShardKey,
};

/// Why a life of a node may not take part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum RegisterError {
    /// This life, or a later one, has ended: exit.
    #[error("{holder} is fenced: lives through {through} have ended; exit and start as a later incarnation")]
    Fenced {
        /// Incarnation that asked.
        holder: Holder,
        /// The newest life that has ended.
        through: Incarnation,
    },
    /// Only workers train.
    #[error("{node} is not a worker; only workers take shards")]
    NotAWorker {
        /// Node that asked.
        node: NodeId,
    },
    /// The assignment is static and has no share for this worker.
    #[error("{node} has no share: the static assignment is for {workers} workers")]
    NoShare {
        /// Node that asked.
        node: NodeId,
        /// Shares there are.
        workers: u32,
    },
}

/// Why a fetch was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum FetchError {
    /// The service was restarted since the holder registered: register again, present the leases.
    #[error(
        "generation {given} is over, {current} is current; register again and present the leases you hold"
    )]
    WrongGeneration {
        /// Value in the request.
        given: Generation,
        /// Present value.
        current: Generation,
    },
    /// The holder never registered in this generation.
    #[error("{holder} is not registered; register first")]
    UnknownHolder {
        /// Incarnation that asked.
        holder: Holder,
    },
    /// This life has ended: exit.
    #[error("{holder} is fenced: lives through {through} have ended; exit and start as a later incarnation")]
    Fenced {
        /// Incarnation that asked.
        holder: Holder,
        /// The newest life that has ended.
        through: Incarnation,
    },
    /// A later request was answered before: a delayed message, or a defect of the caller.
    #[error(
        "request {request} of {holder} is older than its request {last}, which was granted; count upwards"
    )]
    OldRequest {
        /// Incarnation that asked.
        holder: Holder,
        /// Value in the request.
        request: RequestId,
        /// The newest one that was answered with a grant.
        last: RequestId,
    },
    /// Too many samples were given up after data faults; the job must not go on as if they were trained.
    #[error(
        "{samples} samples could not be read and at most {limit} may be given up, shard {} of epoch {} among them; \
         mend the data, or let the job continue without them (on_quarantine)",
        key.index, key.epoch
    )]
    Quarantined {
        /// One of the shards.
        key: ShardKey,
        /// Samples given up.
        samples: u64,
        /// Samples that may be.
        limit: u64,
    },
}

/// Why an exchange was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ExchangeError {
    /// The caller may not ask, or not for this.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// One of the acks is wrong.
    #[error(transparent)]
    Ack(#[from] AckError),
}

/// Reason why a consistent cut is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The model has samples that the ledger does not know to be done, or the other way round.
    #[error(
        "the model has committed {committed} samples and {acked} are acknowledged; \
         stop at a step boundary, let every ack arrive, and take the cut again"
    )]
    NotQuiesced {
        /// Samples in the model.
        committed: u64,
        /// Samples acknowledged.
        acked: u64,
    },
}

/// Why an ack, a release or a report of a data fault was refused: a defect of the caller. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum AckError {
    /// Less than was acknowledged before.
    #[error("offset {offset} of lease {lease} goes back: {have} samples are done already")]
    OffsetRegression {
        /// The lease.
        lease: LeaseId,
        /// Value in the request.
        offset: u64,
        /// Offset that is acknowledged already.
        have: u64,
    },
    /// More than the shard has; or, with a data fault, nothing that could be unreadable.
    #[error("offset {offset} of lease {lease} is outside its shard of {len} samples")]
    OffsetOutOfRange {
        /// The lease.
        lease: LeaseId,
        /// Value in the request.
        offset: u64,
        /// Samples of the shard.
        len: u64,
    },
    /// A request without any entry.
    #[error("the request names no lease; send at least one")]
    Empty,
}

/// Why a ledger could not be recovered or set back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum RecoverError {
    /// The data set cannot be registered.
    #[error(transparent)]
    Spec(#[from] InvalidValue),
    /// The snapshot was made with other settings.
    #[error(
        "the snapshot is of a data set with other settings than {name:?} has now; restore with the settings it was made with"
    )]
    SpecMismatch {
        /// The data set.
        name: String,
    },
    /// The ledger and the model were not cut at the same moment.
    #[error("the ledger was cut as {ledger} and the model as {model}; restore a pair that was cut together")]
    CutMismatch {
        /// What the cut of the ledger says.
        ledger: CutBinding,
        /// What the manifest of the model says.
        model: CutBinding,
    },
    /// Leases of that generation may still be about.
    #[error("generation {given} is not newer than {last}, which was used before; take a higher one")]
    GenerationNotNewer {
        /// The one that was asked for.
        given: Generation,
        /// The newest that was used.
        last: Generation,
    },
    /// A record does not follow from those before it: the log is of another data set, or damaged.
    #[error("record {record} does not fit: {why}; the log is damaged or belongs to another data set")]
    Unfit {
        /// The record.
        record: String,
        /// The contradiction, in words.
        why: &'static str,
    },
}

/// Why bytes are not a record or a snapshot of a data set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end too early, or a length or count in them is larger than what follows.
    #[error("{needed} bytes are needed at byte {at} and {left} are left; the bytes are cut short or damaged")]
    Truncated {
        /// Offset in bytes.
        at: usize,
        /// What the bytes themselves say must follow.
        needed: u64,
        /// Bytes that follow.
        left: usize,
    },
    /// There is more than what was to be read.
    #[error("{extra} bytes follow after the end; the bytes are damaged or not what they are said to be")]
    Trailing {
        /// Number of extra bytes.
        extra: usize,
    },
    /// They begin as something else does.
    #[error("this is not a ledger snapshot")]
    NotASnapshot,
    /// They begin as something else does.
    #[error("this is not a cut of a ledger")]
    NotACut,
    /// Written by a later release.
    #[error(
        "format version {version} is unknown, the newest known one is {newest}; read it with the release that wrote it"
    )]
    UnknownVersion {
        /// Value in the bytes.
        version: u16,
        /// Newest version that can be read.
        newest: u16,
    },
    /// Some bit is not as it was written.
    #[error(
        "the checksum is {found:#010x} and must be {expected:#010x}; the bytes are damaged, use another copy"
    )]
    Checksum {
        /// Value in the bytes.
        found: u32,
        /// What follows from the bytes.
        expected: u32,
    },
    /// The data set of the bytes has other settings.
    #[error("these are not of data set {name:?} as it is set now; use the settings they were written with")]
    SpecMismatch {
        /// The data set that was asked for.
        name: String,
    },
    /// A number stands for nothing.
    #[error("{what} {value} at byte {at} is unknown; the bytes are damaged or written by a later release")]
    Unknown {
        /// What the number is for.
        what: &'static str,
        /// The number.
        value: u8,
        /// Offset in bytes.
        at: usize,
    },
    /// The parts contradict each other: no ledger was ever in this state.
    #[error("{what} (before byte {at}); the bytes are damaged")]
    Inconsistent {
        /// The contradiction.
        what: &'static str,
        /// Where the part that contradicts ends.
        at: usize,
    },
    /// The data set itself cannot be registered.
    #[error(transparent)]
    Spec(#[from] InvalidValue),
}

/// Why a [`ShardSource`](antdt_core::port::ShardSource) failed, by what the caller has to do.
///
/// | variant | what happened | the caller |
/// |---|---|---|
/// | `Unavailable` | unreachable, shutting down, or its store is | backs off and sends the same request |
/// | `Reregister` | a new generation, or never registered | registers, presents its leases, drops those not adopted |
/// | `Fenced` | this life has ended | exits |
/// | `DataLost` | too many unreadable samples | exits; starting again cannot help |
/// | `Rejected` | the request is wrong | aborts with the error |
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The service did not answer in time, or said that it cannot now.
    #[error("the shard service is unavailable for {after:?}: {why}")]
    Unavailable {
        /// What the last try ended with.
        why: String,
        /// How long it was tried; zero if once.
        after: Duration,
    },
    /// The service does not know this life of the node in its present generation.
    #[error("{0}")]
    Reregister(String),
    /// This life of the node has ended.
    #[error("{0}")]
    Fenced(String),
    /// Too many samples cannot be read.
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
