//! [`StepCoordinator`]: decides when a step of synchronous parameter servers is complete, and which pushes it
//! consists of.
//!
//! Workers push their gradients to all servers, which only buffer them. Then each worker tells the
//! coordinator that it is ready, with the acks of its samples. When every member is ready, the coordinator
//! commits the step: the acks go to the ledger, and every worker is told the contributors. The servers apply
//! exactly those pushes when the first pull of the next step brings them the commit. So all servers apply the
//! same set, and a sample is acknowledged if and only if its gradient is part of a committed step, whichever
//! process dies in between.
//!
//! With backups a step does not wait for its slowest workers: with `b` backups it is committed when all
//! members that may have samples are ready except `b` of them, but not before one is ready. A later push is
//! in no step: its worker is told the newest commit, and that its own push is not counted. The number of
//! backups may change between two steps. A worker asks about one step until it is answered, so the
//! coordinator remembers for each member only the newest step that it was counted in, and repeats an answer
//! that was lost. A step in which a plan may come into force waits for every member, and so do all steps
//! while the caller asks for it.
//!
//! Source: our design; backup workers after Chen et al., 2016 (recalled). It avoids the faults of
//! TensorFlow's token queue, which silently drops late gradients and hangs when workers leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use antdt_core::{Ack, Holder, Incarnation, NodeMap, PlanVersion, Readiness, StepCommit};

/// Reason why the coordinator refused a worker's readiness for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadyError {
    /// The sender is not a member: it was declared lost, or never joined.
    #[error("{holder} is not a member of the step; it must join first or exit")]
    NotAMember {
        /// Worker and incarnation that sent the message.
        holder: Holder,
    },
    /// The step is neither the open one nor one that was committed.
    #[error("step {step} was named, but step {open} is open")]
    WrongStep {
        /// Step that the worker named.
        step: u64,
        /// Step that the coordinator has open.
        open: u64,
    },
}

#[derive(Debug, Clone)]
struct Member {
    incarnation: Incarnation,
    /// What it has ready for the open step.
    ready: Option<Readiness>,
    /// The newest plan that it said it holds.
    plan: PlanVersion,
    /// The open step when it was told of one last.
    told: u64,
    /// The newest step that its push is part of.
    counted: Option<u64>,
    /// The newest step at which it was to put a plan in force, and the plan.
    agreed: Option<(u64, PlanVersion)>,
}

/// Collects the workers' readiness for the open step of a synchronous parameter server, and commits the step.
#[derive(Debug, Clone, Default)]
pub struct StepCoordinator {
    /// Workers that a step need not wait for.
    backups: usize,
    /// Every step waits for all, whatever the backups.
    everyone: bool,
    step: u64,
    members: NodeMap<Member>,
    /// Members that are ready for the open step, with samples and without.
    ready: (usize, usize),
    /// Members that hold a newer plan than the one in force.
    ahead: usize,
    plan: PlanVersion,
    last: Option<StepCommit>,
    last_with_samples: Option<StepCommit>,
}

impl StepCoordinator {
    /// Returns a coordinator without members, at step 0, whose steps wait for every member.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a coordinator without members whose steps wait for all members but `backups` of them.
    pub fn with_backups(backups: u32) -> Self {
        Self { backups: backups as usize, ..Self::default() }
    }

    /// Returns the open step.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Returns the workers that take the open step.
    pub fn members(&self) -> impl Iterator<Item = Holder> + '_ {
        self.members.iter().map(|(node, member)| Holder::new(node, member.incarnation))
    }

    /// Returns the members that know of the newest commit. Right after a commit, they are the members that
    /// were ready for it; the caller sends it to them.
    pub fn informed(&self) -> impl Iterator<Item = Holder> + '_ {
        let informed = self.members.iter().filter(|(_, member)| member.told == self.step);
        informed.map(|(node, member)| Holder::new(node, member.incarnation))
    }

    /// Returns whether a worker is a member and knows of the newest commit.
    pub fn is_informed(&self, holder: Holder) -> bool {
        self.member(holder).is_some_and(|member| member.told == self.step)
    }

    /// Returns the newest committed step that contains samples. A joining worker passes it on to the servers,
    /// so that the worker does not compute with older parameters.
    ///
    /// No earlier step is needed: each contributor of a step brought the step before it to all servers with
    /// its pull.
    pub const fn last_with_samples(&self) -> Option<&StepCommit> {
        self.last_with_samples.as_ref()
    }

    /// Returns the number of workers that a step need not wait for.
    pub const fn backups(&self) -> usize {
        self.backups
    }

    /// Sets the number of members that steps need not wait for, from the open step on. The caller then calls
    /// [`commit`](Self::commit).
    pub const fn set_backups(&mut self, backups: u32) {
        self.backups = backups as usize;
    }

    /// Makes every step wait for all members, or lets steps use their backups again. The caller then calls
    /// [`commit`](Self::commit).
    pub const fn take_all_workers(&mut self, everyone: bool) {
        self.everyone = everyone;
    }

    /// Adds a worker, from the open step on. An older incarnation of its node is removed.
    pub fn join(&mut self, holder: Holder) {
        if self.member(holder).is_some() {
            return;
        }
        if let Some(older) = self.members.get(holder.node) {
            self.remove(Holder::new(holder.node, older.incarnation));
        }
        let member = Member {
            incarnation: holder.incarnation,
            ready: None,
            plan: PlanVersion(0),
            told: self.step,
            counted: None,
            agreed: None,
        };
        self.members.insert(holder.node, member);
    }

    /// Removes a worker that died or left. Its push for the open step is not part of the step.
    pub fn remove(&mut self, holder: Holder) {
        if self.member(holder).is_some()
            && let Some(member) = self.members.remove(holder.node)
        {
            self.count(member.ready.as_ref(), None);
            self.ahead -= usize::from(member.plan > self.plan);
        }
    }

    fn member(&self, holder: Holder) -> Option<&Member> {
        self.members.get(holder.node).filter(|member| member.incarnation == holder.incarnation)
    }

    /// One member's readiness becomes another.
    fn count(&mut self, before: Option<&Readiness>, after: Option<&Readiness>) {
        let is = |ready: Option<&Readiness>, with: bool| {
            usize::from(ready.is_some_and(|ready| (ready.samples > 0) == with))
        };
        self.ready.0 = self.ready.0 + is(after, true) - is(before, true);
        self.ready.1 = self.ready.1 + is(after, false) - is(before, false);
    }

    /// Records that a worker's push for `step` is on all servers, or that a server refused it because the
    /// step is over.
    ///
    /// Returns the newest commit if `step` is over, which happens when the worker is late or an answer to it
    /// was lost; the commit says whether the push is part of `step`. Otherwise returns `None`, and the caller
    /// calls [`commit`](Self::commit).
    ///
    /// # Errors
    /// If the sender is not a member, names a step that is not open yet, or, where every step waits for every member, one before the
    /// newest committed one.
    pub fn ready(
        &mut self,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> Result<Option<StepCommit>, ReadyError> {
        let (open, in_force) = (self.step, self.plan);
        let member = self.members.get_mut(holder.node);
        let Some(member) = member.filter(|member| member.incarnation == holder.incarnation) else {
            return Err(ReadyError::NotAMember { holder });
        };
        if step > open || (step + 1 < open && self.backups == 0) {
            return Err(ReadyError::WrongStep { step, open });
        }
        self.ahead -= usize::from(member.plan > in_force);
        // An old copy takes nothing back.
        member.plan = member.plan.max(readiness.plan);
        self.ahead += usize::from(member.plan > in_force);
        if step < open {
            member.told = open;
            let counted = member.counted == Some(step);
            // The commit that put a plan in force may be an older one, which this worker was not told of.
            let apply = member.agreed.filter(|(agreed, _)| *agreed == step).map(|(_, plan)| plan);
            return Ok(self.last.as_ref().map(|last| StepCommit { apply, ..last.answering(step, counted) }));
        }
        let before = member.ready.take();
        self.count(before.as_ref(), Some(&readiness));
        if let Some(member) = self.members.get_mut(holder.node) {
            member.ready = Some(readiness);
        }
        Ok(None)
    }

    /// Commits the open step if enough members are ready, and returns the commit. The caller sends it to the
    /// [`informed`](Self::informed) members.
    pub fn commit(&mut self) -> Option<StepCommit> {
        let (with_samples, without) = self.ready;
        // Some of them may turn out to have none.
        let may_have = self.members.len() - without;
        let due = match may_have {
            0 => 0,
            _ if self.everyone || self.ahead > 0 => may_have,
            _ => may_have.saturating_sub(self.backups).max(1),
        };
        if self.members.is_empty() || with_samples < due {
            return None;
        }
        let everyone = with_samples + without == self.members.len();
        self.ready = (0, 0);
        let step = self.step;
        let mut ready: Vec<(Holder, Readiness)> = Vec::with_capacity(with_samples + without);
        for (node, member) in self.members.iter_mut() {
            let Some(readiness) = member.ready.take() else { continue };
            member.told = step + 1;
            if readiness.samples > 0 {
                member.counted = Some(step);
            }
            ready.push((Holder::new(node, member.incarnation), readiness));
        }
        let samples = ready.iter().map(|(_, r)| r.samples).sum();
        let end = everyone && samples == 0 && ready.iter().all(|(_, r)| r.end_of_data);
        let lowest = ready.iter().map(|(_, r)| r.plan).min().unwrap_or_default();
        let agreed = everyone && ready.iter().all(|(_, r)| r.plan == lowest) && lowest > self.plan;
        if agreed {
            self.plan = lowest;
            self.ahead = self.members.iter().filter(|(_, member)| member.plan > lowest).count();
            self.members.iter_mut().for_each(|(_, member)| member.agreed = Some((step, lowest)));
        }
        let contributors: BTreeMap<Holder, Vec<Ack>> =
            ready.into_iter().filter(|(_, r)| r.samples > 0).map(|(holder, r)| (holder, r.acks)).collect();
        let contributors = Arc::new(contributors);
        let apply = agreed.then_some(lowest);
        let commit =
            StepCommit { step, contributors, samples, apply, end, asked: step, counted: false, everyone };
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
