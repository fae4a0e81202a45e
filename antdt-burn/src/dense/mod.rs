//! Models whose parameters are all dense: samples of numbers in, one logit for each class out.

mod engine;
pub(crate) mod images;
pub(crate) mod texts;
mod trainer;
pub(crate) mod vectors;

use std::fmt;

use antdt_core::Seed;
use burn::module::{AutodiffModule, Module, ParamId};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

pub(crate) use engine::build;
pub use trainer::DenseTrainer;

use crate::data::example::{ExampleShape, Examples};
use crate::data::{DatasetError, Notify};
use crate::device::Device;
use crate::dropout::Dropout;
use crate::model::{Recipe, Task};
use crate::split::Split;
use crate::workload::WorkloadSpec;
use engine::Engine;

/// A forward pass through a dense model, which collects the new values of the model's
/// [`Running`](crate::flat::Running) statistics.
#[derive(Debug)]
pub struct Pass<B: Backend> {
    /// Whether the pass is part of a training step; otherwise it is part of an evaluation.
    pub training: bool,
    /// In a training step: the new values of each running statistic.
    pub states: Vec<(ParamId, Tensor<B, 1>)>,
    /// Dropout of the pass, which is none in an evaluation.
    pub dropout: Dropout,
}

impl<B: Backend> Pass<B> {
    pub(crate) fn of_training(draws: &[u64]) -> Self {
        Self { training: true, states: Vec::new(), dropout: Dropout::of_training(draws) }
    }

    pub(crate) fn of_evaluation() -> Self {
        Self { training: false, states: Vec::new(), dropout: Dropout::none() }
    }
}

/// A model that predicts the class of each position of a sample.
pub trait DenseModel<B: Backend>: Module<B> {
    /// Returns the logits `[samples * positions, classes]` for the inputs `[samples, inputs]`.
    fn logits(&self, inputs: Tensor<B, 2>, pass: &mut Pass<B>) -> Tensor<B, 2>;
}

/// A model that can be built on any back end.
pub(crate) trait Family {
    /// Sizes that the data do not say.
    type Sizes;

    /// The model on a back end.
    type On<B: AutodiffBackend>: DenseModel<B>
        + AutodiffModule<B, InnerModule: DenseModel<B::InnerBackend>>
        + 'static;

    /// The model with all parameters 0.
    fn build<B: AutodiffBackend>(sizes: &Self::Sizes, shape: ExampleShape, device: &B::Device)
    -> Self::On<B>;
}

/// What an evaluation says beside the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    /// `accuracy`: the share of positions whose most probable class is the right one.
    Accuracy,
    /// `perplexity`: e to the power of the loss, the number of equally likely classes that would be as hard to tell.
    Perplexity,
}

/// The samples that a model takes, opened, and which are held out.
type Opened = Result<(Box<dyn Examples>, Split), DatasetError>;

/// Opens the samples of a workload.
type OpenExamples = Box<dyn Fn(&WorkloadSpec, Seed, Notify<'_>) -> Opened + Send + Sync>;

/// Builds a model for samples of a shape, on a device.
type BuildModel = Box<dyn Fn(ExampleShape, Device) -> Box<dyn Engine> + Send + Sync>;

/// A model with its sizes, and the samples that it takes.
pub(crate) struct DenseRecipe {
    open: OpenExamples,
    judge: Judge,
    build: BuildModel,
}

impl fmt::Debug for DenseRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenseRecipe").field("judge", &self.judge).finish_non_exhaustive()
    }
}

/// The recipe of a model that `build` makes for samples that `open` opens.
pub(crate) fn recipe(
    optimizer: &'static str,
    learning_rate: f32,
    open: OpenExamples,
    judge: Judge,
    build: impl Fn(ExampleShape, Device) -> Box<dyn Engine> + Send + Sync + 'static,
) -> Recipe {
    let task = Task::Dense(DenseRecipe { open, judge, build: Box::new(build) });
    Recipe { optimizer, learning_rate, weight_decay: 0.0, task }
}
