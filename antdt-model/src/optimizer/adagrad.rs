//! [`Adagrad`]: an optimizer whose steps get shorter where gradients were large.

use std::collections::BTreeMap;

#[cfg(feature = "runtime")]
use antdt_collective::RowStep;
use antdt_core::registry::SettingSet;

use super::registry::{EPSILON, EPSILON_RANGE};
use super::{Defaults, Optimizer, Update, UpdateStep};

antdt_core::settings! {
    /// The Adagrad optimizer: `g += decay * w; a += g²; w -= rate * g / (√a + epsilon)`, with `a` from 0.
    ///
    /// It keeps `a` for each parameter. A row that is rarely touched takes long steps when it is, which suits
    /// embeddings of click models. Source: the form of PyTorch's `Adagrad` (recalled), and its rate of 0.01.
    /// Epsilon is ours, 1e-6: a first gradient of 1e-6 moves its parameter by half the rate, where PyTorch's
    /// 1e-10 lets noise of any size move it by the whole.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Adagrad {
        epsilon: f32 = 1e-6, EPSILON, EPSILON_RANGE, if |epsilon| epsilon.is_finite() && epsilon > 0.0;
    }
}

impl Adagrad {
    /// Name of the optimizer in the registry.
    pub const NAME: &'static str = "adagrad";
}

impl Optimizer for Adagrad {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.values()
    }

    fn defaults(&self) -> Defaults {
        Defaults { rate: 0.01, decay: 0.0 }
    }

    fn state_per_value(&self) -> usize {
        1
    }

    fn begin(&self, UpdateStep { rate, scale, decay, .. }: UpdateStep) -> Update<'_> {
        let epsilon = self.epsilon;
        Box::new(move |values, [sums, _], gradient| {
            for ((value, sum), gradient) in values.iter_mut().zip(sums).zip(gradient) {
                let gradient = gradient * scale + decay * *value;
                *sum += gradient * gradient;
                *value -= rate * gradient / (sum.sqrt() + epsilon);
            }
        })
    }

    #[cfg(feature = "runtime")]
    fn row_step(&self, UpdateStep { rate, scale, decay, .. }: UpdateStep) -> Option<RowStep> {
        Some(RowStep::Adagrad { rate, scale, decay, epsilon: self.epsilon })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Model, close, follow};
    use super::*;

    #[test]
    fn it_follows_a_plain_double_precision_model() {
        let optimizer = Adagrad { epsilon: 1e-3 };
        let step = |w: &mut Model, g: f64, rate: f64, decay: f64, _: u64| {
            let g = g + decay * w.value;
            w.first += g * g;
            w.value -= rate * g / (w.first.sqrt() + f64::from(1e-3_f32));
        };
        close(&follow(&optimizer, 0.1, 0.0, step));
        close(&follow(&optimizer, 0.1, 0.01, step));
    }

    #[test]
    fn it_leaves_parameters_without_a_gradient_alone() {
        let (mut values, mut sums) = ([1.0, 2.0], [0.0; 2]);
        let step = UpdateStep { number: 1, rate: 0.5, scale: 1.0, decay: 0.0 };
        Adagrad { epsilon: 1e-10 }.begin(step)(&mut values, [&mut sums, &mut []], &[0.0, 1.0]);
        assert_eq!(values, [1.0, 1.5]);
    }
}
