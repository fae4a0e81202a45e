//! `antdt whatif`, `antdt sim` and `antdt sim diff`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use antdt_collective::schedule::CostModel;
use antdt_controller::policy::{self, Unmanaged};
use antdt_core::text::{named_duration, nearest};
use antdt_core::{InvalidValue, JobTime, Seed};
use antdt_job::SyncMode;
use antdt_monitor::Rule;
use antdt_sim::Setup;
use clap::{Arg, ArgAction, ArgMatches, Command as Clap};

use super::{CliError, flags};
use crate::job::{JobSetting, JobSpec, Sharding};

/// Arguments of `antdt whatif`.
#[derive(Debug, Clone, PartialEq)]
pub struct WhatIfCommand {
    /// Path of a recording, a CSV of slowdowns or a scenario.
    pub trace: PathBuf,
    /// Names of the policies to try, each once.
    pub policies: Vec<String>,
    /// Settings of the job that replace those of the file.
    pub changes: Changes,
    /// Network that replaces that of the file; `None` keeps it.
    pub network: Option<CostModel>,
    /// Factor by which a CSV of slowdowns is replayed faster.
    pub speedup: Option<f64>,
    /// Samples per second of a worker without a slowdown, for a CSV of slowdowns; `None` for the default.
    pub speed: Option<f64>,
    /// Virtual time at which a run is ended; `None` for the default.
    pub limit: Option<JobTime>,
    /// JSON file for the figures and all actions of the runs; `-` prints the JSON in place of the table.
    pub json: Option<PathBuf>,
    /// Path of the HTML page to write; `None` to write none.
    pub html: Option<PathBuf>,
}

/// Arguments of `antdt sim`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sim {
    /// Path of the scenario file.
    pub scenario: PathBuf,
    /// Number of runs, each with its own seed.
    pub seeds: u64,
    /// Seed of the first run; each further run has the next higher seed.
    pub seed: u64,
    /// Name of the policy that replaces that of the scenario; `None` keeps it.
    pub policy: Option<String>,
    /// Path of the recording to write of the only run; `None` to write none.
    pub trace: Option<PathBuf>,
    /// Whether to print the figures as JSON.
    pub json: bool,
}

/// Arguments of `antdt sim diff`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diff {
    /// Path of the first trace.
    pub left: PathBuf,
    /// Path of the second trace.
    pub right: PathBuf,
}

/// A setting of `antdt run` that a simulated job has too, and how it is carried over.
type Shared = (&'static str, fn(&JobSpec, &mut Setup));

const SHARED: [Shared; 13] = [
    ("servers", |job, setup| setup.servers = job.servers),
    ("sync", |job, setup| setup.sync = SyncMode::clone(&job.sync)),
    ("pace-rule", |job, setup| {
        let named = Rule::named(&job.pace_rule, &BTreeMap::new());
        setup.pace_rule = named.expect("its name was checked as it was set, and it has defaults");
    }),
    ("epochs", |job, setup| setup.epochs = job.epochs),
    ("global-batch-size", |job, setup| setup.global_batch_size = job.global_batch_size),
    ("seed", |job, setup| setup.seed = Seed(job.seed)),
    ("sharding", |job, setup| setup.static_sharding = job.sharding == Sharding::Static),
    ("shard-len", |job, setup| setup.shard_len = job.shard_len),
    ("max-restarts", |job, setup| setup.max_restarts = job.max_restarts),
    ("control-tick", |job, setup| setup.control_tick = job.control_tick),
    ("heartbeat", |job, setup| setup.heartbeat = job.heartbeat),
    ("silence-limit", |job, setup| setup.silence_limit = job.silence_limit.unwrap_or(setup.silence_limit)),
    ("collective-timeout", |job, setup| {
        setup.collective_timeout = job.collective_timeout.unwrap_or(setup.collective_timeout);
    }),
];

/// Settings of a simulated job that were given on the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    given: BTreeSet<&'static str>,
    job: JobSpec,
    workers: Option<u32>,
    samples: Option<u64>,
    gradient_bytes: Option<u64>,
}

impl Changes {
    /// Replaces the settings in `setup` by those that the command line gives.
    pub fn apply(&self, setup: &mut Setup) {
        for (_, carry_over) in SHARED.iter().filter(|(name, _)| self.given.contains(name)) {
            carry_over(&self.job, setup);
        }
        setup.workers = self.workers.unwrap_or(setup.workers);
        setup.samples = self.samples.unwrap_or(setup.samples);
        setup.gradient_bytes = self.gradient_bytes.unwrap_or(setup.gradient_bytes);
    }

    /// Returns whether the setting of this name was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        match name {
            "workers" => self.workers.is_some(),
            "samples" => self.samples.is_some(),
            "gradient-bytes" => self.gradient_bytes.is_some(),
            name => self.given.contains(name),
        }
    }
}

fn flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help).allow_hyphen_values(true)
}

/// Policies that `antdt whatif` compares unless it is told others: what a job does by itself, beside doing nothing.
const COMPARED: [&str; 2] = [Unmanaged::NAME, policy::DEFAULT];

pub(super) fn whatif_grammar() -> Clap {
    let mut whatif = Clap::new("whatif")
        .about("Simulate a job under several policies, and compare them")
        .override_usage("antdt whatif --trace FILE [--policy NAME,...] [FLAGS]")
        .after_help(
            "FILE is a recording (antdt run --record FILE), a CSV of rows t_s,worker,slowdown, or a scenario (.toml). \
             Recordings, CSV files and files that a scenario names may be compressed (.gz). Settings given as flags \
             replace those of the file.",
        )
        .arg(flag("trace", "FILE", "recording, CSV of slowdowns, or scenario to simulate").required(true))
        .arg(
            Arg::new("policy")
                .long("policy")
                .value_name("NAMES")
                .help(format!(
                    "policies, separated by commas: {} [default: {}]",
                    policy::REGISTRY.names().join(", "),
                    COMPARED.join(",")
                ))
                .allow_hyphen_values(true)
                .action(ArgAction::Append),
        )
        .arg(flag("workers", "N", "number of workers [default: that of the file]"))
        .arg(flag("samples", "N", "number of samples in the data set [default: that of the file]"))
        .arg(flag("gradient-bytes", "N", "size of the gradient in bytes [default: that of the file]"))
        .arg(flag(
            "network",
            "NAME",
            "loopback, lan, wan, or alpha=TIME,bandwidth=BYTES_PER_S [default: that of the file]",
        ))
        .arg(flag("speedup", "FACTOR", "replay a CSV of slowdowns this many times faster [default: 1]"))
        .arg(flag(
            "emulate-speed",
            "SAMPLES_PER_S",
            "with a CSV: speed of a worker whose slowdown is 1 [default: 1000]",
        ))
        .arg(flag("limit", "TIME", "virtual time after which a run is abandoned [default: 720h]"))
        .arg(
            Arg::new("json")
                .long("json")
                .value_name("FILE")
                .num_args(0..=1)
                .default_missing_value("-")
                .help("write figures and all actions as JSON, to FILE or in place of the table"),
        )
        .arg(flag("html", "FILE", "write a page with charts to FILE"));
    let shared = |setting: &&JobSetting| SHARED.iter().any(|(name, _)| *name == setting.name);
    for setting in JobSpec::SETTINGS.iter().filter(shared) {
        // The defaults of `antdt run` do not count here: those of the file do.
        let arg = Arg::new(setting.name).long(setting.name).value_name(setting.unit);
        whatif = whatif.arg(arg.help(flags::help(setting)).allow_hyphen_values(true));
    }
    whatif
}

pub(super) fn sim_grammar() -> Clap {
    Clap::new("sim")
        .about("Simulate a scenario from many seeds, and check every invariant")
        .override_usage("antdt sim --scenario FILE.toml [FLAGS]\n       antdt sim diff TRACE TRACE")
        .after_help(
            "The exit code is 1 if an invariant is violated or an expectation of the scenario is not met.",
        )
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .disable_help_subcommand(true)
        .arg(flag("scenario", "FILE", "scenario file").required(true))
        .arg(flag("seeds", "N", "number of runs, each with a seed of its own").default_value("1"))
        .arg(flag("seed", "N", "seed of the first run").default_value("0"))
        .arg(flag("policy", "NAME", "one that antdt policies lists [default: that of the scenario]"))
        .arg(flag(
            "trace",
            "FILE",
            "write a recording of the run to FILE; only with one seed [.gz: compressed]",
        ))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("print the figures as JSON"))
        .subcommand(
            Clap::new("diff")
                .about("Show where two traces differ first; the exit code is 1 if they differ")
                .arg(Arg::new("left").value_name("TRACE").required(true))
                .arg(Arg::new("right").value_name("TRACE").required(true)),
        )
}

fn text<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn number<T: FromStr>(matches: &ArgMatches, name: &str, expected: &str) -> Result<Option<T>, InvalidValue> {
    let Some(given) = text(matches, name) else { return Ok(None) };
    let digits: String = given.chars().filter(|c| *c != '_').collect();
    digits.parse().map(Some).map_err(|_| InvalidValue::new(format!("--{name}"), given, expected))
}

fn path(matches: &ArgMatches, name: &str) -> Result<Option<PathBuf>, InvalidValue> {
    match text(matches, name) {
        Some("") => Err(InvalidValue::new(format!("--{name}"), "``", "the name of a file")),
        path => Ok(path.map(PathBuf::from)),
    }
}

fn known_policy(name: &str) -> Result<String, CliError> {
    policy::build(name, &BTreeMap::new()).map(|_| name.to_owned()).map_err(|error| {
        CliError::new(format!(
            "--policy: {error}; one of your own runs through the library, in ten lines: antdt-sim/README.md, \
             \"What would my policy do?\", and its examples/own_policy.rs"
        ))
    })
}

const WHOLE_32: &str = "a whole number from 0 to below 2^32";

pub(super) const WHOLE_64: &str = "a whole number from 0 to below 2^64";

pub(super) fn whatif(matches: &ArgMatches) -> Result<WhatIfCommand, CliError> {
    let mut policies: Vec<String> = Vec::new();
    for name in matches.get_many::<String>("policy").into_iter().flatten().flat_map(|names| names.split(','))
    {
        let name = known_policy(name.trim())?;
        if policies.contains(&name) {
            return Err(CliError::new(format!("--policy: {name} is given more than once; leave one out")));
        }
        policies.push(name);
    }
    if policies.is_empty() {
        policies = COMPARED.map(str::to_owned).into();
    }
    let mut changes = Changes {
        given: BTreeSet::new(),
        job: JobSpec::default(),
        workers: number(matches, "workers", WHOLE_32)?,
        samples: number(matches, "samples", WHOLE_64)?,
        gradient_bytes: number(matches, "gradient-bytes", WHOLE_64)?,
    };
    for (name, _) in SHARED {
        if let Some(value) = text(matches, name) {
            changes.job.set(name, value)?;
            changes.given.insert(name);
        }
    }
    if changes.job.sync.choice().is_some() {
        let expected = "one mode: a simulated job has no first steps to measure";
        return Err(InvalidValue::new("--sync", &changes.job.sync, expected).into());
    }
    let positive = |name: &str| match number::<f64>(matches, name, "a number above 0")? {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(InvalidValue::new(format!("--{name}"), value, "a number above 0"))
        }
        value => Ok(value),
    };
    let limit = text(matches, "limit").map(|text| named_duration("--limit", text)).transpose()?;
    if limit.is_some_and(|limit| limit.is_zero()) {
        return Err(InvalidValue::new("--limit", "0s", "longer than 0s").into());
    }
    Ok(WhatIfCommand {
        trace: path(matches, "trace")?
            .ok_or_else(|| CliError::new("--trace <FILE> is missing; it is required"))?,
        policies,
        changes,
        network: text(matches, "network").map(network).transpose()?,
        speedup: positive("speedup")?,
        speed: positive("emulate-speed")?,
        limit: limit.map(JobTime::from_duration),
        json: path(matches, "json")?,
        html: path(matches, "html")?,
    })
}

pub(super) fn sim(matches: &ArgMatches) -> Result<Sim, CliError> {
    let (seeds, seed) = (
        number(matches, "seeds", WHOLE_64)?.unwrap_or(1),
        number(matches, "seed", WHOLE_64)?.unwrap_or(0_u64),
    );
    let trace = path(matches, "trace")?;
    if seeds == 0 {
        return Err(InvalidValue::new("--seeds", 0, "at least 1").into());
    }
    if seed.checked_add(seeds - 1).is_none() {
        return Err(InvalidValue::new("--seed", seed, "small enough for all seeds that follow it").into());
    }
    if trace.is_some() && seeds > 1 {
        return Err(InvalidValue::new("--seeds", seeds, "1 with --trace: a trace is of one run").into());
    }
    Ok(Sim {
        scenario: path(matches, "scenario")?
            .ok_or_else(|| CliError::new("--scenario <FILE> is missing; it is required"))?,
        seeds,
        seed,
        policy: text(matches, "policy").map(known_policy).transpose()?,
        trace,
        json: matches.get_flag("json"),
    })
}

pub(super) fn diff(matches: &ArgMatches) -> Diff {
    let file = |name| text(matches, name).map(PathBuf::from).unwrap_or_default();
    Diff { left: file("left"), right: file("right") }
}

/// Ten gigabits per second between machines of one switch.
const LAN: CostModel =
    CostModel { alpha: 50e-6, overhead: 12e-6, bandwidth: 1.25e9, gamma: 5e-11, burst: 64 << 10 };

/// One gigabit per second between two sites.
const WAN: CostModel =
    CostModel { alpha: 20e-3, overhead: 12e-6, bandwidth: 125e6, gamma: 5e-11, burst: 64 << 10 };

/// `lan`, or `alpha=50us,bandwidth=1.25e9`.
fn network(text: &str) -> Result<CostModel, InvalidValue> {
    const FLAG: &str = "--network";
    const FORM: &str = "loopback, lan, wan, or alpha=TIME,bandwidth=BYTES_PER_S";
    let refused = |hint: String| InvalidValue::new(FLAG, format!("`{text}`"), format!("{FORM}{hint}"));
    match text {
        "loopback" => return Ok(CostModel::LOOPBACK),
        "lan" => return Ok(LAN),
        "wan" => return Ok(WAN),
        _ => {}
    }
    let (mut alpha, mut bandwidth) = (None, None);
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            let hint =
                nearest(text, &["loopback", "lan", "wan"]).map(|name| format!("; did you mean `{name}`?"));
            return Err(refused(hint.unwrap_or_default()));
        };
        match key.trim() {
            "alpha" => alpha = Some(named_duration("--network alpha", value.trim())?),
            "bandwidth" => {
                let expected = "bytes per second, at least 1, such as 1.25e9";
                let number = value.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 1.0);
                let refused = || InvalidValue::new("--network bandwidth", value, expected);
                bandwidth = Some(number.ok_or_else(refused)?);
            }
            _ => return Err(refused(String::new())),
        }
    }
    match (alpha, bandwidth) {
        (Some(alpha), Some(bandwidth)) => {
            Ok(CostModel { alpha: Duration::as_secs_f64(&alpha), bandwidth, ..LAN })
        }
        _ => Err(refused(String::new())),
    }
}
