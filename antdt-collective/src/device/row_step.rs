//! A step of an optimizer on rows of a table, as kernels take it.

/// One step of an optimizer, prepared: the same numbers give the same bits on the host and on a GPU. `g` is
/// `sum * scale + decay * w`, where `sum` is the sum of gradients of a value `w`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowStep {
    /// `w -= rate * g`.
    Sgd {
        /// Learning rate.
        rate: f32,
        /// Factor for the sums.
        scale: f32,
        /// Weight decay.
        decay: f32,
    },
    /// `v = momentum * v + g; w -= rate * (along_gradient * g + along_sum * v)`.
    Momentum {
        /// Learning rate.
        rate: f32,
        /// Factor for the sums.
        scale: f32,
        /// Weight decay.
        decay: f32,
        /// Share of the running sum that is left.
        momentum: f32,
        /// How much of the gradient the step goes along.
        along_gradient: f32,
        /// How much of the running sum the step goes along.
        along_sum: f32,
    },
    /// `a += g * g; w -= rate * g / (√a + epsilon)`.
    Adagrad {
        /// Learning rate.
        rate: f32,
        /// Factor for the sums.
        scale: f32,
        /// Weight decay.
        decay: f32,
        /// Keeps the division finite.
        epsilon: f32,
    },
    /// `m = beta1 * m + rest1 * g; v = beta2 * v + rest2 * (g * g); w = keep * w - rate * m / (√v * correction + epsilon)`.
    Adam {
        /// Learning rate over the bias of the mean.
        rate: f32,
        /// Factor for the sums.
        scale: f32,
        /// Weight decay that adds to the gradient.
        decay: f32,
        /// Factor for the value itself.
        keep: f32,
        /// Share of the mean that is left.
        beta1: f32,
        /// One less `beta1`.
        rest1: f32,
        /// Share of the mean square that is left.
        beta2: f32,
        /// One less `beta2`.
        rest2: f32,
        /// One over the root of the bias of the mean square.
        correction: f32,
        /// Keeps the division finite.
        epsilon: f32,
    },
}

impl RowStep {
    /// Returns how many numbers the optimizer keeps for each value.
    pub const fn state_per_value(&self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }
}
