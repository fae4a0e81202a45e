//! [`Participants`]: the workers that take part in the training, and the oldest plan that is in force on any of them.

use std::collections::BTreeMap;

use antdt_core::{Holder, Incarnation, NodeMap, PlanVersion};

/// Workers that joined and are neither lost nor gone, one life of each.
///
/// Every question is answered in O(log p), with p the number of plans that are in force somewhere: one or two.
#[derive(Debug, Clone, Default)]
pub(super) struct Participants {
    lives: NodeMap<(Incarnation, PlanVersion)>,
    /// On how many a plan is in force.
    plans: BTreeMap<PlanVersion, usize>,
}

impl Participants {
    pub(super) const fn len(&self) -> usize {
        self.lives.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.lives.is_empty()
    }

    pub(super) fn contains(&self, holder: Holder) -> bool {
        self.lives.get(holder.node).is_some_and(|(incarnation, _)| *incarnation == holder.incarnation)
    }

    /// In the order of ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = Holder> {
        self.lives.iter().map(|(node, (incarnation, _))| Holder::new(node, *incarnation))
    }

    /// The newest plan that all workers have reached.
    pub(super) fn applied_by_all(&self) -> Option<PlanVersion> {
        self.plans.first_key_value().map(|(plan, _)| *plan)
    }

    /// Takes a life in, on which `plan` is in force.
    pub(super) fn insert(&mut self, holder: Holder, plan: PlanVersion) {
        let before = self.lives.insert(holder.node, (holder.incarnation, plan));
        self.forget_plan(before);
        *self.plans.entry(plan).or_default() += 1;
    }

    /// Another plan is in force on a life.
    pub(super) fn applied(&mut self, holder: Holder, plan: PlanVersion) {
        if self.contains(holder) {
            self.insert(holder, plan);
        }
    }

    /// Puts a life out; returns whether it took part.
    pub(super) fn remove(&mut self, holder: Holder) -> bool {
        let took_part = self.contains(holder);
        if took_part {
            let before = self.lives.remove(holder.node);
            self.forget_plan(before);
        }
        took_part
    }

    fn forget_plan(&mut self, life: Option<(Incarnation, PlanVersion)>) {
        if let Some((_, plan)) = life
            && let Some(count) = self.plans.get_mut(&plan)
        {
            *count -= 1;
            if *count == 0 {
                self.plans.remove(&plan);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::NodeId;

    use super::*;

    #[test]
    fn a_plan_is_applied_by_all_when_the_last_one_switched_or_is_gone() {
        let worker = |index, life| Holder::new(NodeId::worker(index), Incarnation(life));
        let mut participants = Participants::default();
        assert_eq!(participants.applied_by_all(), None);
        for index in 0..3 {
            participants.insert(worker(index, 0), PlanVersion(1));
        }
        participants.applied(worker(0, 0), PlanVersion(2));
        participants.applied(worker(1, 1), PlanVersion(2));
        assert_eq!(participants.applied_by_all(), Some(PlanVersion(1)), "another life does not count");
        participants.applied(worker(1, 0), PlanVersion(3));
        assert_eq!(participants.applied_by_all(), Some(PlanVersion(1)));
        assert!(!participants.remove(worker(2, 1)) && participants.remove(worker(2, 0)));
        assert_eq!(participants.applied_by_all(), Some(PlanVersion(2)));
        participants.insert(worker(0, 1), PlanVersion(0));
        assert_eq!((participants.applied_by_all(), participants.len()), (Some(PlanVersion(0)), 2));
        assert!(participants.iter().eq([worker(0, 1), worker(1, 0)]));
        assert!(participants.remove(worker(0, 1)) && participants.remove(worker(1, 0)));
        assert!(participants.is_empty() && participants.applied_by_all().is_none());
    }
}
