//! Logistic regression on samples of numbers: the smallest model, and a convex one.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_nn::Linear;

use super::{Model, Recipe, linear};
use crate::data::example::ExampleShape;
use crate::dense::{self, DenseModel, Family, Judge, Pass, vectors};
use crate::size;

/// Entry of logistic regression in the registry of models.
pub const MODEL: Model = Model::with::<LogisticSizes>(
    "logistic",
    "logistic regression: classes of samples of numbers, by one linear layer",
    |settings| settings.read().map(recipe),
);

antdt_core::settings! {
    /// Size of a sample.
    #[derive(Debug, Clone, Copy)]
    struct LogisticSizes {
        features: usize = vectors::FEATURES, vectors::ABOUT, size::EXPECTED, if |features| size::fits(features);
    }
}

fn recipe(LogisticSizes { features }: LogisticSizes) -> Recipe {
    dense::recipe(OPTIMIZER, LEARNING_RATE, vectors::data(features), Judge::Accuracy, |shape, device| {
        dense::build::<Logistics>(&(), shape, device)
    })
}

/// The loss is convex: plain steps find its minimum.
const OPTIMIZER: &str = "sgd";

const LEARNING_RATE: f32 = 0.1;

/// [`Logistic`] on any back end.
struct Logistics;

impl Family for Logistics {
    type Sizes = ();
    type On<B: AutodiffBackend> = Logistic<B>;

    fn build<B: AutodiffBackend>((): &(), shape: ExampleShape, device: &B::Device) -> Logistic<B> {
        Logistic::new(shape.inputs, shape.classes, device)
    }
}

/// Multinomial logistic regression, `[samples, features]` to `[samples, classes]`.
#[derive(Module, Debug)]
pub struct Logistic<B: Backend> {
    output: Linear<B>,
}

impl<B: Backend> Logistic<B> {
    /// Returns the model with all parameters 0; [`flat`](crate::flat) sets others.
    pub fn new(features: usize, classes: usize, device: &B::Device) -> Self {
        Self { output: linear(features, classes, true, device) }
    }
}

impl<B: Backend> DenseModel<B> for Logistic<B> {
    fn logits(&self, inputs: Tensor<B, 2>, _: &mut Pass<B>) -> Tensor<B, 2> {
        self.output.forward(inputs)
    }
}
