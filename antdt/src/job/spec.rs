//! The settings of a job: one plain struct, from a command line, an environment, a job file or Rust.
//!
//! A setting is one entry of the table below. Its name (`global-batch-size`) is that of the flag
//! (`--global-batch-size`), of the environment variable (`ANTDT_GLOBAL_BATCH_SIZE`) and of the job file's key; its
//! documentation is the help text. [`JobSpec::set`] reads its text form, [`JobSpec::validate`] checks the settings
//! together. Both refuse with one line that names the flag and the remedy.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use antdt_collective::schedule::Choice;
use antdt_controller::policy::{self, Policy, PolicyError};
use antdt_core::InvalidValue;
use antdt_core::port::ACKS_MAX;
use antdt_core::text::{format_duration, nearest};
use antdt_job::limits::MASTER_TIMEOUT;
use antdt_job::mode::{self, SyncMode};
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

use super::choice::{DataFormat, LogFormat, Sharding, Workload};
use super::data_source::DataSource;
use super::setting::{Setting, settings};
use super::straggler::StragglerSpec;
use crate::net;

#[cfg(test)]
mod tests;

/// Workers, or servers, that are started on one machine: beyond, a slip of the hand is likelier than a wish.
const PROCESSES_MAX: u32 = 1 << 12;

/// The settings of one policy, by name: what a job file says in `[policy.nd]`. Only the policy knows what they mean.
pub type PolicySettings = Map<String, Json>;

settings! {
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
    ///
    /// It is serialised as a job file says it: one key per setting.
    pub struct JobSpec;

    /// Worker processes on this machine.
    workers: u32 = 1, "nproc-per-node", "N", least 1;
    /// Parameter servers, for a --sync that keeps the model on servers.
    servers: u32 = 0, "servers", "N";
    /// How workers combine what they compute.
    sync: SyncMode = SyncMode::default(), "sync", "MODE";
    /// Policy that decides how the job reacts to stragglers.
    policy: String = "nd".to_owned(), "policy", "NAME", among policy::names();
    /// Built-in model that is trained.
    workload: Workload = Workload::DeepFm, "workload", "NAME";
    /// The samples: a file, a folder, or synthetic:ROWS. Required unless the job runs a program of its own.
    // Without a variable: ANTDT_DATA names the folder of data sets that tests and benchmarks look in.
    data: Option<DataSource> = None, "data", "SOURCE", no variable;
    /// Format of the data.
    format: Option<DataFormat> = None, "format", "NAME", unset "detected";
    /// Share of the rows that are held out for evaluation, chosen by the seed: from 0 to below 1.
    eval_fraction: f64 = 0.0, "eval-fraction", "SHARE";
    /// Passes over the data.
    epochs: u32 = 1, "epochs", "N", least 1;
    /// Samples per step over all workers, which divide them among themselves.
    global_batch_size: u32 = 256, "global-batch-size", "SAMPLES", least 1;
    /// The number that all randomness of the job comes from.
    seed: u64 = 0, "seed", "N";
    /// How samples are divided among the workers: from the ledger as they go, or in equal shares from the start.
    sharding: Sharding = Sharding::Dynamic, "sharding", "KIND";
    /// Samples per shard.
    shard_len: Option<u64> = None, "shard-len", "SAMPLES", unset "derived from data, batch and workers";
    /// Unreadable samples that the job may go on without; with 0 the first shard that has one ends the job.
    max_quarantined: u64 = 0, "max-quarantined", "SAMPLES";
    /// Step size of the optimizer.
    learning_rate: Option<f32> = None, "learning-rate", "RATE", unset "the workload's";
    /// Speed that every worker appears to have: it computes real gradients, then waits.
    emulate_speed: Option<f64> = None, "emulate-speed", "SAMPLES_PER_S", unset "the machine's";
    /// An emulated straggler: worker=N,slow=FACTOR, then any of from=10s, to=60s and restart=keeps or restart=cures.
    stragglers: Vec<StragglerSpec> = Vec::new(), "straggler", "SPEC";
    /// Times that one node is started again before the job fails.
    // As DLRover: three relaunches of a node.
    max_restarts: u32 = 3, "max-restarts", "N";
    /// Folder that report.json and report.html are written to.
    report_dir: Option<PathBuf> = None, "report-dir", "DIR", unset "no report";
    /// File that records every event, answer and effect of the master, to be replayed and simulated.
    record: Option<PathBuf> = None, "record", "FILE", unset "no recording";
    /// Address or name that the master and the nodes listen on, without a port; 0.0.0.0 or :: is all addresses.
    bind: String = "127.0.0.1".to_owned(), "bind", "ADDR";
    /// Address or name by which other hosts reach this one, without a port.
    advertise: Option<String> = None, "advertise", "ADDR", unset "the one of --bind";
    /// Port that the master listens on; 0 takes a free one.
    master_port: u16 = 0, "master-port", "PORT";
    /// Folder by which antdt status and antdt stop reach the job.
    run_dir: Option<PathBuf> = None, "run-dir", "DIR", unset "REPORT_DIR/run, else one in the user's state folder";
    /// Name of the job.
    job_id: Option<String> = None, "job-id", "NAME", unset "made up";
    /// Interval between two questions to the policy.
    // A decision costs microseconds; five a second react well before a batch of a few hundred ms is over.
    control_tick: Duration = Duration::from_millis(200), "control-tick", "TIME";
    /// Interval between two heartbeats of a node.
    heartbeat: Duration = Duration::from_millis(500), "heartbeat", "TIME";
    /// Silence after which a node counts as lost; at least two heartbeats.
    // Twenty missed heartbeats: a busy machine may skip several in a row.
    silence_limit: Duration = Duration::from_secs(10), "silence-limit", "TIME";
    /// Silence of the master after which a node ends itself; at least two heartbeats.
    master_grace: Duration = MASTER_TIMEOUT, "master-grace", "TIME";
    /// Longest wait for a peer within one collective operation.
    collective_timeout: Duration = Duration::from_secs(30), "collective-timeout", "TIME";
    /// Algorithm of all-reduce, for a --sync that keeps the model in the workers.
    algorithm: Choice = Choice::default(), "algorithm", "NAME";
    /// No progress line and no table.
    quiet: bool = false, "quiet", "";
    /// What is logged, as a tracing filter: error, warn, info, debug, trace, or by module such as antdt_shard=debug.
    log: String = "warn".to_owned(), "log", "FILTER";
    /// How log lines are written.
    log_format: LogFormat = LogFormat::Text, "log-format", "KIND";

    others:
    /// Settings of policies by the policy's name: the tables `[policy.NAME]` of a job file.
    policy_settings: BTreeMap<String, PolicySettings> = BTreeMap::new();
    /// The user's own program and its arguments, started in place of the built-in workload.
    program: Option<Vec<String>> = None;
}

/// The key of the user's program in a job file; on a command line it stands after `--`.
const PROGRAM: &str = "program";

/// The key of the policy, and of the tables with the settings of policies.
const POLICY: &str = "policy";

/// The policy's own name where tables stand beside it: `[policy] name = "nd"`.
const POLICY_NAME: &str = "name";

impl JobSpec {
    /// Returns the setting of that name.
    ///
    /// # Errors
    /// If there is none, with the nearest one.
    pub fn setting(name: &str) -> Result<&'static Setting, InvalidValue> {
        Self::SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
            let names: Vec<&str> = Self::SETTINGS.iter().map(|setting| setting.name).collect();
            let remedy = match nearest(name, &names) {
                Some(known) => format!("a setting; did you mean `{known}`?"),
                None => format!("one of {}", names.join(", ")),
            };
            InvalidValue::new("setting", format!("`{name}`"), remedy)
        })
    }

    /// Returns every key of a job file.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        Self::SETTINGS.iter().map(|setting| setting.name).chain([PROGRAM])
    }

    /// Reads one setting from its text form. A value of a list is added to it, any other value replaces the old one.
    ///
    /// # Errors
    /// If there is no such setting (with the nearest one), or the text does not read as its value. The error's field
    /// is the flag.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), InvalidValue> {
        let setting = Self::setting(name)?;
        setting.check_name(text)?;
        (setting.set)(self, text)
    }

    /// Gives a setting its default value again.
    ///
    /// # Errors
    /// If there is no such setting.
    pub fn reset(&mut self, name: &str) -> Result<(), InvalidValue> {
        let setting = Self::setting(name)?;
        (setting.read)(self, &(setting.write)(&Self::default()))
    }

    /// Reads one key of a job file. The value replaces the old one; tables of policies add to those that are there.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn put(&mut self, key: &str, value: &Json) -> Result<(), InvalidValue> {
        match (key, value) {
            (PROGRAM, Json::Null) => self.program = None,
            (PROGRAM, words) => {
                let refused = || InvalidValue::new(PROGRAM, words, "a list of words");
                let text = |word: &Json| word.as_str().map(str::to_owned).ok_or_else(refused);
                let words = words.as_array().ok_or_else(refused)?;
                self.program = Some(words.iter().map(text).collect::<Result<_, _>>()?);
            }
            (POLICY, Json::Object(tables)) => {
                for (name, value) in tables {
                    match value {
                        Json::Object(settings) => {
                            self.policy_settings.entry(name.clone()).or_default().extend(settings.clone());
                        }
                        Json::String(text) if name == POLICY_NAME => self.policy.clone_from(text),
                        other => {
                            let field = format!("--{POLICY} {name}");
                            let expected = "in the table of a policy, such as [policy.nd]";
                            return Err(InvalidValue::new(field, other, expected));
                        }
                    }
                }
            }
            (name, value) => (Self::setting(name)?.read)(self, value)?,
        }
        Ok(())
    }

    /// Returns all settings as a job file says them; what is not set is null.
    pub fn to_json(&self) -> Map<String, Json> {
        let mut json: Map<String, Json> =
            Self::SETTINGS.iter().map(|setting| (setting.name.to_owned(), (setting.write)(self))).collect();
        if !self.policy_settings.is_empty() {
            let mut tables = Map::new();
            tables.insert(POLICY_NAME.to_owned(), json!(self.policy));
            for (name, settings) in &self.policy_settings {
                tables.insert(name.clone(), Json::Object(settings.clone()));
            }
            json.insert(POLICY.to_owned(), Json::Object(tables));
        }
        json.insert(PROGRAM.to_owned(), json!(self.program));
        json
    }

    /// Returns the settings in text form, for people; what is not set is left out. Settings of policies are called
    /// `policy.nd.window`.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |value: Json| match value {
            Json::Null => None,
            Json::String(text) => Some(text),
            Json::Array(values) if values.is_empty() => None,
            other => Some(other.to_string()),
        };
        let mut json = self.to_json();
        json.insert(POLICY.to_owned(), json!(self.policy));
        for (policy, settings) in &self.policy_settings {
            for (name, value) in settings {
                json.insert(format!("{POLICY}.{policy}.{name}"), value.clone());
            }
        }
        json.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
    }

    /// Checks that what must be one of some names is one.
    ///
    /// # Errors
    /// With the first name that is unknown, and the nearest known one.
    pub fn check_names(&self) -> Result<(), InvalidValue> {
        for setting in Self::SETTINGS {
            if let Json::String(text) = (setting.write)(self) {
                setting.check_name(&text)?;
            }
        }
        let policy = Self::setting(POLICY)?;
        self.policy_settings.keys().try_for_each(|name| {
            policy
                .check_name(name)
                .map_err(|error| InvalidValue { field: "[policy.…]".to_owned(), ..error })
        })
    }

    /// Makes the policy with the settings that the job has for it.
    ///
    /// # Errors
    /// If there is no such policy or setting, or a value cannot be; the error names the table and the key.
    pub fn built_policy(&self) -> Result<Box<dyn Policy>, PolicyError> {
        let settings = self.policy_settings.get(&self.policy);
        let texts = settings.into_iter().flatten().map(|(name, value)| match value {
            Json::String(text) => Ok((name.clone(), text.clone())),
            Json::Number(_) | Json::Bool(_) => Ok((name.clone(), value.to_string())),
            Json::Null | Json::Array(_) | Json::Object(_) => {
                let field = format!("[policy.{}] {name}", self.policy);
                Err(InvalidValue::new(field, value, "a text, a number, true or false"))
            }
        });
        policy::build(&self.policy, &texts.collect::<Result<_, _>>()?)
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// With the first setting that cannot be, naming the flag and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        for setting in Self::SETTINGS {
            setting.check_least(self)?;
        }
        self.check_names()?;
        self.built_policy().map_err(|error| match error {
            PolicyError::Setting(error) => error,
            other => InvalidValue::new("--policy", &self.policy, other.to_string()),
        })?;
        for (flag, processes) in [("--nproc-per-node", self.workers), ("--servers", self.servers)] {
            if processes > PROCESSES_MAX {
                let expected = format!("at most {PROCESSES_MAX} processes of this machine");
                return Err(InvalidValue::new(flag, processes, expected));
            }
        }
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
        net::host("--bind", &self.bind)?;
        if let Some(advertise) = &self.advertise {
            net::host("--advertise", advertise)?;
        }
        let beats = self.heartbeat.saturating_mul(2);
        if self.master_grace < beats {
            let expected = format!("at least two heartbeats, {}", format_duration(beats));
            return Err(InvalidValue::new("--master-grace", format_duration(self.master_grace), expected));
        }
        if self.silence_limit < beats {
            let expected = format!("at least two heartbeats, {}", format_duration(beats));
            return Err(InvalidValue::new("--silence-limit", format_duration(self.silence_limit), expected));
        }
        Ok(())
    }

    fn validate_servers(&self) -> Result<(), InvalidValue> {
        match (self.sync.capabilities().needs_servers(), self.servers) {
            (true, 0) => {
                let expected =
                    format!("at least 1 with --sync {}, which keeps the model on servers", self.sync);
                Err(InvalidValue::new("--servers", 0, expected))
            }
            (false, servers) if servers > 0 => {
                let expected = format!(
                    "0 with --sync {}; choose --sync {} to use servers",
                    self.sync,
                    mode::with_servers()
                );
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

impl Serialize for JobSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(to)
    }
}

impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = JobSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the settings of a job by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JobSpec, A::Error> {
                let mut spec = JobSpec::default();
                while let Some((key, value)) = map.next_entry::<String, Json>()? {
                    spec.put(&key, &value).map_err(de::Error::custom)?;
                }
                Ok(spec)
            }
        }

        from.deserialize_map(Keys)
    }
}
