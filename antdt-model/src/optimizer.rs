//! How a gradient changes parameters: element by element, in single precision, the same bits everywhere.

use antdt_core::OptimizerSpec;

/// Applies `gradient * scale` to `values`. `state` is Adagrad's sum of squares, as long as `values`, or empty for SGD.
///
/// # Panics
/// If the slices' lengths do not fit together.
pub(crate) fn update(
    spec: OptimizerSpec,
    values: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    scale: f32,
) {
    assert_eq!(values.len(), gradient.len(), "parameters and gradient differ in length");
    match spec {
        OptimizerSpec::Sgd { learning_rate } => {
            for (value, gradient) in values.iter_mut().zip(gradient) {
                *value -= learning_rate * (gradient * scale);
            }
        }
        OptimizerSpec::Adagrad { learning_rate, epsilon } => {
            assert_eq!(values.len(), state.len(), "parameters and optimizer state differ in length");
            for ((value, sum), gradient) in values.iter_mut().zip(state).zip(gradient) {
                let gradient = gradient * scale;
                *sum += gradient * gradient;
                *value -= learning_rate * gradient / (sum.sqrt() + epsilon);
            }
        }
    }
}

/// Floats of optimizer state per parameter.
pub(crate) const fn state_per_value(spec: OptimizerSpec) -> usize {
    match spec {
        OptimizerSpec::Sgd { .. } => 0,
        OptimizerSpec::Adagrad { .. } => 1,
    }
}

/// A flat vector of parameters with its optimizer's state.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseParams {
    spec: OptimizerSpec,
    values: Vec<f32>,
    state: Vec<f32>,
}

impl DenseParams {
    /// Parameters that no gradient has touched yet.
    pub fn new(spec: OptimizerSpec, values: Vec<f32>) -> Self {
        let state = vec![0.0; values.len() * state_per_value(spec)];
        Self { spec, values, state }
    }

    /// Parameters with a state that was saved; `None` if the lengths do not fit together.
    pub(crate) fn from_parts(spec: OptimizerSpec, values: Vec<f32>, state: Vec<f32>) -> Option<Self> {
        (state.len() == values.len() * state_per_value(spec)).then_some(Self { spec, values, state })
    }

    /// The optimizer.
    pub const fn spec(&self) -> OptimizerSpec {
        self.spec
    }

    /// The parameters.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The optimizer's state: Adagrad's sums of squares, one per parameter; empty for SGD.
    pub fn state(&self) -> &[f32] {
        &self.state
    }

    /// The parameters, to be set to other values; the optimizer's state stays.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// One step with the gradient `gradient_sum * scale`, for a mean with `scale` one over the number of samples.
    ///
    /// # Panics
    /// If the gradient is not as long as the parameters.
    pub fn apply(&mut self, gradient_sum: &[f32], scale: f32) {
        update(self.spec, &mut self.values, &mut self.state, gradient_sum, scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adagrad_follows_a_plain_double_precision_model() {
        let (learning_rate, epsilon) = (0.1_f32, 1e-8_f32);
        let mut rng = antdt_core::Seed(1).rng();
        let start: Vec<f32> = (0..100).map(|_| rng.normal() as f32).collect();
        let mut params = DenseParams::new(OptimizerSpec::Adagrad { learning_rate, epsilon }, start.clone());
        let mut model: Vec<(f64, f64)> = start.iter().map(|w| (f64::from(*w), 0.0)).collect();
        for _ in 0..50 {
            let sums: Vec<f32> = (0..100).map(|_| rng.normal() as f32 * 16.0).collect();
            params.apply(&sums, 1.0 / 16.0);
            for ((w, a), sum) in model.iter_mut().zip(&sums) {
                let g = f64::from(*sum) / 16.0;
                *a += g * g;
                *w -= f64::from(learning_rate) * g / (a.sqrt() + f64::from(epsilon));
            }
        }
        for (value, (w, _)) in params.values().iter().zip(&model) {
            assert!((f64::from(*value) - w).abs() < 1e-5, "{value} {w}");
        }
    }

    #[test]
    fn sgd_takes_a_step_along_the_mean() {
        let mut params = DenseParams::new(OptimizerSpec::Sgd { learning_rate: 0.5 }, vec![1.0, 2.0]);
        params.apply(&[4.0, -8.0], 0.25);
        assert_eq!(params.values(), [0.5, 3.0]);
        assert!(params.state().is_empty());
    }

    #[test]
    fn adagrad_leaves_untouched_parameters_alone_even_without_epsilon_of_effect() {
        let spec = OptimizerSpec::Adagrad { learning_rate: 0.5, epsilon: 1e-10 };
        let mut params = DenseParams::new(spec, vec![1.0, 2.0]);
        params.apply(&[0.0, 1.0], 1.0);
        assert_eq!(params.values()[0], 1.0);
    }
}
