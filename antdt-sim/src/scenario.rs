//! [`Scenario`]: a job and its conditions, read from a file.
//!
//! A scenario is TOML. The table `[job]` has the settings of the job, with the names and text forms of `antdt
//! run`; `[compute]`, `[[straggler]]`, `[network]`, `[scheduler]`, `[[fault]]`, `[[rate]]` and `[chaos]`
//! describe its conditions, and `[expect]` the required result. All tables but `[compute]` may be left out.
//! The scenarios in the folder `scenarios` of this crate show each table in use; these keys are in none of
//! them:
//!
//! ```
//! # use antdt_sim::Scenario;
//! let text = r#"
//! [job]
//! epochs = 2               # times that all samples are trained on
//! shard-len = 4096         # samples that a worker fetches at once
//! control-tick = "5s"      # from one decision of the policy to the next
//! dry-run = true           # decisions are written down and not carried out
//!
//! [compute]
//! speed = 1000.0
//! fixed = "2ms"            # time of a batch whatever its size
//!
//! [[straggler]]
//! worker = 1
//! slow = 3.0
//! from = "10s"
//! to = "1m"                # then it is as fast as before
//!
//! [network]
//! algorithm = "ring"       # of all-reduces, whatever is cheapest
//! nic = "unlimited"        # messages to one process at one time do not wait for each other
//!
//! [[fault]]
//! at = "20s"
//! kind = "exit"            # the process ends by itself, also in [[rate]]
//! node = "worker-2"
//! code = 75
//! "#;
//! # Scenario::parse(text, |_| unreachable!("it names no file"))?;
//! # Ok::<(), antdt_sim::scenario::ScenarioError>(())
//! ```
//!
//! And `devices = { file = "gavel.json", model = "ResNet-18", of = ["v100", "k80"] }` takes the rates of one model from a table of
//! many, such as Gavel's.

use std::io;
use std::path::{Path, PathBuf};

use antdt_core::registry::BuildError;
use antdt_core::text::located;
use antdt_core::{InvalidValue, Seed};
use serde::de::DeserializeOwned;

use crate::Setup;
use crate::model::Models;
use crate::model::scheduler::SpotError;
use crate::read;
use crate::recording::{Open, open_plain};
use crate::replay::ReplayError;

mod expect;
mod faults;
mod job;
mod models;

#[cfg(test)]
mod tests;

pub use expect::{Ending, Expectation};

use models::{ModelsSpec, ScenarioFile};

/// Reason why a scenario cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The scenario file cannot be read.
    #[error("{0}; name a scenario (.toml)")]
    Unreadable(io::Error),
    /// A recording that the scenario names cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// Path of the recording.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The scenario is not TOML, or has an unknown key; the text says where.
    #[error("{0}")]
    Toml(String),
    /// A value in the scenario is invalid.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// The scenario names a policy that does not exist, or gives the policy an invalid setting.
    #[error("job.policy: {0}")]
    Policy(#[from] BuildError),
    /// A file of slowdowns that the scenario names cannot be read.
    #[error("{path}: {error}")]
    Replay {
        /// Path of the file of slowdowns.
        path: PathBuf,
        /// Reason why the file cannot be parsed.
        error: ReplayError,
    },
    /// The changes of a spot market are impossible.
    #[error(transparent)]
    Market(#[from] SpotError),
}

/// A job with the conditions that it is simulated under, read from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Description of what the scenario shows: the comment at the head of the file.
    pub about: String,
    /// Settings of the job.
    pub setup: Setup,
    /// Name of the job's policy.
    pub policy: String,
    /// Result that the scenario expects.
    pub expect: Expectation,
    models: ModelsSpec,
}

impl Scenario {
    /// Reads a scenario file, and the recordings that it names by paths relative to its folder.
    ///
    /// # Errors
    /// If a file cannot be read or parsed; the error has the field and what would be accepted.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        Self::read_with(path, open_plain)
    }

    /// Reads a scenario as [`read`](Self::read) does; `open` opens the recordings, so that they may be
    /// compressed.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_with(path: &Path, open: Open) -> Result<Self, ScenarioError> {
        Self::parse(&text(path)?, beside(path, open))
    }

    /// Parses the text of a scenario. `files` returns the text of each recording that it names.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(
        text: &str,
        files: impl FnMut(&Path) -> Result<String, ScenarioError>,
    ) -> Result<Self, ScenarioError> {
        let mut file: ScenarioFile = toml(text)?;
        let (setup, policy) = file.job.take().unwrap_or_default().resolve()?;
        let expect = std::mem::take(&mut file.expect);
        expect.validate()?;
        let models = ModelsSpec::resolve(file, files)?;
        let scenario = Self { about: about(text), setup, policy, expect, models };
        // What cannot be built is refused now.
        scenario.build(Seed(0))?;
        Ok(scenario)
    }

    /// Returns the job's settings, the name of its policy, and its models, with all randomness derived from
    /// `seed`.
    ///
    /// # Errors
    /// If the settings, which may have been changed since the scenario was read, are invalid.
    pub fn build(&self, seed: Seed) -> Result<(Setup, String, Models), ScenarioError> {
        job::check(&self.setup, &self.policy)?;
        let setup = Setup { seed, ..self.setup.clone() };
        let models = self.models.build(&setup)?;
        Ok((setup, self.policy.clone(), models))
    }
}

fn toml<T: DeserializeOwned>(text: &str) -> Result<T, ScenarioError> {
    ::toml::from_str(text).map_err(|error| ScenarioError::Toml(located(text, error.span(), error.message())))
}

/// The text of a scenario.
fn text(path: &Path) -> Result<String, ScenarioError> {
    open_plain(path).and_then(read::text).map_err(ScenarioError::Unreadable)
}

/// The texts of the recordings that a scenario names.
fn beside(path: &Path, open: Open) -> impl FnMut(&Path) -> Result<String, ScenarioError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    move |file| {
        let path = folder.join(file);
        open(&path).and_then(read::text).map_err(|error| ScenarioError::Read { path, error })
    }
}

/// The lines of comment before anything else, an empty one between two paragraphs.
fn about(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    lines.map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned()
}
