//! What the generator of groups does for a synchronisation: a worker's request and report, and all that comes of them.

use std::collections::VecDeque;

use antdt_core::{Holder, Incarnation, JobTime, Machine, NodeId};
use antdt_groups::{
    Division, GeneratorConfig, GeneratorEffect, GroupGenerator, GroupPolicy, InterIntra, Random,
    ReduceOutcome,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Workers that ask as soon as they are answered, in turns, and whose averages take no time.
struct Loop {
    generator: GroupGenerator,
    sequences: Vec<u64>,
    ready: VecDeque<Holder>,
}

impl Loop {
    fn new(workers: u32, policy: Box<dyn GroupPolicy>) -> Self {
        let mut generator =
            GroupGenerator::new(GeneratorConfig::default(), policy).expect("the default can be used");
        let holder = |index| Holder::new(NodeId::worker(index), Incarnation(0));
        for index in 0..workers {
            generator.hello(JobTime(0), holder(index), index / 8).expect("it is a worker");
        }
        while generator.poll_effect().is_some() {}
        Self { generator, sequences: vec![0; workers as usize], ready: (0..workers).map(holder).collect() }
    }

    fn requests(&mut self, count: u32) {
        for _ in 0..count {
            let holder = self.ready.pop_front().expect("somebody is answered");
            let sequence = &mut self.sequences[holder.node.index as usize];
            *sequence += 1;
            self.generator.request(JobTime(0), holder, *sequence).expect("it was answered");
            while let Some(effect) = self.generator.poll_effect() {
                match effect {
                    GeneratorEffect::Go { to, go, last, .. } => {
                        self.generator.done(JobTime(0), to, go.key, ReduceOutcome::Reduced).expect("it runs");
                        if last {
                            self.ready.push_back(to);
                        }
                    }
                    GeneratorEffect::Skip { to, .. } => self.ready.push_back(to),
                    _ => {}
                }
            }
        }
    }
}

fn generator(c: &mut Criterion) {
    let policies: [Box<dyn GroupPolicy>; 3] = [
        Box::new(Division::new(4).expect("4 is a size")),
        Box::new(InterIntra::new(4).expect("4 is a size")),
        Box::new(Random::new(4).expect("4 is a size")),
    ];
    for policy in policies {
        let mut group = c.benchmark_group(format!("groups/{}", policy.name()));
        for workers in [16_u32, 1_024, 16_384] {
            let mut all = Loop::new(workers, policy.clone());
            group.throughput(Throughput::Elements(workers.into()));
            group.bench_function(BenchmarkId::from_parameter(workers), |b| {
                b.iter(|| all.requests(workers));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, generator);
criterion_main!(benches);
