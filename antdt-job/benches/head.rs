//! What an event costs the master's head, and that it costs no more with more workers.
//!
//! One job per line: all workers register, join and start; then they report batch after batch, in an order that has
//! nothing to do with their numbers, with one worker slower than the others, but not so much that it
//! would be restarted; then one dies and comes back.
//! Asking for the deadline and carrying off the effects count as part of an event, as in a driver.
//!
//! Usage: `head [WORKERS ...]`, 100, 1 000 and 16 384 by default. The last line of each job compares the largest with
//! the smallest. Times are medians over rounds in which every worker has one event of the kind.

#![allow(clippy::disallowed_methods, reason = "a measurement has a clock")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_controller::policy;
use antdt_core::{
    BatchReport, Counts, DeviceClass, Exit, Holder, Incarnation, Iteration, JobTime, Machine,
    MembershipVersion, NodeId, NodeInfo, Phase, PlanVersion, Readiness, Seed, Standing,
};
use antdt_job::{Head, HeadAnswer, HeadConfig, HeadEffect, HeadEvent, Registration};
use antdt_monitor::MonitorConfig;

/// Samples of a worker's batch.
const BATCH: u32 = 64;
const HEALTHY: Duration = Duration::from_micros(1250);
/// Time of a step, and between two heartbeats of a worker.
const STEP: Duration = Duration::from_secs(1);
/// The ledger of a job that has hardly begun.
const PLENTY: Counts = Counts { total: 1 << 40, acked: 0, todo: 1 << 40, doing: 0, quarantined: 0 };
/// Rounds until windows are full and every worker is judged.
const ROUNDS_BEFORE: u32 = 40;
/// Rounds that are measured, and the most time they may take; long enough to fill the long window of small jobs.
const ROUNDS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(6);

/// Nanoseconds per event of each kind.
#[derive(Default)]
struct Costs {
    workers: u32,
    /// From the first registration to the last worker's permission to start, per worker.
    start: f64,
    /// A heartbeat with one report; verdicts on all, every few rounds, are part of it.
    heartbeat: f64,
    /// A readiness with a synchronous server; the commit is part of it.
    ready: f64,
    /// A control tick, per worker.
    tick: f64,
    /// A death, the regroup of the others and the return, per worker.
    death: f64,
    /// What the process grew by, MB.
    megabytes: f64,
}

struct Job {
    head: Head,
    now: JobTime,
    sync: &'static str,
    servers: u32,
    lives: Vec<Incarnation>,
    /// The newest group that each worker was told of.
    groups: Vec<MembershipVersion>,
    order: Vec<u32>,
    plan: PlanVersion,
    step: u64,
    sequence: u64,
    joined: usize,
    committed: usize,
}

impl Job {
    fn new(sync: &'static str, servers: u32, policy: &str, workers: u32) -> Self {
        let head = Head::new(HeadConfig {
            sync: sync.parse().expect("a mode of the registry"),
            workers,
            servers,
            global_batch_size: BATCH * workers,
            heartbeat: STEP,
            max_restarts: 2,
            min_workers: 1,
            must_register: true,
            dry_run: false,
            policy: policy::REGISTRY.by_name(policy).expect("a known policy"),
            monitor: MonitorConfig::default(),
            checkpoints: None,
            evaluations: None,
            choice: None,
            can_roll_back: false,
            hosts: Arc::default(),
        })
        .expect("the defaults are valid");
        let mut order: Vec<u32> = (0..workers).collect();
        let mut rng = Seed(7).rng();
        order.sort_by_cached_key(|_| rng.next_u64());
        Self {
            head,
            now: JobTime::ZERO,
            sync,
            servers,
            lives: vec![Incarnation(0); workers as usize],
            groups: vec![MembershipVersion(0); workers as usize],
            order,
            plan: PlanVersion(0),
            step: 0,
            sequence: 0,
            joined: 0,
            committed: 0,
        }
    }

    fn holder(&self, index: u32) -> Holder {
        Holder::new(NodeId::worker(index), self.lives[index as usize])
    }

    fn tell(&mut self, event: HeadEvent) {
        self.now = JobTime(self.now.0 + 10);
        match black_box(self.head.handle(self.now, event)) {
            HeadAnswer::Beat(reply) => self.plan = reply.plan.map_or(self.plan, |plan| plan.version),
            HeadAnswer::Fenced => panic!("nobody here is dead"),
            HeadAnswer::Refused(why) => panic!("{why}"),
            _ => {}
        }
        while let Some(effect) = self.head.poll_effect() {
            match black_box(effect) {
                HeadEffect::Joined(holder, joined) => {
                    self.joined += 1;
                    self.groups[holder.node.index as usize] = joined.membership;
                    self.step = joined.next_step;
                    self.plan = self.plan.max(joined.plan.version);
                }
                HeadEffect::Committed(_, commit) => {
                    self.committed += 1;
                    self.step = commit.step + 1;
                }
                HeadEffect::End(end) => panic!("{end:?}"),
                _ => {}
            }
        }
        black_box(self.head.deadline());
    }

    fn register(&mut self, node: NodeId, incarnation: Incarnation) {
        let info = NodeInfo {
            holder: Holder::new(node, incarnation),
            host: format!("host-{}", node.index / 8),
            device: DeviceClass::default(),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: 100 * BATCH,
        };
        let data_address = format!("10.0.{}.{}:29500", node.index / 256, node.index % 256);
        self.tell(HeadEvent::Register(Registration { info, data_address, process_id: node.index }));
    }

    fn join(&mut self, index: u32) {
        let standing = Standing { group: self.groups[index as usize], ..Standing::default() };
        self.tell(HeadEvent::Join { holder: self.holder(index), standing });
    }

    fn start(&mut self) {
        self.tell(HeadEvent::Begin);
        for index in 0..self.servers {
            self.register(NodeId::server(index), Incarnation(0));
        }
        for at in 0..self.order.len() {
            self.register(NodeId::worker(self.order[at]), Incarnation(0));
        }
        for at in 0..self.order.len() {
            self.join(self.order[at]);
        }
        assert_eq!(self.joined, self.order.len(), "all start");
    }

    /// Every worker reports a batch.
    fn beat(&mut self) {
        self.sequence += 1;
        for at in 0..self.order.len() {
            let index = self.order[at];
            let compute = HEALTHY * BATCH * if index == 7 { 14 } else { 10 } / 10;
            let report = BatchReport {
                holder: self.holder(index),
                sequence: self.sequence,
                iteration: Iteration(self.step),
                plan: self.plan,
                phase: Phase::Train,
                samples: u64::from(BATCH),
                micro_batches: 1,
                data_wait: Duration::ZERO,
                compute,
                communicate: Duration::from_millis(1),
                barrier_wait: STEP - compute,
            };
            self.tell(HeadEvent::heartbeat(
                self.holder(index),
                vec![(report, 1.0)],
                self.plan,
                (self.plan, self.step),
            ));
        }
        self.now = self.now + STEP;
    }

    /// Every worker is ready with its push.
    fn ready(&mut self) {
        self.committed = 0;
        let step = self.step;
        for at in 0..self.order.len() {
            let readiness = Readiness {
                samples: u64::from(BATCH),
                end_of_data: false,
                plan: self.plan,
                acks: Vec::new(),
            };
            self.tell(HeadEvent::Ready { holder: self.holder(self.order[at]), step, readiness });
        }
        assert_eq!(self.committed, self.order.len(), "the step is committed");
    }

    /// One worker dies; all others meet, and it comes back.
    fn death(&mut self) {
        let dead = self.order[self.order.len() / 2];
        let lost = self.holder(dead);
        self.tell(HeadEvent::Exited(lost, Exit::Killed { signal: 9 }, Vec::new()));
        let due = self.head.deadline().expect("a launch or a heartbeat is due");
        self.now = self.now.max(due);
        self.head.on_deadline(self.now);
        self.joined = 0;
        self.lives[dead as usize] = self.lives[dead as usize].next();
        self.groups[dead as usize] = MembershipVersion(0);
        self.register(NodeId::worker(dead), self.lives[dead as usize]);
        let returns = match self.sync {
            "allreduce" => self.order.len(),
            _ => 1,
        };
        for at in 0..self.order.len() {
            let index = self.order[at];
            if index == dead || self.sync == "allreduce" {
                self.join(index);
            }
        }
        assert_eq!(self.joined, returns, "it is back");
    }
}

/// Resident memory of this process, MB.
#[allow(clippy::cast_precision_loss, reason = "a measurement")]
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages as f64 * 4096.0 / 1e6
}

fn nanoseconds(count: usize, job: &mut Job, what: impl FnOnce(&mut Job)) -> f64 {
    let begun = Instant::now();
    what(job);
    #[allow(clippy::cast_precision_loss, reason = "a measurement")]
    let each = begun.elapsed().as_secs_f64() * 1e9 / count as f64;
    each
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn run(sync: &'static str, servers: u32, policy: &str, workers: u32) -> Costs {
    let before = resident();
    let mut job = Job::new(sync, servers, policy, workers);
    let n = workers as usize;
    let start = nanoseconds(n, &mut job, Job::start);
    let (mut beats, mut readies, mut ticks) = (Vec::new(), Vec::new(), Vec::new());
    let begun = Instant::now();
    for round in 0..ROUNDS_BEFORE + ROUNDS {
        let measured = round >= ROUNDS_BEFORE;
        if measured && begun.elapsed() > PATIENCE {
            break;
        }
        let beat = nanoseconds(n, &mut job, Job::beat);
        if measured {
            beats.push(beat);
        }
        if sync == "ps-bsp" {
            readies.push(nanoseconds(n, &mut job, Job::ready));
        }
        if round % 5 == 4 {
            ticks.push(nanoseconds(n, &mut job, |job| job.tell(HeadEvent::Tick(Some(PLENTY)))));
        }
    }
    // Verdicts come every fifth round: means over five rounds, then the median.
    let beats = beats.chunks_exact(5).map(|five| five.iter().sum::<f64>() / 5.0).collect();
    let megabytes = resident() - before;
    let death = nanoseconds(n, &mut job, Job::death);
    Costs {
        workers,
        start,
        heartbeat: median(beats),
        ready: median(readies),
        tick: median(ticks),
        death,
        megabytes,
    }
}

fn main() {
    let mut sizes: Vec<u32> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![100, 1_000, 16_384];
    }
    for (sync, servers, policy) in
        [("allreduce", 0, "none"), ("allreduce", 0, "nd"), ("ps-bsp", 4, "nd"), ("ps-asp", 4, "nd")]
    {
        println!(
            "{}, policy {policy}, {servers} servers; ns per event (tick, start, death: per worker)",
            sync
        );
        println!(
            "{:>8} {:>10} {:>8} {:>8} {:>9} {:>9} {:>8}",
            "workers", "heartbeat", "ready", "tick", "start", "death", "MB"
        );
        let costs: Vec<Costs> = sizes.iter().map(|size| run(sync, servers, policy, *size)).collect();
        for c in &costs {
            println!(
                "{:>8} {:>10.0} {:>8.0} {:>8.0} {:>9.0} {:>9.0} {:>8.1}",
                c.workers, c.heartbeat, c.ready, c.tick, c.start, c.death, c.megabytes
            );
        }
        if let [first, .., last] = costs.as_slice() {
            let ratio = |of: fn(&Costs) -> f64| if of(first) > 0.0 { of(last) / of(first) } else { 0.0 };
            println!(
                "{:>8} {:>10.2} {:>8.2} {:>8.2} {:>9.2} {:>9.2}",
                "ratio",
                ratio(|c| c.heartbeat),
                ratio(|c| c.ready),
                ratio(|c| c.tick),
                ratio(|c| c.start),
                ratio(|c| c.death)
            );
        }
    }
}
