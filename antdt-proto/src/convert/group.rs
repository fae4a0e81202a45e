//! Conversion of the messages about steps that all workers take together.

use antdt_core as core;
use prost::Message;

use super::{WireError, required};
use crate::v1;

fn acks_in(wire: Vec<v1::Ack>) -> Result<Vec<core::Ack>, WireError> {
    wire.into_iter().map(core::Ack::try_from).collect()
}

fn acks_out(acks: &[core::Ack]) -> Vec<v1::Ack> {
    acks.iter().map(|ack| (*ack).into()).collect()
}

impl From<&core::Contribution> for v1::Contribution {
    fn from(contribution: &core::Contribution) -> Self {
        Self { holder: Some(contribution.holder.into()), acks: acks_out(&contribution.acks) }
    }
}

impl TryFrom<v1::Contribution> for core::Contribution {
    type Error = WireError;

    fn try_from(wire: v1::Contribution) -> Result<Self, WireError> {
        let holder = required("contribution.holder", wire.holder)?.try_into()?;
        Ok(Self { holder, acks: acks_in(wire.acks)?.into() })
    }
}

impl From<&core::StepResult> for v1::StepResult {
    fn from(result: &core::StepResult) -> Self {
        Self { step: result.step, contributions: result.contributions.iter().map(Into::into).collect() }
    }
}

impl TryFrom<v1::StepResult> for core::StepResult {
    type Error = WireError;

    fn try_from(wire: v1::StepResult) -> Result<Self, WireError> {
        let contributions =
            wire.contributions.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        Ok(Self { step: wire.step, contributions })
    }
}

impl v1::JoinRequest {
    /// Returns the wire message with which a worker asks to join a group; `standing` is the state of its
    /// model.
    pub fn new(holder: core::Holder, standing: &core::Standing) -> Self {
        Self {
            holder: Some(holder.into()),
            applied: standing.applied.as_ref().map(Into::into),
            prepared: standing.prepared.as_ref().map(Into::into),
            group: standing.group.0,
            broken: standing.broken,
        }
    }

    /// Converts the wire message to the worker that asks to join a group, and the state of its model.
    ///
    /// # Errors
    /// If a required field is absent or unknown.
    pub fn into_core(self) -> Result<(core::Holder, core::Standing), WireError> {
        let holder = required("join.holder", self.holder)?.try_into()?;
        let applied = self.applied.map(TryInto::try_into).transpose()?;
        let prepared = self.prepared.map(TryInto::try_into).transpose()?;
        let group = core::MembershipVersion(self.group);
        Ok((holder, core::Standing { group, applied, prepared, broken: self.broken }))
    }
}

impl v1::ReadyRequest {
    /// Returns the wire message with which a worker says that its push of `step` is on all servers.
    pub fn new(holder: core::Holder, step: u64, readiness: &core::Readiness) -> Self {
        Self {
            holder: Some(holder.into()),
            step,
            samples: readiness.samples,
            end_of_data: readiness.end_of_data,
            plan_ready: readiness.plan.0,
            acks: acks_out(&readiness.acks),
        }
    }

    /// Converts the wire message to the worker whose push is on all servers, the step, and its readiness.
    ///
    /// # Errors
    /// If a required field is absent or unknown.
    pub fn into_core(self) -> Result<(core::Holder, u64, core::Readiness), WireError> {
        let holder = required("ready.holder", self.holder)?.try_into()?;
        let readiness = core::Readiness {
            samples: self.samples,
            end_of_data: self.end_of_data,
            plan: core::PlanVersion(self.plan_ready),
            acks: acks_in(self.acks)?,
        };
        Ok((holder, self.step, readiness))
    }
}

impl From<&core::StepCommit> for v1::StepCommit {
    fn from(commit: &core::StepCommit) -> Self {
        let contributors = commit
            .contributors
            .iter()
            .map(|(holder, acks)| v1::Contribution { holder: Some((*holder).into()), acks: acks_out(acks) })
            .collect();
        Self {
            contributors,
            samples: commit.samples,
            apply_plan: commit.apply.map_or(0, |version| version.0),
            end: commit.end,
            step: commit.step,
            undone: false,
            asked: commit.asked,
            counted: commit.counted,
            everyone: commit.everyone,
        }
    }
}

impl TryFrom<v1::StepCommit> for core::StepCommit {
    type Error = WireError;

    fn try_from(wire: v1::StepCommit) -> Result<Self, WireError> {
        let mut contributors = std::collections::BTreeMap::new();
        for contribution in wire.contributors {
            let core::Contribution { holder, acks } = contribution.try_into()?;
            contributors.insert(holder, acks.into_vec());
        }
        Ok(Self {
            step: wire.step,
            contributors: contributors.into(),
            samples: wire.samples,
            apply: (wire.apply_plan != 0).then_some(core::PlanVersion(wire.apply_plan)),
            end: wire.end,
            asked: wire.asked,
            counted: wire.counted,
            everyone: wire.everyone,
        })
    }
}

impl From<core::PushMark> for v1::PushMark {
    fn from(mark: core::PushMark) -> Self {
        Self { holder: Some(mark.holder.into()), step: mark.step }
    }
}

/// Converts the wire's marks of pushes that count.
///
/// # Errors
/// If one does not name its worker.
pub fn push_marks<C: FromIterator<core::PushMark>>(wire: Vec<v1::PushMark>) -> Result<C, WireError> {
    let mark = |mark: v1::PushMark| {
        let holder = required("push.holder", mark.holder)?.try_into()?;
        Ok(core::PushMark { holder, step: mark.step })
    };
    wire.into_iter().map(mark).collect()
}

impl From<&core::Joined> for v1::JoinReply {
    /// Encodes the answer. A clone of the reply shares its bytes.
    fn from(joined: &core::Joined) -> Self {
        let members = joined
            .members
            .iter()
            .map(|(holder, address)| v1::Member {
                holder: Some((*holder).into()),
                data_address: address.clone(),
            })
            .collect();
        let joined = v1::Joined {
            membership: joined.membership.0,
            members,
            commit_prepared: joined.commit_prepared,
            source: joined.source.map(|rank| rank.0),
            next_step: joined.next_step,
            plan: Some((&joined.plan).into()),
            finished: joined.finished,
            last_commit: joined.last_commit.as_ref().map(Into::into),
            rollback: joined.rollback.0,
            checkpoint: joined.checkpoint.as_deref().unwrap_or_default().to_owned(),
            servers: joined.servers.to_vec(),
            pushes: joined.pushes.iter().copied().map(Into::into).collect(),
        };
        Self { joined: joined.encode_to_vec().into() }
    }
}

impl TryFrom<v1::JoinReply> for core::Joined {
    type Error = WireError;

    fn try_from(wire: v1::JoinReply) -> Result<Self, WireError> {
        let damaged =
            |error: prost::DecodeError| WireError::Damaged { field: "join.joined", why: error.to_string() };
        let wire = v1::Joined::decode(wire.joined).map_err(damaged)?;
        let mut members = Vec::with_capacity(wire.members.len());
        for member in wire.members {
            members.push((required("member.holder", member.holder)?.try_into()?, member.data_address));
        }
        Ok(Self {
            membership: core::MembershipVersion(wire.membership),
            members: members.into(),
            commit_prepared: wire.commit_prepared,
            source: wire.source.map(core::Rank),
            next_step: wire.next_step,
            plan: required("join.plan", wire.plan)?.into(),
            last_commit: wire.last_commit.map(TryInto::try_into).transpose()?,
            finished: wire.finished,
            rollback: core::RollbackId(wire.rollback),
            checkpoint: Some(wire.checkpoint).filter(|place| !place.is_empty()).map(Into::into),
            servers: wire.servers.into(),
            pushes: push_marks(wire.pushes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Ack, Contribution, Generation, Holder, Incarnation, LeaseId, NodeId, StepResult};

    use crate::v1;

    #[test]
    fn a_report_about_a_step_survives_the_wire() {
        let holder = Holder::new(NodeId::worker(2), Incarnation(1));
        let ack = Ack { lease: LeaseId { generation: Generation(3), sequence: 9 }, offset: 7 };
        let result =
            StepResult { step: 5, contributions: [Contribution { holder, acks: vec![ack].into() }].into() };
        let standing = antdt_core::Standing {
            group: antdt_core::MembershipVersion(7),
            applied: Some(result),
            prepared: None,
            broken: true,
        };
        let back = v1::JoinRequest::new(holder, &standing).into_core().unwrap();
        assert_eq!(back, (holder, standing));

        let readiness = antdt_core::Readiness {
            samples: 4,
            end_of_data: true,
            plan: antdt_core::PlanVersion(2),
            acks: vec![ack],
        };
        let back = v1::ReadyRequest::new(holder, 8, &readiness).into_core().unwrap();
        assert_eq!(back, (holder, 8, readiness));

        let commit = antdt_core::StepCommit {
            step: 8,
            contributors: std::sync::Arc::new([(holder, vec![ack])].into_iter().collect()),
            samples: 4,
            apply: Some(antdt_core::PlanVersion(2)),
            end: false,
            asked: 7,
            counted: true,
            everyone: false,
        };
        assert_eq!(antdt_core::StepCommit::try_from(v1::StepCommit::from(&commit)).unwrap(), commit);
    }

    #[test]
    fn a_message_to_a_member_survives_the_wire_and_is_encoded_once() {
        let (one, other) = (NodeId::worker(0), NodeId::worker(1));
        let life = |node| Holder::new(node, Incarnation(3));
        let membership = antdt_core::MembershipVersion(4);
        let sizes = [(one, 5), (other, 7)].into_iter().collect();
        let joined = antdt_core::Joined {
            membership,
            members: [(life(one), "a:1".to_owned()), (life(other), "b:2".to_owned())].into(),
            commit_prepared: true,
            source: Some(antdt_core::Rank(1)),
            next_step: 6,
            plan: antdt_core::Plan::new(antdt_core::PlanVersion(2), membership, sizes),
            last_commit: None,
            finished: false,
            rollback: antdt_core::RollbackId(1),
            checkpoint: Some("/checkpoints/3".into()),
            servers: ["c:3".to_owned()].into(),
            pushes: [Some(6), None].map(|step| antdt_core::PushMark { holder: life(one), step }).into(),
        };
        let reply = v1::JoinReply::from(&joined);
        assert_eq!(reply.clone().joined.as_ptr(), reply.joined.as_ptr(), "a clone has the same bytes");
        assert_eq!(antdt_core::Joined::try_from(reply.clone()).unwrap(), joined);

        let cut = v1::JoinReply { joined: reply.joined.slice(..reply.joined.len() - 1) };
        let error = antdt_core::Joined::try_from(cut).unwrap_err().to_string();
        assert!(error.starts_with("field `join.joined` cannot be read: "), "{error}");
    }
}
