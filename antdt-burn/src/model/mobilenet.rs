//! A small `MobileNet`: convolutions of each channel by itself, then of all channels at each pixel.

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

/// Entry of `MobileNet` in the registry of models.
pub const MODEL: Model = Model::with::<MobileNetSizes>(
    "mobilenet",
    "small MobileNet of depthwise separable convolutions: classes of small pictures",
    |settings| settings.read().map(recipe),
);

/// What vision models are usually trained with.
const OPTIMIZER: &str = "momentum";

const LEARNING_RATE: f32 = 0.05;

/// Stride of each block, and channels after it as multiples of the width: the first layers of the published network, which
/// has pictures of 224 pixels to shrink, with its growth of channels.
const BLOCKS: [(usize, usize); 5] = [(1, 2), (2, 4), (1, 4), (2, 8), (1, 8)];

antdt_core::settings! {
    /// Sizes of a `MobileNet`.
    #[derive(Debug, Clone)]
    struct MobileNetSizes {
        width: usize = 16, "channels after the first layer; the last layers have eight times as many",
            size::EXPECTED, if |width| size::fits(width);
        norm: NormKind = NormKind::Batch, NormKind::ABOUT, NormKind::EXPECTED;
        side: usize = images::SIDE, images::ABOUT, images::EXPECTED, if |side| images::fits(side);
    }
}

fn recipe(sizes: MobileNetSizes) -> Recipe {
    let data = images::data(sizes.side);
    dense::recipe(OPTIMIZER, LEARNING_RATE, data, Judge::Accuracy, move |shape, device| {
        dense::build::<MobileNets>(&sizes, shape, device)
    })
}

/// [`MobileNet`] on any back end.
struct MobileNets;

impl Family for MobileNets {
    type Sizes = MobileNetSizes;
    type On<B: AutodiffBackend> = MobileNet<B>;

    fn build<B: AutodiffBackend>(
        sizes: &MobileNetSizes,
        shape: ExampleShape,
        device: &B::Device,
    ) -> MobileNet<B> {
        let (mut channels, norm) = (sizes.width, sizes.norm);
        let blocks = BLOCKS
            .iter()
            .map(|(stride, multiple)| {
                let inputs = std::mem::replace(&mut channels, multiple * sizes.width);
                Block {
                    depthwise: Convolution::depthwise(inputs, *stride, norm, device),
                    pointwise: Convolution::new(inputs, channels, 1, 1, norm, device),
                }
            })
            .collect();
        MobileNet {
            input: Convolution::new(COLOURS, sizes.width, 3, 1, norm, device),
            blocks,
            output: linear(channels, shape.classes, true, device),
            side: sizes.side,
        }
    }
}

/// A network of depthwise separable convolutions, `[samples, 3 * side * side]` to `[samples, classes]`.
///
/// Source: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", 2017
/// (recalled).
#[derive(Module, Debug)]
pub struct MobileNet<B: Backend> {
    input: Convolution<B>,
    blocks: Vec<Block<B>>,
    output: Linear<B>,
    side: usize,
}

impl<B: Backend> DenseModel<B> for MobileNet<B> {
    fn logits(&self, inputs: Tensor<B, 2>, pass: &mut Pass<B>) -> Tensor<B, 2> {
        let input = relu(self.input.forward(pictures(inputs, self.side), pass));
        let top = self.blocks.iter().fold(input, |input, block| block.forward(input, pass));
        self.output.forward(pooled(top))
    }
}

/// A depthwise separable convolution.
#[derive(Module, Debug)]
struct Block<B: Backend> {
    depthwise: Convolution<B>,
    pointwise: Convolution<B>,
}

impl<B: Backend> Block<B> {
    fn forward(&self, input: Tensor<B, 4>, pass: &mut Pass<B>) -> Tensor<B, 4> {
        let each = relu(self.depthwise.forward(input, pass));
        relu(self.pointwise.forward(each, pass))
    }
}
