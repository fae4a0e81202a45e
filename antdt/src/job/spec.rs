//! The settings of a job: one plain struct, from a command line, an environment, a job file or Rust.
//!
//! A setting is one entry of the table below. Its name (`global-batch-size`) is that of the flag
//! (`--global-batch-size`), of the environment variable (`ANTDT_GLOBAL_BATCH_SIZE`) and of the job file's key; its
//! documentation is the help text. [`JobSpec::set`] reads its text form, [`JobSpec::validate`] checks the settings
//! together. Both refuse with one line that names the flag and the remedy.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use antdt_collective::Compression;
use antdt_collective::schedule::Choice;
use antdt_controller::policy;
use antdt_core::text::nearest;
use antdt_core::{InvalidValue, NodeId};
use antdt_job::evaluation::{EarlyStopping, EvalEvery};
use antdt_job::head::CheckpointEvery;
use antdt_job::mode::SyncMode;
use antdt_launch::runtime as launcher;
use antdt_launch::runtime::source::HOST_SOURCES;
use antdt_model::{RateSchedule, optimizer};
use antdt_monitor::rule::{self, RatioRule};
use antdt_monitor::{Deadlines, HangConfig, LivenessConfig, MonitorConfig, WaitConfig};
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

use super::choice::{DataPlane, LogFormat, Sharding};
use super::data_spec::DataSpec;
use super::device::{DeviceSetting, DeviceSpec};
use super::elect::EtcdSpec;
use super::host_count::HostCount;
use super::hot_rows::HotRowsSpec;
use super::http_addr::HttpAddr;
use super::network::NetworkSpec;
use super::port_range::PortRange;
use super::processor::Processor;
use super::setting::{JobSetting, settings};
use super::straggler::StragglerSpec;
use super::streams::{RanksSpec, StreamsSpec};
use super::sync::SyncSpec;
use super::tables::{PartKind, Selected, Tables};
use crate::{gpu, transport, workload};

mod parts;
mod validate;

#[cfg(test)]
mod tests;

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

    /// Worker processes, on this machine unless the --launcher places them elsewhere; gpu starts one for each GPU of this machine, cpu
    /// one for each core that this process may use, and auto as gpu, or as cpu where there is no GPU.
    workers: u32 = 1, "nproc-per-node", "N", least 1, or COUNTED;
    /// Parameter servers; only for a --sync that keeps the model on servers.
    servers: u32 = 0, "servers", "N";
    /// Sync mode: how the gradients or models of the workers are combined.
    /// With auto, or auto=MODE,MODE, it is chosen when the first steps are measured.
    sync: SyncSpec = SyncSpec::default(), "sync", "MODE";
    /// Policy that decides how the job reacts to stragglers, or several joined by +, such as nd+backup.
    policy: String = policy::DEFAULT.to_owned(), "policy", "NAME", among policy::REGISTRY.names(), joined by "+";
    /// Write down what the policy would do, and do nothing; plans for a new membership are even.
    dry_run: bool = false, "dry-run", "";
    /// Rule that decides which worker is slow.
    pace_rule: String = RatioRule::NAME.to_owned(), "pace-rule", "NAME", among rule::REGISTRY.names();
    /// Built-in model to train.
    workload: String = workload::default_name(), "workload", "NAME", among workload::REGISTRY.names();
    /// The samples: a file, a folder, synthetic:ROWS, samples:NUMBER that a program of the user's has (-- PROGRAM), or, in a program
    /// built with the feature remote, a URL: s3://, gs://, az://, https://. Required unless the workers run such a program.
    // Without a variable: ANTDT_DATA names the folder of data sets that tests and benchmarks look in.
    data: Option<DataSpec> = None, "data", "SOURCE", no variable;
    /// Format of the data: one with fixed columns, or a table whose columns are told by their names.
    format: Option<String> = None, "format", "NAME", unset "detected", among workload::formats();
    /// Column of a table to predict: a name, or a condition on a column, such as rating>=4 or species=setosa.
    label: Option<String> = None, "label", "COLUMN", unset "the one that is called click, label, target, clicked, is_click or y";
    /// Columns of a table whose values are categories, separated by commas.
    categorical: Option<String> = None, "categorical", "COLUMNS", unset "inferred from the first rows";
    /// Columns of a table whose values are numbers, separated by commas.
    numeric: Option<String> = None, "numeric", "COLUMNS", unset "inferred from the first rows";
    /// Columns of a table that are not used, separated by commas.
    ignore: Option<String> = None, "ignore", "COLUMNS", unset "inferred from the first rows";
    /// What is learnt of the label of a table: to tell its values apart as classes, or to estimate a number.
    task: Option<String> = None, "task", "TASK", unset "inferred from the label's values", among workload::tasks();
    /// Share of the rows held out for evaluation, chosen by the seed; at least 0 and below 1.
    eval_fraction: f64 = 0.0, "eval-fraction", "SHARE";
    /// When the model is evaluated, besides the end of the job: epoch, after each one, or a number of epochs. Workers go on after
    /// that from the checkpoint that was evaluated, and servers are started again from it.
    eval_every: EvalEvery = EvalEvery::End, "eval-every", "INTERVAL";
    /// Ends the job after so many evaluations in a row without an improvement of a metric, such as 3:auc, or 3 for the loss; only
    /// with --eval-every and --eval-fraction.
    early_stopping: Option<EarlyStopping> = None, "early-stopping", "PATIENCE", unset "the job trains all of its epochs";
    /// Folder for row indexes and for copies of files that cannot be read by range.
    cache_dir: Option<PathBuf> = None, "cache-dir", "DIR", unset "antdt in the user's cache folder";
    /// How many times its own length a compressed file may unpack to; 1 GiB always may.
    unpack_limit: u32 = 100, "unpack-limit", "TIMES", least 1;
    /// Passes over the data.
    epochs: u32 = 1, "epochs", "N", least 1;
    /// Samples per step, over all workers; the master divides them into the workers' batch sizes.
    global_batch_size: u32 = 256, "global-batch-size", "SAMPLES", least 1;
    /// Seed of all randomness in the job.
    seed: u64 = 0, "seed", "N";
    /// How samples are assigned to workers: dynamic, a worker leases the next shard when it needs one; static, every worker
    /// has an equal share from the start.
    sharding: Sharding = Sharding::Dynamic, "sharding", "KIND";
    /// Samples per shard.
    shard_len: Option<u64> = None, "shard-len", "SAMPLES", unset "derived from data, batch and workers";
    /// Unreadable samples that the job tolerates; with 0 the first unreadable shard ends the job.
    max_quarantined: u64 = 0, "max-quarantined", "SAMPLES";
    /// Optimizer: the rule by which gradients change the parameters.
    optimizer: Option<String> = None, "optimizer", "NAME", unset "the workload's", among optimizer::REGISTRY.names();
    /// Learning rate: the step size of the optimizer.
    learning_rate: Option<f32> = None, "learning-rate", "RATE", unset "the workload's, or that of the --optimizer";
    /// Learning-rate schedule, in samples trained: constant, linear:total=N, cosine:total=N or step:every=N,factor=F; each
    /// takes warmup=N as well.
    lr_schedule: RateSchedule = RateSchedule::default(), "lr-schedule", "SCHEDULE";
    /// Gradient clipping: upper bound on the norm of a step's mean gradient, over all parameters.
    clip_norm: Option<f32> = None, "clip-norm", "NORM", unset "no clipping";
    /// Weight decay: this share of a parameter is added to its gradient, or is subtracted from the parameter by an optimizer
    /// with decoupled decay (adamw). A row of a table decays only in steps whose batch touches it.
    weight_decay: Option<f32> = None, "weight-decay", "SHARE", unset "the workload's, or that of the --optimizer";
    /// Emulated speed of every worker: it computes the real gradient, then waits until samples / speed have passed.
    emulate_speed: Option<f64> = None, "emulate-speed", "SAMPLES_PER_S", unset "no emulation";
    /// What the workers compute on: cpu, cuda (each on the next GPU of its host), cuda:N (all on that one) or auto (as cuda,
    /// and the CPU where there is no GPU). Or the device of some workers: class=NAME,worker=N or worker=N-M, then any of batch-max=SAMPLES, the largest micro-batch
    /// that fits, memory=SAMPLES, an emulated memory that the job has to find out, and speed=SAMPLES_PER_S and fixed=20ms, an emulated time of samples / speed and of each micro-batch.
    // Without a variable: ANTDT_DEVICE is the class of the node's own device.
    devices: Vec<DeviceSetting> = Vec::new(), "device", "SPEC", no variable;
    /// Rows of the model's table that each worker on a GPU keeps there, with what the optimizer keeps of them: a number, auto (as many as fit
    /// into a quarter of the GPU's memory) or off. Not yet tried on a GPU. Only for --sync allreduce; where none can lie there, all lie in the
    /// host's memory, and one warning of each worker says why.
    hot_rows: HotRowsSpec = HotRowsSpec::Off, "hot-rows", "ROWS";
    /// An emulated straggler: worker=N,slow=FACTOR or server=N,slow=FACTOR, then any of from=10s, to=60s and restart=keeps or restart=cures.
    stragglers: Vec<StragglerSpec> = Vec::new(), "straggler", "SPEC";
    /// Emulated links between workers, and between workers and servers, whose processes all run on this machine:
    /// bandwidth=20MB/s of each host's network card, then any of latency=1ms, per-host=WORKERS that share a card,
    /// servers=beside, server N on host N instead of apart, and slow=HOST:5MB/s.
    emulate_network: Option<NetworkSpec> = None, "emulate-network", "SPEC", unset "no emulation";
    /// Restarts of one node in a row, without a commit of it in between, after which its next failure ends the job, or
    /// leaves it with one worker less while --min-workers are left.
    // As DLRover: three relaunches of a node.
    max_restarts: u32 = 3, "max-restarts", "N";
    /// Workers with which the job still goes on when others keep failing.
    min_workers: u32 = 1, "min-workers", "N", least 1;
    /// Folder for report.json and report.html, and below them for what the job goes on from.
    report_dir: Option<PathBuf> = None, "report-dir", "DIR", unset "runs/JOB, unless --run-dir, --checkpoint-dir or --resume names a folder";
    /// Folder that checkpoints are kept in, which every node reaches by this path.
    checkpoint_dir: Option<PathBuf> = None, "checkpoint-dir", "DIR", unset "`checkpoints` in --run-dir or in REPORT_DIR/run; without either, no checkpoints";
    /// What makes a checkpoint due, besides the end of the job: a time such as 10m, a number of steps such as 500steps, or epoch.
    checkpoint_every: CheckpointEvery = CheckpointEvery::End, "checkpoint-every", "INTERVAL";
    /// Checkpoints that are kept: the newest so many.
    checkpoint_keep: u32 = 3, "checkpoint-keep", "N", least 1;
    /// Goes on from the newest checkpoint of a folder of checkpoints, a run directory or a report folder, or from the one checkpoint whose own folder it is; takes the job over where its processes live without a master. auto: the folder of this job, if there is something in it.
    // Of one job only: a variable would resume every job of a shell.
    resume: Option<PathBuf> = None, "resume", "DIR", unset "the job begins anew", no variable;
    /// Replace what an earlier job has left in the folders of this one: its report and its checkpoints.
    force: bool = false, "force", "";
    /// File in which every event, answer and effect of the master is recorded, for replay and simulation.
    record: Option<PathBuf> = None, "record", "FILE", unset "no recording";
    /// Address or name that the master and the nodes listen on, without a port; 0.0.0.0 or :: means all
    /// addresses.
    bind: String = "127.0.0.1".to_owned(), "bind", "ADDR";
    /// Address or name by which other hosts reach this one, without a port.
    advertise: Option<String> = None, "advertise", "ADDR", unset "the one of --bind";
    /// Hosts that run this same command, N or MIN:MAX; each starts --nproc-per-node workers, and hosts may have unequal numbers.
    nnodes: HostCount = HostCount::default(), "nnodes", "HOSTS";
    /// Position of this host among them; 0 has the master, which is else the one whose address the endpoint is.
    node_rank: Option<u32> = None, "node-rank", "RANK", unset "by the endpoint";
    /// Address at which the hosts meet, HOST or HOST:PORT of the first one, the same on all.
    rdzv_endpoint: Option<String> = None, "rdzv-endpoint", "HOST:PORT", unset "the job is of this host alone";
    /// File with the secret by which hosts let each other in, the same on all.
    rdzv_secret_file: Option<PathBuf> = None, "rdzv-secret-file", "FILE", unset "none, on the loopback interface only";
    /// Let hosts in without a secret, and encrypt nothing; else all connections of a job that leave its machine are encrypted.
    insecure: bool = false, "insecure", "";
    /// Connections for gradients and parameters; plain ones are for networks that the job trusts.
    data_plane: DataPlane = DataPlane::Tls, "data-plane", "KIND";
    /// How long hosts wait for each other.
    rdzv_timeout: Duration = Duration::from_secs(600), "rdzv-timeout", "TIME";
    /// Address at which workers of this host are reached, if not the one from which the endpoint is.
    local_addr: Option<String> = None, "local-addr", "ADDR", unset "the one towards the endpoint";
    /// Name of this host in the job, which no other host has.
    host_name: Option<String> = None, "host-name", "NAME", unset "the system's";
    /// Host source: what starts hosts that join the job. slurm, a step on a host that is away, which is the default within Slurm; kubernetes, a pod for each host.
    host_source: Option<String> = None, "host-source", "NAME", unset "each host starts by itself", among HOST_SOURCES.names();
    /// Launcher: what starts the nodes, and where.
    launcher: String = launcher::DEFAULT.to_owned(), "launcher", "NAME", among launcher::REGISTRY.names();
    /// Port that the master listens on; 0 takes a free one.
    master_port: u16 = 0, "master-port", "PORT";
    /// Ports at which the job's processes listen, for a firewall: FIRST-LAST, a port for the master, one for the programs and one for each
    /// worker and server of a host.
    port_range: Option<PortRange> = None, "port-range", "FIRST-LAST", unset "any free ports";
    /// Run directory: the folder through which antdt status, scale, checkpoint and stop reach the job.
    run_dir: Option<PathBuf> = None, "run-dir", "DIR", unset "REPORT_DIR/run, else one in the user's state folder";
    /// Where masters of the job elect the one that leads it, for masters on several hosts with a run directory that they share:
    /// etcd://HOST:PORT, then more addresses after commas, and /PREFIX of the keys.
    elect: Option<EtcdSpec> = None, "elect", "URL", unset "the lock on the run directory decides, between masters on one host";
    /// Name of the job.
    job_id: Option<String> = None, "job-id", "NAME", unset "generated";
    /// Interval between two decisions of the policy.
    // A decision costs microseconds; five a second react well before a batch of a few hundred ms is over.
    control_tick: Duration = Duration::from_millis(200), "control-tick", "TIME";
    /// Interval between two heartbeats of a node.
    heartbeat: Duration = Duration::from_millis(500), "heartbeat", "TIME";
    /// Time without a heartbeat after which a node counts as lost; at least two heartbeat intervals.
    silence_limit: Option<Duration> = None, "silence-limit", "TIME", unset "12 of the workers' steps, but at least 1.25s and 2 heartbeats, and at most 10s";
    /// Time without progress of a worker's training thread after which it counts as hung and is started again; a step has 12
    /// times its usual time at least, reading, a worker's first steps and evaluation have 20 times this limit, and the first steps of
    /// the job 400 times.
    hang_limit: Duration = Duration::from_secs(3), "hang-limit", "TIME";
    /// Time without an answer from the master after which a node exits; at least two heartbeat intervals.
    master_grace: Option<Duration> = None, "master-grace", "TIME", unset "above the collective timeout, and at least 1m";
    /// Time that a node has to exit when the job is over or stopped, after SIGTERM and before it is killed.
    grace: Option<Duration> = None, "grace", "TIME", unset "30s for a program of the user's, 2s for a built-in trainer";
    /// Longest wait for a peer within one collective operation.
    collective_timeout: Option<Duration> = None, "collective-timeout", "TIME", unset "above the time after which a worker hangs or is lost, and at least 30s; antdt doctor shows it";
    /// All-reduce algorithm; only for a --sync that keeps the model in the workers.
    algorithm: Choice = Choice::default(), "algorithm", "NAME";
    /// Compression of dense gradients on the network; only for a --sync that keeps the model in the workers. The error of
    /// one step is added to the next step's gradient (error feedback).
    compress: Option<Compression> = None, "compress", "FORM", unset "no compression";
    /// Bytes of a gradient bucket; only for a --sync that adds gradients up in the workers. Buckets are reduced while the
    /// backward pass still runs; a model smaller than one bucket is reduced after it.
    // As PyTorch's buckets (recalled).
    bucket_bytes: u32 = 25 << 20, "bucket-bytes", "BYTES";
    /// Transport between workers, and between workers and servers.
    transport: String = transport::DEFAULT.to_owned(), "transport", "NAME", among transport::names();
    /// Address and port on which the master shows the job: a live page, with buttons for the holder of the job's token, and
    /// metrics for Prometheus at /metrics. Port 0 takes a free one.
    http_addr: Option<HttpAddr> = None, "http-addr", "ADDR:PORT", unset "the job is shown nowhere";
    /// Folder for event files of TensorBoard: loss, metrics of evaluations, samples per second and batch sizes.
    tensorboard: Option<PathBuf> = None, "tensorboard", "DIR", unset "none are written";
    /// File for a timeline of what happens, with a lane for each node, which Perfetto and Chrome (chrome://tracing) show.
    trace_file: Option<PathBuf> = None, "trace-file", "FILE", unset "none is written";
    /// Print neither progress nor the final table.
    quiet: bool = false, "quiet", "";
    /// Log filter in the syntax of tracing: error, warn, info, debug, trace, or by module such as antdt_shard=debug.
    log: String = "warn".to_owned(), "log", "FILTER";
    /// Format of log lines, and of those that tell of the job where standard error is no terminal.
    log_format: LogFormat = LogFormat::Text, "log-format", "KIND";
    /// Folder for what nodes write, as DIR/worker-0/stdout.log and stderr.log.
    log_dir: Option<PathBuf> = None, "log-dir", "DIR", unset "logs in the report folder, up to 64 MiB each without --redirects and --tee";
    /// Output that goes to a file alone: 0 none, 1 standard output, 2 standard error, 3 both, or of some workers, such as 0:3,1:2.
    redirects: StreamsSpec = StreamsSpec::default(), "redirects", "STREAMS";
    /// Output that goes to a file and to the console, as for --redirects; with --log-dir alone, all of it.
    tee: StreamsSpec = StreamsSpec::default(), "tee", "STREAMS";
    /// Workers whose output is shown on the console, such as 0,3.
    local_ranks_filter: Option<RanksSpec> = None, "local-ranks-filter", "RANKS", unset "all";

    others:
    /// Settings of policies, optimizers and other parts by name: the tables `[policy.NAME]`, `[optimizer.NAME]` and so on of a job file.
    tables: Tables = Tables::default();
    /// The user's own program and its arguments, started once per worker in place of the built-in workload.
    program: Option<Vec<String>> = None;
}

/// The key of the user's program in a job file; on a command line it stands after `--`.
const PROGRAM: &str = "program";

/// Stand for a number of what this host has.
const COUNTED: &[&str] = &["gpu", "cpu", "auto"];

/// Whether the workers of a mode add their gradients up, bucket by bucket.
fn has_buckets(mode: &SyncMode) -> bool {
    let mode = mode.capabilities();
    !mode.needs_servers() && !mode.averages_models()
}

impl JobSpec {
    /// Returns the addresses at `ip` to try one after the other for a process that wants this port; 0 is any that the job may have.
    pub(crate) fn ports(&self, ip: IpAddr, port: u16) -> Vec<SocketAddr> {
        match self.port_range {
            Some(range) if port == 0 => range.addresses(ip, 0),
            _ => vec![SocketAddr::new(ip, port)],
        }
    }

    /// Returns the description of the setting with this name.
    ///
    /// # Errors
    /// If there is no such setting; the error suggests the nearest name.
    pub fn setting(name: &str) -> Result<&'static JobSetting, InvalidValue> {
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

    /// Parses one setting from its text form and sets it. For a list, the value is appended; any other value
    /// is replaced.
    ///
    /// # Errors
    /// If there is no such setting (the error suggests the nearest name), or the text is not a value of it.
    /// The error's field is the flag.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), InvalidValue> {
        let setting = Self::setting(name)?;
        setting.check_name(text)?;
        if setting.words().contains(&text) {
            return self.one_for_each(setting, text);
        }
        (setting.set)(self, text).map_err(|error| match setting.words() {
            [] => error,
            words => {
                InvalidValue { expected: format!("{}, or {}", error.expected, words.join(", ")), ..error }
            }
        })
    }

    // The only number for which words stand.
    fn one_for_each(&mut self, setting: &JobSetting, what: &str) -> Result<(), InvalidValue> {
        let refused = |why| InvalidValue::new(setting.flag(), what, format!("a number here: {why}"));
        let cores = || {
            thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
        };
        self.workers = match (what, gpu::count()) {
            ("cpu", _) | ("auto", Err(_)) => cores(),
            (_, gpus) => gpus.map_err(refused)?,
        };
        Ok(())
    }

    /// Sets a setting to its default value.
    ///
    /// # Errors
    /// If there is no such setting.
    pub fn reset(&mut self, name: &str) -> Result<(), InvalidValue> {
        let setting = Self::setting(name)?;
        (setting.read)(self, &(setting.write)(&Self::default()))
    }

    /// Parses one key of a job file and sets it. The value replaces the old one; tables are added to the
    /// existing ones. Tables of a kind of part come with the `name` of the part that the job uses; a single table
    /// without a `name` selects its own part.
    ///
    /// ```
    /// use antdt::job::JobSpec;
    /// let mut spec = JobSpec::default();
    /// spec.put("policy", &serde_json::json!({ "dd": {} }))?;
    /// assert_eq!(spec.policy, "dd");
    /// # Ok::<(), antdt_core::InvalidValue>(())
    /// ```
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
            (name, value) => {
                let setting = Self::setting(name)?;
                if let (Some(kind), Json::Object(object)) = (PartKind::of(name), value) {
                    return match self.tables.put(kind, object)? {
                        Selected::Part(part) => (setting.read)(self, &Json::String(part)),
                        Selected::Unset => self.reset(name),
                        Selected::Open => Ok(()),
                    };
                }
                match value.as_str().filter(|text| setting.words().contains(text)) {
                    Some(what) => self.one_for_each(setting, what)?,
                    None => (setting.read)(self, value)?,
                }
            }
        }
        Ok(())
    }

    /// Returns all settings with the keys of a job file; settings without a value are null.
    pub fn to_json(&self) -> Map<String, Json> {
        let mut json: Map<String, Json> =
            Self::SETTINGS.iter().map(|setting| (setting.name.to_owned(), (setting.write)(self))).collect();
        for PartKind { name: kind, .. } in PartKind::ALL {
            let tables =
                self.tables.of(kind).map(|(part, settings)| (part.clone(), Json::Object(settings.clone())));
            let mut tables: Map<String, Json> = tables.collect();
            if !tables.is_empty() {
                // Null, too: without a name, a single table would select its part.
                tables.insert(PartKind::PART.to_owned(), json.remove(kind).unwrap_or_default());
                json.insert(kind.to_owned(), Json::Object(tables));
            }
        }
        json.insert(PROGRAM.to_owned(), json!(self.program));
        json
    }

    /// Returns the settings as texts by name, for people; settings without a value are left out. A setting of
    /// a part has a name such as `policy.nd.window`.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |value: Json| match value {
            Json::Null => None,
            Json::String(text) => Some(text),
            Json::Array(values) if values.is_empty() => None,
            other => Some(other.to_string()),
        };
        let mut json = self.to_json();
        for PartKind { name: kind, .. } in PartKind::ALL {
            if let Some(Json::Object(tables)) = json.get_mut(kind) {
                let part = tables.remove(PartKind::PART).unwrap_or_default();
                json.insert(kind.to_owned(), part);
            }
            for (part, settings) in self.tables.of(kind) {
                for (name, value) in settings {
                    json.insert(format!("{kind}.{part}.{name}"), value.clone());
                }
            }
        }
        json.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
    }

    /// Checks the settings whose value must be one of a few names.
    ///
    /// # Errors
    /// The first unknown name, and the nearest known one.
    pub fn check_names(&self) -> Result<(), InvalidValue> {
        // Tables first: one with a misspelt name may have selected its part.
        for PartKind { name: kind, .. } in PartKind::ALL {
            let setting = Self::setting(kind)?;
            for (part, _) in self.tables.of(kind) {
                let refused = |error| InvalidValue { field: format!("[{kind}.…]"), ..error };
                setting.check_name(part).map_err(refused)?;
            }
        }
        for setting in Self::SETTINGS {
            if let Json::String(text) = (setting.write)(self) {
                setting.check_name(&text)?;
            }
        }
        Ok(())
    }

    /// The modes of which the job goes on in one; just one if nothing is to be chosen. Those that were not named and need servers are
    /// left out in a job without servers.
    pub(crate) fn choices(&self) -> Vec<SyncMode> {
        let Some((modes, named)) = self.sync.choice() else { return vec![SyncMode::clone(&self.sync)] };
        let may = |mode: &&SyncMode| named || self.servers > 0 || !mode.capabilities().needs_servers();
        modes.iter().filter(may).cloned().collect()
    }

    /// The same job in one mode of its choice, with servers if that has some, and otherwise with the all-reduce algorithm.
    pub(crate) fn in_mode(&self, mode: SyncMode) -> Self {
        let servers = if mode.capabilities().needs_servers() { self.servers } else { 0 };
        let servers = if self.sync.choice().is_some() { servers } else { self.servers };
        let is_without = servers > 0 && self.sync.choice().is_some();
        let algorithm = if is_without { Choice::default() } else { self.algorithm };
        let is_whole = self.sync.choice().is_some() && !has_buckets(&mode);
        let bucket_bytes = if is_whole { Self::default().bucket_bytes } else { self.bucket_bytes };
        Self { sync: mode.into(), servers, algorithm, bucket_bytes, ..self.clone() }
    }

    /// Returns the settings of the monitor that follow from those of the job, with the default pace rule.
    pub fn limits(&self) -> MonitorConfig {
        MonitorConfig {
            liveness: match self.silence_limit {
                Some(limit) => LivenessConfig::of(self.heartbeat, limit),
                None => LivenessConfig::of_heartbeat(self.heartbeat),
            },
            hang: HangConfig { limit: self.hang_limit },
            wait: WaitConfig { peer: self.collective_timeout, master: self.master_grace },
            ..MonitorConfig::default()
        }
    }

    /// Returns the deadlines of the job while its steps take `step`; `None` before the first step.
    pub fn deadlines(&self, step: Option<Duration>) -> Deadlines {
        Deadlines::derive(&self.limits(), step)
    }

    /// Returns the wait for a peer that is about to come: no step of it is waited for.
    pub(crate) fn meeting_wait(&self) -> Duration {
        self.deadlines(Some(Duration::ZERO)).peer
    }

    /// Whether there is a folder for checkpoints.
    pub(crate) fn keeps_checkpoints(&self) -> bool {
        let folders = [&self.checkpoint_dir, &self.run_dir, &self.report_dir, &self.resume];
        folders.iter().any(|folder| folder.is_some())
    }

    /// Whether the workers are programs that take their samples from the job and keep the model themselves.
    pub(crate) const fn has_own_model(&self) -> bool {
        matches!(self.data, Some(DataSpec::Samples(_)))
    }

    /// Whether the workers are programs that take nothing from the job.
    pub(crate) const fn is_foreign(&self) -> bool {
        self.program.is_some() && self.data.is_none()
    }

    /// Returns the device settings of a worker; `None` if the job has none for it.
    pub fn device(&self, worker: u32) -> Option<&DeviceSpec> {
        self.device_specs().find(|device| device.workers().contains(&worker))
    }

    fn device_specs(&self) -> impl Iterator<Item = &DeviceSpec> {
        self.devices.iter().filter_map(|setting| match setting {
            DeviceSetting::Of(device) => Some(device),
            DeviceSetting::On(_) => None,
        })
    }

    fn processors(&self) -> impl Iterator<Item = Processor> {
        self.devices.iter().filter_map(|setting| match setting {
            DeviceSetting::On(processor) => Some(*processor),
            DeviceSetting::Of(_) => None,
        })
    }

    /// Returns the processor on which the workers compute.
    pub fn processor(&self) -> Processor {
        self.processors().next().unwrap_or_default()
    }

    /// Returns the same settings with workers that compute on `processor`.
    #[must_use]
    pub fn on(mut self, processor: Processor) -> Self {
        self.devices.retain(|setting| matches!(setting, DeviceSetting::Of(_)));
        self.devices.push(DeviceSetting::On(processor));
        self
    }

    /// Returns the emulated speed of a worker, in samples per second; `None` if it computes at the machine's
    /// speed.
    pub fn speed(&self, worker: u32) -> Option<f64> {
        self.device(worker).and_then(|device| device.speed).or(self.emulate_speed)
    }

    /// Returns the factor by which the work of an emulated straggler takes longer at a time of the job; 1 is
    /// normal speed.
    ///
    /// `restarts` is the number of earlier incarnations of the node; `at` is the time since the job's
    /// start. Several entries for one node multiply.
    pub fn slowdown(&self, node: NodeId, restarts: u32, at: Duration) -> f64 {
        self.stragglers
            .iter()
            .filter(|straggler| straggler.node == node)
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
