//! One model on one back end of burn, behind a trait without type parameters.

use antdt_agent::{Gradient, TrainError};
use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::tensor::activation::{log_sigmoid, sigmoid};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

use crate::device::Device;
use crate::flat::{self, FlatLayout};
use crate::model::{ClickModel, DeepFm, ModelKind, ModelShape, XDeepFm};

/// A batch as the framework sees it; at least one sample.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Parameters, `[dense_len]`.
    pub(crate) dense: &'a [f32],
    /// Touched rows of the table, `[touched, dim]`.
    pub(crate) rows: &'a [f32],
    /// Which touched row each field of each sample has, `[samples, fields]`.
    pub(crate) index: &'a [i32],
    /// `[samples]`.
    pub(crate) labels: &'a [f32],
}

/// A model that computes.
pub(crate) trait Engine: Send {
    fn layout(&self) -> &FlatLayout;

    /// Replaces `gradient` with the gradient sums, and appends the loss of each sample.
    fn forward_backward(
        &self,
        input: Input<'_>,
        gradient: &mut Gradient,
        losses: &mut Vec<f32>,
    ) -> Result<(), TrainError>;

    /// Appends the predicted probability of each sample.
    fn predict(&self, input: Input<'_>, probabilities: &mut Vec<f32>) -> Result<(), TrainError>;
}

/// Builds the model on the device.
pub(crate) fn build(kind: ModelKind, shape: &ModelShape, device: Device) -> Box<dyn Engine> {
    match device {
        Device::Cpu => build_on::<Autodiff<burn::backend::Flex>>(kind, shape),
        #[cfg(feature = "cuda")]
        Device::Cuda => build_on::<Autodiff<burn::backend::Cuda>>(kind, shape),
    }
}

fn build_on<B: AutodiffBackend>(kind: ModelKind, shape: &ModelShape) -> Box<dyn Engine> {
    let device = B::Device::default();
    match kind {
        ModelKind::DeepFm => Box::new(BurnEngine::<B, _>::new(DeepFm::new(shape, &device), shape, device)),
        ModelKind::XDeepFm => Box::new(BurnEngine::<B, _>::new(XDeepFm::new(shape, &device), shape, device)),
    }
}

struct BurnEngine<B: Backend, M> {
    model: M,
    layout: FlatLayout,
    fields: usize,
    row_dim: usize,
    device: B::Device,
}

impl<B, M> BurnEngine<B, M>
where
    B: AutodiffBackend,
    M: ClickModel<B> + AutodiffModule<B, InnerModule: ClickModel<B::InnerBackend>>,
{
    fn new(model: M, shape: &ModelShape, device: B::Device) -> Self {
        let layout = FlatLayout::of(&model);
        Self { model, layout, fields: shape.fields, row_dim: shape.row_dim(), device }
    }

    /// The table rows `[touched, dim]` as a leaf, and those of each field of each sample `[samples, fields, dim]`.
    fn gather<C: Backend>(&self, input: &Input<'_>, device: &C::Device) -> (Tensor<C, 2>, Tensor<C, 3>) {
        let touched = input.rows.len() / self.row_dim;
        let rows = TensorData::new(input.rows.to_vec(), [touched, self.row_dim]);
        let rows = Tensor::<C, 2>::from_data(rows, device).require_grad();
        let index = TensorData::new(input.index.to_vec(), [input.index.len()]);
        let index = Tensor::<C, 1, Int>::from_data(index, device);
        let samples = input.labels.len();
        let gathered = rows.clone().select(0, index).reshape([samples, self.fields, self.row_dim]);
        (rows, gathered)
    }
}

impl<B, M> Engine for BurnEngine<B, M>
where
    B: AutodiffBackend,
    M: ClickModel<B> + AutodiffModule<B, InnerModule: ClickModel<B::InnerBackend>>,
{
    fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    fn forward_backward(
        &self,
        input: Input<'_>,
        gradient: &mut Gradient,
        losses: &mut Vec<f32>,
    ) -> Result<(), TrainError> {
        let model = flat::load::<B, M>(self.model.clone(), input.dense, &self.device);
        let (rows, gathered) = self.gather::<B>(&input, &self.device);
        let logits = model.logits(gathered);
        let labels = TensorData::new(input.labels.to_vec(), [input.labels.len()]);
        let labels = Tensor::<B, 1>::from_data(labels, &self.device);
        // -[y ln σ(z) + (1 - y) ln(1 - σ(z))] = (1 - y) z - ln σ(z), which is stable for any z.
        let loss = (labels.neg() + 1.0) * logits.clone() - log_sigmoid(logits);
        let mut gradients = loss.clone().sum().backward();
        flat::append(loss.inner(), losses)?;
        gradient.dense.clear();
        flat::append_gradients::<B, M>(&model, &mut gradients, &mut gradient.dense)?;
        gradient.rows.clear();
        match rows.grad_remove(&mut gradients) {
            Some(rows) => flat::append(rows, &mut gradient.rows),
            None => Err(TrainError::Model("the loss does not depend on the table rows".into())),
        }
    }

    fn predict(&self, input: Input<'_>, probabilities: &mut Vec<f32>) -> Result<(), TrainError> {
        let model = flat::load::<B, M>(self.model.clone(), input.dense, &self.device).valid();
        let (_, gathered) = self.gather::<B::InnerBackend>(&input, &self.device);
        flat::append(sigmoid(model.logits(gathered)), probabilities)
    }
}
