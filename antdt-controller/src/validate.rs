//! No policy can break an invariant: a decision that would is refused whole, and says why.

use std::collections::BTreeSet;

use antdt_core::{ClusterView, Holder, JobTime, LocalSteps, NodeId, NodeView, Role};

use crate::budget::{BudgetRefusal, RestartBudget};
use crate::policy::Decision;

/// Reason why the dispatcher refuses a decision of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Batch sizes name a node that is not a live worker.
    #[error("batch size for {node}, which is not a live worker")]
    NotAWorker {
        /// The node.
        node: NodeId,
    },
    /// The batch sizes leave a live worker out.
    #[error("no batch size for {node}, a live worker")]
    WorkerLeftOut {
        /// The node.
        node: NodeId,
    },
    /// A batch size is one that the worker does not accept.
    #[error("batch size {samples} for {node}, which takes {min} to {max}")]
    OutOfBounds {
        /// The node.
        node: NodeId,
        /// Batch size in the decision.
        samples: u32,
        /// Smallest batch that the worker accepts.
        min: u32,
        /// Largest batch that the worker accepts.
        max: u32,
    },
    /// In synchronous training, the batch sizes do not add up to the global batch.
    #[error("the batch sizes add up to {sum}, the global batch is {global}")]
    WrongSum {
        /// Sum of the batch sizes.
        sum: u64,
        /// Samples in the global batch.
        global: u32,
    },
    /// Micro-batches where workers do not wait for each other, or without batch sizes.
    #[error(
        "{node} is to compute its batch in {count} micro-batches; that takes new batch sizes, in a sync mode whose workers take each step together"
    )]
    Accumulation {
        /// The node.
        node: NodeId,
        /// Number of micro-batches in the decision.
        count: u32,
    },
    /// Micro-batches that the worker does not accept.
    #[error("{samples} samples in {count} micro-batches for {node}, each of which takes {min} to {max}")]
    MicroBatches {
        /// The node.
        node: NodeId,
        /// Batch size in the decision.
        samples: u32,
        /// Number of micro-batches in the decision.
        count: u32,
        /// Smallest micro-batch that the worker accepts.
        min: u32,
        /// Largest micro-batch that the worker accepts.
        max: u32,
    },
    /// Steps between averages that the sync mode cannot take.
    #[error("{steps} steps between averages; this sync mode takes {}", taken(*.mode))]
    LocalSteps {
        /// Number of local steps in the decision.
        steps: u32,
        /// Steps between averages that the mode allows.
        mode: LocalSteps,
    },
    /// Backups where a step cannot be committed without all workers.
    #[error(
        "a step is to wait for all but {backups} workers; that takes a sync mode with servers whose workers take each step together"
    )]
    Backups {
        /// The backups asked for.
        backups: u32,
    },
    /// As many backups as there are workers, or more.
    #[error("a step is to wait for all but {backups} of {workers} workers; it needs at least one")]
    TooManyBackups {
        /// The backups asked for.
        backups: u32,
        /// Live workers.
        workers: usize,
    },
    /// The target of a node action is not a running node.
    #[error("{target} is not running")]
    NotRunning {
        /// Life that the action is for.
        target: Holder,
    },
    /// The target of a node action is an earlier or later life than the one that runs.
    #[error("{target} is not the life that runs, which is {running}")]
    OtherLife {
        /// Life that the action is for.
        target: Holder,
        /// Life of the node that runs.
        running: Holder,
    },
    /// The action is for a server, which cannot be restarted.
    #[error("{node} is a server; its partition of the parameters would be lost")]
    Server {
        /// The node.
        node: NodeId,
    },
    /// The chief may not be restarted.
    #[error("{node} is the chief; restarting it needs the user's word")]
    Chief {
        /// The node.
        node: NodeId,
    },
    /// Where models live in the workers, no other worker has the model. A replacement that has reported no batch does
    /// not have it yet.
    #[error("nobody but {node} has the model, which would be lost with it")]
    OnlyWorker {
        /// The node.
        node: NodeId,
    },
    /// Two actions are for the same node.
    #[error("two actions on {node}")]
    Twice {
        /// The node.
        node: NodeId,
    },
    /// More restarts at once than allowed.
    #[error("{asked} restarts, {free} more are allowed at once")]
    TooManyAtOnce {
        /// Number of restarts in the decision.
        asked: usize,
        /// Number of restarts that the budget allows now.
        free: usize,
    },
    /// The restart budget does not allow an action.
    #[error(transparent)]
    Budget(#[from] BudgetRefusal),
}

const fn taken(mode: LocalSteps) -> &'static str {
    match mode {
        LocalSteps::One => "one step at a time",
        LocalSteps::Several => "at least 1",
    }
}

/// Checks a decision against the view it was made from.
///
/// # Errors
/// The first thing that is wrong.
pub fn validate(
    now: JobTime,
    decision: &Decision,
    view: &ClusterView,
    budget: &RestartBudget,
) -> Result<(), Refusal> {
    let live: Vec<&NodeView> = view.live_workers().collect();
    if let Some(sizes) = &decision.batch_sizes {
        let ids: BTreeSet<NodeId> = live.iter().map(|worker| worker.id).collect();
        if let Some(node) = sizes.keys().find(|node| !ids.contains(node)) {
            return Err(Refusal::NotAWorker { node: *node });
        }
        for worker in &live {
            let node = worker.id;
            let samples = *sizes.get(&node).ok_or(Refusal::WorkerLeftOut { node })?;
            let (min, max) = (worker.batch_size_min, worker.batch_size_max);
            let count = decision.accumulation.get(&node).copied().unwrap_or(1);
            if count == 1 && (samples < min || samples > max) {
                return Err(Refusal::OutOfBounds { node, samples, min, max });
            }
            // They differ by at most one sample: the smallest is rounded down, the largest up.
            if count == 0 || samples / count < min || samples.div_ceil(count) > max {
                return Err(Refusal::MicroBatches { node, samples, count, min, max });
            }
        }
        let sum: u64 = sizes.values().map(|samples| u64::from(*samples)).sum();
        if view.mode.sums_to_global_batch() && sum != u64::from(view.global_batch_size) {
            return Err(Refusal::WrongSum { sum, global: view.global_batch_size });
        }
    }

    let may_accumulate = decision.batch_sizes.is_some() && view.mode.sums_to_global_batch();
    for (node, count) in &decision.accumulation {
        if !may_accumulate && *count != 1 {
            return Err(Refusal::Accumulation { node: *node, count: *count });
        }
        if !live.iter().any(|worker| worker.id == *node) {
            return Err(Refusal::NotAWorker { node: *node });
        }
    }

    if let Some(steps) = decision.local_steps
        && (steps == 0 || view.mode.local_steps == LocalSteps::One)
    {
        return Err(Refusal::LocalSteps { steps, mode: view.mode.local_steps });
    }

    if let Some(backups) = decision.backups {
        if !view.mode.takes_backups() {
            return Err(Refusal::Backups { backups });
        }
        if backups as usize >= live.len().max(1) {
            return Err(Refusal::TooManyBackups { backups, workers: live.len() });
        }
    }

    let mut targets = BTreeSet::new();
    for action in &decision.node_actions {
        let target = action.target;
        let node = target.node;
        if !targets.insert(node) {
            return Err(Refusal::Twice { node });
        }
        if node.role == Role::Server {
            return Err(Refusal::Server { node });
        }
        let worker = live.iter().find(|worker| worker.id == node).ok_or(Refusal::NotRunning { target })?;
        if worker.incarnation != target.incarnation {
            return Err(Refusal::OtherLife { target, running: Holder::new(node, worker.incarnation) });
        }
        if worker.chief && !budget.config().chief_allowed {
            return Err(Refusal::Chief { node });
        }
        if !view.has_model_without(node) {
            return Err(Refusal::OnlyWorker { node });
        }
        budget.allows(now, node, live.len())?;
    }
    let (asked, free) = (targets.len(), budget.room(now, live.len()));
    if asked > free {
        return Err(Refusal::TooManyAtOnce { asked, free });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
