//! Simulated jobs against formulas that can be written down: exact, to the rounding of a nanosecond.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::policy::by_name;
use antdt_core::{DetRng, Holder, JobTime, NodeId, Role, Seed, SyncMode};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Collective, Compute, Hosts, Models, Network, Site, scheduler};
use antdt_sim::{Outcome, Setup, World};

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

fn run(setup: Setup, policy: &str, pace: Pace, network: impl Network + 'static) -> Outcome {
    let models = Models {
        compute: Box::new(pace),
        network: Box::new(network),
        scheduler: Box::new(scheduler::Constant(START)),
        faults: Box::new(Listed::new([])),
    };
    let world = World::new(setup, by_name(policy).unwrap(), models).unwrap();
    let (outcome, _) = world.run(JobTime::from_duration(Duration::from_secs(1_000_000))).unwrap();
    assert_eq!(outcome.result, Ok(()));
    outcome
}

fn setup(sync: SyncMode, workers: u32, steps: u64) -> Setup {
    Setup {
        sync,
        workers,
        servers: u32::from(sync.has_servers()),
        global_batch_size: 60 * workers,
        samples: 60 * u64::from(workers) * steps,
        // Each worker's shard is its batch, so that no batch is cut at a shard's end.
        shard_len: Some(60),
        seed: Seed(3),
        ..Setup::default()
    }
}

/// `T = steps * (s * t * b + c)`: in a synchronous step everybody waits for the slowest.
/// Source: our formula; what the paper sets out from.
#[test]
fn a_synchronous_step_takes_what_its_slowest_worker_takes() {
    let reduce = Duration::from_micros(1_500);
    for workers in [1, 2, 4, 7] {
        for slow in [1, 2, 5] {
            let pace = Pace { per_sample: Duration::from_millis(1), slow };
            let (steps, start) = (50, setup(SyncMode::AllReduce, workers, 50));
            // Before the first step: the start, and the plan that comes when all have joined.
            let first = run(setup(SyncMode::AllReduce, workers, 1), "none", pace, Instant(reduce)).completed;
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
            let job = setup(SyncMode::PsAsp, workers, 97);
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
/// Source: our formula (ARCHITECTURE.md, paper map).
#[test]
fn fitting_batches_gain_what_the_formula_says() {
    // (n, s) such that n * 60 * s / (s (n - 1) + 1) is whole: the fast batch.
    for (workers, slow, fast, slow_batch) in [(2, 2, 80, 40), (3, 2, 72, 36), (2, 5, 100, 20), (4, 3, 72, 24)]
    {
        assert_eq!((workers - 1) * fast + slow_batch, 60 * workers);
        let pace = Pace { per_sample: Duration::from_millis(1), slow };
        let outcome = run(setup(SyncMode::AllReduce, workers, 400), "nd", pace, Instant(Duration::ZERO));
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
fn a_ring_costs_what_its_formula_says() {
    let link = CostModel { alpha: 1e-3, overhead: 0.0, bandwidth: 1e8, gamma: 0.0, burst: usize::MAX };
    for workers in [2_u32, 4, 8] {
        let bytes = 8_u64 << 20;
        let network = || AlphaBeta::new(Hosts::default(), link, link, Choice::Ring).unwrap();
        let job = |bytes| Setup { gradient_bytes: bytes, ..setup(SyncMode::AllReduce, workers, 40) };
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
