//! The registry of actions.

use antdt_core::registry::Registry;

use super::{
    Action, adjust_bs, adjust_lr, backup_workers, exclude_host, kill_restart, local_steps, repartition,
};

/// Registry of all actions, in the order in which the dispatcher checks them. A plan that several actions
/// change is reported under the first of them.
pub static REGISTRY: Registry<&'static dyn Action> = Registry::new("action", SHIPPED);

/// Actions that ship.
const SHIPPED: &[&'static dyn Action] = &[
    &adjust_bs::AdjustBs,
    &backup_workers::BackupWorkers,
    &local_steps::AdjustLocalSteps,
    &adjust_lr::AdjustLr,
    &exclude_host::ExcludeHost,
    &repartition::Repartition,
    &kill_restart::KillRestart,
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use antdt_core::{Holder, Incarnation, NodeActionKind, NodeId, Reason};

    use super::*;
    use crate::policy::{Decision, ProposedAction};
    use crate::testing::{check_action, check_value_action};

    #[test]
    fn actions_that_ship_pass_the_suite() {
        let target = Holder::new(NodeId::worker(1), Incarnation(0));
        let kind = NodeActionKind::KillRestart { drain: Duration::ZERO };
        let restart = ProposedAction { target, kind, reason: Reason::Balanced };
        let target = Holder::new(NodeId::server(1), Incarnation(0));
        let kind = NodeActionKind::Repartition { weights: "2,1".parse().unwrap() };
        let repartition = ProposedAction { target, kind, reason: Reason::Balanced };
        let value = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into_iter().collect();
        let sizes = [(NodeId::worker(0), 4)].into_iter().collect();
        let none = Decision::default;
        let asked = [
            Decision { batch_sizes: Some(sizes), ..none() },
            Decision { backups: Some(1), ..none() },
            Decision { local_steps: Some(2), ..none() },
            Decision { actions: value("ADJUST_LR", "linear"), ..none() },
            Decision { actions: value("EXCLUDE_HOST", "a"), ..none() },
            Decision { node_actions: vec![repartition], ..none() },
            Decision { node_actions: vec![restart], ..none() },
        ];
        assert_eq!(asked.len(), SHIPPED.len());
        for (action, asked) in SHIPPED.iter().zip(&asked) {
            check_action(*action, asked).unwrap();
        }
        check_value_action(&adjust_lr::AdjustLr, &adjust_lr::RateRule::Fixed(0.5)).unwrap();
        check_value_action(&exclude_host::ExcludeHost, &exclude_host::Excluded::default()).unwrap();
        for (at, action) in SHIPPED.iter().enumerate() {
            assert!(check_action(*action, &asked[(at + 1) % asked.len()]).is_err(), "{action:?}");
        }
    }
}
