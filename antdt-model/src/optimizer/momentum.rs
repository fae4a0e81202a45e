//! [`Momentum`]: an optimizer that steps along a running sum of gradients.

use std::collections::BTreeMap;

#[cfg(feature = "runtime")]
use antdt_collective::RowStep;
use antdt_core::registry::SettingSet;

use super::{Defaults, Optimizer, Update, UpdateStep};

antdt_core::settings! {
    /// SGD with momentum: `g += decay * w; v = momentum * v + g; w -= rate * v`, with `v` from 0; with
    /// `nesterov`, `w -= rate * (g + momentum * v)`.
    ///
    /// It keeps `v` for each parameter. Source: the form of PyTorch's `SGD` with dampening 0 (recalled), in which
    /// the rate is outside the sum, so that a new rate counts at once. Momentum 0.9 is what is used most; the
    /// rate is that of [`Sgd`](super::Sgd).
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Momentum {
        momentum: f32 = 0.9, "share of the running sum that is left after a step",
            "a number from 0 to below 1", if |momentum| (0.0..1.0).contains(&momentum);
        nesterov: bool = false, "whether the step looks ahead along the running sum", "true or false";
    }
}

impl Momentum {
    /// Name of the optimizer in the registry.
    pub const NAME: &'static str = "momentum";

    /// Returns Nesterov momentum, which looks ahead along the running sum. `momentum` is the factor by which
    /// the sum decays, from 0 to below 1.
    pub const fn nesterov(momentum: f32) -> Self {
        Self { momentum, nesterov: true }
    }

    /// How much of the gradient and of the sum a step goes along.
    const fn along(self) -> [f32; 2] {
        if self.nesterov { [1.0, self.momentum] } else { [0.0, 1.0] }
    }
}

impl Optimizer for Momentum {
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
        let (momentum, [along_gradient, along_sum]) = (self.momentum, self.along());
        Box::new(move |values, [sums, _], gradient| {
            for ((value, sum), gradient) in values.iter_mut().zip(sums).zip(gradient) {
                let gradient = gradient * scale + decay * *value;
                *sum = momentum * *sum + gradient;
                *value -= rate * (along_gradient * gradient + along_sum * *sum);
            }
        })
    }

    #[cfg(feature = "runtime")]
    fn row_step(&self, UpdateStep { rate, scale, decay, .. }: UpdateStep) -> Option<RowStep> {
        let (momentum, [along_gradient, along_sum]) = (self.momentum, self.along());
        Some(RowStep::Momentum { rate, scale, decay, momentum, along_gradient, along_sum })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Model, close, follow};
    use super::*;

    #[test]
    fn it_follows_a_plain_double_precision_model() {
        for nesterov in [false, true] {
            let optimizer = Momentum { momentum: 0.75, nesterov };
            let step = |w: &mut Model, g: f64, rate: f64, decay: f64, _: u64| {
                let g = g + decay * w.value;
                w.first = 0.75 * w.first + g;
                w.value -= rate * if nesterov { g + 0.75 * w.first } else { w.first };
            };
            close(&follow(&optimizer, 0.05, 0.0, step));
            close(&follow(&optimizer, 0.05, 0.01, step));
        }
    }
}
