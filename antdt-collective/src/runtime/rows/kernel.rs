//! The kernels by name, and what they are started with.

use crate::device::RowStep;

/// The text of all kernels.
pub(super) const TEXT: &str = include_str!("rows.cu");

/// A kernel; the number is its place in the list of `host.cpp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowKernel {
    /// Rows of slots, and guests, to a batch.
    Gather,
    /// Packed rows to their slots.
    Scatter,
    /// A step of an optimizer.
    Sgd,
    Momentum,
    Adagrad,
    Adam,
}

impl RowKernel {
    /// The kernel that computes a step.
    pub(super) const fn of(step: &RowStep) -> Self {
        match step {
            RowStep::Sgd { .. } => Self::Sgd,
            RowStep::Momentum { .. } => Self::Momentum,
            RowStep::Adagrad { .. } => Self::Adagrad,
            RowStep::Adam { .. } => Self::Adam,
        }
    }
}

/// Arguments of a kernel: `Work` in its text, which says what they are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Work {
    pub(super) rows: u64,
    pub(super) packed: u64,
    pub(super) guests: u64,
    pub(super) places: u64,
    pub(super) count: u32,
    pub(super) slots: u32,
    pub(super) dim: u32,
    pub(super) stride: u32,
    pub(super) step: Numbers,
}

/// What a step is computed with: that of its optimizer is set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Numbers {
    rate: f32,
    scale: f32,
    decay: f32,
    momentum: f32,
    along_gradient: f32,
    along_sum: f32,
    epsilon: f32,
    keep: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    correction: f32,
    unused: f32,
}

impl Work {
    /// With the numbers of a step.
    pub(super) fn with(self, step: &RowStep) -> Self {
        let none = Numbers::default();
        let step = match *step {
            RowStep::Sgd { rate, scale, decay } => Numbers { rate, scale, decay, ..none },
            RowStep::Momentum { rate, scale, decay, momentum, along_gradient, along_sum } => {
                Numbers { rate, scale, decay, momentum, along_gradient, along_sum, ..none }
            }
            RowStep::Adagrad { rate, scale, decay, epsilon } => {
                Numbers { rate, scale, decay, epsilon, ..none }
            }
            RowStep::Adam { rate, scale, decay, keep, beta1, rest1, beta2, rest2, correction, epsilon } => {
                Numbers { rate, scale, decay, keep, beta1, rest1, beta2, rest2, correction, epsilon, ..none }
            }
        };
        Self { step, ..self }
    }

    /// Elements that threads take.
    #[cfg(feature = "cuda")]
    pub(super) const fn elements(&self) -> usize {
        self.count as usize * self.dim as usize
    }

    /// Its bytes, in the order of this machine.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self { rows, packed, guests, places, count, slots, dim, stride, step } = *self;
        let numbers = [
            step.rate,
            step.scale,
            step.decay,
            step.momentum,
            step.along_gradient,
            step.along_sum,
            step.epsilon,
            step.keep,
            step.beta1,
            step.rest1,
            step.beta2,
            step.rest2,
            step.correction,
            step.unused,
        ];
        [
            bytemuck::cast_slice::<u64, u8>(&[rows, packed, guests, places]),
            bytemuck::cast_slice(&[count, slots, dim, stride]),
            bytemuck::cast_slice(&numbers),
        ]
        .concat()
    }
}
