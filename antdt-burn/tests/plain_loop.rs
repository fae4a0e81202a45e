//! AntDT's trainer, table and optimizer against the same model trained the ordinary burn way: one module with a
//! `burn_nn::Embedding`, burn's loss, burn's AdaGrad, autodiff through everything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use antdt_agent::{Gradient, Params, Trainer};
use antdt_burn::click::{ClickModel, LEARNING_RATE, ModelShape, OPTIMIZER};
use antdt_burn::data::LabelKind;
use antdt_burn::dropout::Dropout;
use antdt_burn::flat;
use antdt_burn::model::deepfm::{self, DeepFm};
use antdt_burn::model::xdeepfm::{self, XDeepFm};
use antdt_burn::{ClickTrainer, DataSource, Model, WorkloadSpec};
use antdt_core::{Metrics, Permutation, Seed};
use antdt_model::{Replica, SparseGradient, UpdateRule};
use burn::module::{AutodiffModule, Module, ModuleDisplay, Param};
use burn::tensor::{Int, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_flex::Flex;
use burn_nn::loss::BinaryCrossEntropyLossConfig;
use burn_nn::{Embedding, EmbeddingConfig};
use burn_optim::{AdaGradConfig, GradientsParams, Optimizer};

type B = Autodiff<Flex>;

const SEED: Seed = Seed(21);
const SAMPLES: u64 = 320;
const BATCH: usize = 32;
const EPOCHS: u64 = 3;

#[derive(Module, Debug)]
struct Plain<B: burn::tensor::backend::Backend, M> {
    embedding: Embedding<B>,
    model: M,
}

fn spec(model: Model) -> WorkloadSpec {
    WorkloadSpec::new(model, DataSource::Synthetic { rows: SAMPLES }).with("rows-per-field", 40)
}

fn rule() -> UpdateRule {
    UpdateRule::named(OPTIMIZER, LEARNING_RATE).unwrap()
}

/// The batches that both sides train, in order.
fn batches() -> Vec<Vec<u64>> {
    (0..EPOCHS)
        .flat_map(|epoch| {
            let order = Permutation::new(SEED.derive_number(epoch), SAMPLES);
            let samples: Vec<u64> = (0..SAMPLES).map(|at| order.at(at)).collect();
            samples.chunks(BATCH).map(<[u64]>::to_vec).collect::<Vec<_>>()
        })
        .collect()
}

/// Mean loss of each step, trained through AntDT's parts.
fn losses_of_antdt(trainer: &mut ClickTrainer) -> Vec<f64> {
    let dense = trainer.initial_dense(SEED);
    let mut replica = Replica::new(trainer.layout(), &rule(), SEED, dense).unwrap();
    let (mut gradient, mut rows) = (Gradient::new(trainer.layout()), Vec::new());
    batches()
        .iter()
        .map(|batch| {
            let touched = trainer.load(batch).unwrap().to_vec();
            rows.clear();
            replica.gather(&touched, &mut rows).unwrap();
            let stats = gradient.compute(trainer, replica.dense(), &rows).unwrap();
            let sparse = SparseGradient { rows: touched, values: gradient.rows.clone() };
            replica.apply(&gradient.dense, &sparse, stats.samples).unwrap();
            stats.loss_sum / stats.samples as f64
        })
        .collect()
}

/// Mean loss of each step, trained the ordinary way from the same initial values.
fn losses_of_burn<M>(trainer: &mut ClickTrainer, model: M) -> Vec<f64>
where
    M: ClickModel<B> + AutodiffModule<B, InnerModule: ModuleDisplay> + ModuleDisplay,
{
    let device = Default::default();
    let table = trainer.layout().tables()[0].clone();
    let dense = trainer.initial_dense(SEED);
    let replica = Replica::new(trainer.layout(), &rule(), SEED, dense.clone()).unwrap();
    let mut values = Vec::new();
    replica.gather(&(0..table.rows).collect::<Vec<_>>(), &mut values).unwrap();
    let table_rows = usize::try_from(table.rows).unwrap();
    let mut embedding = EmbeddingConfig::new(table_rows, table.dim).init::<B>(&device);
    embedding.weight =
        Param::from_tensor(Tensor::from_data(TensorData::new(values, [table_rows, table.dim]), &device));
    let mut plain = Plain { embedding, model: flat::load::<B, M>(model, &dense, &device) };

    assert_eq!(rule().optimizer.name(), "adagrad", "the comparison is written for it");
    let epsilon = rule().optimizer.settings()["epsilon"].parse().unwrap();
    let mut optimizer = AdaGradConfig::new().with_epsilon(epsilon).init::<B, Plain<B, M>>();
    let loss_of = BinaryCrossEntropyLossConfig::new().with_logits(true).init::<B>(&device);
    batches()
        .iter()
        .map(|batch| {
            let (index, labels) = rows_and_labels(trainer, batch);
            let index = TensorData::new(index, [batch.len(), 39]);
            let index = Tensor::<B, 2, Int>::from_data(index, &device);
            let labels = Tensor::<B, 1, Int>::from_data(TensorData::new(labels, [batch.len()]), &device);
            let logits = plain.model.logits(plain.embedding.forward(index), &mut Dropout::none());
            let loss = loss_of.forward(logits.reshape([batch.len()]), labels);
            let value = f64::from(loss.clone().into_scalar());
            let gradients = GradientsParams::from_grads(loss.backward(), &plain);
            plain = optimizer.step(f64::from(rule().rate), plain.clone(), gradients);
            value
        })
        .collect()
}

/// Table rows `[samples, fields]` and labels, through the trainer's public face: one sample alone touches one row for
/// each field, in the order of the fields.
fn rows_and_labels(trainer: &mut ClickTrainer, batch: &[u64]) -> (Vec<i64>, Vec<i64>) {
    let (dense, dim) = (vec![0.0; trainer.layout().dense_len()], trainer.layout().tables()[0].dim);
    let (mut index, mut labels) = (Vec::new(), Vec::new());
    for sample in batch {
        let touched = trainer.load(&[*sample]).unwrap().to_vec();
        index.extend(touched.iter().map(|row| i64::try_from(*row).unwrap()));
        trainer.begin_evaluation();
        trainer
            .evaluate(Params::host(&dense, &vec![0.0; touched.len() * dim]), &mut Metrics::default())
            .unwrap();
        labels.push(i64::from(trainer.scores().positives() == 1));
    }
    (index, labels)
}

fn compare(antdt: &[f64], burn: &[f64]) {
    assert_eq!(antdt.len(), burn.len());
    for (step, (a, b)) in antdt.iter().zip(burn).enumerate() {
        assert!((a - b).abs() < 1e-5, "step {step}: loss {a} here, {b} in a plain loop");
    }
    // Without learning, equal losses would say little.
    assert!(antdt[antdt.len() - 1] < 0.9 * antdt[0], "{antdt:?}");
}

/// The default sizes.
fn shape(cin: &[usize]) -> ModelShape {
    ModelShape {
        fields: 39,
        embedding: 8,
        hidden: vec![64, 32],
        cin: cin.to_vec(),
        dropout: 0.0,
        label: LabelKind::Binary,
    }
}

#[test]
fn deepfm_learns_as_in_a_plain_burn_loop() {
    let spec = spec(deepfm::MODEL);
    let mut trainer = ClickTrainer::open(&spec, SEED).unwrap();
    let model = DeepFm::<B>::new(&shape(&[]), &Default::default());
    compare(&losses_of_antdt(&mut trainer), &losses_of_burn(&mut trainer, model));
}

#[test]
fn xdeepfm_learns_as_in_a_plain_burn_loop() {
    let spec = spec(xdeepfm::MODEL);
    let mut trainer = ClickTrainer::open(&spec, SEED).unwrap();
    let model = XDeepFm::<B>::new(&shape(&[16, 16]), &Default::default());
    compare(&losses_of_antdt(&mut trainer), &losses_of_burn(&mut trainer, model));
}
