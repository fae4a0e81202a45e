//! The evaluations of a job, in a file beside its checkpoints, so that a job that goes on from one of them knows those before.
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

/// Reads the evaluations after at most `epochs` epochs; none if there are none that can be read. One without samples says that there
/// was nothing to evaluate.
pub(super) fn read(checkpoints: &Path, epochs: u32) -> Vec<EvaluationEntry> {
    let mut entries = all(checkpoints);
    entries.retain(|entry| entry.epoch <= epochs);
    entries
}

/// Whether the job ended before it wrote down what its evaluation after so many epochs found, or that there was nothing to evaluate.
/// `false` if that is not written down where the checkpoints are.
pub(crate) fn lacks(checkpoints: &Path, epoch: u32) -> bool {
    file(checkpoints).is_some() && all(checkpoints).iter().all(|entry| entry.epoch != epoch)
}

/// All entries, also those of evaluations without a sample.
fn all(checkpoints: &Path) -> Vec<EvaluationEntry> {
    let text = file(checkpoints).and_then(|file| std::fs::read_to_string(file).ok());
    let Some(text) = text else { return Vec::new() };
    match serde_json::from_str::<Vec<EvaluationEntry>>(&text) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, folder = %checkpoints.display(), "earlier evaluations cannot be read; they are counted anew");
            Vec::new()
        }
    }
}

/// Replaces the evaluations of the job. After so many epochs as `nothing` says the model had no sample to be evaluated on. That
/// they cannot be written ends no job.
pub(super) fn write(checkpoints: &Path, entries: &[EvaluationEntry], nothing: Option<u32>) {
    let Some(file) = file(checkpoints) else { return };
    let without = nothing.map(|epoch| EvaluationEntry { epoch, ..EvaluationEntry::default() });
    let entries: Vec<&EvaluationEntry> = entries.iter().chain(&without).collect();
    let text = serde_json::to_string_pretty(&entries).expect("plain values");
    if let Err(error) = run_dir::replace(&file, 0o644, &text, Durability::Disk) {
        tracing::warn!(%error, file = %file.display(), "evaluations cannot be written; a resumed job will count them anew");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_up_to_an_epoch_are_read_again_and_damage_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(read(path, 9), []);
        let entries: Vec<EvaluationEntry> = (1..=3)
            .map(|epoch| EvaluationEntry { epoch, samples: 10, ..EvaluationEntry::default() })
            .collect();
        write(path, &entries, None);
        assert_eq!(read(path, 2), entries[..2]);
        assert_eq!(read(path, 3), entries);
        std::fs::write(path.join(FILE), "[{").unwrap();
        assert_eq!(read(path, 3), []);
        assert_eq!(read(Path::new("s3://bucket/job"), 4), []);
    }

    #[test]
    fn an_evaluation_lacks_until_it_is_written_down_or_that_it_had_no_sample() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let first = EvaluationEntry { epoch: 1, samples: 10, ..EvaluationEntry::default() };
        let lacking = || [1, 2, 3].map(|epoch| lacks(path, epoch));
        assert_eq!(lacking(), [true; 3]);
        write(path, std::slice::from_ref(&first), None);
        assert_eq!(lacking(), [false, true, true]);
        write(path, std::slice::from_ref(&first), Some(2));
        assert_eq!((lacking(), read(path, 1)), ([false, false, true], vec![first]));
        assert!(!lacks(Path::new("s3://bucket/job"), 1), "nothing is written down there");
    }
}
