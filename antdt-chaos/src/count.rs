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

/// Returns a description of what is wrong with a job that should have trained every sample once in each of
/// `epochs` epochs; `None` if nothing is. The function judges by the job's report, and by the `counts` of the
/// counting model if there are any. With `averages` the model is an average of several workers' models, so
/// that a sample trained by one of them adds less than 1 to its count.
#[allow(clippy::cast_precision_loss, reason = "a handful of epochs")]
pub fn inexact(report: &Report, counts: Option<&[f32]>, epochs: u32, averages: bool) -> Option<String> {
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
    let once = epochs as f32;
    let says = |sample: usize| {
        format!("sample {sample} is {} times in the model after {epochs} epochs", counts[sample])
    };
    #[allow(clippy::float_cmp, reason = "whole numbers")]
    let fits =
        |count: f32| if averages { count > 0.0 && count <= once * (1.0 + MEAN_ERROR) } else { count == once };
    counts.iter().position(|count| !fits(*count)).map(says)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: u64 = 50;

    fn of(committed: u64) -> Report {
        let mut report = Report { outcome: Outcome::Completed, ..Report::default() };
        report.samples.expected = 2 * SAMPLES;
        report.samples.committed = committed;
        report
    }

    #[test]
    fn a_count_that_is_off_by_one_sample_is_seen() {
        let (whole, mut counts) = (of(2 * SAMPLES), vec![2.0; 50]);
        assert_eq!(inexact(&whole, Some(&counts), 2, false), None);
        assert_eq!(inexact(&whole, None, 2, false), None);
        assert_eq!(inexact(&whole, Some(&counts), 2, true), None);
        counts[7] = 3.0;
        assert!(inexact(&whole, Some(&counts), 2, false).unwrap().contains("sample 7 is 3 times"));
        assert!(inexact(&whole, Some(&counts), 2, true).is_some(), "no mean is beyond all");
        counts[7] = 1.5;
        assert!(inexact(&whole, Some(&counts), 2, false).is_some());
        assert_eq!(inexact(&whole, Some(&counts), 2, true), None, "an average has a share of it");
        counts[7] = 0.0;
        assert!(inexact(&whole, Some(&counts), 2, true).is_some());
        counts[7] = f32::NAN;
        assert!(inexact(&whole, Some(&counts), 2, true).is_some());
        assert!(inexact(&of(2 * SAMPLES - 1), None, 2, false).is_some());
        assert!(inexact(&whole, Some(&[2.0; 3]), 2, false).is_some());
        let failed = Report { outcome: Outcome::Failed { why: "x".to_owned() }, ..whole };
        assert!(inexact(&failed, None, 2, false).is_some());
    }
}
