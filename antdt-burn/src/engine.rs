//! A click-through model on one back end of burn, behind a trait without type parameters.

use antdt_agent::{Buffer, GradientSink, TrainError};
use burn::module::{AutodiffModule, Module, ParamId};
use burn::tensor::activation::{log_sigmoid, log_softmax, sigmoid, softmax};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn_autodiff::Autodiff;

use crate::adopt::Adopt;
use crate::click::{ClickModel, ModelShape};
use crate::data::LabelKind;
use crate::device::Device;
use crate::dropout::Dropout;
use crate::flat::{self, FlatLayout};
use crate::lend;

/// A batch as the framework sees it; at least one sample.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Parameters, `[dense_len]`; in host memory for a prediction.
    pub(crate) dense: Buffer<'a>,
    /// Touched rows of the table, `[touched, dim]`.
    pub(crate) rows: Buffer<'a>,
    /// The touched row of each field of each sample, `[samples, fields]`.
    pub(crate) index: &'a [i32],
    /// `[samples]`.
    pub(crate) labels: &'a [f32],
    /// For each sample, from what a training step draws what it leaves out.
    pub(crate) draws: &'a [u64],
}

/// A model that computes.
pub(crate) trait Engine: Send {
    fn layout(&self) -> &FlatLayout;

    /// Whether dense parameters and their gradient can stay on the device that it computes on.
    fn is_on_device(&self) -> bool;

    /// Hands the gradient sums over to `sink`. Returns the sum of the samples' losses.
    ///
    /// burn gives all gradients when the backward pass is over.
    fn forward_backward(&self, input: Input<'_>, sink: &mut dyn GradientSink) -> Result<f64, TrainError>;

    /// Returns what is predicted of each sample, `[samples, outputs]`: the probability of label 1 or of each class, or the label itself
    /// if it is a number.
    fn predict(&self, input: Input<'_>) -> Result<Vec<f32>, TrainError>;
}

/// A model that can be built on any back end.
pub(crate) trait Family {
    /// The model on a back end.
    type On<B: AutodiffBackend>: ClickModel<B>
        + AutodiffModule<B, InnerModule: ClickModel<B::InnerBackend>>
        + 'static;

    /// The model with all parameters 0.
    fn build<B: AutodiffBackend>(shape: &ModelShape, device: &B::Device) -> Self::On<B>;
}

/// Builds the model on the device.
pub(crate) fn build<F: Family>(shape: &ModelShape, device: Device) -> Box<dyn Engine> {
    match device {
        Device::Cpu => build_on::<F, Autodiff<burn_flex::Flex>>(shape, Default::default()),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            let device = burn_cuda::CudaDevice::new(index);
            build_on::<F, Autodiff<crate::device::Cuda>>(shape, device)
        }
    }
}

fn build_on<F: Family, B>(shape: &ModelShape, device: B::Device) -> Box<dyn Engine>
where
    B: AutodiffBackend<InnerBackend: Adopt>,
{
    Box::new(BurnEngine::<B, _>::new(F::build(shape, &device), shape, device))
}

/// Passes the gradient of a batch on if it is one: loss and values are finite.
pub(crate) fn finite(values: Vec<f32>, loss: f64, samples: usize) -> Result<Vec<f32>, TrainError> {
    if loss.is_finite() && values.iter().all(|value| value.is_finite()) {
        Ok(values)
    } else {
        Err(TrainError::Diverged { loss, samples })
    }
}

/// The model with these parameters, as leaves of a new autodiff graph.
pub(crate) fn load<B, M>(model: &M, dense: Buffer<'_>, device: &B::Device) -> Result<M, TrainError>
where
    B: AutodiffBackend<InnerBackend: Adopt>,
    M: Module<B>,
{
    Ok(match dense {
        Buffer::Device(values) => {
            flat::load_there::<B, M>(model.clone(), B::InnerBackend::adopt(values, device)?)
        }
        dense => flat::load::<B, M>(model.clone(), dense.host()?, device),
    })
}

/// Hands the gradient of the dense parameters over where it lies, if the sink takes it there and the back end lends it. `false`: it is
/// to go by way of the host.
pub(crate) fn lend<B, M>(
    (model, layout): (&M, &FlatLayout),
    gradients: &mut B::Gradients,
    states: &[(ParamId, Tensor<B::InnerBackend, 1>)],
    device: &B::Device,
    (loss, samples): (f64, usize),
    sink: &mut dyn GradientSink,
) -> Result<bool, TrainError>
where
    B: AutodiffBackend<InnerBackend: Adopt>,
    M: Module<B>,
{
    if !(B::InnerBackend::LENDS && sink.takes_device()) {
        return Ok(false);
    }
    let gradient = flat::gradient_there::<B, M>(model, gradients, states, device);
    if !(loss.is_finite() && lend::is_finite(&gradient)?) {
        return Err(TrainError::Diverged { loss, samples });
    }
    let address = B::InnerBackend::address(&gradient, device)?;
    let address = address.ok_or_else(|| TrainError::Device("the gradient has no address".to_owned()))?;
    lend::hand_over(&gradient, address, layout.lens(), sink)?;
    Ok(true)
}

/// The loss of each sample, `[samples]`, of the logits `[samples, outputs]`.
fn losses<B: Backend>(
    label: LabelKind,
    logits: Tensor<B, 2>,
    labels: &[f32],
    device: &B::Device,
) -> Tensor<B, 1> {
    let samples = labels.len();
    let data = TensorData::new(labels.to_vec(), [samples]);
    match label {
        LabelKind::Binary => {
            let (labels, logits) = (Tensor::<B, 1>::from_data(data, device), logits.reshape([samples]));
            // -[y ln σ(z) + (1 - y) ln(1 - σ(z))] = (1 - y) z - ln σ(z), which is stable for any z.
            (labels.neg() + 1.0) * logits.clone() - log_sigmoid(logits)
        }
        LabelKind::Classes(_) => {
            #[allow(clippy::cast_possible_truncation, reason = "a label is the number of a class")]
            let classes = labels.iter().map(|label| *label as i32).collect::<Vec<_>>();
            let classes = Tensor::<B, 2, Int>::from_data(TensorData::new(classes, [samples, 1]), device);
            log_softmax(logits, 1).gather(1, classes).reshape([samples]).neg()
        }
        LabelKind::Number { .. } => {
            let distance = logits.reshape([samples]) - Tensor::from_data(data, device);
            distance.clone() * distance
        }
    }
}

struct BurnEngine<B: Backend, M> {
    model: M,
    layout: FlatLayout,
    fields: usize,
    row_dim: usize,
    label: LabelKind,
    device: B::Device,
}

impl<B, M> BurnEngine<B, M>
where
    B: AutodiffBackend<InnerBackend: Adopt>,
    M: ClickModel<B> + AutodiffModule<B, InnerModule: ClickModel<B::InnerBackend>>,
{
    fn new(model: M, shape: &ModelShape, device: B::Device) -> Self {
        let layout = FlatLayout::of(&model);
        Self { model, layout, fields: shape.fields, row_dim: shape.row_dim(), label: shape.label, device }
    }

    /// The table rows, `[touched, dim]`.
    fn rows(&self, input: &Input<'_>) -> Result<Tensor<B::InnerBackend, 2>, TrainError> {
        let shape = [input.rows.len() / self.row_dim, self.row_dim];
        match input.rows {
            Buffer::Device(values) => Ok(B::InnerBackend::adopt(values, &self.device)?.reshape(shape)),
            rows => Ok(Tensor::from_data(TensorData::new(rows.host()?.to_vec(), shape), &self.device)),
        }
    }

    /// The table rows of each field of each sample, `[samples, fields, dim]`.
    fn gather<C: Backend>(&self, rows: Tensor<C, 2>, input: &Input<'_>, device: &C::Device) -> Tensor<C, 3> {
        let index = TensorData::new(input.index.to_vec(), [input.index.len()]);
        let index = Tensor::<C, 1, Int>::from_data(index, device);
        rows.select(0, index).reshape([input.labels.len(), self.fields, self.row_dim])
    }
}

impl<B, M> Engine for BurnEngine<B, M>
where
    B: AutodiffBackend<InnerBackend: Adopt>,
    M: ClickModel<B> + AutodiffModule<B, InnerModule: ClickModel<B::InnerBackend>>,
{
    fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    fn is_on_device(&self) -> bool {
        B::InnerBackend::LENDS
    }

    fn forward_backward(&self, input: Input<'_>, sink: &mut dyn GradientSink) -> Result<f64, TrainError> {
        let model = load::<B, M>(&self.model, input.dense, &self.device)?;
        let rows = Tensor::<B, 2>::from_inner(self.rows(&input)?).require_grad();
        let gathered = self.gather(rows.clone(), &input, &self.device);
        let logits = model.logits(gathered, &mut Dropout::of_training(input.draws));
        let loss = losses(self.label, logits, input.labels, &self.device);
        let mut gradients = loss.clone().sum().backward();
        let loss = flat::values(loss.inner())?.iter().map(|loss| f64::from(*loss)).sum::<f64>();
        let samples = input.labels.len();
        let finite = |values| finite(values, loss, samples);
        let (of, stats) = ((&model, &self.layout), (loss, samples));
        if !lend::<B, M>(of, &mut gradients, &[], &self.device, stats, sink)? {
            let groups = flat::gradients::<B, M>(&model, &mut gradients, &[])?;
            // The last layer first, as in a backward pass.
            for (group, values) in groups.into_iter().enumerate().rev() {
                sink.group(group, Buffer::Host(&finite(values)?))?;
            }
        }
        let rows = rows.grad_remove(&mut gradients);
        let rows =
            rows.ok_or_else(|| TrainError::Model("the loss does not depend on the table rows".into()))?;
        sink.rows(Buffer::Host(&finite(flat::values(rows)?)?))?;
        Ok(loss)
    }

    fn predict(&self, input: Input<'_>) -> Result<Vec<f32>, TrainError> {
        let model = flat::load::<B::InnerBackend, _>(self.model.valid(), input.dense.host()?, &self.device);
        let gathered = self.gather(self.rows(&input)?, &input, &self.device);
        let logits = model.logits(gathered, &mut Dropout::none());
        flat::values(match self.label {
            LabelKind::Binary => sigmoid(logits),
            LabelKind::Classes(_) => softmax(logits, 1),
            LabelKind::Number { .. } => logits,
        })
    }
}
