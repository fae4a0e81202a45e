//! A policy that takes random actions.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_controller::policy::ProposedAction;
use antdt_controller::{Decision, Policy, RestartBudget};
use antdt_core::{
    ClusterView, DetRng, Holder, JobTime, NodeActionKind, NodeStatus, NodeView, Reason, Seed, ServerWeights,
};

/// A policy that, at random times, restarts a random worker, moves samples between two workers, changes
/// the number of backup workers, or divides the parameters among the servers by random weights, within the limits that a policy has. Under it a job must keep all
/// invariants.
#[derive(Debug, Clone)]
pub struct Restless(DetRng, DetRng, DetRng);

impl Restless {
    /// Name of the policy in reports.
    pub const NAME: &str = "restless";

    /// Returns the policy whose random decisions are a function of the seed.
    pub fn new(seed: Seed) -> Self {
        Self(
            seed.derive("restless").rng(),
            seed.derive("restless backups").rng(),
            seed.derive("restless shares").rng(),
        )
    }

    fn pick<'a>(&mut self, workers: &[&'a NodeView]) -> &'a NodeView {
        let index = self.0.below(workers.len() as u64);
        workers[usize::try_from(index).expect("below the number of workers")]
    }
}

impl Restless {
    /// Random shares of the parameters, if servers can have others now.
    fn shares(
        &mut self,
        now: JobTime,
        view: &ClusterView,
        budget: &RestartBudget,
        workers: usize,
    ) -> Option<ProposedAction> {
        let server = view.servers.last().filter(|_| view.hands_over)?;
        let runs = view.servers.iter().all(|server| server.status == NodeStatus::Running);
        let may = budget.room(now, workers) > 0 && budget.allows(now, server.id, workers).is_ok();
        let mut weight = || 1 + u32::try_from(self.2.below(u64::from(ServerWeights::MOST))).unwrap_or(0);
        let weights: Vec<u32> = view.servers.iter().map(|_| weight()).collect();
        let weights = ServerWeights::new(&weights).ok()?;
        (runs && may && weights != view.server_weights).then(|| ProposedAction {
            target: Holder::new(server.id, server.incarnation),
            kind: NodeActionKind::Repartition { weights },
            reason: Reason::Other("a whim".to_owned()),
        })
    }
}

impl Policy for Restless {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        let workers: Vec<&NodeView> = view.live_workers().collect();
        let whim = self.0.below(8);
        let mut decision = Decision::nothing(Reason::Balanced);
        if whim == 2 && !workers.is_empty() && view.mode.takes_backups() {
            decision.backups = u32::try_from(self.1.below(workers.len() as u64)).ok();
        }
        if whim == 3 && !workers.is_empty() {
            decision.node_actions.extend(self.shares(now, view, budget, workers.len()));
        }
        if workers.is_empty() || whim > 1 {
            return decision;
        }
        let (one, other) = (self.pick(&workers), self.pick(&workers));
        if whim == 0 {
            let drain = Duration::from_millis(self.0.below(3_000));
            let room = budget.room(now, workers.len()) > 0 && view.has_model_without(one.id);
            if room && workers.len() > 1 && !one.chief && budget.allows(now, one.id, workers.len()).is_ok() {
                decision.node_actions.push(ProposedAction {
                    target: Holder::new(one.id, one.incarnation),
                    kind: NodeActionKind::KillRestart { drain },
                    reason: Reason::Other("a whim".to_owned()),
                });
            }
            return decision;
        }
        let most = one.batch_size.saturating_sub(one.batch_size_min);
        let room = other.batch_size_max.saturating_sub(other.batch_size);
        let moved = u32::try_from(self.0.below(u64::from(most.min(room)) + 1)).unwrap_or(0);
        let all_have_one = workers.iter().all(|worker| worker.batch_size >= worker.batch_size_min);
        let sum: u32 = workers.iter().map(|worker| worker.batch_size).sum();
        if moved > 0 && one.id != other.id && all_have_one && sum == view.global_batch_size {
            let sizes = workers.iter().map(|worker| (worker.id, worker.batch_size));
            let mut sizes: BTreeMap<_, _> = sizes.collect();
            sizes.entry(one.id).and_modify(|size| *size -= moved);
            sizes.entry(other.id).and_modify(|size| *size += moved);
            decision.batch_sizes = Some(sizes);
        }
        decision
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
