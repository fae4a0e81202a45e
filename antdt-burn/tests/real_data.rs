//! Training on data sets that the project does not ship. `ANTDT_DATA` names their folder; without it the tests say so
//! and pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use antdt_agent::{Gradient, Params, Trainer};
use antdt_burn::{
    Cache, ClickTrainer, Clicks, DataSource, EvalRows, Model, WorkloadSpec, global_batch_size_default,
    model::{deepfm, gpt, logistic, mlp, xdeepfm},
};
use antdt_core::{Metrics, Permutation, SampleRange, Seed};
use antdt_model::{Replica, SparseGradient, UpdateRule};
use flate2::read::MultiGzDecoder;

/// The folder of a data set, or a printed reason to skip.
fn data(name: &str) -> Option<DataSource> {
    let path = std::env::var_os("ANTDT_DATA").map(|folder| PathBuf::from(folder).join(name));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: set ANTDT_DATA to a folder that has {name}");
        return None;
    };
    Some(DataSource::Path(path))
}

/// Trains `epochs` with the defaults, then evaluates. Returns the mean training loss of each epoch, too.
fn train(
    spec: &WorkloadSpec,
    trainer: &mut dyn Trainer,
    seed: Seed,
    epochs: u64,
    batch: usize,
) -> (Vec<f64>, Metrics) {
    let dense = trainer.initial_dense(seed);
    let recipe = spec.recipe().unwrap();
    let rule = UpdateRule::named(recipe.optimizer, recipe.learning_rate).unwrap();
    let rule = UpdateRule { decay: recipe.weight_decay, ..rule };
    let mut replica = Replica::new(trainer.layout(), &rule, seed, dense).unwrap();
    let (mut gradient, mut rows, mut losses) = (Gradient::new(trainer.layout()), Vec::new(), Vec::new());
    let count = trainer.train_samples();
    for epoch in 0..epochs {
        let order = Permutation::new(seed.derive_number(epoch), count);
        let samples: Vec<u64> = (0..count).map(|at| order.at(at)).collect();
        let mut loss = 0.0;
        for batch in samples.chunks(batch) {
            let touched = trainer.load(batch).unwrap().to_vec();
            rows.clear();
            replica.gather(&touched, &mut rows).unwrap();
            let stats = gradient.compute(trainer, replica.dense(), &rows).unwrap();
            let sparse = SparseGradient { rows: touched, values: gradient.rows.clone() };
            replica.apply(&gradient.dense, &sparse, stats.samples).unwrap();
            loss += stats.loss_sum;
        }
        losses.push(loss / count as f64);
    }
    let mut metrics = Metrics::default();
    trainer.begin_evaluation();
    let held_out = trainer.eval_samples();
    for start in (0..held_out).step_by(256) {
        let touched =
            trainer.load_eval(SampleRange { start, end: (start + 256).min(held_out) }).unwrap().to_vec();
        rows.clear();
        replica.gather(&touched, &mut rows).unwrap();
        trainer.evaluate(Params::host(replica.dense(), &rows), &mut metrics).unwrap();
    }
    trainer.end_evaluation(&mut metrics).unwrap();
    (losses, metrics)
}

fn batch_default() -> usize {
    usize::try_from(global_batch_size_default()).unwrap()
}

fn adult_reaches_its_auc(model: Model, epochs: u64) {
    let Some(data) = data("uci_adult") else { return };
    let cache = tempfile::tempdir().unwrap();
    let spec = WorkloadSpec { cache: Some(Cache::at(cache.path())), ..WorkloadSpec::new(model, data) };
    let seed = Seed(7);
    let mut trainer = ClickTrainer::open(&spec, seed).unwrap();
    let counts = trainer.counts();
    assert_eq!((counts.train + counts.eval, counts.eval_rows), (32_561, EvalRows::HeldOut));
    let (_, metrics) = train(&spec, &mut trainer, seed, epochs, batch_default());
    let auc = metrics.get("auc").unwrap();
    assert!(auc >= 0.90, "{} reaches only AUC {auc}", model.name);
}

#[test]
fn deepfm_reaches_auc_0_90_on_adult_in_3_epochs() {
    adult_reaches_its_auc(deepfm::MODEL, 3);
}

#[test]
fn xdeepfm_reaches_auc_0_90_on_adult_in_1_epoch() {
    adult_reaches_its_auc(xdeepfm::MODEL, 1);
}

/// 75.9 % of the rows are of the larger class. Two epochs of plain steps are short: longer ones gain more.
#[test]
fn dense_models_reach_an_accuracy_of_0_82_on_adult() {
    for (model, epochs) in [(logistic::MODEL, 2), (mlp::MODEL, 2)] {
        let Some(data) = data("uci_adult") else { return };
        let cache = tempfile::tempdir().unwrap();
        let spec = WorkloadSpec {
            cache: Some(Cache::at(cache.path())),
            eval_fraction: 0.2,
            ..WorkloadSpec::new(model, data)
        };
        let mut trainer = spec.open(Seed(7), &mut |_| {}).unwrap();
        let (_, metrics) = train(&spec, &mut *trainer, Seed(7), epochs, batch_default());
        let accuracy = metrics.get("accuracy").unwrap();
        println!("{}: {metrics:?}", model.name);
        assert!(accuracy >= 0.82, "{} reaches only accuracy {accuracy}", model.name);
    }
}

/// Letters alone, by their frequency in the text, have a perplexity of 27.
#[test]
fn a_small_gpt_learns_the_letters_of_shakespeare() {
    let Some(DataSource::Path(folder)) = data("tinyshakespeare") else { return };
    let cache = tempfile::tempdir().unwrap();
    // A test has not the time for all of it.
    let (begin, mut text) = (cache.path().join("begin.txt"), Vec::new());
    let packed = File::open(folder.join("input_first90.txt.gz")).unwrap();
    MultiGzDecoder::new(packed).take(200_000).read_to_end(&mut text).unwrap();
    fs::write(&begin, &text).unwrap();
    let spec = WorkloadSpec {
        cache: Some(Cache::at(cache.path().join("cache"))),
        eval_fraction: 0.2,
        ..WorkloadSpec::new(gpt::MODEL, DataSource::Path(begin))
    }
    .with("layers", 1)
    .with("width", 32)
    .with("context", 32);
    let mut trainer = spec.open(Seed(7), &mut |_| {}).unwrap();
    assert_eq!(trainer.train_samples() + trainer.eval_samples(), 200_000 / 33);
    let (_, metrics) = train(&spec, &mut *trainer, Seed(7), 1, 16);
    println!("{metrics:?}");
    let perplexity = metrics.get("perplexity").unwrap();
    assert!((5.0..18.0).contains(&perplexity), "perplexity {perplexity}");
}

#[test]
fn criteo_is_learnt_and_its_3000_rows_are_split_exactly() {
    let Some(data) = data("criteo_1tb_day11_3k") else { return };
    let cache = tempfile::tempdir().unwrap();
    let spec =
        WorkloadSpec { cache: Some(Cache::at(cache.path())), ..WorkloadSpec::new(deepfm::MODEL, data) };
    let mut trainer = ClickTrainer::open(&spec, Seed(7)).unwrap();
    let counts = trainer.counts();
    assert_eq!((counts.train, counts.eval), (2400, 600));
    let (losses, metrics) = train(&spec, &mut trainer, Seed(7), 3, 64);
    assert_eq!(trainer.scores().samples(), 600);
    assert!(losses[2] < 0.8 * losses[0], "training losses {losses:?}");
    // 3 % of 600 rows are 18 clicks: too few for a tight bound, enough to tell a model from chance.
    let auc = metrics.get("auc").unwrap();
    assert!(auc > 0.55, "AUC {auc}");
}

#[test]
fn the_generated_clicks_are_learnt_to_near_their_best_auc() {
    let (rows, seed) = (60_000, Seed(3));
    let spec = WorkloadSpec::new(deepfm::MODEL, DataSource::Synthetic { rows });
    let mut trainer = ClickTrainer::open(&spec, seed).unwrap();
    let end = rows + trainer.eval_samples();
    let best = Clicks::new(seed, end).bayes_auc(SampleRange { start: rows, end }).unwrap();
    let (_, metrics) = train(&spec, &mut trainer, seed, 2, batch_default());
    let auc = metrics.get("auc").unwrap();
    assert!(auc > best - 0.04, "AUC {auc} where {best} can be reached");
    assert!(auc < best + 0.01, "AUC {auc} beats {best}, the best there is: the labels leak");
}
