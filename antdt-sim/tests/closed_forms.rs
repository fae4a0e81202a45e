//! Simulated jobs against formulas that can be written down: exact, to the rounding of a nanosecond.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::policy::{ProposedAction, REGISTRY};
use antdt_controller::{Decision, Policy, RestartBudget};
use antdt_core::{
    ClusterView, DetRng, Holder, Incarnation, JobTime, NodeActionKind, NodeId, NodeView, Reason, Role, Seed,
};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Collective, Compute, Hosts, Models, Network, Site, scheduler};
use antdt_sim::{Setup, SimulatedJob, World};

const START: Duration = Duration::from_secs(1);

/// So long for each sample, and worker 0 so many times as long.
#[derive(Debug, Clone, Copy)]
struct Pace {
    per_sample: Duration,
    slow: u32,
}

impl Pace {
    fn of(self, node: NodeId) -> Duration {
        if node == NodeId::worker(0) { self.per_sample * self.slow } else { self.per_sample }
    }
}

impl Compute for Pace {
    fn time(&mut self, _: JobTime, holder: Holder, samples: u64, _: &mut DetRng) -> Duration {
        match holder.node.role {
            Role::Server => Duration::ZERO,
            Role::Worker => self.of(holder.node) * u32::try_from(samples).unwrap(),
        }
    }
}

/// Messages take no time, a large all-reduce takes this long.
#[derive(Debug)]
struct Instant(Duration);

impl Network for Instant {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at)
    }
    fn collective(&mut self, _: JobTime, operation: Collective, _: u32, _: &mut DetRng) -> Duration {
        match operation {
            Collective::AllReduce(bytes) if bytes > 1024 => self.0,
            _ => Duration::ZERO,
        }
    }
}

fn run(setup: Setup, policy: &str, pace: Pace, network: impl Network + 'static) -> SimulatedJob {
    let models = Models {
        compute: Box::new(pace),
        network: Box::new(network),
        scheduler: Box::new(scheduler::Constant(START)),
        faults: Box::new(Listed::new([])),
    };
    let world = World::new(setup, REGISTRY.by_name(policy).unwrap(), models).unwrap();
    let (outcome, _) = world.run(JobTime::from_duration(Duration::from_secs(1_000_000))).unwrap();
    assert_eq!(outcome.result, Ok(()));
    outcome
}

fn setup(sync: &'static str, workers: u32, steps: u64) -> Setup {
    Setup {
        sync: sync.parse().unwrap(),
        workers,
        servers: u32::from(sync.starts_with("ps-")),
        global_batch_size: 60 * workers,
        samples: 60 * u64::from(workers) * steps,
        // Each worker's shard is its batch, so that no batch is cut at a shard's end.
        shard_len: Some(60),
        seed: Seed(3),
        ..Setup::default()
    }
}

/// `T = steps * (s * t * b + c)`: in a synchronous step all workers wait for the slowest.
/// Source: our formula; what the paper sets out from.
#[test]
fn a_synchronous_step_takes_the_time_of_its_slowest_worker() {
    let reduce = Duration::from_micros(1_500);
    for workers in [1, 2, 4, 7] {
        for slow in [1, 2, 5] {
            let pace = Pace { per_sample: Duration::from_millis(1), slow };
            let (steps, start) = (50, setup("allreduce", workers, 50));
            // Before the first step: the start, and the plan that comes when all have joined.
            let first = run(setup("allreduce", workers, 1), "none", pace, Instant(reduce)).completed;
            let all = run(start, "none", pace, Instant(reduce)).completed;
            let step = pace.per_sample * slow * 60 + reduce;
            assert_eq!(all.since(first), step * (steps - 1), "{workers} workers, {slow} times slower");
        }
    }
}

/// `T - N t / sum(1/s)` is at most the time of one shard on the slowest worker: the tail of dynamic sharding.
/// Source: list scheduling (Graham 1969), recalled; the bound for shards is ours.
#[test]
fn at_its_own_pace_a_job_ends_within_a_shard_of_the_ideal() {
    for slow in [1, 2, 3, 5, 10] {
        for workers in [2, 4, 8] {
            let pace = Pace { per_sample: Duration::from_millis(1), slow };
            let job = setup("ps-asp", workers, 97);
            let (samples, shard) = (job.samples, job.shard_len.unwrap());
            let took = run(job, "none", pace, Instant(Duration::ZERO)).completed.since_start() - START;
            let speed: f64 = (0..workers).map(|i| 1.0 / pace.of(NodeId::worker(i)).as_secs_f64()).sum();
            #[allow(clippy::cast_precision_loss)]
            let ideal = samples as f64 / speed;
            #[allow(clippy::cast_precision_loss)]
            let tail = shard as f64 * pace.of(NodeId::worker(0)).as_secs_f64();
            let over = took.as_secs_f64() - ideal;
            // A nanosecond for the rounding of the ideal; a heartbeat that brings the servers' addresses.
            assert!(over >= -1e-9, "{workers} workers, {slow} times slower: {over}");
            assert!(over <= tail + 0.6, "{workers} workers, {slow} times slower: {over} > {tail}");
        }
    }
}

/// With one worker of `n` slower by `s`, even batches take `s b t` a step and fitting ones `n b t / (n - 1 + 1/s)`: a gain of
/// `(s (n-1) + 1) / n`. The sizes that divide without a rest are exact.
/// Source: our formula.
#[test]
fn fitting_batches_gain_as_the_formula_says() {
    // (n, s) such that n * 60 * s / (s (n - 1) + 1) is whole: the fast batch.
    for (workers, slow, fast, slow_batch) in [(2, 2, 80, 40), (3, 2, 72, 36), (2, 5, 100, 20), (4, 3, 72, 24)]
    {
        assert_eq!((workers - 1) * fast + slow_batch, 60 * workers);
        let pace = Pace { per_sample: Duration::from_millis(1), slow };
        let outcome = run(setup("allreduce", workers, 400), "nd", pace, Instant(Duration::ZERO));
        let series = &outcome.series[&NodeId::worker(0)];
        let last = series[series.len() - 3];
        assert_eq!(
            last.samples / u64::from(last.batches),
            u64::from(slow_batch),
            "{workers} workers, {slow} times slower"
        );
        let step = last.wall / last.batches;
        assert_eq!(step, pace.per_sample * fast, "the fast and the slow take the same");
        let even = pace.per_sample * slow * 60;
        let gain = even.as_secs_f64() / step.as_secs_f64();
        let formula = f64::from(slow * (workers - 1) + 1) / f64::from(workers);
        assert!((gain - formula).abs() < 1e-9, "{gain} {formula}");
    }
}

/// `2 (n-1) alpha + 2 (n-1)/n S / beta + (n-1)/n S gamma`, a ring's.
/// Source: spec of the collectives, `antdt-collective/src/schedule/ring.rs`.
#[test]
fn a_ring_costs_as_its_formula_says() {
    let link = CostModel { alpha: 1e-3, overhead: 0.0, bandwidth: 1e8, gamma: 0.0, burst: usize::MAX };
    for workers in [2_u32, 4, 8] {
        let bytes = 8_u64 << 20;
        let network = || AlphaBeta::new(Hosts::default(), link, link, Choice::Ring).unwrap();
        let job = |bytes| Setup { gradient_bytes: bytes, ..setup("allreduce", workers, 40) };
        let pace = Pace { per_sample: Duration::from_millis(1), slow: 1 };
        let long = run(job(2 * bytes), "none", pace, network()).completed;
        let short = run(job(bytes), "none", pace, network()).completed;
        // What differs between the two is the time of the bytes alone: of 40 steps, and of the one in which all find that
        // there is nothing left.
        let n = f64::from(workers);
        #[allow(clippy::cast_precision_loss)]
        let formula = 41.0 * 2.0 * (n - 1.0) / n * bytes as f64 / link.bandwidth;
        let differs = long.since(short).as_secs_f64();
        assert!((differs - formula).abs() < 1e-6, "{workers}: {differs} {formula}");
    }
}

/// Messages take no time, and a large all-reduce what the network says.
#[derive(Debug)]
struct OnlyReduces(AlphaBeta);

impl Network for OnlyReduces {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at)
    }
    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        match operation {
            Collective::AllReduce(bytes) if bytes > 1024 => self.0.collective(at, operation, world, rng),
            _ => Duration::ZERO,
        }
    }
}

/// The same formula, all three terms of it: a step is the gradient and this, to a nanosecond.
/// Source: as above.
#[test]
fn a_step_with_a_ring_takes_its_latency_its_bytes_and_its_folding() {
    let link = CostModel { alpha: 2e-3, overhead: 0.0, bandwidth: 1e8, gamma: 3e-9, burst: usize::MAX };
    let bytes = 8_u64 << 20;
    for workers in [2_u32, 3, 4, 7, 8] {
        let steps = 50_u32;
        let pace = Pace { per_sample: Duration::from_millis(1), slow: 1 };
        let done = |steps| {
            let job = Setup { gradient_bytes: bytes, ..setup("allreduce", workers, steps) };
            let network = AlphaBeta::new(Hosts::default(), link, link, Choice::Ring).unwrap();
            run(job, "none", pace, OnlyReduces(network)).completed
        };
        // Before the first step: the start, and the plan that comes when all have joined.
        let took = done(u64::from(steps)).since(done(1));
        let n = f64::from(workers);
        #[allow(clippy::cast_precision_loss)]
        let size = bytes as f64;
        let (latency, sent, folded) = (
            2.0 * (n - 1.0) * link.alpha,
            2.0 * (n - 1.0) / n * size / link.bandwidth,
            (n - 1.0) / n * size * link.gamma,
        );
        let step = pace.per_sample * 60 + Duration::from_secs_f64(latency + sent + folded);
        let off = took.abs_diff(step * (steps - 1));
        assert!(off <= Duration::from_nanos(1) * (steps - 1), "{workers}: {took:?}, {off:?} off");
    }
}

/// Messages take no time, and models that of the bytes which each member sends.
#[derive(Debug)]
struct OnlyModels {
    bandwidth: f64,
}

impl Network for OnlyModels {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at)
    }
    fn collective(&mut self, _: JobTime, operation: Collective, world: u32, _: &mut DetRng) -> Duration {
        let others = f64::from(world - 1) / f64::from(world);
        #[allow(clippy::cast_precision_loss)]
        let sent = match operation {
            Collective::AllGather(bytes) if bytes > 1024 => others * bytes as f64,
            Collective::AllReduce(bytes) if bytes > 1024 => 2.0 * others * bytes as f64,
            _ => 0.0,
        };
        Duration::from_secs_f64(sent / self.bandwidth)
    }
}

/// `T = steps * (s * t * b + c)` where all workers are one group in each step: `c` is the time of `2 (n-1)/n` of a model, of a whole
/// one for two, which swap theirs. Members wait for the slowest of their group alone, so this is the most that a group costs.
/// Source: our formula; `docs/modes/mixing.md` has the bytes.
#[test]
fn an_average_of_a_group_takes_the_time_of_its_slowest_member_and_the_bytes_of_the_models() {
    let (bytes, bandwidth, steps) = (8_u32 << 20, 1e8, 50_u32);
    for (workers, sync) in [
        (2, "ripples=division:2"),
        (3, "ripples=division:3"),
        (4, "ripples=division:4"),
        (4, "ripples=buffer:4"),
        (4, "ripples=arrival:4"),
        (6, "ripples=division:6"),
    ] {
        for slow in [1, 2, 5] {
            let pace = Pace { per_sample: Duration::from_millis(1), slow };
            let done = |steps| {
                let job = Setup { gradient_bytes: bytes.into(), ..setup(sync, workers, steps) };
                run(job, "none", pace, OnlyModels { bandwidth }).completed
            };
            let took = done(steps.into()).since(done(1));
            let n = f64::from(workers);
            let models = if workers == 2 { 1.0 } else { 2.0 * (n - 1.0) / n };
            let average = Duration::from_secs_f64(models * f64::from(bytes) / bandwidth);
            let off = took.abs_diff((pace.per_sample * slow * 60 + average) * (steps - 1));
            assert!(off <= Duration::from_nanos(2) * (steps - 1), "{sync}, {slow}: {took:?}, {off:?} off");
        }
    }
}

/// Worker 1 is slow until it is started again.
#[derive(Debug, Clone, Copy)]
struct Cured {
    per_sample: Duration,
    slow: u32,
}

impl Compute for Cured {
    fn time(&mut self, _: JobTime, holder: Holder, samples: u64, _: &mut DetRng) -> Duration {
        let factor = if holder == Holder::new(SLOW, Incarnation(0)) { self.slow } else { 1 };
        match holder.node.role {
            Role::Server => Duration::ZERO,
            Role::Worker => self.per_sample * factor * u32::try_from(samples).unwrap(),
        }
    }
}

const SLOW: NodeId = NodeId::worker(1);

/// Batches that fit the speeds of the workers that are there, and at a given time, if at all, one restart of the slow worker.
#[derive(Debug, Clone)]
struct RestartAt {
    at: Option<JobTime>,
    slow: u32,
    /// Whether batch sizes mean anything.
    fitting: bool,
}

impl Policy for RestartAt {
    fn name(&self) -> &'static str {
        "restart-at"
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        let live: Vec<_> = view.live_workers().collect();
        let is_slow = |node: &NodeView| node.id == SLOW && node.incarnation == Incarnation(0);
        // In units of the slow one's share.
        let share = |node: &NodeView| if is_slow(node) { 1 } else { self.slow };
        let shares: u32 = live.iter().map(|node| share(node)).sum();
        let sizes = live.iter().map(|node| (node.id, view.global_batch_size * share(node) / shares));
        let sizes: BTreeMap<NodeId, u32> = sizes.collect();
        let other = live.iter().any(|node| sizes[&node.id] != node.batch_size);
        let due = self.at.is_some_and(|at| at <= now) && live.iter().any(|node| is_slow(node));
        let restart = due.then(|| {
            self.at = None;
            ProposedAction {
                target: Holder::new(SLOW, Incarnation(0)),
                kind: NodeActionKind::KillRestart { drain: Duration::from_secs(1) },
                reason: Reason::Other("to see whether it pays".to_owned()),
            }
        });
        Decision {
            batch_sizes: (self.fitting && other && !due).then_some(sizes),
            node_actions: restart.into_iter().collect(),
            ..Decision::nothing(Reason::Balanced)
        }
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Nothing takes time but to form a group.
#[derive(Debug)]
struct Forming(Duration);

impl Network for Forming {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at)
    }
    fn collective(&mut self, _: JobTime, _: Collective, _: u32, _: &mut DetRng) -> Duration {
        Duration::ZERO
    }
    fn form(&mut self, _: JobTime, _: u32, _: &mut DetRng) -> Duration {
        self.0
    }
}

/// A job that is `slow`er in one of `workers`, and its worker's restart, which takes `start`. All wait for a new group as long as
/// it takes to `form`.
#[derive(Debug, Clone, Copy)]
struct Restart {
    sync: &'static str,
    workers: u32,
    slow: u32,
    start: Duration,
    form: Duration,
}

impl Restart {
    /// Samples per second of a worker that is not slow.
    const SPEED: f64 = 1000.0;
    /// How long all have been at work when the worker is restarted.
    const BEFORE: Duration = Duration::from_secs(4);

    fn run(self, samples: u64, restart: bool) -> SimulatedJob {
        let Self { sync, workers, slow, start, form } = self;
        let job = Setup {
            samples,
            // Divided without a rest by the shares of any workers that may be there.
            global_batch_size: if sync == "ps-asp" { 4 * workers } else { self.batch() },
            shard_len: Some(4),
            // Orders and news are as good as immediate.
            heartbeat: Duration::from_millis(10),
            control_tick: Duration::from_millis(100),
            ..setup(sync, workers, 1)
        };
        let policy = RestartAt {
            at: restart.then_some(JobTime::from_duration(start + form + Self::BEFORE)),
            slow,
            fitting: (sync != "ps-asp"),
        };
        let models = Models {
            compute: Box::new(Cured { per_sample: Duration::from_millis(1), slow }),
            network: Box::new(Forming(form)),
            scheduler: Box::new(scheduler::Constant(start)),
            faults: Box::new(Listed::new([])),
        };
        let world = World::new(job, Box::new(policy), models).unwrap();
        let (outcome, _) = world.run(JobTime::from_duration(Duration::from_secs(1_000_000))).unwrap();
        assert_eq!(outcome.result, Ok(()));
        let restarts = outcome.actions.iter().filter(|action| action.kind == "KILL_RESTART").count();
        assert_eq!(restarts, usize::from(restart), "{:?}", outcome.actions);
        outcome
    }

    /// The least batch that the shares of all, of all but one and of all after the restart divide.
    fn batch(self) -> u32 {
        let Self { workers, slow, .. } = self;
        (slow * (workers - 1) + 1) * (workers - 1) * workers
    }

    /// `(V, v_s, v_n)`: speed of the others, of the worker before and after.
    fn speeds(self) -> (f64, f64, f64) {
        (Self::SPEED * f64::from(self.workers - 1), Self::SPEED / f64::from(self.slow), Self::SPEED)
    }

    /// Samples of a job that has so many seconds to go at its present speed when the worker is restarted.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn samples(self, to_go: f64) -> u64 {
        let (others, before, _) = self.speeds();
        ((others + before) * (Self::BEFORE.as_secs_f64() + to_go)) as u64
    }
}

/// A restart pays if and only if more than `D v_n / (v_n - v_s)` of the job is left, at the speed that it has: what the worker
/// would have done while it is away must be less than what it does more afterwards. No worker waits for another.
/// Source: `antdt-controller`'s `AntDT-ND`; ours.
#[test]
fn at_its_own_pace_a_restart_breaks_even_where_the_formula_says() {
    for (workers, slow, start) in [(2, 2, 2), (4, 2, 2), (4, 5, 3), (8, 3, 1)] {
        let (sync, start, form) = ("ps-asp", Duration::from_secs(start), Duration::ZERO);
        let case = Restart { sync, workers, slow, start, form };
        let (others, before, after) = case.speeds();
        // It is away from its end until the new one computes: the news of its end, the order, the start.
        let away = case.start.as_secs_f64();
        let break_even = away * after / (after - before);
        for (to_go, pays) in [(0.95, false), (1.05, true)] {
            let samples = case.samples(break_even * to_go);
            let (left, restarted) = (case.run(samples, false), case.run(samples, true));
            let name = format!("{case:?}, {to_go} of the break-even");
            assert_eq!(restarted.completed < left.completed, pays, "{name}");

            // And by how much, to a batch of the slow worker and the waiting for two heartbeats.
            let died = restarted.exits[0].0.as_secs_f64();
            assert_eq!(restarted.exits[0].1, Holder::new(SLOW, Incarnation(0)), "{name}");
            #[allow(clippy::cast_precision_loss)]
            let all = samples as f64;
            let done = (died - away) * (others + before);
            let formula = died + (all - done + after * away) / (others + after);
            let took = restarted.completed.as_secs_f64();
            let tail = 0.004 * f64::from(slow) + 0.03;
            assert!((took - formula).abs() <= tail, "{name}: {took} against {formula}");
        }
    }
}

/// In step, with batches that fit, it pays beyond `(v_n D + 2 R V) / (v_n - v_s)`, with `R` the time in which all wait for
/// a new group: when the worker has gone, and when it is back, until when `D` lasts. The tenth to either side covers a
/// heartbeat and the tick in which batches are made to fit.
/// Source: as above.
#[test]
fn in_step_a_restart_breaks_even_where_the_formula_says() {
    for (workers, slow, start, form) in [(3, 2, 5, 0), (4, 3, 5, 0), (4, 2, 8, 0), (3, 2, 5, 1), (4, 3, 5, 2)]
    {
        let (start, form) = (Duration::from_secs(start), Duration::from_secs(form));
        let case = Restart { sync: "allreduce", workers, slow, start, form };
        let (others, before, after) = case.speeds();
        let (away, wait) = ((start + form).as_secs_f64(), form.as_secs_f64());
        let break_even = (after * away + 2.0 * wait * others) / (after - before);
        for (to_go, pays) in [(0.9, false), (1.1, true)] {
            let samples = case.samples(break_even * to_go);
            let (left, restarted) = (case.run(samples, false), case.run(samples, true));
            let (a, b) = (restarted.completed.as_secs_f64(), left.completed.as_secs_f64());
            assert_eq!(a < b, pays, "{case:?}, {to_go} of the break-even: {a} against {b}");
        }
    }
}
