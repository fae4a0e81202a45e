//! What can be trained by name: the value of `--workload`.
//!
//! The models of `antdt-burn` ship, behind the feature `cli`; a program adds trainers of its own to the [`REGISTRY`]. The master opens
//! the trainer too, to count the samples and to learn the shape of the parameters before a process is started.

use std::error::Error;
use std::fmt::{self, Display};

use antdt_agent::Trainer;
use antdt_core::registry::{self, BuildError, Registry};

use crate::job::JobSpec;

/// Callback that is told of work before the job begins that takes a while, such as copying a file.
pub type Announce<'a> = &'a mut dyn FnMut(&dyn Display);

/// A trainer, or the reason why there is none.
pub type Opened = Result<Box<dyn Trainer>, Box<dyn Error + Send + Sync>>;

/// Opens a trainer: the same in every process of a job.
type Open = Box<dyn Fn(&JobSpec, Announce<'_>) -> Opened + Send + Sync>;

/// A trainer that can be opened, and what trains it where the job does not say it.
pub struct Workload {
    /// Whether a job without `--data` is refused.
    pub needs_data: bool,
    /// Name of the optimizer.
    pub optimizer: &'static str,
    /// Learning rate of that optimizer.
    pub learning_rate: f32,
    /// Weight decay with that optimizer.
    pub weight_decay: f32,
    open: Open,
}

impl Workload {
    /// Returns a trainer that can do without `--data`, with the optimizer `adagrad` at a rate of 0.02.
    pub fn new(open: impl Fn(&JobSpec, Announce<'_>) -> Opened + Send + Sync + 'static) -> Self {
        Self {
            needs_data: false,
            optimizer: "adagrad",
            learning_rate: 0.02,
            weight_decay: 0.0,
            open: Box::new(open),
        }
    }

    /// Returns a trainer that `make` makes, whatever the job's settings; otherwise as [`new`](Self::new).
    pub fn made<T: Trainer + 'static>(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self::new(move |_, _| Ok(Box::new(make())))
    }

    /// Opens the trainer for a job.
    ///
    /// # Errors
    /// If its data cannot be read or a setting of the job is none that it takes.
    pub fn open(&self, spec: &JobSpec, announce: Announce<'_>) -> Opened {
        (self.open)(spec, announce)
    }
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needs_data, optimizer, learning_rate, weight_decay, open: _ } = self;
        f.debug_struct("Workload")
            .field("needs_data", needs_data)
            .field("optimizer", optimizer)
            .field("learning_rate", learning_rate)
            .field("weight_decay", weight_decay)
            .finish_non_exhaustive()
    }
}

/// A trainer in the registry. Its settings are the table `[workload.NAME]` of a job file.
pub type Entry = registry::Entry<Workload>;

/// All registered workloads.
pub static REGISTRY: Registry<Entry> = Registry::new("workload", shipped::ALL);

/// Returns the name of the first one, which is the default; empty if none is known.
pub fn default_name() -> String {
    REGISTRY.names().first().copied().unwrap_or_default().to_owned()
}

/// What `--data` must be for a workload that needs it.
pub(crate) const DATA_EXPECTED: &str = "given: a file or folder, or synthetic:ROWS such as synthetic:100000";

/// Whether a job that trains this is refused without `--data`; an unknown name is refused anyway.
pub(crate) fn needs_data(name: &str) -> bool {
    REGISTRY.by_name(name).is_ok_and(|workload| workload.needs_data)
}

/// Makes the workload of a job, with the settings that the job has for it.
///
/// # Errors
/// If there is no such workload or setting, or a value cannot be; the error names the table and the key.
pub fn of(spec: &JobSpec) -> Result<Workload, BuildError> {
    REGISTRY.build(&spec.workload, &spec.tables.texts("workload", &spec.workload)?)
}

/// Returns the names of the formats that the trainers which ship can read.
pub fn formats() -> Vec<&'static str> {
    shipped::formats()
}

/// Returns a digest of the files that `--data` names; `None` for rows that are generated, which the setting describes.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn fingerprint(spec: &JobSpec) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
    shipped::fingerprint(spec)
}

#[cfg(not(feature = "cli"))]
mod shipped {
    use crate::job::JobSpec;

    pub(super) const ALL: &[super::Entry] = &[];

    pub(super) fn fingerprint(_: &JobSpec) -> Result<Option<String>, Box<dyn super::Error + Send + Sync>> {
        Ok(None)
    }

    pub(super) const fn formats() -> Vec<&'static str> {
        Vec::new()
    }
}

#[cfg(feature = "cli")]
mod shipped {
    use antdt_burn::data::format;
    use antdt_burn::{Cache, DataSource, Device, Format, Model, UnpackNotice, WorkloadSpec, model};
    use antdt_core::registry::Settings;
    use antdt_core::{InvalidValue, Seed};

    use super::{Announce, DATA_EXPECTED, Entry, Opened, Workload};
    use crate::gpu;
    use crate::job::{DataSpec, JobSpec, Processor};
    use crate::resume;

    pub(super) fn formats() -> Vec<&'static str> {
        format::REGISTRY.iter().map(|format| format.name()).collect()
    }

    /// One for each model of `antdt-burn`.
    pub(super) const ALL: &[Entry] = &{
        const MODELS: &[Model] = model::SHIPPED;
        let first = entry(MODELS[0]);
        let mut all = [first; MODELS.len()];
        let mut at = 1;
        while at < all.len() {
            all[at] = entry(MODELS[at]);
            at += 1;
        }
        all
    };

    const fn entry(model: Model) -> Entry {
        Entry { name: model.name, about: model.about, settings: model.settings, build }
    }

    fn build(settings: &Settings<'_>) -> Result<Workload, InvalidValue> {
        let name = settings.part();
        let model = model::REGISTRY.find(name).expect("each entry is one of its models");
        let recipe = (model.build)(settings)?;
        Ok(Workload {
            needs_data: true,
            optimizer: recipe.optimizer,
            learning_rate: recipe.learning_rate,
            weight_decay: recipe.weight_decay,
            open: Box::new(move |spec, announce| open(model, spec, announce)),
        })
    }

    fn source(spec: &JobSpec) -> Option<DataSource> {
        Some(match spec.data.as_ref()? {
            DataSpec::Path(path) => DataSource::Path(path.clone()),
            DataSpec::Synthetic { rows } => DataSource::Synthetic { rows: *rows },
        })
    }

    pub(super) fn fingerprint(spec: &JobSpec) -> Result<Option<String>, Box<dyn super::Error + Send + Sync>> {
        Ok(source(spec).map(|source| source.fingerprint()).transpose()?.flatten())
    }

    fn open(model: Model, spec: &JobSpec, announce: Announce<'_>) -> Opened {
        let Some(data) = source(spec) else {
            // A job that is resumed has the data of the one before, if there is a checkpoint that says so.
            spec.resume.as_deref().map(resume::check).transpose()?;
            return Err(InvalidValue::new("--data", "(nothing)", DATA_EXPECTED).into());
        };
        let mut workload = WorkloadSpec::new(model, data);
        workload.settings = spec.tables.texts("workload", model.name)?;
        workload.eval_fraction = spec.eval_fraction;
        workload.cache = spec.cache_dir.clone().map(Cache::at);
        // Of a worker, the job says where this one computes.
        let (place, _) = gpu::place(spec.processor(), 0)?;
        workload.device = Device::pick(&Processor::from(&place).to_string())
            .map_err(|error| InvalidValue { field: "--device".to_owned(), ..error })?;
        workload.format = spec.format.as_deref().map(str::parse::<Format>).transpose()?;
        Ok(workload.open(Seed(spec.seed), &mut |notice: &UnpackNotice| announce(notice))?)
    }
}
