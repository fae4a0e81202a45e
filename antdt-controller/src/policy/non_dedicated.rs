//! `AntDT-ND`: the policy for shared clusters, where nodes become slow and fast again.
//!
//! | finding | all-reduce, synchronous servers | asynchronous servers |
//! |---|---|---|
//! | worker slow for a while | new batch sizes, if the step gets shorter by 5 % | nothing: shards go where speed is |
//! | worker slow all the time, a restart pays | restart | restart |
//! | worker slow all the time, a restart does not pay | new batch sizes | nothing |
//! | server slow all the time, other shares pay | other shares of the parameters | nothing: how long workers wait for it is not known |
//! | the same, a restart saves more | restart of all servers | nothing |
//!
//! # When a restart pays
//!
//! With `D` the time until the node is back, `v_s` and `v_n` its speed now and after, `V` the speed of all others
//! and `R` the pause of all workers per change of the membership, a restart makes the job shorter only if this long is
//! left of it:
//!
//! | mode | break-even |
//! |---|---|
//! | asynchronous | `D · v_n / (v_n - v_s)` |
//! | synchronous, the others go on meanwhile | `(v_n · D + 2 R · V) / (v_n - v_s)` |
//! | synchronous, all workers wait | `D · (V + v_n) / (v_n - v_s)` |
//!
//! The comparison is with a job that is already balanced as well as it can be. A factor can be put on top.
//!
//! A hand-over of the servers stops all workers for `D + R + 2 W`, where a checkpoint takes `W` to be written, and is taken to need as
//! long to be read. It saves a part of `overhead / step`, the part of a step in which the slowest worker does not compute. With the
//! slowest server at `L` times the time of a healthy one with an equal share of the parameters, and at `T` times with the best shares,
//! other shares save the part `1 - T/L` and a restart the part `restart-cures * (1 - 1/L)`. Of both that which saves more is taken;
//! what is left of the job must exceed
//! `(D + R + 2 W) / (overhead / step * saved)`.
//!
//! # When to look again
//!
//! There is no minimum interval in seconds. A plan is made as soon as the [speeds to count on](crate::speed) show one that
//! is worth it: a tentative one after two or three slow batches. Once all speeds are known from `SURE_BATCHES` batches,
//! a plan that gains 1 % mends it. Between two plans there are at least `SETTLED_STEPS` steps, whether a step takes 80 ms or 30 s.
//!
//! Batch sizes may change by any factor in one plan. A limit of, say, 2 would cost a 4x slow worker a second round
//! of slow steps, while a plan made of a wrong estimate is corrected after the same steps.
//!
//! # Noise and promises
//!
//! A worker counts as slower than its peers only as far as noise cannot explain it, with a stated error rate
//! ([`speed`](crate::speed)). What a plan promises is the cut of the [expected step](antdt_cost::forecast), noise and
//! communication included. When the plan has been in force for some steps, the master compares them with the promise;
//! of later promises only the share counts that earlier ones kept, half of it by the newest one.
//!
//! Source: our design, made to agree with what the `AntDT` paper's abstract and summaries of it say: batch sizes
//! against transient stragglers, restarts against persistent ones unless the cluster is busy.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{
    ActionOutcome, Barrier, ClusterView, Forecast, Holder, Incarnation, JobTime, NodeActionKind, NodeId,
    NodeView, Pace, PaceEstimate, Reason, ServerWeights, StragglerKind,
};

use super::class_speeds::{ClassSpeeds, speed};
use super::outage::Outage;
use super::server_load::ServerLoad;
use super::{Decision, Policy, ProposedAction, Seat, Split, percent, split_by};
use crate::action;
use crate::apportion::{ApportionError, Share, apportion};
use crate::budget::RestartBudget;
use crate::speed::believed;
use antdt_core::registry::SettingSet;
use antdt_cost::forecast::expected_step;

antdt_core::settings! {
    /// Settings of [`NonDedicated`].
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct NonDedicatedConfig {
        /// Least predicted gain of new batch sizes, in percent of the step time. Default 5: above the noise of
        /// medians.
        pub gain_min_percent: u32 = 5, "least predicted gain of new batch sizes, percent of the step time",
            "a whole number of percent";
        /// Chance that noise alone makes any worker of the job count as slower or faster than its peers, above 0
        /// and below 1. Default 0.001: of 3,600 simulated jobs without a straggler, none acted with noise of up
        /// to 20 %; a value ten times as large saves less than a batch of delay.
        pub error_rate: f64 = 0.001, "chance that noise alone makes a worker of the job count as slower than its peers",
            "a number above 0 and below 1", if |rate| rate > 0.0 && rate < 1.0,
            else "above 0 and below 1: the chance that noise alone causes new batch sizes";
        /// Share of the live workers whose time per sample must be known before the policy acts, in percent.
        /// Default 90.
        pub known_min_percent: u32 = 90, "share of the live workers whose speed must be known, percent",
            "1 to 100 percent", if |percent| (1..=100).contains(&percent), else "1 to 100 percent of the workers";
        /// Factor by which the time left of the job must exceed the break-even time of a restart. Default 1:
        /// near the break-even time a mistake to either side costs next to nothing.
        pub safety_factor: f64 = 1.0, "times the break-even time that the job must have to go for a restart",
            "a number of at least 1", if |factor| factor.is_finite() && factor >= 1.0,
            else "a number of at least 1: times the break-even time that must be left";
        /// Pause of all workers when the membership changes (`R` in the [module](self)). Default 1 s: forming a
        /// group and copying a model.
        pub reform_pause: Duration = Duration::from_secs(1), "pause of every worker when the membership changes";
        /// Time that a node has to finish its batch before it is killed. Default 30 s.
        pub drain: Duration = Duration::from_secs(30), "time that a node has to finish its batch before it is killed";
        /// Fraction of the former slowness ratio below which a restart counts as a cure. Default 0.8.
        pub cured_below: f64 = 0.8, "part of its slowness that a restarted node may keep and count as cured",
            "above 0 and at most 1", if |part| part > 0.0 && part <= 1.0,
            else "above 0 and at most 1: the part of its slowness that a cured node has left";
        /// Chance that the restart of a slow server cures it, 0 to 1, as long as this job has tried none. Default 0.5: nothing is known.
        /// Other shares of the parameters surely help, and go first where they save as much as a restart with this chance.
        pub restart_cures: f64 = 0.5, "chance that the restart of a slow server cures it, before the job has tried one",
            "0 to 1", if |chance| (0.0..=1.0).contains(&chance),
            else "0 to 1: the chance that the restart of a slow server cures it";
    }
}

/// Steps under a plan before the next one. 3: what a plan did can be seen, and a wrong one does not last.
pub(super) const SETTLED_STEPS: u32 = 3;

/// Batches since its last change of pace after which a worker's speed is known well. 20: a median of them is off by a
/// quarter of the noise of one.
pub(super) const SURE_BATCHES: u32 = 20;

/// Least predicted gain of the plan that mends a tentative one, percent of the step time.
const MENDED_PERCENT: u32 = 1;

/// Least share of a promise that counts, however badly earlier ones were kept. 0.1: a gain of half of the step time is
/// tried again all the same.
const TRUST_MIN: f64 = 0.1;

/// Least part of the time of the slowest server that other shares must save. 0.15: a ratio may be off by 8 % without another hand-over,
/// which would stop all workers for what the next one takes back; a 3x slow server of four that recovers gets its share back.
const EVENED_MIN: f64 = 0.15;

/// Time of the slowest server, in units of a healthy one with an equal share, from which on it holds workers up: 1.3, that of a label.
const HOLDS_UP: f64 = 1.3;

/// Slowness up to which a worker counts as like its peers when a plan says why it is made, in percent.
const ALIKE_PERCENT: u32 = 105;

/// What a node was like when its restart was proposed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Strike {
    incarnation: Incarnation,
    slowness_ratio: f64,
}

/// The policy `AntDT-ND`: new batch sizes against stragglers that come and go, and restarts against those
/// that stay, if a restart pays.
///
/// The [module](self) has the rules.
#[doc(alias = "AntDT-ND")]
#[derive(Debug, Clone)]
pub struct NonDedicated {
    config: NonDedicatedConfig,
    strikes: BTreeMap<NodeId, Strike>,
    /// Share of what plans promised that came, 0 to 1.
    trust: f64,
    /// Whether the newest plan was made of few batches, and is to be mended once there are more.
    tentative: bool,
}

impl Default for NonDedicated {
    fn default() -> Self {
        Self::new(NonDedicatedConfig::default())
    }
}

impl NonDedicated {
    /// Returns the policy with these settings.
    pub const fn new(config: NonDedicatedConfig) -> Self {
        Self { config, strikes: BTreeMap::new(), trust: 1.0, tentative: false }
    }

    /// Name of the policy in the registry.
    pub const NAME: &'static str = "nd";

    /// Chance that noise alone makes any worker count as slower.
    pub(super) const fn error_rate(&self) -> f64 {
        self.config.error_rate
    }

    /// Least predicted gain of new batch sizes, percent of the step time.
    pub(super) const fn gain_min_percent(&self) -> u32 {
        self.config.gain_min_percent
    }

    /// Pause of all workers when the membership changes.
    pub(super) const fn reform_pause(&self) -> Duration {
        self.config.reform_pause
    }

    /// Whether the speeds of enough workers are known to decide anything.
    ///
    /// # Errors
    /// If they are not.
    pub(super) fn knows(&self, live: &[&NodeView]) -> Result<(), Reason> {
        let known = live.iter().filter(|node| speed(node).is_some()).count();
        let percent = usize::try_from(self.config.known_min_percent).unwrap_or(100);
        let needed = (live.len() * percent).div_ceil(100).max(1);
        if known < needed { Err(Reason::NotEnoughData { known, needed }) } else { Ok(()) }
    }

    /// Restarts that pay. Why others do not goes to `reasons`.
    pub(super) fn restarts(
        &mut self,
        now: JobTime,
        view: &ClusterView,
        live: &[&NodeView],
        budget: &RestartBudget,
        reasons: &mut Vec<Reason>,
    ) -> Vec<ProposedAction> {
        let mut persistent: Vec<&NodeView> = live
            .iter()
            .copied()
            .filter(|node| node.pace == Pace::Straggler(StragglerKind::Persistent))
            .collect();
        // The slowest first; equal ones by id.
        let ratio = |node: &NodeView| node.slowness_ratio.unwrap_or(1.0);
        persistent.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)).then(a.id.cmp(&b.id)));

        if persistent.is_empty() {
            return Vec::new();
        }
        let speeds = ClassSpeeds::of(live);
        let mut free = budget.room(now, live.len());
        let has_cured = self.has_cured(view);
        let mut actions = Vec::new();
        for node in persistent {
            let Some(break_even) = self.break_even(view, &speeds, node) else { continue };
            if let Err(reason) = self.may_restart(now, view, node, break_even, budget, live.len()) {
                reasons.push(reason);
                continue;
            }
            if free == 0 {
                reasons.push(Reason::TooSoon);
                break;
            }
            free -= 1;
            self.strikes
                .insert(node.id, Strike { incarnation: node.incarnation, slowness_ratio: ratio(node) });
            actions.push(ProposedAction {
                target: Holder::new(node.id, node.incarnation),
                kind: NodeActionKind::KillRestart { drain: self.config.drain },
                reason: Reason::PersistentStraggler {
                    node: node.id,
                    slowness_percent: percent(ratio(node)),
                    has_cured,
                },
            });
        }
        actions
    }

    /// What is done about the slowest server: other shares of the parameters, or its restart, if that pays. Why it does not, and that
    /// a server is slow for a while, goes to `reasons`. Shares follow a server that is slow no more, too.
    pub(super) fn server_action(
        &mut self,
        now: JobTime,
        view: &ClusterView,
        budget: &RestartBudget,
        reasons: &mut Vec<Reason>,
    ) -> Option<ProposedAction> {
        let load = ServerLoad::of(view)?;
        let slow = view.servers.iter().filter(|node| node.pace.is_straggler());
        // Equal ones by id, whatever their order in the view.
        let slowest =
            |a: &&NodeView, b: &&NodeView| slowness_of(a).total_cmp(&slowness_of(b)).then(b.id.cmp(&a.id));
        let evened = 1.0 - load.with(&load.best()) / load.now();
        let recovered = || load.recovered(view, SURE_BATCHES).filter(|_| evened >= EVENED_MIN);
        let server = slow.max_by(slowest).or_else(recovered)?;
        match self.for_server(now, view, &load, server, budget) {
            Ok(action) => {
                if server.pace.is_straggler() {
                    // Other shares start it again, too: what they do not cure, a restart does not either.
                    let strike =
                        Strike { incarnation: server.incarnation, slowness_ratio: slowness_of(server) };
                    self.strikes.insert(server.id, strike);
                }
                Some(action)
            }
            Err(reason) => {
                reasons.push(reason);
                None
            }
        }
    }

    fn for_server(
        &self,
        now: JobTime,
        view: &ClusterView,
        load: &ServerLoad,
        server: &NodeView,
        budget: &RestartBudget,
    ) -> Result<ProposedAction, Reason> {
        let (id, target) = (server.id, Holder::new(server.id, server.incarnation));
        let outage = Outage::of(view, server, self.config.reform_pause)?;
        let (before, weights) = (load.now(), load.best());
        let evened = 1.0 - load.with(&weights) / before;
        let cures = if self.restart_did_not_help(server) { 0.0 } else { self.config.restart_cures };
        let cured = cures * (1.0 - 1.0 / before.max(1.0));
        let workers = view.live_workers().count();
        let slowness_percent = percent(slowness_of(server));
        let (kind, reason) = if evened >= EVENED_MIN && evened >= cured {
            let break_even = outage.break_even(evened);
            self.may_repartition(now, view, server, break_even, budget, workers)?;
            let share = |weights: &ServerWeights| {
                percent(weights.share(id.index, u32::try_from(view.servers.len()).unwrap_or(u32::MAX)))
            };
            let reason = Reason::Repartition {
                node: id,
                slowness_percent,
                share_percent: share(&weights),
                before_percent: share(&view.server_weights),
                gain_percent: percent(evened),
            };
            (NodeActionKind::Repartition { weights }, reason)
        } else if before < HOLDS_UP {
            return Err(Reason::Other(format!(
                "{id} is slow; its share of the parameters is as small as it should be"
            )));
        } else {
            let break_even = outage.break_even(cured);
            self.may_restart(now, view, server, break_even, budget, workers)?;
            let kind = NodeActionKind::KillRestart { drain: self.config.drain };
            (
                kind,
                Reason::PersistentStraggler { node: id, slowness_percent, has_cured: self.has_cured(view) },
            )
        };
        match budget.room(now, workers) {
            0 => Err(Reason::TooSoon),
            _ => Ok(ProposedAction { target, kind, reason }),
        }
    }

    fn may_repartition(
        &self,
        now: JobTime,
        view: &ClusterView,
        server: &NodeView,
        break_even: Duration,
        budget: &RestartBudget,
        workers: usize,
    ) -> Result<(), Reason> {
        if view.scheduler.busy {
            let why = format!("{} keeps its share of the parameters: nodes are hard to get now", server.id);
            return Err(Reason::Other(why));
        }
        if !self.is_worth(view, break_even) {
            return Err(Reason::RepartitionNotWorthIt { node: server.id, break_even });
        }
        budget.allows(now, server.id, workers).map_err(|refusal| refusal.reason(server.id))
    }

    /// Whether the job goes on for so long that an action pays.
    fn is_worth(&self, view: &ClusterView, break_even: Duration) -> bool {
        let pays = |left: Duration| left.as_secs_f64() > break_even.as_secs_f64() * self.config.safety_factor;
        view.progress.remaining().is_some_and(pays)
    }

    fn may_restart(
        &self,
        now: JobTime,
        view: &ClusterView,
        node: &NodeView,
        break_even: Duration,
        budget: &RestartBudget,
        workers: usize,
    ) -> Result<(), Reason> {
        if node.chief && !budget.config().chief_allowed {
            return Err(Reason::Other(format!("{} is the chief, which is not restarted", node.id)));
        }
        if self.restart_did_not_help(node) {
            return Err(Reason::RestartDidNotHelp { node: node.id });
        }
        if view.scheduler.busy {
            return Err(Reason::Other(format!("{} is not restarted: nodes are hard to get now", node.id)));
        }
        if !self.is_worth(view, break_even) {
            return Err(Reason::RestartNotWorthIt { node: node.id, break_even });
        }
        budget.allows(now, node.id, workers).map_err(|refusal| refusal.reason(node.id))
    }

    /// Whether the node was restarted for slowness before and is slow again, hardly less than it was.
    fn restart_did_not_help(&self, node: &NodeView) -> bool {
        self.slowness_left(node).is_some_and(|left| left > self.config.cured_below)
    }

    /// Whether a node that was restarted for slowness is known to be cured.
    fn has_cured(&self, view: &ClusterView) -> bool {
        let is_sure = |node: &&NodeView| node.estimate.is_some_and(|it| it.batches >= SURE_BATCHES);
        let nodes = view.workers.iter().chain(&view.servers).filter(is_sure);
        nodes.filter_map(|node| self.slowness_left(node)).any(|left| left <= self.config.cured_below)
    }

    /// Part of its slowness that a node still has which was restarted for it.
    fn slowness_left(&self, node: &NodeView) -> Option<f64> {
        let strike = self.strikes.get(&node.id).filter(|strike| node.incarnation > strike.incarnation)?;
        Some(node.slowness_ratio? / strike.slowness_ratio)
    }

    /// How long the job must go on for a restart of `node` to pay; `None` if it is no slower than its peers.
    fn break_even(&self, view: &ClusterView, speeds: &ClassSpeeds<'_>, node: &NodeView) -> Option<Duration> {
        let slow = speed(node)?;
        // Its peers' median is what it can be expected to reach.
        let normal = speeds.median_beside(node, slow)?;
        let others = speeds.total - slow;
        let gain = normal - slow;
        if gain <= 0.0 {
            return None;
        }
        let delay = view.scheduler.start_delay.as_secs_f64();
        let pause = self.config.reform_pause.as_secs_f64();
        let seconds = match view.mode.barrier {
            // What the others gain besides, where the slow one holds them back, comes on top.
            Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => delay * normal / gain,
            Barrier::All | Barrier::AllBut(_) if view.elastic => {
                (normal * delay + 2.0 * pause * others) / gain
            }
            Barrier::All | Barrier::AllBut(_) => delay * (others + normal) / gain,
        };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// New batch sizes, or why not.
    fn rebalance(
        &self,
        view: &ClusterView,
        live: &[&NodeView],
        gain_min_percent: u32,
    ) -> Result<Rebalance, Reason> {
        if view.step.is_some_and(|step| step.plan < view.plan || step.steps < SETTLED_STEPS) {
            return Err(Reason::TooSoon);
        }
        let seats: Vec<Seat> = live.iter().map(|node| Seat::from(*node)).collect();
        let shares = self.shares(&seats).ok_or(Reason::NotEnoughData { known: 0, needed: live.len() })?;
        let solution =
            apportion(view.global_batch_size, 1, &shares).map_err(|e| Reason::Other(e.to_string()))?;

        // A plan that does not add up to the global batch (the first ones of a worker that joined) is always mended.
        let adds_up = live.iter().map(|node| u64::from(node.batch_size)).sum::<u64>()
            == u64::from(view.global_batch_size);
        let refuse = |percent: u32| match percent {
            0 => Reason::Balanced,
            percent => Reason::GainTooSmall { percent },
        };
        // Without noise a plan gains most: if that is too little, the rest need not be computed.
        let step_now = live.iter().zip(&shares).map(|(node, share)| share.time(node.batch_size)).max();
        let most = gain(step_now.unwrap_or_default(), solution.step_time);
        if adds_up && most < gain_min_percent {
            return Err(refuse(most));
        }
        let forecast = self.forecast(view, live, &shares, &solution.batch_sizes);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
        let gain_percent = (forecast.promised() * self.trust * 100.0) as u32;
        if adds_up && gain_percent < gain_min_percent {
            return Err(refuse(gain_percent));
        }

        let slowest = shares.iter().max_by(|a, b| a.sample_time.cmp(&b.sample_time).then(b.id.cmp(&a.id)));
        let slowest = slowest.expect("a problem that was solved has workers");
        let mut times: Vec<Duration> = shares.iter().map(|share| share.sample_time).collect();
        times.sort_unstable();
        let typical = times[(times.len() - 1) / 2];
        let slowness_percent = percent(slowest.sample_time.as_secs_f64() / typical.as_secs_f64());
        let reason = if slowness_percent <= ALIKE_PERCENT {
            Reason::AlikeAgain { gain_percent }
        } else {
            Reason::Rebalance { slowest: slowest.id, slowness_percent, gain_percent }
        };
        Ok(Rebalance { batch_sizes: solution.batch_sizes, forecast, reason })
    }

    /// How long a step takes with the batch sizes in force and with others.
    fn forecast(
        &self,
        view: &ClusterView,
        live: &[&NodeView],
        shares: &[Share],
        batch_sizes: &BTreeMap<NodeId, u32>,
    ) -> Forecast {
        let overhead = view.step.map_or(Duration::ZERO, |step| step.overhead);
        let step = |samples: &mut dyn Iterator<Item = u32>| {
            let batch = |((node, share), samples): ((&&NodeView, &Share), u32)| {
                (share.time(samples), node.estimate.map_or(0.0, |estimate| estimate.spread))
            };
            let batches: Vec<(Duration, f64)> = live.iter().zip(shares).zip(samples).map(batch).collect();
            expected_step(&batches) + overhead
        };
        // Both are in the order of ids, and of the same workers.
        Forecast {
            without: step(&mut live.iter().map(|node| node.batch_size)),
            with: step(&mut batch_sizes.values().copied()),
        }
    }

    /// The problem of sharing samples among these workers; `None` if no time per sample is known.
    fn shares(&self, seats: &[Seat]) -> Option<Vec<Share>> {
        let estimates: Vec<Option<PaceEstimate>> = seats.iter().map(|seat| seat.estimate).collect();
        let times = believed(&estimates, self.config.error_rate)?;
        let share = |(seat, time): (&Seat, Duration)| {
            Share::new(seat.id, time.max(Duration::from_nanos(1)), seat.batch_size_min, seat.batch_size_max)
        };
        Some(seats.iter().zip(times).map(share).collect())
    }
}

/// New batch sizes, and why.
struct Rebalance {
    batch_sizes: BTreeMap<NodeId, u32>,
    forecast: Forecast,
    reason: Reason,
}

/// What is gained of a step time, in whole percent of it.
fn gain(now: Duration, then: Duration) -> u32 {
    let (now, gained) = (now.as_nanos(), now.saturating_sub(then).as_nanos());
    u32::try_from((gained * 100).checked_div(now).unwrap_or(0)).unwrap_or(100)
}

/// Time per sample or byte of a node over that of its peers.
fn slowness_of(node: &NodeView) -> f64 {
    node.slowness_ratio.unwrap_or(1.0)
}

impl Policy for NonDedicated {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![action::AdjustBs::NAME, action::Repartition::NAME, action::KillRestart::NAME]
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        if view.plan_pending || view.membership_changed {
            return Decision::nothing(Reason::Unsettled);
        }
        let mut live: Vec<&NodeView> = view.live_workers().collect();
        live.sort_by_key(|node| node.id);
        if let Err(reason) = self.knows(&live) {
            return Decision::nothing(reason);
        }

        let mut decision = Decision::default();
        decision.node_actions = self.restarts(now, view, &live, budget, &mut decision.reasons);
        if decision.node_actions.is_empty() {
            let of_server = self.server_action(now, view, budget, &mut decision.reasons);
            decision.node_actions.extend(of_server);
        }
        if !decision.node_actions.is_empty() {
            return decision;
        }
        if view.mode.sums_to_global_batch() {
            let is_sure = |node: &&NodeView| node.estimate.is_none_or(|it| it.batches >= SURE_BATCHES);
            let sure = live.iter().all(is_sure);
            let mends = sure && std::mem::take(&mut self.tentative);
            let least = self.config.gain_min_percent;
            match self.rebalance(view, &live, if mends { least.min(MENDED_PERCENT) } else { least }) {
                Ok(Rebalance { batch_sizes, forecast, reason }) => {
                    self.tentative = !sure;
                    decision.batch_sizes = Some(batch_sizes);
                    decision.forecast = Some(forecast);
                    decision.reasons.push(reason);
                }
                Err(reason) => decision.reasons.push(reason),
            }
        } else if decision.reasons.is_empty() {
            decision.reasons.push(Reason::Balanced);
        }
        decision
    }

    /// Splits in proportion to the known speeds. A worker of unknown speed counts as the median.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        split_by(self.shares(seats).as_deref(), total, seats)
    }

    fn on_outcome(&mut self, _now: JobTime, outcome: &ActionOutcome) {
        if let ActionOutcome::Measured { forecast, step, .. } = outcome
            && forecast.promised() > 0.0
        {
            let kept = (forecast.cut(*step) / forecast.promised()).clamp(0.0, 1.0);
            self.trust = f64::midpoint(self.trust, kept).max(TRUST_MIN);
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.config.values()
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
