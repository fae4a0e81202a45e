//! Trains a click-through model in one process and prints its AUC after each epoch: the smallest whole use of this
//! crate, and the place to try settings.
//!
//! ```text
//! cargo run --release -p antdt-burn --example train -- deepfm synthetic:50000 3
//! cargo run --release -p antdt-burn --example train -- xdeepfm DATA/uci_adult 3
//! ```

use std::error::Error;
use std::time::Instant;

use antdt_agent::{Gradient, Params, Trainer};
use antdt_burn::{
    ClickTrainer, Clicks, DataSource, LEARNING_RATE_DEFAULT, OPTIMIZER_DEFAULT, WorkloadSpec,
    global_batch_size_default,
};
use antdt_core::{Metric, Metrics, Permutation, SampleRange, Seed};
use antdt_model::{Replica, SparseGradient, UpdateRule};

/// Samples evaluated at once.
const EVAL_BATCH: u64 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: &str| arguments.next().unwrap_or_else(|| default.into());
    let spec = WorkloadSpec::new(next("deepfm").parse()?, next("synthetic:50000").parse()?);
    let epochs: u64 = next("3").parse()?;
    let batch: u64 = next(&global_batch_size_default().to_string()).parse()?;
    let seed = Seed(1);

    let mut trainer = ClickTrainer::open(&spec, seed)?;
    let (counts, layout) = (trainer.counts(), trainer.layout().clone());
    println!("{} on {}: {counts:?}, {} dense parameters", spec.model, spec.data, layout.dense_len());
    if let DataSource::Synthetic { rows } = spec.data {
        let range = SampleRange { start: rows, end: rows + counts.eval };
        println!(
            "best reachable AUC {:.4}",
            Clicks::new(seed, range.end).bayes_auc(range).unwrap_or(f64::NAN)
        );
    }

    let rule = UpdateRule::named(OPTIMIZER_DEFAULT, LEARNING_RATE_DEFAULT)?;
    let mut replica = Replica::new(&layout, &rule, seed, trainer.initial_dense(seed))?;
    let (mut gradient, mut rows) = (Gradient::new(&layout), Vec::new());
    for epoch in 0..epochs {
        let order = Permutation::new(seed.derive("train").derive_number(epoch), counts.train);
        let (mut loss, mut seconds, mut steps) = (0.0, 0.0, 0.0);
        let mut from = 0;
        while from < counts.train {
            let to = (from + batch.max(1)).min(counts.train);
            let samples: Vec<u64> = (from..to).map(|position| order.at(position)).collect();
            let touched = trainer.load(&samples)?.to_vec();
            rows.clear();
            replica.gather(&touched, &mut rows)?;
            let start = Instant::now();
            let stats = gradient.compute(&mut trainer, replica.dense(), &rows)?;
            seconds += start.elapsed().as_secs_f64();
            steps += 1.0;
            loss += stats.loss_sum;
            let sparse = SparseGradient { rows: touched, values: gradient.rows.clone() };
            replica.apply(&gradient.dense, &sparse, stats.samples)?;
            from = to;
        }

        let (mut metrics, mut from) = (Metrics::default(), 0);
        trainer.begin_evaluation();
        while from < counts.eval {
            let to = (from + EVAL_BATCH).min(counts.eval);
            let touched = trainer.load_eval(SampleRange { start: from, end: to })?.to_vec();
            rows.clear();
            replica.gather(&touched, &mut rows)?;
            trainer.evaluate(Params::host(replica.dense(), &rows), &mut metrics)?;
            from = to;
        }
        trainer.end_evaluation(&mut metrics)?;
        println!(
            "epoch {epoch}: training loss {:.4}; evaluation loss {:.4}, AUC {:.4}; {:.2} ms a step",
            loss / counts.train as f64,
            metrics.get(Metric::LOSS).unwrap_or(f64::NAN),
            metrics.get("auc").unwrap_or(f64::NAN),
            1e3 * seconds / steps,
        );
    }
    Ok(())
}
