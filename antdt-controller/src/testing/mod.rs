//! Conformance suites and random histories for policies of other crates.
//!
//! [`check_policy`] shows a policy random jobs, each by itself. [`Invariants`] takes a policy through a
//! [`history`] of a job, in which plans are applied or expire, restarts end and workers join and leave, and
//! checks its promises after every step:
//!
//! ```
//! use antdt_controller::policy::NonDedicated;
//! use antdt_controller::testing::{Invariants, history};
//! use proptest::prelude::*;
//!
//! proptest! {
//!     # #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
//!     # /*
//!     #[test]
//!     # */
//!     fn my_policy_keeps_the_promises(history in history::any()) {
//!         Invariants::all().check(&history, NonDedicated::default())?;
//!     }
//! }
//! # my_policy_keeps_the_promises();
//! ```

pub mod history;
mod invariant;
mod trial;

pub use self::history::History;
pub use self::invariant::{Invariant, Invariants};
pub use antdt_core::testing::find_break;

/// Report that a policy or a dispatcher broke an invariant in a history.
pub type Broken = antdt_core::testing::Broken<Invariant, history::Job>;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use antdt_core::{
    ActionOutcome, BatchView, Capabilities, ClusterView, DetRng, DeviceClass, Holder, Incarnation, JobTime,
    MembershipVersion, NodeId, NodeStatus, NodeView, Pace, PaceEstimate, PlanVersion, Progress,
    SchedulerView, Seed, ServerWeights, StepView, StragglerKind,
};

use crate::action::{Action, Asked, Reach, ValueAction};
use crate::budget::{BudgetConfig, RestartBudget};
use crate::policy::{Decision, Policy, Seat};
use crate::validate::{Refusal, validate};

/// A property of a correct policy that the policy under test does not have, with the case that shows it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy is not {property}, in case {case}: {detail}")]
pub struct Violation {
    /// Behaviour that the suite expects.
    pub property: &'static str,
    /// Number of the random case; the same seed gives the same cases.
    pub case: u32,
    /// Behaviour that the suite observed.
    pub detail: String,
}

/// Shows the policy `cases` random jobs and checks that it is
///
/// * *total*: every job gets a decision, with a reason if it is to do nothing;
/// * *valid*: no decision is refused (bounds and sums kept, only live workers, budget, chief);
/// * *idle where it says*: in a mode in which [`Policy::idle_in`] gives a reason it never acts;
/// * *deterministic*: a clone decides the same;
/// * *indifferent to order*: the order of nodes in the view does not matter;
/// * *sum-preserving*: [`Policy::split`] keeps the total and the bounds, and fails only if that is impossible without
///   micro-batches.
///
/// # Errors
/// The first violation.
pub fn check_policy(policy: &dyn Policy, cases: u32, seed: Seed) -> Result<(), Violation> {
    let mut policy = policy.clone_box();
    let mut rng = seed.derive("policy suite").rng();
    for case in 0..cases {
        let now = JobTime::from_duration(Duration::from_secs(u64::from(case)));
        let view = random_view(&mut rng, u64::from(case));
        let budget = RestartBudget::new(BudgetConfig {
            per_hour_least: u32::try_from(rng.below(4)).unwrap_or(0),
            at_once_percent: if rng.below(2) == 0 { 5 } else { 100 },
            chief_allowed: rng.below(4) == 0,
            ..BudgetConfig::default()
        });
        let violation = |property, detail| Violation { property, case, detail };

        let mut shuffled = view.clone();
        shuffled.workers.sort_by_cached_key(|_| rng.next_u64());
        shuffled.servers.sort_by_cached_key(|_| rng.next_u64());
        let (mut twin, mut other) = (policy.clone_box(), policy.clone_box());
        let decision = policy.decide(now, &view, &budget);
        let again = twin.decide(now, &view, &budget);
        let reordered = other.decide(now, &shuffled, &budget);

        if decision.reasons.is_empty() && !decision.acts() {
            return Err(violation("total", format!("neither an action nor a reason for {view:?}")));
        }
        if let Err(refusal) = validate(now, &decision, &view, &budget) {
            return Err(violation("valid", format!("{refusal}; {decision:?} for {view:?}")));
        }
        if decision.acts() && policy.idle_in(view.mode).is_some() {
            let detail = format!("{decision:?} in a mode in which it is said to be idle, for {view:?}");
            return Err(violation("idle where it says", detail));
        }
        if decision != again {
            return Err(violation("deterministic", format!("{decision:?}, then {again:?} for {view:?}")));
        }
        if in_order(&decision) != in_order(&reordered) {
            return Err(violation(
                "indifferent to order",
                format!("{decision:?}, then {reordered:?} for {view:?}"),
            ));
        }
        check_split(policy.as_ref(), &mut rng).map_err(|detail| violation("sum-preserving", detail))?;
        policy.on_outcome(now, &ActionOutcome::PlanApplied { version: PlanVersion(u64::from(case)) });
    }
    Ok(())
}

/// Checks a user-defined action: it has names and a description, it recognises the decisions that ask for it,
/// it accepts a decision that asks for nothing, and it hands over exactly what is asked of it. `asked` is a
/// decision that asks for this action alone.
///
/// # Errors
/// A description of what is wrong.
pub fn check_action(action: &dyn Action, asked: &Decision) -> Result<(), String> {
    let name = action.name();
    if name.is_empty() || action.about().is_empty() || action.dry_name() != format!("WOULD_{name}") {
        return Err(format!("{name}: a name, WOULD_ and the name, and a line on what it does are needed"));
    }
    let (mut from, mut to) = (asked.clone(), Decision::default());
    if !action.is_asked(asked) || action.is_asked(&to) {
        return Err(format!("{name} does not know a decision that asks for it from one that does not"));
    }
    let (view, budget) = (quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]), RestartBudget::default());
    let nothing = Asked { now: JobTime::ZERO, decision: &to, view: &view, budget: &budget };
    action
        .check(&nothing)
        .map_err(|refusal| format!("{name} refuses a decision to do nothing: {refusal}"))?;
    action.hand_over(&mut from, &mut to);
    if from != Decision::default() || to != *asked {
        return Err(format!("{name} hands {to:?} over and keeps {from:?}"));
    }
    action.hand_over(&mut from, &mut to);
    if to != *asked {
        return Err(format!("{name} takes back what was handed over: {to:?}"));
    }
    Ok(())
}

/// Checks a user-defined action that is a value: what [`check_action`] does, for all workers and for one of them, as far as the action takes
/// such values; that the text of `value` is read as the same value; and that a value for workers that the action does not take, or for an
/// incarnation that does not run, is refused. `value` must suit a job of four workers in any sync mode.
///
/// # Errors
/// A description of what is wrong.
pub fn check_value_action<A: ValueAction>(action: &A, value: &A::Value) -> Result<(), String> {
    let (name, text) = (A::NAME, value.to_string());
    let read = action
        .read(&text)
        .map_err(|error| format!("{name} does not read its own value `{text}`: {error}"))?;
    if read.to_string() != text {
        return Err(format!("{name} reads `{text}` as `{read}`"));
    }
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    let life = |incarnation| Some(Holder::new(NodeId::worker(1), Incarnation(incarnation)));
    for (target, is_taken) in [
        (None, A::REACH != Reach::Worker),
        (life(0), A::REACH != Reach::Job),
        (life(1), false),
        (Some(Holder::new(NodeId::worker(9), Incarnation(0))), false),
    ] {
        let mut asked = Decision::default();
        match target {
            None => asked.ask::<A>(value),
            Some(target) => asked.ask_worker::<A>(target, value),
        }
        if A::in_force(&asked.actions, target) != Some(&*text) {
            return Err(format!("{name} does not find its value in {:?}", asked.actions));
        }
        check_action(action, &asked)?;
        let budget = RestartBudget::default();
        let checked = Action::check(
            action,
            &Asked { now: JobTime::ZERO, decision: &asked, view: &view, budget: &budget },
        );
        let is_refused = matches!(
            checked,
            Err(Refusal::Reach { .. } | Refusal::NotRunning { .. } | Refusal::OtherLife { .. })
        );
        if is_refused == is_taken {
            return Err(format!("{name} is asked for {:?} and says {checked:?}", asked.actions));
        }
    }
    Ok(())
}

/// A decision without the order of its node actions.
fn in_order(decision: &Decision) -> Decision {
    let mut decision = decision.clone();
    decision.node_actions.sort_by_key(|action| action.target);
    decision
}

fn check_split(policy: &dyn Policy, rng: &mut DetRng) -> Result<(), String> {
    let seats: Vec<Seat> = (0..number(rng, 9))
        .map(|index| {
            let batch_size_min = number(rng, 10);
            Seat {
                id: NodeId::worker(index),
                batch_size_min,
                batch_size_max: batch_size_min + number(rng, 100),
                estimate: (rng.below(3) > 0).then(|| {
                    let sample_time = Duration::from_nanos(rng.below(1_000_000));
                    random_estimate(rng, sample_time)
                }),
            }
        })
        .collect();
    let total = number(rng, 300);
    let least: u32 = seats.iter().map(|seat| seat.batch_size_min).sum();
    let most: u32 = seats.iter().map(|seat| seat.batch_size_max).sum();
    let possible = !seats.is_empty() && total > 0 && (least..=most).contains(&total);
    match policy.split(total, &seats) {
        Err(_) if !possible => Ok(()),
        Err(e) => Err(format!("{e} for {total} among {seats:?}")),
        Ok(split) => {
            let sizes = &split.batch_sizes;
            let fits = |seat: &Seat| {
                let count = split.accumulation.get(&seat.id).copied().unwrap_or(1).max(1);
                sizes.get(&seat.id).is_some_and(|size| {
                    size / count >= seat.batch_size_min && size.div_ceil(count) <= seat.batch_size_max
                })
            };
            let kept =
                sizes.values().sum::<u32>() == total && sizes.len() == seats.len() && seats.iter().all(fits);
            if kept { Ok(()) } else { Err(format!("{split:?} for {total} among {seats:?}")) }
        }
    }
}

fn number(rng: &mut DetRng, below: u32) -> u32 {
    u32::try_from(rng.below(u64::from(below))).unwrap_or(0)
}

/// Returns a random view of a job, in a likely or an unlikely state.
pub fn random_view(rng: &mut DetRng, tick: u64) -> ClusterView {
    let modes = Capabilities::COMMON;
    let mode = modes[rng.below(modes.len() as u64) as usize];
    // Mostly quiet jobs: otherwise a policy would hardly ever get to decide something.
    let noisy = rng.below(4) == 0;
    let workers: Vec<NodeView> =
        (0..number(rng, 9)).map(|index| random_node(rng, NodeId::worker(index), noisy)).collect();
    let servers_count = if mode.needs_servers() { number(rng, 5) } else { 0 };
    let servers = (0..servers_count).map(|index| random_node(rng, NodeId::server(index), noisy)).collect();
    let in_use: u32 =
        workers.iter().filter(|node| node.status == NodeStatus::Running).map(|node| node.batch_size).sum();
    ClusterView {
        tick,
        mode,
        elastic: rng.below(4) > 0,
        membership: MembershipVersion(1),
        membership_changed: noisy && rng.below(4) == 0,
        plan: PlanVersion(1),
        plan_pending: noisy && rng.below(4) == 0,
        actions: std::sync::Arc::default(),
        hosts: random_hosts(rng),
        global_batch_size: if noisy { number(rng, 500) } else { in_use },
        workers,
        servers,
        step: (rng.below(2) == 0).then(|| StepView {
            plan: PlanVersion(1),
            steps: number(rng, 40),
            time: Duration::from_millis(rng.below(1000)),
            overhead: Duration::from_millis(rng.below(100)),
        }),
        progress: Progress {
            committed: rng.below(1_000_000),
            expected: rng.below(100_000_000),
            samples_per_second: if rng.below(8) == 0 { 0.0 } else { rng.unit() * 1e4 },
        },
        scheduler: SchedulerView {
            start_delay: Duration::from_millis(rng.below(200_000)),
            busy: rng.below(4) == 0,
        },
        server_weights: random_weights(rng, servers_count),
        hands_over: mode.needs_servers() && rng.below(2) == 0,
        checkpoint_time: (rng.below(2) == 0).then(|| Duration::from_millis(rng.below(10_000))),
    }
}

/// Equal weights of servers, or any.
fn random_weights(rng: &mut DetRng, servers: u32) -> ServerWeights {
    let mut weight = || 1 + number(rng, ServerWeights::MOST);
    let any: Vec<u32> = (0..servers).map(|_| weight()).collect();
    let weights = if weight() % 2 == 0 { Vec::new() } else { any };
    ServerWeights::new(&weights).expect("weights from 1 on")
}

/// Names of the hosts of random jobs.
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];

/// What a launcher may choose among: nothing, one host, or several.
fn random_hosts(rng: &mut DetRng) -> std::sync::Arc<BTreeSet<String>> {
    let count = number(rng, 6).min(4) as usize;
    std::sync::Arc::new(HOSTS[..count].iter().map(|host| (*host).to_owned()).collect())
}

fn random_estimate(rng: &mut DetRng, sample_time: Duration) -> PaceEstimate {
    PaceEstimate { sample_time, spread: 0.02 + rng.unit(), batches: 2 + number(rng, 63) }
}

fn random_node(rng: &mut DetRng, id: NodeId, noisy: bool) -> NodeView {
    let batch_size_min = number(rng, 4);
    let batch_size_max = 64 + number(rng, 1000);
    let mut slowness = if rng.below(3) == 0 { 1.0 + rng.unit() * 9.0 } else { 0.9 + rng.unit() * 0.2 };
    if noisy && rng.below(8) == 0 {
        slowness = [0.0, 1e-9, 1e12][number(rng, 3) as usize];
    }
    let pace = match number(rng, 8) {
        0 => Pace::Unknown,
        1 => Pace::Leader,
        2 => Pace::Straggler(StragglerKind::Deterministic),
        3 => Pace::Straggler(StragglerKind::Transient),
        _ if slowness > 1.5 => Pace::Straggler(StragglerKind::Persistent),
        _ => Pace::Normal,
    };
    let status = match number(rng, if noisy { 8 } else { 40 }) {
        0 => NodeStatus::Pending,
        1 => NodeStatus::Draining,
        2 => NodeStatus::Finished,
        3 => NodeStatus::Lost,
        _ => NodeStatus::Running,
    };
    let unknown = noisy && rng.below(4) == 0;
    let time = Duration::from_micros(100).mul_f64(slowness);
    let incarnation = number(rng, 4);
    NodeView {
        id,
        incarnation: Incarnation(incarnation),
        device: DeviceClass(["cpu", "old", "new"][number(rng, 3) as usize].into()),
        host: HOSTS[id.index as usize / 2 % HOSTS.len()].into(),
        status,
        batch_size: batch_size_min + number(rng, batch_size_max - batch_size_min + 1),
        micro_batches: 1,
        batch_size_min,
        batch_size_max,
        pace,
        sample_time_short: (!unknown).then_some(time),
        sample_time_long: (rng.below(2) == 0).then_some(time),
        estimate: (!unknown).then(|| random_estimate(rng, time)),
        batch: (!unknown).then(|| BatchView {
            plan: PlanVersion(rng.below(4)),
            samples: number(rng, 300),
            micro_batches: number(rng, 5),
            compute: time.saturating_mul(number(rng, 300)),
            batches: number(rng, 12),
        }),
        slowness_ratio: (!unknown).then_some(slowness),
        slow_fraction_long: rng.unit(),
        last_report_age: Some(Duration::from_millis(rng.below(10_000))),
        restarts: incarnation,
        chief: id == NodeId::worker(0),
    }
}

/// Returns the view of a synchronous job without stragglers: one worker for each of `sample_times_us` (its
/// time per sample, in microseconds), with equal batches of 64 samples.
pub fn quiet_view(mode: Capabilities, sample_times_us: &[u64]) -> ClusterView {
    let workers: BTreeMap<NodeId, u64> =
        (0..).map(NodeId::worker).zip(sample_times_us.iter().copied()).collect();
    let mut sorted = sample_times_us.to_vec();
    sorted.sort_unstable();
    let typical = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(1);
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = |time: u64| time as f64 / typical as f64;
    ClusterView {
        tick: 1,
        mode,
        elastic: true,
        membership: MembershipVersion(1),
        membership_changed: false,
        plan: PlanVersion(1),
        plan_pending: false,
        actions: std::sync::Arc::default(),
        hosts: std::sync::Arc::default(),
        global_batch_size: 64 * u32::try_from(workers.len()).unwrap_or(0),
        workers: workers
            .into_iter()
            .map(|(id, time)| NodeView {
                id,
                incarnation: Incarnation(0),
                device: DeviceClass::default(),
                host: "host".into(),
                status: NodeStatus::Running,
                batch_size: 64,
                micro_batches: 1,
                batch_size_min: 1,
                batch_size_max: 1024,
                pace: if ratio(time) >= 1.3 {
                    Pace::Straggler(StragglerKind::Transient)
                } else {
                    Pace::Normal
                },
                sample_time_short: Some(Duration::from_micros(time)),
                sample_time_long: Some(Duration::from_micros(time)),
                estimate: Some(PaceEstimate {
                    sample_time: Duration::from_micros(time),
                    spread: 0.02,
                    batches: 64,
                }),
                batch: Some(BatchView {
                    plan: PlanVersion(1),
                    samples: 64,
                    micro_batches: 1,
                    compute: Duration::from_micros(time) * 64,
                    batches: 32,
                }),
                slowness_ratio: Some(ratio(time)),
                slow_fraction_long: 0.0,
                last_report_age: Some(Duration::ZERO),
                restarts: 0,
                chief: id == NodeId::worker(0),
            })
            .collect(),
        servers: Vec::new(),
        server_weights: ServerWeights::default(),
        hands_over: mode.needs_servers(),
        checkpoint_time: mode.needs_servers().then_some(Duration::from_secs(2)),
        step: None,
        progress: Progress { committed: 0, expected: 1_000_000, samples_per_second: 1000.0 },
        scheduler: SchedulerView { start_delay: Duration::from_secs(10), busy: false },
    }
}

#[cfg(test)]
mod tests;
