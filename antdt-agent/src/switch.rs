//! [`PlanSwitch`]: makes all workers apply a plan at the same iteration, or none.
//!
//! A plan reaches the agents at different times. With every step each worker reports the version of the plan
//! that it holds; when a step shows that all hold the same new plan, all apply it before the next batch. All
//! workers see the same versions in the same step, so they decide alike without a further message.

use std::collections::BTreeMap;
use std::sync::Arc;

use antdt_core::{MembershipVersion, NodeId, Plan, PlanVersion};

/// Decides when a worker applies a plan: it holds the newest plan until all workers have it.
#[derive(Debug, Clone)]
pub struct PlanSwitch {
    node: NodeId,
    membership: Option<MembershipVersion>,
    held: Option<Plan>,
    applied: PlanVersion,
    batch_size: u32,
    micro_batches: u32,
    local_steps: Option<u32>,
    backups: Option<u32>,
    /// `None` before the first plan that has any.
    actions: Option<Arc<BTreeMap<String, String>>>,
}

impl PlanSwitch {
    /// Returns a switch without a plan in force. Its batch size is 0 until a plan is applied.
    pub const fn new(node: NodeId) -> Self {
        let applied = PlanVersion(0);
        Self {
            node,
            membership: None,
            held: None,
            applied,
            batch_size: 0,
            micro_batches: 1,
            local_steps: None,
            backups: None,
            actions: None,
        }
    }

    /// Returns the number of samples per batch in the plan in force.
    pub const fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// Returns the number of micro-batches per batch in the plan in force, at least 1.
    pub const fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// Returns the number of steps between two averages in the plan in force; `None` leaves it to the sync mode.
    pub const fn local_steps(&self) -> Option<u32> {
        self.local_steps
    }

    /// Returns the number of workers that a step need not wait for in the plan in force; `None` leaves it to
    /// the sync mode.
    pub const fn backups(&self) -> Option<u32> {
        self.backups
    }

    /// Returns the values of other actions in the plan in force, by the action's name; `None` if it has none.
    pub const fn actions(&self) -> Option<&Arc<BTreeMap<String, String>>> {
        self.actions.as_ref()
    }

    /// Returns the version of the plan in force.
    pub const fn applied(&self) -> PlanVersion {
        self.applied
    }

    /// Takes a plan that arrived from the master. The switch ignores plans older than those it has seen, and
    /// plans that do not name its node.
    pub fn offer(&mut self, plan: Plan) {
        let newest = self.held.as_ref().map_or(self.applied, |held| held.version.max(self.applied));
        if plan.version > newest && plan.batch_sizes.contains_key(&self.node) {
            self.held = Some(plan);
        }
    }

    /// Returns the version of the newest plan that this node holds and can apply. In each step, the worker
    /// reports this version to the other workers.
    pub fn ready(&self) -> PlanVersion {
        match &self.held {
            Some(plan) if self.membership.is_none_or(|membership| plan.membership == membership) => {
                plan.version.max(self.applied)
            }
            Some(_) | None => self.applied,
        }
    }

    /// Applies the plan `version`, which all workers hold now, unless it is in force already. Returns whether
    /// the plan in force changed.
    pub fn agreed(&mut self, version: PlanVersion) -> bool {
        match self.held.take_if(|plan| plan.version == version && version > self.applied) {
            Some(plan) => {
                self.applied = version;
                self.apply(&plan);
                true
            }
            None => false,
        }
    }

    /// Applies the plan that this node holds at once, without the agreement of the other workers: for modes
    /// in which each worker has its own pace. Returns whether the plan in force changed.
    pub fn apply_now(&mut self) -> bool {
        self.agreed(self.ready())
    }

    /// Enters a new group, whose members all have `plan` in force. The switch drops any newer plan that it
    /// holds, and from now on accepts only plans for `membership`.
    pub fn regroup(&mut self, membership: MembershipVersion, plan: &Plan) {
        self.membership = Some(membership);
        self.held = None;
        if plan.membership == membership
            && plan.version > self.applied
            && plan.batch_sizes.contains_key(&self.node)
        {
            self.applied = plan.version;
            self.apply(plan);
        }
    }

    fn apply(&mut self, plan: &Plan) {
        self.batch_size = plan.batch_sizes.get(&self.node).copied().unwrap_or(self.batch_size);
        self.micro_batches = plan.micro_batches(self.node);
        self.local_steps = plan.local_steps;
        self.backups = plan.backups;
        self.actions = Some(Arc::clone(&plan.actions)).filter(|actions| !actions.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(version: u64, membership: u64, size: u32) -> Plan {
        let sizes = [(NodeId::worker(0), size)].into_iter().collect();
        Plan::new(PlanVersion(version), MembershipVersion(membership), sizes)
    }

    #[test]
    fn actions_are_those_of_the_plan_in_force() {
        let mut switch = PlanSwitch::new(NodeId::worker(0));
        switch.regroup(MembershipVersion(1), &plan(1, 1, 8));
        assert_eq!(switch.actions(), None);
        let values: BTreeMap<String, String> = [("ACT".to_owned(), "1".to_owned())].into_iter().collect();
        switch.offer(plan(2, 1, 8).with_actions(values.clone()));
        assert_eq!(switch.actions(), None, "a peer does not have it yet");
        assert!(switch.agreed(PlanVersion(2)));
        assert_eq!(switch.actions().map(|actions| &**actions), Some(&values));
    }

    #[test]
    fn a_plan_is_held_until_all_hold_it() {
        let mut switch = PlanSwitch::new(NodeId::worker(0));
        switch.regroup(MembershipVersion(1), &plan(1, 1, 8));
        assert_eq!((switch.applied(), switch.batch_size()), (PlanVersion(1), 8));
        switch.offer(plan(2, 1, 16));
        assert_eq!((switch.ready(), switch.batch_size()), (PlanVersion(2), 8));
        assert!(!switch.agreed(PlanVersion(1)), "a peer did not have it yet");
        assert!(switch.agreed(PlanVersion(2)));
        assert_eq!(switch.batch_size(), 16);
        assert!(!switch.agreed(PlanVersion(2)), "once");
    }

    #[test]
    fn older_plans_foreign_plans_and_plans_of_another_membership_are_not_applied() {
        let mut switch = PlanSwitch::new(NodeId::worker(0));
        switch.regroup(MembershipVersion(1), &plan(3, 1, 8));
        switch.offer(plan(2, 1, 99));
        assert_eq!(switch.ready(), PlanVersion(3));
        let foreign = [(NodeId::worker(5), 1)].into_iter().collect();
        switch.offer(Plan::new(PlanVersion(8), MembershipVersion(1), foreign));
        assert_eq!(switch.ready(), PlanVersion(3));
        switch.offer(plan(4, 9, 99));
        assert_eq!(switch.ready(), PlanVersion(3), "made for another group");
        switch.regroup(MembershipVersion(9), &plan(5, 9, 4));
        assert_eq!((switch.applied(), switch.batch_size()), (PlanVersion(5), 4));
    }

    #[test]
    fn micro_batches_come_and_go_with_their_plan() {
        let mut switch = PlanSwitch::new(NodeId::worker(0));
        let counts = |count| [(NodeId::worker(0), count)].into_iter().collect();
        switch.regroup(MembershipVersion(1), &plan(1, 1, 8).with_accumulation(counts(4)));
        assert_eq!(switch.micro_batches(), 4);
        switch.offer(plan(2, 1, 8));
        assert_eq!(switch.micro_batches(), 4, "not yet agreed on");
        assert!(switch.agreed(PlanVersion(2)));
        assert_eq!(switch.micro_batches(), 1);
        switch.offer(plan(3, 1, 8).with_accumulation(counts(2)));
        assert!(switch.apply_now());
        assert_eq!((switch.batch_size(), switch.micro_batches()), (8, 2));
    }

    #[test]
    fn at_its_own_pace_a_worker_applies_at_once() {
        let mut switch = PlanSwitch::new(NodeId::worker(0));
        switch.offer(plan(1, 1, 32));
        assert!(switch.apply_now() && !switch.apply_now());
        assert_eq!(switch.batch_size(), 32);
    }
}
