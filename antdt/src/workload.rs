//! What can be trained by name: the value of `--workload`.
//!
//! The models of `antdt-burn` ship, behind the feature `cli`; a program adds trainers of its own to the [`REGISTRY`]. The master opens
//! the trainer too, to count the samples and to learn the shape of the parameters before a process is started.

use std::error::Error;
use std::fmt::{self, Display};

use antdt_agent::Trainer;
use antdt_core::registry::{Named, Registry};

use crate::job::JobSpec;

/// What is told of work that takes its time before the job begins, such as a file that is copied.
pub type Announce<'a> = &'a mut dyn FnMut(&dyn Display);

/// A trainer, or why it cannot be had.
pub type Opened = Result<Box<dyn Trainer>, Box<dyn Error + Send + Sync>>;

/// A registered trainer.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its name on the command line, in job files and in reports.
    pub name: &'static str,
    /// What is trained on what, in one line.
    pub about: &'static str,
    /// Whether a job without `--data` is refused.
    pub needs_data: bool,
    /// Opens it: the same in every process of a job.
    pub open: fn(&JobSpec, Announce<'_>) -> Opened,
}

impl Entry {
    /// A trainer that can do without `--data`.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        open: fn(&JobSpec, Announce<'_>) -> Opened,
    ) -> Self {
        Self { name, about, needs_data: false, open }
    }
}

impl Named for Entry {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("about", &self.about).finish_non_exhaustive()
    }
}

/// Every trainer that is known.
pub static REGISTRY: Registry<Entry> = Registry::new("workload", shipped::ALL);

/// Returns the name of the first one, which is the default; empty if none is known.
pub fn default_name() -> String {
    REGISTRY.names().first().copied().unwrap_or_default().to_owned()
}

/// Whether a job that trains this is refused without `--data`; an unknown name is refused anyway.
pub(crate) fn needs_data(name: &str) -> bool {
    REGISTRY.find(name).is_ok_and(|entry| entry.needs_data)
}

/// Returns the names of the formats that the trainers which ship can read.
pub fn formats() -> Vec<&'static str> {
    shipped::formats()
}

#[cfg(not(feature = "cli"))]
mod shipped {
    pub(super) const ALL: &[super::Entry] = &[];

    pub(super) const fn formats() -> Vec<&'static str> {
        Vec::new()
    }
}

#[cfg(feature = "cli")]
mod shipped {
    use antdt_burn::data::format;
    use antdt_burn::{Cache, ClickTrainer, Format, Model, UnpackNotice, WorkloadSpec, model};
    use antdt_core::{InvalidValue, Seed};

    use super::{Announce, Entry, Opened};
    use crate::job::{DataSpec, JobSpec};

    pub(super) fn formats() -> Vec<&'static str> {
        format::REGISTRY.iter().map(|format| format.name()).collect()
    }

    /// One for each model of `antdt-burn`.
    pub(super) const ALL: &[Entry] = &{
        const MODELS: &[Model] = model::REGISTRY;
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
        Entry { name: model.name, about: model.about, needs_data: true, open }
    }

    fn open(spec: &JobSpec, announce: Announce<'_>) -> Opened {
        let data = match spec.data.as_ref() {
            Some(DataSpec::Path(path)) => antdt_burn::DataSource::Path(path.clone()),
            Some(DataSpec::Synthetic { rows }) => antdt_burn::DataSource::Synthetic { rows: *rows },
            None => return Err(InvalidValue::new("--data", "(nothing)", "given for this workload").into()),
        };
        let mut workload = WorkloadSpec::new(spec.workload.parse()?, data);
        workload.eval_fraction = spec.eval_fraction;
        workload.cache = spec.cache_dir.clone().map(Cache::at);
        workload.format = spec.format.as_deref().map(str::parse::<Format>).transpose()?;
        let mut announce = |notice: &UnpackNotice| announce(notice);
        let trainer = ClickTrainer::open_announced(&workload, Seed(spec.seed), &mut announce)?;
        Ok(Box::new(trainer))
    }
}
