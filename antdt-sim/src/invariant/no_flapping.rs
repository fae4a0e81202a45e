//! Checks that a node which was restarted for slowness is not restarted again for ten times as long as the
//! restart took, so that no node spends more than a tenth of its time on restarts.
//!
//! Source: our design; a cool-down relative to the restart suits nodes that start in a second or in ten minutes.

use std::collections::BTreeMap;

use antdt_controller::BudgetConfig;
use antdt_core::{JobTime, NodeId};
use antdt_job::{EventKind, HeadEffect, Note};

use super::Invariant;
use crate::happening::Happening;

/// Checks that a node is not restarted again soon after a restart for slowness; see the [module](self).
#[derive(Debug, Default)]
pub struct NoFlapping {
    begun: BTreeMap<NodeId, JobTime>,
    not_before: BTreeMap<NodeId, JobTime>,
}

impl Invariant for NoFlapping {
    fn name(&self) -> &'static str {
        "no_flapping"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        if let Happening::TakenOver = what {
            // The master that ordered them is gone, and their duration is unknown.
            self.begun.clear();
        }
        let Happening::Effect(HeadEffect::Note { at, note }) = what else { return Ok(()) };
        match note {
            Note::Action { kind: "KILL_RESTART", target, .. } => {
                let node = target.parse::<NodeId>().map_err(|error| error.to_string())?;
                if let Some(until) = self.not_before.get(&node).filter(|until| *at < **until) {
                    return Err(format!("{node} is restarted at {at}; it is to be left alone until {until}"));
                }
                self.begun.insert(node, *at);
            }
            Note::Event { node: Some(node), kind: EventKind::Restart, .. } => {
                if let Some(begun) = self.begun.remove(node) {
                    let rest = at.since(begun).saturating_mul(BudgetConfig::default().cool_down_factor);
                    self.not_before.insert(*node, *at + rest);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{History, action, event};
    use super::*;

    #[test]
    fn a_node_is_left_alone_under_another_master_too() {
        let mut history = History::new(NoFlapping::default());
        history.effect(&action(0, "KILL_RESTART", "worker-1")).effect(&event(
            2,
            "worker-1",
            EventKind::Restart,
        ));
        history.saw(&Happening::TakenOver).effect(&action(21, "KILL_RESTART", "worker-1"));
        history.fails("it is to be left alone until 22.000s");
    }

    #[test]
    fn a_restarted_node_is_left_alone_for_a_while() {
        let mut history = History::new(NoFlapping::default());
        history.effect(&action(10, "KILL_RESTART", "worker-1")).effect(&event(
            15,
            "worker-1",
            EventKind::Restart,
        ));
        history.effect(&action(16, "KILL_RESTART", "worker-2")).holds();
        history
            .effect(&action(65, "KILL_RESTART", "worker-1"))
            .effect(&event(70, "worker-1", EventKind::Restart))
            .holds();
        history.effect(&action(119, "KILL_RESTART", "worker-1")).fails("left alone until 120.000s");
    }
}
