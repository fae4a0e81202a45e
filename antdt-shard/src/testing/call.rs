//! The calls to a ledger in a history, and its answers.

use antdt_core::{
    Ack, AckOutcome, Exchanged, FetchOutcome, Generation, Grant, Held, Holder, Incarnation, JobTime, NodeId,
    Registered, RequestId, Retry,
};

use antdt_core::port::SeamError;

use crate::error::{AckError, CutError, ExchangeError, FetchError, RegisterError, SourceError};

pub(crate) const fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

/// One thing that happens to a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
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
    /// A snapshot is taken and kept.
    Keep,
    /// A cut is taken and kept, if the model has this many samples in it.
    Cut {
        committed: u64,
    },
    /// The ledger is restored to a snapshot or cut that was kept.
    Restore {
        which: usize,
    },
    /// The service restarts with the first `kept` records of its log, of which the first `compacted` were
    /// compacted.
    Restart {
        kept: usize,
        compacted: Option<usize>,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallReply {
    Registered(Result<Registered, RegisterError>),
    Fetched(Result<FetchOutcome, FetchError>),
    Exchanged(Result<Exchanged, ExchangeError>),
    Acked(Result<Vec<AckOutcome>, AckError>),
    Failed(Result<AckOutcome, AckError>),
    Cut(Result<(), CutError>),
    /// A source refused the call with an error of its own: the caller's reaction, and the text.
    Refused(Retry, String),
    Nothing,
}

impl Call {
    /// Returns the worker that makes the call, if it is one.
    pub(crate) const fn caller(&self) -> Option<Holder> {
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
    pub(crate) const fn asks(&self) -> Option<(RequestId, u32)> {
        match self {
            Self::Fetch { request, .. } => Some((*request, 1)),
            Self::Exchange { request, want, .. } if *want > 0 => Some((*request, *want)),
            _ => None,
        }
    }

    /// Whether a new generation begins with it.
    pub(crate) const fn ends_a_generation(&self) -> bool {
        matches!(self, Self::Restore { .. } | Self::Restart { .. })
    }
}

impl CallReply {
    /// What was said about the shard that was asked for.
    pub(crate) fn fetched(&self) -> Option<FetchOutcome> {
        match self {
            Self::Fetched(Ok(outcome)) => Some(*outcome),
            Self::Exchanged(Ok(exchanged)) => exchanged.fetched,
            _ => None,
        }
    }

    /// Every shard that was granted to a question, repetitions among them.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        match self {
            Self::Fetched(Ok(FetchOutcome::Granted(grant))) => vec![*grant],
            Self::Exchanged(Ok(exchanged)) => exchanged.grants().collect(),
            _ => Vec::new(),
        }
    }

    /// Every lease that was adopted, repetitions among them.
    pub(crate) fn adopted(&self) -> Vec<Grant> {
        match self {
            Self::Registered(Ok(registered)) => registered.adopted.iter().flatten().copied().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Registered(Err(_))
                | Self::Fetched(Err(_))
                | Self::Exchanged(Err(_))
                | Self::Acked(Err(_))
                | Self::Failed(Err(_))
                | Self::Cut(Err(_))
                | Self::Refused(..)
        )
    }

    /// The outcomes of its acks, in order.
    pub(crate) fn outcomes(&self) -> Vec<AckOutcome> {
        match self {
            Self::Exchanged(Ok(exchanged)) => exchanged.outcomes.to_vec(),
            Self::Acked(Ok(outcomes)) => outcomes.clone(),
            Self::Failed(Ok(outcome)) => vec![*outcome],
            _ => Vec::new(),
        }
    }

    /// What a refused caller is to do.
    pub(crate) fn retry(&self) -> Option<Retry> {
        let error = match self {
            Self::Registered(Err(error)) => SourceError::from(error.clone()),
            Self::Fetched(Err(error)) => SourceError::from(error.clone()),
            Self::Exchanged(Err(error)) => SourceError::from(error.clone()),
            Self::Acked(Err(error)) | Self::Failed(Err(error)) => SourceError::from(error.clone()),
            Self::Refused(retry, _) => return Some(*retry),
            Self::Registered(Ok(_))
            | Self::Fetched(Ok(_))
            | Self::Exchanged(Ok(_))
            | Self::Acked(Ok(_))
            | Self::Failed(Ok(_))
            | Self::Cut(_)
            | Self::Nothing => return None,
        };
        Some(error.retry())
    }

    /// Whether it says the same: an error of a source says what the caller is to do, and no more.
    pub(crate) fn agrees(&self, expected: &Self) -> bool {
        match self {
            Self::Refused(retry, _) => expected.retry() == Some(*retry),
            reply => reply == expected,
        }
    }

    /// Why a question was refused.
    pub(crate) const fn fetch_error(&self) -> Option<&FetchError> {
        match self {
            Self::Fetched(Err(error)) | Self::Exchanged(Err(ExchangeError::Fetch(error))) => Some(error),
            _ => None,
        }
    }
}
