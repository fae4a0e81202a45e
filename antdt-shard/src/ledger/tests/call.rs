use antdt_core::{
    Ack, AckOutcome, Exchanged, FetchOutcome, Generation, Grant, Held, Holder, Incarnation, JobTime, NodeId,
    Registered, RequestId,
};

use crate::error::{AckError, CutError, ExchangeError, FetchError, RegisterError};

pub(super) const fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

/// One thing that happens to a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Register {
        holder: Holder,
        held: Vec<Held>,
    },
    Fetch {
        holder: Holder,
        generation: Generation,
        request: RequestId,
    },
    Exchange {
        holder: Holder,
        generation: Generation,
        request: RequestId,
        acks: Vec<Ack>,
        want: u32,
    },
    Ack {
        holder: Holder,
        acks: Vec<Ack>,
    },
    Release {
        holder: Holder,
        acks: Vec<Ack>,
    },
    Fail {
        holder: Holder,
        ack: Ack,
    },
    Lost {
        holder: Holder,
    },
    Freeze {
        until: JobTime,
    },
    Tick {
        now: JobTime,
    },
    Thaw,
    /// A snapshot is kept.
    Keep,
    /// A cut is kept, if the model has so many samples in it.
    Cut {
        committed: u64,
    },
    /// Back to one of those that were kept.
    Restore {
        which: usize,
    },
    /// The service ends, and begins again with the first so many records; of these the first so many were compacted.
    Restart {
        kept: usize,
        compacted: Option<usize>,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Registered(Result<Registered, RegisterError>),
    Fetched(Result<FetchOutcome, FetchError>),
    Exchanged(Result<Exchanged, ExchangeError>),
    Acked(Result<Vec<AckOutcome>, AckError>),
    Failed(Result<AckOutcome, AckError>),
    Cut(Result<(), CutError>),
    Nothing,
}

impl Call {
    /// Who says it, if it is a worker.
    pub(super) const fn caller(&self) -> Option<Holder> {
        match self {
            Self::Register { holder, .. }
            | Self::Fetch { holder, .. }
            | Self::Exchange { holder, .. }
            | Self::Ack { holder, .. }
            | Self::Release { holder, .. }
            | Self::Fail { holder, .. } => Some(*holder),
            Self::Lost { .. }
            | Self::Freeze { .. }
            | Self::Tick { .. }
            | Self::Thaw
            | Self::Keep
            | Self::Cut { .. }
            | Self::Restore { .. }
            | Self::Restart { .. } => None,
        }
    }

    /// The shards it asks for, and under which number.
    pub(super) const fn asks(&self) -> Option<(RequestId, u32)> {
        match self {
            Self::Fetch { request, .. } => Some((*request, 1)),
            Self::Exchange { request, want, .. } if *want > 0 => Some((*request, *want)),
            _ => None,
        }
    }

    /// Whether a new generation begins with it.
    pub(super) const fn ends_a_generation(&self) -> bool {
        matches!(self, Self::Restore { .. } | Self::Restart { .. })
    }
}

impl Reply {
    /// What was said about the shard that was asked for.
    pub(super) fn fetched(&self) -> Option<FetchOutcome> {
        match self {
            Self::Fetched(Ok(outcome)) => Some(*outcome),
            Self::Exchanged(Ok(exchanged)) => exchanged.fetched,
            _ => None,
        }
    }

    /// Every shard that was granted to a question, repetitions among them.
    pub(super) fn grants(&self) -> Vec<Grant> {
        match self {
            Self::Fetched(Ok(FetchOutcome::Granted(grant))) => vec![*grant],
            Self::Exchanged(Ok(exchanged)) => exchanged.grants().collect(),
            _ => Vec::new(),
        }
    }

    /// Every lease that was adopted, repetitions among them.
    pub(super) fn adopted(&self) -> Vec<Grant> {
        match self {
            Self::Registered(Ok(registered)) => registered.adopted.iter().flatten().copied().collect(),
            _ => Vec::new(),
        }
    }

    pub(super) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Registered(Err(_))
                | Self::Fetched(Err(_))
                | Self::Exchanged(Err(_))
                | Self::Acked(Err(_))
                | Self::Failed(Err(_))
                | Self::Cut(Err(_))
        )
    }

    /// The outcomes of its acks, in order.
    pub(super) fn outcomes(&self) -> Vec<AckOutcome> {
        match self {
            Self::Exchanged(Ok(exchanged)) => exchanged.outcomes.to_vec(),
            Self::Acked(Ok(outcomes)) => outcomes.clone(),
            Self::Failed(Ok(outcome)) => vec![*outcome],
            _ => Vec::new(),
        }
    }

    /// Why a question was refused.
    pub(super) const fn fetch_error(&self) -> Option<&FetchError> {
        match self {
            Self::Fetched(Err(error)) | Self::Exchanged(Err(ExchangeError::Fetch(error))) => Some(error),
            _ => None,
        }
    }
}
