//! Conversion of a burn module's parameters to one flat vector, and back.
//!
//! The job owns the parameters, not the framework: they come in as one flat vector with each batch, and
//! gradients go out as one. Parameters stand in the order in which the module declares them, each in
//! row-major order.

use antdt_agent::TrainError;
use antdt_core::{GroupKind, ParamGroup, Seed};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};

/// Statistics that a model keeps of its data, `[channels]` each: a [state group](GroupKind::State) each, which no optimizer
/// touches. A training step hands their new values over in its [`Pass`](crate::dense::Pass).
#[derive(Module, Debug)]
pub struct Running<B: Backend> {
    /// Running mean of each channel.
    pub mean: Param<Tensor<B, 1>>,
    /// Running variance of each channel.
    pub variance: Param<Tensor<B, 1>>,
}

impl<B: Backend> Running<B> {
    /// What burn calls the type when it visits what a module consists of.
    const CONTAINER: &str = "Struct:Running";

    /// Returns the statistics before any step: a mean of 0 and a variance of 1 for each channel.
    pub fn new(channels: usize, device: &B::Device) -> Self {
        Self {
            mean: Param::from_tensor(Tensor::zeros([channels], device)),
            variance: Param::from_tensor(Tensor::ones([channels], device)),
        }
    }
}

/// A parameter of a module.
#[derive(Debug, Clone, PartialEq)]
struct Place {
    /// Path in the module.
    path: String,
    shape: Vec<usize>,
    kind: GroupKind,
    /// Initial value of all of a parameter of one dimension.
    start: f32,
}

/// The place of each parameter of a burn module in one flat vector.
#[derive(Debug, Clone, PartialEq)]
pub struct FlatLayout {
    params: Vec<Place>,
    /// Name of each module on the way to the parameter, and the type of what it is in.
    path: Vec<(String, String)>,
    len: usize,
}

impl FlatLayout {
    /// Returns the layout of a module's float parameters.
    pub fn of<B: Backend, M: Module<B>>(module: &M) -> Self {
        let mut layout = Self { params: Vec::new(), path: Vec::new(), len: 0 };
        module.visit(&mut layout);
        layout
    }

    /// Returns the length of the flat vector, in elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of values of each parameter, in order.
    pub(crate) fn lens(&self) -> impl Iterator<Item = usize> {
        self.params.iter().map(|place| place.shape.iter().product())
    }

    /// Returns whether the module has no parameters.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns one group for each parameter, named by its path in the module. A parameter of one dimension is
    /// a bias or a gain and gets no weight decay.
    pub fn groups(&self) -> Vec<ParamGroup> {
        let group = |Place { path, shape, kind, .. }: &Place| {
            let len = shape.iter().product();
            match kind {
                GroupKind::State => ParamGroup::state(path, len).with_shape(shape),
                GroupKind::Trainable if shape.len() > 1 => ParamGroup::trainable(path, len).with_shape(shape),
                GroupKind::Trainable => ParamGroup::trainable(path, len).with_shape(shape).without_decay(),
            }
        };
        self.params.iter().map(group).collect()
    }

    /// Returns initial parameters: a pure function of `seed`, independent of the framework and the device.
    ///
    /// A parameter of two or three dimensions is uniform in `±√(6 / (fan in + fan out))`, where its last dimension is the
    /// fan out and the others multiply to the fan in. One of four dimensions is the kernel of a convolution, of which each
    /// output is followed by a ReLU, and is uniform in `±√(6 / fan in)`: all dimensions but the first multiply to the fan in.
    /// A parameter of one dimension, a bias or a gain, starts at the value that the module has been built with.
    ///
    /// Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010; He et al.,
    /// "Delving Deep into Rectifiers", 2015 (both recalled).
    pub fn initial(&self, seed: Seed) -> Vec<f32> {
        let mut flat = Vec::with_capacity(self.len);
        for (number, Place { shape, start, .. }) in self.params.iter().enumerate() {
            let count: usize = shape.iter().product();
            let fans = match shape.as_slice() {
                [] | [_] => {
                    flat.extend(std::iter::repeat_n(*start, count));
                    continue;
                }
                [_, fan_in @ ..] if fan_in.len() == 3 => fan_in.iter().product::<usize>(),
                [fan_in @ .., fan_out] => fan_in.iter().product::<usize>() + fan_out,
            };
            #[allow(clippy::cast_precision_loss, reason = "sizes of layers")]
            let limit = (6.0 / fans as f64).sqrt();
            let mut rng = seed.derive("dense").derive_number(number as u64).rng();
            #[allow(clippy::cast_possible_truncation, reason = "a parameter is an f32")]
            flat.extend((0..count).map(|_| (limit * (2.0 * rng.unit() - 1.0)) as f32));
        }
        flat
    }
}

impl<B: Backend> ModuleVisitor<B> for FlatLayout {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let shape = param.lazy_shape().dims::<D>().to_vec();
        self.len += shape.iter().product::<usize>();
        let is_state = self.path.last().is_some_and(|(_, container)| container == Running::<B>::CONTAINER);
        let first = || param.val().into_data().iter::<f32>().next().unwrap_or(0.0);
        self.params.push(Place {
            path: self.path.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("."),
            shape,
            kind: if is_state { GroupKind::State } else { GroupKind::Trainable },
            start: if D == 1 { first() } else { 0.0 },
        });
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((name.to_owned(), container_type.to_owned()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

/// Returns the module with the parameters of `flat`, as leaves of a new autodiff graph.
///
/// # Panics
/// If `flat` is shorter than the module's parameters.
pub fn load<B: Backend, M: Module<B>>(module: M, flat: &[f32], device: &B::Device) -> M {
    module.map(&mut Load::<B> { rest: flat, device })
}

/// Returns the module with the parameters of `flat`, which are on its device already, as leaves of a new autodiff graph.
///
/// # Panics
/// If `flat` is shorter than the module's parameters.
pub(crate) fn load_there<B: AutodiffBackend, M: Module<B>>(module: M, flat: Tensor<B::InnerBackend, 1>) -> M {
    module.map(&mut LoadThere::<B> { flat, begin: 0 })
}

struct LoadThere<B: AutodiffBackend> {
    flat: Tensor<B::InnerBackend, 1>,
    begin: usize,
}

impl<B: AutodiffBackend> ModuleMapper<B> for LoadThere<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let shape = param.lazy_shape();
        let end = self.begin + shape.num_elements();
        let values = self.flat.clone().slice(self.begin..end);
        self.begin = end;
        let tensor = Tensor::<B, D>::from_inner(values.reshape(shape));
        Param::initialized(param.id, tensor.require_grad())
    }
}

struct Load<'a, B: Backend> {
    rest: &'a [f32],
    device: &'a B::Device,
}

impl<B: Backend> ModuleMapper<B> for Load<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let shape = param.lazy_shape();
        let (values, rest) = self.rest.split_at(shape.num_elements());
        self.rest = rest;
        let tensor = Tensor::from_data(TensorData::new(values.to_vec(), shape), self.device);
        Param::initialized(param.id, tensor.require_grad())
    }
}

/// Takes the gradient of each parameter out of `gradients` and returns them in the order of the layout. For a
/// parameter that `states` lists, the values listed there take the place of its gradient; for a parameter
/// that the loss does not depend on, zeros do.
///
/// # Errors
/// If the framework cannot return the values of a gradient.
pub fn gradients<B: AutodiffBackend, M: Module<B>>(
    module: &M,
    gradients: &mut B::Gradients,
    states: &[(ParamId, Vec<f32>)],
) -> Result<Vec<Vec<f32>>, TrainError> {
    let mut collect = Collect::<B> { gradients, states, found: Ok(Vec::new()) };
    module.visit(&mut collect);
    collect.found
}

struct Collect<'a, B: AutodiffBackend> {
    gradients: &'a mut B::Gradients,
    states: &'a [(ParamId, Vec<f32>)],
    found: Result<Vec<Vec<f32>>, TrainError>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Ok(found) = &mut self.found else { return };
        let state = self.states.iter().find(|(id, _)| *id == param.id);
        let values = match (state, param.val().grad_remove(self.gradients)) {
            (Some((_, state)), _) => Ok(state.clone()),
            (None, Some(gradient)) => values(gradient),
            (None, None) => Ok(vec![0.0; param.lazy_shape().num_elements()]),
        };
        match values {
            Ok(values) => found.push(values),
            Err(error) => self.found = Err(error),
        }
    }
}

/// As [`gradients`], in one tensor on the device of the module: all groups in the order of the layout, one after another.
pub(crate) fn gradient_there<B: AutodiffBackend, M: Module<B>>(
    module: &M,
    gradients: &mut B::Gradients,
    states: &[(ParamId, Tensor<B::InnerBackend, 1>)],
    device: &B::Device,
) -> Tensor<B::InnerBackend, 1> {
    let mut collect = CollectThere::<B> { gradients, states, device, found: Vec::new() };
    module.visit(&mut collect);
    Tensor::cat(collect.found, 0)
}

struct CollectThere<'a, B: AutodiffBackend> {
    gradients: &'a mut B::Gradients,
    states: &'a [(ParamId, Tensor<B::InnerBackend, 1>)],
    device: &'a B::Device,
    found: Vec<Tensor<B::InnerBackend, 1>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for CollectThere<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let len = param.lazy_shape().num_elements();
        let state = self.states.iter().find(|(id, _)| *id == param.id);
        self.found.push(match (state, param.val().grad_remove(self.gradients)) {
            (Some((_, state)), _) => state.clone(),
            (None, Some(gradient)) => gradient.reshape([len]),
            (None, None) => Tensor::zeros([len], self.device),
        });
    }
}

/// The values of a tensor in row-major order.
pub(crate) fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Result<Vec<f32>, TrainError> {
    let data = tensor.try_into_data().map_err(|error| TrainError::Model(error.to_string()))?;
    data.into_vec().map_err(|error| TrainError::Model(format!("{error:?}")))
}

#[cfg(test)]
mod tests {
    use burn_autodiff::Autodiff;
    use burn_flex::Flex;

    use super::*;

    type B = Autodiff<Flex>;

    /// Parameters of all kinds: one whose gradient is transposed, one that the loss does not depend on, and statistics.
    #[derive(Module, Debug)]
    struct Parts<B: Backend> {
        weight: Param<Tensor<B, 2>>,
        unused: Param<Tensor<B, 1>>,
        bias: Param<Tensor<B, 1>>,
        running: Running<B>,
    }

    fn parts() -> Parts<B> {
        let device = Default::default();
        Parts {
            weight: Param::from_tensor(Tensor::zeros([3, 2], &device)),
            unused: Param::from_tensor(Tensor::zeros([2], &device)),
            bias: Param::from_tensor(Tensor::zeros([3], &device)),
            running: Running::new(2, &device),
        }
    }

    const FLAT: [f32; 15] = [1.0, -2.0, 3.0, 0.5, -0.25, 4.0, 9.0, 9.0, 0.1, 0.2, -0.3, 5.0, 6.0, 7.0, 8.0];

    /// The gradients of a loss, and new values of the running mean.
    fn backward(parts: &Parts<B>) -> (<B as AutodiffBackend>::Gradients, ParamId, Tensor<Flex, 1>) {
        let device = Default::default();
        let inputs = Tensor::<B, 2>::from_floats([[1.0, 2.0], [-3.0, 0.5]], &device);
        let outputs = inputs.matmul(parts.weight.val().transpose()) + parts.bias.val().unsqueeze();
        let gradients = outputs.powi_scalar(2).sum().backward();
        (gradients, parts.running.mean.id, Tensor::from_floats([70.0, 80.0], &device))
    }

    #[test]
    fn a_gradient_that_stays_on_its_device_is_the_one_that_goes_to_the_host() {
        let device = Default::default();
        let there = Tensor::<Flex, 1>::from_floats(FLAT, &device);
        let (host, lifted) = (load::<B, _>(parts(), &FLAT, &device), load_there::<B, _>(parts(), there));
        let (mut gradients, mean, state) = backward(&host);
        let states = [(mean, values(state).unwrap())];
        let expected = super::gradients::<B, _>(&host, &mut gradients, &states).unwrap().concat();
        assert_eq!(expected.len(), FLAT.len());
        assert!(expected[..6].iter().all(|value| *value != 0.0) && expected[6..8] == [0.0; 2]);
        assert_eq!(expected[11..], [70.0, 80.0, 0.0, 0.0]);
        let (mut gradients, mean, state) = backward(&lifted);
        let gradient = gradient_there::<B, _>(&lifted, &mut gradients, &[(mean, state)], &device);
        assert_eq!(values(gradient).unwrap(), expected);
    }
}
