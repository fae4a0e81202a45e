//! The settings of a job that concern its model and data.

use antdt_core::{InvalidValue, Seed};
use antdt_data::{Cache, UnpackNotice};

use crate::data::synthetic::Clicks;
use crate::data::{DataSource, Dataset, DatasetError, Format, Opening, StoredRows};
use crate::device::Device;
use crate::model::{Model, ModelShape};
use crate::split::{SampleCounts, Split, share};

/// A model, its data, and their settings.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// Model to train.
    pub model: Model,
    /// Source of the rows.
    pub data: DataSource,
    /// Format of the rows; `None` detects it. Ignored for synthetic rows.
    pub format: Option<Format>,
    /// Share of the rows held out for evaluation, in `[0, 1)`; with synthetic rows, this many more are
    /// generated. With 0 the training rows are evaluated.
    pub eval_fraction: f64,
    /// Number of table rows for each field. More rows mean fewer collisions of categories, and more memory:
    /// `4 * (embedding + 1)` bytes each, as much again for the optimizer.
    pub rows_per_field: u64,
    /// Number of values of an embedding.
    pub embedding: usize,
    /// Number of units of each hidden layer.
    pub hidden: Vec<usize>,
    /// Number of feature maps of each layer of the compressed interaction network of xDeepFM.
    pub cin: Vec<usize>,
    /// Device that the model computes on.
    pub device: Device,
    /// Folder for row indexes, and for copies of files that cannot be read by range; `None` is the user's own
    /// folder (see [`Cache::of_user`]). Ignored for synthetic rows.
    pub cache: Option<Cache>,
    /// Memory for rows that were read from files, in bytes.
    pub read_budget_bytes: usize,
}

impl WorkloadSpec {
    /// Returns the model on the data, with defaults for everything else.
    pub fn new(model: Model, data: DataSource) -> Self {
        Self {
            model,
            data,
            format: None,
            eval_fraction: 0.2,
            // Keeps the collisions of a column with a thousand categories to 6 %; 39 such fields take 46 MB with
            // their optimizer state.
            rows_per_field: 1 << 14,
            // Small enough for a step of a few milliseconds on one core.
            embedding: 8,
            hidden: vec![64, 32],
            cin: vec![16, 16],
            device: Device::Cpu,
            cache: None,
            // Twenty shards of ten batches of Criteo's rows each: more than the leases that a worker holds.
            read_budget_bytes: 64 << 20,
        }
    }

    /// Checks the settings, without reading the data.
    ///
    /// # Errors
    /// If a size is 0 or the share held out is not in `[0, 1)`.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if !(0.0..1.0).contains(&self.eval_fraction) {
            return Err(InvalidValue::new("eval_fraction", self.eval_fraction, "at least 0 and below 1"));
        }
        // The bound keeps row numbers, and the index of touched rows, far from overflow.
        if !(1..=1 << 40).contains(&self.rows_per_field) {
            return Err(InvalidValue::new("rows_per_field", self.rows_per_field, "between 1 and 2^40"));
        }
        if self.embedding == 0 {
            return Err(InvalidValue::new("embedding", 0, "at least 1"));
        }
        if self.hidden.contains(&0) {
            return Err(InvalidValue::new("hidden", 0, "at least 1 unit in each layer"));
        }
        (self.model.check)(&self.shape(1))?;
        if let DataSource::Synthetic { rows: 0 } = self.data {
            return Err(InvalidValue::new("data", &self.data, "at least 1 row"));
        }
        Ok(())
    }

    /// The sizes of the model's layers for samples of so many fields.
    pub(crate) fn shape(&self, fields: usize) -> ModelShape {
        ModelShape { fields, embedding: self.embedding, hidden: self.hidden.clone(), cin: self.cin.clone() }
    }

    /// Opens the data set and splits it. `announce` is told of files that have to be copied first.
    pub(crate) fn open_data(
        &self,
        seed: Seed,
        announce: &mut dyn FnMut(&UnpackNotice),
    ) -> Result<(Box<dyn Dataset>, Split), DatasetError> {
        self.validate()?;
        match &self.data {
            DataSource::Synthetic { rows } => {
                let total = rows
                    .checked_add(share(*rows, self.eval_fraction))
                    .ok_or_else(|| InvalidValue::new("data", &self.data, "at most 2^63 synthetic rows"))?;
                let split = Split::of_generated(*rows, self.eval_fraction);
                Ok((Box::new(Clicks::new(seed, total)), split))
            }
            DataSource::Path(path) => {
                let cache = match &self.cache {
                    Some(cache) => cache.clone(),
                    None => Cache::of_user(|name| std::env::var_os(name))?,
                };
                let opening = Opening { cache: &cache, budget_bytes: self.read_budget_bytes };
                let data = StoredRows::open(path, self.format, &opening, announce)?;
                let split = Split::of_rows(data.rows(), self.eval_fraction, seed);
                Ok((Box::new(data), split))
            }
        }
    }
}

/// Returns the number of samples of a workload, without building its model. Text that has no index yet is
/// read and checked to its end.
///
/// # Errors
/// If a setting is invalid or the data cannot be read.
pub fn count_rows(spec: &WorkloadSpec) -> Result<SampleCounts, DatasetError> {
    // The seed decides which rows are held out, not how many.
    spec.open_data(Seed::default(), &mut |_| {}).map(|(_, split)| split.counts())
}

/// Name of the default optimizer, in `antdt-model`; it suits both models.
pub const OPTIMIZER_DEFAULT: &str = "adagrad";

/// Default learning rate; it suits both models with that optimizer.
pub const LEARNING_RATE_DEFAULT: f32 = 0.02;

/// Returns the default global batch size in samples; it suits both models.
pub const fn global_batch_size_default() -> u64 {
    256
}
