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
mod tools;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use antdt_rt::CancellationToken;

use super::{ChaosPlan, ChaosReport, FILE};
use crate::job::JobSpec;
use driver::Driver;
use tools::Tools;

/// Name of the workload whose model counts what was trained, and of its optimizer.
const COUNTING: (&str, &str) = ("counting", "sums");

/// A job, and the faults that are injected into it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChaosRun {
    /// What goes wrong.
    pub plan: ChaosPlan,
    /// How long the job may train nothing.
    pub patience: Duration,
    /// The program that runs the job.
    pub program: PathBuf,
    /// Its arguments after `run`.
    pub arguments: Vec<String>,
    /// The settings that these come to.
    pub spec: JobSpec,
    /// Names of the settings that were given.
    pub given: BTreeSet<&'static str>,
}

/// Why a job could not be put to the test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChaosError {
    /// The folder has what another job left.
    #[error("--report-dir = {}: an earlier job's files are there; name another folder", .0.display())]
    Used(PathBuf),
    /// A file or folder cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The job cannot be started.
    #[error("`{}` cannot be started: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The job never trained.
    #[error("the job did not begin to train: {why}; see {}", log.display())]
    NotBegun {
        /// What it said last.
        why: String,
        /// What its masters said.
        log: PathBuf,
    },
    /// The user interrupted it.
    #[error("interrupted; all processes of the job were ended")]
    Interrupted,
}

/// Runs a job while things go wrong. What happens is said with `say`, a line at a time.
///
/// # Errors
/// If the job could not be put to the test. What it did wrong is in the report.
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
