//! `antdt model list` and `antdt model export`: commands for checkpoints that need no running job.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use antdt_checkpoint::{
    Checkpoint, CheckpointReadError, ExportError, Folder, Manifest, export as export_model,
};
use antdt_core::{CheckpointId, InvalidValue};

use crate::cli::{CliError, ModelExport};
use crate::resume::place;
use crate::simulate::CommandOutput;

/// Runs `antdt model list`: lists the checkpoints in a folder.
///
/// # Errors
/// If there is no such folder.
pub fn list(dir: &Path) -> Result<CommandOutput, CliError> {
    let (place, named) = meant(dir);
    let folder = Folder::open(place)?;
    let mut listed = folder.list()?;
    listed.retain(|found| named.is_none_or(|named| found.checkpoint == named));
    if listed.is_empty() {
        return Ok(CommandOutput {
            text: format!("{} has no checkpoints\n", folder.path().display()),
            good: true,
        });
    }
    let mut text = String::new();
    let mut line = |cells: [&str; 7]| {
        let [number, taken, steps, samples, bytes, files, what] = cells;
        let _ = writeln!(
            text,
            "{number:>10}  {taken:20}  {steps:>10}  {samples:>12}  {bytes:>14}  {files:>5}  {what}"
        );
    };
    line(["checkpoint", "taken", "steps", "samples", "bytes", "files", "model"]);
    for found in &listed {
        let number = found.checkpoint.to_string();
        match &found.manifest {
            Ok(manifest) => {
                let taken = time(manifest.created_unix_s);
                let (steps, samples) =
                    (manifest.trained.steps.to_string(), manifest.trained.samples.to_string());
                let (bytes, files) = (manifest.bytes().to_string(), manifest.files.len().to_string());
                let what = format!("{}, {}", manifest.job.workload, manifest.optimizer);
                line([&number, &taken, &steps, &samples, &bytes, &files, &what]);
            }
            Err(why) => line([&number, "cannot be used", "", "", "", "", &why.to_string()]),
        }
    }
    Ok(CommandOutput { text, good: true })
}

/// The folder of checkpoints that is meant by `dir`, and the one checkpoint if `dir` is its own folder, as with `--resume`.
fn meant(dir: &Path) -> (PathBuf, Option<CheckpointId>) {
    let place = place(dir);
    match Folder::of_checkpoint(&place) {
        Some((folder, named)) => (folder, Some(named)),
        None => (place, None),
    }
}

/// Runs `antdt model export`: writes the model of a checkpoint to one file.
///
/// # Errors
/// If there is no such checkpoint, or the file cannot be written.
pub fn export(asked: &ModelExport) -> Result<CommandOutput, CliError> {
    let (place, named) = meant(&asked.dir);
    if let (Some(named), Some(asked)) = (named, asked.checkpoint)
        && named != asked
    {
        let expected = format!("left out with the folder of checkpoint {named}, or be its number");
        return Err(InvalidValue::new("--checkpoint", asked, expected).into());
    }
    let folder = Folder::open(place)?;
    let (checkpoint, mut text) = match named.or(asked.checkpoint) {
        Some(number) => (folder.open_checkpoint(number)?, String::new()),
        None => newest(&folder)?,
    };
    let exported = export_model(&checkpoint, &asked.out, asked.force)?;
    let Manifest { checkpoint: number, trained, job, .. } = checkpoint.manifest();
    let _ = writeln!(
        text,
        "{} of checkpoint {number} ({} steps, {} samples): {} tensors, {} values, {} bytes in {}",
        job.workload,
        trained.steps,
        trained.samples,
        exported.tensors,
        exported.values,
        exported.bytes,
        asked.out.display()
    );
    Ok(CommandOutput { text, good: true })
}

/// The newest checkpoint that can be used, and a line about each newer one.
fn newest(folder: &Folder) -> Result<(Checkpoint, String), CliError> {
    let found = folder.newest()?;
    let mut text = String::new();
    let about = |(number, why): &(CheckpointId, CheckpointReadError)| {
        format!("checkpoint {number} is passed over: {why}")
    };
    match found.checkpoint {
        Some(checkpoint) => {
            found.passed_over.iter().for_each(|passed| text += &(about(passed) + "\n"));
            Ok((checkpoint, text))
        }
        None => {
            let place = folder.path().display();
            Err(CliError::new(match found.passed_over.first() {
                None => format!("{place} has no checkpoints; name the folder of a job that took some"),
                Some(passed) => format!("{place} has no checkpoint that can be used; {}", about(passed)),
            }))
        }
    }
}

/// A time as `2026-11-23T05:10:00Z`.
fn time(unix_s: u64) -> String {
    match UNIX_EPOCH.checked_add(Duration::from_secs(unix_s)).map(humantime::format_rfc3339_seconds) {
        // Beyond the year 9999 it writes nothing.
        Some(time) if unix_s < 253_402_300_800 => time.to_string(),
        _ => format!("{unix_s} s"),
    }
}

impl From<CheckpointReadError> for CliError {
    fn from(error: CheckpointReadError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<ExportError> for CliError {
    fn from(error: ExportError) -> Self {
        Self::new(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_and_a_report_folder_lead_to_their_checkpoints() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(place(dir.path()), dir.path());
        let below = dir.path().join("run/checkpoints");
        std::fs::create_dir_all(&below).unwrap();
        assert_eq!(place(dir.path()), below);
        assert_eq!(place(&dir.path().join("run")), below);
        assert_eq!(place(&below), below);
    }

    #[test]
    fn a_time_is_shown_to_the_second_for_any_manifest() {
        assert_eq!(time(1_800_000_000), "2027-01-15T08:00:00Z");
        assert_eq!(time(253_402_300_799), "9999-12-31T23:59:59Z");
        for odd in [253_402_300_800, u64::MAX] {
            assert_eq!(time(odd), format!("{odd} s"));
        }
    }
}
