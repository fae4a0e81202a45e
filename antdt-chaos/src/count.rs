//! Checks that a job trained every sample exactly once, independently of its ledger: parameter `n` of the
//! counting model is the number of times that sample `n` was trained.

use std::path::Path;

use antdt_checkpoint::{CheckpointReadError, Folder};

use antdt::report::{Outcome, Report};
use antdt::resume;

/// Relative error of a share of a sample in a mean of models.
const MEAN_ERROR: f32 = 1e-3;

/// Returns the counts of a job of the counting model, `[samples]`: the parameters of its newest checkpoint.
/// `None` if there is no complete checkpoint.
///
/// # Errors
/// If the folder cannot be read.
pub fn counted(dir: &Path) -> Result<Option<Vec<f32>>, CheckpointReadError> {
    let Some(checkpoint) = Folder::open(resume::place(dir))?.newest()?.checkpoint else { return Ok(None) };
    let mut counts = vec![f32::NAN; checkpoint.manifest().job.layout.dense_len()];
    for portion in checkpoint.portions() {
        let portion = portion?;
        counts[portion.dense_from..][..portion.dense.len()].copy_from_slice(&portion.dense);
    }
    Ok(Some(counts))
}

/// How much a sample that was trained once adds to the final model.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weight {
    /// This much: 1 where workers share one model, and 1 / WORKERS where each has a model of its own that counts as much as any other
    /// in every average, and no worker came or went.
    Exactly(f32),
    /// A share of 1: of an average by samples, or one that a worker with a model of its own joined or left. How large is not known.
    Share,
}

impl Weight {
    fn of(report: &Report) -> Self {
        let Some(mode) = report.capabilities() else { return Self::Share };
        if !mode.averages_models() {
            return Self::Exactly(1.0);
        }
        let events = |kind: &str| report.events.iter().filter(|event| event.kind == kind).count();
        let came_or_went = events("membership") > 1 || events("lost") > 0;
        if mode.mixes() && !came_or_went && report.resumed.is_none() {
            return Self::Exactly(1.0 / report.workers.len() as f32);
        }
        Self::Share
    }

    fn fits(self, count: f32, epochs: u32) -> bool {
        let epochs = epochs as f32;
        match self {
            // Whole numbers are exact.
            #[allow(clippy::float_cmp, reason = "counts of the shared model are whole numbers")]
            Self::Exactly(1.0) => count == epochs,
            Self::Exactly(weight) => (count / weight - epochs).abs() <= epochs * MEAN_ERROR,
            Self::Share => count > 0.0 && count <= epochs * (1.0 + MEAN_ERROR),
        }
    }
}

/// Returns a description of what is wrong with a job that should have trained every sample once in each of
/// `epochs` epochs; `None` if nothing is. The function judges by the job's report, and by the `counts` of the
/// counting model if there are any. Where the model is an average of several workers' models, a sample trained by one of them adds
/// less than 1 to its count: exactly 1 / WORKERS in an average of equal weights that no worker joined or left; otherwise all that can
/// be said of a sample is that it is there, and not too often.
pub fn inexact(report: &Report, counts: Option<&[f32]>, epochs: u32) -> Option<String> {
    let samples = &report.samples;
    if report.outcome != Outcome::Completed {
        return Some(format!("the job did not complete: {:?}", report.outcome));
    }
    if !samples.is_exact() || samples.committed != samples.expected {
        return Some(format!("by the ledger: {samples:?}"));
    }
    let counts = counts?;
    let expected = samples.expected / u64::from(epochs.max(1));
    if counts.len() as u64 != expected {
        return Some(format!("the model counts {} samples of {expected}", counts.len()));
    }
    let weight = Weight::of(report);
    let wrong = counts.iter().position(|count| !weight.fits(*count, epochs))?;
    let times = counts[wrong];
    Some(match weight {
        Weight::Exactly(weight) if weight < 1.0 => format!(
            "sample {wrong} is {} times in the mean of {} models after {epochs} epochs",
            times / weight,
            report.workers.len()
        ),
        _ => format!("sample {wrong} is {times} times in the model after {epochs} epochs"),
    })
}

#[cfg(test)]
mod tests {
    use antdt::report::{EventEntry, WorkerEntry};

    use super::*;

    const SAMPLES: u64 = 50;

    fn of(sync: &str, committed: u64) -> Report {
        let mut report = Report { outcome: Outcome::Completed, sync: sync.to_owned(), ..Report::default() };
        report.samples.expected = 2 * SAMPLES;
        report.samples.committed = committed;
        report
    }

    #[test]
    fn a_count_that_is_off_by_one_sample_is_seen() {
        let [whole, averaged] = ["allreduce", "local-sgd=4"].map(|sync| of(sync, 2 * SAMPLES));
        let mut counts = vec![2.0; 50];
        assert_eq!(inexact(&whole, Some(&counts), 2), None);
        assert_eq!(inexact(&whole, None, 2), None);
        assert_eq!(inexact(&averaged, Some(&counts), 2), None);
        counts[7] = 3.0;
        assert!(inexact(&whole, Some(&counts), 2).unwrap().contains("sample 7 is 3 times"));
        assert!(inexact(&averaged, Some(&counts), 2).is_some(), "no mean is beyond all");
        counts[7] = 1.5;
        assert!(inexact(&whole, Some(&counts), 2).is_some());
        assert_eq!(inexact(&averaged, Some(&counts), 2), None, "an average has a share of it");
        counts[7] = 0.0;
        assert!(inexact(&averaged, Some(&counts), 2).is_some());
        counts[7] = f32::NAN;
        assert!(inexact(&averaged, Some(&counts), 2).is_some());
        assert!(inexact(&of("allreduce", 2 * SAMPLES - 1), None, 2).is_some());
        assert!(inexact(&whole, Some(&[2.0; 3]), 2).is_some());
        let failed = Report { outcome: Outcome::Failed { why: "x".to_owned() }, ..whole };
        assert!(inexact(&failed, None, 2).is_some());
    }

    #[test]
    fn a_sample_that_misses_one_of_two_epochs_is_seen_in_a_mean_of_equal_weights() {
        let four = |sync| Report { workers: vec![WorkerEntry::default(); 4], ..of(sync, 2 * SAMPLES) };
        let mut counts = vec![2.0 / 4.0; 50];
        for gossip in ["d-psgd", "ad-psgd", "ripples-static", "ripples=random"] {
            assert_eq!(inexact(&four(gossip), Some(&counts), 2), None);
        }
        counts[7] = 1.0 / 4.0;
        let mut report = four("d-psgd");
        let why = inexact(&report, Some(&counts), 2).unwrap();
        assert_eq!(why, "sample 7 is 1 times in the mean of 4 models after 2 epochs");
        // What a life that ended had learned is in the mean with its weight then, which nobody knows.
        report.events = vec![EventEntry {
            time_s: 1.0,
            node: String::new(),
            kind: "lost".to_owned(),
            text: String::new(),
        }];
        assert_eq!(inexact(&report, Some(&counts), 2), None);
    }
}
