//! [`StepGate`]: decides when a step of an all-reduce begins, and which members bring a gradient to it.
//!
//! An all-reduce takes every member of its group: a ring without one of them is another ring. So a member whose gradient is
//! late stays in the ring and brings zeros, and gets the sums of the step as all others do. The gate decides which members
//! these are. A member asks it twice: when it begins to compute, and when its gradient is there. With `b` backups the gate closes
//! when all members that may have samples have their gradients except `b` of them, but not before one has. Then every member goes
//! into the all-reduce at once, those with samples and those without, and a gradient that comes later is in no step.
//!
//! The gate has no part in what becomes of a step. Each member says in the all-reduce itself how many samples it brings, the mean divides by
//! their sum, and [`Membership`](crate::Membership) decides about a step that a death interrupts. An answer that is lost, repeated or
//! late therefore costs time, and no sample.
//!
//! What was rejected: *a ring of those that came first*, because connections would have to be made in each step and the others would
//! have to fetch what they missed; *the all-reduce of the step before as the signal*, because it does not know when a gradient
//! is there.
//!
//! Source: first k of n, as in the [`StepCoordinator`](crate::StepCoordinator) of parameter servers; that late members stay in the ring is our
//! design.

use std::collections::BTreeMap;

use antdt_core::{Holder, Readiness};

/// What a member says of its gradient for the open step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brings {
    /// It has no samples for this step.
    Nothing,
    /// It has samples, and their gradient is still being computed.
    Later,
    /// Its gradient has been computed.
    Now,
}

impl Brings {
    /// Reads a member's message. One that names samples and no acknowledgements of them has no gradient yet.
    pub fn of(readiness: &Readiness) -> Self {
        match (readiness.samples, readiness.acks.is_empty()) {
            (0, _) => Self::Nothing,
            (_, true) => Self::Later,
            (_, false) => Self::Now,
        }
    }
}

/// The gate's word to a member that asked about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// Member that asked.
    pub holder: Holder,
    /// Step that it asked about.
    pub step: u64,
    /// Whether it brings its gradient to that step.
    pub counted: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Member {
    /// What it brings to the open step, if it has said so.
    brings: Option<Brings>,
    /// The newest step that it was told to bring a gradient to.
    counted: Option<u64>,
}

/// Decides when a step of an all-reduce begins, and which members bring a gradient to it. See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct StepGate {
    step: u64,
    members: BTreeMap<Holder, Member>,
    /// Members that bring samples to the open step now, and those that bring none.
    now: usize,
    nothing: usize,
}

impl StepGate {
    /// Returns a gate without members, which lets no step begin.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the open step.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Returns whether a worker is a member of the group whose steps begin here.
    pub fn is_member(&self, holder: Holder) -> bool {
        self.members.contains_key(&holder)
    }

    /// Begins with a new group, whose first step is `step`.
    pub fn begin(&mut self, step: u64, members: impl IntoIterator<Item = Holder>) {
        let members = members.into_iter().map(|holder| (holder, Member::default())).collect();
        *self = Self { step, members, ..Self::default() };
    }

    /// Ends the group: a member of it is gone. Returns the members that had asked about the open step, which the caller
    /// answers.
    pub fn break_up(&mut self) -> Vec<Holder> {
        let members = std::mem::take(self).members;
        members.into_iter().filter(|(_, member)| member.brings.is_some()).map(|(holder, _)| holder).collect()
    }

    /// Records what a member brings to `step`. Then the caller calls [`close`](Self::close).
    ///
    /// Returns the answer at once if the step has begun already: the member is late, or an earlier answer to it was lost. Within
    /// a step only a member whose gradient comes [later](Brings::Later) changes its word; older copies of its messages change nothing.
    ///
    /// A step after the open one becomes the open one: some steps of a group may begin without the gate.
    ///
    /// # Errors
    /// If the sender is not a member; it then has to join a group.
    pub fn arrive(
        &mut self,
        holder: Holder,
        step: u64,
        brings: Brings,
    ) -> Result<Option<Passage>, NotAMember> {
        let member = self.members.get(&holder).ok_or(NotAMember { holder })?;
        if step < self.step {
            let counted = member.counted == Some(step);
            return Ok(Some(Passage { holder, step, counted }));
        }
        if step > self.step {
            self.open(step);
        }
        let Some(member) = self.members.get_mut(&holder) else { return Err(NotAMember { holder }) };
        if matches!(member.brings, None | Some(Brings::Later)) {
            member.brings = Some(brings);
            match brings {
                Brings::Nothing => self.nothing += 1,
                Brings::Now => self.now += 1,
                Brings::Later => {}
            }
        }
        Ok(None)
    }

    fn open(&mut self, step: u64) {
        (self.step, self.now, self.nothing) = (step, 0, 0);
        self.members.values_mut().for_each(|member| member.brings = None);
    }

    /// Closes the open step if enough gradients are there, and opens the next one. Returns the answers to all members that have asked about
    /// it; the others are told when they ask.
    pub fn close(&mut self, backups: u32) -> Option<Vec<Passage>> {
        // Some of them may turn out to have none.
        let may_have = self.members.len() - self.nothing;
        let due = match may_have {
            0 => 0,
            _ => may_have.saturating_sub(backups as usize).max(1),
        };
        if self.members.is_empty() || self.now < due {
            return None;
        }
        let step = self.step;
        let mut passages = Vec::with_capacity(self.members.len());
        for (holder, member) in &mut self.members {
            let Some(brings) = member.brings else { continue };
            let counted = brings == Brings::Now;
            if counted {
                member.counted = Some(step);
            }
            passages.push(Passage { holder: *holder, step, counted });
        }
        self.open(step + 1);
        Some(passages)
    }
}

/// The sender of a message is not a member of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{holder} is not a member of the group; it must join first")]
pub struct NotAMember {
    /// Worker and incarnation that sent the message.
    pub holder: Holder,
}

#[cfg(test)]
mod tests;
