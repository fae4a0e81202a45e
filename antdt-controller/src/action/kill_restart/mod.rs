//! The action `KILL_RESTART`: a worker finishes its batch, is stopped, and is started again. [`restart`]
//! carries out one restart, [`budget`] limits their number.
//!
//! A parameter server is restarted with all others, from a checkpoint that the job takes for it, and all of them have the same share of
//! the parameters again. The master carries that out, in a job that takes checkpoints.

use std::collections::BTreeSet;

use antdt_core::{Holder, NodeActionKind, NodeStatus, NodeView, Role};

use super::{Action, Asked};
use crate::policy::ProposedAction;
use crate::validate::Refusal;

pub mod budget;
pub mod restart;

/// The action that restarts nodes; a [`RestartSaga`](crate::RestartSaga) carries out each restart.
#[doc(alias = "KILL_RESTART")]
#[derive(Debug, Clone, Copy)]
pub struct KillRestart;

impl KillRestart {
    /// Name of the action in reports, decisions and plans.
    pub const NAME: &'static str = "KILL_RESTART";
}

const fn is_restart(action: &ProposedAction) -> bool {
    matches!(action.kind, NodeActionKind::KillRestart { .. })
}

impl Action for KillRestart {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn dry_name(&self) -> &'static str {
        "WOULD_KILL_RESTART"
    }

    fn about(&self) -> &'static str {
        "a worker finishes its batch, or a server hands its parameters over; it is stopped, and is started again"
    }

    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let Asked { now, decision, view, budget } = *asked;
        let workers = asked.live().count();
        let mut targets = BTreeSet::new();
        for action in decision.node_actions.iter().filter(|action| is_restart(action)) {
            let target = action.target;
            let node = target.node;
            if !targets.insert(node) {
                return Err(Refusal::Twice { node });
            }
            if node.role == Role::Server && !view.hands_over {
                return Err(Refusal::Server { node });
            }
            let is_live_server = |of: &&NodeView| of.id == node && of.status == NodeStatus::Running;
            let mut live = asked.live().filter(|worker| worker.id == node);
            let found = live.next().or_else(|| view.servers.iter().find(is_live_server));
            let running = found.ok_or(Refusal::NotRunning { target })?;
            if running.incarnation != target.incarnation {
                return Err(Refusal::OtherLife { target, running: Holder::new(node, running.incarnation) });
            }
            if running.chief && !budget.config().chief_allowed {
                return Err(Refusal::Chief { node });
            }
            if !view.has_model_without(node) {
                return Err(Refusal::OnlyWorker { node });
            }
            budget.allows(now, node, workers)?;
        }
        let (asked, free) = (targets.len(), budget.room(now, workers));
        if asked > free { Err(Refusal::TooManyAtOnce { asked, free }) } else { Ok(()) }
    }
}
