//! [`AdamW`]: Adam with weight decay that is decoupled from the gradient.

use std::collections::BTreeMap;

use super::adam::Adam;
use super::{Defaults, Optimizer, Update, UpdateStep};
#[cfg(feature = "runtime")]
use antdt_collective::RowStep;

/// The AdamW optimizer: `w *= 1 - rate * decay`, then a step of [`Adam`] without decay.
///
/// It keeps what Adam keeps. Weights shrink alike, however large their gradients were. Source: Loshchilov and
/// Hutter, "Decoupled Weight Decay Regularization" (2019), in the form of PyTorch's `AdamW` (recalled), where
/// the decay is multiplied with the rate and is 0.01 by default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AdamW(Adam);

impl AdamW {
    /// Name of the optimizer in the registry.
    pub const NAME: &'static str = "adamw";

    /// Its settings are those of Adam.
    pub(super) const fn new(adam: Adam) -> Self {
        Self(adam)
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.0.settings()
    }

    fn defaults(&self) -> Defaults {
        Defaults { rate: 0.001, decay: 0.01 }
    }

    fn state_per_value(&self) -> usize {
        self.0.state_per_value()
    }

    fn begin(&self, step: UpdateStep) -> Update<'_> {
        self.0.update(step, 0.0, 1.0 - step.rate * step.decay)
    }

    #[cfg(feature = "runtime")]
    fn row_step(&self, step: UpdateStep) -> Option<RowStep> {
        Some(self.0.for_rows(step, 0.0, 1.0 - step.rate * step.decay))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Model, close, follow};
    use super::*;

    #[test]
    fn it_follows_a_plain_double_precision_model() {
        let optimizer = AdamW(Adam { beta1: 0.8, beta2: 0.95, epsilon: 1e-4 });
        let [beta1, beta2, epsilon] = [0.8_f32, 0.95, 1e-4].map(f64::from);
        let step = |w: &mut Model, g: f64, rate: f64, decay: f64, number: u64| {
            w.value *= 1.0 - rate * decay;
            w.first = beta1 * w.first + (1.0 - beta1) * g;
            w.second = beta2 * w.second + (1.0 - beta2) * g * g;
            let number = i32::try_from(number).unwrap();
            let mean = w.first / (1.0 - beta1.powi(number));
            let square = w.second / (1.0 - beta2.powi(number));
            w.value -= rate * mean / (square.sqrt() + epsilon);
        };
        close(&follow(&optimizer, 0.01, 0.0, step));
        close(&follow(&optimizer, 0.01, 0.5, step));
    }

    // The point of the paper: without a gradient, a weight shrinks by rate * decay, and the moments stay at 0.
    #[test]
    fn without_a_gradient_a_weight_shrinks_by_the_rate_times_the_decay() {
        let (mut values, mut means, mut squares) = ([2.0, -4.0], [0.0; 2], [0.0; 2]);
        let step = UpdateStep { number: 1, rate: 0.5, scale: 1.0, decay: 0.25 };
        AdamW::default().begin(step)(&mut values, [&mut means, &mut squares], &[0.0; 2]);
        assert_eq!((values, means, squares), ([1.75, -3.5], [0.0; 2], [0.0; 2]));
    }
}
