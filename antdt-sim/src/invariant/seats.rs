//! Which plan is in force on each worker, by what it was told: the notes that the checkers of plans and batches take.

use std::collections::BTreeMap;

use antdt_core::{Holder, MembershipVersion, Plan, PlanVersion, RollbackId};
use antdt_job::{HeadEffect, Note, Reply};

use crate::happening::Happening;

/// Plans remembered: an older one than so many is not agreed on any more.
const PLANS_MAX: usize = 64;

/// A worker that takes part.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seat {
    /// The newest rollback that it was let in after, and its group.
    pub(super) rollback: RollbackId,
    pub(super) membership: MembershipVersion,
    /// The plan in force on it.
    pub(super) applied: PlanVersion,
    /// Samples of its batches by that plan; 0 before one named it.
    pub(super) size: u32,
}

/// All of them, the dead too: what they said last may still be on its way.
#[derive(Debug, Default)]
pub(super) struct Seats {
    plans: BTreeMap<PlanVersion, Plan>,
    seats: BTreeMap<Holder, Seat>,
}

impl Seats {
    pub(super) fn saw(&mut self, what: &Happening<'_>) {
        match what {
            Happening::Effect(HeadEffect::Note { note: Note::Published(plan), .. }) => {
                self.plans.insert(plan.version, plan.clone());
                if self.plans.len() > PLANS_MAX {
                    self.plans.pop_first();
                }
            }
            Happening::Worker(holder, Reply::Joined(joined), _) if !joined.finished => {
                let seat = self.seats.entry(*holder).or_default();
                (seat.rollback, seat.membership) = (joined.rollback, joined.membership);
                seat.apply(*holder, &joined.plan);
            }
            Happening::Worker(holder, Reply::Agreed(verdict), _) => {
                if let Some(version) = verdict.plan_agreed {
                    self.agreed(*holder, version);
                }
            }
            Happening::Worker(holder, Reply::Committed(commit), _) => {
                if let Some(version) = commit.apply {
                    self.agreed(*holder, version);
                }
            }
            _ => {}
        }
    }

    fn agreed(&mut self, holder: Holder, version: PlanVersion) {
        if let (Some(seat), Some(plan)) = (self.seats.get_mut(&holder), self.plans.get(&version)) {
            seat.apply(holder, plan);
        }
    }

    pub(super) fn get(&self, holder: Holder) -> Option<Seat> {
        self.seats.get(&holder).copied()
    }

    pub(super) fn plan(&self, version: PlanVersion) -> Option<&Plan> {
        self.plans.get(&version)
    }
}

impl Seat {
    fn apply(&mut self, holder: Holder, plan: &Plan) {
        if let Some(size) = plan.batch_sizes.get(&holder.node)
            && plan.version > self.applied
        {
            (self.applied, self.size) = (plan.version, *size);
        }
    }
}
