//! What to do: a [`Policy`] looks at the job and decides.
//!
//! A policy is a pure function of its own state and the view; it cannot break an invariant, because the
//! [`Dispatcher`](crate::Dispatcher) refuses a decision that would. To write one: implement [`Policy`], hand it to
//! the dispatcher, and run the suite in `testing` (feature `testing`) over it. To name it on the command line,
//! [register] it.
//!
//! [register]: register()

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use antdt_core::{ActionOutcome, ClusterView, Holder, JobTime, NodeActionKind, NodeId, NodeView, Reason};

use crate::apportion::{ApportionError, apportion_evenly};
use crate::budget::RestartBudget;

pub mod non_dedicated;
pub mod none;
pub mod registry;

pub use non_dedicated::{NonDedicated, NonDedicatedConfig};
pub use none::Unmanaged;
pub use registry::{
    Entry, PolicyError, Setting, Settings, UnknownPolicy, build, by_name, entries, names, register,
};

/// Something a policy wants done to one life of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedAction {
    /// Which life of which node.
    pub target: Holder,
    /// What.
    pub kind: NodeActionKind,
    /// Why.
    pub reason: Reason,
}

/// What a policy wants done, and why. Empty but for reasons when nothing is to be done.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// New batch sizes for all live workers.
    #[doc(alias = "ADJUST_BS")]
    pub batch_sizes: Option<BTreeMap<NodeId, u32>>,
    /// Steps that each worker takes between two averages; only in a sync mode that
    /// [averages models](antdt_core::LocalSteps::Several). `None` leaves it as it is. Without batch sizes, those in force
    /// stay.
    pub local_steps: Option<u32>,
    /// Node actions. They change the membership, so batch sizes decided in the same tick are dropped.
    pub node_actions: Vec<ProposedAction>,
    /// Why the batch sizes change, or why nothing is done.
    pub reasons: Vec<Reason>,
}

impl Decision {
    /// Nothing is done.
    #[doc(alias = "NONE")]
    pub fn nothing(reason: Reason) -> Self {
        Self { reasons: vec![reason], ..Self::default() }
    }
}

/// A worker that a new plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Which worker.
    pub id: NodeId,
    /// Smallest batch it accepts.
    pub batch_size_min: u32,
    /// Largest batch it accepts.
    pub batch_size_max: u32,
    /// Time per sample, if it is known.
    pub sample_time: Option<Duration>,
}

impl From<&NodeView> for Seat {
    /// Takes the short window's time per sample, or else the long one's.
    fn from(view: &NodeView) -> Self {
        Self {
            id: view.id,
            batch_size_min: view.batch_size_min,
            batch_size_max: view.batch_size_max,
            sample_time: view.sample_time_short.or(view.sample_time_long),
        }
    }
}

/// Decides what is done about stragglers.
#[doc(alias = "solution")]
pub trait Policy: fmt::Debug + Send {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What to do now. Called once per control tick, while no plan is on its way and the membership is settled.
    ///
    /// Must be total (every view gets a decision), deterministic and indifferent to the order of nodes in the view.
    /// `budget` says who may be restarted.
    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision;

    /// How to share `total` samples among the workers of a new membership. Evenly, unless a policy knows better.
    ///
    /// # Errors
    /// If the bounds do not allow it.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<BTreeMap<NodeId, u32>, ApportionError> {
        apportion_evenly(total, seats.iter().map(|seat| (seat.id, seat.batch_size_min, seat.batch_size_max)))
    }

    /// What became of a plan or an action.
    fn on_outcome(&mut self, _now: JobTime, _outcome: &ActionOutcome) {}

    /// Its settings as texts by name, from which the [registry] makes it again; empty if it has none.
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// A copy in the same state.
    fn clone_box(&self) -> Box<dyn Policy>;
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}
