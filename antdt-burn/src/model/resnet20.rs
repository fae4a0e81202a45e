//! `ResNet` for small pictures: 20 layers by default.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_nn::Linear;

use super::vision::{Convolution, NormKind, pictures, pooled};
use super::{Model, Recipe, linear};
use crate::data::example::ExampleShape;
use crate::data::images::COLOURS;
use crate::dense::{self, DenseModel, Family, Judge, Pass, images};
use crate::size;

/// Entry of the `ResNet` in the registry of models.
pub const MODEL: Model = Model::with::<ResNetSizes>(
    "resnet20",
    "residual convolutional network of 20 layers: classes of small pictures",
    |settings| settings.read().map(recipe),
);

/// What the model was published with.
const OPTIMIZER: &str = "momentum";

/// Half of what the model was published with, which needs a warm-up at small batches.
const LEARNING_RATE: f32 = 0.05;

antdt_core::settings! {
    /// Sizes of a `ResNet`.
    #[derive(Debug, Clone)]
    struct ResNetSizes {
        blocks: usize = 3, "blocks of two layers in each of three stages; 3 make 20 layers",
            size::EXPECTED, if |blocks| size::fits(blocks);
        width: usize = 16, "channels of the first stage; each other has twice as many",
            size::EXPECTED, if |width| size::fits(width);
        norm: NormKind = NormKind::Batch, NormKind::ABOUT, NormKind::EXPECTED;
        side: usize = images::SIDE, images::ABOUT, images::EXPECTED, if |side| images::fits(side);
    }
}

fn recipe(sizes: ResNetSizes) -> Recipe {
    let data = images::data(sizes.side);
    dense::recipe(OPTIMIZER, LEARNING_RATE, data, Judge::Accuracy, move |shape, device| {
        dense::build::<ResNets>(&sizes, shape, device)
    })
}

/// [`ResNet`] on any back end.
struct ResNets;

impl Family for ResNets {
    type Sizes = ResNetSizes;
    type On<B: AutodiffBackend> = ResNet<B>;

    fn build<B: AutodiffBackend>(sizes: &ResNetSizes, shape: ExampleShape, device: &B::Device) -> ResNet<B> {
        let mut channels = sizes.width;
        let mut blocks = Vec::new();
        for stage in 0..3 {
            for number in 0..sizes.blocks {
                // The first block of a later stage halves the picture and doubles the channels.
                let (outputs, stride) =
                    if stage > 0 && number == 0 { (2 * channels, 2) } else { (channels, 1) };
                blocks.push(Block::new(channels, outputs, stride, sizes.norm, device));
                channels = outputs;
            }
        }
        ResNet {
            input: Convolution::new(COLOURS, sizes.width, 3, 1, sizes.norm, device),
            blocks,
            output: linear(channels, shape.classes, true, device),
            side: sizes.side,
        }
    }
}

/// A residual network, `[samples, 3 * side * side]` to `[samples, classes]`.
///
/// Source: He et al., "Deep Residual Learning for Image Recognition", 2015, §4.2 (recalled); differs: where a block halves the
/// picture, its input goes through a convolution of 1 by 1 and a norm, not through padding with zeros.
#[derive(Module, Debug)]
pub struct ResNet<B: Backend> {
    input: Convolution<B>,
    blocks: Vec<Block<B>>,
    output: Linear<B>,
    side: usize,
}

impl<B: Backend> DenseModel<B> for ResNet<B> {
    fn logits(&self, inputs: Tensor<B, 2>, pass: &mut Pass<B>) -> Tensor<B, 2> {
        let input = relu(self.input.forward(pictures(inputs, self.side), pass));
        let top = self.blocks.iter().fold(input, |input, block| block.forward(input, pass));
        self.output.forward(pooled(top))
    }
}

/// Two convolutions whose result is added to their input.
#[derive(Module, Debug)]
struct Block<B: Backend> {
    first: Convolution<B>,
    second: Convolution<B>,
    /// `None` adds the input as it is.
    shortcut: Option<Convolution<B>>,
}

impl<B: Backend> Block<B> {
    fn new(inputs: usize, outputs: usize, stride: usize, norm: NormKind, device: &B::Device) -> Self {
        let changes = (inputs, stride) != (outputs, 1);
        Self {
            first: Convolution::new(inputs, outputs, 3, stride, norm, device),
            second: Convolution::new(outputs, outputs, 3, 1, norm, device),
            shortcut: changes.then(|| Convolution::new(inputs, outputs, 1, stride, norm, device)),
        }
    }

    fn forward(&self, input: Tensor<B, 4>, pass: &mut Pass<B>) -> Tensor<B, 4> {
        let inner = relu(self.first.forward(input.clone(), pass));
        let inner = self.second.forward(inner, pass);
        let kept = match &self.shortcut {
            Some(shortcut) => shortcut.forward(input, pass),
            None => input,
        };
        relu(inner + kept)
    }
}
