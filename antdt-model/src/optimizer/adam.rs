//! [`Adam`]: an optimizer that divides a running mean of gradients by the root of a running mean of their
//! squares.

use std::collections::BTreeMap;

#[cfg(feature = "runtime")]
use antdt_collective::RowStep;
use antdt_core::registry::SettingSet;

use super::registry::{EPSILON, EPSILON_RANGE};
use super::{Defaults, Optimizer, Update, UpdateStep, bias};

/// What the share of a mean that is left after a step must be.
const SHARE: &str = "a number from 0 to below 1";

antdt_core::settings! {
    /// The Adam optimizer.
    ///
    /// With `m` and `v` from 0, in step `t`:
    ///
    /// ```text
    /// g += decay * w
    /// m = beta1 * m + (1 - beta1) * g
    /// v = beta2 * v + (1 - beta2) * g²
    /// w -= rate * (m / (1 - beta1ᵗ)) / (√(v / (1 - beta2ᵗ)) + epsilon)
    /// ```
    ///
    /// Keeps `m` and `v`. Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1 (recalled),
    /// with its defaults: rate 0.001, betas 0.9 and 0.999, epsilon 1e-8. Weight decay adds to the gradient, as in PyTorch's
    /// `Adam`; [`AdamW`](super::AdamW) decouples it.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Adam {
        pub(super) beta1: f32 = 0.9, "share of the mean gradient that is left after a step",
            SHARE, if |beta| (0.0..1.0).contains(&beta);
        pub(super) beta2: f32 = 0.999, "share of the mean squared gradient that is left after a step",
            SHARE, if |beta| (0.0..1.0).contains(&beta);
        pub(super) epsilon: f32 = 1e-8, EPSILON, EPSILON_RANGE, if |epsilon| epsilon.is_finite() && epsilon > 0.0;
    }
}

impl Adam {
    /// Name of the optimizer in the registry.
    pub const NAME: &'static str = "adam";

    /// The step with decay added to the gradient (`coupled`), and with the parameter multiplied with `keep` first.
    pub(super) fn update(self, step: UpdateStep, coupled: f32, keep: f32) -> Update<'static> {
        let Self { beta1, beta2, epsilon } = self;
        let Prepared { rate, scale, rest1, rest2, correction } = self.prepared(step);
        Box::new(move |values, [means, squares], gradient| {
            let moments = means.iter_mut().zip(squares);
            for ((value, (mean, square)), gradient) in values.iter_mut().zip(moments).zip(gradient) {
                let gradient = gradient * scale + coupled * *value;
                *mean = beta1 * *mean + rest1 * gradient;
                *square = beta2 * *square + rest2 * (gradient * gradient);
                *value = keep * *value - rate * *mean / (square.sqrt() * correction + epsilon);
            }
        })
    }

    /// The same step for kernels.
    #[cfg(feature = "runtime")]
    pub(super) fn for_rows(self, step: UpdateStep, coupled: f32, keep: f32) -> RowStep {
        let Self { beta1, beta2, epsilon } = self;
        let Prepared { rate, scale, rest1, rest2, correction } = self.prepared(step);
        RowStep::Adam { rate, scale, decay: coupled, keep, beta1, rest1, beta2, rest2, correction, epsilon }
    }

    #[allow(clippy::cast_possible_truncation, reason = "rounded once a step, the same everywhere")]
    fn prepared(self, UpdateStep { number, rate, scale, .. }: UpdateStep) -> Prepared {
        Prepared {
            rate: (f64::from(rate) / bias(self.beta1, number)) as f32,
            scale,
            rest1: 1.0 - self.beta1,
            rest2: 1.0 - self.beta2,
            correction: (1.0 / bias(self.beta2, number).sqrt()) as f32,
        }
    }
}

/// What depends on the step alone.
struct Prepared {
    /// With the bias of the mean in it.
    rate: f32,
    scale: f32,
    rest1: f32,
    rest2: f32,
    /// One over the root of the bias of the mean square.
    correction: f32,
}

impl Optimizer for Adam {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.values()
    }

    fn defaults(&self) -> Defaults {
        Defaults { rate: 0.001, decay: 0.0 }
    }

    fn state_per_value(&self) -> usize {
        2
    }

    fn begin(&self, step: UpdateStep) -> Update<'_> {
        self.update(step, step.decay, 1.0)
    }

    #[cfg(feature = "runtime")]
    fn row_step(&self, step: UpdateStep) -> Option<RowStep> {
        Some(self.for_rows(step, step.decay, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Model, close, follow};
    use super::*;

    #[test]
    fn it_follows_a_plain_double_precision_model() {
        let optimizer = Adam { beta1: 0.8, beta2: 0.95, epsilon: 1e-4 };
        let [beta1, beta2, epsilon] = [0.8_f32, 0.95, 1e-4].map(f64::from);
        let step = |w: &mut Model, g: f64, rate: f64, decay: f64, number: u64| {
            let g = g + decay * w.value;
            w.first = beta1 * w.first + (1.0 - beta1) * g;
            w.second = beta2 * w.second + (1.0 - beta2) * g * g;
            let number = i32::try_from(number).unwrap();
            let mean = w.first / (1.0 - beta1.powi(number));
            let square = w.second / (1.0 - beta2.powi(number));
            w.value -= rate * mean / (square.sqrt() + epsilon);
        };
        close(&follow(&optimizer, 0.01, 0.0, step));
        close(&follow(&optimizer, 0.01, 0.05, step));
    }

    fn values_of(gradients: &[f32], rate: f32) -> Vec<f32> {
        let optimizer = Adam::default();
        let ([mut value], [mut mean], [mut square]) = ([1.0], [0.0], [0.0]);
        let mut after = Vec::new();
        for (gradient, number) in gradients.iter().zip(1..) {
            let step = UpdateStep { number, rate, scale: 1.0, decay: 0.0 };
            optimizer.begin(step)(
                std::slice::from_mut(&mut value),
                [std::slice::from_mut(&mut mean), std::slice::from_mut(&mut square)],
                &[*gradient],
            );
            after.push(value);
        }
        after
    }

    // With gradients that are all equal, m / (1 - β₁ᵗ) is the gradient and v / (1 - β₂ᵗ) its square, whatever the betas:
    // each step is as long as the rate, whatever the size of the gradient. So says section 2.1 of the paper.
    #[test]
    fn equal_gradients_of_any_size_move_a_parameter_by_the_rate_in_each_step() {
        for gradient in [1e-3, 0.5, -3.0, 1e4_f32] {
            let values = values_of(&[gradient; 1000], 0.001);
            for (value, number) in values.iter().zip(1_u16..) {
                let expected = 1.0 - f32::from(number) * 0.001 * gradient.signum();
                assert!(
                    (value - expected).abs() < 5e-5 * f32::from(number).sqrt(),
                    "{number}: {value} {expected}"
                );
            }
        }
    }

    // Worked by hand for gradients 1 and then -1, β₁ = 0.9, β₂ = 0.999:
    // m = 0.1, then 0.09 - 0.1 = -0.01; m̂ = 1, then -0.01 / 0.19 = -1/19. v̂ = 1 in both steps.
    #[test]
    fn a_gradient_that_turns_around_gives_the_values_of_the_formula() {
        let values = values_of(&[1.0, -1.0], 0.1);
        assert!((values[0] - 0.9).abs() < 1e-6, "{values:?}");
        assert!((values[1] - (0.9 + 0.1 / 19.0)).abs() < 1e-6, "{values:?}");
    }
}
