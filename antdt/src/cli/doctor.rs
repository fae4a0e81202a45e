//! `antdt doctor`, and the probes of `antdt doctor --hosts`.

use antdt_core::InvalidValue;
use clap::{Arg, ArgAction, ArgMatches, Command as Clap};

use super::{CliError, Command, HostsToExamine, parse};

pub(super) fn grammar() -> Clap {
    Clap::new("doctor")
        .about("Show the deadlines of a job, whether they are in order, and what of this machine it would trip over")
        .arg(
            Arg::new("dir")
                .value_name("DIR")
                .help("run directory or report folder of a job [default: a job with default settings]"),
        )
        .arg(
            Arg::new("step")
                .long("step")
                .value_name("TIME")
                .help("duration of the job's steps [default: as a running job's are, else several]"),
        )
        .arg(
            Arg::new("hosts")
                .long("hosts")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["dir", "step"])
                .help("measure several hosts and the links between them instead; started as antdt run is, on each host"),
        )
        .arg(
            Arg::new("json").long("json").action(ArgAction::SetTrue).requires("hosts").help("print what was measured as JSON"),
        )
        .arg(
            Arg::new("run")
                .value_name("ARGUMENTS OF antdt run")
                .last(true)
                .num_args(1..)
                .requires("hosts")
                .help("those that say which hosts there are; under srun, none"),
        )
}

/// The hosts that are to be examined.
pub(super) fn hosts_to_examine(
    doctor: &ArgMatches,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<HostsToExamine, CliError> {
    let args: Vec<String> = doctor.get_many("run").into_iter().flatten().cloned().collect();
    // A program of any kind stands for the probe, and the folder for the one that it has.
    let words = ["run"].map(str::to_owned).into_iter().chain(args.iter().cloned());
    let own = ["--nproc-per-node=1", "--report-dir=doctor", "--", "probe"].map(str::to_owned);
    match parse(words.chain(own).collect::<Vec<_>>(), env)? {
        Command::Run(spec) => Ok(HostsToExamine { args, spec, json: doctor.get_flag("json") }),
        _ => Err(CliError::new(
            "doctor --hosts -- ...: takes what says which hosts there are, such as --nnodes and --rdzv-endpoint",
        )),
    }
}

/// The probe of a host.
pub(super) fn probe(probe: &ArgMatches) -> Result<Command, CliError> {
    let text = |name: &str| probe.get_one::<String>(name).cloned().unwrap_or_default();
    let port = text("port").parse().map_err(|_| InvalidValue::new("probe PORT", text("port"), "a port"))?;
    Ok(Command::Probe { port, call: text("call") })
}
