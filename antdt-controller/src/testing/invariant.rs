//! The invariants of a policy and of the dispatcher around it.

use std::collections::BTreeSet;
use std::fmt;

/// One invariant of a policy, or of the dispatcher around it. `Display` gives its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// Every tick gets a decision, and a decision to do nothing has a reason.
    Total,
    /// The dispatcher never has to refuse a decision of the policy.
    Valid,
    /// Equal histories give equal decisions.
    Deterministic,
    /// The order of the nodes in the view does not change a decision.
    OrderIndifferent,
    /// The batch sizes of a plan add up to the global batch in synchronous training.
    Sum,
    /// A plan names exactly the live workers, each with a batch size that it accepts.
    Bounds,
    /// At most one plan is in flight, and no version is used twice.
    OneInFlight,
    /// A plan is for the current membership, and a new membership gets a plan at once.
    Membership,
    /// A node action hits the running incarnation of its node, and no other.
    OtherLife,
    /// Restarts keep to the budget, and each node has at most one restart in progress.
    Budget,
    /// The policy never restarts the chief unless the settings allow it, and never the only worker that has
    /// the model.
    Chief,
}

impl Invariant {
    /// All invariants, in order.
    pub const ALL: [Self; 11] = [
        Self::Total,
        Self::Valid,
        Self::Deterministic,
        Self::OrderIndifferent,
        Self::Sum,
        Self::Bounds,
        Self::OneInFlight,
        Self::Membership,
        Self::OtherLife,
        Self::Budget,
        Self::Chief,
    ];

    /// Returns the name of the invariant.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Valid => "valid",
            Self::Deterministic => "deterministic",
            Self::OrderIndifferent => "order_indifferent",
            Self::Sum => "sum",
            Self::Bounds => "bounds",
            Self::OneInFlight => "one_in_flight",
            Self::Membership => "membership",
            Self::OtherLife => "other_life",
            Self::Budget => "budget",
            Self::Chief => "chief",
        }
    }

    /// Returns the invariant as a sentence.
    pub const fn promise(self) -> &'static str {
        match self {
            Self::Total => "every tick gets a decision, and doing nothing has a reason",
            Self::Valid => "no decision of the policy has to be refused",
            Self::Deterministic => "equal histories give equal decisions",
            Self::OrderIndifferent => "the order of the nodes in the view does not matter",
            Self::Sum => "the batch sizes of a plan add up to the global batch in synchronous training",
            Self::Bounds => "a plan names exactly the live workers, each with a batch that it takes",
            Self::OneInFlight => "at most one plan is on its way, and no version is used twice",
            Self::Membership => "a plan is for the group that is, and a new group gets one at once",
            Self::OtherLife => "a node action hits the life that runs, and no other",
            Self::Budget => "restarts keep to the budget, and to one at a time for each node",
            Self::Chief => "the chief is not restarted unasked, nor the only worker that has the model",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of [`Invariant`]s to check against histories.
///
/// ```
/// use antdt_controller::testing::{Invariant, Invariants};
///
/// let some = Invariants::all().without(Invariant::OrderIndifferent);
/// assert!(some.contains(Invariant::Sum) && !some.contains(Invariant::OrderIndifferent));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invariants {
    of: BTreeSet<Invariant>,
}

impl Invariants {
    /// Returns the set of all invariants.
    pub fn all() -> Self {
        Self { of: Invariant::ALL.into() }
    }

    /// Returns the set of these invariants.
    pub fn only(of: impl IntoIterator<Item = Invariant>) -> Self {
        Self { of: of.into_iter().collect() }
    }

    /// Removes one invariant from the set.
    #[must_use]
    pub fn without(mut self, invariant: Invariant) -> Self {
        self.of.remove(&invariant);
        self
    }

    /// Returns whether the invariant is in the set.
    pub fn contains(&self, invariant: Invariant) -> bool {
        self.of.contains(&invariant)
    }
}
