//! [`Sgd`]: an optimizer that steps along the mean gradient.

use std::collections::BTreeMap;

#[cfg(feature = "runtime")]
use antdt_collective::RowStep;

use super::{Defaults, Optimizer, Update, UpdateStep};

/// Plain SGD: `w -= rate * (g + decay * w)`.
///
/// It keeps no state. Its default rate of 0.01 is that of Keras.
#[doc(alias = "stochastic gradient descent")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sgd;

impl Sgd {
    /// Name of the optimizer in the registry.
    pub const NAME: &'static str = "sgd";
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn defaults(&self) -> Defaults {
        Defaults { rate: 0.01, decay: 0.0 }
    }

    fn state_per_value(&self) -> usize {
        0
    }

    fn begin(&self, UpdateStep { rate, scale, decay, .. }: UpdateStep) -> Update<'_> {
        Box::new(move |values, _, gradient| {
            for (value, gradient) in values.iter_mut().zip(gradient) {
                let gradient = gradient * scale + decay * *value;
                *value -= rate * gradient;
            }
        })
    }

    #[cfg(feature = "runtime")]
    fn row_step(&self, UpdateStep { rate, scale, decay, .. }: UpdateStep) -> Option<RowStep> {
        Some(RowStep::Sgd { rate, scale, decay })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Model, close, follow};
    use super::*;

    #[test]
    fn it_follows_a_plain_double_precision_model() {
        let step = |w: &mut Model, g: f64, rate: f64, decay: f64, _: u64| {
            w.value -= rate * (g + decay * w.value);
        };
        close(&follow(&Sgd, 0.1, 0.0, step));
        close(&follow(&Sgd, 0.1, 0.01, step));
    }
}
