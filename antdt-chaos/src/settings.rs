//! [`JobSettings`]: the settings of a job, as the job's own program resolves them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use antdt::job::JobSpec;
use antdt_core::InvalidValue;
use serde_json::{Map, Value as Json};

/// Settings that decide which faults a job can have, and what it should have trained.
const NEEDED: [&str; 12] = [
    "nproc-per-node",
    "servers",
    "sync",
    "workload",
    "optimizer",
    "epochs",
    "emulate-network",
    "report-dir",
    "run-dir",
    "job-id",
    "resume",
    "program",
];

/// Key under which a setting with tables has the name of its part.
const PART: &str = "name";

/// Origin of a value that was not given.
const DEFAULT: &str = "default";

/// The settings of a job that chaos needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSettings {
    /// The settings; those that chaos does not need have their defaults.
    pub spec: JobSpec,
    /// Names of the settings that were given by a flag, a variable or a job file.
    pub given: BTreeSet<&'static str>,
}

/// Reason why the settings of a job are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The program cannot be started.
    #[error("`{program}` cannot be started: {source}")]
    Start {
        /// Path of the program.
        program: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The program refuses the settings; its own words.
    #[error("{0}")]
    Refused(String),
    /// The arguments of the job ask for help.
    #[error("the command after `--` asks for help; leave that out")]
    Help,
    /// The program does not print settings.
    #[error("`{0} config show --json --origin` prints no settings; name a program with `antdt run`")]
    Unknown(String),
    /// A value of the settings is none here.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
}

impl JobSettings {
    /// Asks `program` for the settings of the job that `program run ARGUMENTS` runs.
    ///
    /// # Errors
    /// If the program cannot be started, or refuses the arguments.
    pub fn ask(program: &Path, arguments: &[String]) -> Result<Self, SettingsError> {
        let name = program.display().to_string();
        let mut command = Command::new(program);
        command.args(["config", "show", "--json", "--origin"]).args(arguments).stdin(Stdio::null());
        let output = match command.output() {
            Ok(output) => output,
            Err(source) => return Err(SettingsError::Start { program: name, source }),
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().next().unwrap_or_default();
            return Err(match line.strip_prefix("error: ") {
                Some(why) => SettingsError::Refused(why.to_owned()),
                None => SettingsError::Unknown(name),
            });
        }
        match serde_json::from_slice(&output.stdout) {
            Ok(Json::Object(settings)) => Self::read(&settings),
            _ if asks_for_help(arguments) => Err(SettingsError::Help),
            _ => Err(SettingsError::Unknown(name)),
        }
    }

    fn read(settings: &Map<String, Json>) -> Result<Self, SettingsError> {
        let mut spec = JobSpec::default();
        for key in NEEDED {
            let setting = settings.get(key).unwrap_or(&Json::Null);
            // A setting with tables, such as `workload.counting.parameters`, has its own value below them.
            let value = setting.get("value").or_else(|| setting.get(PART)?.get("value"));
            match value {
                None | Some(Json::Null) => {}
                Some(value) => spec.put(key, value)?,
            }
        }
        let given = JobSpec::keys().filter(|key| settings.get(*key).is_some_and(is_given)).collect();
        Ok(Self { spec, given })
    }
}

/// Returns whether one of the values below here has an origin that is not the default.
fn is_given(setting: &Json) -> bool {
    match setting.get("origin").and_then(Json::as_str) {
        Some(origin) => origin != DEFAULT,
        None => setting.as_object().is_some_and(|parts| parts.values().any(is_given)),
    }
}

fn asks_for_help(arguments: &[String]) -> bool {
    arguments.iter().any(|word| word == "--help" || word == "-h")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_a_program_prints_are_read_with_their_origins() {
        let printed = json!({
            "nproc-per-node": {"value": 3, "origin": "flag --nproc-per-node"},
            "servers": {"value": 0, "origin": "default"},
            "sync": {"value": "local-sgd=4", "origin": "default"},
            "workload": {
                "name": {"value": "counting", "origin": "job.toml:2"},
                "counting": {"parameters": {"value": 1300, "origin": "job.toml:4"}},
            },
            "optimizer": {"value": "sums", "origin": "variable ANTDT_OPTIMIZER"},
            "policy": {"nd": {"drain": {"value": true, "origin": "job.toml:7"}}},
            "run-dir": {"value": null, "origin": "default"},
            "a-setting-of-its-own": {"value": 7, "origin": "flag"},
        });
        let Json::Object(printed) = printed else { unreachable!("it is an object") };
        let JobSettings { spec, given } = JobSettings::read(&printed).unwrap();
        assert_eq!((spec.workers, spec.servers, spec.run_dir), (3, 0, None));
        assert_eq!((spec.workload.as_str(), spec.optimizer.as_deref()), ("counting", Some("sums")));
        assert!(spec.sync.capabilities().averages_models());
        assert_eq!(given, BTreeSet::from(["nproc-per-node", "workload", "optimizer", "policy"]));
    }

    #[test]
    fn a_program_without_settings_is_refused_with_the_remedy() {
        let error = JobSettings::ask(Path::new("/bin/true"), &[]).unwrap_err().to_string();
        assert!(error.contains("name a program with `antdt run`"), "{error}");
        let error = JobSettings::ask(Path::new("/no/such/program"), &[]).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
