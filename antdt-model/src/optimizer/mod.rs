//! Optimizers: a trait, one file for each optimizer, and the registry of their names.
//!
//! An optimizer is pure and works element by element, in single precision, so that servers and replicas get the same bits
//! from the same gradients. It keeps up to two numbers for each parameter; they lie where the parameters lie.
//!
//! # Rows of a table
//!
//! Only the rows that a batch touches change: their values, and what the optimizer keeps for them. A row that was not
//! touched keeps its momentum and its moments as they are, and weight decay does not reach it. Bias correction goes by the
//! number of steps of the whole model. So do `SparseAdam` of PyTorch and `LazyAdam` of TensorFlow Addons (both read), and
//! TensorFlow's momentum on `IndexedSlices` (recalled). A dense optimizer would move every row of the table in every step.

use std::collections::BTreeMap;
use std::fmt;

mod adagrad;
mod adam;
mod adamw;
mod momentum;
pub mod registry;
mod sgd;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamw::AdamW;
pub use momentum::Momentum;
pub use registry::{Entry, REGISTRY};
pub use sgd::Sgd;

/// Number, rate and scaling of one training step, as an optimizer gets them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateStep {
    /// Number of the step, counted from 1.
    pub number: u64,
    /// Learning rate of the step.
    pub rate: f32,
    /// Factor for the gradients: one over the number of samples, where gradients are sums.
    pub scale: f32,
    /// Weight decay of the parameters that the step changes.
    pub decay: f32,
}

impl UpdateStep {
    /// The same step at a share of its learning rate.
    pub(crate) fn at(self, share: f32) -> Self {
        Self { rate: self.rate * share, ..self }
    }
}

/// A prepared step of an optimizer. Its arguments are the values, the two arrays of optimizer state, and the
/// gradients.
///
/// The slices are of equal length, except that state which the optimizer does not keep is empty.
pub type Update<'a> = Box<dyn Fn(&mut [f32], [&mut [f32]; 2], &[f32]) + 'a>;

/// Learning rate and weight decay of an optimizer where a job sets none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// Default learning rate.
    pub rate: f32,
    /// Default weight decay.
    pub decay: f32,
}

/// Largest number of values that an optimizer may keep for each parameter.
pub const STATE_MAX: usize = 2;

/// An optimizer: the rule by which a mean gradient changes parameters.
///
/// To write one: implement this, and add an entry for it to the [`REGISTRY`] before the program reads its command line.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use antdt_model::UpdateRule;
/// use antdt_model::optimizer::{Defaults, Entry, Optimizer, REGISTRY, UpdateStep, Update};
///
/// #[derive(Debug)]
/// struct SignSgd;
///
/// impl Optimizer for SignSgd {
///     fn name(&self) -> &'static str {
///         "sign"
///     }
///     fn settings(&self) -> BTreeMap<String, String> {
///         BTreeMap::new()
///     }
///     fn defaults(&self) -> Defaults {
///         Defaults { rate: 0.001, decay: 0.0 }
///     }
///     fn state_per_value(&self) -> usize {
///         0
///     }
///     fn begin(&self, step: UpdateStep) -> Update<'_> {
///         Box::new(move |values, _, gradient| {
///             for (value, gradient) in values.iter_mut().zip(gradient) {
///                 *value -= step.rate * (gradient * step.scale + step.decay * *value).signum();
///             }
///         })
///     }
/// }
///
/// REGISTRY.register(Entry {
///     name: "sign",
///     about: "steps of one length; rate 0.001",
///     settings: Vec::new,
///     build: |_| Ok(Box::new(SignSgd)),
/// })?;
/// assert_eq!(UpdateRule::named("sign", 0.01)?.identity(), "sign");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Optimizer: fmt::Debug + Send + Sync {
    /// Returns the optimizer's name in the registry.
    fn name(&self) -> &'static str;

    /// Returns the optimizer's settings by name, as a job file has them. Two optimizers of one name and equal
    /// settings change parameters alike.
    fn settings(&self) -> BTreeMap<String, String>;

    /// Returns the learning rate and weight decay where a job sets none.
    fn defaults(&self) -> Defaults;

    /// Returns how many numbers the optimizer keeps for each parameter, at most [`STATE_MAX`]; they start at
    /// 0.
    fn state_per_value(&self) -> usize;

    /// Prepares a step: computes once what depends on the step alone.
    fn begin(&self, step: UpdateStep) -> Update<'_>;

    /// Returns the step that [`begin`](Self::begin) prepares as the constants of a GPU kernel, which computes
    /// the same bits for rows in GPU memory. `None` if there is no kernel for this optimizer; its tables then
    /// stay in host memory.
    #[cfg(feature = "runtime")]
    fn row_step(&self, _step: UpdateStep) -> Option<antdt_collective::RowStep> {
        None
    }
}

/// `base` to the power of `exponent`, by multiplication alone: `powi` may differ from one machine to the next.
pub(crate) fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

/// What one minus a decay rate to the power of the step's number is: the share of the true mean that a running mean, which
/// began at 0, has reached.
pub(crate) fn bias(beta: f32, number: u64) -> f64 {
    1.0 - power(f64::from(beta), number)
}

#[cfg(test)]
pub(crate) mod testing;
