//! A policy that is one function.

use antdt_core::{ClusterView, JobTime};

use super::{Decision, Policy};
use crate::budget::RestartBudget;

/// A policy without state or settings: its name, and the function that makes its decisions.
#[derive(Debug, Clone, Copy)]
pub struct FromFn(pub &'static str, pub fn(JobTime, &ClusterView, &RestartBudget) -> Decision);

impl Policy for FromFn {
    fn name(&self) -> &str {
        self.0
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        (self.1)(now, view, budget)
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}
