//! A multi-layer perceptron on samples of numbers.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::{Model, Perceptron, Recipe};
use crate::data::example::ExampleShape;
use crate::dense::{self, DenseModel, Family, Judge, Pass, vectors};
use crate::size::{self, Sizes};

/// Entry of the multi-layer perceptron in the registry of models.
pub const MODEL: Model =
    Model::with::<MlpSizes>("mlp", "multi-layer perceptron: classes of samples of numbers", |settings| {
        settings.read().map(recipe)
    });

antdt_core::settings! {
    /// Sizes of a perceptron. The defaults are 250,378 parameters: a megabyte, which is enough to be seen on a network, at 2 ms
    /// for 16 samples.
    #[derive(Debug, Clone)]
    struct MlpSizes {
        features: usize = vectors::FEATURES, vectors::ABOUT, size::EXPECTED, if |features| size::fits(features);
        hidden: Sizes = Sizes(vec![384, 384]), "units of each hidden layer", Sizes::EXPECTED, if |layers| layers.fit();
    }
}

fn recipe(sizes: MlpSizes) -> Recipe {
    let data = vectors::data(sizes.features);
    dense::recipe(OPTIMIZER, LEARNING_RATE, data, Judge::Accuracy, move |shape, device| {
        dense::build::<Mlps>(&sizes.hidden, shape, device)
    })
}

/// Plain steps need no state, and averages of models mean what they say.
const OPTIMIZER: &str = "sgd";

const LEARNING_RATE: f32 = 0.1;

/// [`Mlp`] on any back end.
struct Mlps;

impl Family for Mlps {
    type Sizes = Sizes;
    type On<B: AutodiffBackend> = Mlp<B>;

    fn build<B: AutodiffBackend>(hidden: &Sizes, shape: ExampleShape, device: &B::Device) -> Mlp<B> {
        Mlp::new(shape.inputs, &hidden.0, shape.classes, device)
    }
}

/// A multi-layer perceptron with ReLU, `[samples, features]` to `[samples, classes]`.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    perceptron: Perceptron<B>,
}

impl<B: Backend> Mlp<B> {
    /// Returns the model with all parameters 0; [`flat`](crate::flat) sets others.
    pub fn new(features: usize, hidden: &[usize], classes: usize, device: &B::Device) -> Self {
        Self { perceptron: Perceptron::new(features, hidden, classes, device) }
    }
}

impl<B: Backend> DenseModel<B> for Mlp<B> {
    fn logits(&self, inputs: Tensor<B, 2>, pass: &mut Pass<B>) -> Tensor<B, 2> {
        self.perceptron.forward(inputs, &mut pass.dropout)
    }
}
