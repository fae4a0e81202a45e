//! A dense model on one back end of burn, behind a trait without type parameters.

use antdt_agent::{Buffer, GradientSink, TrainError};
use burn::module::{AutodiffModule, ParamId};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn_autodiff::Autodiff;

use super::{DenseModel, Family, Pass};
use crate::adopt::Adopt;
use crate::data::example::ExampleShape;
use crate::device::Device;
use crate::engine::{finite, lend, load};
use crate::flat::{self, FlatLayout};

/// A batch as the framework sees it; at least one sample.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Parameters, `[dense_len]`; in host memory for an evaluation.
    pub(crate) dense: Buffer<'a>,
    /// `[samples, inputs]`.
    pub(crate) inputs: &'a [f32],
    /// `[samples, positions]`.
    pub(crate) classes: &'a [i32],
    /// For each sample, from what a training step draws what it leaves out.
    pub(crate) draws: &'a [u64],
}

/// What an evaluation found in a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    /// Sum of the samples' losses.
    pub(crate) loss_sum: f64,
    /// Positions whose most probable class is the right one.
    pub(crate) right: usize,
}

/// A model that computes. The loss of a sample is the mean cross-entropy of its positions.
pub(crate) trait Engine: Send {
    fn layout(&self) -> &FlatLayout;

    /// Whether parameters and their gradient can stay on the device that it computes on.
    fn is_on_device(&self) -> bool;

    /// Hands the gradient sums over to `sink`. Returns the sum of the samples' losses.
    fn forward_backward(&self, input: Input<'_>, sink: &mut dyn GradientSink) -> Result<f64, TrainError>;

    fn evaluate(&self, input: Input<'_>) -> Result<Verdict, TrainError>;
}

/// Builds the model on the device.
pub(crate) fn build<F: Family>(sizes: &F::Sizes, shape: ExampleShape, device: Device) -> Box<dyn Engine> {
    match device {
        Device::Cpu => build_on::<F, Autodiff<burn_flex::Flex>>(sizes, shape, Default::default()),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            let device = burn_cuda::CudaDevice::new(index);
            build_on::<F, Autodiff<crate::device::Cuda>>(sizes, shape, device)
        }
    }
}

fn build_on<F: Family, B: AutodiffBackend<InnerBackend: Adopt>>(
    sizes: &F::Sizes,
    shape: ExampleShape,
    device: B::Device,
) -> Box<dyn Engine> {
    let model = F::build::<B>(sizes, shape, &device);
    Box::new(BurnEngine::<B, _> { layout: FlatLayout::of(&model), model, shape, device })
}

struct BurnEngine<B: Backend, M> {
    model: M,
    layout: FlatLayout,
    shape: ExampleShape,
    device: B::Device,
}

impl<B, M> BurnEngine<B, M>
where
    B: AutodiffBackend,
    M: DenseModel<B> + AutodiffModule<B, InnerModule: DenseModel<B::InnerBackend>>,
{
    /// The inputs `[samples, inputs]`, and the classes `[samples * positions, 1]`.
    fn tensors<C: Backend>(
        &self,
        input: &Input<'_>,
        device: &C::Device,
    ) -> (Tensor<C, 2>, Tensor<C, 2, Int>) {
        let samples = input.inputs.len() / self.shape.inputs;
        let inputs = TensorData::new(input.inputs.to_vec(), [samples, self.shape.inputs]);
        let classes = TensorData::new(input.classes.to_vec(), [input.classes.len(), 1]);
        (Tensor::from_data(inputs, device), Tensor::from_data(classes, device))
    }

    #[allow(clippy::cast_precision_loss, reason = "positions of a sample")]
    fn positions(&self) -> f64 {
        self.shape.positions as f64
    }
}

/// The cross-entropy of each position, `[samples * positions]`.
fn losses<B: Backend>(logits: Tensor<B, 2>, classes: Tensor<B, 2, Int>) -> Tensor<B, 1> {
    let [positions, _] = logits.dims();
    log_softmax(logits, 1).gather(1, classes).reshape([positions]).neg()
}

/// New values of running statistics, each times the samples of the batch.
fn sums<B: AutodiffBackend>(pass: Pass<B>, samples: usize) -> Vec<(ParamId, Tensor<B::InnerBackend, 1>)> {
    #[allow(clippy::cast_precision_loss, reason = "samples of a batch")]
    let samples = samples as f32;
    pass.states.into_iter().map(|(id, state)| (id, state.inner() * samples)).collect()
}

fn sum<B: Backend>(losses: Tensor<B, 1>) -> Result<f64, TrainError> {
    Ok(flat::values(losses)?.iter().map(|loss| f64::from(*loss)).sum())
}

impl<B, M> Engine for BurnEngine<B, M>
where
    B: AutodiffBackend<InnerBackend: Adopt>,
    M: DenseModel<B> + AutodiffModule<B, InnerModule: DenseModel<B::InnerBackend>>,
{
    fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    fn is_on_device(&self) -> bool {
        B::InnerBackend::LENDS
    }

    fn forward_backward(&self, input: Input<'_>, sink: &mut dyn GradientSink) -> Result<f64, TrainError> {
        let model = load::<B, M>(&self.model, input.dense, &self.device)?;
        let (inputs, classes) = self.tensors::<B>(&input, &self.device);
        let samples = inputs.dims()[0];
        let mut pass = Pass::of_training(input.draws);
        let losses = losses(model.logits(inputs, &mut pass), classes);
        let mut gradients = (losses.clone().sum() / self.positions()).backward();
        let loss = sum(losses.inner())? / self.positions();
        let states = sums(pass, samples);
        let (of, stats) = ((&model, &self.layout), (loss, samples));
        if !lend::<B, M>(of, &mut gradients, &states, &self.device, stats, sink)? {
            let states: Vec<_> = states
                .into_iter()
                .map(|(id, state)| Ok((id, flat::values(state)?)))
                .collect::<Result<_, TrainError>>()?;
            let groups = flat::gradients::<B, M>(&model, &mut gradients, &states)?;
            // The last layer first, as in a backward pass.
            for (group, values) in groups.into_iter().enumerate().rev() {
                sink.group(group, Buffer::Host(&finite(values, loss, samples)?))?;
            }
        }
        sink.rows(Buffer::Host(&[]))?;
        Ok(loss)
    }

    fn evaluate(&self, input: Input<'_>) -> Result<Verdict, TrainError> {
        let model = flat::load::<B::InnerBackend, _>(self.model.valid(), input.dense.host()?, &self.device);
        let (inputs, classes) = self.tensors::<B::InnerBackend>(&input, &self.device);
        let logits = model.logits(inputs, &mut Pass::of_evaluation());
        let told = logits.clone().argmax(1).equal(classes.clone()).int().sum().into_scalar();
        let right = burn::tensor::ElementConversion::elem::<i64>(told);
        let loss_sum = sum(losses(logits, classes))? / self.positions();
        Ok(Verdict { loss_sum, right: usize::try_from(right).unwrap_or(0) })
    }
}
