//! The flags.

use std::path::PathBuf;

use antdt_core::text::nearest;
use antdt_core::{InvalidValue, NodeId, Role};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command as Clap};

use super::{
    CliError, Command, DataInspect, DataSynth, Logs, ScaleTo, config, doctor, groups, model, shell, simulate,
    submit, torchrun,
};
use crate::job::value::Form;
use crate::job::{JobSetting, JobSpec};

/// Name of the flag that shows all settings.
const ALL: &str = "help-all";

/// Words that begin or continue a command.
const COMMANDS: [&str; 30] = [
    "run",
    "submit",
    "master",
    "doctor",
    "jobs",
    "status",
    "logs",
    "scale",
    "restart",
    "checkpoint",
    "stop",
    "policies",
    "optimizers",
    "launchers",
    "workloads",
    "completions",
    "man",
    "config",
    "show",
    "schema",
    "reference",
    "data",
    "inspect",
    "synth",
    "model",
    "list",
    "export",
    "whatif",
    "sim",
    "diff",
];

/// One line about a setting for the help of a command, without its default.
pub(super) fn help(setting: &JobSetting) -> String {
    let doc = setting.doc();
    let names = match setting.form() {
        Form::OneOf(names) | Form::Usage(names) => format!(": {}", names.join(", ")),
        Form::List(_) => "; may be repeated".to_owned(),
        Form::Whole { .. } | Form::Number | Form::Truth | Form::Text | Form::Duration => String::new(),
    };
    format!("{}{names}", doc.trim_end_matches('.'))
}

/// The flag of a setting.
fn arg(setting: &JobSetting) -> Arg {
    let form = setting.form();
    let default = match (&form, setting.default_text()) {
        (Form::Truth, _) | (_, None) => String::new(),
        (_, Some(default)) => format!(" [default: {default}]"),
    };
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .help(help(setting) + &default)
        .allow_negative_numbers(true)
        .action(if matches!(form, Form::List(_)) { ArgAction::Append } else { ArgAction::Set });
    match form {
        Form::Truth => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").hide_possible_values(true)
        }
        Form::Whole { .. }
        | Form::Number
        | Form::Text
        | Form::Duration
        | Form::OneOf(_)
        | Form::Usage(_)
        | Form::List(_) => arg.value_name(setting.unit),
    }
}

/// Adds the settings of a job, its file and its program.
pub(super) fn with_settings(command: Clap) -> Clap {
    let file =
        Arg::new("job").long("job").value_name("FILE").help("TOML file with the same settings as keys");
    let all = Arg::new(ALL).long(ALL).action(ArgAction::SetTrue).help("Print help with all settings");
    let grouped = |setting: &JobSetting| {
        let heading = groups::heading(setting.name);
        arg(setting).help_heading(heading).hide(heading != groups::FIRST)
    };
    command.arg(file).arg(all).args(JobSpec::SETTINGS.iter().map(grouped)).arg(
        Arg::new("program")
            .value_name("PROGRAM ARGS")
            .last(true)
            .num_args(1..)
            .help("the user's own program, started once per worker in place of the built-in workload"),
    )
}

/// The grammar.
fn grammar() -> Clap {
    let hidden =
        |name: &'static str| Clap::new(name).hide(true).about("Part of a running job; started by antdt run");
    let probe = hidden("probe").args(["port", "call"].map(|name| Arg::new(name).required(true)));
    users_grammar().subcommands([hidden("worker"), hidden("server"), probe]).subcommands(
        ["supervise", "exec"]
            .map(|name| hidden(name).arg(Arg::new("program").last(true).num_args(1..).required(true))),
    )
}

/// The commands that users call.
pub(super) fn users_grammar() -> Clap {
    let lists = [
        ("policies", "List the policies and their settings"),
        ("optimizers", "List the optimizers and their settings"),
        ("launchers", "List the launchers and their settings"),
        ("workloads", "List the built-in models and their settings"),
    ];
    Clap::new("antdt")
        .about(
            "Self-adaptive distributed training: detects stragglers, rebalances their work or restarts them",
        )
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([
            run_grammar(),
            join_grammar(),
            submit::grammar(),
            master_grammar(),
            doctor::grammar(),
            data_grammar(),
            model::grammar(),
        ])
        .subcommands(lists.map(|(name, about)| Clap::new(name).about(about)))
        .subcommands([config::grammar(), simulate::whatif_grammar(), simulate::sim_grammar()])
        .subcommand(Clap::new("jobs").about("List the running jobs of this user and host"))
        .subcommands([status_grammar(), logs_grammar(), scale_grammar(), restart_grammar()])
        .subcommand(remote("checkpoint", "Have a running job take a checkpoint, and wait for it"))
        .subcommand(remote("stop", "Shut a running job down in order, as an interrupt does"))
        .subcommands(shell::grammars())
}

fn run_grammar() -> Clap {
    let run = Clap::new("run")
        .about("Train, with every process on this machine")
        .override_usage(
            "antdt run --data SOURCE [FLAGS]\n       antdt run [FLAGS] SCRIPT.py [ARGS]\n       antdt run [FLAGS] -m MODULE [ARGS]\n       \
             antdt run [FLAGS] -- PROGRAM [ARGS]",
        )
        .after_help(
            "A flag may also be spelt with underscores. Without the flag, ANTDT_<FLAG> counts \
             (ANTDT_GLOBAL_BATCH_SIZE=512; not for --data), then the key in the --job file, then the default. \
             antdt config show --origin prints the outcome.\n\n\
             Exit codes: 0 the job is complete, 1 it failed or was interrupted, 2 it was refused before it began, \
             3 samples are missing.",
        );
    with_settings(run)
}

fn join_grammar() -> Clap {
    let settings = JobSpec::SETTINGS.iter().filter(|setting| groups::OF_A_HOST.contains(&setting.name));
    Clap::new("join")
        .about("Add this host to a running job: it grows by so many workers")
        .arg(
            Arg::new(ENDPOINT)
                .value_name("HOST[:PORT]")
                .required(true)
                .help("the --rdzv-endpoint of the job"),
        )
        .args(settings.map(arg))
}

/// Where the host joins that `antdt join` adds.
pub(super) const ENDPOINT: &str = "endpoint";

fn master_grammar() -> Clap {
    Clap::new("master")
        .about("Wait for the end of a job's master and be the next one, with no job's settings of its own")
        .after_help(
            "Several may wait for one job. Each ends when the job ends in order; Ctrl-C ends one that waits, and the job goes on.",
        )
        .arg(
            Arg::new("standby")
                .long("standby")
                .value_name("DIR")
                .required(true)
                .help("run directory or report folder of the job; this host must be the master's"),
        )
        .arg(
            Arg::new("quiet")
                .long("quiet")
                .action(ArgAction::SetTrue)
                .help("show nothing of the job but its nodes' lines"),
        )
}

fn data_grammar() -> Clap {
    let synth = Clap::new("synth")
        .about("Write Criteo-shaped clicks made from a seed to a file")
        .arg(Arg::new("rows").long("rows").value_name("N").required(true).help("rows to write"))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .default_value("0")
                .help("seed that the rows are generated from"),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("FILE")
                .required(true)
                .help("output file; compressed if it ends in .gz"),
        )
        .arg(model::force());
    let inspect = Clap::new("inspect")
        .about("Say what files of data are, and what a job would do with them")
        .arg(Arg::new("file").value_name("FILE").required(true).num_args(1..).help("files, folders or URLs"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("print JSON"))
        .args(INSPECTED.iter().filter_map(|name| {
            let setting = JobSpec::setting(name).ok()?;
            Some(Arg::new(*name).long(*name).value_name(setting.unit).help(help(setting)))
        }));
    Clap::new("data")
        .about("Data sets")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(inspect)
        .subcommand(synth)
}

/// A command that talks to a running job.
fn remote(name: &'static str, about: &'static str) -> Clap {
    let dir = Arg::new("dir")
        .value_name("DIR")
        .help("run directory of the job [default: that of the only running job]");
    Clap::new(name).about(about).arg(dir)
}

fn status_grammar() -> Clap {
    remote("status", "Show the progress of a running job")
        .arg(
            Arg::new("diagnose")
                .long("diagnose")
                .action(ArgAction::SetTrue)
                .help("show which nodes are slow, how that is known, and what was done or why nothing was"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .requires("diagnose")
                .help("print the diagnosis as JSON"),
        )
        .arg(
            Arg::new("watch")
                .long("watch")
                .action(ArgAction::SetTrue)
                .conflicts_with("json")
                .help("show it again each second, until the job has ended"),
        )
}

fn logs_grammar() -> Clap {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help);
    Clap::new("logs")
        .about("Print what the nodes of a job have written")
        .override_usage("antdt logs [NODE] [DIR] [--follow] [--lines N]")
        .arg(Arg::new("words").value_name("NODE DIR").num_args(0..=2).help(
            "a node, such as worker-3 [default: all], and the report folder of the job [default: of the only running job]",
        ))
        .arg(flag("follow", "go on with what they write, until the job has ended").short('f').action(ArgAction::SetTrue))
        .arg(flag("lines", "lines of each file to begin with").value_name("N").default_value("20"))
}

/// Which lines of which node are meant.
pub(super) fn logs(logs: &ArgMatches) -> Result<Logs, CliError> {
    let text = logs.get_one::<String>("lines").map_or("", String::as_str);
    let lines = text.parse().map_err(|_| InvalidValue::new("--lines", text, "a number of lines"))?;
    let words: Vec<&String> = logs.get_many("words").into_iter().flatten().collect();
    let node = words.first().and_then(|word| word.parse().ok());
    let (node, dir) = match (&words[..], node) {
        ([], _) => (None, None),
        ([_], Some(node)) => (Some(node), None),
        ([_, dir], Some(node)) => (Some(node), Some(PathBuf::from(dir))),
        ([dir], None) => (None, Some(PathBuf::from(dir))),
        ([first, ..], None) => {
            let expected = "a node, such as worker-3, where a folder follows; `antdt status` names them";
            return Err(InvalidValue::new("logs NODE", first, expected).into());
        }
        _ => return Err(CliError::new("logs takes a node and a folder at most")),
    };
    Ok(Logs { node, dir, lines, follow: logs.get_flag("follow") })
}

fn scale_grammar() -> Clap {
    remote("scale", "Change the number of workers, or of parameter servers, of a running job")
        .override_usage("antdt scale N [DIR]\n       antdt scale --servers N [DIR]")
        .mut_arg("dir", |dir| dir.index(2))
        .arg(
            Arg::new("workers")
                .value_name("N")
                .required_unless_present("servers")
                .index(1)
                .help("workers that the job is to have"),
        )
        .arg(
            Arg::new("servers")
                .long("servers")
                .value_name("N")
                .help("parameter servers that the job is to have, instead of workers"),
        )
}

/// The number of workers, or of servers, that a job is to have.
pub(super) fn scale(scale: &ArgMatches) -> Result<Command, CliError> {
    let text = |name: &str| scale.get_one::<String>(name).map(String::as_str);
    let number = |text: &str| text.parse().ok().filter(|number: &u32| *number > 0);
    let (first, second) = (text("workers").unwrap_or_default(), text("dir").map(PathBuf::from));
    let Some(servers) = text("servers") else {
        let workers = number(first)
            .ok_or_else(|| CliError::new(format!("scale N = {first}: a number of workers, at least 1")))?;
        return Ok(Command::Scale { to: ScaleTo::Workers(workers), dir: second });
    };
    let servers = number(servers).ok_or_else(|| {
        CliError::new(format!("scale --servers N = {servers}: a number of servers, at least 1"))
    })?;
    // The one word that may stand there is the folder.
    if second.is_some() || first.parse::<u32>().is_ok() {
        return Err(CliError::new(format!(
            "scale {first} --servers {servers}: workers and servers are changed one after the other; leave one number out"
        )));
    }
    let dir = (!first.is_empty()).then(|| PathBuf::from(first));
    Ok(Command::Scale { to: ScaleTo::Servers(servers), dir })
}

fn restart_grammar() -> Clap {
    remote("restart", "Kill a worker of a running job, and start it again")
        .mut_arg("dir", |dir| dir.index(2))
        .arg(Arg::new("node").value_name("NODE").required(true).index(1).help("the worker, such as worker-3"))
}

/// The worker that is to be started again.
pub(super) fn restart(restart: &ArgMatches) -> Result<Command, CliError> {
    let text = restart.get_one::<String>("node").map_or("", String::as_str);
    let node = text.parse::<NodeId>().ok().filter(|node| node.role == Role::Worker);
    let node = node.ok_or_else(|| {
        CliError::new(format!("restart NODE = {text}: a worker, such as worker-3; `antdt status` names them"))
    })?;
    Ok(Command::Restart { worker: node.index, dir: restart.get_one::<String>("dir").map(PathBuf::from) })
}

/// Applies the grammar.
pub(super) fn matches(args: impl IntoIterator<Item = String>) -> Result<ArgMatches, clap::Error> {
    let (mut own, mut all, mut grammar) = (true, false, grammar());
    let args = args.into_iter().map(|arg| {
        own &= arg != "--";
        let arg = if own { with_dashes(&arg) } else { arg };
        let asks_all = own && arg == format!("--{ALL}");
        all |= asks_all;
        if asks_all { "--help".to_owned() } else { arg }
    });
    let args: Vec<String> = std::iter::once("antdt".to_owned()).chain(args).collect();
    if all {
        grammar = with_all(grammar, |command| command.mut_args(|arg| arg.hide(false)));
    }
    grammar.try_get_matches_from(args)
}

/// The grammar whose commands that take the settings of a job are changed.
pub(super) fn with_all(grammar: Clap, change: impl Fn(Clap) -> Clap) -> Clap {
    let grammar = grammar.mut_subcommand("run", &change);
    grammar.mut_subcommand("config", |config| config.mut_subcommand("show", &change))
}

/// `--global_batch_size=8` as `--global-batch-size=8`. Values keep their underscores.
fn with_dashes(arg: &str) -> String {
    match (arg.strip_prefix("--"), arg.split_once('=')) {
        (None, _) => arg.to_owned(),
        (Some(_), Some((flag, value))) => format!("{}={value}", flag.replace('_', "-")),
        (Some(_), None) => arg.replace('_', "-"),
    }
}

/// The name of the command that these arguments are for, and its grammar.
fn command(args: &[String]) -> (String, Clap) {
    let (mut name, mut command) = (String::new(), grammar());
    for word in args {
        let Some(below) = command.find_subcommand(word).cloned() else { break };
        let space = if name.is_empty() { "" } else { " " };
        name += &format!("{space}{word}");
        command = below;
    }
    (name, command)
}

/// The flags of a command, without their dashes.
fn flags_of(command: &Clap) -> Vec<&str> {
    command.get_arguments().filter_map(Arg::get_long).chain(["help"]).collect()
}

/// The names of the commands that have this flag, of those below this one, whose own name is `name`.
fn with_flag(flag: &str, name: &str, command: &Clap) -> Vec<String> {
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .flat_map(|below| with_flag(flag, format!("{name} {}", below.get_name()).trim_start(), below));
    let has = command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    has.then(|| name.to_owned()).into_iter().chain(below).collect()
}

/// Why this flag is none of the command that the arguments are for.
fn unknown_flag(what: &str, args: &[String]) -> String {
    let flag = what.trim_start_matches('-').split('=').next().unwrap_or_default();
    let (name, command) = command(args);
    let others = with_flag(flag, "", &grammar());
    // Nothing here is called so, and nothing that sounds alike does the same.
    if let Some(instead) = torchrun::instead_of(flag) {
        return format!("{what} is a flag of torchrun, not of antdt: {instead}");
    }
    if !others.is_empty() {
        let here = if name.is_empty() { "antdt itself" } else { &name };
        return format!("{what} is not a flag of {here}; it is one of antdt {}", others.join(", antdt "));
    }
    match nearest(flag, &flags_of(&command)) {
        Some(near) => format!("{what} is not a flag; did you mean --{near}?"),
        None => format!("{what} is not a flag; --help names those there are"),
    }
}

/// One line for what clap refuses in these arguments; help and version are no errors.
pub(super) fn explain(error: &clap::Error, args: &[String]) -> Result<Command, CliError> {
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
        ErrorKind::UnknownArgument if what.starts_with('-') => unknown_flag(&what, args),
        ErrorKind::UnknownArgument if args.first().is_some_and(|command| command == "run") => {
            format!("{what} was not expected; a script ends in .py, and another program stands after `--`")
        }
        ErrorKind::UnknownArgument => format!("{what} was not expected; --help says what is"),
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            match nearest(&word, &COMMANDS) {
                _ if word.ends_with(".toml") => {
                    format!(
                        "{word} is not a command; antdt sim --scenario {word} simulates a scenario, antdt run --job {word} runs a job"
                    )
                }
                Some(known) => format!("{word} is not a command; did you mean `{known}`?"),
                None => format!(
                    "{word} is not a command; the commands are run, submit, master, doctor, jobs, status, logs, scale, restart, checkpoint, stop, policies, optimizers, launchers, workloads, model, config, whatif, sim, data inspect, data synth, completions and man"
                ),
            }
        }
        ErrorKind::MissingRequiredArgument => format!("{what} is missing; it is required"),
        // A word where the command takes a flag or a command of its own.
        ErrorKind::ArgumentConflict if what.is_empty() => {
            "flags and a command after them do not go together; --help says what does".to_owned()
        }
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

/// Settings of a job that say how its data are read.
const INSPECTED: [&str; 8] =
    ["format", "label", "categorical", "numeric", "ignore", "task", "cache-dir", "unpack-limit"];

pub(super) fn data_inspect(matches: &ArgMatches) -> Result<DataInspect, CliError> {
    let mut job = JobSpec::default();
    for name in INSPECTED {
        if let Some(text) = matches.get_one::<String>(name) {
            job.set(name, text)?;
        }
    }
    let of_file = |file: &String| {
        let mut job = job.clone();
        job.set("data", file)?;
        Ok(job)
    };
    let files = matches.get_many::<String>("file").into_iter().flatten();
    let jobs = files.map(of_file).collect::<Result<_, InvalidValue>>()?;
    Ok(DataInspect { jobs, json: matches.get_flag("json") })
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
    let out = PathBuf::from(out);
    let ending = out.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if ["parquet", "zst", "bz2", "xz", "zip"].contains(&ending.as_str()) {
        let must = "the name of a text file, such as a.tsv or, compressed, a.tsv.gz";
        return Err(InvalidValue::new("--out", out.display(), must).into());
    }
    Ok(DataSynth { rows, seed, out, force: matches.get_flag("force") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        grammar().debug_assert();
    }
}
