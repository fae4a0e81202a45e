//! The kernels by name, and what they are started with.

use antdt_collective::RowStep;

/// The text of all kernels.
pub(in crate::runtime) const TEXT: &str = include_str!("rows.cu");

/// A kernel; the number is its place in the list of `host.cpp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::runtime) enum RowKernel {
    /// Rows of slots, and guests, to a batch.
    Gather,
    /// Packed rows to their slots.
    Scatter,
    /// A step of an optimizer.
    Sgd,
    Momentum,
    Adagrad,
    Adam,
    /// Sums of gradients of a flat vector, and more of them.
    AddFlat,
    /// Means of statistics in a flat vector.
    SetFlat,
    /// A step of an optimizer on a piece of a flat vector.
    SgdFlat,
    MomentumFlat,
    AdagradFlat,
    AdamFlat,
    /// Sums of the squares of values, strand by strand.
    SquaresFlat,
}

/// Strands that lie beside each other (`LANES` in the text).
const LANES: usize = 16;

/// Values of a strand (`STRAND` in the text).
const STRAND: usize = 512;

/// Strands of so many values.
pub(in crate::runtime) const fn strands(len: usize) -> usize {
    len.div_ceil(LANES * STRAND) * LANES
}

impl RowKernel {
    /// The kernel that computes a step.
    pub(in crate::runtime) const fn of(step: &RowStep) -> Self {
        match step {
            RowStep::Sgd { .. } => Self::Sgd,
            RowStep::Momentum { .. } => Self::Momentum,
            RowStep::Adagrad { .. } => Self::Adagrad,
            RowStep::Adam { .. } => Self::Adam,
        }
    }

    /// The kernel that computes a step on a piece of a flat vector.
    pub(in crate::runtime) const fn of_flat(step: &RowStep) -> Self {
        match step {
            RowStep::Sgd { .. } => Self::SgdFlat,
            RowStep::Momentum { .. } => Self::MomentumFlat,
            RowStep::Adagrad { .. } => Self::AdagradFlat,
            RowStep::Adam { .. } => Self::AdamFlat,
        }
    }
}

/// Arguments of a kernel: `Work` in its text, which says what they are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::runtime) struct Work {
    pub(in crate::runtime) rows: u64,
    pub(in crate::runtime) packed: u64,
    pub(in crate::runtime) guests: u64,
    pub(in crate::runtime) places: u64,
    pub(in crate::runtime) count: u32,
    pub(in crate::runtime) slots: u32,
    pub(in crate::runtime) dim: u32,
    pub(in crate::runtime) stride: u32,
    pub(in crate::runtime) step: Numbers,
}

/// What a step is computed with: that of its optimizer is set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::runtime) struct Numbers {
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
    least: f32,
}

impl Work {
    /// With the numbers of a step.
    pub(in crate::runtime) fn with(self, step: &RowStep) -> Self {
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

    /// The same, in which values that come closer to 0 than `least` become 0.
    pub(in crate::runtime) const fn dropping(mut self, least: f32) -> Self {
        self.step.least = least;
        self
    }

    /// With a factor for sums.
    pub(in crate::runtime) const fn scaled(mut self, scale: f32) -> Self {
        self.step.scale = scale;
        self
    }

    /// Elements that threads take.
    #[cfg(feature = "cuda")]
    pub(in crate::runtime) const fn elements(&self) -> usize {
        self.count as usize * self.dim as usize
    }

    /// Its bytes, in the order of this machine.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::runtime) fn bytes(&self) -> Vec<u8> {
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
            step.least,
        ];
        [
            bytemuck::cast_slice::<u64, u8>(&[rows, packed, guests, places]),
            bytemuck::cast_slice(&[count, slots, dim, stride]),
            bytemuck::cast_slice(&numbers),
        ]
        .concat()
    }
}
