//! [`Foresight`]: a policy that knows every slowdown before it happens, with the actions of any policy and at their costs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_controller::policy::ProposedAction;
use antdt_controller::{ApportionError, Decision, Policy, RestartBudget, Seat, Share, Split, apportion};
use antdt_core::{ClusterView, Holder, Incarnation, JobTime, NodeActionKind, NodeId, NodeView, Reason};
use antdt_sim::model::compute::{Straggler, Who};

/// How an oracle uses what it knows. The best of several is the oracle of a trace: which one that is depends on how long the
/// slowdowns are beside the time that a plan takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Way {
    /// How far ahead it looks: a plan takes two heartbeats until it is in force.
    pub(super) lead: Duration,
    /// Slowdowns shorter than this are let pass.
    pub(super) shortest: Duration,
    /// Whether it restarts what a restart cures, at once.
    pub(super) restarts: bool,
}

impl Way {
    /// All that are tried.
    pub(super) fn all(stragglers: &[Straggler]) -> Vec<Self> {
        let curable = stragglers.iter().any(|it| it.cured_by_restart);
        let mut ways = Vec::new();
        for restarts in [false, true].into_iter().filter(|restarts| curable || !restarts) {
            for lead in [0, 600, 1200, 1800].map(Duration::from_millis) {
                for shortest in [0, 3, 8].map(Duration::from_secs) {
                    ways.push(Self { lead, shortest, restarts });
                }
            }
        }
        ways
    }
}

/// Knows the speeds of all workers at all times.
#[derive(Debug, Clone)]
pub(super) struct Foresight {
    stragglers: Arc<[Straggler]>,
    way: Way,
    now: JobTime,
}

impl Foresight {
    /// `begins` is when the workers of the job begin: what the first plan is for.
    pub(super) fn new(stragglers: &[Straggler], way: Way, begins: JobTime) -> Self {
        Self { stragglers: stragglers.into(), way, now: begins }
    }

    /// Slowdowns of a life that are worth an answer when a plan of now is in force.
    fn of(&self, node: NodeId, life: Incarnation) -> impl Iterator<Item = &Straggler> {
        let at = self.now + self.way.lead;
        self.stragglers.iter().filter(move |it| {
            it.who == Who::Node(node)
                && it.from <= at
                && at < it.to
                && it.to.since(it.from) >= self.way.shortest
                && !(it.cured_by_restart && life.0 > 0)
        })
    }

    fn share(&self, seat: &Seat, life: Incarnation) -> Share {
        let slow: f64 = self.of(seat.id, life).map(|it| it.slow).product();
        let time = Duration::from_micros(100).mul_f64(slow);
        Share::new(seat.id, time, seat.batch_size_min, seat.batch_size_max)
    }

    fn restart(&self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Option<ProposedAction> {
        let live = view.live_workers().count();
        let is_cured = |node: &&NodeView| {
            let slow = self.stragglers.iter().any(|it| {
                it.who == Who::Node(node.id)
                    && it.cured_by_restart
                    && it.from <= now
                    && node.incarnation.0 == 0
            });
            slow && budget.allows(now, node.id, live).is_ok() && budget.room(now, live) > 0
        };
        let node = view.live_workers().find(is_cured).filter(|node| view.has_model_without(node.id))?;
        Some(ProposedAction {
            target: Holder::new(node.id, node.incarnation),
            kind: NodeActionKind::KillRestart { drain: Duration::from_secs(30) },
            reason: Reason::Other("a restart cures it".to_owned()),
        })
    }
}

impl Policy for Foresight {
    fn name(&self) -> &'static str {
        "foresight"
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        self.now = now;
        if self.way.restarts
            && let Some(action) = self.restart(now, view, budget)
        {
            return Decision { node_actions: vec![action], ..Decision::default() };
        }
        let shares: Vec<Share> =
            view.live_workers().map(|node| self.share(&Seat::from(node), node.incarnation)).collect();
        match apportion(view.global_batch_size, 1, &shares) {
            Ok(best) => {
                let now: BTreeMap<NodeId, u32> =
                    view.live_workers().map(|node| (node.id, node.batch_size)).collect();
                let sizes = Some(best.batch_sizes).filter(|sizes| *sizes != now);
                let reasons = vec![Reason::Other("the speeds that are to come".to_owned())];
                Decision { batch_sizes: sizes, reasons, ..Decision::default() }
            }
            Err(error) => Decision::nothing(Reason::Other(error.to_string())),
        }
    }

    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        // A life that is not the first one is not slow for what a restart cures; a seat does not say which it is, and the next
        // plan mends what was taken for slow.
        let shares: Vec<Share> = seats.iter().map(|seat| self.share(seat, Incarnation(0))).collect();
        apportion(total, 1, &shares).map(|best| best.batch_sizes.into())
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
