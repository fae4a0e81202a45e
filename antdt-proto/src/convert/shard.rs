//! Grants, fetch outcomes and acks.

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

impl From<core::FetchOutcome> for v1::FetchReply {
    fn from(outcome: core::FetchOutcome) -> Self {
        use v1::fetch_reply::Outcome;
        let outcome = match outcome {
            core::FetchOutcome::Granted(grant) => Outcome::Grant(grant.into()),
            core::FetchOutcome::Wait { retry_after } => {
                Outcome::Wait(v1::Wait { retry_after_ns: to_ns(retry_after) })
            }
            core::FetchOutcome::EndOfData => Outcome::EndOfData(v1::EndOfData {}),
            core::FetchOutcome::AtLimit => Outcome::AtLimit(v1::AtLimit {}),
        };
        Self { outcome: Some(outcome) }
    }
}

impl TryFrom<v1::FetchReply> for core::FetchOutcome {
    type Error = WireError;

    fn try_from(wire: v1::FetchReply) -> Result<Self, WireError> {
        use v1::fetch_reply::Outcome;
        Ok(match required("fetch.outcome", wire.outcome)? {
            Outcome::Grant(grant) => Self::Granted(grant.try_into()?),
            Outcome::Wait(wait) => Self::Wait { retry_after: Duration::from_nanos(wait.retry_after_ns) },
            Outcome::EndOfData(v1::EndOfData {}) => Self::EndOfData,
            Outcome::AtLimit(v1::AtLimit {}) => Self::AtLimit,
        })
    }
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
