//! Faults of a real job: [`Tools`] are the means, as far as this machine has them; [`Driver`] starts the job, carries the faults out
//! and starts another master where the last one has died.

mod cgroup;
mod clock;
mod disk;
mod driver;
mod hang;
mod job;
mod link;
mod packet;
mod rpc;
mod seen;
mod strangers;
mod tools;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use antdt_rt::CancellationToken;

use super::{ChaosPlan, ChaosReport, FILE};
use antdt::job::JobSpec;
use driver::Driver;
use tools::Tools;

/// Name of the workload whose model counts what was trained, and of its optimizer.
const COUNTING: (&str, &str) = ("counting", "sums");

/// A job to run, and the faults to inject into it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChaosRun {
    /// Plan from which the schedule of faults is drawn.
    pub plan: ChaosPlan,
    /// Longest time for which the job may train nothing.
    pub patience: Duration,
    /// Path of the program that runs the job.
    pub program: PathBuf,
    /// Arguments of the program after `run`.
    pub arguments: Vec<String>,
    /// Settings of the job that result from the arguments.
    pub spec: JobSpec,
    /// Names of the settings that the arguments give.
    pub given: BTreeSet<&'static str>,
}

/// Reason why `antdt-chaos` could not run a job with faults.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChaosError {
    /// The folder contains files of another job.
    #[error("--report-dir = {}: an earlier job's files are there; name another folder", .0.display())]
    Used(PathBuf),
    /// A file or folder cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The job cannot be started.
    #[error("`{}` cannot be started: {source}", program.display())]
    Start {
        /// Path of the program that could not be started.
        program: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The job did not train a single step.
    #[error("the job did not begin to train: {why}; see {}", log.display())]
    NotBegun {
        /// Last message of the job.
        why: String,
        /// Path of the log of the job's masters.
        log: PathBuf,
    },
    /// The user interrupted the run.
    #[error("interrupted; all processes of the job were ended")]
    Interrupted,
}

/// Runs a job, injects faults into it, and returns the report. `say` gets one line of text for each event;
/// `stop` ends the run early.
///
/// # Errors
/// If the job could not be run with faults. What the job did wrong is in the report.
pub async fn run(
    chaos: &ChaosRun,
    say: &mut (dyn FnMut(String) + Send),
    stop: &CancellationToken,
) -> Result<ChaosReport, ChaosError> {
    let dir = match &chaos.spec.report_dir {
        Some(dir) => dir.clone(),
        None => PathBuf::from(format!("chaos-{}", chaos.plan.seed)),
    };
    if job::is_used(&dir) {
        return Err(ChaosError::Used(dir));
    }
    std::fs::create_dir_all(&dir).map_err(|source| ChaosError::File { path: dir.clone(), source })?;
    let (tools, told) = Tools::prepare(chaos).await?;
    Driver::new(chaos, dir, tools, told, say).run(stop).await
}
