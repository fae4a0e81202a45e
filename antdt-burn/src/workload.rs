//! [`WorkloadSpec`]: the settings of a job that concern its model and data.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use antdt_agent::Trainer;
use antdt_core::registry::BuildError;
use antdt_core::{InvalidValue, Seed};
use antdt_data::Cache;

use crate::data::synthetic::Clicks;
use crate::data::{ColumnChoice, DataSource, Dataset, DatasetError, Format, Notify, Opening, StoredRows};
use crate::dense::DenseTrainer;
use crate::device::Device;
use crate::model::{Model, REGISTRY, Recipe, Task};
use crate::split::{Split, share};
use crate::trainer::ClickTrainer;

/// A model, its data, and the settings of both.
#[derive(Debug, Clone)]
pub struct WorkloadSpec {
    /// Model to train.
    pub model: Model,
    /// Settings of the model as texts by name, as in the table `[workload.NAME]` of a job file; those that are not given
    /// have their defaults.
    pub settings: BTreeMap<String, String>,
    /// Source of the rows.
    pub data: DataSource,
    /// Format of the rows; `None` detects it. Ignored for synthetic rows.
    pub format: Option<Format>,
    /// What the user says of the columns of a table. Ignored for synthetic rows.
    pub columns: ColumnChoice,
    /// Share of the rows held out for evaluation, in `[0, 1)`. Of a synthetic source, this share of the
    /// training rows is generated in addition to them. With 0 the model is evaluated on the training rows.
    pub eval_fraction: f64,
    /// Device that the model computes on.
    pub device: Device,
    /// Cache for row indexes, and for copies of files that cannot be read by range; `None` is the user's own
    /// cache (see [`Cache::of_user`]). Ignored for synthetic rows.
    pub cache: Option<Cache>,
    /// How many times its own length a compressed file may unpack to; see [`Cache::with_unpack_limit`].
    pub unpack_limit: u32,
    /// Memory for rows that were read from files, in bytes.
    pub read_budget_bytes: usize,
}

impl WorkloadSpec {
    /// Returns the workload of this model on this data, with defaults for everything else.
    pub fn new(model: Model, data: DataSource) -> Self {
        Self {
            model,
            settings: BTreeMap::new(),
            data,
            format: None,
            columns: ColumnChoice::default(),
            eval_fraction: 0.2,
            device: Device::Cpu,
            cache: None,
            unpack_limit: Cache::UNPACK_LIMIT,
            // Twenty shards of ten batches of Criteo's rows each: more than the leases that a worker holds.
            read_budget_bytes: 64 << 20,
        }
    }

    /// Returns the workload with another value for one setting of its model.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.settings.insert(name.to_owned(), value.to_string());
        self
    }

    /// Returns the recipe of the model: its sizes, from the model's settings in this workload, and the
    /// optimizer, learning rate and weight decay to train it with by default.
    ///
    /// # Errors
    /// If a setting is unknown or its value is invalid.
    pub fn recipe(&self) -> Result<Recipe, BuildError> {
        REGISTRY.build(self.model.name, &self.settings)
    }

    /// Opens the data and builds the model. `seed` decides which rows are held out, and generates the rows of
    /// a synthetic source; every process of a job must pass the same seed. `announce` is called with lines about
    /// files that are copied first, and about the columns of a table.
    ///
    /// # Errors
    /// If a setting is invalid or the data cannot be read.
    pub fn open(&self, seed: Seed, announce: Notify<'_>) -> Result<Box<dyn Trainer>, DatasetError> {
        Ok(match self.recipe()?.task {
            Task::Click(recipe) => Box::new(ClickTrainer::of(self, &recipe, seed, announce)?),
            Task::Dense(recipe) => Box::new(DenseTrainer::of(self, &recipe, seed, announce)?),
        })
    }

    /// Checks the share that is held out and the number of generated rows.
    fn validate(&self) -> Result<(), InvalidValue> {
        if !(0.0..1.0).contains(&self.eval_fraction) {
            return Err(InvalidValue::new("eval_fraction", self.eval_fraction, "at least 0 and below 1"));
        }
        if let DataSource::Synthetic { rows: 0 } = self.data {
            return Err(InvalidValue::new("data", &self.data, "at least 1 row"));
        }
        Ok(())
    }

    /// Splits `rows` generated rows; returns how many have to be generated, too.
    pub(crate) fn split_generated(&self, rows: u64) -> Result<(u64, Split), DatasetError> {
        self.validate()?;
        let total = rows
            .checked_add(share(rows, self.eval_fraction))
            .ok_or_else(|| InvalidValue::new("data", &self.data, "at most 2^63 synthetic rows"))?;
        Ok((total, Split::of_generated(rows, self.eval_fraction)))
    }

    /// Splits the `rows` rows of a file.
    pub(crate) fn split_stored(&self, rows: u64, seed: Seed) -> Split {
        Split::of_rows(rows, self.eval_fraction, seed)
    }

    /// Refuses to be told of columns, for a model that takes `what`.
    pub(crate) fn refuse_columns(&self, what: &str) -> Result<(), InvalidValue> {
        let expected = format!("left out: this model takes {what}");
        match (self.format, self.columns.named()) {
            (Some(format), _) => Err(InvalidValue::new("format", format, expected)),
            (None, Some((flag, names))) => Err(InvalidValue::new(flag, names, expected)),
            (None, None) => Ok(()),
        }
    }

    /// The folder for what is kept of files.
    pub(crate) fn cache(&self) -> Result<Cache, DatasetError> {
        let cache = match &self.cache {
            Some(cache) => cache.clone(),
            None => Cache::of_user(|name| std::env::var_os(name))?,
        };
        Ok(cache.with_unpack_limit(self.unpack_limit))
    }

    /// Opens a data set of rows and splits it. `announce` is told of files that have to be copied first.
    pub(crate) fn open_rows(
        &self,
        seed: Seed,
        announce: Notify<'_>,
    ) -> Result<(Box<dyn Dataset>, Split), DatasetError> {
        match &self.data {
            DataSource::Synthetic { rows } => {
                let (total, split) = self.split_generated(*rows)?;
                Ok((Box::new(Clicks::new(seed, total)), split))
            }
            DataSource::Path(path) => {
                let data = self.open_stored_rows(path, announce)?;
                let split = self.split_stored(data.rows(), seed);
                Ok((Box::new(data), split))
            }
        }
    }

    /// Opens rows in files.
    pub(crate) fn open_stored_rows(
        &self,
        path: &Path,
        announce: Notify<'_>,
    ) -> Result<StoredRows, DatasetError> {
        self.open_files(|opening| StoredRows::open(path, self.format, &self.columns, opening, announce))
    }

    /// Opens files by `open`.
    pub(crate) fn open_files<T>(
        &self,
        open: impl FnOnce(&Opening<'_>) -> Result<T, DatasetError>,
    ) -> Result<T, DatasetError> {
        self.validate()?;
        let cache = self.cache()?;
        open(&Opening { cache: &cache, budget_bytes: self.read_budget_bytes })
    }
}

/// Returns the default global batch size in samples; it suits all models.
pub const fn global_batch_size_default() -> u64 {
    256
}
