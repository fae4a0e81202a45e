//! [`Refusal`]: the reasons for which the dispatcher refuses a policy's decision as a whole, so that no
//! policy can break an invariant. Each [action](crate::action) checks what is asked of it.

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
        /// Node that the batch sizes name.
        node: NodeId,
    },
    /// The batch sizes leave a live worker out.
    #[error("no batch size for {node}, a live worker")]
    WorkerLeftOut {
        /// Live worker that has no batch size in the decision.
        node: NodeId,
    },
    /// A batch size is outside of the bounds of its worker.
    #[error("batch size {samples} for {node}, which takes {min} to {max}")]
    OutOfBounds {
        /// Worker whose batch size is refused.
        node: NodeId,
        /// Batch size in the decision, in samples.
        samples: u32,
        /// Smallest batch that the worker accepts, in samples.
        min: u32,
        /// Largest batch that the worker accepts, in samples.
        max: u32,
    },
    /// In synchronous training, the batch sizes do not add up to the global batch.
    #[error("the batch sizes add up to {sum}, the global batch is {global}")]
    WrongSum {
        /// Sum of the batch sizes in the decision, in samples.
        sum: u64,
        /// Samples in the global batch.
        global: u32,
    },
    /// The decision asks for micro-batches without batch sizes, or in a mode whose batch sizes do not add up
    /// to the global batch.
    #[error(
        "{node} is to compute its batch in {count} micro-batches; that takes new batch sizes, in a sync mode whose workers take each step together"
    )]
    Accumulation {
        /// Worker that was to compute in micro-batches.
        node: NodeId,
        /// Number of micro-batches in the decision.
        count: u32,
    },
    /// The worker does not accept micro-batches of this size.
    #[error("{samples} samples in {count} micro-batches for {node}, each of which takes {min} to {max}")]
    MicroBatches {
        /// Worker whose micro-batches are refused.
        node: NodeId,
        /// Batch size in the decision, in samples.
        samples: u32,
        /// Number of micro-batches in the decision.
        count: u32,
        /// Smallest micro-batch that the worker accepts, in samples.
        min: u32,
        /// Largest micro-batch that the worker accepts, in samples.
        max: u32,
    },
    /// The sync mode does not allow this number of steps between averages.
    #[error("{steps} steps between averages; this sync mode takes {}", taken(*.mode))]
    LocalSteps {
        /// Number of steps between averages in the decision.
        steps: u32,
        /// Numbers of steps between averages that the mode allows.
        mode: LocalSteps,
    },
    /// The decision asks for backup workers in a mode whose steps cannot be committed without all workers.
    #[error(
        "a step is to wait for all but {backups} workers; that takes a sync mode whose workers add up their gradients in each step"
    )]
    Backups {
        /// Number of backup workers in the decision.
        backups: u32,
    },
    /// The decision asks for as many backup workers as there are live workers, or more.
    #[error("a step is to wait for all but {backups} of {workers} workers; it needs at least one")]
    TooManyBackups {
        /// Number of backup workers in the decision.
        backups: u32,
        /// Number of live workers.
        workers: usize,
    },
    /// The target of a node action is not a running node.
    #[error("{target} is not running")]
    NotRunning {
        /// Incarnation that the action is for.
        target: Holder,
    },
    /// The target of a node action is another incarnation of the node than the one that runs.
    #[error("{target} is not the life that runs, which is {running}")]
    OtherLife {
        /// Incarnation that the action is for.
        target: Holder,
        /// Incarnation of the node that runs.
        running: Holder,
    },
    /// The decision asks for a value of the action for one worker, and the action takes one for all, or the other way round.
    #[error("{name} is asked for {}; it takes a value for {expected}", target.map_or("all workers".to_owned(), |target| target.to_string()))]
    Reach {
        /// Name of the action.
        name: &'static str,
        /// Workers that a value of the action is for, in words.
        expected: &'static str,
        /// Worker that the decision names; `None` for all workers.
        target: Option<Holder>,
    },
    /// The node action is for a parameter server of a job that takes no checkpoints: its partition of the
    /// parameters would be lost.
    #[error("{node} is a server of a job without checkpoints; its partition of the parameters would be lost")]
    Server {
        /// Server that the action is for.
        node: NodeId,
    },
    /// The node action is for the chief, which the settings do not allow to be restarted.
    #[error("{node} is the chief; restarting it needs the user's word")]
    Chief {
        /// Node id of the chief.
        node: NodeId,
    },
    /// The node action would restart the only worker that has the model. A replacement that has reported no
    /// batch does not count as having it.
    #[error("nobody but {node} has the model, which would be lost with it")]
    OnlyWorker {
        /// The only worker that has the model.
        node: NodeId,
    },
    /// Two node actions of the decision are for the same node.
    #[error("two actions on {node}")]
    Twice {
        /// Node that both actions are for.
        node: NodeId,
    },
    /// The decision asks for more restarts than the budget allows at a time.
    #[error("{asked} restarts, {free} more are allowed at once")]
    TooManyAtOnce {
        /// Number of restarts in the decision.
        asked: usize,
        /// Number of restarts that the budget allows now.
        free: usize,
    },
    /// The decision has a value for an action that no registry entry has.
    #[error("there is no action `{name}`")]
    UnknownAction {
        /// Name of the action in the decision.
        name: String,
    },
    /// An action refuses the value that the decision has for it.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// The restart budget does not allow a restart of the decision.
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
