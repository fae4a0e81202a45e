//! Conversion of a burn module's parameters to one flat vector, and back.
//!
//! The job owns the parameters, not the framework: they come in as one flat vector with each batch, and
//! gradients go out as one. Parameters stand in the order in which the module declares them, each in
//! row-major order.

use antdt_agent::TrainError;
use antdt_core::{ParamGroup, Seed};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};

/// The place of each parameter of a burn module in one flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatLayout {
    /// Path in the module and shape of each parameter.
    params: Vec<(String, Vec<usize>)>,
    path: Vec<String>,
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

    /// Returns whether the module has no parameters.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns one group for each parameter, named by its path in the module. A parameter of one dimension is
    /// a bias and gets no weight decay.
    pub fn groups(&self) -> Vec<ParamGroup> {
        let group = |(path, shape): &(String, Vec<usize>)| {
            let group = ParamGroup::trainable(path, shape.iter().product()).with_shape(shape);
            if shape.len() > 1 { group } else { group.without_decay() }
        };
        self.params.iter().map(group).collect()
    }

    /// Returns initial parameters: a pure function of `seed`, independent of the framework and the device.
    ///
    /// A parameter of several dimensions is uniform in `±√(6 / (fan in + fan out))`, where its last dimension is the
    /// fan out and the others multiply to the fan in; a parameter of one dimension is a bias and starts at 0.
    ///
    /// Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010
    /// (recalled).
    pub fn initial(&self, seed: Seed) -> Vec<f32> {
        let mut flat = Vec::with_capacity(self.len);
        for (number, (_, shape)) in self.params.iter().enumerate() {
            let count: usize = shape.iter().product();
            let [fan_in @ .., fan_out] = shape.as_slice() else {
                flat.extend(std::iter::repeat_n(0.0, count));
                continue;
            };
            if fan_in.is_empty() {
                flat.extend(std::iter::repeat_n(0.0, count));
                continue;
            }
            #[allow(clippy::cast_precision_loss, reason = "sizes of layers")]
            let limit = (6.0 / (fan_in.iter().product::<usize>() + fan_out) as f64).sqrt();
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
        self.params.push((self.path.join("."), shape));
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
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

/// Returns the gradient of each parameter, in the order of the layout; zeros for a parameter that the loss
/// does not depend on.
///
/// # Errors
/// If the framework cannot hand a gradient over.
pub fn gradients<B: AutodiffBackend, M: Module<B>>(
    module: &M,
    gradients: &mut B::Gradients,
) -> Result<Vec<Vec<f32>>, TrainError> {
    let mut collect = Collect::<B> { gradients, found: Ok(Vec::new()) };
    module.visit(&mut collect);
    collect.found
}

struct Collect<'a, B: AutodiffBackend> {
    gradients: &'a mut B::Gradients,
    found: Result<Vec<Vec<f32>>, TrainError>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Ok(found) = &mut self.found else { return };
        let values = match param.val().grad_remove(self.gradients) {
            Some(gradient) => values(gradient),
            None => Ok(vec![0.0; param.lazy_shape().num_elements()]),
        };
        match values {
            Ok(values) => found.push(values),
            Err(error) => self.found = Err(error),
        }
    }
}

/// The values of a tensor in row-major order.
pub(crate) fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Result<Vec<f32>, TrainError> {
    let data = tensor.try_into_data().map_err(|error| TrainError::Model(error.to_string()))?;
    data.into_vec().map_err(|error| TrainError::Model(format!("{error:?}")))
}
