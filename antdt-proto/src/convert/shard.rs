//! Conversion of registrations, exchanges, grants and acks.

use std::time::Duration;

use antdt_core as core;

use super::{WireError, required, to_ns};
use crate::v1;

impl From<core::Grant> for v1::Grant {
    fn from(grant: core::Grant) -> Self {
        Self {
            lease: Some(grant.lease.into()),
            epoch: grant.key.epoch.0,
            index: grant.key.index,
            start: grant.start,
            len: grant.len,
            resume_at: grant.resume_at,
            seed: grant.seed.map(|seed| seed.0),
        }
    }
}

impl TryFrom<v1::Grant> for core::Grant {
    type Error = WireError;

    fn try_from(wire: v1::Grant) -> Result<Self, WireError> {
        Ok(Self {
            lease: required("grant.lease", wire.lease)?.into(),
            key: core::ShardKey { epoch: core::Epoch(wire.epoch), index: wire.index },
            start: wire.start,
            len: wire.len,
            resume_at: wire.resume_at,
            seed: wire.seed.map(core::Seed),
        })
    }
}

impl From<core::Held> for v1::Held {
    fn from(held: core::Held) -> Self {
        Self {
            lease: Some(held.lease.into()),
            epoch: held.key.epoch.0,
            index: held.key.index,
            offset: held.offset,
        }
    }
}

impl TryFrom<v1::Held> for core::Held {
    type Error = WireError;

    fn try_from(wire: v1::Held) -> Result<Self, WireError> {
        Ok(Self {
            lease: required("held.lease", wire.lease)?.into(),
            key: core::ShardKey { epoch: core::Epoch(wire.epoch), index: wire.index },
            offset: wire.offset,
        })
    }
}

impl From<core::Registered> for v1::RegisterShardsReply {
    fn from(registered: core::Registered) -> Self {
        let adoption = |grant: Option<core::Grant>| v1::Adoption { grant: grant.map(Into::into) };
        Self {
            generation: registered.generation.0,
            adopted: registered.adopted.into_iter().map(adoption).collect(),
        }
    }
}

impl TryFrom<v1::RegisterShardsReply> for core::Registered {
    type Error = WireError;

    fn try_from(wire: v1::RegisterShardsReply) -> Result<Self, WireError> {
        let grant = |adoption: v1::Adoption| adoption.grant.map(core::Grant::try_from).transpose();
        Ok(Self {
            generation: core::Generation(wire.generation),
            adopted: wire.adopted.into_iter().map(grant).collect::<Result<_, _>>()?,
        })
    }
}

impl From<core::Exchanged> for v1::ExchangeReply {
    fn from(exchanged: core::Exchanged) -> Self {
        use v1::exchange_reply::Fetched;
        let fetched = |outcome| match outcome {
            core::FetchOutcome::Granted(grant) => Fetched::Grant(grant.into()),
            core::FetchOutcome::Wait { retry_after } => {
                Fetched::Wait(v1::Wait { retry_after_ns: to_ns(retry_after) })
            }
            core::FetchOutcome::EndOfData => Fetched::EndOfData(v1::EndOfData {}),
            core::FetchOutcome::AtLimit => Fetched::AtLimit(v1::AtLimit {}),
        };
        Self {
            outcomes: exchanged.outcomes.into_iter().map(|o| v1::AckOutcome::from(o).into()).collect(),
            fetched: exchanged.fetched.map(fetched),
            more: exchanged.more.into_iter().map(Into::into).collect(),
            recalled: exchanged.recalled.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::ExchangeReply> for core::Exchanged {
    type Error = WireError;

    fn try_from(wire: v1::ExchangeReply) -> Result<Self, WireError> {
        use v1::exchange_reply::Fetched;
        let fetched = |outcome| {
            Ok::<_, WireError>(match outcome {
                Fetched::Grant(grant) => core::FetchOutcome::Granted(grant.try_into()?),
                Fetched::Wait(wait) => {
                    core::FetchOutcome::Wait { retry_after: Duration::from_nanos(wait.retry_after_ns) }
                }
                Fetched::EndOfData(v1::EndOfData {}) => core::FetchOutcome::EndOfData,
                Fetched::AtLimit(v1::AtLimit {}) => core::FetchOutcome::AtLimit,
            })
        };
        Ok(Self {
            outcomes: wire.outcomes.into_iter().map(ack_outcome).collect::<Result<_, _>>()?,
            fetched: wire.fetched.map(fetched).transpose()?,
            more: wire.more.into_iter().map(core::Grant::try_from).collect::<Result<_, _>>()?,
            recalled: wire.recalled.into_iter().map(Into::into).collect(),
        })
    }
}

/// Returns the outcome of an ack from its number in a repeated field.
///
/// # Errors
/// If no outcome has this number.
pub fn ack_outcome(wire: i32) -> Result<core::AckOutcome, WireError> {
    let unknown = WireError::Unknown { field: "ack.outcome", value: wire.into() };
    v1::AckOutcome::try_from(wire).map_err(|_| unknown)?.try_into()
}

impl From<core::Ack> for v1::Ack {
    fn from(ack: core::Ack) -> Self {
        Self { lease: Some(ack.lease.into()), offset: ack.offset }
    }
}

impl TryFrom<v1::Ack> for core::Ack {
    type Error = WireError;

    fn try_from(wire: v1::Ack) -> Result<Self, WireError> {
        Ok(Self { lease: required("ack.lease", wire.lease)?.into(), offset: wire.offset })
    }
}

impl From<core::AckOutcome> for v1::AckOutcome {
    fn from(outcome: core::AckOutcome) -> Self {
        match outcome {
            core::AckOutcome::Accepted => Self::Accepted,
            core::AckOutcome::StaleLease => Self::StaleLease,
        }
    }
}

impl TryFrom<v1::AckOutcome> for core::AckOutcome {
    type Error = WireError;

    fn try_from(wire: v1::AckOutcome) -> Result<Self, WireError> {
        match wire {
            v1::AckOutcome::Accepted => Ok(Self::Accepted),
            v1::AckOutcome::StaleLease => Ok(Self::StaleLease),
            v1::AckOutcome::Unspecified => Err(WireError::Unknown { field: "ack.outcome", value: 0 }),
        }
    }
}

impl From<core::Counts> for v1::Counts {
    fn from(counts: core::Counts) -> Self {
        let core::Counts { total, acked, todo, doing, quarantined } = counts;
        Self { total, acked, todo, doing, quarantined }
    }
}

impl From<v1::Counts> for core::Counts {
    fn from(wire: v1::Counts) -> Self {
        let v1::Counts { total, acked, todo, doing, quarantined } = wire;
        Self { total, acked, todo, doing, quarantined }
    }
}
