//! Layers of the models of pictures.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;
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
    /// What the setting `norm` of a model is.
    pub(super) const ABOUT: &str = "batch: over the samples of a worker's batch; group: within each sample, so that workers do not matter";

    /// What the setting must be.
    pub(super) const EXPECTED: &str = "batch or group";
}

impl FromStr for NormKind {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "batch" => Ok(Self::Batch),
            "group" => Ok(Self::Group),
            _ => Err(InvalidValue::new("norm", text, Self::EXPECTED)),
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

#[cfg(test)]
mod tests {
    use antdt_core::Seed;
    use burn::tensor::TensorData;
    use burn_autodiff::Autodiff;
    use burn_flex::Flex;

    use super::*;

    type Back = Autodiff<Flex>;

    const SHAPE: [usize; 4] = [5, 3, 4, 2];

    /// What each value of `input` changes of the sum of `weights * output`, where each of `sets` of positions is moved to a mean of 0 and a
    /// variance of 1 and scaled by its gain: the formula of the papers, in 64 bits. And the sums for gain and bias.
    fn expected(
        input: &[f64],
        weights: &[f64],
        gains: &[f64],
        sets: &[Vec<usize>],
    ) -> (Vec<f64>, Vec<(f64, f64)>) {
        let mut gradient = vec![0.0; input.len()];
        let mut of_norm = Vec::new();
        for set in sets {
            #[allow(clippy::cast_precision_loss, reason = "a few positions")]
            let mean =
                |of: &dyn Fn(usize) -> f64| set.iter().map(|at| of(*at)).sum::<f64>() / set.len() as f64;
            let middle = mean(&|at| input[at]);
            let deviation = (mean(&|at| (input[at] - middle).powi(2)) + f64::from(EPSILON)).sqrt();
            let normal = |at: usize| (input[at] - middle) / deviation;
            let passed = |at: usize| weights[at] * gains[channel(at)];
            let (level, slope) = (mean(&passed), mean(&|at| passed(at) * normal(at)));
            for at in set {
                gradient[*at] = (passed(*at) - level - normal(*at) * slope) / deviation;
            }
            of_norm.extend(set.iter().map(|at| (weights[*at] * normal(*at), weights[*at])));
        }
        (gradient, of_norm)
    }

    fn channel(at: usize) -> usize {
        at / (SHAPE[2] * SHAPE[3]) % SHAPE[1]
    }

    #[test]
    fn the_gradient_of_a_norm_is_that_of_the_papers() {
        let count: usize = SHAPE.iter().product();
        let mut rng = Seed(3).rng();
        let mut draw =
            |scale: f64, shift: f64| (0..count).map(|_| shift + scale * (rng.unit() - 0.5)).collect();
        let (input, weights): (Vec<f64>, Vec<f64>) = (draw(4.0, 1.0), draw(2.0, 0.1));
        let gains = [0.7, 1.3, -0.4];
        let per_channel: Vec<Vec<usize>> =
            (0..SHAPE[1]).map(|wanted| (0..count).filter(|at| channel(*at) == wanted).collect()).collect();
        let per_sample: Vec<Vec<usize>> = (0..SHAPE[0])
            .map(|sample| (0..count).filter(|at| at * SHAPE[0] / count == sample).collect())
            .collect();
        for (kind, sets) in [(NormKind::Batch, per_channel), (NormKind::Group, per_sample)] {
            let device = Default::default();
            let mut norm = Norm::<Back>::new(SHAPE[1], kind, &device);
            #[allow(clippy::cast_possible_truncation, reason = "what the model computes in")]
            let floats = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
            norm.gain = Param::from_tensor(Tensor::from_data(floats(&gains).as_slice(), &device));
            let tensor = |values: &[f64]| {
                Tensor::<Back, 4>::from_data(TensorData::new(floats(values), SHAPE), &device)
            };
            let given = tensor(&input).require_grad();
            let output = norm.forward(given.clone(), &mut Pass::of_training(&[]));
            let gradients = (output * tensor(&weights)).sum().backward();
            let (wanted, of_norm) = expected(&input, &weights, &gains, &sets);
            let near = |found: Vec<f32>, wanted: &[f64]| {
                assert_eq!(found.len(), wanted.len());
                for (found, wanted) in found.iter().zip(wanted) {
                    assert!((f64::from(*found) - wanted).abs() < 1e-4, "{kind}: {found}, expected {wanted}");
                }
            };
            near(given.grad(&gradients).unwrap().into_data().to_vec().unwrap(), &wanted);
            let positions: Vec<usize> = sets.concat();
            let mut sums = [[0.0; 3]; 2];
            for (at, (gain, bias)) in positions.iter().zip(of_norm) {
                sums[0][channel(*at)] += gain;
                sums[1][channel(*at)] += bias;
            }
            let of = |param: &Param<Tensor<Back, 1>>| {
                param.val().grad(&gradients).unwrap().into_data().to_vec::<f32>().unwrap()
            };
            near(of(&norm.gain), &sums[0]);
            near(of(&norm.bias), &sums[1]);
            // The comparison means nothing where everything is 0.
            assert!(wanted.iter().filter(|value| value.abs() > 0.03).count() * 2 > count);
        }
    }
}
