//! Plans and node actions, by which a policy changes a running job, and the reasons for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{ActionId, Holder, MembershipVersion, NodeId, PlanVersion};
use crate::weights::ServerWeights;

/// A versioned global action: the batch size of every worker, and how the workers take their steps. All workers switch to it at one iteration, or
/// none does.
#[doc(alias = "global action")]
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Plan {
    /// Version of the plan; nodes ignore a plan that is older than one they have.
    pub version: PlanVersion,
    /// Version of the set of nodes that the plan was made for; in any other set it is void.
    pub membership: MembershipVersion,
    /// Samples per batch of each live worker; in synchronous modes they add up to the global batch size.
    /// Shared by all copies of the plan, because every node gets one.
    #[doc(alias = "ADJUST_BS")]
    pub batch_sizes: Arc<BTreeMap<NodeId, u32>>,
    /// Number of micro-batches of each worker that computes its batch in more than one: see
    /// [`micro_batches`](Self::micro_batches). Shared by all copies, like the batch sizes.
    #[doc(alias = "gradient accumulation")]
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_empty"))]
    pub accumulation: Arc<BTreeMap<NodeId, u32>>,
    /// Number of steps that each worker takes between two averages, at least 1, where the sync mode averages
    /// models; `None` leaves it to the mode's own setting.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub local_steps: Option<u32>,
    /// Number of workers that a step need not wait for, where the sync mode
    /// [takes backups](crate::Capabilities::takes_backups); `None` leaves it to the mode's own setting.
    #[doc(alias = "BACKUP_WORKERS")]
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub backups: Option<u32>,
    /// Values of other actions, as texts by the action's name. Shared by all copies, like the batch sizes.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_empty"))]
    pub actions: Arc<BTreeMap<String, String>>,
}

#[cfg(feature = "serde")]
fn is_empty<K, V>(entries: &Arc<BTreeMap<K, V>>) -> bool {
    entries.is_empty()
}

impl Plan {
    /// Returns a plan of batch sizes.
    pub fn new(
        version: PlanVersion,
        membership: MembershipVersion,
        batch_sizes: BTreeMap<NodeId, u32>,
    ) -> Self {
        let batch_sizes = Arc::new(batch_sizes);
        Self {
            version,
            membership,
            batch_sizes,
            accumulation: Arc::default(),
            local_steps: None,
            backups: None,
            actions: Arc::default(),
        }
    }

    /// Returns the same plan, in which these workers compute their batches in this many micro-batches each.
    #[must_use]
    pub fn with_accumulation(mut self, mut counts: BTreeMap<NodeId, u32>) -> Self {
        counts.retain(|_, count| *count > 1);
        self.accumulation = Arc::new(counts);
        self
    }

    /// Returns the number of micro-batches in which a worker computes its batch, at least 1. Their sizes
    /// differ by at most one sample and add up to the worker's batch size; their gradients are added up, and
    /// the worker takes one step with the sum.
    pub fn micro_batches(&self, node: NodeId) -> u32 {
        self.accumulation.get(&node).map_or(1, |count| (*count).max(1))
    }

    /// Returns the same plan with another number of steps between two averages.
    #[must_use]
    pub fn with_local_steps(mut self, steps: Option<u32>) -> Self {
        self.local_steps = steps;
        self
    }

    /// Returns the same plan with another number of workers that a step need not wait for.
    #[must_use]
    pub fn with_backups(mut self, backups: Option<u32>) -> Self {
        self.backups = backups;
        self
    }

    /// Returns the same plan with these values for the actions that have no field of their own in a plan: the text of each value, by
    /// the action's name.
    #[must_use]
    pub fn with_actions(mut self, values: BTreeMap<String, String>) -> Self {
        self.actions = Arc::new(values);
        self
    }
}

/// An action on one incarnation of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAction {
    /// Id of the action, by which a repeated action is carried out only once.
    pub id: ActionId,
    /// Node and incarnation that the action is for; the action never hits a later incarnation.
    pub target: Holder,
    /// Kind of the action.
    pub kind: NodeActionKind,
    /// Reason for which the policy decided on the action.
    pub reason: Reason,
}

/// Kind of an action on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeActionKind {
    /// Drain, fence and stop the node, then start it again.
    #[doc(alias = "KILL_RESTART")]
    KillRestart {
        /// Time that the node has to finish its batch before it is killed.
        drain: Duration,
    },
    /// Divide the parameters among the servers by other weights, because the node, a server, is slow.
    Repartition {
        /// Weights of the servers from then on.
        weights: ServerWeights,
    },
}

impl NodeActionKind {
    /// Returns the name of the action in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::KillRestart { .. } => "KILL_RESTART",
            Self::Repartition { .. } => "REPARTITION",
        }
    }
}

/// Reason why an action was taken, or not taken. Every decision carries one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// No action would help: the batch sizes fit the nodes' speeds.
    Balanced,
    /// Too few nodes have a verdict of the monitor yet.
    NotEnoughData {
        /// Number of nodes with a verdict.
        known: usize,
        /// Number of nodes that must have a verdict.
        needed: usize,
    },
    /// A plan is in flight, or the membership just changed.
    Unsettled,
    /// The predicted gain is too small to be worth a change.
    GainTooSmall {
        /// Predicted gain in percent of the step time.
        percent: u32,
    },
    /// The last change is too recent for another one.
    TooSoon,
    /// Batch sizes move from slow to fast nodes, to shorten the step.
    Rebalance {
        /// Node with the largest time per sample.
        slowest: NodeId,
        /// Time per sample of that node divided by the median of its peers, in percent: 400 is four times
        /// slower.
        slowness_percent: u32,
        /// Predicted gain in percent of the step time.
        gain_percent: u32,
    },
    /// No node is slower than its peers any more, but the batch sizes still differ.
    AlikeAgain {
        /// Predicted gain in percent of the step time.
        gain_percent: u32,
    },
    /// The number of workers that a step need not wait for changes.
    Backups {
        /// New number of workers that a step need not wait for.
        backups: u32,
        /// Number of workers that a step need not wait for, before the change.
        before: u32,
        /// Predicted gain in percent of the time per trained sample.
        gain_percent: u32,
    },
    /// The membership changed, and the batch sizes follow.
    MembershipChanged {
        /// Number of live workers.
        workers: usize,
    },
    /// A node was slow through the whole long window and a restart pays.
    PersistentStraggler {
        /// Node that is slow.
        node: NodeId,
        /// Time per sample of the node divided by the median of its peers, in percent.
        slowness_percent: u32,
        /// Whether a restart has cured a node of this job before; otherwise this one is a try.
        has_cured: bool,
    },
    /// The parameters are divided among the servers by other weights, because a server is slow, or is slow no more.
    Repartition {
        /// Server that is slow, or was.
        node: NodeId,
        /// Time per byte of the server divided by the median of its peers, in percent.
        slowness_percent: u32,
        /// New share of the server of the parameters, in percent.
        share_percent: u32,
        /// Share before, in percent.
        before_percent: u32,
        /// Predicted gain in percent of the time that a step waits for servers.
        gain_percent: u32,
    },
    /// Other weights of the servers would cost more than they gain.
    RepartitionNotWorthIt {
        /// Server that is slow, or was.
        node: NodeId,
        /// Time that the job would still have to run for other weights to pay.
        break_even: Duration,
    },
    /// A restart would cost more than it gains.
    RestartNotWorthIt {
        /// Node that is slow.
        node: NodeId,
        /// Time that the job would still have to run for a restart to pay.
        break_even: Duration,
    },
    /// The budget of restarts does not allow to restart the node.
    BudgetExhausted {
        /// Slow node that may not be restarted.
        node: NodeId,
    },
    /// The node was restarted as a straggler before and came back as slow.
    RestartDidNotHelp {
        /// Node that is still slow after its restart.
        node: NodeId,
    },
    /// A process ended by itself and is started again.
    NodeLost {
        /// Node whose process ended.
        node: NodeId,
        /// Exit of the process, in words.
        exit: String,
    },
    /// The job is a dry run: the policy's decision is only logged.
    NotCarriedOut,
    /// The policy's decision breaks an invariant and was refused as a whole.
    Refused {
        /// Description of the broken invariant.
        what: String,
    },
    /// A reason in a policy's own words.
    Other(String),
}

impl Reason {
    /// Returns the node that the reason is about; `None` if it is about the job.
    pub const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Rebalance { slowest: node, .. }
            | Self::PersistentStraggler { node, .. }
            | Self::Repartition { node, .. }
            | Self::RepartitionNotWorthIt { node, .. }
            | Self::RestartNotWorthIt { node, .. }
            | Self::BudgetExhausted { node }
            | Self::RestartDidNotHelp { node }
            | Self::NodeLost { node, .. } => Some(*node),
            Self::Balanced
            | Self::NotEnoughData { .. }
            | Self::Unsettled
            | Self::GainTooSmall { .. }
            | Self::TooSoon
            | Self::AlikeAgain { .. }
            | Self::Backups { .. }
            | Self::MembershipChanged { .. }
            | Self::NotCarriedOut
            | Self::Refused { .. }
            | Self::Other(_) => None,
        }
    }
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
                write!(f, "new batch sizes are expected to cut the step time by {gain_percent} %")
            }
            Self::AlikeAgain { gain_percent } => {
                write!(
                    f,
                    "no worker is slower than its peers; new batch sizes are expected to cut the step time by {gain_percent} %"
                )
            }
            Self::Backups { backups, before, gain_percent } => write!(
                f,
                "a step waits for all but {backups} workers instead of all but {before}, which is expected to cut the time per trained sample by {gain_percent} %"
            ),
            Self::MembershipChanged { workers: 1 } => {
                f.write_str("the only live worker has the global batch to itself")
            }
            Self::MembershipChanged { workers } => write!(f, "{workers} live workers share the global batch"),
            Self::PersistentStraggler { node, slowness_percent, has_cured } => {
                let ratio = f64::from(*slowness_percent) / 100.0;
                write!(f, "{node} took {ratio:.2}x its peers' time per sample through the long window")?;
                if *has_cured {
                    Ok(())
                } else {
                    f.write_str("; a try: no restart has cured a node of this job yet")
                }
            }
            Self::Repartition { node, slowness_percent, share_percent, before_percent, gain_percent } => {
                let ratio = f64::from(*slowness_percent) / 100.0;
                write!(
                    f,
                    "{node} takes {ratio:.2}x its peers' time per byte; with {share_percent} % of the parameters instead of {before_percent} %, workers are expected to wait {gain_percent} % less for servers"
                )
            }
            Self::RepartitionNotWorthIt { node, break_even } => {
                write!(
                    f,
                    "another share of the parameters for {node} pays only with more than {:.0} s to go",
                    break_even.as_secs_f64()
                )
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
            Self::NotCarriedOut => f.write_str("not carried out (--dry-run)"),
            Self::Refused { what } => write!(f, "refused: {what}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Forecast of a synchronous step's duration with a plan and without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Forecast {
    /// Expected duration of a step without the plan.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub without: Duration,
    /// Expected duration of a step with the plan.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub with: Duration,
}

impl Forecast {
    /// Returns the promised reduction of the step time, as a share of the step without the plan, 0 to 1;
    /// below 0 if steps are expected to take longer.
    pub fn promised(&self) -> f64 {
        self.cut(self.with)
    }

    /// Returns the actual reduction of the step time if a step takes `time`, as a share of the forecast step
    /// without the plan.
    pub fn cut(&self, time: Duration) -> f64 {
        if self.without.is_zero() { 0.0 } else { 1.0 - time.as_secs_f64() / self.without.as_secs_f64() }
    }
}

/// Result of a plan or a restart, as it is reported to the policy.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ActionOutcome {
    /// All workers applied the plan.
    PlanApplied {
        /// Version of the plan.
        version: PlanVersion,
    },
    /// The plan expired, or its membership ended, before all workers could apply it; no worker applied it.
    PlanVoid {
        /// Version of the plan.
        version: PlanVersion,
    },
    /// A plan was in force for long enough to compare it with its forecast.
    Measured {
        /// Version of the plan.
        version: PlanVersion,
        /// Forecast that was made for the plan.
        forecast: Forecast,
        /// Measured median step time under the plan.
        step: Duration,
    },
    /// The node was restarted and has registered, by itself or with all servers.
    Restarted {
        /// Id of the action.
        id: ActionId,
        /// New incarnation of the node.
        holder: Holder,
        /// Time from the decision to the registration of the new incarnation.
        took: Duration,
    },
    /// The node could not be brought back, or the servers did not hand over.
    RestartFailed {
        /// Id of the action.
        id: ActionId,
        /// Description of the failure.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_alone_has_the_global_batch_to_itself() {
        let text = |workers| Reason::MembershipChanged { workers }.to_string();
        assert_eq!(text(1), "the only live worker has the global batch to itself");
        assert_eq!(text(2), "2 live workers share the global batch");
    }
}
