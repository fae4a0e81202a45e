//! Trains a click-through model: the bridge between the agent's trainer and a burn model.

use std::fmt;

use antdt_agent::{Evaluation, Gradient, StepStats, TrainError, Trainer};
use antdt_core::{ParamLayout, SampleRange, Seed, TableSpec};
use antdt_data::Notice;

use crate::data::{Dataset, OpenError, RowBatch};
use crate::engine::{self, Engine, Input};
use crate::features::FeatureMap;
use crate::model::ModelShape;
use crate::split::{SampleCounts, Split};
use crate::workload::WorkloadSpec;

/// Embeddings start this close to 0: far enough to tell fields apart, near enough not to drown the first steps.
const INIT_SCALE: f32 = 0.05;

/// Computes gradients of a click-through model on the rows of a data set.
pub struct ClickTrainer {
    layout: ParamLayout,
    data: Box<dyn Dataset>,
    split: Split,
    features: FeatureMap,
    engine: Box<dyn Engine>,
    batch: Loaded,
}

/// The loaded batch, and the buffers it is made in.
#[derive(Debug, Default)]
struct Loaded {
    row_numbers: Vec<u64>,
    rows: RowBatch,
    /// Table row of each field of each sample.
    ids: Vec<u64>,
    /// The same, each with its position, in ascending order.
    sorted: Vec<(u64, u32)>,
    /// Table rows, ascending, each once.
    touched: Vec<u64>,
    /// Which of `touched` each of `ids` is.
    index: Vec<i32>,
    losses: Vec<f32>,
}

impl ClickTrainer {
    /// Opens the data and builds the model. `seed` decides which rows are held out, and the rows of a synthetic
    /// source; every process of a job must be given the same.
    ///
    /// # Errors
    /// If a setting cannot be used or the data cannot be read.
    pub fn open(spec: &WorkloadSpec, seed: Seed) -> Result<Self, OpenError> {
        Self::open_announced(spec, seed, &mut |_| {})
    }

    /// Opens like [`open`](Self::open); `announce` is told of files that are copied first, since they cannot be read by
    /// range.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_announced(
        spec: &WorkloadSpec,
        seed: Seed,
        announce: &mut dyn FnMut(&Notice),
    ) -> Result<Self, OpenError> {
        let (data, split) = spec.open_data(seed, announce)?;
        let features = FeatureMap::new(data.schema(), spec.rows_per_field);
        let shape = ModelShape {
            fields: features.fields(),
            embedding: spec.embedding,
            hidden: spec.hidden.clone(),
            cin: spec.cin.clone(),
        };
        let engine = engine::build(spec.model, &shape, spec.device);
        let layout = ParamLayout {
            dense_len: engine.layout().len(),
            table: Some(TableSpec {
                rows: spec.rows_per_field * features.fields() as u64,
                dim: shape.row_dim(),
                init_scale: INIT_SCALE,
            }),
        };
        Ok(Self { layout, data, split, features, engine, batch: Loaded::default() })
    }

    /// How many samples there are, and where those for evaluation come from.
    pub fn counts(&self) -> SampleCounts {
        self.split.counts()
    }

    /// Reads the rows that `self.batch.row_numbers` names; `sample` says which sample each one is.
    fn read(&mut self, sample: impl Fn(usize) -> u64) -> Result<&[u64], TrainError> {
        let batch = &mut self.batch;
        batch.rows.clear();
        if let Err(error) = self.data.read(&batch.row_numbers, &mut batch.rows) {
            // Rows are read together: the first that failed may be one beside those that were asked for.
            let at = batch.row_numbers.iter().position(|row| *row == error.row).unwrap_or(0);
            return Err(TrainError::Data { sample: sample(at), why: error.to_string() });
        }
        self.features.table_rows(&batch.rows, &mut batch.ids);
        batch.compact();
        Ok(&batch.touched)
    }

    fn input<'a>(&'a self, dense: &'a [f32], rows: &'a [f32]) -> Result<Input<'a>, TrainError> {
        let dim = self.layout.table.map_or(0, |table| table.dim);
        let wanted = (self.layout.dense_len, self.batch.touched.len() * dim);
        if (dense.len(), rows.len()) != wanted {
            return Err(TrainError::Model(format!(
                "given {} dense and {} row values where the loaded batch needs {} and {}",
                dense.len(),
                rows.len(),
                wanted.0,
                wanted.1
            )));
        }
        Ok(Input { dense, rows, index: &self.batch.index, labels: &self.batch.rows.labels })
    }
}

impl Loaded {
    /// Finds the distinct table rows, and where each one is used.
    fn compact(&mut self) {
        self.sorted.clear();
        self.sorted.extend((0..).zip(&self.ids).map(|(position, id)| (*id, position)));
        self.sorted.sort_unstable();
        self.touched.clear();
        self.index.clear();
        self.index.resize(self.ids.len(), 0);
        for (id, position) in &self.sorted {
            if self.touched.last() != Some(id) {
                self.touched.push(*id);
            }
            let last = i32::try_from(self.touched.len() - 1).expect("a batch touches fewer rows than 2^31");
            self.index[*position as usize] = last;
        }
    }
}

impl Trainer for ClickTrainer {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn train_samples(&self) -> u64 {
        self.split.counts().train
    }

    fn eval_samples(&self) -> u64 {
        self.split.counts().eval
    }

    fn initial_dense(&self, seed: Seed) -> Vec<f32> {
        self.engine.layout().initial(seed)
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        self.batch.row_numbers.clear();
        for sample in samples {
            let row =
                self.split.train_row(*sample).ok_or_else(|| no_sample(*sample, self.train_samples()))?;
            self.batch.row_numbers.push(row);
        }
        self.read(|at| samples[at])
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        self.batch.row_numbers.clear();
        for sample in samples.start..samples.end {
            let row = self.split.eval_row(sample).ok_or_else(|| no_sample(sample, self.eval_samples()))?;
            self.batch.row_numbers.push(row);
        }
        self.read(|at| samples.start + at as u64)
    }

    fn forward_backward(
        &mut self,
        dense: &[f32],
        rows: &[f32],
        gradient: &mut Gradient,
    ) -> Result<StepStats, TrainError> {
        let mut losses = std::mem::take(&mut self.batch.losses);
        losses.clear();
        let input = self.input(dense, rows)?;
        let samples = input.labels.len();
        if samples == 0 {
            gradient.dense.clear();
            gradient.dense.resize(self.layout.dense_len, 0.0);
            gradient.rows.clear();
        } else {
            self.engine.forward_backward(input, gradient, &mut losses)?;
        }
        let loss_sum = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>();
        self.batch.losses = losses;
        let is_finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        if !(loss_sum.is_finite() && is_finite(&gradient.dense) && is_finite(&gradient.rows)) {
            return Err(TrainError::Diverged { loss: loss_sum, samples });
        }
        Ok(StepStats { loss_sum, samples: samples as u64 })
    }

    fn evaluate(&mut self, dense: &[f32], rows: &[f32], into: &mut Evaluation) -> Result<(), TrainError> {
        let input = self.input(dense, rows)?;
        if !input.labels.is_empty() {
            self.engine.predict(input, &mut into.probabilities)?;
            into.labels.extend_from_slice(input.labels);
        }
        Ok(())
    }
}

impl fmt::Debug for ClickTrainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClickTrainer")
            .field("layout", &self.layout)
            .field("counts", &self.split.counts())
            .finish_non_exhaustive()
    }
}

fn no_sample(sample: u64, samples: u64) -> TrainError {
    TrainError::Data { sample, why: format!("there are only samples 0..{samples}") }
}

#[cfg(test)]
mod tests;
