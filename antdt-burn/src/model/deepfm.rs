//! DeepFM: a factorisation machine beside a multi-layer perceptron, over shared embeddings.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_nn::Linear;

use super::{Model, Perceptron, constant, linear};
use crate::click::{ClickModel, ClickSizes, ModelShape};
use crate::dropout::Dropout;
use crate::engine::{self, Family};

/// Entry of DeepFM in the registry of models.
pub const MODEL: Model = Model {
    name: "deepfm",
    about: "factorisation machine beside a multi-layer perceptron, over shared embeddings",
    settings: ClickSizes::defaults_without_cin,
    build: |settings| Ok(ClickSizes::without_cin(settings)?.recipe(engine::build::<DeepFms>)),
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
/// For one output:
/// `logit = Σ w_f + ½ Σ_d [(Σ_f v_fd)² - Σ_f v_fd²] + MLP(v)`, where `w_f` is the first-order weight and `v_f` the
/// embedding of the value of field `f`. For more than two classes, class `k` weighs what the machine adds up:
/// `logit_k = Σ_f A_fk·(v_f, w_f) + Σ_d U_dk ½ [(Σ_f v_fd)² - Σ_f v_fd²] + MLP_k(v)`.
///
/// Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017 (recalled).
#[derive(Module, Debug)]
pub struct DeepFm<B: Backend> {
    perceptron: Perceptron<B>,
    /// Adds up rows over the fields, column by column, `[fields * (embedding + 1), embedding + 1]`. Constant.
    over_fields: Tensor<B, 2>,
    /// Adds up the embeddings of all fields, `[fields * (embedding + 1), 1]`. Constant.
    embeddings: Tensor<B, 2>,
    /// Half of the sum of an embedding, `[embedding + 1, 1]`. Constant.
    half: Tensor<B, 2>,
    /// The first-order weight of a row, `[embedding + 1, 1]`. Constant.
    first_order: Tensor<B, 2>,
    /// Weights of each class.
    classes: Option<ClassWeights<B>>,
}

/// What each class makes of the parts of the factorisation machine.
#[derive(Module, Debug)]
struct ClassWeights<B: Backend> {
    /// Of the rows of all fields, `[fields * (embedding + 1), classes]`.
    rows: Linear<B>,
    /// Of the pairs of fields in each place of an embedding, `[embedding, classes]`.
    pairs: Linear<B>,
}

impl<B: Backend> DeepFm<B> {
    /// Returns the model with all parameters 0; [`flat`](crate::flat) sets others.
    pub fn new(shape: &ModelShape, device: &B::Device) -> Self {
        let (fields, embedding) = (shape.fields, shape.embedding);
        let row = embedding + 1;
        let is_weight = |at: usize| at % row == embedding;
        let one = |is_one: bool| f32::from(u8::from(is_one));
        Self {
            perceptron: Perceptron::new(fields * embedding, &shape.hidden, shape.outputs(), device)
                .with_dropout(shape.dropout),
            over_fields: constant([fields * row, row], |at, column| one(at % row == column), device),
            embeddings: constant([fields * row, 1], |at, _| one(!is_weight(at)), device),
            half: constant([row, 1], |at, _| if is_weight(at) { 0.0 } else { 0.5 }, device),
            first_order: constant([row, 1], |at, _| one(is_weight(at)), device),
            classes: (shape.outputs() > 1).then(|| ClassWeights {
                rows: linear(fields * row, shape.outputs(), false, device),
                pairs: linear(embedding, shape.outputs(), false, device),
            }),
        }
    }
}

impl<B: Backend> ClickModel<B> for DeepFm<B> {
    fn logits(&self, rows: Tensor<B, 3>, dropout: &mut Dropout) -> Tensor<B, 2> {
        let [samples, fields, row] = rows.dims();
        let flat = rows.clone().reshape([samples, fields * row]);
        let embedded = rows.narrow(2, 0, row - 1).reshape([samples, fields * (row - 1)]);
        let deep = self.perceptron.forward(embedded, dropout);
        // Σ_{f<g} v_f·v_g without the pairs: half of the square of the sum less the sum of the squares. Sums are matrix products with
        // constants, because burn's CPU back end adds up middle dimensions, and spreads their gradients, element by element.
        let sum = flat.clone().matmul(self.over_fields.clone());
        if let Some(classes) = &self.classes {
            let squares = (flat.clone() * flat.clone()).matmul(self.over_fields.clone());
            let pairs = ((sum.clone() * sum - squares) * 0.5).narrow(1, 0, row - 1);
            return classes.rows.forward(flat) + classes.pairs.forward(pairs) + deep;
        }
        let first_order = sum.clone().matmul(self.first_order.clone());
        let squares = (flat.clone() * flat).matmul(self.embeddings.clone()) * 0.5;
        let second_order = (sum.clone() * sum).matmul(self.half.clone()) - squares;
        first_order + second_order + deep
    }
}
