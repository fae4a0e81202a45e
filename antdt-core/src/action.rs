//! What can be done about a node's pace, and why it was.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{ActionId, Holder, MembershipVersion, NodeId, PlanVersion};

/// A global action: everyone switches to it at one iteration, or nobody does.
#[doc(alias = "global action")]
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Plan {
    /// The newest version wins.
    pub version: PlanVersion,
    /// The set of nodes it was made for; it is void in any other.
    pub membership: MembershipVersion,
    /// Samples per batch of each live worker; they add up to the global batch size in synchronous modes.
    /// Shared by all copies of the plan: every node gets one.
    #[doc(alias = "ADJUST_BS")]
    pub batch_sizes: Arc<BTreeMap<NodeId, u32>>,
    /// Steps that each worker takes between two averages, at least 1, where the sync mode averages models; `None` leaves it
    /// to the mode's own setting.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub local_steps: Option<u32>,
}

impl Plan {
    /// A plan of batch sizes.
    pub fn new(
        version: PlanVersion,
        membership: MembershipVersion,
        batch_sizes: BTreeMap<NodeId, u32>,
    ) -> Self {
        Self { version, membership, batch_sizes: Arc::new(batch_sizes), local_steps: None }
    }

    /// The same plan with a number of steps between two averages.
    #[must_use]
    pub fn with_local_steps(mut self, steps: Option<u32>) -> Self {
        self.local_steps = steps;
        self
    }
}

/// Something done to one life of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAction {
    /// For idempotence: a repeated action is carried out once.
    pub id: ActionId,
    /// Keyed by incarnation: it can never hit the replacement.
    pub target: Holder,
    /// What is done.
    pub kind: NodeActionKind,
    /// Why.
    pub reason: Reason,
}

/// What is done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeActionKind {
    /// Drain, fence, stop and start it again.
    #[doc(alias = "KILL_RESTART")]
    KillRestart {
        /// How long it may take to finish its batch before it is killed.
        drain: Duration,
    },
}

impl NodeActionKind {
    /// As written in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::KillRestart { .. } => "KILL_RESTART",
        }
    }
}

/// Why something was done, or not done. Every decision carries one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing to gain.
    Balanced,
    /// Too little is known yet.
    NotEnoughData {
        /// Nodes with a verdict.
        known: usize,
        /// Nodes that need one.
        needed: usize,
    },
    /// A plan is on its way or the membership just changed.
    Unsettled,
    /// The gain would be below the least that is worth a change.
    GainTooSmall {
        /// Predicted gain, percent of the step time.
        percent: u32,
    },
    /// The last change is too recent.
    TooSoon,
    /// Batch sizes move from slow to fast nodes.
    Rebalance {
        /// The slowest node.
        slowest: NodeId,
        /// Its time per sample against its peers, in percent: 400 is four times slower.
        slowness_percent: u32,
        /// Predicted gain, percent of the step time.
        gain_percent: u32,
    },
    /// The membership changed, the batch sizes follow.
    MembershipChanged {
        /// The live workers.
        workers: usize,
    },
    /// A node was slow through the whole long window and a restart pays.
    PersistentStraggler {
        /// The node.
        node: NodeId,
        /// Its time per sample against its peers, in percent.
        slowness_percent: u32,
    },
    /// A restart would cost more than it gains.
    RestartNotWorthIt {
        /// The node.
        node: NodeId,
        /// The job must have this long to go for a restart to pay.
        break_even: Duration,
    },
    /// The budget of restarts forbids it.
    BudgetExhausted {
        /// The node.
        node: NodeId,
    },
    /// The node was restarted for slowness before and came back as slow.
    RestartDidNotHelp {
        /// The node.
        node: NodeId,
    },
    /// A process ended by itself and is started again.
    NodeLost {
        /// The node.
        node: NodeId,
        /// How it ended.
        exit: String,
    },
    /// The policy asked for something that breaks an invariant; the whole decision was refused.
    Refused {
        /// What was wrong.
        what: String,
    },
    /// A policy's own words.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balanced => f.write_str("balanced"),
            Self::NotEnoughData { known, needed } => write!(f, "pace known of {known} of {needed} nodes"),
            Self::Unsettled => f.write_str("a plan is pending or the membership just changed"),
            Self::GainTooSmall { percent } => write!(f, "predicted gain of {percent} % is too small"),
            Self::TooSoon => f.write_str("too soon after the last change"),
            Self::Rebalance { slowest, slowness_percent, gain_percent } => {
                write!(
                    f,
                    "{slowest} takes {:.2}x its peers' time per sample; ",
                    f64::from(*slowness_percent) / 100.0
                )?;
                write!(f, "new batch sizes cut the step time by {gain_percent} %")
            }
            Self::MembershipChanged { workers: 1 } => {
                f.write_str("the only live worker has the global batch to itself")
            }
            Self::MembershipChanged { workers } => write!(f, "{workers} live workers share the global batch"),
            Self::PersistentStraggler { node, slowness_percent } => {
                let ratio = f64::from(*slowness_percent) / 100.0;
                write!(f, "{node} took {ratio:.2}x its peers' time per sample through the long window")
            }
            Self::RestartNotWorthIt { node, break_even } => {
                write!(
                    f,
                    "restarting {node} pays only with more than {:.0} s to go",
                    break_even.as_secs_f64()
                )
            }
            Self::BudgetExhausted { node } => write!(f, "{node} may not be restarted again"),
            Self::RestartDidNotHelp { node } => write!(f, "{node} came back as slow as it was"),
            Self::NodeLost { node, exit } => write!(f, "{node} ended: {exit}"),
            Self::Refused { what } => write!(f, "refused: {what}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// What became of a plan or an action.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ActionOutcome {
    /// Everyone applied the plan.
    PlanApplied {
        /// Which.
        version: PlanVersion,
    },
    /// The plan expired or its membership ended before everyone could apply it; nobody did.
    PlanVoid {
        /// Which.
        version: PlanVersion,
    },
    /// The node came back.
    Restarted {
        /// The action.
        id: ActionId,
        /// The new life.
        holder: Holder,
        /// From the decision to the registration of the new life.
        took: Duration,
    },
    /// The node could not be brought back.
    RestartFailed {
        /// The action.
        id: ActionId,
        /// Why.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_shares_with_nobody() {
        let text = |workers| Reason::MembershipChanged { workers }.to_string();
        assert_eq!(text(1), "the only live worker has the global batch to itself");
        assert_eq!(text(2), "2 live workers share the global batch");
    }
}
