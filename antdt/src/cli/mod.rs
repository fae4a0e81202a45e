//! The command line: text in, a [`Command`] out. Nothing is run here.
//!
//! [`parse`] is a function of the arguments, the environment and the job file, so that every rule can be tested without
//! a process. Flags are spelt with dashes or underscores, as torchrun's. A setting is taken from the command line, else
//! from `ANTDT_<SETTING>` (but for `--data`, which has no variable), else from the job file, else it has its default.

use std::ffi::OsString;
use std::path::PathBuf;

use antdt_controller::policy;
use antdt_core::InvalidValue;
use antdt_core::text::beginning;

use crate::job::JobSpec;

mod config;
mod flags;
mod job_file;
mod simulate;

#[cfg(test)]
mod tests;

pub use simulate::{Changes, Diff, Sim, WhatIf};

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Command {
    /// `antdt run`: train.
    Run(Box<JobSpec>),
    /// `antdt data synth`: write generated clicks to a file.
    DataSynth(DataSynth),
    /// `antdt whatif`: compare policies in a simulated job.
    WhatIf(Box<WhatIf>),
    /// `antdt sim`: simulate a scenario from many seeds.
    Sim(Sim),
    /// `antdt sim diff`: show where two traces part.
    Diff(Diff),
    /// `antdt status`: show where a running job stands. Its run directory, if one is named.
    Status(Option<PathBuf>),
    /// `antdt stop`: end a running job in order. Its run directory, if one is named.
    Stop(Option<PathBuf>),
    /// `antdt worker`: be a worker of a running job. Started by `antdt run` only, told everything in its environment.
    Worker,
    /// `antdt server`: be a parameter server of a running job. Started like a worker.
    Server,
    /// `antdt exec -- PROGRAM`: become the program, but end with the process that launched it.
    Exec(Vec<String>),
    /// `--help`, `--version`, `antdt config`, `antdt policies`: print this and exit with 0.
    Print(String),
}

/// `antdt data synth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSynth {
    /// Rows to write.
    pub rows: u64,
    /// What they are made from.
    pub seed: u64,
    /// The file; compressed if its name ends in `.gz`.
    pub out: PathBuf,
}

/// Why a command line is refused: one line that names the flag and the remedy, after "error: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// The line.
    pub message: String,
}

impl CliError {
    /// The exit code of a refused command line.
    pub const EXIT_CODE: u8 = 2;

    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl From<InvalidValue> for CliError {
    fn from(error: InvalidValue) -> Self {
        Self::new(error.to_string())
    }
}

/// The arguments of this process as text.
///
/// # Errors
/// If one is not UTF-8: settings travel to other processes as text.
pub fn words(args: impl IntoIterator<Item = OsString>) -> Result<Vec<String>, CliError> {
    let text = |(index, arg): (usize, OsString)| {
        arg.into_string().map_err(|arg| {
            let (number, shown) = (index + 1, beginning(&arg.to_string_lossy()));
            CliError::new(format!(
                "argument {number}, `{shown}`, is not UTF-8; rename the file that it names"
            ))
        })
    };
    args.into_iter().enumerate().map(text).collect()
}

/// Reads a command line.
///
/// `args` are the arguments after the program's name. `env` is asked for variables by name. The only file that is read
/// is the one that `--job` names. The settings of `run` are validated together, those of `config show` one by one.
///
/// # Errors
/// If anything is unknown, missing or impossible.
pub fn parse<I, E>(args: I, env: E) -> Result<Command, CliError>
where
    I: IntoIterator<Item = String>,
    E: Fn(&str) -> Option<String>,
{
    let args: Vec<String> = args.into_iter().collect();
    let is_run = args.first().is_some_and(|command| command == "run");
    let matches = match flags::matches(args) {
        Ok(matches) => matches,
        Err(error) => return flags::explain(&error, is_run),
    };
    match matches.subcommand() {
        Some(("run", run)) => {
            let spec = config::resolve(run, &env)?.spec;
            spec.validate()?;
            Ok(Command::Run(Box::new(spec)))
        }
        Some(("policies", _)) => Ok(Command::Print(policies())),
        Some(("config", config)) => config::print(config, &env).map(Command::Print),
        Some(("data", data)) => match data.subcommand() {
            Some(("synth", synth)) => flags::data_synth(synth).map(Command::DataSynth),
            _ => Err(CliError::new("data: what about it? try `antdt data synth --help`")),
        },
        Some(("whatif", whatif)) => simulate::whatif(whatif).map(|whatif| Command::WhatIf(Box::new(whatif))),
        Some(("sim", sim)) => match sim.subcommand() {
            Some(("diff", diff)) => Ok(Command::Diff(simulate::diff(diff))),
            _ => simulate::sim(sim).map(Command::Sim),
        },
        Some(("status", status)) => Ok(Command::Status(folder(status))),
        Some(("stop", stop)) => Ok(Command::Stop(folder(stop))),
        Some(("worker", _)) => Ok(Command::Worker),
        Some(("server", _)) => Ok(Command::Server),
        Some(("exec", exec)) => {
            Ok(Command::Exec(exec.get_many("program").into_iter().flatten().cloned().collect()))
        }
        _ => Err(CliError::new("no command given; try `antdt --help`")),
    }
}

/// Every policy that is known and its settings, as a job file has them.
fn policies() -> String {
    let mut text = String::new();
    for entry in policy::entries() {
        text += &format!("{}: {}\n", entry.name, entry.about);
        let settings = (entry.settings)();
        if !settings.is_empty() {
            text += &format!("  [policy.{}]\n", entry.name);
        }
        for setting in settings {
            // A number as a number, everything else as a text.
            let quoted = setting.default.parse::<f64>().is_err();
            let quote = if quoted { "\"" } else { "" };
            text += &format!("  {} = {quote}{}{quote}  # {}\n", setting.name, setting.default, setting.about);
        }
    }
    text
}

/// The run directory that is named.
fn folder(matches: &clap::ArgMatches) -> Option<PathBuf> {
    matches.get_one::<String>("dir").map(PathBuf::from)
}
