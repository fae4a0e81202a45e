//! One step of an optimizer on rows of a table, in the form that the kernels of a device take.

/// One step of an optimizer on rows of a table, with all its constants computed. Host and GPU compute the
/// same bits from it. In the formulas `w` is a value, and `g` is `sum * scale + decay * w` with `sum` the sum
/// of the value's gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowStep {
    /// Gradient descent: `w -= rate * g`.
    Sgd {
        /// Learning rate.
        rate: f32,
        /// Factor for the sums of gradients, one over the number of samples for a mean.
        scale: f32,
        /// Weight decay.
        decay: f32,
    },
    /// Momentum: `v = momentum * v + g; w -= rate * (along_gradient * g + along_sum * v)`, where `v` is the
    /// running sum of gradients.
    Momentum {
        /// Learning rate.
        rate: f32,
        /// Factor for the sums of gradients, one over the number of samples for a mean.
        scale: f32,
        /// Weight decay.
        decay: f32,
        /// Factor by which the running sum `v` decays in each step.
        momentum: f32,
        /// Weight of the gradient `g` in the step.
        along_gradient: f32,
        /// Weight of the running sum `v` in the step.
        along_sum: f32,
    },
    /// Adagrad: `a += g * g; w -= rate * g / (√a + epsilon)`.
    Adagrad {
        /// Learning rate.
        rate: f32,
        /// Factor for the sums of gradients, one over the number of samples for a mean.
        scale: f32,
        /// Weight decay.
        decay: f32,
        /// Small constant that keeps the division finite.
        epsilon: f32,
    },
    /// Adam: `m = beta1 * m + rest1 * g; v = beta2 * v + rest2 * (g * g); w = keep * w - rate * m / (√v *
    /// correction + epsilon)`.
    Adam {
        /// Learning rate divided by `1 - beta1ᵗ`, which corrects the bias of the mean `m` in step `t`.
        rate: f32,
        /// Factor for the sums of gradients, one over the number of samples for a mean.
        scale: f32,
        /// Weight decay that is added to the gradient.
        decay: f32,
        /// Factor for the value `w` itself, which decoupled weight decay makes smaller than 1.
        keep: f32,
        /// Factor by which the mean `m` decays in each step.
        beta1: f32,
        /// Weight of the new gradient in the mean: `1 - beta1`.
        rest1: f32,
        /// Factor by which the mean square `v` decays in each step.
        beta2: f32,
        /// Weight of the new squared gradient in the mean square: `1 - beta2`.
        rest2: f32,
        /// `1 / √(1 - beta2ᵗ)`, which corrects the bias of the mean square `v` in step `t`.
        correction: f32,
        /// Small constant that keeps the division finite.
        epsilon: f32,
    },
}

impl RowStep {
    /// Returns the number of values that the optimizer stores for each parameter: 0, 1 or 2.
    pub const fn state_per_value(&self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }
}
