//! Four workers train apart and average in groups of two, decided by the generator: `cargo run -p antdt-groups --example
//! average`. The model of a worker is one number, and everything happens in this process.

use std::collections::BTreeMap;

use antdt_core::{Holder, Incarnation, JobTime, Machine, NodeId};
use antdt_groups::{Division, GeneratorConfig, GeneratorEffect, GroupGenerator, ReduceOutcome};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let now = JobTime::ZERO;
    let mut models = [0.0, 1.0, 2.0, 3.0];
    let workers: Vec<Holder> =
        (0..4).map(|index| Holder::new(NodeId::worker(index), Incarnation(0))).collect();
    let mut generator = GroupGenerator::new(GeneratorConfig::default(), Box::new(Division::new(2)?))?;
    for worker in &workers {
        generator.hello(now, *worker, 0)?;
    }
    let mut averages = BTreeMap::new();
    for step in 1..=4 {
        // Every worker has finished a step and asks for a group.
        for worker in &workers {
            generator.request(now, *worker, step)?;
        }
        while let Some(effect) = generator.poll_effect() {
            match effect {
                GeneratorEffect::Go { to, go, .. } => {
                    let sum: f64 = go.members.iter().map(|member| models[member.node.index as usize]).sum();
                    averages.insert(go.key, sum / go.members.len() as f64);
                    generator.done(now, to, go.key, ReduceOutcome::Reduced)?;
                }
                // All members have the average: now it is their model.
                GeneratorEffect::Commit { to, group } => models[to.node.index as usize] = averages[&group],
                _ => {}
            }
        }
        println!("after step {step}: {models:.2?}");
    }
    Ok(())
}
