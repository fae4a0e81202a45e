//! The settings of a job: one plain struct, from a command line, an environment, a job file or Rust.
//!
//! Every setting has one name (`global-batch-size`), used by the flag (`--global-batch-size`), the environment
//! variable (`ANTDT_GLOBAL_BATCH_SIZE`) and the job file's key. [`JobSpec::set`] reads its text form,
//! [`JobSpec::validate`] checks the settings together. Both refuse with one line that names the flag and the remedy.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use antdt_collective::schedule::Choice;
use antdt_controller::policy;
use antdt_core::port::ACKS_MAX;
use antdt_core::{InvalidValue, SyncMode};
use serde::{Deserialize, Serialize};

mod text;

#[cfg(test)]
mod tests;

pub use text::{format_duration, nearest, parse_duration};

/// Workers, or servers, that are started on one machine: beyond, a slip of the hand is likelier than a wish.
const PROCESSES_MAX: u32 = 1 << 12;

/// All settings of a job.
///
/// ```
/// use antdt::job::JobSpec;
/// let mut spec = JobSpec { workers: 4, epochs: 3, ..JobSpec::default() };
/// spec.set("data", "synthetic:10000")?;
/// spec.set("straggler", "worker=1,slow=4,from=10s,to=60s")?;
/// spec.validate()?;
/// # Ok::<(), antdt_core::InvalidValue>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct JobSpec {
    /// Worker processes (`--nproc-per-node`, torchrun's word).
    #[serde(rename = "nproc-per-node")]
    pub workers: u32,
    /// Parameter servers; 0 with `allreduce`.
    pub servers: u32,
    /// How gradients are combined.
    #[serde(with = "text::sync_mode")]
    pub sync: SyncMode,
    /// Name of the policy that decides what is done about stragglers.
    pub policy: String,
    /// Which built-in model is trained.
    pub workload: Workload,
    /// Where the samples come from. Required unless `program` is given.
    #[serde(with = "text::option")]
    pub data: Option<DataSource>,
    /// Format of the data; `None` detects it.
    pub format: Option<DataFormat>,
    /// Share of the samples held out for evaluation, chosen by the seed: 0 to less than 1.
    pub eval_fraction: f64,
    /// Passes over the data.
    pub epochs: u32,
    /// Samples per synchronous step over all workers; divided among them at the start.
    pub global_batch_size: u32,
    /// The number all randomness of the job comes from.
    pub seed: u64,
    /// Who gets which samples.
    pub sharding: Sharding,
    /// Samples per shard; `None` derives it from the data, the batch and the number of workers.
    pub shard_len: Option<u64>,
    /// Samples that may be given up over the whole job because they cannot be read; with 0 the first such shard ends it.
    pub max_quarantined: u64,
    /// Step size of the optimizer; `None` is the workload's own.
    pub learning_rate: Option<f32>,
    /// Samples per second that one worker appears to compute; `None` is the machine's real speed.
    pub emulate_speed: Option<f64>,
    /// Who is slow, when, and by how much.
    #[serde(rename = "straggler", with = "text::list")]
    pub stragglers: Vec<StragglerSpec>,
    /// Times that one node is started again before the job fails.
    pub max_restarts: u32,
    /// Folder that `report.json` and `report.html` are written to; `None` writes neither.
    pub report_dir: Option<PathBuf>,
    /// File that every event, answer and effect of the master is recorded in; `None` records nothing.
    pub record: Option<PathBuf>,
    /// Address the master listens on.
    pub master_addr: String,
    /// Port the master listens on; 0 takes a free one.
    pub master_port: u16,
    /// Name of the job; `None` makes one up.
    pub job_id: Option<String>,
    /// How often the policy is asked.
    #[serde(with = "text::duration")]
    pub control_tick: Duration,
    /// How often a node says that it is alive.
    #[serde(with = "text::duration")]
    pub heartbeat: Duration,
    /// Silence after which a node counts as lost.
    #[serde(with = "text::duration")]
    pub silence_limit: Duration,
    /// Longest wait for a peer within one collective operation.
    #[serde(with = "text::duration")]
    pub collective_timeout: Duration,
    /// How all-reduces are done, with `allreduce`.
    #[serde(with = "text::displayed")]
    pub algorithm: Choice,
    /// No progress line and no table.
    pub quiet: bool,
    /// What is logged, as a `tracing` filter: `warn`, `info`, `antdt_shard=debug`.
    pub log: String,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// The user's own program and its arguments, started in place of the built-in workload.
    pub program: Option<Vec<String>>,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            workers: 1,
            servers: 0,
            sync: SyncMode::AllReduce,
            policy: "nd".to_owned(),
            workload: Workload::DeepFm,
            data: None,
            format: None,
            eval_fraction: 0.0,
            epochs: 1,
            global_batch_size: 256,
            seed: 0,
            sharding: Sharding::Dynamic,
            shard_len: None,
            max_quarantined: 0,
            learning_rate: None,
            emulate_speed: None,
            stragglers: Vec::new(),
            // As DLRover: three relaunches of a node.
            max_restarts: 3,
            report_dir: None,
            record: None,
            master_addr: "127.0.0.1".to_owned(),
            master_port: 0,
            job_id: None,
            // A decision costs microseconds; five a second react well before a batch of a few hundred ms is over.
            control_tick: Duration::from_millis(200),
            heartbeat: Duration::from_millis(500),
            // Twenty missed heartbeats: a busy machine may skip several in a row.
            silence_limit: Duration::from_secs(10),
            collective_timeout: Duration::from_secs(30),
            algorithm: Choice::default(),
            quiet: false,
            log: "warn".to_owned(),
            log_format: LogFormat::Text,
            program: None,
        }
    }
}

impl JobSpec {
    /// Every setting's name, in the order of the help text.
    pub const SETTINGS: [&'static str; 31] = [
        "nproc-per-node",
        "servers",
        "sync",
        "policy",
        "workload",
        "data",
        "format",
        "eval-fraction",
        "epochs",
        "global-batch-size",
        "seed",
        "sharding",
        "shard-len",
        "max-quarantined",
        "learning-rate",
        "emulate-speed",
        "straggler",
        "max-restarts",
        "report-dir",
        "record",
        "master-addr",
        "master-port",
        "job-id",
        "control-tick",
        "heartbeat",
        "silence-limit",
        "collective-timeout",
        "algorithm",
        "quiet",
        "log",
        "log-format",
    ];

    /// Reads one setting from its text form. `straggler` is added to the list, all others replace the old value.
    ///
    /// # Errors
    /// If there is no such setting (with the nearest one), or the text does not read as its value. The error's field
    /// is the flag.
    pub fn set(&mut self, setting: &str, text: &str) -> Result<(), InvalidValue> {
        match setting {
            "nproc-per-node" => self.workers = whole(setting, text)?,
            "servers" => self.servers = whole(setting, text)?,
            "sync" => self.sync = text::parse_sync_mode(text)?,
            "policy" => self.policy = known_policy(text)?.to_owned(),
            "workload" => self.workload = text.parse()?,
            "data" => self.data = Some(text.parse()?),
            "format" => self.format = Some(text.parse()?),
            "eval-fraction" => self.eval_fraction = number(setting, text)?,
            "epochs" => self.epochs = whole(setting, text)?,
            "global-batch-size" => self.global_batch_size = whole(setting, text)?,
            "seed" => self.seed = whole(setting, text)?,
            "sharding" => self.sharding = text.parse()?,
            "shard-len" => self.shard_len = Some(whole(setting, text)?),
            "max-quarantined" => self.max_quarantined = whole(setting, text)?,
            "learning-rate" => self.learning_rate = Some(number(setting, text)?),
            "emulate-speed" => self.emulate_speed = Some(number(setting, text)?),
            "straggler" => self.stragglers.push(text.parse()?),
            "max-restarts" => self.max_restarts = whole(setting, text)?,
            "report-dir" => self.report_dir = Some(PathBuf::from(not_empty(setting, text)?)),
            "record" => self.record = Some(PathBuf::from(not_empty(setting, text)?)),
            "master-addr" => self.master_addr = not_empty(setting, text)?.to_owned(),
            "master-port" => self.master_port = whole(setting, text)?,
            "job-id" => self.job_id = Some(not_empty(setting, text)?.to_owned()),
            "control-tick" => self.control_tick = duration(setting, text)?,
            "heartbeat" => self.heartbeat = duration(setting, text)?,
            "silence-limit" => self.silence_limit = duration(setting, text)?,
            "collective-timeout" => self.collective_timeout = duration(setting, text)?,
            "algorithm" => self.algorithm = algorithm(text)?,
            "quiet" => self.quiet = truth(setting, text)?,
            "log" => self.log = not_empty(setting, text)?.to_owned(),
            "log-format" => self.log_format = text.parse()?,
            _ => {
                let remedy = match nearest(setting, &Self::SETTINGS) {
                    Some(known) => format!("a setting; did you mean `{known}`?"),
                    None => format!("one of {}", Self::SETTINGS.join(", ")),
                };
                return Err(InvalidValue::new("setting", format!("`{setting}`"), remedy));
            }
        }
        Ok(())
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// With the first setting that cannot be, naming the flag and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        at_least_one("--nproc-per-node", self.workers)?;
        for (flag, processes) in [("--nproc-per-node", self.workers), ("--servers", self.servers)] {
            if processes > PROCESSES_MAX {
                let expected = format!("at most {PROCESSES_MAX} processes of this machine");
                return Err(InvalidValue::new(flag, processes, expected));
            }
        }
        at_least_one("--epochs", self.epochs)?;
        at_least_one("--global-batch-size", self.global_batch_size)?;
        known_policy(&self.policy)?;
        self.validate_servers()?;
        self.validate_data()?;
        if self.global_batch_size < self.workers {
            let expected =
                format!("at least {}, one sample for each worker (--nproc-per-node)", self.workers);
            return Err(InvalidValue::new("--global-batch-size", self.global_batch_size, expected));
        }
        if let Some(len) = self.shard_len {
            let least = u64::from(self.global_batch_size).div_ceil(ACKS_MAX as u64);
            if len < least {
                let expected = format!(
                    "at least {least}, so that a batch is of {ACKS_MAX} shards at most (--global-batch-size); leave it \
                     out to derive it"
                );
                return Err(InvalidValue::new("--shard-len", len, expected));
            }
        }
        if let Some(rate) = self.learning_rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(InvalidValue::new("--learning-rate", rate, "a finite number above 0, such as 0.05"));
        }
        if let Some(speed) = self.emulate_speed
            && !(speed.is_finite() && speed > 0.0)
        {
            let expected = "above 0 samples per second; leave it out to run at the machine's speed";
            return Err(InvalidValue::new("--emulate-speed", speed, expected));
        }
        for straggler in &self.stragglers {
            straggler.validate(self.workers)?;
        }
        for (flag, duration) in [
            ("--control-tick", self.control_tick),
            ("--heartbeat", self.heartbeat),
            ("--collective-timeout", self.collective_timeout),
        ] {
            if duration < Duration::from_millis(1) {
                return Err(InvalidValue::new(flag, format_duration(duration), "at least 1ms"));
            }
        }
        let beats = self.heartbeat.saturating_mul(2);
        if self.silence_limit < beats {
            let expected = format!("at least two heartbeats, {}", format_duration(beats));
            return Err(InvalidValue::new("--silence-limit", format_duration(self.silence_limit), expected));
        }
        Ok(())
    }

    fn validate_servers(&self) -> Result<(), InvalidValue> {
        match (self.sync.has_servers(), self.servers) {
            (true, 0) => {
                let expected =
                    format!("at least 1 with --sync {}, which keeps the model on servers", self.sync.name());
                Err(InvalidValue::new("--servers", 0, expected))
            }
            (false, servers) if servers > 0 => {
                let expected = "0 with --sync allreduce; choose --sync ps-bsp or ps-asp to use servers";
                Err(InvalidValue::new("--servers", servers, expected))
            }
            _ => Ok(()),
        }
    }

    fn validate_data(&self) -> Result<(), InvalidValue> {
        match &self.data {
            None if self.program.is_none() => {
                let expected = "given: a file or folder, or synthetic:ROWS such as synthetic:100000";
                return Err(InvalidValue::new("--data", "(nothing)", expected));
            }
            Some(DataSource::Synthetic { rows: 0 }) => {
                return Err(InvalidValue::new(
                    "--data",
                    "synthetic:0",
                    "at least 1 row, such as synthetic:100000",
                ));
            }
            _ => {}
        }
        if !(0.0..1.0).contains(&self.eval_fraction) {
            let expected = "at least 0 and below 1, such as 0.2";
            return Err(InvalidValue::new("--eval-fraction", self.eval_fraction, expected));
        }
        if self.program.as_ref().is_some_and(Vec::is_empty) {
            return Err(InvalidValue::new("--", "(nothing)", "followed by a program"));
        }
        Ok(())
    }

    /// How much longer than normal a worker takes at a moment of the job: 1 is normal speed.
    ///
    /// `restarts` is the number of lives the worker had before; `at` is the time since the job's start. Several
    /// entries for one worker multiply.
    pub fn slowdown(&self, worker: u32, restarts: u32, at: Duration) -> f64 {
        self.stragglers
            .iter()
            .filter(|straggler| straggler.worker == worker)
            .map(|straggler| straggler.factor(restarts, at))
            .product()
    }
}

/// The built-in models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Factorisation machine beside a multi-layer perceptron, over shared embeddings.
    DeepFm,
    /// DeepFM's parts with a compressed interaction network.
    XDeepFm,
}

impl Workload {
    const ALL: [Self; 2] = [Self::DeepFm, Self::XDeepFm];

    /// As written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeepFm => "deepfm",
            Self::XDeepFm => "xdeepfm",
        }
    }
}

impl FromStr for Workload {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        choose("--workload", text, &Self::ALL, Self::name)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Formats of data on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    /// Tab-separated: label, 13 integers, 26 categories, empty = missing; plain or `.gz`.
    Criteo,
    /// The UCI Adult census files.
    Adult,
}

impl DataFormat {
    const ALL: [Self; 2] = [Self::Criteo, Self::Adult];

    /// As written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Criteo => "criteo",
            Self::Adult => "adult",
        }
    }
}

impl FromStr for DataFormat {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        choose("--format", text, &Self::ALL, Self::name)
    }
}

impl fmt::Display for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who gets which samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// Workers take shards from the ledger as they finish earlier ones.
    Dynamic,
    /// Every worker owns an equal share from the start: what AntDT is compared with.
    Static,
}

impl Sharding {
    const ALL: [Self; 2] = [Self::Dynamic, Self::Static];

    /// As written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Static => "static",
        }
    }
}

impl FromStr for Sharding {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        choose("--sharding", text, &Self::ALL, Self::name)
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    const ALL: [Self; 2] = [Self::Text, Self::Json];

    /// As written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        choose("--log-format", text, &Self::ALL, Self::name)
    }
}

/// Where samples come from. Text form: `synthetic:ROWS`, or a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A file or a folder.
    Path(PathBuf),
    /// Criteo-shaped clicks made from the job's seed.
    Synthetic {
        /// How many.
        rows: u64,
    },
}

impl FromStr for DataSource {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text.strip_prefix("synthetic:") {
            Some(rows) => {
                // Underscores group digits, as in Rust.
                let digits: String = rows.chars().filter(|c| *c != '_').collect();
                let rows = digits.parse().map_err(|_| {
                    InvalidValue::new(
                        "--data",
                        text,
                        "synthetic:ROWS with a whole number, such as synthetic:100000",
                    )
                })?;
                Ok(Self::Synthetic { rows })
            }
            None => {
                let expected = "a file or folder, or synthetic:ROWS such as synthetic:100000";
                if text.is_empty() || text == "synthetic" {
                    return Err(InvalidValue::new("--data", format!("`{text}`"), expected));
                }
                Ok(Self::Path(PathBuf::from(text)))
            }
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Synthetic { rows } => write!(f, "synthetic:{rows}"),
        }
    }
}

/// What a restart does to an emulated straggler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartEffect {
    /// The new process is as slow: the cause is the place.
    #[default]
    Keeps,
    /// The new process is not slow: the cause stayed with the old one.
    Cures,
}

/// One emulated straggler. Text form: `worker=1,slow=4,from=10s,to=60s,restart=cures`; only `worker` and `slow` are
/// required.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StragglerSpec {
    /// Index of the worker.
    pub worker: u32,
    /// How many times longer it takes than normal; at least 1.
    pub slow: f64,
    /// From when on, since the job's start.
    pub from: Duration,
    /// Until when; `None` is to the end.
    pub to: Option<Duration>,
    /// What a restart does to it.
    pub restart: RestartEffect,
}

impl StragglerSpec {
    /// How many times longer than normal: 1 while it is not slow.
    pub fn factor(&self, restarts: u32, at: Duration) -> f64 {
        let cured = self.restart == RestartEffect::Cures && restarts > 0;
        let active = at >= self.from && self.to.is_none_or(|to| at < to);
        if active && !cured { self.slow } else { 1.0 }
    }

    fn validate(&self, workers: u32) -> Result<(), InvalidValue> {
        let flag = "--straggler";
        if self.worker >= workers {
            let expected = match workers {
                1 => "0: there is one worker (--nproc-per-node 1)".to_owned(),
                _ => format!(
                    "0 to {}: there are {workers} workers (--nproc-per-node)",
                    workers.saturating_sub(1)
                ),
            };
            return Err(InvalidValue::new(format!("{flag} worker"), self.worker, expected));
        }
        if !(self.slow.is_finite() && self.slow >= 1.0) {
            let expected = "at least 1: how many times longer it takes than normal";
            return Err(InvalidValue::new(format!("{flag} slow"), self.slow, expected));
        }
        if let Some(to) = self.to
            && self.from >= to
        {
            let expected = format!("before to={}", format_duration(to));
            return Err(InvalidValue::new(format!("{flag} from"), format_duration(self.from), expected));
        }
        Ok(())
    }
}

impl FromStr for StragglerSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const FORM: &str = "worker=N,slow=FACTOR[,from=10s][,to=60s][,restart=keeps|cures]";
        const KEYS: [&str; 5] = ["worker", "slow", "from", "to", "restart"];
        let refused = || InvalidValue::new("--straggler", format!("`{text}`"), FORM);
        let (mut worker, mut slow) = (None, None);
        let (mut from, mut to, mut restart) = (Duration::ZERO, None, RestartEffect::Keeps);
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or_else(refused)?;
            let field = format!("--straggler {key}");
            match key {
                "worker" => {
                    let expected = "the index of a worker, such as 1";
                    worker = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "slow" => {
                    let expected = "a number of at least 1, such as 4";
                    slow = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "from" => from = text::named_duration(field, value)?,
                "to" => to = Some(text::named_duration(field, value)?),
                "restart" => {
                    restart = match value {
                        "keeps" => RestartEffect::Keeps,
                        "cures" => RestartEffect::Cures,
                        _ => return Err(InvalidValue::new(field, value, "keeps or cures")),
                    }
                }
                _ => {
                    let expected = match nearest(key, &KEYS) {
                        Some(known) => format!("a known word; did you mean `{known}`?"),
                        None => FORM.to_owned(),
                    };
                    return Err(InvalidValue::new("--straggler", format!("`{key}`"), expected));
                }
            }
        }
        let (Some(worker), Some(slow)) = (worker, slow) else { return Err(refused()) };
        Ok(Self { worker, slow, from, to, restart })
    }
}

impl fmt::Display for StragglerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker={},slow={}", self.worker, self.slow)?;
        if !self.from.is_zero() {
            write!(f, ",from={}", format_duration(self.from))?;
        }
        if let Some(to) = self.to {
            write!(f, ",to={}", format_duration(to))?;
        }
        if self.restart == RestartEffect::Cures {
            f.write_str(",restart=cures")?;
        }
        Ok(())
    }
}

fn flag(setting: &str) -> String {
    format!("--{setting}")
}

fn at_least_one(flag: &str, value: u32) -> Result<(), InvalidValue> {
    if value == 0 { Err(InvalidValue::new(flag, 0, "at least 1")) } else { Ok(()) }
}

/// A whole number; underscores group digits, as in Rust.
fn whole<T: FromStr>(setting: &str, text: &str) -> Result<T, InvalidValue> {
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let expected = format!("a whole number from 0 to below 2^{}", 8 * size_of::<T>());
    digits.parse().map_err(|_| InvalidValue::new(flag(setting), text, expected))
}

fn number<T: FromStr>(setting: &str, text: &str) -> Result<T, InvalidValue> {
    text.parse().map_err(|_| InvalidValue::new(flag(setting), text, "a number"))
}

fn duration(setting: &str, text: &str) -> Result<Duration, InvalidValue> {
    text::named_duration(flag(setting), text)
}

fn truth(setting: &str, text: &str) -> Result<bool, InvalidValue> {
    match text {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(InvalidValue::new(flag(setting), text, "true or false")),
    }
}

fn not_empty<'a>(setting: &str, text: &'a str) -> Result<&'a str, InvalidValue> {
    if text.is_empty() { Err(InvalidValue::new(flag(setting), "``", "not empty")) } else { Ok(text) }
}

fn algorithm(text: &str) -> Result<Choice, InvalidValue> {
    let names = || Choice::ALL.map(|choice| choice.to_string()).join(", ");
    text.parse()
        .map_err(|_| InvalidValue::new("--algorithm", format!("`{text}`"), format!("one of {}", names())))
}

fn known_policy(text: &str) -> Result<&str, InvalidValue> {
    match policy::by_name(text) {
        Ok(_) => Ok(text),
        Err(unknown) => Err(not_one_of("--policy", text, policy::NAMES, unknown.suggestion)),
    }
}

/// The one of `names` that `text` is.
fn one_of<'a>(flag: &str, text: &str, names: &[&'a str]) -> Result<&'a str, InvalidValue> {
    if let Some(name) = names.iter().find(|name| **name == text) {
        return Ok(name);
    }
    Err(not_one_of(flag, text, names, nearest(text, names)))
}

fn not_one_of(flag: &str, text: &str, names: &[&str], suggestion: Option<&str>) -> InvalidValue {
    let suggestion = suggestion.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
    InvalidValue::new(flag, text, format!("one of {}{suggestion}", names.join(", ")))
}

/// The one of `all` whose name is `text`.
fn choose<T: Copy>(
    flag: &str,
    text: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, InvalidValue> {
    let names: Vec<&str> = all.iter().map(|value| name(*value)).collect();
    let chosen = one_of(flag, text, &names)?;
    let place = names.iter().position(|name| *name == chosen).expect("one_of returns one of the names");
    Ok(all[place])
}
