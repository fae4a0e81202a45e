//! `antdt chaos`.

use std::path::PathBuf;
use std::time::Duration;

use antdt_core::InvalidValue;
use clap::{Arg, ArgMatches, Command as Clap};

use super::{CliError, config, flags, simulate};
use crate::chaos::{ChaosKind, ChaosPlan, ChaosRun};
use crate::job::JobSpec;

pub(super) fn grammar() -> Clap {
    let kinds = ChaosKind::ALL.map(ChaosKind::name).join(", ");
    let flag = |name: &'static str, unit: &'static str, default: &'static str, help: String| {
        Arg::new(name).long(name).value_name(unit).default_value(default).allow_hyphen_values(true).help(help)
    };
    Clap::new("chaos")
        .about("Run a job on this machine while things go wrong, and check that it trains every sample once")
        .override_usage("antdt chaos [FLAGS] -- antdt run [FLAGS OF antdt run]")
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

/// Reads the command of the job, too.
pub(super) fn chaos(
    matches: &ArgMatches,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<ChaosRun, CliError> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let duration = |name: &str| -> Result<Duration, CliError> {
        let refused = || InvalidValue::new(format!("--{name}"), text(name), "a duration such as 15s or 2m");
        let found = humantime::parse_duration(&text(name)).map_err(|_| refused())?;
        if found.is_zero() { Err(refused().into()) } else { Ok(found) }
    };
    let seed =
        text("seed").parse().map_err(|_| InvalidValue::new("--seed", text("seed"), simulate::WHOLE_64))?;
    let plan = ChaosPlan {
        seed,
        kinds: ChaosKind::list("--faults", &text("faults"))?,
        mtbf: duration("mtbf")?,
        lasting: duration("for")?,
    };
    let words: Vec<String> = matches.get_many::<String>("program").into_iter().flatten().cloned().collect();
    let [program, run, arguments @ ..] = &words[..] else {
        return Err(CliError::new(
            "`--` = one word: say the command of a job, such as `-- antdt run --data FILE`",
        ));
    };
    if run != "run" {
        return Err(CliError::new(format!(
            "`{program} {run}` after `--`: the command of a job is `{program} run`"
        )));
    }
    let job = &words[1..];
    let job = flags::matches(job.iter().cloned()).map_err(|error| match flags::explain(&error, job) {
        Err(error) => error,
        Ok(_) => CliError::new("the command after `--` asks for help; leave that out"),
    })?;
    let Some(("run", run)) = job.subcommand() else {
        return Err(CliError::new("the command after `--` is no job"));
    };
    let resolved = config::resolve(run, env)?;
    if resolved.spec.resume.is_some() {
        return Err(CliError::new("--resume: a job under chaos begins anew; leave it out"));
    }
    // It has a report folder, whether one is given or not.
    let report_dir = resolved.spec.report_dir.clone().or_else(|| Some(PathBuf::from("report")));
    JobSpec { report_dir, ..resolved.spec.clone() }.validate()?;
    let given = resolved.given();
    Ok(ChaosRun {
        plan,
        patience: duration("patience")?,
        program: program_of(program)?,
        arguments: arguments.to_vec(),
        spec: resolved.spec,
        given,
    })
}

/// The program: this one if it has that name, so that it need not be on the path.
fn program_of(name: &str) -> Result<PathBuf, CliError> {
    let own = std::env::current_exe().ok();
    if let Some(own) = own.filter(|own| own.file_name().is_some_and(|file| file == name)) {
        return Ok(own);
    }
    which::which(name).map_err(|error| CliError::new(format!("`{name}` cannot be started: {error}")))
}
