//! Replays a history against a dispatcher and its policy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::{
    ActionId, ActionOutcome, BatchView, Capabilities, ClusterView, DeviceClass, Holder, Incarnation, JobTime,
    Machine, MembershipVersion, NodeAction, NodeId, NodeStatus, NodeView, Pace, PaceEstimate, Plan,
    PlanVersion, Progress, SchedulerView, ServerWeights, StragglerKind,
};

use super::Broken;
use super::history::{History, Job, Step, WORKERS_MAX};
use super::invariant::{Invariant, Invariants};
use crate::apportion::ApportionError;
use crate::budget::{BudgetConfig, RestartBudget};
use crate::dispatch::{DispatchEffect, DispatchEvent, Dispatcher, DispatcherConfig};
use crate::policy::{Decision, Policy, Seat, Split};
use crate::validate::validate;

/// What is wrong, by the promise.
type Breach = (Invariant, String);

/// A policy and its decision, before any check could refuse it.
#[derive(Debug)]
struct Watched {
    inner: Box<dyn Policy>,
    breaches: Arc<Mutex<Vec<Breach>>>,
}

impl Watched {
    fn new(policy: &dyn Policy) -> (Self, Arc<Mutex<Vec<Breach>>>) {
        let breaches = Arc::default();
        (Self { inner: policy.clone_box(), breaches: Arc::clone(&breaches) }, breaches)
    }
}

impl Policy for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        let decision = self.inner.decide(now, view, budget);
        let mut breaches = self.breaches.lock().unwrap_or_else(PoisonError::into_inner);
        if decision.reasons.is_empty() && !decision.acts() {
            breaches.push((Invariant::Total, "neither an action nor a reason".to_owned()));
        }
        if let Err(refusal) = validate(now, &decision, view, budget) {
            breaches.push((Invariant::Valid, format!("{refusal}; {decision:?}")));
        }
        decision
    }

    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        self.inner.split(total, seats)
    }

    fn on_outcome(&mut self, now: JobTime, outcome: &ActionOutcome) {
        self.inner.on_outcome(now, outcome);
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(Self { inner: self.inner.clone_box(), breaches: Arc::clone(&self.breaches) })
    }
}

impl Invariants {
    /// Replays a history against the dispatcher of this crate with a policy.
    ///
    /// # Errors
    /// Names the first invariant that is broken.
    // By value, as a policy is handed to the dispatcher; every dispatcher gets a copy in the same state.
    #[allow(clippy::needless_pass_by_value, reason = "reads as the constructor of the policy at the call")]
    pub fn check(&self, history: &History, policy: impl Policy) -> Result<(), Broken> {
        let (watched, breaches) = Watched::new(&policy);
        let mut first = Some(watched);
        self.play(history, &breaches, |config| match first.take() {
            Some(watched) => Dispatcher::new(config, Box::new(watched)),
            None => Dispatcher::new(config, policy.clone_box()),
        })
    }

    /// Replays a history against a dispatcher of your own, or a wrapper around ours. `make` is called three
    /// times: the first dispatcher is checked, the second gets the same events and must do the same, and the
    /// third sees the nodes in another order.
    ///
    /// # Errors
    /// Names the first invariant that is broken.
    pub fn check_dispatcher<M>(
        &self,
        history: &History,
        make: impl FnMut(DispatcherConfig) -> M,
    ) -> Result<(), Broken>
    where
        M: Machine<Event = DispatchEvent, Answer = Result<(), ApportionError>, Effect = DispatchEffect>,
    {
        self.play(history, &Mutex::default(), make)
    }

    fn play<M>(
        &self,
        history: &History,
        breaches: &Mutex<Vec<Breach>>,
        make: impl FnMut(DispatcherConfig) -> M,
    ) -> Result<(), Broken>
    where
        M: Machine<Event = DispatchEvent, Answer = Result<(), ApportionError>, Effect = DispatchEffect>,
    {
        let mut trial = Trial::new(self, history.setting(), breaches, make);
        let steps = history.steps();
        let broken = |at: String, number, (invariant, what): Breach| {
            Broken::new(invariant, number, at, what, history.clone())
        };
        trial.regroup().map_err(|breach| broken("at the start of the job".to_owned(), 0, breach))?;
        for (number, step) in (1..).zip(steps) {
            let at = || format!("after step {number} of {}: {step:?}", steps.len());
            trial.take(step).map_err(|breach| broken(at(), number, breach))?;
        }
        Ok(())
    }
}

/// A worker as the history has it.
#[derive(Debug, Clone)]
struct Worker {
    incarnation: Incarnation,
    live: bool,
    batch_size: u32,
    micro_batches: u32,
    percent: u16,
    lasting: bool,
}

struct Trial<'a, M> {
    invariants: &'a Invariants,
    breaches: &'a Mutex<Vec<Breach>>,
    job: Job,
    mode: Capabilities,
    config: DispatcherConfig,
    dispatcher: M,
    twin: M,
    mirrored: M,
    now: JobTime,
    tick: u64,
    workers: Vec<Worker>,
    busy: bool,
    membership: MembershipVersion,
    /// By the effects: the plan on its way, the one withdrawn last, the newest version.
    pending: Option<Plan>,
    withdrawn: Option<Plan>,
    newest: Option<PlanVersion>,
    in_force: PlanVersion,
    running: Vec<NodeAction>,
    actions: Vec<ActionId>,
    budget: RestartBudget,
}

impl<'a, M> Trial<'a, M>
where
    M: Machine<Event = DispatchEvent, Answer = Result<(), ApportionError>, Effect = DispatchEffect>,
{
    fn new(
        invariants: &'a Invariants,
        job: &Job,
        breaches: &'a Mutex<Vec<Breach>>,
        mut make: impl FnMut(DispatcherConfig) -> M,
    ) -> Self {
        let mode = Capabilities::COMMON[usize::from(job.sync) % Capabilities::COMMON.len()];
        let budget = BudgetConfig {
            per_hour_least: job.restarts_per_hour.into(),
            at_once_percent: job.at_once_percent.into(),
            chief_allowed: job.chief_allowed,
            ..BudgetConfig::default()
        };
        let workers = u32::from(job.workers);
        let global_batch_size = u32::from(job.samples_per_worker) * workers;
        let config = DispatcherConfig { budget, ..DispatcherConfig::new(mode, global_batch_size, workers) };
        let worker = |index| Worker {
            incarnation: Incarnation(0),
            live: index < job.workers,
            batch_size: job.samples_per_worker.into(),
            micro_batches: 1,
            percent: 100,
            lasting: true,
        };
        Self {
            invariants,
            breaches,
            job: job.clone(),
            mode,
            config,
            dispatcher: make(config),
            twin: make(config),
            mirrored: make(config),
            now: JobTime::ZERO,
            tick: 0,
            workers: (0..WORKERS_MAX).map(worker).collect(),
            busy: false,
            membership: MembershipVersion(0),
            pending: None,
            withdrawn: None,
            newest: None,
            in_force: PlanVersion(0),
            running: Vec::new(),
            actions: Vec::new(),
            budget: RestartBudget::new(budget),
        }
    }

    /// What a step means now, and what follows from it.
    fn take(&mut self, step: &Step) -> Result<(), Breach> {
        match *step {
            Step::Tick { after } => {
                self.now = self.now + Duration::from_secs(after.into());
                for machine in [&mut self.dispatcher, &mut self.twin, &mut self.mirrored] {
                    if machine.deadline().is_some_and(|due| due <= self.now) {
                        machine.on_deadline(self.now);
                    }
                }
                self.effects()?;
                self.tick += 1;
                self.tell(&DispatchEvent::Tick(Box::new(self.view())))
            }
            Step::Pace { node, percent, lasting } => {
                let worker = self.worker(node);
                (worker.percent, worker.lasting) = (percent, lasting);
                Ok(())
            }
            Step::Applied { late } => {
                let Some(plan) = (if late { self.withdrawn.take() } else { self.pending.take() }) else {
                    return Ok(());
                };
                if plan.version <= self.in_force {
                    return Ok(());
                }
                self.in_force = plan.version;
                for (node, samples) in plan.batch_sizes.iter() {
                    let worker = &mut self.workers[node.index as usize];
                    (worker.batch_size, worker.micro_batches) = (*samples, plan.micro_batches(*node));
                }
                self.tell(&DispatchEvent::PlanApplied(plan.version))
            }
            Step::Lose { node } => {
                let live = self.workers.iter().filter(|worker| worker.live).count();
                let worker = self.worker(node);
                if !worker.live || live == 1 {
                    return Ok(());
                }
                worker.live = false;
                self.regroup()
            }
            Step::Join { node } => {
                let workers = self.job.workers;
                let worker = self.worker(node % workers);
                if worker.live {
                    return Ok(());
                }
                worker.live = true;
                worker.incarnation = worker.incarnation.next();
                self.regroup()
            }
            Step::OldGroup => {
                let Some(before) = self.membership.0.checked_sub(1) else { return Ok(()) };
                self.tell(&DispatchEvent::Replan(MembershipVersion(before), self.seats()))
            }
            Step::Ended { which, well, twice } => {
                let Some(at) = usize::from(which).checked_rem(self.running.len()) else { return Ok(()) };
                let action = self.running.remove(at);
                self.budget.ended(self.now, action.id);
                let worker = &mut self.workers[action.target.node.index as usize];
                let outcome = if well {
                    worker.incarnation = worker.incarnation.max(action.target.incarnation.next());
                    worker.live = true;
                    let holder = Holder::new(action.target.node, worker.incarnation);
                    ActionOutcome::Restarted { id: action.id, holder, took: Duration::from_secs(1) }
                } else {
                    ActionOutcome::RestartFailed { id: action.id, why: "a history says so".to_owned() }
                };
                for _ in 0..=u8::from(twice) {
                    self.tell(&DispatchEvent::ActionEnded(outcome.clone()))?;
                }
                if well { self.regroup() } else { Ok(()) }
            }
            Step::Busy(busy) => {
                self.busy = busy;
                Ok(())
            }
        }
    }

    fn worker(&mut self, node: u8) -> &mut Worker {
        &mut self.workers[usize::from(node % WORKERS_MAX)]
    }

    /// The live workers form a new group.
    fn regroup(&mut self) -> Result<(), Breach> {
        self.membership = MembershipVersion(self.membership.0 + 1);
        self.tell(&DispatchEvent::Replan(self.membership, self.seats()))?;
        // Every worker has the batch of the new plan, if there is one.
        let plan = self.pending.as_ref().map(|plan| plan.membership);
        self.holds(Invariant::Membership, plan.is_none_or(|of| of == self.membership), || {
            format!("the plan on its way is for group {plan:?}, the group is {}", self.membership.0)
        })
    }

    fn seats(&self) -> Vec<Seat> {
        self.view().live_workers().map(Seat::from).collect()
    }

    fn view(&self) -> ClusterView {
        let node = |(index, worker): (u32, &Worker)| {
            let id = NodeId::worker(index);
            let time = Duration::from_micros(u64::from(worker.percent));
            let known = worker.percent > 0;
            let pace = match (known, worker.percent >= 130, worker.lasting) {
                (false, _, _) => Pace::Unknown,
                (true, false, _) => Pace::Normal,
                (true, true, true) => Pace::Straggler(StragglerKind::Persistent),
                (true, true, false) => Pace::Straggler(StragglerKind::Transient),
            };
            NodeView {
                id,
                incarnation: worker.incarnation,
                device: DeviceClass::default(),
                host: "host".into(),
                status: NodeStatus::Running,
                batch_size: worker.batch_size,
                micro_batches: worker.micro_batches,
                batch_size_min: self.job.batch_size_min.into(),
                batch_size_max: u32::from(self.job.samples_per_worker) * u32::from(WORKERS_MAX),
                pace,
                sample_time_short: known.then_some(time),
                sample_time_long: (known && worker.lasting).then_some(time),
                batch: known.then(|| BatchView {
                    plan: self.in_force,
                    samples: worker.batch_size,
                    micro_batches: worker.micro_batches,
                    compute: time * worker.batch_size,
                    batches: 16,
                }),
                estimate: known.then_some(PaceEstimate { sample_time: time, spread: 0.02, batches: 64 }),
                slowness_ratio: known.then_some(f64::from(worker.percent) / 100.0),
                slow_fraction_long: if worker.lasting && worker.percent >= 130 { 1.0 } else { 0.0 },
                last_report_age: known.then_some(Duration::ZERO),
                restarts: worker.incarnation.0,
                chief: index == 0,
            }
        };
        let live = (0..).zip(&self.workers).filter(|(_, worker)| worker.live);
        ClusterView {
            tick: self.tick,
            mode: self.mode,
            elastic: true,
            membership: self.membership,
            membership_changed: false,
            plan: self.newest.unwrap_or(PlanVersion(0)),
            plan_pending: self.pending.is_some(),
            actions: Arc::default(),
            hosts: Arc::default(),
            global_batch_size: self.config.global_batch_size,
            workers: live.map(node).collect(),
            servers: Vec::new(),
            hands_over: false,
            checkpoint_time: None,
            server_weights: ServerWeights::default(),
            step: None,
            progress: Progress { committed: 1_000, expected: 100_000_000, samples_per_second: 1_000.0 },
            scheduler: SchedulerView { start_delay: Duration::from_secs(10), busy: self.busy },
        }
    }

    fn tell(&mut self, event: &DispatchEvent) -> Result<(), Breach> {
        let answer = self.dispatcher.handle(self.now, event.clone());
        let again = self.twin.handle(self.now, event.clone());
        let mirrored = self.mirrored.handle(self.now, mirror(event));
        let what = || format!("{answer:?}, then {again:?}");
        self.holds(Invariant::Deterministic, answer == again, what)?;
        let what = || format!("{answer:?}, then {mirrored:?}");
        self.holds(Invariant::OrderIndifferent, answer == mirrored, what)?;
        let breaches = std::mem::take(&mut *self.breaches.lock().unwrap_or_else(PoisonError::into_inner));
        let mut breaches = breaches.into_iter();
        if let Some(breach) = breaches.find(|(invariant, _)| self.invariants.contains(*invariant)) {
            return Err(breach);
        }
        self.effects()
    }

    fn holds(&self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) -> Result<(), Breach> {
        if holds || !self.invariants.contains(invariant) { Ok(()) } else { Err((invariant, what())) }
    }

    /// Takes and checks what has to be done.
    fn effects(&mut self) -> Result<(), Breach> {
        let effects = drained(&mut self.dispatcher);
        let (again, mirrored) = (drained(&mut self.twin), drained(&mut self.mirrored));
        let what = || format!("{effects:?}, then {again:?}");
        self.holds(Invariant::Deterministic, effects == again, what)?;
        let same = in_order(&effects) == in_order(&mirrored);
        let what = || format!("{effects:?}, then {mirrored:?}");
        self.holds(Invariant::OrderIndifferent, same, what)?;
        let view = self.view();
        for effect in effects {
            match effect {
                DispatchEffect::Publish(plan) => self.published(plan, &view)?,
                DispatchEffect::Withdraw(version) => {
                    self.withdrawn =
                        self.pending.take_if(|plan| plan.version == version).or(self.withdrawn.take());
                }
                DispatchEffect::Start(action) => self.started(action, &view)?,
                DispatchEffect::Record(_) | DispatchEffect::Measured { .. } => {}
            }
        }
        Ok(())
    }

    fn published(&mut self, plan: Plan, view: &ClusterView) -> Result<(), Breach> {
        let sizes = &plan.batch_sizes;
        let sum: u64 = sizes.values().map(|samples| u64::from(*samples)).sum();
        let global = u64::from(self.config.global_batch_size);
        let sums = !self.mode.sums_to_global_batch() || sum == global;
        self.holds(Invariant::Sum, sums, || {
            format!("{sizes:?} add up to {sum}, the global batch is {global}")
        })?;
        let fits = |worker: &NodeView| {
            let count = plan.micro_batches(worker.id);
            let fits = |samples: &u32| {
                samples / count >= worker.batch_size_min && samples.div_ceil(count) <= worker.batch_size_max
            };
            sizes.get(&worker.id).is_some_and(fits)
        };
        let all = view.live_workers().count() == sizes.len() && view.live_workers().all(fits);
        self.holds(Invariant::Bounds, all, || format!("{sizes:?} for {:?}", view.workers))?;
        let newer = self.newest.is_none_or(|newest| newest < plan.version);
        self.holds(Invariant::OneInFlight, newer && self.pending.is_none(), || {
            format!("{plan:?} after {:?}, while {:?} is on its way", self.newest, self.pending)
        })?;
        self.holds(Invariant::Membership, plan.membership == self.membership, || {
            format!("{plan:?} in group {}", self.membership.0)
        })?;
        self.newest = Some(plan.version);
        self.pending = Some(plan);
        Ok(())
    }

    fn started(&mut self, action: NodeAction, view: &ClusterView) -> Result<(), Breach> {
        let Holder { node, incarnation } = action.target;
        let target = view.live_workers().find(|worker| worker.id == node);
        let runs = target.is_some_and(|worker| worker.incarnation == incarnation);
        self.holds(Invariant::OtherLife, runs, || format!("{action:?}, of {target:?}"))?;
        let live = view.live_workers().count();
        let used = self.actions.contains(&action.id);
        let allowed = self.budget.allows(self.now, node, live);
        self.holds(Invariant::Budget, allowed.is_ok() && !used, || format!("{action:?}: {allowed:?}"))?;
        let chief = target.is_some_and(|worker| worker.chief) && !self.config.budget.chief_allowed;
        let alone = !view.has_model_without(node);
        self.holds(Invariant::Chief, !chief && !alone, || format!("{action:?}, of {target:?}"))?;
        self.budget.started(self.now, action.id, action.target);
        self.actions.push(action.id);
        self.running.push(action);
        Ok(())
    }
}

/// The same event, with the nodes in another order.
fn mirror(event: &DispatchEvent) -> DispatchEvent {
    let mut event = event.clone();
    match &mut event {
        DispatchEvent::Tick(view) => view.workers.reverse(),
        DispatchEvent::Replan(_, seats) => seats.reverse(),
        DispatchEvent::PlanApplied(_) | DispatchEvent::ActionEnded(_) => {}
    }
    event
}

fn drained<M: Machine<Effect = DispatchEffect>>(machine: &mut M) -> Vec<DispatchEffect> {
    std::iter::from_fn(|| machine.poll_effect()).collect()
}

/// Effects without the order in which nodes are restarted, and without the numbers that follow from it.
fn in_order(effects: &[DispatchEffect]) -> Vec<String> {
    let text = |effect: &DispatchEffect| match effect {
        DispatchEffect::Start(action) => format!("restart {} for {:?}", action.target, action.reason),
        DispatchEffect::Record(record) if matches!(record.decided, crate::Decided::Node(..)) => {
            format!("recorded {:?}", record.reasons)
        }
        DispatchEffect::Publish(_)
        | DispatchEffect::Withdraw(_)
        | DispatchEffect::Record(_)
        | DispatchEffect::Measured { .. } => format!("{effect:?}"),
    };
    let mut texts: Vec<String> = effects.iter().map(text).collect();
    texts.sort_unstable();
    texts
}
