//! Refuses a new job whose folders hold what an earlier job has left there: its report, its checkpoints, what it would go on from. With
//! `--force` the new job takes their place.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_checkpoint::Folder;

use super::JobError;
use super::prepare::{absolute, claimed};
use crate::job::JobSpec;
use crate::report;
use crate::resume::{self, CHECKPOINTS};
use crate::run_dir::{self, JOB, RunDirError};

/// Looks into the folders that the job will write to.
///
/// # Errors
/// If they hold files of a job that it does not go on with, unless it is to replace them and can.
pub(super) fn clear(spec: &JobSpec) -> Result<(), JobError> {
    let resumed = spec.resume.as_deref();
    let of_run = if spec.run_dir.is_some() { "--run-dir" } else { "--report-dir" };
    let is_named = spec.run_dir.is_some() || spec.report_dir.is_some();
    let run = is_named.then(|| run_dir::place(spec, "")).flatten();
    if let Some(run) = run.as_deref().filter(|run| run.join(JOB).exists()) {
        let is_resumed = resumed.is_some_and(|dir| run_dir::below(dir) == run_dir::below(run));
        if !is_resumed && !spec.force {
            return Err(used(of_run, run, "a job that did not end in order"));
        }
    }
    if let (Some(folder), None) = (&spec.report_dir, resumed) {
        for path in report::FILES.map(|name| folder.join(name)).into_iter().filter(|path| path.is_file()) {
            if !spec.force {
                return Err(used("--report-dir", folder, "the report of a job"));
            }
            fs::remove_file(&path).map_err(|source| RunDirError::File { path, source })?;
        }
    }
    let (flag, place) = match (&spec.checkpoint_dir, run) {
        (Some(place), _) => ("--checkpoint-dir", place.clone()),
        (None, Some(run)) => (of_run, run.join(CHECKPOINTS)),
        (None, None) => return Ok(()),
    };
    // What cannot be read is refused where the job makes it its own.
    let Ok(folder) = Folder::open(&place) else { return Ok(()) };
    if resumed.is_some_and(|dir| absolute(resume::folder(dir)) == absolute(place.clone())) {
        return Ok(());
    }
    // Of a job that runs, they are not to be replaced.
    let _claim = claimed(spec, &place, Duration::ZERO)?;
    match folder.list() {
        Ok(checkpoints) if checkpoints.is_empty() => Ok(()),
        _ if spec.force => folder.remove_all().map_err(JobError::Checkpoints),
        _ => Err(used(flag, &place, "checkpoints of a job")),
    }
}

fn used(flag: &'static str, path: &Path, what: &'static str) -> JobError {
    RunDirError::Used { flag, path: PathBuf::from(path), what }.into()
}
