//! The step of a synchronous parameter server: when it is complete, and what it is made of.
//!
//! Workers push their gradients to all servers, which only buffer them. Then each says "ready" here, with the acks
//! that are due. When every member is ready the step is committed in one place: the acks go to the ledger and
//! everyone is told who contributed. The servers apply exactly those pushes when the first pull of the next step
//! brings them the commit. So all servers apply the same set, and a sample is acknowledged if and only if its
//! gradient is part of a committed step, whoever dies in between.
//!
//! Source: our design. TensorFlow's token queue, which silently drops late gradients and hangs when workers leave, is what it avoids.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, PlanVersion, Readiness, StepCommit};

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
    members: BTreeSet<Holder>,
    ready: BTreeMap<Holder, Readiness>,
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
        self.members.iter().copied()
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
        let older: Vec<Holder> =
            self.members.iter().copied().filter(|m| m.node == holder.node && m != &holder).collect();
        for member in older {
            self.remove(member);
        }
        self.members.insert(holder);
    }

    /// Puts a worker out: it died or left. What it had ready for the open step is not part of it.
    pub fn remove(&mut self, holder: Holder) {
        self.members.remove(&holder);
        self.ready.remove(&holder);
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
        if !self.members.contains(&holder) {
            return Err(ReadyError::NotAMember { holder });
        }
        if step + 1 == self.step {
            return Ok(self.last.as_ref());
        }
        if step != self.step {
            return Err(ReadyError::WrongStep { step, open: self.step });
        }
        self.ready.insert(holder, readiness);
        Ok(None)
    }

    /// Commits the open step if every member is ready.
    pub fn commit(&mut self) -> Option<StepCommit> {
        if self.members.is_empty() || self.ready.len() < self.members.len() {
            return None;
        }
        let ready = std::mem::take(&mut self.ready);
        let samples = ready.values().map(|r| r.samples).sum();
        let end = samples == 0 && ready.values().all(|r| r.end_of_data);
        let lowest = ready.values().map(|r| r.plan).min().unwrap_or_default();
        let agreed = ready.values().all(|r| r.plan == lowest) && lowest > self.plan;
        if agreed {
            self.plan = lowest;
        }
        let contributors =
            ready.into_iter().filter(|(_, r)| r.samples > 0).map(|(holder, r)| (holder, r.acks)).collect();
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
