//! The action `REPARTITION`: the servers divide the parameters among themselves by other weights, so that a slow server has less to
//! serve.
//!
//! The servers hand their parameters over through a checkpoint that the job takes for it, as for the restart of a server. The master
//! carries that out, in a job that takes checkpoints. No step is undone, workers keep their processes, and each parameter keeps its
//! value and what the optimizer keeps of it.

use antdt_core::{Holder, InvalidValue, NodeActionKind, NodeStatus};

use super::{Action, Asked};
use crate::policy::ProposedAction;
use crate::validate::Refusal;

/// The action that changes the weights of the servers.
#[doc(alias = "re-partition")]
#[derive(Debug, Clone, Copy)]
pub struct Repartition;

impl Repartition {
    /// Name of the action in reports and decisions.
    pub const NAME: &'static str = "REPARTITION";
}

const fn is_repartition(action: &ProposedAction) -> bool {
    matches!(action.kind, NodeActionKind::Repartition { .. })
}

impl Action for Repartition {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn dry_name(&self) -> &'static str {
        "WOULD_REPARTITION"
    }

    fn about(&self) -> &'static str {
        "how much of the parameters each server holds"
    }

    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let Asked { now, decision, view, budget } = *asked;
        let Some(action) = decision.node_actions.iter().find(|action| is_repartition(action)) else {
            return Ok(());
        };
        let NodeActionKind::Repartition { weights } = &action.kind else { return Ok(()) };
        let (target, node) = (action.target, action.target.node);
        // All servers start again: what else is decided about nodes is decided anew afterwards.
        if decision.node_actions.len() > 1 {
            return Err(Refusal::TooManyAtOnce { asked: decision.node_actions.len(), free: 1 });
        }
        if !view.hands_over {
            return Err(Refusal::Server { node });
        }
        let is_live =
            |server: &&antdt_core::NodeView| server.id == node && server.status == NodeStatus::Running;
        let running = view.servers.iter().find(is_live).ok_or(Refusal::NotRunning { target })?;
        if running.incarnation != target.incarnation {
            return Err(Refusal::OtherLife { target, running: Holder::new(node, running.incarnation) });
        }
        let servers = u32::try_from(view.servers.len()).unwrap_or(u32::MAX);
        if !weights.fits(servers) || *weights == view.server_weights {
            let expected = format!(
                "one weight for each of {servers} servers, other than those in force, {}",
                view.server_weights
            );
            return Err(InvalidValue::new(Self::NAME, weights, expected).into());
        }
        let workers = asked.live().count();
        budget.allows(now, node, workers)?;
        match budget.room(now, workers) {
            0 => Err(Refusal::TooManyAtOnce { asked: 1, free: 0 }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
