//! [`Dispatcher`]: asks the policy, refuses decisions that would break the job, and keeps one plan in flight.
//!
//! Guarantees, whatever the policy decides:
//! * at most one plan is in flight (published, and not yet applied by all workers); versions grow and none is
//!   used twice;
//! * a plan names exactly the live workers of the membership it is for, and is void when that membership
//!   ends;
//! * a change of the membership is answered with a plan for the new one at once, which stays in flight until
//!   all workers have switched to it or the membership changes again: no other plan would fit;
//! * restarts keep to the budget, never hit another incarnation than the one that was judged, and never the
//!   chief unasked;
//! * a forecast is compared with the steps that follow, and the policy is told the result;
//! * every action goes to the log of decisions with its reasons, and so does each kind of reason for doing
//!   nothing, once between two actions;
//! * in a dry run no decision of the policy is carried out: the log says what the policy would do, once for
//!   as long as it would do the same.

use std::collections::{BTreeMap, VecDeque};
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use antdt_core::{
    ActionId, ActionOutcome, ClusterView, Forecast, JobTime, Machine, MembershipVersion, NodeAction,
    NodeActionKind, NodeId, NodeMap, NodeView, Plan, PlanVersion, Reason, StepView,
};

use crate::action::{self, Action, ActionValues, AdjustBs};
use crate::apportion::{ApportionError, apportion_evenly};
use crate::budget::RestartBudget;
use crate::decided::{Decided, DecisionRecord};
use crate::policy::{Decision, Policy, ProposedAction, Seat, Split, split_by};
use crate::validate::validate;

mod config;

pub use config::DispatcherConfig;

/// Kinds of "nothing" that are recorded between two actions: bounds the log of a job in which nothing happens.
const RECORDED_MAX: usize = 16;

/// Time after which a dry run writes an action down again that the policy had given up meanwhile. 30 s: a policy that wavers does
/// not fill the log.
const SAID_AGAIN: Duration = Duration::from_secs(30);

/// Steps under a plan after which its forecast is compared with them. 10: the median of so many is known to a third of the
/// noise of one.
const MEASURED_STEPS: u32 = 10;

/// Effect that the driver of the [`Dispatcher`] must carry out.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum DispatchEffect {
    /// Send this plan to the workers; all of them switch to it at one iteration, or none does.
    Publish(Plan),
    /// Stop sending the plan of this version.
    Withdraw(PlanVersion),
    /// Begin this action on a node.
    Start(NodeAction),
    /// Append this entry to the log of decisions.
    Record(DecisionRecord),
    /// Log a plan's forecast beside the measured step time: enough steps were made under the plan.
    Measured {
        /// Version of the plan in force.
        version: PlanVersion,
        /// Forecast that was made for the plan.
        forecast: Forecast,
        /// Measured median step time under the plan.
        step: Duration,
    },
}

/// An input of a [`Dispatcher`].
#[derive(Debug, Clone, PartialEq)]
pub enum DispatchEvent {
    /// A control tick, with the current view of the cluster.
    Tick(Box<ClusterView>),
    /// The membership changed; the seats are the live workers of the new one.
    Replan(MembershipVersion, Vec<Seat>),
    /// All workers switched to the plan of this version.
    PlanApplied(PlanVersion),
    /// A restart ended.
    ActionEnded(ActionOutcome),
}

/// An action that a dry run wrote down.
#[derive(Debug, Clone)]
struct Said {
    decided: Decided,
    /// The node that the action is about, beside its target.
    about: Option<NodeId>,
    at: JobTime,
    /// Whether the policy decided the same at the tick before.
    stands: bool,
}

/// Asks the policy at every tick, and turns its decisions into plans and node actions that do not break the
/// job.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    config: DispatcherConfig,
    policy: Box<dyn Policy>,
    budget: RestartBudget,
    membership: MembershipVersion,
    in_force: Option<Plan>,
    /// The plan on its way, and when it expires. `None` for one that answers a change of the membership: the plan
    /// before it has no batch sizes for these workers, and no other plan would replace it.
    pending: Option<(Plan, Option<JobTime>)>,
    /// The plan withdrawn last: the news that it was applied may have been under way.
    withdrawn: Option<Plan>,
    next_version: PlanVersion,
    next_action: ActionId,
    /// What is expected of the newest plan, until it was compared with what came.
    promised: Option<(PlanVersion, Forecast)>,
    /// Kinds of reasons for doing nothing that were recorded since something was done.
    recorded: Vec<Vec<Discriminant<Reason>>>,
    /// What the policy would do, as far as a dry run wrote it down.
    said: Vec<Said>,
    /// The newest decision of the policy, whether it was recorded or not.
    newest: Option<DecisionRecord>,
    effects: VecDeque<DispatchEffect>,
}

impl Dispatcher {
    /// Returns a dispatcher without a plan; [`replan`](Self::replan) makes the first one.
    pub fn new(config: DispatcherConfig, policy: Box<dyn Policy>) -> Self {
        Self {
            config,
            policy,
            budget: RestartBudget::new(config.budget),
            membership: MembershipVersion(0),
            in_force: None,
            pending: None,
            withdrawn: None,
            next_version: config.first_version,
            next_action: ActionId(1),
            promised: None,
            recorded: Vec::new(),
            said: Vec::new(),
            newest: None,
            effects: VecDeque::new(),
        }
    }

    /// Returns the name of the policy.
    pub fn policy(&self) -> &str {
        self.policy.name()
    }

    /// Returns whether decisions of the policy are only logged.
    pub const fn is_dry_run(&self) -> bool {
        self.config.dry_run
    }

    /// Returns the newest decision of the policy. Plans for a new membership, which the policy does not ask
    /// for, are not decisions.
    pub const fn newest_decision(&self) -> Option<&DecisionRecord> {
        self.newest.as_ref()
    }

    /// Returns the plan that all workers have switched to; `None` before the first.
    pub const fn in_force(&self) -> Option<&Plan> {
        self.in_force.as_ref()
    }

    /// Returns the plan in flight: published, and not yet applied by all workers; `None` if there is none.
    pub fn pending(&self) -> Option<&Plan> {
        self.pending.as_ref().map(|(plan, _)| plan)
    }

    /// Returns the plan of this version if it is in force, in flight, or was withdrawn last. Workers may
    /// still switch to a plan that was withdrawn too late.
    pub fn plan(&self, version: PlanVersion) -> Option<&Plan> {
        [self.in_force(), self.pending(), self.withdrawn.as_ref()]
            .into_iter()
            .flatten()
            .find(|plan| plan.version == version)
    }

    /// Returns the plan in flight, or the plan in force if none is in flight.
    pub fn newest(&self) -> Option<&Plan> {
        self.pending().or(self.in_force())
    }

    /// Asks the policy for a decision, and carries it out unless it would break the job.
    pub fn tick(&mut self, now: JobTime, view: &ClusterView) {
        self.expire(now);
        self.measure(now, view);
        let settled = self.pending.is_none()
            && !view.plan_pending
            && !view.membership_changed
            && view.membership == self.membership;
        if !settled {
            self.record(now, Decided::Nothing, vec![Reason::Unsettled]);
            return;
        }
        let decision = self.policy.decide(now, view, &self.budget);
        if let Err(refusal) = validate(now, &decision, view, &self.budget) {
            let reasons = vec![Reason::Refused { what: refusal.to_string() }];
            self.record(now, Decided::Refused, reasons);
            return;
        }
        if self.config.dry_run {
            self.say(now, decision);
        } else if !decision.node_actions.is_empty() && !self.says_where(&decision) {
            // The membership is about to change twice: batch sizes of this tick would be stale.
            for proposed in decision.node_actions {
                let id = self.next_action;
                self.next_action = id.next();
                self.budget.started(now, id, proposed.target);
                let decided = Decided::Node(id, proposed.target, proposed.kind.name());
                self.record(now, decided, vec![proposed.reason.clone()]);
                let action =
                    NodeAction { id, target: proposed.target, kind: proposed.kind, reason: proposed.reason };
                self.effects.push_back(DispatchEffect::Start(action));
            }
        } else if let Some(split) = self.wanted(&decision) {
            let expiry = now + self.config.plan_expiry.max(self.step_time(view) * 10);
            let action = first_action(&decision);
            let pace = Pace {
                local_steps: decision.local_steps,
                backups: decision.backups,
                actions: decision.actions,
            };
            self.publish(now, split, pace, Some(expiry), action.name(), decision.reasons);
            self.promised = decision.forecast.map(|forecast| (self.pending_version(), forecast));
        } else {
            self.record(now, Decided::Nothing, decision.reasons);
        }
    }

    /// Writes down what would be done now, unless it was written down and is what would have been done at the tick before.
    fn say(&mut self, now: JobTime, decision: Decision) {
        let mut undone: Vec<(Decided, Vec<Reason>)> = Vec::new();
        if !decision.node_actions.is_empty() && !self.says_where(&decision) {
            let would =
                |it: ProposedAction| (Decided::WouldNode(it.target, dry_name(&it.kind)), vec![it.reason]);
            undone.extend(decision.node_actions.into_iter().map(would));
        } else if let Some(split) = self.wanted(&decision) {
            let would = first_action(&decision).dry_name();
            let mut reasons = decision.reasons;
            if decision.batch_sizes.is_some() {
                reasons.push(Reason::Other(said_sizes(&split)));
            }
            undone.push((Decided::WouldPlan(would), reasons));
        } else {
            self.record(now, Decided::Nothing, decision.reasons);
        }
        let before = std::mem::take(&mut self.said);
        let mut said: Vec<Said> = Vec::new();
        for (decided, mut reasons) in undone {
            let about = reasons.iter().find_map(Reason::node);
            let is_same = |it: &&Said| it.decided == decided && it.about == about;
            let known = before.iter().find(is_same);
            let known = known.filter(|known| known.stands || now.since(known.at) < SAID_AGAIN);
            reasons.push(Reason::NotCarriedOut);
            if known.is_none() {
                self.record(now, decided, reasons);
            } else {
                self.newest = Some(self.decision(now, decided, reasons));
            }
            let at = known.map_or(now, |known| known.at);
            said.push(Said { decided, about, at, stands: true });
        }
        let is_given_up =
            |it: &Said| !said.iter().any(|new| new.decided == it.decided && new.about == it.about);
        let recent = |it: &Said| now.since(it.at) < SAID_AGAIN;
        let given_up: Vec<Said> = before.into_iter().filter(|it| is_given_up(it) && recent(it)).collect();
        said.extend(given_up.into_iter().map(|it| Said { stands: false, ..it }));
        self.said = said;
    }

    fn decision(&self, at: JobTime, decided: Decided, reasons: Vec<Reason>) -> DecisionRecord {
        DecisionRecord { at, policy: self.policy.name().into(), decided, reasons }
    }

    fn pending_version(&self) -> PlanVersion {
        self.pending().map_or(PlanVersion(0), |plan| plan.version)
    }

    /// Compares the newest plan with its forecast, once there are enough steps under it.
    fn measure(&mut self, now: JobTime, view: &ClusterView) {
        let Some((version, forecast)) = self.promised else { return };
        let under = |step: &StepView| step.plan == version && step.steps >= MEASURED_STEPS;
        let Some(step) = view.step.filter(under) else { return };
        self.promised = None;
        // A worker whose pace changed meanwhile: what came is not the plan's doing.
        let changed =
            |node: &NodeView| node.estimate.is_none_or(|it| it.batches < step.steps.min(MEASURED_STEPS));
        if view.live_workers().any(changed) {
            return;
        }
        let step = step.time;
        self.effects.push_back(DispatchEffect::Measured { version, forecast, step });
        self.policy.on_outcome(now, &ActionOutcome::Measured { version, forecast, step });
    }

    /// Whether a decision asks for a new value of an action that restarts of the same decision wait for.
    fn says_where(&self, decision: &Decision) -> bool {
        let is_new = |plan: &Plan| {
            let of_action = |action: &&'static dyn Action| {
                let name = action.name();
                decision.actions.contains_key(name) && decision.actions.get(name) != plan.actions.get(name)
            };
            action::REGISTRY.entries().iter().any(|it| it.precedes_restarts() && of_action(it))
        };
        self.in_force.as_ref().is_some_and(is_new)
    }

    /// The batches of the plan that a decision asks for, if it asks for one: those in force, if it only changes how the workers
    /// take their steps.
    fn wanted(&self, decision: &Decision) -> Option<Split> {
        if let Some(batch_sizes) = decision.batch_sizes.clone() {
            return Some(Split { batch_sizes, accumulation: decision.accumulation.clone() });
        }
        let is_new = |plan: &&Plan| {
            (decision.local_steps.is_some() && plan.local_steps != decision.local_steps)
                || (decision.backups.is_some() && plan.backups != decision.backups)
                || decision.actions.iter().any(|(name, value)| plan.actions.get(name) != Some(value))
        };
        self.in_force.as_ref().filter(is_new).map(|plan| Split {
            batch_sizes: (*plan.batch_sizes).clone(),
            accumulation: (*plan.accumulation).clone(),
        })
    }

    /// Voids the plan in flight after a change of the membership, and publishes one for the new membership at
    /// once.
    ///
    /// In synchronous training the global batch is shared out by [`Policy::split`]; if the policy finds no
    /// division, because the batch exceeds what the workers can compute at once, it is shared out evenly and
    /// computed in micro-batches. In asynchronous training every worker keeps its share among all workers
    /// that the job was started with. Calls for an older membership change nothing.
    ///
    /// # Errors
    /// If the global batch cannot be shared out among these workers. No plan is in flight then, and the
    /// workers should take no more steps.
    pub fn replan(
        &mut self,
        now: JobTime,
        membership: MembershipVersion,
        seats: &[Seat],
    ) -> Result<(), ApportionError> {
        if membership < self.membership {
            return Ok(());
        }
        self.membership = membership;
        self.withdraw(now);
        let total = self.config.global_batch_size;
        let split = if self.config.mode.sums_to_global_batch() {
            let by_policy = match self.config.dry_run {
                true => split_by(None, total, seats),
                false => self.policy.split(total, seats),
            };
            // Where batches do not fit at once, they do in parts.
            by_policy.or_else(|error| in_micro_batches(total, seats).ok_or(error))?
        } else {
            nominal_sizes(&self.config, seats)?.into()
        };
        let reason = Reason::MembershipChanged { workers: seats.len() };
        self.publish(now, split, Pace::default(), None, AdjustBs::NAME, vec![reason]);
        Ok(())
    }

    /// Records at `now` that all workers have switched to the plan of this version.
    pub fn plan_applied(&mut self, now: JobTime, version: PlanVersion) {
        if self.in_force.as_ref().is_some_and(|plan| plan.version >= version) {
            return;
        }
        let applied = match (&self.pending, &self.withdrawn) {
            (Some((plan, _)), _) if plan.version == version => self.pending.take().map(|(plan, _)| plan),
            // It was withdrawn too late: what the workers did is what counts.
            (_, Some(plan)) if plan.version == version => self.withdrawn.take(),
            _ => None,
        };
        if let Some(plan) = applied {
            self.in_force = Some(plan);
            self.policy.on_outcome(now, &ActionOutcome::PlanApplied { version });
        }
    }

    /// Returns the budget of restarts for slowness.
    pub const fn budget(&self) -> &RestartBudget {
        &self.budget
    }

    /// Returns the budget of restarts for change, so that a new master can continue with what an earlier one
    /// has spent.
    pub const fn budget_mut(&mut self) -> &mut RestartBudget {
        &mut self.budget
    }

    /// Records that a restart ended, whether or not the node came back.
    pub fn action_ended(&mut self, now: JobTime, outcome: &ActionOutcome) {
        if let ActionOutcome::Restarted { id, .. } | ActionOutcome::RestartFailed { id, .. } = outcome {
            self.budget.ended(now, *id);
        }
        self.policy.on_outcome(now, outcome);
    }

    fn publish(
        &mut self,
        now: JobTime,
        split: Split,
        pace: Pace,
        expiry: Option<JobTime>,
        action: &'static str,
        reasons: Vec<Reason>,
    ) {
        let version = self.next_version;
        self.next_version = version.next();
        // What an earlier plan said of how steps are taken holds until another plan says something else.
        let before = self.in_force.as_ref();
        let local_steps = pace.local_steps.or(before.and_then(|plan| plan.local_steps));
        let backups = pace.backups.or(before.and_then(|plan| plan.backups));
        let mut actions = before.map_or_else(ActionValues::new, |plan| (*plan.actions).clone());
        actions.extend(pace.actions);
        action::prune(&mut actions, &split.batch_sizes);
        let plan = Plan::new(version, self.membership, split.batch_sizes)
            .with_accumulation(split.accumulation)
            .with_local_steps(local_steps)
            .with_backups(backups)
            .with_actions(actions);
        self.promised = None;
        self.record(now, Decided::Plan(version, action), reasons);
        self.effects.push_back(DispatchEffect::Publish(plan.clone()));
        self.pending = Some((plan, expiry));
    }

    fn expire(&mut self, now: JobTime) {
        if self.deadline().is_some_and(|expiry| now >= expiry) {
            self.withdraw(now);
        }
    }

    fn withdraw(&mut self, now: JobTime) {
        if let Some((plan, _)) = self.pending.take() {
            let version = plan.version;
            self.withdrawn = Some(plan);
            self.effects.push_back(DispatchEffect::Withdraw(version));
            self.policy.on_outcome(now, &ActionOutcome::PlanVoid { version });
        }
    }

    /// Time of a synchronous step at the present rate; zero while that is unknown.
    fn step_time(&self, view: &ClusterView) -> Duration {
        let seconds = f64::from(self.config.global_batch_size) / view.progress.samples_per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or_default().min(Duration::from_secs(24 * 3600))
    }

    fn record(&mut self, at: JobTime, decided: Decided, reasons: Vec<Reason>) {
        let record = self.decision(at, decided, reasons);
        if record.reasons != [Reason::Unsettled] {
            self.newest = Some(record.clone());
        }
        let reasons = &record.reasons;
        if matches!(decided, Decided::Nothing | Decided::Refused) {
            let kinds: Vec<Discriminant<Reason>> = reasons.iter().map(discriminant).collect();
            if self.recorded.len() >= RECORDED_MAX || self.recorded.contains(&kinds) {
                return;
            }
            self.recorded.push(kinds);
        } else {
            self.recorded.clear();
        }
        self.effects.push_back(DispatchEffect::Record(record));
    }
}

/// The first action that a decision with a plan asks for.
fn first_action(decision: &Decision) -> &'static dyn Action {
    action::REGISTRY.entries().into_iter().find(|action| action.is_asked(decision)).unwrap_or(&AdjustBs)
}

/// The dry-run name of an action on a node.
fn dry_name(kind: &NodeActionKind) -> &'static str {
    action::REGISTRY.find(kind.name()).map_or_else(|_| kind.name(), |action| action.dry_name())
}

/// How the workers take their steps under a plan, beside their batches; what is not named stays as it is.
#[derive(Debug, Default)]
struct Pace {
    local_steps: Option<u32>,
    backups: Option<u32>,
    actions: ActionValues,
}

/// Batch sizes in words, of the first few workers.
fn said_sizes(split: &Split) -> String {
    const SHOWN: usize = 8;
    let sizes = &split.batch_sizes;
    let mut text = String::from("batch sizes would be");
    for (at, (node, samples)) in sizes.iter().take(SHOWN).enumerate() {
        text += &format!("{} {samples} of {node}", if at == 0 { "" } else { "," });
        if let Some(count) = split.accumulation.get(node).filter(|count| **count > 1) {
            text += &format!(" in {count} micro-batches");
        }
    }
    if sizes.len() > SHOWN {
        text += &format!(" and those of {} more workers", sizes.len() - SHOWN);
    }
    text
}

/// Even shares, each in as few micro-batches as its worker's bounds ask for; `None` if they are too small for some worker.
fn in_micro_batches(total: u32, seats: &[Seat]) -> Option<Split> {
    let batch_sizes = apportion_evenly(total, seats.iter().map(|seat| (seat.id, 1, u32::MAX))).ok()?;
    let mut accumulation = BTreeMap::new();
    for seat in seats {
        let size = *batch_sizes.get(&seat.id)?;
        let count = size.div_ceil(seat.batch_size_max.max(1));
        if size / count.max(1) < seat.batch_size_min {
            return None;
        }
        accumulation.insert(seat.id, count);
    }
    Some(Split { batch_sizes, accumulation })
}

/// The share of each live worker among the workers that the job began with; one that came later gets as much as the last of
/// them.
fn nominal_sizes(config: &DispatcherConfig, seats: &[Seat]) -> Result<BTreeMap<NodeId, u32>, ApportionError> {
    if seats.is_empty() {
        return Err(ApportionError::NoWorkers { total: config.global_batch_size });
    }
    let seated: NodeMap<&Seat> = seats.iter().rev().map(|seat| (seat.id, seat)).collect();
    let everyone = (0..config.workers).map(|index| {
        let node = NodeId::worker(index);
        let seat = seated.get(node);
        seat.map_or((node, 0, u32::MAX), |seat| (node, seat.batch_size_min, seat.batch_size_max))
    });
    let mut sizes = apportion_evenly(config.global_batch_size, everyone)?;
    let share = sizes.values().copied().min().unwrap_or(1);
    sizes.retain(|node, _| seated.contains(*node));
    for seat in seats.iter().filter(|seat| seat.id.index >= config.workers) {
        sizes.insert(seat.id, share.clamp(seat.batch_size_min, seat.batch_size_max));
    }
    Ok(sizes)
}

impl Machine for Dispatcher {
    type Event = DispatchEvent;
    type Answer = Result<(), ApportionError>;
    type Effect = DispatchEffect;

    fn handle(&mut self, now: JobTime, event: DispatchEvent) -> Self::Answer {
        match event {
            DispatchEvent::Tick(view) => self.tick(now, &view),
            DispatchEvent::Replan(membership, seats) => return self.replan(now, membership, &seats),
            DispatchEvent::PlanApplied(version) => self.plan_applied(now, version),
            DispatchEvent::ActionEnded(outcome) => self.action_ended(now, &outcome),
        }
        Ok(())
    }

    fn poll_effect(&mut self) -> Option<DispatchEffect> {
        self.effects.pop_front()
    }

    /// When the plan on its way expires.
    fn deadline(&self) -> Option<JobTime> {
        self.pending.as_ref().and_then(|(_, expiry)| *expiry)
    }

    fn on_deadline(&mut self, now: JobTime) {
        self.expire(now);
    }
}

#[cfg(test)]
mod tests;
