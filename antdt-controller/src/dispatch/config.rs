//! [`DispatcherConfig`]: the settings of a dispatcher.

use std::time::Duration;

use antdt_core::{Capabilities, PlanVersion};

use crate::budget::BudgetConfig;

/// Settings of a [`Dispatcher`](super::Dispatcher).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatcherConfig {
    /// Requirements of the sync mode on plans.
    pub mode: Capabilities,
    /// Samples per synchronous step; in asynchronous training, samples of one batch of all workers together.
    pub global_batch_size: u32,
    /// Number of workers that the job was started with. In asynchronous training a worker's batch is its
    /// share among these, however many are alive: the loss of a peer does not change the size of a worker's
    /// batches.
    pub workers: u32,
    /// Version of the first plan. A restarted master continues above the last version it published.
    pub first_version: PlanVersion,
    /// Time after which a plan that the policy asked for is withdrawn if not all workers have applied it; at
    /// least ten steps.
    pub plan_expiry: Duration,
    /// Limits on restarts of stragglers.
    pub budget: BudgetConfig,
    /// Whether decisions of the policy are only logged. After a change of the membership, the global batch is
    /// then shared out evenly, as without a policy.
    pub dry_run: bool,
}

impl DispatcherConfig {
    /// Returns the default settings for a job.
    pub fn new(mode: Capabilities, global_batch_size: u32, workers: u32) -> Self {
        Self {
            mode,
            global_batch_size,
            workers,
            first_version: PlanVersion(1),
            plan_expiry: Duration::from_secs(30),
            budget: BudgetConfig::default(),
            dry_run: false,
        }
    }
}
