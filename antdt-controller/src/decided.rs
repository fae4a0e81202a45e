//! [`DecisionRecord`]: one entry of the log of decisions.

use std::sync::Arc;

use antdt_core::{ActionId, Holder, JobTime, PlanVersion, Reason};

/// Outcome of a policy's decision, as the log of decisions records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decided {
    /// The policy took no action.
    Nothing,
    /// Nothing was done, because the policy's decision would break the job.
    Refused,
    /// A plan of this version was published; the text is the name of the first [action](crate::action) of the registry that
    /// the plan carries out.
    Plan(PlanVersion, &'static str),
    /// An action on this incarnation was ordered; the text is the action's name.
    Node(ActionId, Holder, &'static str),
    /// In a dry run: a plan would have been published; the text is the dry-run name of the first action that
    /// it would carry out.
    WouldPlan(&'static str),
    /// In a dry run: an action on this incarnation would have been ordered; the text is the action's dry-run name.
    WouldNode(Holder, &'static str),
}

/// One entry of the log of decisions: what was decided, when, by which policy, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionRecord {
    /// Time at which the policy decided.
    pub at: JobTime,
    /// Name of the policy.
    pub policy: Arc<str>,
    /// Outcome of the decision.
    pub decided: Decided,
    /// Reasons for the decision.
    pub reasons: Vec<Reason>,
}

impl DecisionRecord {
    /// Returns the name under which reports show the decision: that of its action.
    pub fn kind(&self) -> &'static str {
        match self.decided {
            Decided::Nothing => "NONE",
            Decided::Refused => "REFUSED",
            Decided::Plan(_, action)
            | Decided::WouldPlan(action)
            | Decided::Node(_, _, action)
            | Decided::WouldNode(_, action) => action,
        }
    }

    /// Returns the incarnation that an action on a node concerns; `None` for every other decision.
    pub const fn target(&self) -> Option<Holder> {
        match self.decided {
            Decided::Nothing | Decided::Refused | Decided::Plan(..) | Decided::WouldPlan(_) => None,
            Decided::Node(_, holder, _) | Decided::WouldNode(holder, _) => Some(holder),
        }
    }

    /// Returns the reasons in one line.
    pub fn reason(&self) -> String {
        let texts: Vec<String> = self.reasons.iter().map(ToString::to_string).collect();
        texts.join("; ")
    }
}
