//! No policy can break an invariant: a decision that would is refused whole, and says why. Each [action](crate::action) checks what is asked of
//! it.

use antdt_core::{Holder, InvalidValue, LocalSteps, NodeId};

pub use crate::action::validate;
use crate::budget::BudgetRefusal;

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
    /// No action has this name.
    #[error("there is no action `{name}`")]
    UnknownAction {
        /// Name in the decision.
        name: String,
    },
    /// An action refuses its value.
    #[error(transparent)]
    Value(#[from] InvalidValue),
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

#[cfg(test)]
mod tests;
