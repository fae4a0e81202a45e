//! Runs each subcommand of the `antdt` command.

mod compute;
mod inspect;
mod logs;
mod node;
mod operate;
mod synth;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::Trainer;
use antdt_checkpoint::unfinished_export;
use antdt_core::InvalidValue;
use antdt_launch::runtime as launcher;
use antdt_launch::runtime::join::{HostConfig, HostJoinError};
use antdt_rt::{CancellationToken, cancel_on_signal};
use tokio::runtime::Runtime;

use compute::{compute, incomplete};

use crate::cli::{CliError, Command, SlurmStep};
use crate::hosts::{self, Gathered};
use crate::job::processor::{Place, Processor};
use crate::job::{DataSpec, JobSpec, LogFormat};
use crate::master::{self, Fleet, JobError, Orphaned, Programs, Seams, TrainingData};
use crate::report::{self, Outcome, Report};
use crate::run_dir::MasterFile;
use crate::simulate;
use crate::worker::plane::Planes;
use crate::{checkpoints, doctor, gpu, submit, workload};

/// Exit code of a job that ended with samples missing.
const EXIT_INCOMPLETE: u8 = 3;

/// Grace of the workers of a host that leaves its job, unless the settings say another: that of a program of the user's.
const GUEST_GRACE: Duration = Duration::from_secs(30);

/// Exit code of a computation that was interrupted, as shells have it for an interrupt.
const EXIT_INTERRUPTED: u8 = 130;

/// Reads the command line of this process and carries it out; a job that it runs has these parts, and its workers these data planes.
pub(crate) fn main(seams: Seams, planes: &Planes) -> ExitCode {
    let args = crate::cli::words(std::env::args_os().skip(1));
    let command = match args.and_then(|args| crate::cli::parse(args, |name| std::env::var(name).ok())) {
        Ok(command) => command,
        Err(error) => {
            complain(&error);
            return ExitCode::from(CliError::EXIT_CODE);
        }
    };
    let done = match command {
        Command::Print(text) => print(&text),
        Command::DataSynth(synth) => {
            let part = synth::part_of(&synth);
            return compute(
                move || synth::data_synth(&synth),
                || {
                    let _ = std::fs::remove_file(part);
                    incomplete(Vec::new())
                },
            );
        }
        Command::DataInspect(asked) => {
            return compute(move || inspect::data_inspect(&asked), || incomplete(Vec::new()));
        }
        Command::ModelList(dir) => {
            return compute(move || checkpoints::list(&dir), || incomplete(Vec::new()));
        }
        Command::ModelExport(asked) => {
            let part = unfinished_export(&asked.out);
            return compute(
                move || checkpoints::export(&asked),
                || {
                    let _ = std::fs::remove_file(part);
                    incomplete(Vec::new())
                },
            );
        }
        Command::Run(spec) => return run(&spec, seams),
        Command::Join(spec) => return visit(&spec),
        Command::Master { dir, quiet } => return stand_by(&dir, quiet, seams),
        Command::Submit(asked) => {
            return compute(
                move || submit::run(&asked),
                || "the job may have been submitted: see squeue, or kubectl get jobs".to_owned(),
            );
        }
        Command::Doctor(asked) => {
            return compute(move || doctor::run(&asked, seams.connections), || incomplete(Vec::new()));
        }
        Command::WhatIf(asked) => {
            let json = asked.json.clone().filter(|file| file != Path::new("-"));
            let files = json.into_iter().chain(asked.html.clone()).collect();
            return compute(move || simulate::whatif::run(&asked), move || incomplete(files));
        }
        Command::Sim(asked) => {
            let files = asked.trace.clone().into_iter().collect();
            return compute(move || simulate::scenario::run(&asked), move || incomplete(files));
        }
        Command::Diff(asked) => return compute(move || simulate::diff(&asked), || incomplete(Vec::new())),
        Command::Status(asked) => operate::status(&asked, &seams.connections),
        Command::Logs(asked) => logs::show(&asked),
        Command::Jobs => operate::jobs(),
        Command::Stop(dir) => operate::stop(dir.as_deref(), seams.connections),
        Command::Checkpoint(dir) => operate::checkpoint(dir.as_deref(), seams.connections),
        Command::Restart { worker, dir } => operate::restart(worker, dir.as_deref(), seams.connections),
        Command::Scale { to, dir } => operate::scale(&to, dir.as_deref(), seams.connections),
        Command::Worker => return node::work(seams.connections, planes),
        Command::Server => return node::serve(seams.connections),
        Command::Probe { port, call } => return node::probe(port, &call),
        Command::Supervise(program) => return node::supervise(&program),
        Command::Exec(program) => return node::exec(&program),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints an error in one line. If standard error is closed, the exit code still shows the failure.
pub(crate) fn complain(error: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "error: {}", error.to_string().replace(['\n', '\r'], " "));
}

/// Says on standard error what takes its time before the job begins, in one line.
fn say(notice: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", notice.to_string().replace(['\n', '\r'], " "));
}

/// Writes to standard output; a reader that went away (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn init_logging(spec: &JobSpec) -> Result<(), InvalidValue> {
    let filter = tracing_subscriber::EnvFilter::try_new(&spec.log).map_err(|e| {
        InvalidValue::new("--log", &spec.log, format!("a filter such as info or antdt_shard=debug: {e}"))
    })?;
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    // Without internal errors: they go to standard error too, and an unreadable log is no reason to end.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .log_internal_errors(false);
    // A second subscriber in one process changes nothing.
    let _ = match spec.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(())
}

/// Checks that the folder that this process works in is still there: libraries of its nodes end without it.
fn check_folder() -> Result<(), String> {
    std::env::current_dir().map(drop).map_err(|error| {
        format!("the working directory is gone: {error}; change to a folder that exists, and run the command again")
    })
}

/// Opens what the job trains; `None` if a program of the user's does and takes its data from elsewhere.
fn open_trainer(spec: &JobSpec) -> anyhow::Result<Option<Box<dyn Trainer>>> {
    if spec.is_foreign() || spec.has_own_model() {
        return Ok(None);
    }
    // It computes nothing here.
    let workload = workload::of(spec)?;
    let opened = workload.open(&spec.clone().on(Processor::Cpu), &mut |notice| {
        if !spec.quiet {
            say(notice);
        }
    });
    let trainer = opened.map_err(|error| anyhow::anyhow!("{error}"))?;
    for line in workload.unused(spec, trainer.eval_samples()) {
        tracing::warn!("{line}");
    }
    Ok(Some(trainer))
}

fn run(spec: &JobSpec, seams: Seams) -> ExitCode {
    let run = || {
        init_logging(spec)?;
        check_folder().map_err(anyhow::Error::msg)?;
        for line in spec.idle_policies()?.into_iter().chain(crate::cli::unread(variables())) {
            tracing::warn!("{line}");
        }
        let part_of_many = spec.nnodes.most > 1 || spec.launcher != launcher::DEFAULT;
        if let Some(line) = crate::cli::idle_hosts(&|name| std::env::var(name).ok()).filter(|_| !part_of_many)
        {
            tracing::warn!("{line}");
        }
        let (runtime, stop) = (runtime()?, CancellationToken::new());
        match hosts::part(spec, |line| notify(spec, line))? {
            None => {
                let host = Host::new(runtime, stop, seams, spec, spec.quiet)?;
                let orphaned = Orphaned::find(spec, &host.fleet)?;
                run_job(host, spec, orphaned).map(Some)
            }
            Some(hosts::Part::First(address, here)) => {
                run_first(&runtime, stop, seams, spec, (address, here))
            }
            Some(hosts::Part::Guest(config)) => take_part(&runtime, stop, spec, config).map(|()| None),
        }
    };
    match run() {
        Ok(Some(done)) => ended(Ok(done)),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => ended(Err(error)),
    }
}

/// Takes part in the job of another host.
fn take_part(
    runtime: &Runtime,
    stop: CancellationToken,
    spec: &JobSpec,
    config: HostConfig,
) -> anyhow::Result<()> {
    runtime.block_on(async {
        tokio::spawn(cancel_on_signal(stop.clone()));
        hosts::visit(config, spec.grace.unwrap_or(GUEST_GRACE), stop, |line| notify(spec, line)).await
    })?;
    Ok(())
}

/// Adds this host to the running job of another one.
fn visit(spec: &JobSpec) -> ExitCode {
    let joined = || {
        init_logging(spec)?;
        check_folder().map_err(anyhow::Error::msg)?;
        take_part(&*runtime()?, CancellationToken::new(), spec, hosts::added(spec)?)
    };
    match joined() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ended(Err(error)),
    }
}

/// Says something of the job before it has begun, unless it is to be quiet.
fn notify(spec: &JobSpec, line: &str) {
    if !spec.quiet {
        say(&line);
    }
}

/// What says something of the job while it runs, unless it is to be quiet.
fn say_unless(quiet: bool) -> hosts::Say {
    Arc::new(move |line| {
        if !quiet {
            say(&line);
        }
    })
}

/// Runs a job over the hosts that join it at an address, this one too. `None` if it was interrupted while it waited for them.
fn run_first(
    runtime: &Arc<Runtime>,
    stop: CancellationToken,
    mut seams: Seams,
    spec: &JobSpec,
    first: (std::net::SocketAddr, HostConfig),
) -> anyhow::Result<Option<(JobSpec, Report)>> {
    let gathered = runtime.block_on(async {
        let signals = tokio::spawn(cancel_on_signal(stop.clone()));
        let gathered = Gathered::open(spec, first, &stop, &say_unless(spec.quiet)).await;
        signals.abort();
        gathered
    })?;
    let Some(gathered) = gathered else {
        return Err(interrupted("interrupted while the job waited for its hosts"));
    };
    let spec = gathered.spec(spec);
    notify(&spec, &gathered.line());
    spec.validate()?;
    seams.launcher = Some(gathered.gate.launchers());
    let host = Host::new(Arc::clone(runtime), stop, seams, &spec, spec.quiet)?;
    let orphaned = Orphaned::find(&spec, &host.fleet)?;
    let done = run_job(host, &spec, orphaned);
    runtime.block_on(gathered.close());
    let step = SlurmStep::of(&|name| std::env::var(name).ok()).filter(SlurmStep::has_hosts);
    if let Some(secret) =
        step.map(|step| step.secret()).filter(|it| spec.rdzv_secret_file.as_ref() == Some(it))
    {
        // Another run of the step makes its own.
        let _ = std::fs::remove_file(secret);
    }
    done.map(Some)
}

/// An error of what happens meanwhile, not of the input.
fn interrupted(why: &str) -> anyhow::Error {
    std::io::Error::new(std::io::ErrorKind::Interrupted, why).into()
}

fn runtime() -> std::io::Result<Arc<Runtime>> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map(Arc::new)
}

/// Names of the variables in the environment of this process; one that is no text is none of ours.
fn variables() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

/// Waits for the end of a job's master and is the next one.
fn stand_by(dir: &Path, quiet: bool, seams: Seams) -> ExitCode {
    let spec = JobSpec { quiet, ..JobSpec::default() };
    let tell = |text: &dyn std::fmt::Display| {
        if !quiet {
            say(text);
        }
    };
    let waiting = |master: &MasterFile| {
        tell(&format_args!(
            "waiting for the end of the master of job {}, process {}",
            master.job, master.pid
        ));
    };
    let wait = || {
        init_logging(&spec)?;
        check_folder().map_err(anyhow::Error::msg)?;
        // The launcher of the job is the one that knows its nodes. Where there is no job, that is said below.
        let left = master::left_settings(dir).unwrap_or_default();
        let host = Host::new(runtime()?, CancellationToken::new(), seams, &left, quiet)?;
        let Host { runtime, fleet, stop, .. } = &host;
        // Caught from now on: a signal after the wait ends the job that was taken over.
        let found = runtime.block_on(async {
            tokio::spawn(cancel_on_signal(stop.clone()));
            tokio::select! {
                found = Orphaned::wait(dir, fleet, waiting) => found.map(Some),
                () = stop.cancelled() => Ok(None),
            }
        })?;
        anyhow::Ok((host, found))
    };
    match wait() {
        Ok((host, Some(Some(orphaned)))) => ended(run_job(host, &spec, Some(orphaned))),
        Ok((_, Some(None))) => {
            tell(&"the job has ended; there is nothing to take over");
            ExitCode::SUCCESS
        }
        Ok((_, None)) => {
            complain(&"interrupted; the job goes on without this master in waiting");
            ExitCode::from(EXIT_INTERRUPTED)
        }
        Err(error) => refused(&error),
    }
}

/// Says how a job ended.
fn ended(run: anyhow::Result<(JobSpec, Report)>) -> ExitCode {
    match run {
        Ok((spec, report)) => finish(&spec, &report),
        Err(error) => refused(&error),
    }
}

/// Says why a job did not begin. The exit code says whether another command line could help.
fn refused(error: &anyhow::Error) -> ExitCode {
    // Not with its chain: these errors say their cause themselves.
    complain(&crate::descriptors::explained(error.to_string()));
    let not_of_the_input = matches!(error.downcast_ref(), Some(JobError::Part { .. } | JobError::Master(_)))
        || error.is::<std::io::Error>()
        || matches!(error.downcast_ref(), Some(HostJoinError::Unreachable { .. }));
    ExitCode::from(if not_of_the_input { 1 } else { CliError::EXIT_CODE })
}

/// What a master runs on.
struct Host {
    runtime: Arc<Runtime>,
    fleet: Fleet,
    seams: Seams,
    /// Cancelled by a signal.
    stop: CancellationToken,
}

impl Host {
    /// Prepares the master of a job with these settings.
    fn new(
        runtime: Arc<Runtime>,
        stop: CancellationToken,
        seams: Seams,
        spec: &JobSpec,
        quiet: bool,
    ) -> anyhow::Result<Self> {
        let launcher = seams.launcher.clone().map_or_else(|| spec.built_launcher(), Ok)?;
        let fleet = {
            let _entered = runtime.enter();
            Fleet::new(&launcher, spec, quiet)
        };
        Ok(Self { runtime, fleet, seams, stop })
    }
}

/// Returns the settings of the job with its report: those of the job that it took over, if it did.
fn run_job(host: Host, spec: &JobSpec, orphaned: Option<Orphaned>) -> anyhow::Result<(JobSpec, Report)> {
    let spec = match &orphaned {
        None => spec,
        Some(orphaned) => {
            &JobSpec { quiet: spec.quiet, log_format: spec.log_format, ..orphaned.spec().clone() }
        }
    };
    if let Some(folder) = &spec.report_dir {
        report::write::prepare(folder)?;
    }
    let mut no_gpu = None;
    for worker in 0..spec.workers {
        if let (Place::Cpu(Some(why)), _) = gpu::place(spec.processor(), worker)? {
            no_gpu = Some(why);
        }
    }
    if let Some(why) = no_gpu.filter(|_| !spec.quiet) {
        say(&format_args!("the workers compute on the CPU: {why}"));
    }
    let exe = std::env::current_exe()?;
    let own = |name: &str| (exe.clone(), vec![OsString::from(name)]);
    // Opening the data here checks text before a process is started, and leaves its row index to the workers.
    let trainer = open_trainer(spec)?;
    let samples = match &spec.data {
        Some(DataSpec::Samples(samples)) => Some(*samples),
        _ => trainer.as_ref().map(|trainer| trainer.train_samples()),
    };
    if samples == Some(0) {
        let data = spec.data.as_ref().map(ToString::to_string).unwrap_or_default();
        return Err(InvalidValue::new("--data", data, "at least one training sample").into());
    }
    if let Some(most) = samples.map(|samples| u64::MAX / samples)
        && u64::from(spec.epochs) > most
    {
        let expected = format!("at most {most}: more samples than that cannot be counted");
        return Err(InvalidValue::new("--epochs", spec.epochs, expected).into());
    }
    let checksum = trainer.as_ref().and_then(|trainer| trainer.data_checksum());
    let layout = trainer.as_ref().map(|trainer| trainer.layout().clone());
    drop(trainer);
    let env = Vec::new();
    if spec.program.is_some() && spec.workers > 1 && !spec.quiet && master::runner::threads_are_ours() {
        let name = master::runner::THREADS;
        say(&format_args!(
            "{name}=1 for each worker where several share a host; set {name} for more threads"
        ));
    }
    let programs = match &spec.program {
        Some(program) => {
            let (name, args) = program.split_first().expect("validated: a program has a name");
            if let Err(error) = which::which(name) {
                return Err(anyhow::anyhow!(
                    "`{name}` cannot be started: {error}; check its path and permissions"
                ));
            }
            // Below this program, which binds it and what it starts to the master: a program that is not ours cannot do so itself.
            let words = ["supervise", "--", name].into_iter().map(OsString::from);
            let args = words.chain(args.iter().map(OsString::from)).collect();
            Programs {
                worker: (exe.clone(), args),
                server: own("server"),
                env,
                layout,
                foreign: spec.is_foreign(),
            }
        }
        None => Programs { worker: own("worker"), server: own("server"), env, layout, foreign: false },
    };
    let Host { runtime, fleet, seams, stop } = host;
    let data = match samples {
        Some(samples) => Some(TrainingData { samples, fingerprint: fingerprint(spec, checksum)? }),
        None => None,
    };
    let report = runtime.block_on(async {
        let signals = tokio::spawn(cancel_on_signal(stop.clone()));
        let report = master::run_or_take_over(spec, data, &programs, &seams, fleet, stop, orphaned).await;
        signals.abort();
        report
    })?;
    Ok((spec.clone(), report))
}

/// Returns a digest of the files of a job's data, with the checksum of their whole content if the trainer has read it; `None` for rows
/// that are generated.
fn fingerprint(spec: &JobSpec, checksum: Option<u32>) -> anyhow::Result<Option<String>> {
    let files = workload::fingerprint(spec).map_err(anyhow::Error::from_boxed)?;
    Ok(files.map(|files| checksum.iter().fold(files, |files, sum| format!("{files}:{sum:08x}"))))
}

fn finish(spec: &JobSpec, report: &Report) -> ExitCode {
    // The report first: it is there even if the table cannot be shown. Without it, what it would say is said all the same.
    let written = spec.report_dir.as_ref().map(|folder| report::write(report, folder)).transpose();
    if let Err(error) = &written {
        complain(error);
    }
    if !spec.quiet {
        let mut text = report::table::render(report);
        if let Some(folder) = spec.report_dir.as_ref().filter(|_| written.is_ok()) {
            text += &format!("report in {}\n", folder.join("report.html").display());
        }
        if let Err(error) = print(&text) {
            complain(&format_args!("standard output: {error}"));
            return ExitCode::FAILURE;
        }
    }
    match &report.outcome {
        Outcome::Completed if written.is_err() => ExitCode::FAILURE,
        Outcome::Completed => ExitCode::SUCCESS,
        Outcome::Incomplete { why } => {
            complain(why);
            ExitCode::from(EXIT_INCOMPLETE)
        }
        Outcome::Failed { why } => {
            let samples = &report.samples;
            match (samples.remaining, &report.checkpoint) {
                (0, _) => complain(why),
                (remaining, None) if spec.keeps_checkpoints() || spec.program.is_some() => {
                    complain(&format_args!("{why}; {remaining} of {} samples remain", samples.expected));
                }
                (_, None) => complain(&format_args!(
                    "{why}; no checkpoint was kept to go on from, so that all {} samples remain; --report-dir DIR or \
                     --checkpoint-dir DIR keeps one",
                    samples.expected
                )),
                (_, Some(checkpoint)) => complain(&format_args!(
                    "{why}; {} of {} samples remain after checkpoint {}{}: go on with --resume {}",
                    samples.expected.saturating_sub(samples.quarantined + checkpoint.samples),
                    samples.expected,
                    checkpoint.id,
                    match samples.committed.saturating_sub(checkpoint.samples) {
                        0 => String::new(),
                        since => format!(", of which {since} were trained after it and are trained again"),
                    },
                    checkpoint.resumed_by([&spec.report_dir, &spec.run_dir]).display()
                )),
            }
            ExitCode::FAILURE
        }
    }
}
