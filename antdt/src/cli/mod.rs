//! The command line: [`parse`] turns its text into a [`Command`], and runs nothing.
//!
//! [`parse`] is a function of the arguments, the environment and the job file, so that every rule can be tested without
//! a process. Flags are spelt with dashes or underscores, as torchrun's. A setting is taken from the command line, else
//! from `ANTDT_<SETTING>` (but for `--data`, which has no variable), else from the job file, else from the job that `--resume`
//! names, else it has its default.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use antdt_controller::policy;
use antdt_core::text::{beginning, named_duration};
use antdt_core::{InvalidValue, NodeId};
use antdt_launch::runtime as launcher;
use antdt_model::optimizer;

use crate::job::JobSpec;
use crate::workload;

mod config;
mod doctor;
mod earlier;
mod flags;
mod groups;
mod job_file;
mod kubernetes;
mod model;
mod own_folder;
mod shell;
mod simulate;
mod slurm;
mod submit;
mod torchrun;
mod variable;

#[cfg(test)]
mod tests;

pub use kubernetes::KubernetesBatch;
pub use model::ModelExport;
pub(crate) use shell::quoted;
pub use simulate::{Changes, Diff, Sim, WhatIfCommand};
pub(crate) use slurm::{SlurmStep, idle_hosts};
pub use submit::{SlurmBatch, Submit, SubmitTarget};
pub(crate) use variable::unread;

/// Number of processes that `antdt scale` changes a job to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleTo {
    /// Number of workers, at least 1.
    Workers(u32),
    /// Number of parameter servers, at least 1.
    Servers(u32),
}

/// A command line, parsed and checked.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Command {
    /// `antdt run`: train a model.
    Run(Box<JobSpec>),
    /// `antdt master --standby`: wait until a job's master ends, and take the job over.
    Master {
        /// Path of the job's run directory or report folder.
        dir: PathBuf,
        /// Whether to show no progress of the job.
        quiet: bool,
    },
    /// `antdt join`: add this host to a running job. Holds what a host says of itself.
    Join(Box<JobSpec>),
    /// `antdt submit`: hand a job to a scheduler.
    Submit(Box<Submit>),
    /// `antdt doctor`: show the deadlines of a job, and the problems that it would have on this machine.
    Doctor(Doctor),
    /// `antdt data synth`: write generated clicks to a file.
    DataSynth(DataSynth),
    /// `antdt data inspect`: say what files of data are, and what a job would do with them.
    DataInspect(Box<DataInspect>),
    /// `antdt model list`: list the checkpoints of a folder.
    ModelList(PathBuf),
    /// `antdt model export`: write the model of a checkpoint to one file.
    ModelExport(ModelExport),
    /// `antdt whatif`: compare policies in a simulated job.
    WhatIf(Box<WhatIfCommand>),
    /// `antdt sim`: simulate a scenario from many seeds.
    Sim(Sim),
    /// `antdt sim diff`: show where two traces differ first.
    Diff(Diff),
    /// `antdt status`: show the progress of a running job.
    Status(Status),
    /// `antdt logs`: print what the nodes of a job write.
    Logs(Logs),
    /// List the running jobs of this user and host.
    Jobs,
    /// `antdt scale`: change the number of workers, or of parameter servers, of a running job.
    Scale {
        /// Number of workers, or of servers, that the job should have.
        to: ScaleTo,
        /// Path of the job's run directory; `None` if the user named none.
        dir: Option<PathBuf>,
    },
    /// `antdt restart`: kill a worker of a running job, and start it again.
    Restart {
        /// Number of the worker.
        worker: u32,
        /// Path of the job's run directory; `None` if the user named none.
        dir: Option<PathBuf>,
    },
    /// `antdt checkpoint`: make a running job take a checkpoint. Holds the path of its run directory, if the
    /// user named one.
    Checkpoint(Option<PathBuf>),
    /// `antdt stop`: end a running job in order. Holds the path of its run directory, if the user named one.
    Stop(Option<PathBuf>),
    /// `antdt worker`: run a worker of a job. `antdt run` starts this command and passes the settings in the
    /// environment.
    Worker,
    /// `antdt server`: run a parameter server of a job. `antdt run` starts this command and passes the
    /// settings in the environment.
    Server,
    /// `antdt probe`: measure this host and its links, as `antdt doctor --hosts` on the first host asks.
    Probe {
        /// Port of the first host.
        port: u16,
        /// What the first host knows its probes by.
        call: String,
    },
    /// `antdt supervise -- PROGRAM`: run the program, by `antdt exec`, to the end of all that it starts.
    Supervise(Vec<String>),
    /// `antdt exec -- PROGRAM`: replace this process by the program, which the kernel kills when the
    /// launching process ends.
    Exec(Vec<String>),
    /// `--help`, `--version`, `antdt completions`, `antdt man`, `antdt config`, `antdt policies`, `antdt optimizers`, `antdt launchers`, `antdt workloads`: print this text and exit with 0.
    Print(String),
}

/// Arguments of `antdt doctor`.
#[derive(Debug, Clone, PartialEq)]
pub struct Doctor {
    /// Path of the job's run directory or report folder; `None` if the user named none.
    pub dir: Option<PathBuf>,
    /// Duration of the job's steps; `None` if the user gave none.
    pub step: Option<Duration>,
    /// The hosts that are to be examined instead of this machine.
    pub hosts: Option<HostsToExamine>,
}

/// Hosts of a job that does nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct HostsToExamine {
    /// Arguments of `antdt run` that say which hosts there are.
    pub args: Vec<String>,
    /// The settings that follow.
    pub spec: Box<JobSpec>,
    /// Whether to print JSON.
    pub json: bool,
}

/// Arguments of `antdt status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Path of the job's run directory; `None` if the user named none.
    pub dir: Option<PathBuf>,
    /// Information to show.
    pub show: Show,
    /// Whether to show it again and again, until the job has ended.
    pub watch: bool,
}

/// Information that `antdt status` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// The progress of the job, as text.
    Progress,
    /// `--diagnose`: the slow nodes of the job and what was done about them, as text.
    Diagnosis,
    /// `--diagnose --json`: the slow nodes of the job and what was done about them, as JSON.
    DiagnosisJson,
}

/// Arguments of `antdt logs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logs {
    /// The node whose lines are meant; `None` for all.
    pub node: Option<NodeId>,
    /// Path of the job's report folder, its run directory or its folder of lines; `None` if the user named none.
    pub dir: Option<PathBuf>,
    /// Number of lines of each file to begin with.
    pub lines: usize,
    /// Whether to go on with lines as they come, until the job has ended.
    pub follow: bool,
}

/// Arguments of `antdt data inspect`.
#[derive(Debug, Clone, PartialEq)]
pub struct DataInspect {
    /// The settings of a job on each of the files or folders.
    pub jobs: Vec<JobSpec>,
    /// Whether to print JSON.
    pub json: bool,
}

/// Arguments of `antdt data synth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSynth {
    /// Number of rows to write.
    pub rows: u64,
    /// Seed from which the rows are generated.
    pub seed: u64,
    /// Path of the output file; compressed if its name ends in `.gz`.
    pub out: PathBuf,
    /// Whether to replace the output file if it exists.
    pub force: bool,
}

/// Reason why a command line is refused: one line that names the flag and the remedy, after "error: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// Text of the line, without "error: ".
    pub message: String,
}

impl CliError {
    /// Exit code after a refused command line.
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

/// Returns the arguments of this process as text.
///
/// # Errors
/// If an argument is not UTF-8: settings are passed to other processes as text.
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

/// Parses a command line.
///
/// `args` are the arguments after the program's name; `env` returns the value of an environment variable. It
/// reads no files except the one that `--job` names and the settings in the folder that `--resume` names. The
/// settings of `run` are validated together, those of `config show` one by one.
///
/// # Errors
/// If an argument or setting is unknown, missing or invalid.
pub fn parse<I, E>(args: I, env: E) -> Result<Command, CliError>
where
    I: IntoIterator<Item = String>,
    E: Fn(&str) -> Option<String>,
{
    let mut args: Vec<String> = args.into_iter().collect();
    if args.first().is_some_and(|command| command == "help") {
        args.rotate_left(1);
        args.pop();
        args.push("--help".to_owned());
    }
    let own = std::env::current_exe().ok();
    let args = torchrun::with_program(args, &torchrun::interpreter(&env, own.as_deref()));
    let matches = match flags::matches(args.iter().cloned()) {
        Ok(matches) => matches,
        Err(error) => return flags::explain(&error, &args),
    };
    match matches.subcommand() {
        Some(("run", run)) => {
            let mut spec = config::resolve(run, &env, SlurmStep::of(&env).as_ref())?.spec;
            own_folder::apply(&mut spec, SystemTime::now(), std::process::id());
            spec.validate()?;
            Ok(Command::Run(Box::new(spec)))
        }
        Some(("join", join)) => {
            let mut spec = config::resolve(join, &env, None)?.spec;
            spec.rdzv_endpoint = join.get_one::<String>(flags::ENDPOINT).cloned();
            spec.check_each()?;
            Ok(Command::Join(Box::new(spec)))
        }
        Some(("submit", asked)) => submit::submit(asked, &env),
        Some(("master", master)) => Ok(Command::Master {
            dir: master.get_one::<String>("standby").map(PathBuf::from).unwrap_or_default(),
            quiet: master.get_flag("quiet"),
        }),
        Some(("doctor", doctor)) => {
            let step = doctor.get_one::<String>("step").map(|text| named_duration("--step", text));
            let hosts =
                doctor.get_flag("hosts").then(|| doctor::hosts_to_examine(doctor, &env)).transpose()?;
            Ok(Command::Doctor(Doctor { dir: folder(doctor), step: step.transpose()?, hosts }))
        }
        Some(("policies", _)) => Ok(Command::Print(policy::REGISTRY.listing())),
        Some(("optimizers", _)) => Ok(Command::Print(optimizer::REGISTRY.listing())),
        Some(("launchers", _)) => Ok(Command::Print(launcher::REGISTRY.listing())),
        Some(("workloads", _)) => Ok(Command::Print(workload::REGISTRY.listing())),
        Some(("completions", asked)) => shell::completions(asked).map(Command::Print),
        Some(("man", asked)) => shell::manual(asked).map(Command::Print),
        Some(("config", config)) => config::print(config, &env).map(Command::Print),
        Some(("data", data)) => match data.subcommand() {
            Some(("synth", synth)) => flags::data_synth(synth).map(Command::DataSynth),
            Some(("inspect", inspect)) => {
                flags::data_inspect(inspect).map(|asked| Command::DataInspect(Box::new(asked)))
            }
            _ => Err(CliError::new("data needs a subcommand: inspect or synth; try `antdt data --help`")),
        },
        Some(("model", model)) => match model.subcommand() {
            Some(("list", list)) => Ok(Command::ModelList(model::dir(list))),
            Some(("export", export)) => model::export(export).map(Command::ModelExport),
            _ => Err(CliError::new("model: what about it? try `antdt model --help`")),
        },
        Some(("whatif", whatif)) => simulate::whatif(whatif).map(|whatif| Command::WhatIf(Box::new(whatif))),
        Some(("sim", sim)) => match sim.subcommand() {
            Some(("diff", diff)) => Ok(Command::Diff(simulate::diff(diff))),
            _ => simulate::sim(sim).map(Command::Sim),
        },
        Some(("status", status)) => {
            let show = match (status.get_flag("diagnose"), status.get_flag("json")) {
                (false, _) => Show::Progress,
                (true, false) => Show::Diagnosis,
                (true, true) => Show::DiagnosisJson,
            };
            let watch = status.get_flag("watch");
            Ok(Command::Status(Status { dir: folder(status), show, watch }))
        }
        Some(("logs", logs)) => flags::logs(logs).map(Command::Logs),
        Some(("jobs", _)) => Ok(Command::Jobs),
        Some(("scale", scale)) => flags::scale(scale),
        Some(("restart", restart)) => flags::restart(restart),
        Some(("checkpoint", checkpoint)) => Ok(Command::Checkpoint(folder(checkpoint))),
        Some(("stop", stop)) => Ok(Command::Stop(folder(stop))),
        Some(("worker", _)) => Ok(Command::Worker),
        Some(("server", _)) => Ok(Command::Server),
        Some(("probe", probe)) => doctor::probe(probe),
        Some(("supervise", supervise)) => Ok(Command::Supervise(program(supervise))),
        Some(("exec", exec)) => Ok(Command::Exec(program(exec))),
        _ => Err(CliError::new("no command given; try `antdt --help`")),
    }
}

/// The program that is named, and its arguments.
fn program(matches: &clap::ArgMatches) -> Vec<String> {
    matches.get_many("program").into_iter().flatten().cloned().collect()
}

/// The run directory that is named.
fn folder(matches: &clap::ArgMatches) -> Option<PathBuf> {
    matches.get_one::<String>("dir").map(PathBuf::from)
}
