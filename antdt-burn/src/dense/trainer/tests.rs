use antdt_agent::Gradient;
use antdt_core::{GroupKind, Permutation};
use antdt_model::{Replica, SparseGradient, UpdateRule};

use super::*;
use crate::data::DataSource;
use crate::model::{Model, gpt, logistic, mlp, mobilenet, resnet20};

/// Each model, small, whose samples do not see each other.
fn small() -> Vec<WorkloadSpec> {
    let on = |model: Model, rows| WorkloadSpec {
        eval_fraction: 0.25,
        ..WorkloadSpec::new(model, DataSource::Synthetic { rows })
    };
    vec![
        on(mlp::MODEL, 64).with("features", 7).with("hidden", "6,5"),
        on(logistic::MODEL, 64).with("features", 7),
        on(gpt::MODEL, 64).with("layers", 2).with("heads", 2).with("width", 8).with("context", 6),
        on(resnet20::MODEL, 64).with("blocks", 1).with("width", 2).with("side", 4).with("norm", "group"),
        on(mobilenet::MODEL, 64).with("width", 2).with("side", 4).with("norm", "group"),
    ]
}

/// The models that leave units out, small.
fn dropping() -> Vec<WorkloadSpec> {
    let drops = |spec: &WorkloadSpec| spec.model.name == gpt::MODEL.name;
    small().into_iter().filter(drops).map(|spec| spec.with("dropout", 0.3)).collect()
}

/// Each model that normalises over its batch, small.
fn batch_normalised() -> Vec<WorkloadSpec> {
    let of_pictures = |spec: &WorkloadSpec| spec.settings.contains_key("norm");
    small().into_iter().filter(of_pictures).map(|spec| spec.with("norm", "batch")).collect()
}

fn open(spec: &WorkloadSpec) -> Box<dyn Trainer> {
    spec.open(Seed(11), &mut |_| {}).unwrap()
}

fn gradient_of(trainer: &mut dyn Trainer, dense: &[f32], samples: &[u64]) -> (Gradient, StepStats) {
    assert!(trainer.load(samples).unwrap().is_empty(), "there are no tables");
    let mut gradient = Gradient::new(trainer.layout());
    let stats = gradient.compute(trainer, dense, &[]).unwrap();
    (gradient, stats)
}

#[test]
fn gradients_agree_with_finite_differences() {
    // Five samples of one pixel in the other model's last norm bend the loss too much for differences.
    for spec in small().into_iter().chain(batch_normalised().into_iter().take(1)) {
        let (name, mut trainer) = (spec.model.name, open(&spec));
        let trainer = &mut *trainer;
        let samples: Vec<u64> = (0..5).collect();
        let mut dense = trainer.initial_dense(Seed(2));
        let (gradient, stats) = gradient_of(trainer, &dense, &samples);
        // Some forty values of each group.
        let trained = trainer.layout().ranges().filter(|(_, group)| group.kind == GroupKind::Trainable);
        let some = trained.flat_map(|(range, _)| {
            let apart = range.len() / 40 + 1;
            range.step_by(apart)
        });
        let (mut checked, mut switched) = (0, 0);
        for at in some.collect::<Vec<_>>() {
            let (step, before) = (1e-3, dense[at]);
            let mut loss_at = |delta: f32| {
                dense[at] = before + delta;
                gradient_of(trainer, &dense, &samples).1.loss_sum
            };
            // The slopes to either side differ where a ReLU switches in between, or the loss bends: those tell nothing.
            let (below, above) = (loss_at(-step), loss_at(step));
            dense[at] = before;
            let step = f64::from(step);
            let (left, right) = ((stats.loss_sum - below) / step, (above - stats.loss_sum) / step);
            checked += 1;
            if (left - right).abs() > 0.01 + 0.02 * left.abs() {
                switched += 1;
                continue;
            }
            let slack = 4e-3 + 0.01 * left.abs();
            let slopes = left.min(right) - slack..left.max(right) + slack;
            let found = f64::from(gradient.dense[at]);
            assert!(
                slopes.contains(&found),
                "{name} {at}: gradient {found}, finite differences {left} and {right}"
            );
        }
        println!("{name}: {switched} of {checked} values tell nothing");
        assert!(switched * 4 < checked * 3, "{name}: {switched} of {checked} values tell nothing");
        // The comparison above means nothing where everything is 0.
        for (range, group) in
            trainer.layout().ranges().filter(|(_, group)| group.kind == GroupKind::Trainable)
        {
            let largest =
                gradient.dense[range].iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            assert!(largest > 0.03, "{name}: the gradient of {} all but vanishes: {largest}", group.name);
        }
    }
}

#[test]
fn two_halves_of_a_dense_batch_add_up_to_the_whole() {
    for spec in small().into_iter().chain(dropping()) {
        let (name, mut trainer) = (spec.model.name, open(&spec));
        let dense = trainer.initial_dense(Seed(2));
        let samples: Vec<u64> = (0..20).collect();
        let (whole, stats) = gradient_of(&mut *trainer, &dense, &samples);
        let (a, first) = gradient_of(&mut *trainer, &dense, &samples[..7]);
        let (b, second) = gradient_of(&mut *trainer, &dense, &samples[7..]);
        assert_eq!((stats.samples, first.samples + second.samples), (20, 20));
        assert!((first.loss_sum + second.loss_sum - stats.loss_sum).abs() < 1e-6 * stats.loss_sum);
        let norm = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
        };
        let parts = a.dense.iter().zip(&b.dense).zip(&whole.dense);
        let error = norm(&mut parts.map(|((a, b), whole)| a + b - whole));
        let whole = norm(&mut whole.dense.iter().copied());
        assert!(error <= 1e-6 * whole, "{name}: {error} of {whole}");
    }
}

#[test]
fn units_that_a_step_drops_change_with_the_epoch_and_an_evaluation_drops_none() {
    for spec in dropping() {
        let (mut trainer, mut plain) = (open(&spec), open(&spec.clone().with("dropout", 0)));
        let dense = trainer.initial_dense(Seed(2));
        assert_eq!(dense, plain.initial_dense(Seed(2)));
        let mut in_epochs = |epochs: &[u32]| {
            trainer.of_epochs(epochs);
            gradient_of(&mut *trainer, &dense, &[4, 5, 6]).0.dense
        };
        let first = in_epochs(&[0, 0, 0]);
        assert_eq!(first, in_epochs(&[0, 0, 0]));
        assert_ne!(first, in_epochs(&[1, 0, 0]));
        assert_ne!(first, gradient_of(&mut *plain, &dense, &[4, 5, 6]).0.dense);
        let evaluated = |trainer: &mut dyn Trainer| {
            let mut metrics = Metrics::default();
            trainer.load_eval(SampleRange { start: 0, end: 9 }).unwrap();
            trainer.evaluate(Params::host(&dense, &[]), &mut metrics).unwrap();
            metrics
        };
        assert_eq!(evaluated(&mut *trainer), evaluated(&mut *plain));
    }
}

/// A step on the same samples again and again, which changes the statistics alone.
#[test]
fn running_statistics_become_those_of_the_data() {
    for spec in batch_normalised() {
        let mut trainer = open(&WorkloadSpec { eval_fraction: 0.0, ..spec.clone() });
        let samples: Vec<u64> = (0..20).collect();
        let mut dense = trainer.initial_dense(Seed(2));
        let states: Vec<_> = trainer
            .layout()
            .ranges()
            .filter(|(_, group)| group.kind == GroupKind::State)
            .map(|(range, group)| (range, group.name.clone()))
            .collect();
        for (range, name) in &states {
            let start = if name.ends_with("variance") { 1.0 } else { 0.0 };
            assert!(dense[range.clone()].iter().all(|value| *value == start), "{name}");
        }
        let mut loss = 0.0;
        for step in 0..120 {
            let (gradient, stats) = gradient_of(&mut *trainer, &dense, &samples);
            for (range, name) in &states {
                let (old, sums) = (dense[range.clone()].to_vec(), &gradient.dense[range.clone()]);
                let new: Vec<f32> = sums.iter().map(|sum| sum / 20.0).collect();
                // A tenth of what the batch has; the rest stays.
                assert!(step > 0 || old != new, "{name} does not move");
                dense[range.clone()].copy_from_slice(&new);
            }
            loss = stats.loss_sum;
        }
        let mut metrics = Metrics::default();
        trainer.load_eval(SampleRange { start: 0, end: 20 }).unwrap();
        trainer.evaluate(Params::host(&dense, &[]), &mut metrics).unwrap();
        let found = metrics.get(Metric::LOSS).unwrap() * 20.0;
        assert!((found - loss).abs() < 1e-3 * loss, "{}: {found}, in training {loss}", spec.model.name);
    }
}

#[test]
fn no_samples_give_a_gradient_of_zeros_and_no_metric() {
    for spec in small() {
        let mut trainer = open(&spec);
        let dense = trainer.initial_dense(Seed(2));
        let (gradient, stats) = gradient_of(&mut *trainer, &dense, &[]);
        assert_eq!((gradient.dense, stats), (vec![0.0; dense.len()], StepStats::default()));
        let mut metrics = Metrics::default();
        trainer.load_eval(SampleRange { start: 3, end: 3 }).unwrap();
        trainer.evaluate(Params::host(&dense, &[]), &mut metrics).unwrap();
        trainer.end_evaluation(&mut metrics).unwrap();
        assert_eq!(metrics, Metrics::default());
    }
}

#[test]
fn every_process_has_the_same_start_the_same_samples_and_the_same_bits() {
    for spec in small() {
        let (mut a, mut b) = (open(&spec), open(&spec));
        let dense = a.initial_dense(Seed(1));
        assert_eq!(dense, b.initial_dense(Seed(1)));
        assert_ne!(dense, a.initial_dense(Seed(2)));
        assert_eq!((dense.len(), a.layout().tables().len()), (a.layout().dense_len(), 0));
        // Not in the same order, nor after the same samples.
        gradient_of(&mut *b, &dense, &[60, 1]);
        let samples: Vec<u64> = (20..40).collect();
        assert_eq!(gradient_of(&mut *a, &dense, &samples), gradient_of(&mut *b, &dense, &samples));
    }
}

#[test]
fn evaluation_and_training_see_the_same_model() {
    for spec in small() {
        let mut trainer = open(&WorkloadSpec { eval_fraction: 0.0, ..spec.clone() });
        let dense = trainer.initial_dense(Seed(2));
        let (_, stats) = gradient_of(&mut *trainer, &dense, &[4, 5, 6]);
        let mut metrics = Metrics::default();
        trainer.begin_evaluation();
        for range in [SampleRange { start: 4, end: 6 }, SampleRange { start: 6, end: 7 }] {
            trainer.load_eval(range).unwrap();
            trainer.evaluate(Params::host(&dense, &[]), &mut metrics).unwrap();
        }
        trainer.end_evaluation(&mut metrics).unwrap();
        assert!((metrics.get(Metric::LOSS).unwrap() * 3.0 - stats.loss_sum).abs() < 1e-5);
    }
}

#[test]
fn a_loss_that_is_no_number_is_divergence_and_wrong_lengths_are_refused() {
    for spec in small() {
        let mut trainer = open(&spec);
        let mut dense = trainer.initial_dense(Seed(2));
        trainer.load(&[0, 1]).unwrap();
        let mut gradient = Gradient::new(trainer.layout());
        let error = gradient.compute(&mut *trainer, &dense[1..], &[]).unwrap_err();
        assert!(matches!(error, TrainError::Model(_)), "{error}");
        dense.fill(f32::NAN);
        let error = gradient.compute(&mut *trainer, &dense, &[]).unwrap_err();
        assert!(matches!(error, TrainError::Diverged { samples: 2, .. }), "{error}");
        assert_eq!(trainer.load(&[64]).unwrap_err().to_string(), "sample 64: there are only samples 0..64");
        let error = trainer.load_eval(SampleRange { start: 15, end: 17 }).unwrap_err();
        assert_eq!(error.to_string(), "sample 16: there are only samples 0..16");
    }
}

/// Trains with the defaults of the workload, then evaluates.
fn trained(spec: &WorkloadSpec, epochs: u64, batch: usize) -> Metrics {
    let mut trainer = open(spec);
    let recipe = spec.recipe().unwrap();
    let rule = UpdateRule::named(recipe.optimizer, recipe.learning_rate).unwrap();
    let rule = UpdateRule { decay: recipe.weight_decay, ..rule };
    let dense = trainer.initial_dense(Seed(3));
    let mut replica = Replica::new(trainer.layout(), &rule, Seed(3), dense).unwrap();
    let count = trainer.train_samples();
    for epoch in 0..epochs {
        let order = Permutation::new(Seed(4).derive_number(epoch), count);
        let samples: Vec<u64> = (0..count).map(|at| order.at(at)).collect();
        for batch in samples.chunks(batch) {
            let (gradient, stats) = gradient_of(&mut *trainer, replica.dense(), batch);
            replica.apply(&gradient.dense, &SparseGradient::default(), stats.samples).unwrap();
        }
    }
    let mut metrics = Metrics::default();
    trainer.begin_evaluation();
    trainer.load_eval(SampleRange { start: 0, end: trainer.eval_samples() }).unwrap();
    trainer.evaluate(Params::host(replica.dense(), &[]), &mut metrics).unwrap();
    trainer.end_evaluation(&mut metrics).unwrap();
    metrics
}

fn at_default(model: Model, rows: u64) -> WorkloadSpec {
    WorkloadSpec { eval_fraction: 0.25, ..WorkloadSpec::new(model, DataSource::Synthetic { rows }) }
}

/// One sample in ten has a random label, so nine in ten is nearly what can be reached.
#[test]
fn generated_classes_are_learnt_out_of_sample() {
    for model in [mlp::MODEL, logistic::MODEL] {
        let metrics = trained(&at_default(model, 4000), 2, 64);
        let (loss, accuracy) = (metrics.get(Metric::LOSS).unwrap(), metrics.get("accuracy").unwrap());
        println!("{}: loss {loss:.3}, accuracy {accuracy:.3}", model.name);
        assert!(loss < 1.2 && accuracy > 0.75, "{}: loss {loss}, accuracy {accuracy}", model.name);
        assert!(accuracy < 0.93, "{}: accuracy {accuracy}: the labels leak", model.name);
    }
}

#[test]
fn generated_pictures_are_learnt_out_of_sample() {
    for model in [resnet20::MODEL, mobilenet::MODEL] {
        for norm in ["batch", "group"] {
            let mut spec = at_default(model, 800).with("width", 8).with("side", 8).with("norm", norm);
            if model.name == resnet20::MODEL.name {
                spec = spec.with("blocks", 1);
            }
            let metrics = trained(&spec, 3, 16);
            let (loss, accuracy) = (metrics.get(Metric::LOSS).unwrap(), metrics.get("accuracy").unwrap());
            println!("{}, {norm}: loss {loss:.3}, accuracy {accuracy:.3}", model.name);
            // One of ten classes; without a batch norm 150 steps do not get far.
            let least = if norm == "batch" { 0.5 } else { 0.25 };
            assert!(accuracy > least, "{}, {norm}: accuracy {accuracy}", model.name);
        }
    }
}

/// From the frequencies of letters to words; see [`Prose`](crate::data::prose::Prose) for what there is to learn.
#[test]
fn generated_text_is_learnt_out_of_sample() {
    let spec = at_default(gpt::MODEL, 1500).with("layers", 1).with("width", 32).with("context", 32);
    let metrics = trained(&spec, 2, 16);
    let (loss, perplexity) = (metrics.get(Metric::LOSS).unwrap(), metrics.get("perplexity").unwrap());
    println!("loss {loss:.3}, perplexity {perplexity:.3}");
    assert!((perplexity.ln() - loss).abs() < 1e-9, "{perplexity} is not that of a loss of {loss}");
    let floor = crate::data::prose::Prose::new(Seed(11), 1, 32).perplexity_floor();
    assert!(perplexity > floor && perplexity < 10.0, "perplexity {perplexity}, at least {floor}");
}
