use std::path::Path;

use antdt_agent::{Buffer, DeviceValues, Gradient};
use antdt_core::Metric;

use super::*;
use crate::data::DataSource;
use crate::model::{Model, deepfm, xdeepfm};
use crate::split::EvalRows;

/// A small workload of a model of clicks.
fn workload(model: Model, rows: u64) -> WorkloadSpec {
    let spec = WorkloadSpec::new(model, DataSource::Synthetic { rows });
    let spec = spec.with("rows-per-field", 5).with("embedding", 3).with("hidden", "6,4");
    if model.name == "xdeepfm" { spec.with("cin", "4,3") } else { spec }
}

fn small(model: Model) -> ClickTrainer {
    dropping(model, 0.0)
}

fn dropping(model: Model, share: f64) -> ClickTrainer {
    let spec = WorkloadSpec { eval_fraction: 0.25, ..workload(model, 64) }.with("dropout", share);
    ClickTrainer::open(&spec, Seed(11)).unwrap()
}

/// Values for `touched` rows, each a function of its row alone, large enough that every product matters.
fn rows_of(trainer: &ClickTrainer, touched: &[u64]) -> Vec<f32> {
    let dim = trainer.layout().tables()[0].dim;
    touched
        .iter()
        .flat_map(|row| {
            let mut rng = Seed(5).derive_number(*row).rng();
            (0..dim).map(move |_| (rng.unit() - 0.5) as f32)
        })
        .collect()
}

fn gradient_of(trainer: &mut ClickTrainer, samples: &[u64]) -> (Vec<u64>, Gradient, StepStats) {
    let dense = trainer.initial_dense(Seed(2));
    let touched = trainer.load(samples).unwrap().to_vec();
    let rows = rows_of(trainer, &touched);
    let mut gradient = Gradient::new(trainer.layout());
    let stats = gradient.compute(trainer, &dense, &rows).unwrap();
    (touched, gradient, stats)
}

const MODELS: &[Model] = &[deepfm::MODEL, xdeepfm::MODEL];

/// A small model of rows of a file in `folder`, whose label has three classes, or is a number.
fn small_of(model: Model, folder: &Path, label: &str) -> ClickTrainer {
    let path = folder.join(format!("{label}.csv"));
    let rows: String = (0..64)
        .map(|row| format!("{},{},{},{}\n", row % 5, row % 7, ["cat", "dog", "eel"][row % 3], row * row % 97))
        .collect();
    std::fs::write(&path, format!("x,z,kind,price\n{rows}")).unwrap();
    let mut spec = workload(model, 1);
    spec.data = DataSource::Path(path);
    spec.cache = Some(crate::Cache::at(folder.join("cache")));
    spec.columns.label = Some(label.to_owned());
    spec.eval_fraction = 0.25;
    ClickTrainer::open(&spec, Seed(11)).unwrap()
}

#[test]
fn gradients_agree_with_finite_differences() {
    for model in MODELS.iter().copied() {
        let folder = tempfile::tempdir().unwrap();
        let of = |label| small_of(model, folder.path(), label);
        for trainer in [small(model), of("kind"), of("price")] {
            compare_gradients(model, trainer);
        }
    }
}

fn compare_gradients(model: Model, mut trainer: ClickTrainer) {
    let samples: Vec<u64> = (0..6).collect();
    let mut dense = trainer.initial_dense(Seed(2));
    let touched = trainer.load(&samples).unwrap().to_vec();
    let mut rows = rows_of(&trainer, &touched);
    let mut gradient = Gradient::new(trainer.layout());
    let mut scratch = gradient.clone();
    let here = gradient.compute(&mut trainer, &dense, &rows).unwrap().loss_sum;
    assert_eq!((gradient.dense.len(), gradient.rows.len()), (dense.len(), rows.len()));

    let mut check = |dense: &mut Vec<f32>, rows: &mut Vec<f32>, in_rows: bool, at: usize, found: f32| {
        let step = 4e-3;
        let mut loss_at = |delta: f32| {
            let value = if in_rows { &mut rows[at] } else { &mut dense[at] };
            let before = *value;
            *value += delta;
            let loss = scratch.compute(&mut trainer, dense, rows).unwrap().loss_sum;
            let value = if in_rows { &mut rows[at] } else { &mut dense[at] };
            *value = before;
            loss
        };
        // The gradient lies between the slopes to either side; they differ where a ReLU switches in between.
        let (below, above) = (loss_at(-step), loss_at(step));
        let (left, right) = ((here - below) / f64::from(step), (above - here) / f64::from(step));
        let slack = 4e-3 + 0.01 * left.abs();
        let slopes = left.min(right) - slack..left.max(right) + slack;
        assert!(
            slopes.contains(&f64::from(found)) && (left - right).abs() < 0.2,
            "{} {} {at}: gradient {found}, finite differences {left} and {right}",
            model.name,
            if in_rows { "row value" } else { "dense parameter" }
        );
    };
    // The strides share no factor with the sizes of the layers, and so walk over every unit.
    for (at, found) in gradient.dense.iter().enumerate().step_by(5) {
        check(&mut dense, &mut rows, false, at, *found);
    }
    for (at, found) in gradient.rows.iter().enumerate().step_by(7) {
        check(&mut dense, &mut rows, true, at, *found);
    }
    // The comparison above means nothing where everything is 0.
    let large = |values: &[f32]| values.iter().filter(|value| value.abs() > 0.03).count() * 4 > values.len();
    assert!(large(&gradient.dense) && large(&gradient.rows), "{}: the gradient all but vanishes", model.name);
}

#[test]
fn labels_of_classes_and_numbers_are_evaluated_by_metrics_of_their_own() {
    for (label, names) in [("kind", &["loss", "accuracy"][..]), ("price", &["loss", "rmse", "mae"])] {
        for model in MODELS.iter().copied() {
            let folder = tempfile::tempdir().unwrap();
            let mut trainer = small_of(model, folder.path(), label);
            let dense = trainer.initial_dense(Seed(2));
            let touched = trainer.load_eval(SampleRange { start: 0, end: 16 }).unwrap().to_vec();
            let rows = rows_of(&trainer, &touched);
            let mut metrics = Metrics::default();
            trainer.begin_evaluation();
            trainer.evaluate(Params::host(&dense, &rows), &mut metrics).unwrap();
            trainer.end_evaluation(&mut metrics).unwrap();
            let found: Vec<&str> = metrics.iter().map(|metric| &*metric.name).collect();
            assert_eq!(found, names, "{}", model.name);
            assert!(metrics.iter().all(|metric| metric.value.is_finite() && metric.weight == 16.0));
        }
    }
}

#[test]
fn two_halves_of_a_batch_add_up_to_the_whole() {
    for model in MODELS.iter().copied() {
        let mut trainer = small(model);
        let samples: Vec<u64> = (0..20).collect();
        let (rows, whole, stats) = gradient_of(&mut trainer, &samples);
        let dim = trainer.layout().tables()[0].dim;
        let mut dense = vec![0.0; whole.dense.len()];
        let mut sums = vec![0.0; whole.rows.len()];
        let (mut loss, mut count) = (0.0, 0);
        for half in [&samples[..7], &samples[7..]] {
            let (touched, part, stats) = gradient_of(&mut trainer, half);
            loss += stats.loss_sum;
            count += stats.samples;
            dense.iter_mut().zip(&part.dense).for_each(|(sum, part)| *sum += part);
            for (row, part) in touched.iter().zip(part.rows.chunks(dim)) {
                let at = rows.binary_search(row).unwrap();
                sums[at * dim..][..dim].iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
        }
        assert_eq!(count, stats.samples);
        assert!((loss - stats.loss_sum).abs() < 1e-5);
        for (sum, whole) in dense.iter().zip(&whole.dense).chain(sums.iter().zip(&whole.rows)) {
            assert!((sum - whole).abs() < 1e-4 * (1.0 + whole.abs()), "{}: {sum} and {whole}", model.name);
        }
    }
}

#[test]
fn units_that_a_step_drops_depend_on_the_epoch_and_not_on_the_batch() {
    for model in MODELS.iter().copied() {
        let dense = |trainer: &mut ClickTrainer, samples: &[u64], epochs: &[u32]| {
            trainer.of_epochs(epochs);
            gradient_of(trainer, samples).1.dense
        };
        let (mut trainer, mut plain) = (dropping(model, 0.4), small(model));
        let whole = dense(&mut trainer, &[3, 4, 5], &[1, 0, 2]);
        let parts = [
            dense(&mut trainer, &[3], &[1]),
            dense(&mut trainer, &[4], &[0]),
            dense(&mut trainer, &[5], &[2]),
        ];
        for (at, value) in whole.iter().enumerate() {
            let sum: f32 = parts.iter().map(|part| part[at]).sum();
            assert!((sum - value).abs() < 1e-5 * (1.0 + value.abs()), "{}: {sum} and {value}", model.name);
        }
        assert_ne!(whole, dense(&mut trainer, &[3, 4, 5], &[1, 0, 3]));
        assert_ne!(whole, dense(&mut plain, &[3, 4, 5], &[1, 0, 2]));
        let scores = |trainer: &mut ClickTrainer| {
            let parameters = trainer.initial_dense(Seed(2));
            trainer.begin_evaluation();
            let touched = trainer.load_eval(SampleRange { start: 0, end: 9 }).unwrap().to_vec();
            let rows = rows_of(trainer, &touched);
            trainer.evaluate(Params::host(&parameters, &rows), &mut Metrics::default()).unwrap();
            trainer.scores().clone()
        };
        assert_eq!(scores(&mut trainer), scores(&mut plain), "an evaluation leaves nothing out");
    }
}

/// Rows on a device, which a host without one has in its own memory.
#[derive(Debug)]
struct Card(Vec<f32>);

impl DeviceValues for Card {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError> {
        into.extend_from_slice(&self.0);
        Ok(())
    }

    fn copy_to(&self, address: u64) -> Result<(), TrainError> {
        Err(TrainError::Device(format!("{address} is not on the device")))
    }
}

#[test]
fn rows_on_a_device_give_the_bits_of_rows_on_the_host() {
    for model in MODELS.iter().copied() {
        let mut trainer = small(model);
        assert!(trainer.takes_device_rows());
        let (touched, expected, stats) = gradient_of(&mut trainer, &[0, 3, 3, 5]);
        let (dense, card) = (trainer.initial_dense(Seed(2)), Card(rows_of(&trainer, &touched)));
        let there = Card(dense.clone());
        assert!(!trainer.takes_device_dense(), "the processor has no memory of its own");
        let mut gradient = Gradient::new(trainer.layout());
        // The flat vector may lie there as well.
        for dense in [Buffer::Host(&dense), Buffer::Device(&there)] {
            let params = Params { dense, rows: Buffer::Device(&card) };
            gradient.begin(card.len());
            assert_eq!(trainer.forward_backward(params, &mut gradient).unwrap(), stats, "{}", model.name);
            assert_eq!(gradient, expected, "{}", model.name);
        }
        let params = Params { dense: Buffer::Host(&dense), rows: Buffer::Device(&card) };
        let short = Card(vec![0.0; 1]);
        let params = Params { rows: Buffer::Device(&short), ..params };
        gradient.begin(1);
        let refused = trainer.forward_backward(params, &mut gradient).unwrap_err().to_string();
        assert!(refused.contains("1 row values"), "{refused}");
    }
}

#[test]
fn no_samples_give_a_gradient_of_zeros() {
    for model in MODELS.iter().copied() {
        let mut trainer = small(model);
        let (touched, gradient, stats) = gradient_of(&mut trainer, &[]);
        assert!(touched.is_empty() && gradient.rows.is_empty());
        assert_eq!(gradient.dense, vec![0.0; trainer.layout().dense_len()]);
        assert_eq!(stats, StepStats::default());
        let mut metrics = Metrics::default();
        let dense = trainer.initial_dense(Seed(2));
        assert!(trainer.load_eval(SampleRange { start: 3, end: 3 }).unwrap().is_empty());
        trainer.evaluate(Params::host(&dense, &[]), &mut metrics).unwrap();
        trainer.end_evaluation(&mut metrics).unwrap();
        assert_eq!(metrics, Metrics::default());
    }
}

#[test]
fn rows_come_ascending_and_once_and_repeated_samples_count_twice() {
    let mut trainer = small(deepfm::MODEL);
    let (once, single, _) = gradient_of(&mut trainer, &[4]);
    let (twice, double, stats) = gradient_of(&mut trainer, &[4, 4]);
    assert!(once.is_sorted_by(|a, b| a < b), "{once:?}");
    assert_eq!((once, stats.samples), (twice, 2));
    for (double, single) in double.rows.iter().zip(&single.rows) {
        assert!((double - 2.0 * single).abs() < 1e-5);
    }
}

#[test]
fn the_same_seed_gives_the_same_start_and_the_same_bits() {
    let (mut a, mut b) = (small(xdeepfm::MODEL), small(xdeepfm::MODEL));
    assert_eq!(a.initial_dense(Seed(1)), b.initial_dense(Seed(1)));
    assert_ne!(a.initial_dense(Seed(1)), a.initial_dense(Seed(2)));
    assert_eq!(a.initial_dense(Seed(1)).len(), a.layout().dense_len());
    let samples: Vec<u64> = (0..40).collect();
    assert_eq!(gradient_of(&mut a, &samples), gradient_of(&mut b, &samples));
}

#[test]
fn evaluated_rows_lie_beyond_the_training_rows() {
    let mut trainer = small(deepfm::MODEL);
    let counts = trainer.counts();
    assert_eq!((counts.train, counts.eval, counts.eval_rows), (64, 16, EvalRows::Generated));
    let dense = trainer.initial_dense(Seed(2));
    let touched = trainer.load_eval(SampleRange { start: 0, end: 16 }).unwrap().to_vec();
    let rows = rows_of(&trainer, &touched);
    let mut metrics = Metrics::default();
    trainer.evaluate(Params::host(&dense, &rows), &mut metrics).unwrap();
    let scores = trainer.scores();
    assert_eq!(scores.samples(), 16);
    assert!(scores.log_loss().unwrap() > 0.0);
    let error = trainer.load_eval(SampleRange { start: 10, end: 17 }).unwrap_err();
    assert_eq!(error.to_string(), "sample 16: there are only samples 0..16");
    let error = trainer.load(&[0, 64]).unwrap_err();
    assert_eq!(error.to_string(), "sample 64: there are only samples 0..64");
}

#[test]
fn evaluation_and_training_see_the_same_model() {
    let mut trainer = small(xdeepfm::MODEL);
    let samples: Vec<u64> = (0..8).collect();
    let (_, _, stats) = gradient_of(&mut trainer, &samples);
    let dense = trainer.initial_dense(Seed(2));
    let touched = trainer.load(&samples).unwrap().to_vec();
    let rows = rows_of(&trainer, &touched);
    let mut metrics = Metrics::default();
    trainer.evaluate(Params::host(&dense, &rows), &mut metrics).unwrap();
    trainer.end_evaluation(&mut metrics).unwrap();
    assert!((metrics.get(Metric::LOSS).unwrap() * 8.0 - stats.loss_sum).abs() < 1e-5);
    // A new evaluation knows nothing of the one before.
    trainer.begin_evaluation();
    let mut empty = Metrics::default();
    trainer.end_evaluation(&mut empty).unwrap();
    assert_eq!(empty, Metrics::default());
}

#[test]
fn a_loss_that_is_no_number_is_divergence_and_wrong_lengths_are_refused() {
    let mut trainer = small(deepfm::MODEL);
    let mut dense = trainer.initial_dense(Seed(2));
    let touched = trainer.load(&[0, 1]).unwrap().to_vec();
    let rows = rows_of(&trainer, &touched);
    let mut gradient = Gradient::new(trainer.layout());
    let error = gradient.compute(&mut trainer, &dense[1..], &rows).unwrap_err();
    assert!(matches!(error, TrainError::Model(_)), "{error}");
    let error = gradient.compute(&mut trainer, &dense, &rows[1..]).unwrap_err();
    assert!(matches!(error, TrainError::Model(_)), "{error}");
    dense[0] = f32::NAN;
    let error = gradient.compute(&mut trainer, &dense, &rows).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { samples: 2, .. }), "{error}");
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let good = WorkloadSpec::new(xdeepfm::MODEL, DataSource::Synthetic { rows: 8 });
    let cases = [
        ("eval_fraction", WorkloadSpec { eval_fraction: 1.0, ..good.clone() }),
        ("eval_fraction", WorkloadSpec { eval_fraction: f64::NAN, ..good.clone() }),
        ("[workload.xdeepfm] embedding", good.clone().with("embedding", 0)),
        ("[workload.xdeepfm] dropout", good.clone().with("dropout", 1)),
        ("[workload.xdeepfm] dropout", good.clone().with("dropout", -0.1)),
        ("[workload.xdeepfm] dropout", good.clone().with("dropout", "NaN")),
        ("data", WorkloadSpec { data: DataSource::Synthetic { rows: 0 }, ..good.clone() }),
        ("data", WorkloadSpec { data: DataSource::Synthetic { rows: u64::MAX }, ..good.clone() }),
    ];
    for (field, spec) in cases {
        let error = ClickTrainer::open(&spec, Seed(1)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{field} = ")), "{error}");
    }
    assert!(ClickTrainer::open(&good, Seed(1)).is_ok());
}

#[test]
fn a_row_that_cannot_be_read_is_a_data_fault_of_its_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clicks.tsv");
    let mut text = Vec::new();
    crate::write_tsv(50, Seed(3), &mut text).unwrap();
    std::fs::write(&path, &text).unwrap();
    let spec = WorkloadSpec {
        cache: Some(antdt_data::Cache::at(folder.path().join("cache"))),
        ..WorkloadSpec::new(deepfm::MODEL, DataSource::Path(path.clone()))
    };
    let mut trainer = ClickTrainer::open(&spec, Seed(11)).unwrap();
    let counts = trainer.counts();
    assert_eq!((counts.train, counts.eval, counts.eval_rows), (40, 10, EvalRows::HeldOut));
    // The file changes while the job runs.
    std::fs::write(&path, &text[1..]).unwrap();
    let error = trainer.load(&[7, 9]).unwrap_err();
    assert!(matches!(&error, TrainError::Data { sample: 7, why } if why.contains("changed")), "{error}");
    // Opened anew, it is another data set.
    std::fs::write(&path, &text).unwrap();
    let mut again = ClickTrainer::open(&spec, Seed(11)).unwrap();
    assert_eq!(again.load(&[7, 9]).unwrap().len(), again.load(&[9, 7]).unwrap().len());
}
