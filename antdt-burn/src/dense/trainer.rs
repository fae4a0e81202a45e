//! Trainer of dense models: connects the agent's trainer interface to a burn model.

use std::fmt;

use antdt_agent::{GradientSink, Params, StepStats, TrainError, Trainer};
use antdt_core::{Metric, Metrics, ParamLayout, SampleRange, Seed};

use super::engine::{Engine, Input};
use super::{DenseRecipe, Judge};
use crate::data::example::{ExampleBatch, ExampleShape, Examples};
use crate::data::{DatasetError, Notify};
use crate::dropout;
use crate::split::{SampleCounts, Split};
use crate::workload::WorkloadSpec;

/// Computes gradients of a dense model on the samples of a data set.
pub struct DenseTrainer {
    layout: ParamLayout,
    shape: ExampleShape,
    data: Box<dyn Examples>,
    split: Split,
    engine: Box<dyn Engine>,
    judge: Judge,
    /// Rows of the loaded batch.
    rows: Vec<u64>,
    batch: ExampleBatch,
    seed: Seed,
    /// The pass over the data that each sample of the next batch belongs to.
    epochs: Vec<u32>,
    /// For each sample of the loaded batch, from what a training step draws what it leaves out.
    draws: Vec<u64>,
}

impl DenseTrainer {
    pub(crate) fn of(
        spec: &WorkloadSpec,
        recipe: &DenseRecipe,
        seed: Seed,
        announce: Notify<'_>,
    ) -> Result<Self, DatasetError> {
        let (data, split) = (recipe.open)(spec, seed, announce)?;
        let shape = data.shape();
        let engine = (recipe.build)(shape, spec.device);
        Ok(Self {
            layout: ParamLayout::new(engine.layout().groups(), Vec::new())?,
            shape,
            data,
            split,
            engine,
            judge: recipe.judge,
            rows: Vec::new(),
            batch: ExampleBatch::default(),
            seed,
            epochs: Vec::new(),
            draws: Vec::new(),
        })
    }

    /// Returns the numbers of samples for training and evaluation.
    pub fn counts(&self) -> SampleCounts {
        self.split.counts()
    }

    /// Reads `self.rows`; `sample` says which sample each one is.
    fn read(&mut self, sample: impl Fn(usize) -> u64) -> Result<&[u64], TrainError> {
        self.batch.clear();
        let read = self.data.read(&self.rows, &mut self.batch);
        read.map_err(|error| error.of_sample(&self.rows, sample))?;
        Ok(&[])
    }

    fn samples(&self) -> usize {
        self.batch.inputs.len() / self.shape.inputs
    }

    fn input<'a>(&'a self, params: Params<'a>) -> Result<Input<'a>, TrainError> {
        let dense = params.dense;
        if (dense.len(), params.rows.len()) != (self.layout.dense_len(), 0) {
            let (given, rows, wanted) = (dense.len(), params.rows.len(), self.layout.dense_len());
            return Err(TrainError::Model(format!(
                "given {given} dense and {rows} row values where the model has {wanted} and 0"
            )));
        }
        Ok(Input { dense, inputs: &self.batch.inputs, classes: &self.batch.classes, draws: &self.draws })
    }
}

impl Trainer for DenseTrainer {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn takes_device_dense(&self) -> bool {
        self.engine.is_on_device()
    }

    fn train_samples(&self) -> u64 {
        self.split.counts().train
    }

    fn eval_samples(&self) -> u64 {
        self.split.counts().eval
    }

    fn data_checksum(&self) -> Option<u32> {
        self.data.content_checksum()
    }

    fn initial_dense(&self, seed: Seed) -> Vec<f32> {
        self.engine.layout().initial(seed)
    }

    fn of_epochs(&mut self, epochs: &[u32]) {
        self.epochs.clear();
        self.epochs.extend_from_slice(epochs);
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        dropout::draws(self.seed, samples, &self.epochs, &mut self.draws);
        self.split.train_rows(samples, &mut self.rows)?;
        self.read(|at| samples[at])
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        self.split.eval_rows(samples, &mut self.rows)?;
        self.read(|at| samples.start + at as u64)
    }

    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let (input, samples) = (self.input(params)?, self.samples());
        if samples == 0 {
            sink.all(&self.layout, &vec![0.0; self.layout.dense_len()], &[])?;
            return Ok(StepStats::default());
        }
        let loss_sum = self.engine.forward_backward(input, sink)?;
        Ok(StepStats { loss_sum, samples: samples as u64 })
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
    fn evaluate(&mut self, params: Params<'_>, metrics: &mut Metrics) -> Result<(), TrainError> {
        let (input, samples) = (self.input(params)?, self.samples());
        if samples == 0 {
            return Ok(());
        }
        let found = self.engine.evaluate(input)?;
        let weight = samples as f64;
        metrics.record(Metric::mean(Metric::LOSS, found.loss_sum / weight, weight).lower_is_better())?;
        match self.judge {
            Judge::Accuracy => {
                let share = found.right as f64 / input.classes.len() as f64;
                metrics.record(Metric::mean("accuracy", share, weight).higher_is_better())?;
            }
            // Follows from the loss of all samples.
            Judge::Perplexity => {}
        }
        Ok(())
    }

    fn end_evaluation(&mut self, metrics: &mut Metrics) -> Result<(), TrainError> {
        let Some(loss) = metrics.iter().find(|metric| metric.name == Metric::LOSS) else { return Ok(()) };
        match self.judge {
            Judge::Accuracy => {}
            Judge::Perplexity => {
                let perplexity = Metric::whole("perplexity", loss.value.exp(), loss.weight);
                metrics.record(perplexity.lower_is_better())?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for DenseTrainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenseTrainer")
            .field("layout", &self.layout)
            .field("counts", &self.split.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
