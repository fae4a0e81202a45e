//! A world of synchronous parameter servers: the real ledger, batchers, coordinator and partitions; deaths at any point.

use std::collections::BTreeMap;

use antdt_agent::Batch;
use antdt_controller::StepCoordinator;
use antdt_core::{
    DetRng, Generation, Holder, Incarnation, Iteration, NodeId, ParamLayout, PlanVersion, PushMark,
    Readiness, Seed, ServerWeights, StepCommit,
};
use antdt_model::{CommitToken, Partition, PartitionConfig, Push, Staleness, UpdateRule};
use antdt_shard::{DatasetSpec, Epochs, ShardLedger, Shuffle};

use crate::feeder::Feeder;
use crate::oracle::Oracle;

/// Workers that push to two servers in step.
#[derive(Debug)]
pub struct ServerWorld {
    ledger: ShardLedger,
    generation: Generation,
    coordinator: StepCoordinator,
    servers: Vec<Partition>,
    workers: BTreeMap<Holder, Feeder>,
    token: Option<CommitToken>,
    /// What each push was made of.
    pushed: BTreeMap<(u64, Holder), Batch>,
    model: Oracle,
    rng: DetRng,
    samples: u64,
    epochs: u32,
    deaths: u32,
}

impl ServerWorld {
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
        spec.max_leases_per_holder = antdt_shard::max_leases_default(shard_len, 12);
        let generation = Generation(1);
        let partition = |server| {
            let mut partition = Partition::new(&PartitionConfig {
                layout: ParamLayout::dense(4),
                rule: UpdateRule::named("sgd", 1.0).expect("ships"),
                seed: Seed(seed),
                server,
                servers: 2,
                weights: ServerWeights::default(),
                staleness: Staleness::Synchronous,
            })
            .expect("a valid partition");
            partition.init_dense(vec![0.0; 2]).expect("half of the parameters");
            partition
        };
        let mut world = Self {
            ledger: ShardLedger::new(spec, generation).expect("a valid data set"),
            generation,
            coordinator: StepCoordinator::new(),
            servers: vec![partition(0), partition(1)],
            workers: BTreeMap::new(),
            token: None,
            pushed: BTreeMap::new(),
            model: Oracle::default(),
            rng: Seed(seed).derive("world").rng(),
            samples,
            epochs,
            deaths,
        };
        for index in 0..workers {
            world.come(Holder::new(NodeId::worker(index), Incarnation(0)));
        }
        world
    }

    fn come(&mut self, holder: Holder) {
        self.ledger.register(holder).expect("a new life may register");
        self.coordinator.join(holder);
        self.workers.insert(holder, Feeder::default());
        self.token = self.coordinator.last_with_samples().map(token).or(self.token.take());
    }

    /// Runs the job to its end and checks the servers and the ledger.
    ///
    /// # Panics
    /// If a sample is lost or repeated, servers disagree, or the job does not end.
    pub fn run(mut self) {
        let bound = 200 + 40 * self.samples * u64::from(self.epochs) + 100 * u64::from(self.deaths);
        for _ in 0..bound {
            if self.step() {
                return self.check();
            }
        }
        panic!("the job does not end");
    }

    /// One step of all workers. Returns whether it was the last.
    fn step(&mut self) -> bool {
        let step = self.coordinator.step();
        let members: Vec<Holder> = self.workers.keys().copied().collect();
        let dies = members.len() > 1 && self.deaths > 0 && self.rng.below(3) == 0;
        let victim = dies.then(|| members[self.rng.below(members.len() as u64) as usize]);
        // How far the victim gets: 0 nothing, 1 pushed to one server, 2 pushed to both, 3 said ready.
        let stage = self.rng.below(4);
        let mut order = members;
        // Any order of arrival.
        for i in (1..order.len()).rev() {
            order.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        let mut commit = None;
        let mut dead = false;
        for holder in order {
            let is_victim = victim == Some(holder);
            if is_victim && stage == 0 {
                continue;
            }
            // The pull brings the newest commit to the servers.
            for server in &mut self.servers {
                if let Some(token) = &self.token {
                    server.commit(token).expect("every contributor's push is here");
                }
            }
            let want = 1 + self.rng.below(12);
            let worker = self.workers.get_mut(&holder).expect("a member");
            let batch = worker.take(&mut self.ledger, self.generation, holder, want);
            let reached = if is_victim && stage == 1 { 1 } else { 2 };
            if !batch.is_empty() {
                for server in &mut self.servers[..reached] {
                    let samples = batch.len();
                    #[allow(clippy::cast_precision_loss, reason = "a handful")]
                    let dense = vec![samples as f32; 2];
                    let push = Push { samples, dense, ..Push::default() };
                    server.push(holder, Iteration(step), push).expect("a live worker may push");
                }
            }
            if is_victim && stage < 3 {
                continue;
            }
            let readiness = Readiness {
                samples: batch.len(),
                end_of_data: self.workers[&holder].end_of_data,
                plan: PlanVersion(0),
                acks: batch.acks().into_vec(),
            };
            self.pushed.insert((step, holder), batch);
            assert_eq!(self.coordinator.ready(holder, step, readiness), Ok(None));
            if is_victim && self.rng.below(2) == 0 {
                // It said ready and is dead before the others are.
                self.bury(holder);
                dead = true;
            }
            commit = commit.or_else(|| self.coordinator.commit());
        }
        if let Some(commit) = &commit {
            self.settle(commit);
        }
        if let Some(victim) = victim {
            // Its death may come before or after the commit; either way the ledger and the model agree.
            self.deaths -= 1;
            if !dead {
                self.bury(victim);
            }
            if commit.is_none() {
                commit = self.coordinator.commit();
                if let Some(commit) = &commit {
                    self.settle(commit);
                }
            }
        }
        let Some(commit) = commit else { panic!("nobody is missing, and still there is no commit") };
        for (holder, worker) in &mut self.workers {
            if let Some(batch) = self.pushed.get(&(commit.step, *holder)) {
                assert_eq!(commit.contributors.contains_key(holder), !batch.is_empty());
                worker.batcher.commit(batch);
            }
        }
        if commit.samples > 0 {
            self.token = Some(token(&commit));
        }
        if let Some(victim) = victim {
            self.come(Holder::new(victim.node, victim.incarnation.next()));
        }
        commit.end
    }

    fn bury(&mut self, victim: Holder) {
        self.workers.remove(&victim);
        self.coordinator.remove(victim);
        self.ledger.worker_lost(victim);
        for server in &mut self.servers {
            server.lost(PushMark { holder: victim, step: None });
        }
    }

    /// What the master does with a commit: the acks go to the ledger, the contributions into the model.
    fn settle(&mut self, commit: &StepCommit) {
        for (holder, acks) in commit.contributors.iter() {
            self.ledger.settle(*holder, acks).expect("leases of live members");
            self.model.apply(self.pushed[&(commit.step, *holder)].samples());
        }
    }

    fn check(mut self) {
        let counts = self.ledger.counts();
        assert!(counts.balance() && counts.acked == self.samples * u64::from(self.epochs), "{counts:?}");
        self.model.assert_exact(self.samples, self.epochs);
        // Both servers applied the same steps: with a gradient of 1 for each sample, every step moves by -1.
        let values: Vec<Vec<f32>> = self
            .servers
            .iter_mut()
            .map(|server| {
                server.commit(self.token.as_ref().expect("something was trained")).expect("the last commit");
                let (mut dense, mut rows) = (Vec::new(), Vec::new());
                server.pull(&[], &mut dense, &mut rows).expect("initialised");
                dense
            })
            .collect();
        assert_eq!(values[0], values[1]);
    }
}

fn token(commit: &StepCommit) -> CommitToken {
    CommitToken {
        step: Iteration(commit.step),
        contributors: commit.contributors.keys().copied().collect(),
        samples: commit.samples,
        everyone: commit.everyone,
    }
}
