//! xDeepFM: a compressed interaction network and a multi-layer perceptron, over shared embeddings.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_nn::Linear;

use super::{Model, Perceptron, constant, linear};
use crate::click::{ClickModel, ClickSizes, ModelShape, split_rows};
use crate::dropout::Dropout;
use crate::engine::{self, Family};

/// Entry of xDeepFM in the registry of models.
pub const MODEL: Model = Model::with::<ClickSizes>(
    "xdeepfm",
    "DeepFM's parts with a compressed interaction network",
    |settings| Ok(ClickSizes::with_cin(settings)?.recipe(engine::build::<XDeepFms>)),
);

/// [`XDeepFm`] on any back end.
struct XDeepFms;

impl Family for XDeepFms {
    type On<B: AutodiffBackend> = XDeepFm<B>;

    fn build<B: AutodiffBackend>(shape: &ModelShape, device: &B::Device) -> XDeepFm<B> {
        XDeepFm::new(shape, device)
    }
}

/// The xDeepFM model: first-order weights, a compressed interaction network (CIN) and a perceptron over the
/// same embeddings, added up.
///
/// Layer `l` of the CIN makes `H_l` feature maps: `x^l_h = relu(Σ_ij W^l_ijh (x^{l-1}_i ∘ x^0_j))`, where `∘`
/// multiplies element by element along the embedding and `x^0` is the embeddings themselves. Each map is summed along
/// the embedding, and a linear layer over all sums gives the CIN's part of the logit. All maps of a layer go both to
/// the next layer and to the output.
///
/// Source: Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems", 2018
/// (recalled).
#[derive(Module, Debug)]
pub struct XDeepFm<B: Backend> {
    cin: Vec<Interaction<B>>,
    cin_output: Linear<B>,
    perceptron: Perceptron<B>,
    /// Of more than two classes, what each makes of the rows of all fields in place of the first-order weights,
    /// `[fields * (embedding + 1), classes]`.
    classes: Option<Linear<B>>,
}

impl<B: Backend> XDeepFm<B> {
    /// Returns the model with all parameters 0; [`flat`](crate::flat) sets others.
    pub fn new(shape: &ModelShape, device: &B::Device) -> Self {
        let (mut maps, outputs) = (shape.fields, shape.outputs());
        let cin = shape
            .cin
            .iter()
            .map(|next| Interaction::new(shape.fields, std::mem::replace(&mut maps, *next), *next, device))
            .collect();
        Self {
            cin,
            cin_output: linear(shape.cin.iter().sum(), outputs, false, device),
            perceptron: Perceptron::new(shape.fields * shape.embedding, &shape.hidden, outputs, device)
                .with_dropout(shape.dropout),
            classes: (outputs > 1).then(|| linear(shape.fields * shape.row_dim(), outputs, false, device)),
        }
    }

    /// The sums of all feature maps along the embedding, `[samples, Σ H_l]`.
    fn interactions(&self, embedded: Tensor<B, 3>) -> Tensor<B, 2> {
        let [samples, fields, embedding] = embedded.dims();
        // Positions of the embedding do not mix, so each (position, sample) is a row of its own.
        let base = embedded.permute([2, 0, 1]).reshape([embedding * samples, fields]);
        let mut maps = base.clone();
        let mut sums = Vec::with_capacity(self.cin.len());
        for layer in &self.cin {
            maps = layer.forward(base.clone(), maps);
            let [_, count] = maps.dims();
            let sum = maps.clone().reshape([embedding, samples * count]).sum_dim(0);
            sums.push(sum.reshape([samples, count]));
        }
        Tensor::cat(sums, 1)
    }
}

/// A layer of the CIN.
#[derive(Module, Debug)]
struct Interaction<B: Backend> {
    /// `[fields, H_{l-1}, H_l]`.
    weight: Param<Tensor<B, 3>>,
    /// Repeats each of `H_{l-1}` columns `H_l` times, `[H_{l-1}, H_{l-1} * H_l]`. Constant.
    repeat: Tensor<B, 2>,
    /// Adds up every `H_l`-th column, `[H_{l-1} * H_l, H_l]`. Constant.
    fold: Tensor<B, 2>,
}

impl<B: Backend> Interaction<B> {
    fn new(fields: usize, previous: usize, next: usize, device: &B::Device) -> Self {
        let columns = previous * next;
        let one = |is_one: bool| f32::from(u8::from(is_one));
        Self {
            weight: Param::from_tensor(Tensor::zeros([fields, previous, next], device)),
            repeat: constant([previous, columns], |row, column| one(column / next == row), device),
            fold: constant([columns, next], |row, column| one(row % next == column), device),
        }
    }

    /// `base` is `[positions, fields]`, `maps` `[positions, H_{l-1}]`; the result is `[positions, H_l]`.
    ///
    /// Contracting with `base` first gives `[positions, H_{l-1} * H_l]`, which is smaller than all the products
    /// `x^{l-1}_i ∘ x^0_j`, `[positions, H_{l-1} * fields]`, whenever a layer has fewer maps than there are fields.
    /// Repeating and adding up are matrix products with constants, because burn's CPU back end broadcasts and reduces
    /// middle dimensions element by element: with those, a step on UCI Adult took three times as long.
    fn forward(&self, base: Tensor<B, 2>, maps: Tensor<B, 2>) -> Tensor<B, 2> {
        let [fields, previous, next] = self.weight.dims();
        let mixed = base.matmul(self.weight.val().reshape([fields, previous * next]));
        relu((mixed * maps.matmul(self.repeat.clone())).matmul(self.fold.clone()))
    }
}

impl<B: Backend> ClickModel<B> for XDeepFm<B> {
    fn logits(&self, rows: Tensor<B, 3>, dropout: &mut Dropout) -> Tensor<B, 2> {
        let [samples, fields, row] = rows.dims();
        let of_classes = self
            .classes
            .as_ref()
            .map(|classes| classes.forward(rows.clone().reshape([samples, fields * row])));
        let (embedded, first_order) = split_rows(rows);
        let [samples, fields, embedding] = embedded.dims();
        let deep = self.perceptron.forward(embedded.clone().reshape([samples, fields * embedding]), dropout);
        let explicit = self.cin_output.forward(self.interactions(embedded));
        of_classes.unwrap_or(first_order) + explicit + deep
    }
}
