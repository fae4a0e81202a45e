//! The processes of a job: workers, servers, and programs of the user's own.

use std::os::unix::process::CommandExt;
use std::process::{Command as Process, ExitCode};

use antdt_core::{Connections, Exit, InvalidValue};
use antdt_launch::runtime::process;

use super::{check_folder, complain, init_logging};
use crate::cli::CliError;
use crate::job::processor::Processor;
use crate::node::{NodeEnv, bind_to_launcher};
use crate::worker::WorkerError;
use crate::worker::plane::Planes;
use crate::{descriptors, doctor, gpu, server, worker, workload};

/// Runs a worker of a job, whose data plane one of these factories makes.
pub(super) fn work(connections: Connections, planes: &Planes) -> ExitCode {
    node(connections, |env| run_worker(env, planes))
}

/// Runs a server of a job.
pub(super) fn serve(connections: Connections) -> ExitCode {
    node(connections, run_server)
}

/// Measures this host and its links, for the first host of `antdt doctor --hosts`.
pub(super) fn probe(port: u16, call: &str) -> ExitCode {
    match bind_to_launcher().and_then(|()| doctor::hosts::probe(port, call)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
        }
    }
}

/// Runs a node of a job. It ends with the process that launched it, or when its master no longer answers.
fn node(connections: Connections, run: impl FnOnce(&NodeEnv) -> Result<(), WorkerError>) -> ExitCode {
    descriptors::raise();
    let result = NodeEnv::from_process().and_then(|env| {
        // Those of the program, if it has its own.
        let connections = if connections == Connections::default() { env.connections } else { connections };
        let env = NodeEnv { connections, ..env };
        bind_to_launcher()?;
        check_folder().map_err(WorkerError::Input)?;
        init_logging(&env.spec).map_err(WorkerError::Environment)?;
        run(&env)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&descriptors::explained(error.to_string()));
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
        }
    }
}

/// Runs `program` to the end of all that it starts.
pub(super) fn supervise(program: &[String]) -> ExitCode {
    let started = std::env::current_exe().and_then(|exe| {
        let mut command = Process::new(exe);
        command.args(["exec", "--"]).args(program);
        process::supervise(command)
    });
    started.unwrap_or_else(|error| {
        complain(&format_args!("the program cannot be started: {error}"));
        ExitCode::from(u8::try_from(Exit::CODE_NEVER).unwrap_or(1))
    })
}

/// Becomes `program`, bound to the process that launched it. Returns only if it cannot.
pub(super) fn exec(program: &[String]) -> ExitCode {
    let Some((name, args)) = program.split_first() else { return ExitCode::from(CliError::EXIT_CODE) };
    let unblocked = process::unblock().map_err(|error| error.to_string());
    let error = match unblocked.and_then(|()| bind_to_launcher().map_err(|error| error.to_string())) {
        // The variable is for this process; the program's children have another parent.
        Ok(()) => Process::new(name).args(args).env_remove(process::LAUNCHER_PID).exec().to_string(),
        Err(error) => error,
    };
    complain(&format_args!("`{name}` cannot be started: {error}"));
    ExitCode::from(u8::try_from(Exit::CODE_NEVER).unwrap_or(1))
}

fn run_worker(env: &NodeEnv, planes: &Planes) -> Result<(), WorkerError> {
    let input = |error: &dyn std::fmt::Display| WorkerError::Input(error.to_string());
    let workload = workload::of(&env.spec).map_err(|error| input(&error))?;
    let (place, _) =
        gpu::place(env.spec.processor(), env.holder.node.index).map_err(|error| input(&error))?;
    let spec = env.spec.clone().on(Processor::from(&place));
    // The master has said what takes its time.
    let trainer = workload.open(&spec, &mut |_| {}).map_err(|error| input(&error))?;
    let rule = env.update_rule(workload.optimizer, workload.learning_rate, workload.weight_decay)?;
    worker::run_with(env, trainer, &rule, planes)
}

fn run_server(env: &NodeEnv) -> Result<(), WorkerError> {
    let layout = env.layout.as_ref().ok_or_else(|| {
        let expected = "the shape of the model, which the master of a job with servers tells its nodes";
        WorkerError::Environment(InvalidValue::new("layout", "(nothing)", expected))
    })?;
    let workload = workload::of(&env.spec).map_err(|error| WorkerError::Input(error.to_string()))?;
    server::run(
        env,
        layout,
        &env.update_rule(workload.optimizer, workload.learning_rate, workload.weight_decay)?,
    )
}
