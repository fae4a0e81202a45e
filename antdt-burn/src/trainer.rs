//! Trainer of click-through models: connects the agent's trainer interface to a burn model.

use std::fmt;

use antdt_agent::{GradientSink, Params, StepStats, TrainError, Trainer};
use antdt_core::{InvalidValue, Metrics, ParamLayout, SampleRange, Seed, TableSpec};

use crate::click::ClickRecipe;
use crate::data::{Dataset, DatasetError, LabelKind, Notify, RowBatch};
use crate::dropout;
use crate::engine::{Engine, Input};
use crate::errors::ErrorSums;
use crate::features::FeatureMap;
use crate::model::Task;
use crate::scores::Scores;
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
    label: LabelKind,
    /// Scores of the evaluation under way, if labels are 0 or 1.
    scores: Scores,
    /// The same of other labels.
    errors: ErrorSums,
    seed: Seed,
    /// The pass over the data that each sample of the next batch belongs to.
    epochs: Vec<u32>,
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
    /// The place in `touched` of each of `ids`.
    index: Vec<i32>,
    /// For each sample, from what a training step draws what it leaves out.
    draws: Vec<u64>,
}

impl ClickTrainer {
    /// Opens the data and builds the model. `seed` decides which rows are held out, and generates the rows of
    /// a synthetic source; every process of a job must pass the same seed.
    ///
    /// # Errors
    /// If a setting is invalid or the data cannot be read.
    pub fn open(spec: &WorkloadSpec, seed: Seed) -> Result<Self, DatasetError> {
        Self::open_announced(spec, seed, &mut |_| {})
    }

    /// Opens as [`open`](Self::open) does; `announce` is called for files that are copied first because they
    /// cannot be read by range.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_announced(
        spec: &WorkloadSpec,
        seed: Seed,
        announce: Notify<'_>,
    ) -> Result<Self, DatasetError> {
        match spec.recipe()?.task {
            Task::Click(recipe) => Self::of(spec, &recipe, seed, announce),
            Task::Dense(_) => {
                Err(InvalidValue::new("workload", spec.model.name, "a model of clicks, deepfm or xdeepfm")
                    .into())
            }
        }
    }

    pub(crate) fn of(
        spec: &WorkloadSpec,
        recipe: &ClickRecipe,
        seed: Seed,
        announce: Notify<'_>,
    ) -> Result<Self, DatasetError> {
        let (data, split) = spec.open_rows(seed, announce)?;
        let features = FeatureMap::new(data.schema(), recipe.rows_per_field());
        let shape = recipe.shape(features.fields(), data.label_kind());
        let engine = recipe.build(&shape, spec.device);
        let rows = recipe.rows_per_field() * features.fields() as u64;
        let table = TableSpec::new("embedding", rows, shape.row_dim(), INIT_SCALE);
        let layout = ParamLayout::new(engine.layout().groups(), vec![table])?;
        Ok(Self {
            layout,
            data,
            split,
            features,
            engine,
            batch: Loaded::default(),
            label: shape.label,
            scores: Scores::default(),
            errors: ErrorSums::default(),
            seed,
            epochs: Vec::new(),
        })
    }

    /// Returns the numbers of samples for training and evaluation.
    pub fn counts(&self) -> SampleCounts {
        self.split.counts()
    }

    /// Returns the predictions and labels of the samples evaluated since the evaluation began; none unless labels are 0 or 1.
    pub const fn scores(&self) -> &Scores {
        &self.scores
    }

    /// Reads the rows that `self.batch.row_numbers` names; `sample` says which sample each one is.
    fn read(&mut self, sample: impl Fn(usize) -> u64) -> Result<&[u64], TrainError> {
        let batch = &mut self.batch;
        batch.rows.clear();
        let read = self.data.read(&batch.row_numbers, &mut batch.rows);
        read.map_err(|error| error.of_sample(&batch.row_numbers, sample))?;
        self.features.table_rows(&batch.rows, &mut batch.ids);
        batch.compact();
        Ok(&batch.touched)
    }

    fn input<'a>(&'a self, params: Params<'a>) -> Result<Input<'a>, TrainError> {
        let Params { dense, rows } = params;
        let wanted = (self.layout.dense_len(), self.layout.rows_len(&self.batch.touched));
        if (dense.len(), rows.len()) != wanted {
            return Err(TrainError::Model(format!(
                "given {} dense and {} row values where the loaded batch needs {} and {}",
                dense.len(),
                rows.len(),
                wanted.0,
                wanted.1
            )));
        }
        let Loaded { index, rows: RowBatch { labels, .. }, draws, .. } = &self.batch;
        Ok(Input { dense, rows, index, labels, draws })
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

    fn takes_device_rows(&self) -> bool {
        true
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
        dropout::draws(self.seed, samples, &self.epochs, &mut self.batch.draws);
        self.split.train_rows(samples, &mut self.batch.row_numbers)?;
        self.read(|at| samples[at])
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        self.split.eval_rows(samples, &mut self.batch.row_numbers)?;
        self.read(|at| samples.start + at as u64)
    }

    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let input = self.input(params)?;
        let samples = input.labels.len();
        if samples == 0 {
            sink.all(&self.layout, &vec![0.0; self.layout.dense_len()], &[])?;
            return Ok(StepStats::default());
        }
        let loss_sum = self.engine.forward_backward(input, sink)?;
        Ok(StepStats { loss_sum, samples: samples as u64 })
    }

    fn begin_evaluation(&mut self) {
        self.scores = Scores::default();
        self.errors = ErrorSums::default();
    }

    fn evaluate(&mut self, params: Params<'_>, _metrics: &mut Metrics) -> Result<(), TrainError> {
        let input = self.input(params)?;
        if !input.labels.is_empty() {
            let predicted = self.engine.predict(input)?;
            let labels = &self.batch.rows.labels;
            match self.label {
                LabelKind::Binary => self.scores.extend(labels, &predicted),
                LabelKind::Classes(count) => self.errors.add_classes(labels, &predicted, count),
                LabelKind::Number { .. } => self.errors.add_numbers(labels, &predicted),
            }
        }
        Ok(())
    }

    fn end_evaluation(&mut self, metrics: &mut Metrics) -> Result<(), TrainError> {
        match self.label {
            LabelKind::Binary => self.scores.record(metrics)?,
            label => self.errors.record(label, metrics)?,
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

#[cfg(test)]
mod tests;
