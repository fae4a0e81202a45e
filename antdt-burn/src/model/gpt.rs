//! A small GPT: a transformer that predicts the next byte of a text.

use antdt_core::InvalidValue;
use antdt_core::registry::Settings;
use burn::module::{Module, Param};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_nn::Linear;

use super::{Model, Recipe, linear};
use crate::data::example::ExampleShape;
use crate::dense::{self, DenseModel, Family, Judge, Pass, texts};
use crate::dropout;
use crate::size;

/// Entry of the GPT in the registry of models.
pub const MODEL: Model = Model::with::<GptSizes>("gpt", "small GPT: the next byte of a text", |settings| {
    read(settings).map(recipe)
});

/// The loss of a transformer falls slowly under optimizers with one rate for all parameters.
const OPTIMIZER: &str = "adam";

const LEARNING_RATE: f32 = 0.003;

/// Keeps the division of a layer norm finite.
const EPSILON: f32 = 1e-5;

/// Units of a block's perceptron for each value of a position.
const EXPANSION: usize = 4;

antdt_core::settings! {
    /// Sizes of a GPT. The defaults are 120,576 parameters, half a megabyte: an epoch over a million bytes is minutes on one core.
    #[derive(Debug, Clone)]
    struct GptSizes {
        layers: usize = 2, "blocks of attention and perceptron", size::EXPECTED, if |layers| size::fits(layers);
        heads: usize = 4, "heads of each attention; divides the width", size::EXPECTED, if |heads| size::fits(heads);
        width: usize = 64, "values of a position between the blocks", size::EXPECTED, if |width| size::fits(width);
        context: usize = 64, "bytes that a sample has before its last", size::EXPECTED, if |bytes| size::fits(bytes);
        dropout: f32 = 0.0, "share of the embeddings, and of what each block adds, that a step leaves out",
            dropout::EXPECTED, if |share| dropout::fits(share);
    }
}

/// Reads the sizes, and checks that they make sense together.
fn read(settings: &Settings<'_>) -> Result<GptSizes, InvalidValue> {
    let sizes: GptSizes = settings.read()?;
    if !sizes.width.is_multiple_of(sizes.heads) {
        let expected = format!("a divisor of width, which is {}", sizes.width);
        return Err(settings.refuse("heads", sizes.heads, &expected));
    }
    Ok(sizes)
}

fn recipe(sizes: GptSizes) -> Recipe {
    let data = texts::data(sizes.context);
    dense::recipe(OPTIMIZER, LEARNING_RATE, data, Judge::Perplexity, move |shape, device| {
        dense::build::<Gpts>(&sizes, shape, device)
    })
}

/// [`Gpt`] on any back end.
struct Gpts;

impl Family for Gpts {
    type Sizes = GptSizes;
    type On<B: AutodiffBackend> = Gpt<B>;

    fn build<B: AutodiffBackend>(sizes: &GptSizes, shape: ExampleShape, device: &B::Device) -> Gpt<B> {
        Gpt {
            tokens: zeros([shape.classes, sizes.width], device),
            positions: zeros([shape.inputs, sizes.width], device),
            blocks: (0..sizes.layers).map(|_| Block::new(sizes.width, device)).collect(),
            norm: LayerNorm::new(sizes.width, device),
            mask: mask(shape.inputs, device),
            heads: sizes.heads,
            dropout: sizes.dropout,
        }
    }
}

/// A decoder-only transformer over bytes: it adds embeddings of bytes and of positions, applies blocks that normalise their input
/// first, and uses the embeddings of bytes again as the output layer. It maps bytes, `[samples, context]`, to logits,
/// `[samples * context, byte values]`: for each position, one for each value of the next byte.
///
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (recalled); differs: on bytes, and
/// without dropout on the attention weights.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    tokens: Param<Tensor<B, 2>>,
    positions: Param<Tensor<B, 2>>,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    /// What is added to the score of each pair of positions, `[1, context, context]`. Constant.
    mask: Tensor<B, 3>,
    heads: usize,
    /// Share of what is added to a position that a training step leaves out.
    dropout: f32,
}

fn zeros<B: Backend, const D: usize>(shape: [usize; D], device: &B::Device) -> Param<Tensor<B, D>> {
    Param::from_tensor(Tensor::zeros(shape, device))
}

/// 0 where a position may look at another, which is none after it.
fn mask<B: Backend>(context: usize, device: &B::Device) -> Tensor<B, 3> {
    let score = |at: usize| if at % context > at / context { -1e9 } else { 0.0 };
    let values: Vec<f32> = (0..context * context).map(score).collect();
    Tensor::from_data(TensorData::new(values, [1, context, context]), device)
}

impl<B: Backend> DenseModel<B> for Gpt<B> {
    fn logits(&self, inputs: Tensor<B, 2>, pass: &mut Pass<B>) -> Tensor<B, 2> {
        let [samples, context] = inputs.dims();
        let tokens = self.tokens.val();
        let [_, width] = tokens.dims();
        let embedded = tokens.clone().select(0, inputs.int().reshape([samples * context]));
        let placed = embedded.reshape([samples, context, width]) + self.positions.val().unsqueeze::<3>();
        let drop = &mut |layer| pass.dropout.apply(layer, self.dropout);
        let placed = drop(placed.reshape([samples * context, width]));
        let hidden = self
            .blocks
            .iter()
            .fold(placed, |hidden, block| block.forward(hidden, samples, self.heads, &self.mask, drop));
        self.norm.forward(hidden).matmul(tokens.transpose())
    }
}

/// Attention, then a perceptron, each added to its input.
#[derive(Module, Debug)]
struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    /// Queries, keys and values, in this order.
    attention: Linear<B>,
    attention_output: Linear<B>,
    perceptron_norm: LayerNorm<B>,
    perceptron: Linear<B>,
    perceptron_output: Linear<B>,
}

impl<B: Backend> Block<B> {
    fn new(width: usize, device: &B::Device) -> Self {
        Self {
            attention_norm: LayerNorm::new(width, device),
            attention: linear(width, 3 * width, true, device),
            attention_output: linear(width, width, true, device),
            perceptron_norm: LayerNorm::new(width, device),
            perceptron: linear(width, EXPANSION * width, true, device),
            perceptron_output: linear(EXPANSION * width, width, true, device),
        }
    }

    /// `[samples * context, width]` to the same; `drop` leaves a share of what is added out.
    fn forward(
        &self,
        hidden: Tensor<B, 2>,
        samples: usize,
        heads: usize,
        mask: &Tensor<B, 3>,
        drop: &mut impl FnMut(Tensor<B, 2>) -> Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let mixed = self.attend(self.attention_norm.forward(hidden.clone()), samples, heads, mask);
        let hidden = hidden + drop(self.attention_output.forward(mixed));
        let inner = gelu(self.perceptron.forward(self.perceptron_norm.forward(hidden.clone())));
        hidden + drop(self.perceptron_output.forward(inner))
    }

    /// Each position becomes a mean of the values of those before it and its own, weighted by how well its query fits their
    /// keys.
    fn attend(
        &self,
        hidden: Tensor<B, 2>,
        samples: usize,
        heads: usize,
        mask: &Tensor<B, 3>,
    ) -> Tensor<B, 2> {
        let [positions, width] = hidden.dims();
        let (context, each) = (positions / samples, width / heads);
        let projected = self.attention.forward(hidden);
        let part = |number: usize| {
            let part = projected.clone().narrow(1, number * width, width);
            let by_head = part.reshape([samples, context, heads, each]).swap_dims(1, 2);
            by_head.reshape([samples * heads, context, each])
        };
        let (queries, keys, values) = (part(0), part(1), part(2));
        #[allow(clippy::cast_precision_loss, reason = "a size of a layer")]
        let scale = 1.0 / (each as f32).sqrt();
        let scores = queries.matmul(keys.transpose()) * scale + mask.clone();
        let mixed = softmax(scores, 2).matmul(values);
        let by_position = mixed.reshape([samples, heads, context, each]).swap_dims(1, 2);
        by_position.reshape([positions, width])
    }
}

/// Moves and scales the values of a position to a mean of 0 and a variance of 1, then to what was learnt.
///
/// Source: Ba, Kiros and Hinton, "Layer Normalization", 2016 (recalled).
#[derive(Module, Debug)]
struct LayerNorm<B: Backend> {
    gain: Param<Tensor<B, 1>>,
    bias: Param<Tensor<B, 1>>,
}

impl<B: Backend> LayerNorm<B> {
    fn new(width: usize, device: &B::Device) -> Self {
        Self { gain: Param::from_tensor(Tensor::ones([width], device)), bias: zeros([width], device) }
    }

    fn forward(&self, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        let centred = hidden.clone() - hidden.mean_dim(1);
        let variance = (centred.clone() * centred.clone()).mean_dim(1);
        let normal = centred / (variance + EPSILON).sqrt();
        normal * self.gain.val().unsqueeze::<2>() + self.bias.val().unsqueeze::<2>()
    }
}
