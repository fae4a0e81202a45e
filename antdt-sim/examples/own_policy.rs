//! Two policies of one's own, both wrong on purpose, beside the ones that ship:
//! `cargo run --release -p antdt-sim --example own_policy [TRACE]`.
//!
//! TRACE is a recording, a CSV of slowdowns or a scenario; without it, `scenarios/straggler.toml`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use antdt_controller::policy::{NonDedicated, ProposedAction, Unmanaged};
use antdt_controller::{Decision, Policy, RestartBudget};
use antdt_core::{ClusterView, Holder, JobTime, NodeActionKind, Reason};
use antdt_sim::{Calibration, WhatIf};

/// Gives every other worker three quarters of its pair's samples, and at the next tick the others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Oscillates {
    back: bool,
}

impl Policy for Oscillates {
    fn name(&self) -> &'static str {
        "oscillates"
    }

    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        self.back = !self.back;
        let mut sizes: BTreeMap<_, _> =
            view.live_workers().map(|worker| (worker.id, worker.batch_size)).collect();
        let mut left = sizes.values_mut();
        while let (Some(one), Some(other)) = (left.next(), left.next()) {
            let both = *one + *other;
            let more = both - both / 4;
            (*one, *other) = if self.back { (both - more, more) } else { (more, both - more) };
        }
        let reasons = vec![Reason::Other("it was the other way round".to_owned())];
        Decision { batch_sizes: Some(sizes), reasons, ..Decision::default() }
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Restarts a worker that is five percent slower than its peers, as often as the budget allows.
#[derive(Debug, Clone)]
pub(crate) struct KillsTooEagerly;

impl Policy for KillsTooEagerly {
    fn name(&self) -> &'static str {
        "kills-too-eagerly"
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        let workers = view.live_workers().count();
        let slow = view.live_workers().filter(|worker| !worker.chief);
        let slow = slow.filter(|worker| worker.slowness_ratio.is_some_and(|ratio| ratio > 1.05));
        let allowed = slow.filter(|worker| budget.allows(now, worker.id, workers).is_ok());
        let actions = allowed.take(budget.room(now, workers)).map(|worker| ProposedAction {
            target: Holder::new(worker.id, worker.incarnation),
            kind: NodeActionKind::KillRestart { drain: Duration::from_secs(1) },
            reason: Reason::Other("it is slower than the others".to_owned()),
        });
        Decision { node_actions: actions.collect(), ..Decision::nothing(Reason::Balanced) }
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/straggler.toml").to_owned();
    let world = WhatIf::read(Path::new(&std::env::args().nth(1).unwrap_or(shipped)))?;
    let policies: [Box<dyn Policy>; 4] = [
        Box::new(Unmanaged),
        Box::new(NonDedicated::default()),
        Box::new(Oscillates::default()),
        Box::new(KillsTooEagerly),
    ];
    // If the simulator is not to be trusted there are no figures.
    let calibration = Calibration::line()?;
    println!("{:>20} {:>12} {:>8}", "policy", "completion", "actions");
    for policy in policies {
        let run = world.run(policy)?;
        println!("{:>20} {:>10.1} s {:>8}", run.policy, run.completed.as_secs_f64(), run.actions.len());
    }
    println!("{calibration}");
    Ok(())
}
