//! [`Policy`]: looks at the state of a job and decides what to do about stragglers.
//!
//! A policy is a pure function of its own state and the view; it cannot break an invariant, because the
//! [`Dispatcher`](crate::Dispatcher) refuses a decision that would. To write one: implement [`Policy`], hand
//! it to the dispatcher, and run the suite in `testing` (feature `testing`) over it. To make `--policy`
//! accept its name, add it to the [`REGISTRY`]. [`Composed`] joins several policies into one.

use std::collections::BTreeMap;
use std::fmt;

use antdt_core::{
    ActionOutcome, Capabilities, ClusterView, Forecast, Holder, JobTime, NodeActionKind, NodeId, NodeView,
    PaceEstimate, Reason,
};

use crate::action::{self, ActionValues};
use crate::apportion::{ApportionError, Share, apportion, apportion_evenly};
use crate::budget::RestartBudget;

pub mod backup_workers;
mod class_speeds;
pub mod composed;
pub mod dedicated;
pub mod exclude_host;
pub mod from_fn;
pub mod lb_bsp;
pub mod lr;
pub mod non_dedicated;
pub mod none;
mod outage;
pub mod predictive;
pub mod registry;
mod server_load;

pub use backup_workers::{BackupWorkers, BackupWorkersConfig};
pub use composed::{Composed, build};
pub use dedicated::{Dedicated, DedicatedConfig};
pub use exclude_host::ExcludeSlowHosts;
pub use from_fn::FromFn;
pub use lb_bsp::{LbBsp, LbBspConfig};
pub use lr::FollowBatch;
pub use non_dedicated::{NonDedicated, NonDedicatedConfig};
pub use none::Unmanaged;
pub use predictive::Predictive;
pub use registry::{DEFAULT, Entry, REGISTRY};

/// A policy's proposal of an action on one incarnation of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedAction {
    /// Incarnation of the node that the action is for.
    pub target: Holder,
    /// Kind of the action.
    pub kind: NodeActionKind,
    /// Reason for which the policy proposes the action.
    pub reason: Reason,
}

/// What a policy decides, and why. A decision to do nothing has only reasons.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// New batch sizes for all live workers.
    #[doc(alias = "ADJUST_BS")]
    pub batch_sizes: Option<BTreeMap<NodeId, u32>>,
    /// Number of micro-batches in which each worker computes its new batch; a worker that is not in the map
    /// computes its batch at once. Allowed only together with `batch_sizes`, and only in modes whose batch
    /// sizes add up to the global batch.
    #[doc(alias = "gradient accumulation")]
    pub accumulation: BTreeMap<NodeId, u32>,
    /// Steps that each worker takes between two averages; only in a sync mode that [averages
    /// models](antdt_core::LocalSteps::Several). `None` keeps the number in force. If `batch_sizes` is
    /// `None`, the batch sizes in force stay.
    pub local_steps: Option<u32>,
    /// Workers that a step need not wait for; only in a sync mode that [takes
    /// backups](antdt_core::Capabilities::takes_backups), and fewer than there are workers. `None` keeps the
    /// number in force. If `batch_sizes` is `None`, the batch sizes in force stay.
    #[doc(alias = "BACKUP_WORKERS")]
    pub backups: Option<u32>,
    /// Values of other actions, by the action's name in the [registry](crate::action::REGISTRY). An action
    /// that is not named keeps its value. If `batch_sizes` is `None`, the batch sizes in force stay.
    pub actions: ActionValues,
    /// Effect on the step time that the policy expects of the new batch sizes. The dispatcher compares it
    /// with the steps that follow, and tells the policy; `None` if the policy expects nothing in particular.
    pub forecast: Option<Forecast>,
    /// Actions on single nodes, or for their sake. They change the membership or stop the training, so the dispatcher drops batch
    /// sizes that were decided in the same tick.
    pub node_actions: Vec<ProposedAction>,
    /// Reasons for which the batch sizes change, or for which nothing is done.
    pub reasons: Vec<Reason>,
}

impl Decision {
    /// Returns the decision to do nothing, with its reason.
    #[doc(alias = "NONE")]
    pub fn nothing(reason: Reason) -> Self {
        Self { reasons: vec![reason], ..Self::default() }
    }

    /// Returns whether the decision asks for anything to be done.
    pub fn acts(&self) -> bool {
        self.plans() || !self.node_actions.is_empty()
    }

    /// Returns whether the decision asks for a new plan.
    pub fn plans(&self) -> bool {
        self.batch_sizes.is_some()
            || self.local_steps.is_some()
            || self.backups.is_some()
            || !self.actions.is_empty()
    }
}

/// A live worker that a new plan gives a batch size to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seat {
    /// Id of the worker.
    pub id: NodeId,
    /// Smallest batch, or micro-batch, that the worker accepts, in samples.
    pub batch_size_min: u32,
    /// Largest batch, or micro-batch, that the worker accepts, in samples.
    pub batch_size_max: u32,
    /// Estimated pace of the worker; `None` if too little is known.
    pub estimate: Option<PaceEstimate>,
}

impl From<&NodeView> for Seat {
    fn from(view: &NodeView) -> Self {
        Self {
            id: view.id,
            batch_size_min: view.batch_size_min,
            batch_size_max: view.batch_size_max,
            estimate: view.estimate,
        }
    }
}

/// The global batch, divided among the workers of a new membership.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Split {
    /// Number of samples for each worker.
    pub batch_sizes: BTreeMap<NodeId, u32>,
    /// Number of micro-batches in which each worker computes its batch; a worker that is not in the map
    /// computes its batch at once.
    pub accumulation: BTreeMap<NodeId, u32>,
}

impl From<BTreeMap<NodeId, u32>> for Split {
    /// Every worker computes its batch at once.
    fn from(batch_sizes: BTreeMap<NodeId, u32>) -> Self {
        Self { batch_sizes, accumulation: BTreeMap::new() }
    }
}

/// Decides what a job does about its stragglers.
#[doc(alias = "solution")]
pub trait Policy: fmt::Debug + Send {
    /// Returns the policy's name on the command line and in reports.
    fn name(&self) -> &str;

    /// Returns the names of the [actions](crate::action) that the policy decides on; all actions by default.
    /// Of several policies that are [joined](Composed), only the last one that names an action decides on it.
    fn actions(&self) -> Vec<&'static str> {
        action::REGISTRY.names()
    }

    /// Returns why the policy does nothing in any job of this sync mode, in words; `None` if it may act. `antdt run` warns a user who
    /// chose such a policy.
    fn idle_in(&self, _mode: Capabilities) -> Option<String> {
        None
    }

    /// Decides what to do now. The dispatcher calls it once per control tick, while no plan is in flight and
    /// the membership is settled.
    ///
    /// The policy must be total (every view gets a decision), deterministic and indifferent to the order of
    /// nodes in the view. `budget` says which nodes may be restarted.
    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision;

    /// Divides `total` samples among the workers of a new membership; evenly by default.
    ///
    /// # Errors
    /// If the workers' bounds allow no division.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        split_by(None, total, seats)
    }

    /// Reports the outcome of a plan or an action to the policy.
    fn on_outcome(&mut self, _now: JobTime, _outcome: &ActionOutcome) {}

    /// Returns the policy's settings as texts by name, from which the [registry] builds it again; empty if it
    /// has none.
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Returns a copy of the policy in the same state.
    fn clone_box(&self) -> Box<dyn Policy>;
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Splits by these speeds, or evenly where they are not known.
pub(crate) fn split_by(
    shares: Option<&[Share]>,
    total: u32,
    seats: &[Seat],
) -> Result<Split, ApportionError> {
    match shares {
        Some(shares) => apportion(total, 1, shares).map(|solution| solution.batch_sizes.into()),
        None => {
            let bounds = seats.iter().map(|seat| (seat.id, seat.batch_size_min, seat.batch_size_max));
            apportion_evenly(total, bounds).map(Split::from)
        }
    }
}

/// A ratio in whole percent, for a reason.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
pub(crate) fn percent(ratio: f64) -> u32 {
    (ratio * 100.0).round() as u32
}
