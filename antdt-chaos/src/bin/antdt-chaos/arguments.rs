//! The command line: `antdt-chaos [FLAGS] -- antdt run [FLAGS OF antdt run]`.

use std::path::PathBuf;
use std::time::Duration;

use antdt_chaos::{ChaosKind, ChaosPlan, ChaosRun, JobSettings, settings::SettingsError};
use antdt_core::InvalidValue;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command as Clap};

/// Words with which a command of a job begins.
const JOB: &str = "the command of a job, such as `-- antdt run --data FILE`";

/// What the program is to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Print this text.
    Print(String),
    /// Run this job.
    Run(Box<ChaosRun>),
}

/// Reason why a command line is refused, in one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("{0}")]
    Grammar(String),
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

fn grammar() -> Clap {
    let kinds = ChaosKind::ALL.map(ChaosKind::name).join(", ");
    let flag = |name: &'static str, unit: &'static str, default: &'static str, help: String| {
        Arg::new(name).long(name).value_name(unit).default_value(default).allow_hyphen_values(true).help(help)
    };
    Clap::new("antdt-chaos")
        .about("Run a job on this machine while things go wrong, and check that it trains every sample once")
        .version(env!("CARGO_PKG_VERSION"))
        .override_usage("antdt-chaos [FLAGS] -- antdt run [FLAGS OF antdt run]")
        .after_help(
            "The exit code is 1 if a sample is missing or trained twice, if the job stands still or a master ends by itself. A fault \
             that this machine cannot have is skipped, with the reason. DIR/chaos.json has the faults, DIR/job.log what the job says.",
        )
        .arg(flag("seed", "N", "0", "seed of the schedule of faults: the same one gives the same schedule".into()))
        .arg(flag("faults", "KINDS", "all", format!("all, or kinds with commas between: {kinds}")))
        .arg(flag("mtbf", "DURATION", "15s", "mean time between two faults".into()))
        .arg(flag("for", "DURATION", "2m", "how long faults go on once the job trains".into()))
        .arg(flag("patience", "DURATION", "2m", "how long the job may train nothing".into()))
        .arg(
            Arg::new("program")
                .value_name("JOB")
                .last(true)
                .num_args(1..)
                .required(true)
                .help("the command that runs the job: antdt run and its flags"),
        )
}

/// Reads the arguments, the first of which is the name of this program, and asks the job's program for the job's settings.
pub(crate) fn parse(words: Vec<String>) -> Result<Order, ArgumentError> {
    match grammar().try_get_matches_from(words) {
        Ok(matches) => chaos(&matches).map(|chaos| Order::Run(Box::new(chaos))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Order::Print(error.to_string())),
            _ => Err(ArgumentError::Grammar(refusal(&error))),
        },
    }
}

/// One line for what the grammar refuses.
fn refusal(error: &clap::Error) -> String {
    let what = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::UnknownArgument => format!(
            "{what} is not a flag of antdt-chaos; a flag of the job belongs after `--`, such as `-- antdt run {what} ...`"
        ),
        ErrorKind::MissingRequiredArgument => format!("there is no job; add {JOB}"),
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    }
}

fn chaos(matches: &ArgMatches) -> Result<ChaosRun, ArgumentError> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let duration = |name: &str| -> Result<Duration, InvalidValue> {
        let refused = || InvalidValue::new(format!("--{name}"), text(name), "a duration such as 15s or 2m");
        let found = humantime::parse_duration(&text(name)).map_err(|_| refused())?;
        if found.is_zero() { Err(refused()) } else { Ok(found) }
    };
    let seed = text("seed");
    let plan = ChaosPlan {
        seed: seed
            .parse()
            .map_err(|_| InvalidValue::new("--seed", &seed, "a whole number from 0 to below 2^64"))?,
        kinds: ChaosKind::list("--faults", &text("faults"))?,
        mtbf: duration("mtbf")?,
        lasting: duration("for")?,
    };
    let patience = duration("patience")?;
    let words: Vec<String> = matches.get_many::<String>("program").into_iter().flatten().cloned().collect();
    let [program, run, arguments @ ..] = &words[..] else {
        return Err(ArgumentError::Grammar(format!("`--` = one word: say {JOB}")));
    };
    if run != "run" {
        let why = format!("`{program} {run}` after `--`: the command of a job is `{program} run`");
        return Err(ArgumentError::Grammar(why));
    }
    let program = program_of(program)?;
    let JobSettings { spec, given } = JobSettings::ask(&program, arguments)?;
    if spec.resume.is_some() {
        let why = "--resume: a job under chaos begins anew; leave it out";
        return Err(ArgumentError::Grammar(why.to_owned()));
    }
    Ok(ChaosRun { plan, patience, program, arguments: arguments.to_vec(), spec, given })
}

/// The program of this name in the path, or else beside this one.
fn program_of(name: &str) -> Result<PathBuf, ArgumentError> {
    which::which(name).or_else(|error| {
        let own = std::env::current_exe().ok();
        let beside = own.and_then(|own| Some(own.parent()?.join(name))).filter(|program| program.is_file());
        beside.ok_or_else(|| ArgumentError::Grammar(format!("`{name}` cannot be started: {error}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let words = std::iter::once("antdt-chaos").chain(line.split_whitespace()).map(str::to_owned);
        parse(words.collect()).unwrap_err().to_string()
    }

    #[test]
    fn the_grammar_is_sound() {
        grammar().debug_assert();
    }

    #[test]
    fn a_flag_of_the_job_before_the_dashes_is_refused_with_its_place() {
        let error = refused("--report-dir x -- antdt run --data synthetic:9");
        assert!(
            error.contains("--report-dir is not a flag of antdt-chaos; a flag of the job belongs after `--`"),
            "{error}"
        );
        assert!(refused("--seed 7").contains("-- antdt run --data FILE"));
        assert!(refused("--seed -1 -- antdt run").contains("--seed = -1"));
        assert!(refused("--mtbf 0s -- antdt run").contains("--mtbf = 0s"));
    }
}
