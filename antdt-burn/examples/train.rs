//! Trains a model in one process and prints what an evaluation finds after each epoch: the smallest whole use of this
//! crate, and the place to try settings.
//!
//! ```text
//! cargo run --release -p antdt-burn --example train -- deepfm synthetic:50000 3
//! cargo run --release -p antdt-burn --example train -- xdeepfm DATA/uci_adult 3
//! cargo run --release -p antdt-burn --example train -- mlp synthetic:50000 3 16 learning-rate=0.05 hidden=64
//! ```

use std::error::Error;
use std::time::Instant;

use antdt_agent::{Gradient, Params};
use antdt_burn::{WorkloadSpec, global_batch_size_default, model};
use antdt_core::{Metrics, Permutation, SampleRange, Seed};
use antdt_model::{Replica, SparseGradient, UpdateRule};

/// Samples evaluated at once.
const EVAL_BATCH: u64 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: &str| arguments.next().unwrap_or_else(|| default.into());
    let model = model::REGISTRY.find(&next("deepfm"))?;
    let mut spec =
        WorkloadSpec { eval_fraction: 0.2, ..WorkloadSpec::new(model, next("synthetic:50000").parse()?) };
    let epochs: u64 = next("3").parse()?;
    let batch: u64 = next(&global_batch_size_default().to_string()).parse()?;
    let (mut optimizer, mut rate, mut decay) = (None, None, None);
    for setting in arguments {
        let (name, value) = setting.split_once('=').ok_or("settings are NAME=VALUE")?;
        match name {
            "optimizer" => optimizer = Some(value.to_owned()),
            "learning-rate" => rate = Some(value.parse()?),
            "weight-decay" => decay = Some(value.parse()?),
            _ => spec = spec.with(name, value),
        }
    }
    let seed = Seed(1);

    let recipe = spec.recipe()?;
    let mut trainer = spec.open(seed, &mut |notice| eprintln!("{notice}"))?;
    let (layout, train, eval) = (trainer.layout().clone(), trainer.train_samples(), trainer.eval_samples());
    println!(
        "{} on {}: {train} samples, {eval} to evaluate, {} dense parameters",
        spec.model.name,
        spec.data,
        layout.dense_len()
    );

    let optimizer = optimizer.as_deref().unwrap_or(recipe.optimizer);
    let rule = UpdateRule::named(optimizer, rate.unwrap_or(recipe.learning_rate))?;
    let decay = decay.unwrap_or(if optimizer == recipe.optimizer { recipe.weight_decay } else { rule.decay });
    let rule = UpdateRule { decay, ..rule };
    let mut replica = Replica::new(&layout, &rule, seed, trainer.initial_dense(seed))?;
    let (mut gradient, mut rows) = (Gradient::new(&layout), Vec::new());
    for epoch in 0..epochs {
        let order = Permutation::new(seed.derive("train").derive_number(epoch), train);
        let (mut loss, mut seconds, mut steps) = (0.0, 0.0, 0.0);
        let mut from = 0;
        while from < train {
            let to = (from + batch.max(1)).min(train);
            let samples: Vec<u64> = (from..to).map(|position| order.at(position)).collect();
            let touched = trainer.load(&samples)?.to_vec();
            rows.clear();
            replica.gather(&touched, &mut rows)?;
            let start = Instant::now();
            let stats = gradient.compute(&mut *trainer, replica.dense(), &rows)?;
            seconds += start.elapsed().as_secs_f64();
            steps += 1.0;
            loss += stats.loss_sum;
            let sparse = SparseGradient { rows: touched, values: gradient.rows.clone() };
            replica.apply(&gradient.dense, &sparse, stats.samples)?;
            from = to;
        }

        let (mut metrics, mut from) = (Metrics::default(), 0);
        trainer.begin_evaluation();
        while from < eval {
            let to = (from + EVAL_BATCH).min(eval);
            let touched = trainer.load_eval(SampleRange { start: from, end: to })?.to_vec();
            rows.clear();
            replica.gather(&touched, &mut rows)?;
            trainer.evaluate(Params::host(replica.dense(), &rows), &mut metrics)?;
            from = to;
        }
        trainer.end_evaluation(&mut metrics)?;
        let found: Vec<String> =
            metrics.iter().map(|metric| format!("{} {:.4}", metric.name, metric.value)).collect();
        println!(
            "epoch {epoch}: training loss {:.4}; evaluation {}; {:.2} ms a step",
            loss / train as f64,
            found.join(", "),
            1e3 * seconds / steps,
        );
    }
    Ok(())
}
