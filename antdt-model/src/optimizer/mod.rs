//! How a gradient changes parameters: a trait, one file for each optimizer, and the registry of their names.
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

/// One step of a model, as an optimizer sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateStep {
    /// Number of the step, counted from 1.
    pub number: u64,
    /// The learning rate.
    pub rate: f32,
    /// Gradients are multiplied with this: one over the samples, where they are sums.
    pub scale: f32,
    /// The weight decay of the parameters that are changed.
    pub decay: f32,
}

/// A step that is ready to change parameters: values, the two numbers kept for each of them, and their gradients.
///
/// The slices are of equal length, but for those of numbers that the optimizer does not keep, which are empty.
pub type Update<'a> = Box<dyn Fn(&mut [f32], [&mut [f32]; 2], &[f32]) + 'a>;

/// What an optimizer takes where a job does not say it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// The learning rate.
    pub rate: f32,
    /// The weight decay.
    pub decay: f32,
}

/// Numbers that an optimizer may keep for each parameter.
pub const STATE_MAX: usize = 2;

/// How a mean gradient changes parameters.
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
    /// Its name in the registry.
    fn name(&self) -> &'static str;

    /// Its settings by name, as a job file has them. Two optimizers of one name and equal settings change parameters
    /// alike.
    fn settings(&self) -> BTreeMap<String, String>;

    /// What it takes where a job does not say it.
    fn defaults(&self) -> Defaults;

    /// Numbers that it keeps for each parameter, at most [`STATE_MAX`]; they start at 0.
    fn state_per_value(&self) -> usize;

    /// Makes a step ready: what depends on the step alone is computed here, once.
    fn begin(&self, step: UpdateStep) -> Update<'_>;
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
