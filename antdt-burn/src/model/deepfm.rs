//! DeepFM: a factorisation machine beside a multi-layer perceptron, over shared embeddings.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::{Model, Perceptron};
use crate::click::{ClickModel, ClickSizes, ModelShape, split_rows};
use crate::engine::{self, Family};

/// Entry of DeepFM in the registry.
pub const MODEL: Model = Model {
    name: "deepfm",
    about: "factorisation machine beside a multi-layer perceptron, over shared embeddings",
    settings: || ClickSizes::default().texts(),
    build: |settings| Ok(ClickSizes::default().read(settings)?.recipe(engine::build::<DeepFms>)),
};

/// [`DeepFm`] on any back end.
struct DeepFms;

impl Family for DeepFms {
    type On<B: AutodiffBackend> = DeepFm<B>;

    fn build<B: AutodiffBackend>(shape: &ModelShape, device: &B::Device) -> DeepFm<B> {
        DeepFm::new(shape, device)
    }
}

/// The DeepFM model: a factorisation machine and a perceptron over the same embeddings, added up.
///
/// `logit = Σ w_f + ½ Σ_d [(Σ_f v_fd)² - Σ_f v_fd²] + MLP(v)`, where `w_f` is the first-order weight and `v_f` the
/// embedding of the value of field `f`.
///
/// Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017 (recalled).
#[derive(Module, Debug)]
pub struct DeepFm<B: Backend> {
    perceptron: Perceptron<B>,
}

impl<B: Backend> DeepFm<B> {
    /// Returns the model with all parameters 0; see [`flat`](crate::flat) for how it gets others.
    pub fn new(shape: &ModelShape, device: &B::Device) -> Self {
        Self { perceptron: Perceptron::new(shape.fields * shape.embedding, &shape.hidden, 1, device) }
    }
}

impl<B: Backend> ClickModel<B> for DeepFm<B> {
    fn logits(&self, rows: Tensor<B, 3>) -> Tensor<B, 1> {
        let (embedded, first_order) = split_rows(rows);
        let [samples, fields, embedding] = embedded.dims();
        let deep = self.perceptron.forward(embedded.clone().reshape([samples, fields * embedding]));
        // Σ_{f<g} v_f·v_g without the pairs: half of the square of the sum less the sum of the squares.
        let sum = embedded.clone().sum_dim(1);
        let pairs = sum.clone() * sum - (embedded.clone() * embedded).sum_dim(1);
        let second_order = pairs.sum_dim(2).reshape([samples, 1]) * 0.5;
        (first_order + second_order + deep).reshape([samples])
    }
}
