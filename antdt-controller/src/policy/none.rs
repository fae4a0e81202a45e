//! The policy `none`, which takes no action: the baseline of all other policies.

use antdt_core::{ClusterView, JobTime, Reason};

use super::{Decision, Policy};
use crate::budget::RestartBudget;

/// The policy that takes no action. After a change of the membership the samples are shared out evenly.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unmanaged;

impl Unmanaged {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "none";
}

impl Policy for Unmanaged {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn decide(&mut self, _now: JobTime, _view: &ClusterView, _budget: &RestartBudget) -> Decision {
        Decision::nothing(Reason::Other("the policy is to do nothing".to_owned()))
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}
