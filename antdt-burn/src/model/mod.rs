//! The models that a job can name: one file each, with its sizes as settings.
//!
//! To add a model: write a file with its [`Model`], and add it to [`SHIPPED`].

pub mod deepfm;
pub mod xdeepfm;

pub mod gpt;
pub mod logistic;
pub mod mlp;
pub mod mobilenet;
pub mod resnet20;

mod vision;

use antdt_core::registry::{self, Registry};
use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_nn::{Initializer, Linear, LinearConfig};

use crate::click::ClickRecipe;
use crate::dense::DenseRecipe;
use crate::dropout::Dropout;

/// A model in the registry, named by `--workload`. Its settings are the table `[workload.NAME]` of a job
/// file.
pub type Model = registry::Entry<Recipe>;

/// Registry entries of all models of this crate.
pub const SHIPPED: &[Model] = &[
    deepfm::MODEL,
    xdeepfm::MODEL,
    mlp::MODEL,
    logistic::MODEL,
    gpt::MODEL,
    resnet20::MODEL,
    mobilenet::MODEL,
];

/// Registry of the models that a job can name.
///
/// ```
/// use antdt_burn::model::REGISTRY;
/// assert_eq!(REGISTRY.by_name("deepfm")?.optimizer, "adagrad");
/// # Ok::<(), antdt_core::registry::BuildError>(())
/// ```
pub static REGISTRY: Registry<Model> = Registry::new("workload", SHIPPED);

/// A model with its sizes, and the optimizer settings that train it well by default.
#[derive(Debug)]
pub struct Recipe {
    /// Name of the default optimizer, in the registry of `antdt-model`.
    pub optimizer: &'static str,
    /// Default learning rate, for the default optimizer.
    pub learning_rate: f32,
    /// Default weight decay, for the default optimizer.
    pub weight_decay: f32,
    pub(crate) task: Task,
}

/// What a model does with its samples.
#[derive(Debug)]
pub(crate) enum Task {
    /// Predicts clicks from the fields of a row, through tables of embeddings.
    Click(ClickRecipe),
    /// Predicts classes from a sample of fixed length; all parameters are dense.
    Dense(DenseRecipe),
}

/// A perceptron: linear layers with a ReLU after each but the last.
#[derive(Module, Debug)]
pub(crate) struct Perceptron<B: Backend> {
    hidden: Vec<Linear<B>>,
    output: Linear<B>,
    /// Share of each hidden layer's units that a training step leaves out.
    dropout: f32,
}

impl<B: Backend> Perceptron<B> {
    fn new(inputs: usize, hidden: &[usize], outputs: usize, device: &B::Device) -> Self {
        let mut width = inputs;
        let hidden = hidden
            .iter()
            .map(|units| linear(std::mem::replace(&mut width, *units), *units, true, device))
            .collect();
        Self { hidden, output: linear(width, outputs, true, device), dropout: 0.0 }
    }

    /// Leaves this share of each hidden layer out in training steps.
    fn with_dropout(self, dropout: f32) -> Self {
        Self { dropout, ..self }
    }

    /// `[samples, inputs]` to `[samples, outputs]`.
    fn forward(&self, input: Tensor<B, 2>, dropout: &mut Dropout) -> Tensor<B, 2> {
        let step = |input, layer: &Linear<B>| dropout.apply(relu(layer.forward(input)), self.dropout);
        let top = self.hidden.iter().fold(input, step);
        self.output.forward(top)
    }
}

/// A linear layer at 0: the parameters come from outside before each use, so drawing any here would be waste.
fn linear<B: Backend>(inputs: usize, outputs: usize, bias: bool, device: &B::Device) -> Linear<B> {
    LinearConfig::new(inputs, outputs).with_bias(bias).with_initializer(Initializer::Zeros).init(device)
}

/// The matrix `[rows, columns]` of these values.
fn constant<B: Backend>(
    [rows, columns]: [usize; 2],
    value: impl Fn(usize, usize) -> f32,
    device: &B::Device,
) -> Tensor<B, 2> {
    let values: Vec<f32> = (0..rows * columns).map(|at| value(at / columns, at % columns)).collect();
    Tensor::from_data(TensorData::new(values, [rows, columns]), device)
}

#[cfg(test)]
mod tests;
