//! A world of all-reduce: the real ledger, batchers and membership; steps in two rounds; deaths at any point.

use std::collections::BTreeMap;

use antdt_agent::Batch;
use antdt_controller::{Arrival, Membership};
use antdt_core::{
    Contribution, DetRng, Generation, Holder, Incarnation, MembershipVersion, NodeId, Seed, Standing,
    StepResult,
};
use antdt_shard::{DatasetSpec, Epochs, ShardLedger, Shuffle};

use crate::feeder::Feeder;
use crate::oracle::Oracle;

/// What every member contributed to a step.
type Contributions = Vec<(Holder, Batch)>;

#[derive(Debug, Clone, Default)]
struct Worker {
    feeder: Feeder,
    /// `None` until it holds the job's model.
    model: Option<Oracle>,
    /// The group that it was told of last.
    group: MembershipVersion,
    applied: Option<(u64, Contributions)>,
    prepared: Option<(u64, Contributions)>,
}

/// A simulated all-reduce job: its workers, the ledger of its samples and its membership.
#[derive(Debug)]
pub struct RingWorld {
    ledger: ShardLedger,
    generation: Generation,
    membership: Membership,
    workers: BTreeMap<Holder, Worker>,
    rng: DetRng,
    step: u64,
    samples: u64,
    epochs: u32,
    deaths: u32,
}

/// Whether the training goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    Broken,
    End,
}

impl RingWorld {
    /// Returns a job of `workers` workers that train `samples` samples in each of `epochs` epochs, in shards
    /// of `shard_len` samples. Workers die at most `deaths` times, at points that `seed` determines.
    ///
    /// # Panics
    /// If the settings of the data set are invalid.
    pub fn new(seed: u64, workers: u32, samples: u64, shard_len: u64, epochs: u32, deaths: u32) -> Self {
        let mut spec = DatasetSpec::new("train", samples, shard_len);
        spec.epochs = Epochs::Finite(epochs);
        spec.shuffle = Shuffle::ShardsAndSamples;
        spec.seed = Seed(seed);
        // Batches take up to 12 samples.
        spec.max_leases_per_holder = antdt_shard::max_leases_default(shard_len, 12);
        let generation = Generation(1);
        Self {
            ledger: ShardLedger::new(spec, generation).expect("a valid data set"),
            generation,
            membership: Membership::new((0..workers).map(NodeId::worker)),
            workers: (0..workers)
                .map(|index| (Holder::new(NodeId::worker(index), Incarnation(0)), Worker::default()))
                .collect(),
            rng: Seed(seed).derive("world").rng(),
            step: 0,
            samples,
            epochs,
            deaths,
        }
    }

    /// Runs the job to its end and checks every replica and the ledger.
    ///
    /// # Panics
    /// If a sample is lost or repeated, replicas differ, or the job does not end.
    pub fn run(mut self) {
        let first: Vec<Holder> = self.workers.keys().copied().collect();
        for holder in first {
            self.come(holder);
        }
        let bound = 200 + 40 * (self.samples * u64::from(self.epochs)) + 100 * u64::from(self.deaths);
        for _ in 0..bound {
            if !self.meet() {
                // Only replacements that have not come could be missing.
                self.replace_the_dead();
                continue;
            }
            loop {
                match self.step() {
                    Step::Done if self.rng.below(8) == 0 => {
                        self.replace_the_dead();
                        if self.membership.reform_wanted() {
                            break;
                        }
                    }
                    Step::Done => {}
                    Step::Broken => break,
                    Step::End => return self.check(),
                }
            }
        }
        panic!("the job does not end");
    }

    fn come(&mut self, holder: Holder) {
        assert!(self.membership.register(holder));
        self.ledger.register(holder).expect("a new life may register");
        self.ask_for_a_group(holder);
    }

    fn ask_for_a_group(&mut self, holder: Holder) {
        let worker = &self.workers[&holder];
        let result = |(step, contributions): &(u64, Contributions)| StepResult {
            step: *step,
            contributions: contributions
                .iter()
                .map(|(holder, batch)| Contribution { holder: *holder, acks: batch.acks() })
                .collect(),
        };
        let standing = Standing {
            group: worker.group,
            applied: worker.applied.as_ref().map(result),
            prepared: worker.prepared.as_ref().map(result),
            broken: false,
        };
        assert_eq!(self.membership.join(holder, standing), Arrival::Waits);
    }

    /// Every live worker asks for a group. Returns whether one was formed.
    fn meet(&mut self) -> bool {
        let live: Vec<Holder> = self.membership.live().collect();
        for holder in &live {
            self.ask_for_a_group(*holder);
        }
        let Some(formed) = self.membership.form() else { return false };
        for settled in formed.settled {
            self.ledger.settle(settled.holder, &settled.acks).expect("a settlement names known leases");
        }
        for holder in formed.released {
            self.ledger.worker_lost(holder);
        }
        assert!(!formed.model_lost, "one worker is always left alive");
        for holder in &formed.members {
            let worker = self.workers.get_mut(holder).expect("members are workers");
            worker.group = formed.version;
            let Some((step, contributions)) = worker.prepared.take() else { continue };
            if formed.commit == Some(step) {
                self.apply(*holder, step, contributions);
            } else {
                let mine = contributions.iter().find(|(who, _)| who == holder).expect("it contributed");
                self.workers.get_mut(holder).expect("members are workers").feeder.batcher.abort(&mine.1);
            }
        }
        // Workers without a model take it from the source, or start anew where none was trained.
        let model = match formed.source {
            Some(rank) => {
                let source = formed.members[rank.0 as usize];
                self.workers[&source].model.clone().expect("the source has a model")
            }
            None => Oracle::default(),
        };
        for holder in &formed.members {
            let worker = self.workers.get_mut(holder).expect("members are workers");
            if worker.model.is_none() {
                worker.model = Some(model.clone());
                worker.applied = formed.next_step.checked_sub(1).map(|step| (step, Vec::new()));
            }
        }
        self.step = formed.next_step;
        true
    }

    fn step(&mut self) -> Step {
        let members: Vec<Holder> =
            self.membership.live().filter(|holder| self.workers[holder].model.is_some()).collect();
        let mut contributions = Contributions::new();
        for holder in &members {
            let want = 1 + self.rng.below(12);
            let worker = self.workers.get_mut(holder).expect("a member");
            let batch = worker.feeder.take(&mut self.ledger, self.generation, *holder, want);
            contributions.push((*holder, batch));
        }
        let alone = members.len() == 1;
        let dies = !alone && self.deaths > 0 && self.rng.below(4) == 0;
        if !dies {
            for holder in &members {
                self.apply(*holder, self.step, contributions.clone());
            }
            self.step += 1;
            let ended = members.iter().all(|holder| self.workers[holder].feeder.end_of_data);
            let empty = contributions.iter().all(|(_, batch)| batch.is_empty());
            return if ended && empty { Step::End } else { Step::Done };
        }
        self.deaths -= 1;
        // The place of each worker when the victim dies: 0 computing, 1 prepared, 2 applied, 3 applied and not yet
        // acknowledged (the victim only). No worker has applied unless all are prepared.
        let victim = members[self.rng.below(members.len() as u64) as usize];
        let all_prepared = self.rng.below(2) == 0;
        for holder in &members {
            let stage = if all_prepared { 1 + self.rng.below(3) } else { self.rng.below(2) };
            match stage {
                0 => {
                    let mine = contributions.iter().find(|(who, _)| who == holder).expect("it took a batch");
                    self.workers.get_mut(holder).expect("a member").feeder.batcher.abort(&mine.1);
                }
                1 => {
                    let worker = self.workers.get_mut(holder).expect("a member");
                    worker.prepared = Some((self.step, contributions.clone()));
                }
                _ if *holder == victim && stage == 3 => {} // its acks die with it
                _ => self.apply(*holder, self.step, contributions.clone()),
            }
        }
        self.workers.remove(&victim);
        let free = self.membership.lost(victim);
        assert!(free.is_empty(), "survivors decide about the leases of {victim}");
        Step::Broken
    }

    /// A member makes a step part of its model, then acknowledges its own samples.
    fn apply(&mut self, holder: Holder, step: u64, contributions: Contributions) {
        let worker = self.workers.get_mut(&holder).expect("a member");
        let model = worker.model.as_mut().expect("a member has a model");
        for (_, batch) in &contributions {
            model.apply(batch.samples());
        }
        if let Some((_, mine)) = contributions.iter().find(|(who, _)| *who == holder) {
            worker.feeder.batcher.commit(mine);
            if !mine.is_empty() {
                self.ledger.ack_all(holder, &mine.acks()).expect("its own leases");
            }
        }
        worker.applied = Some((step, contributions));
        worker.prepared = None;
    }

    /// Starts the next life of every dead worker, and lets it come.
    fn replace_the_dead(&mut self) {
        let nodes: Vec<NodeId> = self.dead_nodes();
        for node in nodes {
            let last = self.membership.incarnation(node).expect("it was a worker of the job");
            let holder = Holder::new(node, last.next());
            self.membership.launched(holder);
            self.workers.insert(holder, Worker::default());
            self.come(holder);
        }
    }

    fn dead_nodes(&self) -> Vec<NodeId> {
        let alive: Vec<NodeId> = self.workers.keys().map(|holder| holder.node).collect();
        (0..64)
            .map(NodeId::worker)
            .filter(|node| self.membership.incarnation(*node).is_some() && !alive.contains(node))
            .collect()
    }

    fn check(self) {
        let counts = self.ledger.counts();
        assert!(counts.balance() && counts.acked == self.samples * u64::from(self.epochs), "{counts:?}");
        assert!(self.ledger.is_finished());
        for worker in self.workers.values() {
            if let Some(model) = &worker.model {
                model.assert_exact(self.samples, self.epochs);
            }
        }
    }
}
