//! The policy `lr`, which makes the learning rate follow the batch sizes by `ADJUST_LR`.

use std::collections::BTreeMap;

use antdt_core::registry::SettingSet;
use antdt_core::{Capabilities, ClusterView, JobTime, Reason};

use super::{Decision, Policy};
use crate::action::ValueAction;
use crate::action::adjust_lr::{AdjustLr, RateRule};
use crate::budget::RestartBudget;

antdt_core::settings! {
    /// The policy that asks for one [`RateRule`], in the first plan that it can. Joined with a policy that
    /// changes batch sizes, it makes the learning rate follow them.
    #[derive(Debug, Clone, Copy)]
    pub struct FollowBatch {
        rule: RateRule = RateRule::Linear, "how the rate follows a worker's batch: linear, sqrt or fixed=SHARE",
            &format!("one of {}", RateRule::USAGES.join(", "));
    }
}

impl FollowBatch {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "lr";
}

impl Policy for FollowBatch {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![AdjustLr::NAME]
    }

    fn idle_in(&self, mode: Capabilities) -> Option<String> {
        self.rule.suits(mode).err().map(|unfit| unfit.to_string())
    }

    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        let rule = self.rule.to_string();
        if let Some(why) = self.idle_in(view.mode) {
            return Decision::nothing(Reason::Other(why));
        }
        if AdjustLr::in_force(&view.actions, None) == Some(&*rule) {
            return Decision::nothing(Reason::Balanced);
        }
        let reason =
            Reason::Other(format!("the learning rate follows the batch size of each worker: {rule}"));
        let mut decision = Decision { reasons: vec![reason], ..Decision::default() };
        decision.ask::<AdjustLr>(&self.rule);
        decision
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.values()
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::quiet_view;

    #[test]
    fn the_rule_is_asked_for_once_and_not_where_it_means_nothing() {
        let mut policy = FollowBatch::default();
        let mut decide = |view: &ClusterView| policy.decide(JobTime::ZERO, view, &RestartBudget::default());
        let mut view = quiet_view(Capabilities::SERVERS_AT_OWN_PACE, &[1000; 4]);
        let asked = decide(&view).actions;
        assert_eq!(asked, [("ADJUST_LR".to_owned(), "linear".to_owned())].into_iter().collect());
        view.actions = Arc::new(asked);
        assert!(!decide(&view).acts());
        let idle = decide(&quiet_view(Capabilities::SERVERS_IN_STEP, &[1000; 4]));
        assert!(!idle.acts() && idle.reasons[0].to_string().contains("weigh the same"), "{idle:?}");
    }
}
