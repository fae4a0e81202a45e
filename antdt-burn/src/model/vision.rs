//! Layers of the models of pictures.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_core::registry::{Setting, Settings};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Shape, Tensor};

use crate::dense::Pass;
use crate::flat::Running;

/// Keeps the division of a norm finite.
const EPSILON: f32 = 1e-5;

/// Share of a running statistic that a batch replaces: PyTorch's default (recalled). A smaller one needs more steps than small jobs
/// have.
const MOMENTUM: f32 = 0.1;

/// Channels that a group norm takes together, at most.
const GROUP_CHANNELS: usize = 8;

/// What the activations of a layer are normalised over: the setting `norm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    /// Over a channel of all samples of the worker's batch.
    Batch,
    /// Over a few channels of one sample.
    Group,
}

impl NormKind {
    /// The setting.
    pub(super) fn setting() -> Setting {
        let about = "batch: over the samples of a worker's batch; group: within each sample, so that workers do not matter";
        Setting::new("norm", Self::Batch, about)
    }

    pub(super) fn read(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        settings.value("norm", Self::Batch, "batch or group")
    }
}

impl FromStr for NormKind {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "batch" => Ok(Self::Batch),
            "group" => Ok(Self::Group),
            _ => Err(InvalidValue::new("norm", text, "batch or group")),
        }
    }
}

impl fmt::Display for NormKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batch => "batch",
            Self::Group => "group",
        })
    }
}

/// A convolution without bias, and a norm.
#[derive(Module, Debug)]
pub(super) struct Convolution<B: Backend> {
    /// `[outputs, inputs of a group, size, size]`.
    kernel: Param<Tensor<B, 4>>,
    norm: Norm<B>,
    stride: usize,
    groups: usize,
}

impl<B: Backend> Convolution<B> {
    /// With all parameters 0 but the gains.
    pub(super) fn new(
        inputs: usize,
        outputs: usize,
        size: usize,
        stride: usize,
        norm: NormKind,
        device: &B::Device,
    ) -> Self {
        let kernel = Param::from_tensor(Tensor::zeros([outputs, inputs, size, size], device));
        Self { kernel, norm: Norm::new(outputs, norm, device), stride, groups: 1 }
    }

    /// Each channel by itself, 3 by 3.
    pub(super) fn depthwise(channels: usize, stride: usize, norm: NormKind, device: &B::Device) -> Self {
        Self { groups: channels, ..Self::new(1, channels, 3, stride, norm, device) }
    }

    /// `[samples, inputs, height, width]` to `[samples, outputs, height / stride, width / stride]`, rounded up.
    pub(super) fn forward(&self, input: Tensor<B, 4>, pass: &mut Pass<B>) -> Tensor<B, 4> {
        let kernel = self.kernel.val();
        let padding = kernel.dims()[3] / 2;
        let options = ConvOptions::new([self.stride, self.stride], [padding, padding], [1, 1], self.groups);
        self.norm.forward(conv2d(input, kernel, None, options), pass)
    }
}

/// Moves and scales activations to a mean of 0 and a variance of 1, then to what was learnt for each channel.
///
/// Source: Ioffe and Szegedy, "Batch Normalization", 2015; Wu and He, "Group Normalization", 2018 (both recalled).
#[derive(Module, Debug)]
struct Norm<B: Backend> {
    gain: Param<Tensor<B, 1>>,
    bias: Param<Tensor<B, 1>>,
    /// `None` normalises within each sample.
    running: Option<Running<B>>,
}

impl<B: Backend> Norm<B> {
    fn new(channels: usize, kind: NormKind, device: &B::Device) -> Self {
        Self {
            gain: Param::from_tensor(Tensor::ones([channels], device)),
            bias: Param::from_tensor(Tensor::zeros([channels], device)),
            running: (kind == NormKind::Batch).then(|| Running::new(channels, device)),
        }
    }

    fn forward(&self, input: Tensor<B, 4>, pass: &mut Pass<B>) -> Tensor<B, 4> {
        match &self.running {
            None => self.within_samples(input),
            Some(running) if pass.training => self.over_batch(input, running, pass),
            Some(running) => {
                let scale = self.gain.val() / (running.variance.val() + EPSILON).sqrt();
                let shift = self.bias.val() - running.mean.val() * scale.clone();
                per_channel(input, scale, shift)
            }
        }
    }

    fn over_batch(&self, input: Tensor<B, 4>, running: &Running<B>, pass: &mut Pass<B>) -> Tensor<B, 4> {
        let by_channel = input.swap_dims(0, 1);
        let shape = by_channel.dims();
        let (normal, mean, variance) =
            normalised(by_channel.reshape([shape[0], shape[1] * shape[2] * shape[3]]));
        let towards = |old: &Param<Tensor<B, 1>>, new: Tensor<B, 2>| {
            let new = new.detach().reshape([shape[0]]);
            (old.id, old.val().detach() * (1.0 - MOMENTUM) + new * MOMENTUM)
        };
        pass.states.push(towards(&running.mean, mean));
        pass.states.push(towards(&running.variance, variance));
        let column = |values: &Param<Tensor<B, 1>>| values.val().reshape([shape[0], 1]);
        (normal * column(&self.gain) + column(&self.bias)).reshape(shape).swap_dims(0, 1)
    }

    fn within_samples(&self, input: Tensor<B, 4>) -> Tensor<B, 4> {
        let shape = input.dims();
        let [samples, channels, height, width] = shape;
        // As few groups as have no more channels than that.
        let groups = (channels.div_ceil(GROUP_CHANNELS)..channels).find(|groups| channels % groups == 0);
        let groups = groups.unwrap_or(channels);
        let flat = input.reshape([samples * groups, channels / groups * height * width]);
        per_channel(normalised(flat).0.reshape(shape), self.gain.val(), self.bias.val())
    }
}

/// Each row with a mean of 0 and a variance of 1; the mean and the variance that it had, `[rows, 1]`.
fn normalised<B: Backend>(rows: Tensor<B, 2>) -> (Tensor<B, 2>, Tensor<B, 2>, Tensor<B, 2>) {
    let mean = rows.clone().mean_dim(1);
    let centred = rows - mean.clone();
    let variance = (centred.clone() * centred.clone()).mean_dim(1);
    (centred / (variance.clone() + EPSILON).sqrt(), mean, variance)
}

/// Scales and shifts each channel of `[samples, channels, height, width]`.
fn per_channel<B: Backend>(input: Tensor<B, 4>, scale: Tensor<B, 1>, shift: Tensor<B, 1>) -> Tensor<B, 4> {
    let channels = input.dims()[1];
    let spread = |values: Tensor<B, 1>| values.reshape(Shape::new([1, channels, 1, 1]));
    input * spread(scale) + spread(shift)
}

/// The inputs `[samples, values]` as pictures `[samples, 3, side, side]`.
pub(super) fn pictures<B: Backend>(inputs: Tensor<B, 2>, side: usize) -> Tensor<B, 4> {
    let [samples, _] = inputs.dims();
    inputs.reshape([samples, crate::data::images::COLOURS, side, side])
}

/// The mean of each channel, `[samples, channels]`.
pub(super) fn pooled<B: Backend>(input: Tensor<B, 4>) -> Tensor<B, 2> {
    let [samples, channels, height, width] = input.dims();
    input.reshape([samples * channels, height * width]).mean_dim(1).reshape([samples, channels])
}
