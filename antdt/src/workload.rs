//! [`Workload`]: what a job can train, by the name that `--workload` takes.
//!
//! With the feature `cli` the models of `antdt-burn` are in the [`REGISTRY`]; a program can add trainers of
//! its own. The master opens the trainer as well as the workers do, to count the samples and to learn the
//! shape of the parameters before it starts a process.

use std::error::Error;
use std::fmt::{self, Display};

use antdt_agent::Trainer;
use antdt_core::registry::{self, BuildError, Registry};

#[cfg(feature = "cli")]
use crate::job::JobSetting;
use crate::job::JobSpec;

/// Callback that gets a line of text about work that delays the start of the job, such as copying a file.
pub type Announce<'a> = &'a mut dyn FnMut(&dyn Display);

/// An opened trainer, or the reason why it could not be opened.
pub type Opened = Result<Box<dyn Trainer>, Box<dyn Error + Send + Sync>>;

/// Opens a trainer: the same in every process of a job.
type Open = Box<dyn Fn(&JobSpec, Announce<'_>) -> Opened + Send + Sync>;

/// A trainer that can be opened for a job, and its default optimizer settings.
pub struct Workload {
    /// Whether a job of this trainer must have `--data`.
    pub needs_data: bool,
    /// Name of the default optimizer.
    pub optimizer: &'static str,
    /// Default learning rate, for the default optimizer.
    pub learning_rate: f32,
    /// Default weight decay, for the default optimizer.
    pub weight_decay: f32,
    /// Whether the trainer is told the settings of the job.
    is_told: bool,
    open: Open,
}

impl Workload {
    /// Returns a workload whose trainer `open` opens. It does not need `--data`, and its default optimizer is
    /// `adagrad` with a rate of 0.02.
    pub fn new(open: impl Fn(&JobSpec, Announce<'_>) -> Opened + Send + Sync + 'static) -> Self {
        Self {
            needs_data: false,
            optimizer: "adagrad",
            learning_rate: 0.02,
            weight_decay: 0.0,
            is_told: true,
            open: Box::new(open),
        }
    }

    /// Returns a workload whose trainer `make` makes, whatever the job's settings; otherwise as
    /// [`new`](Self::new).
    pub fn made<T: Trainer + 'static>(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { is_told: false, ..Self::new(move |_, _| Ok(Box::new(make()))) }
    }

    /// Returns a line for each setting of the data that does nothing with this workload, whose trainer has so many samples for
    /// evaluation.
    #[cfg(feature = "cli")]
    pub(crate) fn unused(&self, spec: &JobSpec, eval_samples: u64) -> Vec<String> {
        let of_data = [
            "data",
            "format",
            "label",
            "categorical",
            "numeric",
            "ignore",
            "task",
            "eval-fraction",
            "cache-dir",
            "unpack-limit",
        ];
        let is_set = |setting: &&JobSetting| {
            let is_unused = match setting.name {
                "eval-every" => eval_samples == 0,
                name => !self.is_told && of_data.contains(&name),
            };
            is_unused && setting.is_set(spec)
        };
        let line = |setting: &JobSetting| {
            let why = match setting.name {
                "eval-every" => "has no samples for evaluation",
                _ => "is made without the settings of the job, and brings its samples",
            };
            format!("{} does nothing: the trainer of --workload {} {why}", setting.flag(), spec.workload)
        };
        JobSpec::SETTINGS.iter().filter(is_set).map(line).collect()
    }

    /// Opens the trainer for a job.
    ///
    /// # Errors
    /// If its data cannot be read, or a setting of the job is invalid for it.
    pub fn open(&self, spec: &JobSpec, announce: Announce<'_>) -> Opened {
        (self.open)(spec, announce)
    }
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needs_data, optimizer, learning_rate, weight_decay, is_told, open: _ } = self;
        f.debug_struct("Workload")
            .field("needs_data", needs_data)
            .field("optimizer", optimizer)
            .field("is_told", is_told)
            .field("learning_rate", learning_rate)
            .field("weight_decay", weight_decay)
            .finish_non_exhaustive()
    }
}

/// A workload in the registry. Its settings are the table `[workload.NAME]` of a job file.
pub type Entry = registry::Entry<Workload>;

/// All registered workloads.
pub static REGISTRY: Registry<Entry> = Registry::new("workload", shipped::ALL);

/// Returns the name of the default workload, which is the first in the registry; empty if there is none.
pub fn default_name() -> String {
    REGISTRY.names().first().copied().unwrap_or_default().to_owned()
}

/// What `--data` must be for a workload that needs it.
pub(crate) const DATA_EXPECTED: &str = "given: a file or folder, or synthetic:ROWS such as synthetic:100000";

/// Whether a job that trains this is refused without `--data`; an unknown name is refused anyway.
pub(crate) fn needs_data(name: &str) -> bool {
    REGISTRY.by_name(name).is_ok_and(|workload| workload.needs_data)
}

/// Builds the workload of a job with its settings.
///
/// # Errors
/// If there is no such workload or setting, or a value is invalid; the error names the table and the key.
pub fn of(spec: &JobSpec) -> Result<Workload, BuildError> {
    REGISTRY.build(&spec.workload, &spec.tables.texts("workload", &spec.workload)?)
}

#[cfg(feature = "cli")]
pub use antdt_burn::data::format;

/// Returns the names of the data formats that the trainers of this program can read.
pub fn formats() -> Vec<&'static str> {
    shipped::formats()
}

/// Returns the names of what the trainers of this program can learn of the label of a table.
pub fn tasks() -> Vec<&'static str> {
    shipped::tasks()
}

/// Returns a digest of the files that `--data` names; `None` for rows that are generated, which the setting describes.
///
/// # Errors
/// If a file cannot be read.
#[cfg(feature = "cli")]
pub(crate) fn fingerprint(spec: &JobSpec) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
    shipped::fingerprint(spec)
}

#[cfg(feature = "cli")]
pub(crate) use shipped::inspect;

#[cfg(not(feature = "cli"))]
mod shipped {
    pub(super) const ALL: &[super::Entry] = &[];

    pub(super) const fn formats() -> Vec<&'static str> {
        Vec::new()
    }

    pub(super) const fn tasks() -> Vec<&'static str> {
        Vec::new()
    }
}

#[cfg(feature = "cli")]
mod shipped {
    use antdt_burn::DatasetError;
    use antdt_burn::data::format;
    use antdt_burn::data::inspect::{self, Inspection};
    use antdt_burn::data::{ColumnChoice, LabelTask};
    use antdt_burn::{Cache, DataSource, Device, Format, Model, WorkloadSpec, model};
    use antdt_core::registry::Settings;
    use antdt_core::{InvalidValue, Seed};

    use super::{Announce, DATA_EXPECTED, Entry, Opened, Workload};
    use crate::gpu;
    use crate::job::processor::Place;
    use crate::job::{DataSpec, JobSpec, Processor};
    use crate::resume;

    pub(super) fn formats() -> Vec<&'static str> {
        format::REGISTRY.names()
    }

    pub(super) fn tasks() -> Vec<&'static str> {
        LabelTask::NAMES.to_vec()
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
            is_told: true,
            open: Box::new(move |spec, announce| open(model, spec, announce)),
        })
    }

    fn source(spec: &JobSpec) -> Option<DataSource> {
        Some(match spec.data.as_ref()? {
            DataSpec::Path(path) => DataSource::Path(path.clone()),
            DataSpec::Synthetic { rows } => DataSource::Synthetic { rows: *rows },
            // Those are a program's own.
            DataSpec::Samples(_) => return None,
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
        workload.unpack_limit = spec.unpack_limit;
        // Of a worker, the job says where this one computes.
        let (place, _) = gpu::place(spec.processor(), 0)?;
        if let Place::Gpu(_) = place {
            let lacking = |why| InvalidValue::new("--device", spec.processor(), format!("cpu: {why}"));
            gpu::compiler().map_err(lacking)?;
        }
        workload.device = Device::pick(&Processor::from(&place).to_string())
            .map_err(|error| InvalidValue { field: "--device".to_owned(), ..error })?;
        workload.format = spec.format.as_deref().map(str::parse::<Format>).transpose()?;
        workload.columns = columns(spec)?;
        let trainer = workload.open(Seed(spec.seed), announce)?;
        held_out((trainer.train_samples(), trainer.eval_samples()), spec.eval_fraction)?;
        Ok(trainer)
    }

    /// What the settings say of the columns of a table.
    fn columns(spec: &JobSpec) -> Result<ColumnChoice, InvalidValue> {
        let names = |text: &Option<String>| -> Vec<String> {
            let names = text.iter().flat_map(|text| text.split(',')).map(str::trim);
            names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        Ok(ColumnChoice {
            label: spec.label.clone(),
            categorical: names(&spec.categorical),
            numeric: names(&spec.numeric),
            ignore: names(&spec.ignore),
            task: spec.task.as_deref().map(str::parse).transpose()?,
        })
    }

    /// Looks at the data that a job of these settings would train on.
    pub(crate) fn inspect(spec: &JobSpec, announce: Announce<'_>) -> Result<Inspection, DatasetError> {
        let path = match &spec.data {
            Some(DataSpec::Path(path)) => path.clone(),
            other => {
                let found = other.as_ref().map(ToString::to_string).unwrap_or_default();
                return Err(InvalidValue::new("FILE", found, "a file, a folder or a URL").into());
            }
        };
        let format = spec.format.as_deref().map(str::parse::<Format>).transpose()?;
        let cache = match spec.cache_dir.clone() {
            Some(folder) => Cache::at(folder),
            None => Cache::of_user(|name| std::env::var_os(name))?,
        };
        let cache = cache.with_unpack_limit(spec.unpack_limit);
        inspect::inspect(&path, format, &columns(spec)?, &cache, announce)
    }

    /// Refuses a share of so few rows that none is held out: then the training rows would be evaluated. `train` and `eval` are the
    /// numbers of samples of the workload.
    fn held_out((train, eval): (u64, u64), share: f64) -> Result<(), InvalidValue> {
        #[allow(clippy::cast_precision_loss, reason = "a share of it")]
        let none = share > 0.0 && train > 1 && eval == train && (train as f64 * share).round() < 1.0;
        if !none {
            return Ok(());
        }
        let expected = format!(
            "larger, to hold out one of {train} rows at least, or 0, to evaluate on those that are trained"
        );
        Err(InvalidValue::new("--eval-fraction", share, expected))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn settings_that_a_trainer_cannot_see_are_named() {
            let mut spec = JobSpec { workload: "mine".to_owned(), ..JobSpec::default() };
            for (name, text) in [("data", "a.csv"), ("eval-fraction", "0.1"), ("eval-every", "epoch")] {
                spec.set(name, text).unwrap();
            }
            let made =
                Workload::made(|| antdt_agent::PerSample::new(9, 1, |_, _: &[f32], _: &mut [f32]| 0.0));
            let lines = made.unused(&spec, 0);
            for (line, flag) in lines.iter().zip(["--data", "--eval-fraction", "--eval-every"]) {
                let begins = format!("{flag} does nothing: the trainer of --workload mine");
                assert!(line.starts_with(&begins), "{lines:?}");
            }
            assert_eq!((lines.len(), made.unused(&JobSpec::default(), 0).len()), (3, 0));
            let told = Workload::new(|_, _| Err("never opened".into()));
            assert_eq!(told.unused(&spec, 1), Vec::<String>::new());
        }

        #[test]
        fn a_share_that_holds_out_no_row_is_refused() {
            let error = held_out((30, 30), 0.01).unwrap_err().to_string();
            assert!(error.starts_with("--eval-fraction = 0.01: must be larger"), "{error}");
            // Nothing is asked for, some rows are held out, and as many as stay.
            for (counts, share) in [((30, 30), 0.0), ((29, 1), 0.03), ((2, 2), 0.5)] {
                held_out(counts, share).unwrap();
            }
        }
    }
}
