//! The evaluations of a job, in a file beside its checkpoints, so that whoever goes on from one of them knows those before.
//!
//! A folder of checkpoints in an object store has no such file: a job that goes on from there counts its evaluations anew.

use std::path::{Path, PathBuf};

use crate::report::EvaluationEntry;
use crate::run_dir::{self, Durability};

/// Name of the file.
const FILE: &str = "evaluations.json";

/// The file in a folder of checkpoints; `None` if that is no folder of this machine.
fn file(checkpoints: &Path) -> Option<PathBuf> {
    (!checkpoints.to_string_lossy().contains("://")).then(|| checkpoints.join(FILE))
}

/// Reads the evaluations after fewer epochs than `before`; none if there are none that can be read.
pub(super) fn read(checkpoints: &Path, before: u32) -> Vec<EvaluationEntry> {
    let text = file(checkpoints).and_then(|file| std::fs::read_to_string(file).ok());
    let Some(text) = text else { return Vec::new() };
    match serde_json::from_str::<Vec<EvaluationEntry>>(&text) {
        Ok(mut entries) => {
            entries.retain(|entry| entry.epoch < before);
            entries
        }
        Err(error) => {
            tracing::warn!(%error, folder = %checkpoints.display(), "earlier evaluations cannot be read; they are counted anew");
            Vec::new()
        }
    }
}

/// Replaces the evaluations of the job. That they cannot be written ends no job.
pub(super) fn write(checkpoints: &Path, entries: &[EvaluationEntry]) {
    let Some(file) = file(checkpoints) else { return };
    let text = serde_json::to_string_pretty(entries).expect("plain values");
    if let Err(error) = run_dir::replace(&file, 0o644, &text, Durability::Disk) {
        tracing::warn!(%error, file = %file.display(), "evaluations cannot be written; a resumed job will count them anew");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_before_an_epoch_are_read_again_and_damage_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(read(path, 9), []);
        let entries: Vec<EvaluationEntry> = (1..=3)
            .map(|epoch| EvaluationEntry { epoch, samples: 10, ..EvaluationEntry::default() })
            .collect();
        write(path, &entries);
        assert_eq!(read(path, 3), entries[..2]);
        assert_eq!(read(path, 4), entries);
        std::fs::write(path.join(FILE), "[{").unwrap();
        assert_eq!(read(path, 4), []);
        assert_eq!(read(Path::new("s3://bucket/job"), 4), []);
    }
}
