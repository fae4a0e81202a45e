//! The invariants of a policy and of the dispatcher around it.

use std::fmt;

antdt_core::promises! {
    /// One invariant of a policy, or of the dispatcher around it. `Display` gives its name.
    pub enum Invariant {
        /// Every tick gets a decision, and a decision to do nothing has a reason.
        Total = "total",
        /// The dispatcher never has to refuse a decision of the policy.
        Valid = "valid",
        /// Equal histories give equal decisions.
        Deterministic = "deterministic",
        /// The order of the nodes in the view does not change a decision.
        OrderIndifferent = "order_indifferent",
        /// The batch sizes of a plan add up to the global batch in synchronous training.
        Sum = "sum",
        /// A plan names exactly the live workers, each with a batch size that it accepts.
        Bounds = "bounds",
        /// At most one plan is in flight, and no version is used twice.
        OneInFlight = "one_in_flight",
        /// A plan is for the current membership, and a new membership gets a plan at once.
        Membership = "membership",
        /// A node action hits the running incarnation of its node, and no other.
        OtherLife = "other_life",
        /// Restarts keep to the budget, and each node has at most one restart in progress.
        Budget = "budget",
        /// The policy never restarts the chief unless the settings allow it, and never the only worker that has
        /// the model.
        Chief = "chief",
    }

    /// A set of [`Invariant`]s to check against histories.
    ///
    /// ```
    /// use antdt_controller::testing::{Invariant, Invariants};
    ///
    /// let some = Invariants::all().without(Invariant::OrderIndifferent);
    /// assert!(some.contains(Invariant::Sum) && !some.contains(Invariant::OrderIndifferent));
    /// ```
    pub struct Invariants;
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
