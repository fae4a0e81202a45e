//! Click-through models. Each takes the embedded fields of a batch and gives one logit per sample.
//!
//! A row of the table holds a field's embedding and, as its last value, its first-order weight.
//!
//! To add a model: write a file with its [`Model`], and add it to the [`REGISTRY`].

pub mod deepfm;
pub mod xdeepfm;

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;
use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;

use crate::device::Device;
use crate::engine::Engine;

/// The models that a job can name.
pub const REGISTRY: &[Model] = &[deepfm::MODEL, xdeepfm::MODEL];

/// A model in the registry: the value of `--workload`.
#[derive(Clone, Copy)]
pub struct Model {
    /// Name by which users choose it.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Refuses sizes that it cannot have.
    pub(crate) check: fn(&ModelShape) -> Result<(), InvalidValue>,
    /// Builds it, on a device.
    pub(crate) build: fn(&ModelShape, Device) -> Box<dyn Engine>,
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Model {}

impl FromStr for Model {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let names: Vec<&str> = REGISTRY.iter().map(|model| model.name).collect();
        let found = REGISTRY.iter().copied().find(|model| model.name == text);
        found.ok_or_else(|| InvalidValue::new("workload", text, names.join(" or ")))
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({self})")
    }
}

/// Sizes of a model's layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Number of fields of a sample.
    pub fields: usize,
    /// Number of values of an embedding, without the first-order weight.
    pub embedding: usize,
    /// Number of units of each hidden layer of the perceptron.
    pub hidden: Vec<usize>,
    /// Number of feature maps of each layer of the compressed interaction network; only xDeepFM has one.
    pub cin: Vec<usize>,
}

impl ModelShape {
    /// Returns the number of values of a table row: the embedding, then the first-order weight.
    pub const fn row_dim(&self) -> usize {
        self.embedding + 1
    }
}

/// A model that predicts click-through rates.
pub trait ClickModel<B: Backend>: Module<B> {
    /// Returns the logits `[samples]` for the table rows `[samples, fields, embedding + 1]` of the samples.
    fn logits(&self, rows: Tensor<B, 3>) -> Tensor<B, 1>;
}

/// Splits table rows `[samples, fields, embedding + 1]` into embeddings `[samples, fields, embedding]` and the sum of
/// the first-order weights `[samples, 1]`.
fn split_rows<B: Backend>(rows: Tensor<B, 3>) -> (Tensor<B, 3>, Tensor<B, 2>) {
    let [samples, _, dim] = rows.dims();
    let first_order = rows.clone().narrow(2, dim - 1, 1).sum_dim(1).reshape([samples, 1]);
    (rows.narrow(2, 0, dim - 1), first_order)
}

/// A perceptron with one output; its output bias is the bias of the whole model.
#[derive(Module, Debug)]
struct Perceptron<B: Backend> {
    hidden: Vec<Linear<B>>,
    output: Linear<B>,
}

impl<B: Backend> Perceptron<B> {
    fn new(inputs: usize, hidden: &[usize], device: &B::Device) -> Self {
        let mut width = inputs;
        let hidden = hidden
            .iter()
            .map(|units| linear(std::mem::replace(&mut width, *units), *units, true, device))
            .collect();
        Self { hidden, output: linear(width, 1, true, device) }
    }

    /// `[samples, inputs]` to `[samples, 1]`.
    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        let top = self.hidden.iter().fold(input, |input, layer| relu(layer.forward(input)));
        self.output.forward(top)
    }
}

/// A linear layer at 0: the parameters come from outside before each use, so drawing any here would be waste.
fn linear<B: Backend>(inputs: usize, outputs: usize, bias: bool, device: &B::Device) -> Linear<B> {
    LinearConfig::new(inputs, outputs).with_bias(bias).with_initializer(Initializer::Zeros).init(device)
}

#[cfg(test)]
mod tests;
