//! The step of a synchronous parameter server: when it is complete, and what it is made of.
//!
//! Workers push their gradients to all servers, which only buffer them. Then each says "ready" here, with the acks
//! that are due. When every member is ready the step is committed in one place: the acks go to the ledger and
//! everyone is told who contributed. The servers apply exactly those pushes when the first pull of the next step
//! brings them the commit. So all servers apply the same set, and a sample is acknowledged if and only if its
//! gradient is part of a committed step, whoever dies in between.
//!
//! Source: our design. TensorFlow's token queue, which silently drops late gradients and hangs when workers leave, is what it avoids.

use std::collections::BTreeMap;
use std::sync::Arc;

use antdt_core::{Ack, Holder, Incarnation, NodeMap, PlanVersion, Readiness, StepCommit};

/// Why a readiness was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadyError {
    /// The sender is not a member: it was declared lost, or never joined.
    #[error("{holder} is not a member of the step; it must join first or exit")]
    NotAMember {
        /// The sender.
        holder: Holder,
    },
    /// The step is not the open one.
    #[error("step {step} was named, but step {open} is open")]
    WrongStep {
        /// The step named.
        step: u64,
        /// The open one.
        open: u64,
    },
}

/// Collects readiness and commits steps.
#[derive(Debug, Clone, Default)]
pub struct StepCoordinator {
    step: u64,
    /// The life of each member, and what it has ready for the open step.
    members: NodeMap<(Incarnation, Option<Readiness>)>,
    /// Members that are ready for the open step.
    ready: usize,
    plan: PlanVersion,
    last: Option<StepCommit>,
    last_with_samples: Option<StepCommit>,
}

impl StepCoordinator {
    /// A coordinator without members, at step 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The open step.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Who must be ready for the open step.
    pub fn members(&self) -> impl Iterator<Item = Holder> + '_ {
        self.members.iter().map(|(node, (incarnation, _))| Holder::new(node, *incarnation))
    }

    /// The newest committed step that changes the parameters: whoever joins passes it on to the servers, so that it
    /// does not compute on the parameters before it.
    ///
    /// One is enough. A step with samples needs contributors, and each of them brought the one before to all servers
    /// with its pull.
    pub const fn last_with_samples(&self) -> Option<&StepCommit> {
        self.last_with_samples.as_ref()
    }

    /// Takes a worker in, from the open step on. Older lives of its node are put out.
    pub fn join(&mut self, holder: Holder) {
        if !self.is_member(holder) {
            let older = self.members.insert(holder.node, (holder.incarnation, None));
            self.ready -= usize::from(older.is_some_and(|(_, ready)| ready.is_some()));
        }
    }

    /// Puts a worker out: it died or left. What it had ready for the open step is not part of it.
    pub fn remove(&mut self, holder: Holder) {
        if self.is_member(holder) {
            let member = self.members.remove(holder.node);
            self.ready -= usize::from(member.is_some_and(|(_, ready)| ready.is_some()));
        }
    }

    fn is_member(&self, holder: Holder) -> bool {
        self.members.get(holder.node).is_some_and(|(incarnation, _)| *incarnation == holder.incarnation)
    }

    /// A worker's push is on all servers.
    ///
    /// Returns the commit at once if the step is the newest committed one: the answer was lost on its way.
    /// Otherwise ask [`commit`](Self::commit).
    ///
    /// # Errors
    /// If the sender is not a member or names a step that is neither open nor just committed.
    pub fn ready(
        &mut self,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> Result<Option<&StepCommit>, ReadyError> {
        let member = self.members.get_mut(holder.node);
        let Some((_, ready)) = member.filter(|(incarnation, _)| *incarnation == holder.incarnation) else {
            return Err(ReadyError::NotAMember { holder });
        };
        if step + 1 == self.step {
            return Ok(self.last.as_ref());
        }
        if step != self.step {
            return Err(ReadyError::WrongStep { step, open: self.step });
        }
        self.ready += usize::from(ready.is_none());
        *ready = Some(readiness);
        Ok(None)
    }

    /// Commits the open step if every member is ready.
    pub fn commit(&mut self) -> Option<StepCommit> {
        if self.members.is_empty() || self.ready < self.members.len() {
            return None;
        }
        self.ready = 0;
        let ready: Vec<(Holder, Readiness)> = self
            .members
            .iter_mut()
            .filter_map(|(node, (incarnation, ready))| Some((Holder::new(node, *incarnation), ready.take()?)))
            .collect();
        let samples = ready.iter().map(|(_, r)| r.samples).sum();
        let end = samples == 0 && ready.iter().all(|(_, r)| r.end_of_data);
        let lowest = ready.iter().map(|(_, r)| r.plan).min().unwrap_or_default();
        let agreed = ready.iter().all(|(_, r)| r.plan == lowest) && lowest > self.plan;
        if agreed {
            self.plan = lowest;
        }
        let contributors: BTreeMap<Holder, Vec<Ack>> =
            ready.into_iter().filter(|(_, r)| r.samples > 0).map(|(holder, r)| (holder, r.acks)).collect();
        let contributors = Arc::new(contributors);
        let commit =
            StepCommit { step: self.step, contributors, samples, apply: agreed.then_some(lowest), end };
        self.step += 1;
        if samples > 0 {
            self.last_with_samples = Some(commit.clone());
        }
        self.last = Some(commit.clone());
        Some(commit)
    }
}

#[cfg(test)]
mod tests;
