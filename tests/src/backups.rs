//! A world of synchronous training with backup workers: the real ledger and batchers, the coordinator of parameter servers or the gate of
//! an all-reduce, and workers that take a random time for each batch. It says which samples are in which step, and by how many the
//! step's gradient is divided.

use antdt_agent::Batch;
use antdt_controller::{Brings, StepCoordinator, StepGate};
use antdt_core::{
    Ack, DetRng, Generation, Held, Holder, Incarnation, NodeId, PlanVersion, Readiness, Seed, StepCommit,
};
use antdt_shard::{DatasetSpec, ShardLedger, Shuffle};

use crate::feeder::Feeder;
use crate::oracle::Oracle;

/// Times that samples are taken again whose push came too late, before another worker gets them; as in a job.
const RETRIES: u32 = 3;

/// How the steps of a world are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// Parameter servers apply the pushes that the coordinator commits.
    Servers,
    /// All workers go into an all-reduce, those that are late with nothing.
    AllReduce,
}

/// Settings of a world with backup workers.
#[derive(Debug, Clone, Copy)]
pub struct BackupSetup<'a> {
    /// How steps are made.
    pub steps: Steps,
    /// Samples of the only epoch, in shards of 32.
    pub samples: u64,
    /// Number of workers that a step need not wait for.
    pub backups: u32,
    /// For each worker, the samples of a batch, and the mean time of one of them.
    pub workers: &'a [(u64, f64)],
    /// How many times as long as usual a batch takes because of its samples: 1 where the time has nothing to do with
    /// them, as the machine assumes.
    pub longer: fn(&[u64]) -> f64,
    /// A planted defect: a push that comes too late is acknowledged though it is in no step.
    pub loses_late: bool,
}

/// A committed step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupStep {
    /// The samples whose gradients are in it.
    pub samples: Vec<u64>,
    /// Number that the sum of these gradients is divided by.
    pub divisor: u64,
    /// Number of samples that all workers have been assigned for it.
    pub assigned: u64,
}

#[derive(Debug)]
struct Worker {
    feeder: Feeder,
    batch: Batch,
    /// Step that the batch is for, and the time at which its push is on the servers.
    step: u64,
    ready_at: f64,
    waits: bool,
    /// The batch that it computes was given up: the all-reduce that it was for has begun without it.
    is_stale: bool,
    late: u32,
    /// Steps that it takes without samples, after it gave some back.
    sits_out: u32,
}

/// Workers in steps that do not wait for all of them.
#[derive(Debug)]
pub struct BackupWorld<'a> {
    setup: BackupSetup<'a>,
    ledger: ShardLedger,
    coordinator: StepCoordinator,
    gate: StepGate,
    workers: Vec<Worker>,
    rng: DetRng,
    steps: Vec<BackupStep>,
    model: Oracle,
    is_over: bool,
}

const GENERATION: Generation = Generation(1);

fn holder(index: usize) -> Holder {
    Holder::new(NodeId::worker(u32::try_from(index).expect("a few workers")), Incarnation(0))
}

impl<'a> BackupWorld<'a> {
    /// Returns a world whose order of the data and whose times `seed` determines.
    ///
    /// # Panics
    /// If the settings are invalid.
    pub fn new(seed: u64, setup: BackupSetup<'a>) -> Self {
        let mut spec = DatasetSpec::new("train", setup.samples, 32);
        spec.shuffle = Shuffle::ShardsAndSamples;
        spec.seed = Seed(seed);
        let mut world = Self {
            ledger: ShardLedger::new(spec, GENERATION).expect("a valid data set"),
            coordinator: StepCoordinator::with_backups(setup.backups),
            gate: StepGate::new(),
            workers: Vec::new(),
            rng: Seed(seed).derive("times").rng(),
            steps: Vec::new(),
            model: Oracle::default(),
            is_over: false,
            setup,
        };
        world.gate.begin(0, (0..setup.workers.len()).map(holder));
        for index in 0..setup.workers.len() {
            world.ledger.register(holder(index)).expect("a new life may register");
            world.coordinator.join(holder(index));
            let (feeder, batch) = (Feeder::default(), Batch::default());
            let (step, ready_at, waits, late, sits_out) = (0, 0.0, false, 0, 0);
            let is_stale = false;
            world.workers.push(Worker { feeder, batch, step, ready_at, waits, is_stale, late, sits_out });
            world.begin(index, 0.0, 0);
        }
        world
    }

    /// Runs the epoch to its end, and returns its steps. Every sample is in exactly one of them, unless some are lost by the planted
    /// defect.
    ///
    /// # Panics
    /// If a sample is lost or repeated, or the epoch does not end.
    pub fn run(mut self) -> Vec<BackupStep> {
        let bound = 1000 + 100 * self.setup.samples;
        for _ in 0..bound {
            if self.is_over {
                if !self.setup.loses_late {
                    self.model.assert_exact(self.setup.samples, 1);
                }
                assert_eq!(self.ledger.counts().acked, self.setup.samples);
                return self.steps;
            }
            self.next();
        }
        panic!("the epoch does not end");
    }

    /// The worker begins a batch for this step.
    fn begin(&mut self, index: usize, now: f64, step: u64) {
        let worker = &mut self.workers[index];
        let (want, sample_time) = self.setup.workers[index];
        worker.batch = if worker.sits_out > 0 {
            worker.sits_out -= 1;
            Batch::default()
        } else {
            worker.feeder.take(&mut self.ledger, GENERATION, holder(index), want)
        };
        let ids: Vec<u64> = worker.batch.samples().collect();
        #[allow(clippy::cast_precision_loss, reason = "a handful")]
        let usual = sample_time * ids.len() as f64;
        // A spread of 30 %: the worker that is last by nature is not always the one that comes too late.
        let time = usual * (0.3 * self.rng.normal()).exp() * (self.setup.longer)(&ids);
        (worker.step, worker.ready_at, worker.waits) = (step, now + time, false);
        if self.setup.steps == Steps::AllReduce && !ids.is_empty() {
            self.arrive(index, Brings::Later);
        }
    }

    /// The gradient of the next worker is there, or on all servers.
    fn next(&mut self) {
        let busy = self.workers.iter().enumerate().filter(|(_, worker)| !worker.waits);
        let (index, now) = busy
            .map(|(index, worker)| (index, worker.ready_at))
            .min_by(|one, other| one.1.total_cmp(&other.1))
            .expect("whoever waits is waited for by the coordinator");
        if self.setup.steps == Steps::AllReduce {
            return self.computed(index, now);
        }
        let worker = &mut self.workers[index];
        let (samples, end_of_data) = (worker.batch.len(), worker.feeder.end_of_data);
        let acks = worker.batch.acks().into_vec();
        let readiness = Readiness { samples, end_of_data, plan: PlanVersion(0), acks };
        worker.waits = true;
        match self.coordinator.ready(holder(index), worker.step, readiness).expect("a member") {
            Some(answer) => self.told(index, now, &answer),
            None => self.commit(now),
        }
    }

    fn arrive(&mut self, index: usize, brings: Brings) {
        let told = self.gate.arrive(holder(index), self.gate.step(), brings).expect("a member");
        assert_eq!(told, None, "it asks about the open step");
    }

    /// The gradient of a worker in an all-reduce is there.
    fn computed(&mut self, index: usize, now: f64) {
        let worker = &mut self.workers[index];
        if std::mem::take(&mut worker.is_stale) {
            return self.begin(index, now, self.gate.step());
        }
        worker.waits = true;
        let brings = if worker.batch.is_empty() { Brings::Nothing } else { Brings::Now };
        self.arrive(index, brings);
        let Some(passages) = self.gate.close(self.setup.backups) else { return };
        // What each member says in the all-reduce itself.
        let counted = passages.iter().filter(|passage| passage.counted).map(|passage| passage.holder);
        let counted: Vec<Holder> = counted.collect();
        let divisor = counted.iter().map(|holder| self.workers[holder.node.index as usize].batch.len()).sum();
        let acks = |holder: &Holder| self.workers[holder.node.index as usize].batch.acks().into_vec();
        let brought: Vec<(Holder, Vec<Ack>)> = counted.iter().map(|holder| (*holder, acks(holder))).collect();
        self.step(brought.iter().map(|(holder, acks)| (*holder, &acks[..])), divisor);
        self.is_over = divisor == 0 && self.workers.iter().all(|worker| worker.feeder.end_of_data);
        for passage in passages {
            let index = passage.holder.node.index as usize;
            self.ended_step(index, passage.counted);
            if !self.workers[index].waits {
                self.workers[index].is_stale = true;
                self.arrive(index, Brings::Later);
            } else {
                self.begin(index, now, self.gate.step());
            }
        }
    }

    /// A step is made of the batches of these workers.
    fn step<'b>(&mut self, of: impl IntoIterator<Item = (Holder, &'b [Ack])>, divisor: u64) {
        let mut ids = Vec::new();
        for (holder, acks) in of {
            self.ledger.settle(holder, acks).expect("leases of live members");
            ids.extend(self.workers[holder.node.index as usize].batch.samples());
        }
        self.model.apply(ids.iter().copied());
        if divisor > 0 {
            let assigned = self.setup.workers.iter().map(|(want, _)| want).sum();
            self.steps.push(BackupStep { samples: ids, divisor, assigned });
        }
    }

    fn commit(&mut self, now: f64) {
        let Some(commit) = self.coordinator.commit() else { return };
        self.step(commit.contributors.iter().map(|(holder, acks)| (*holder, &acks[..])), commit.samples);
        self.is_over = commit.end;
        let informed: Vec<Holder> = self.coordinator.informed().collect();
        for to in informed {
            let counted = commit.contributors.contains_key(&to);
            self.told(to.node.index as usize, now, &commit.answering(commit.step, counted));
        }
    }

    /// The worker hears of the newest commit, and whether its own push is in the step that it was for.
    fn told(&mut self, index: usize, now: f64, commit: &StepCommit) {
        self.ended_step(index, commit.counted);
        self.begin(index, now, commit.step + 1);
    }

    /// The step that a worker's batch was for is over, with its gradient or without it.
    fn ended_step(&mut self, index: usize, counted: bool) {
        let worker = &mut self.workers[index];
        if worker.is_stale {
            return; // It has given its batch up before.
        }
        if !counted && self.setup.loses_late && !worker.batch.is_empty() {
            self.ledger.settle(holder(index), &worker.batch.acks()).expect("leases of a live member");
            worker.feeder.batcher.commit(&worker.batch);
        } else if counted {
            worker.feeder.batcher.commit(&worker.batch);
            worker.late = 0;
        } else if !worker.batch.is_empty() {
            worker.feeder.batcher.abort(&worker.batch);
            worker.late += 1;
        }
        if worker.late > RETRIES {
            worker.late = 0;
            worker.sits_out = 8;
            let acks: Vec<Ack> = worker.feeder.batcher.release().iter().map(ack).collect();
            self.ledger.release(holder(index), &acks).expect("leases of a live member");
        }
    }
}

fn ack(held: &Held) -> Ack {
    Ack { lease: held.lease, offset: held.offset }
}
