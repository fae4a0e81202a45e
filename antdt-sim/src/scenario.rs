//! Jobs and what they meet, as files.
//!
//! A scenario is TOML. What a job is stands under `[job]`, by the names and text forms of `antdt run`; `[compute]`,
//! `[[straggler]]`, `[network]`, `[scheduler]`, `[[fault]]`, `[[rate]]` and `[chaos]` say what it meets, `[expect]` what
//! must come of it. All but `[compute]` may be left out. The scenarios in the folder `scenarios` of this crate show every
//! key in use.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use antdt_controller::policy::UnknownPolicy;
use antdt_core::text::located;
use antdt_core::{InvalidValue, Seed};

use crate::Setup;
use crate::model::Models;
use crate::model::scheduler::SpotError;
use crate::read;
use crate::replay::ReplayError;

mod expect;
mod job;
mod models;

#[cfg(test)]
mod tests;

pub use expect::{Ending, Expectation};

use models::{ModelsSpec, ScenarioFile};

/// A scenario that does not read or cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The scenario itself cannot be read.
    #[error("{0}; name a scenario (.toml)")]
    Unreadable(io::Error),
    /// A recording that it names cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is no TOML, or has a key that is not known.
    #[error("{0}")]
    Toml(String),
    /// A value cannot be.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// There is no such policy.
    #[error("job.policy: {0}")]
    Policy(#[from] UnknownPolicy),
    /// A recording does not read.
    #[error("{path}: {error}")]
    Replay {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        error: ReplayError,
    },
    /// A market cannot be.
    #[error(transparent)]
    Market(#[from] SpotError),
}

/// A job and what it meets.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What it shows: the comment at the head of the file.
    pub about: String,
    /// The job.
    pub setup: Setup,
    /// Name of its policy.
    pub policy: String,
    /// What must come of it.
    pub expect: Expectation,
    models: ModelsSpec,
}

impl Scenario {
    /// Reads a file, and the recordings that it names, whose paths begin at its folder.
    ///
    /// # Errors
    /// If a file cannot be read, or something in one of them cannot be; with the field and what would be accepted.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let read = |path: &Path| File::open(path).and_then(|file| read::text(BufReader::new(file)));
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&read(path).map_err(ScenarioError::Unreadable)?, |file| {
            let path = folder.join(file);
            read(&path).map_err(|error| ScenarioError::Read { path, error })
        })
    }

    /// Reads a text. `files` gives the text of each recording that it names.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(
        text: &str,
        files: impl FnMut(&Path) -> Result<String, ScenarioError>,
    ) -> Result<Self, ScenarioError> {
        let file: ScenarioFile = toml::from_str(text)
            .map_err(|error| ScenarioError::Toml(located(text, error.span(), error.message())))?;
        let (setup, policy) = file.job.resolve()?;
        let expect = file.expect.clone();
        expect.validate()?;
        let models = ModelsSpec::resolve(file, files)?;
        let scenario = Self { about: about(text), setup, policy, expect, models };
        // What cannot be built is refused now.
        scenario.build(Seed(0))?;
        Ok(scenario)
    }

    /// The job and what it meets, with all randomness from `seed`.
    ///
    /// # Errors
    /// If the setup, which may have been changed since it was read, cannot be.
    pub fn build(&self, seed: Seed) -> Result<(Setup, String, Models), ScenarioError> {
        job::check(&self.setup, &self.policy)?;
        let setup = Setup { seed, ..self.setup.clone() };
        let models = self.models.build(&setup)?;
        Ok((setup, self.policy.clone(), models))
    }
}

/// The lines of comment before anything else, an empty one between two paragraphs.
fn about(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    lines.map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned()
}
