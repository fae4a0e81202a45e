//! The flags, from one table.

use std::path::PathBuf;

use antdt_core::InvalidValue;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command as Clap};

use super::{CliError, Command, DataSynth, job_file, simulate};
use crate::job::JobSpec;
use crate::job::spec::nearest;

/// A setting of a job as a flag: its name, what stands for its value (empty: none is needed), its help.
const FLAGS: [(&str, &str, &str); JobSpec::SETTINGS.len()] = [
    ("nproc-per-node", "N", "worker processes [default: 1]"),
    ("servers", "N", "parameter servers, with --sync ps-bsp or ps-asp [default: 0]"),
    ("sync", "MODE", "how gradients are combined: allreduce, ps-bsp, ps-asp [default: allreduce]"),
    ("policy", "NAME", "what is done about stragglers: none, nd [default: nd]"),
    ("workload", "NAME", "built-in model: deepfm, xdeepfm [default: deepfm]"),
    ("data", "SOURCE", "file, folder, or synthetic:ROWS"),
    ("format", "NAME", "format of the data: criteo, adult [default: detected]"),
    ("eval-fraction", "SHARE", "share of the rows held out for evaluation [default: 0]"),
    ("epochs", "N", "passes over the data [default: 1]"),
    ("global-batch-size", "SAMPLES", "samples per step over all workers [default: 256]"),
    ("seed", "N", "the number all randomness comes from [default: 0]"),
    ("sharding", "KIND", "dynamic (from the ledger) or static (equal shares) [default: dynamic]"),
    ("shard-len", "SAMPLES", "samples per shard [default: derived]"),
    ("max-quarantined", "SAMPLES", "unreadable samples that the job may go on without [default: 0]"),
    ("learning-rate", "RATE", "step size [default: the workload's]"),
    ("emulate-speed", "SAMPLES_PER_S", "let every worker appear this fast; real gradients, then a wait"),
    ("straggler", "SPEC", "worker=N,slow=FACTOR[,from=10s][,to=60s][,restart=keeps|cures]; may be repeated"),
    ("max-restarts", "N", "times one node is started again before the job fails [default: 3]"),
    ("report-dir", "DIR", "folder for report.json and report.html"),
    ("record", "FILE", "write down all that the master is told and does, to be replayed and simulated"),
    ("master-addr", "ADDR", "address the master listens on [default: 127.0.0.1]"),
    ("master-port", "PORT", "port the master listens on, 0 for a free one [default: 0]"),
    ("job-id", "NAME", "name of the job [default: made up]"),
    ("control-tick", "TIME", "how often the policy is asked [default: 200ms]"),
    ("heartbeat", "TIME", "how often a node says it is alive [default: 500ms]"),
    ("silence-limit", "TIME", "silence after which a node counts as lost [default: 10s]"),
    ("collective-timeout", "TIME", "longest wait for a peer in a collective operation [default: 30s]"),
    (
        "algorithm",
        "NAME",
        "how all-reduces are done: auto, ring, direct, halving-doubling, ... [default: auto]",
    ),
    ("quiet", "", "no progress line, no table"),
    ("log", "FILTER", "what is logged: error, warn, info, debug, trace, or per module [default: warn]"),
    ("log-format", "KIND", "text or json [default: text]"),
];

/// The grammar.
fn grammar() -> Clap {
    let mut run = Clap::new("run")
        .about("Train, with every process on this machine")
        .override_usage("antdt run --data SOURCE [FLAGS]\n       antdt run [FLAGS] -- PROGRAM [ARGS]")
        .after_help(
            "A flag may also be spelt with underscores. Without the flag, ANTDT_<FLAG> counts \
             (ANTDT_GLOBAL_BATCH_SIZE=512; not for --data), then the key in the --job file, then the default.",
        )
        .arg(Arg::new("job").long("job").value_name("FILE").help("TOML file with the same settings as keys"));
    for (name, value, help) in FLAGS {
        let action = match name {
            "straggler" => ArgAction::Append,
            _ => ArgAction::Set,
        };
        let mut arg = Arg::new(name).long(name).help(help).action(action).allow_hyphen_values(true);
        arg = if value.is_empty() {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").hide_possible_values(true)
        } else {
            arg.value_name(value)
        };
        run = run.arg(arg);
    }
    run = run.arg(
        Arg::new("program")
            .value_name("PROGRAM ARGS")
            .last(true)
            .num_args(1..)
            .help("the user's own program, started once per worker in place of the built-in workload"),
    );
    let synth = Clap::new("synth")
        .about("Write Criteo-shaped clicks made from a seed to a file")
        .arg(Arg::new("rows").long("rows").value_name("N").required(true).help("rows to write"))
        .arg(Arg::new("seed").long("seed").value_name("N").default_value("0").help("what they are made from"))
        .arg(
            Arg::new("out").long("out").value_name("FILE").required(true).help("the file; .gz compresses it"),
        );
    let hidden =
        |name: &'static str| Clap::new(name).hide(true).about("Part of a running job; started by antdt run");
    Clap::new("antdt")
        .about("Self-adaptive distributed training: finds stragglers and does something about them")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(run)
        .subcommand(
            Clap::new("data")
                .about("Data sets")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(synth),
        )
        .subcommand(simulate::whatif_grammar(&FLAGS))
        .subcommand(simulate::sim_grammar())
        .subcommand(hidden("worker"))
        .subcommand(hidden("server"))
        .subcommand(hidden("exec").arg(Arg::new("program").last(true).num_args(1..).required(true)))
}

/// Applies the grammar.
pub(super) fn matches(args: impl IntoIterator<Item = String>) -> Result<ArgMatches, clap::Error> {
    let mut own = true;
    let args = args.into_iter().map(|arg| {
        own &= arg != "--";
        if own { with_dashes(&arg) } else { arg }
    });
    grammar().try_get_matches_from(std::iter::once("antdt".to_owned()).chain(args))
}

/// `--global_batch_size=8` as `--global-batch-size=8`. Values keep their underscores.
fn with_dashes(arg: &str) -> String {
    match (arg.strip_prefix("--"), arg.split_once('=')) {
        (None, _) => arg.to_owned(),
        (Some(_), Some((flag, value))) => format!("{}={value}", flag.replace('_', "-")),
        (Some(_), None) => arg.replace('_', "-"),
    }
}

/// One line for what clap refuses, of the command `run` or another one; help and version are no errors.
pub(super) fn explain(error: &clap::Error, is_run: bool) -> Result<Command, CliError> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let what = context(ContextKind::InvalidArg).unwrap_or_default();
    let message = match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return Ok(Command::Print(error.to_string()));
        }
        ErrorKind::UnknownArgument => {
            let known: Vec<&str> = JobSpec::SETTINGS
                .into_iter()
                .chain(simulate::NAMES)
                .chain(["job", "rows", "out", "help"])
                .collect();
            let suggested = nearest(what.trim_start_matches('-'), &known);
            match suggested {
                Some(flag) => format!("{what} is not a flag; did you mean --{flag}?"),
                None if what.starts_with('-') => {
                    format!("{what} is not a flag; --help names those there are")
                }
                None if is_run => {
                    format!("{what} was not expected; a program and its arguments stand after `--`")
                }
                None => format!("{what} was not expected; --help says what is"),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            match nearest(&word, &["run", "data", "synth", "whatif", "sim", "diff"]) {
                Some(known) => format!("{word} is not a command; did you mean `{known}`?"),
                None => format!("{word} is not a command; the commands are run, whatif, sim and data synth"),
            }
        }
        ErrorKind::MissingRequiredArgument => format!("{what} is missing; it is required"),
        ErrorKind::ArgumentConflict => format!("{what} is given more than once; leave one out"),
        ErrorKind::InvalidValue => format!("{what} needs a value"),
        // The rest in clap's words, which begin with "error: " and go on for several lines.
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    Err(CliError::new(message))
}

/// The settings of `antdt run`: command line over environment over job file over defaults.
pub(super) fn run_settings(
    matches: &ArgMatches,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<JobSpec, CliError> {
    let mut spec = JobSpec::default();
    let job = matches.get_one::<String>("job").cloned().or_else(|| env("ANTDT_JOB"));
    if let Some(file) = job {
        job_file::apply(&mut spec, &PathBuf::from(file))?;
    }
    for setting in JobSpec::SETTINGS {
        let given: Vec<String> = matches.get_many::<String>(setting).into_iter().flatten().cloned().collect();
        let variable = format!("ANTDT_{}", setting.replace('-', "_").to_uppercase());
        let (values, from_env) = match given.is_empty() {
            false => (given, false),
            // ANTDT_DATA is taken: it names the folder of data sets that tests and benchmarks look in.
            true if setting == "data" => continue,
            true => match env(&variable) {
                // Several stragglers in one variable are separated by semicolons.
                Some(text) if setting == "straggler" => (text.split(';').map(str::to_owned).collect(), true),
                Some(text) => (vec![text], true),
                None => continue,
            },
        };
        if setting == "straggler" {
            spec.stragglers.clear();
        }
        for value in values {
            spec.set(setting, &value).map_err(|error| match from_env {
                true => CliError::new(format!("{variable}: {error}")),
                false => CliError::from(error),
            })?;
        }
    }
    if let Some(program) = matches.get_many::<String>("program") {
        spec.program = Some(program.cloned().collect());
    }
    Ok(spec)
}

pub(super) fn data_synth(matches: &ArgMatches) -> Result<DataSynth, CliError> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let number = |name: &str| {
        let digits: String = text(name).chars().filter(|c| *c != '_').collect();
        let refused = |_| InvalidValue::new(format!("--{name}"), text(name), simulate::WHOLE_64);
        digits.parse::<u64>().map_err(refused)
    };
    let (rows, seed, out) = (number("rows")?, number("seed")?, text("out"));
    if rows == 0 {
        return Err(CliError::new("--rows = 0: must be at least 1"));
    }
    if out.is_empty() {
        return Err(CliError::new("--out = ``: must be the name of a file"));
    }
    Ok(DataSynth { rows, seed, out: PathBuf::from(out) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_the_settings_in_the_same_order() {
        assert_eq!(FLAGS.map(|(name, _, _)| name), JobSpec::SETTINGS);
    }

    #[test]
    fn the_grammar_is_sound() {
        grammar().debug_assert();
    }
}
