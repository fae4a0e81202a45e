//! The division of a data set's rows into those to train on and those to evaluate.

use antdt_agent::TrainError;
use antdt_core::{SampleRange, Seed};

/// The rows on which a model is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalRows {
    /// Rows held out of the data set; the model is never trained on them.
    HeldOut,
    /// Rows that are generated in addition to the training rows; the model is never trained on them.
    Generated,
    /// The training rows themselves, because none were held out: the metrics say how well they were learnt,
    /// not how well the model generalises.
    Training,
}

/// Numbers of samples of a workload, for training and for evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleCounts {
    /// Number of samples to train on in each epoch.
    pub train: u64,
    /// Number of samples to evaluate.
    pub eval: u64,
    /// The rows from which the samples to evaluate are taken.
    pub eval_rows: EvalRows,
}

/// Maps samples to rows of the data set, both in the order of the rows: neighbouring samples are neighbouring rows, so
/// that a shard is a range of the file. The order in which shards and their samples are trained is the ledger's.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    counts: SampleCounts,
    /// Rows of a file that are held out; `None` for none.
    held_out: Option<HeldOut>,
}

#[derive(Debug, Clone, Copy)]
struct HeldOut {
    picks: Picks,
    /// Whether the picks are what is evaluated, or what is trained: whichever are fewer.
    picks_are_eval: bool,
}

/// `picked` of `rows` rows, one at a random place in each of `picked` strata of equal length. Both the picks and the rest
/// are found in constant time and memory. Source: stratified sampling; the arithmetic is our design.
#[derive(Debug, Clone, Copy)]
struct Picks {
    rows: u64,
    /// At least 1, and fewer than `rows`.
    picked: u64,
    seed: Seed,
}

impl Picks {
    /// The first row of a stratum.
    fn start(&self, stratum: u64) -> u64 {
        let start = u128::from(stratum) * u128::from(self.rows) / u128::from(self.picked);
        u64::try_from(start).expect("at most the number of rows")
    }

    /// The row that is picked of a stratum.
    fn pick(&self, stratum: u64) -> u64 {
        let (start, end) = (self.start(stratum), self.start(stratum + 1));
        start + self.seed.derive_number(stratum).rng().below(end - start)
    }

    /// The `index`-th row that is not picked. The rest begins with row `s(i) - i` in stratum `i`, which begins with row
    /// `s(i) = floor(i * rows / picked)`; so the last stratum with `s(i) - i <= index` is the one.
    fn rest(&self, index: u64) -> u64 {
        let rest = u128::from(self.rows - self.picked);
        let stratum = ((u128::from(index) + 1) * u128::from(self.picked)).div_ceil(rest) - 1;
        let stratum = u64::try_from(stratum).expect("below the number of picks").min(self.picked - 1);
        let row = index + stratum;
        row + u64::from(row >= self.pick(stratum))
    }
}

impl Split {
    /// Splits `rows` rows of a file: of each of as many equal strata as rows are to be held out, a row that belongs to
    /// `seed` is. `eval_fraction` of the rows is held out, rounded; at least one row stays for training.
    pub(crate) fn of_rows(rows: u64, eval_fraction: f64, seed: Seed) -> Self {
        let eval = share(rows, eval_fraction).min(rows.saturating_sub(1));
        if eval == 0 {
            let counts = SampleCounts { train: rows, eval: rows, eval_rows: EvalRows::Training };
            return Self { counts, held_out: None };
        }
        let counts = SampleCounts { train: rows - eval, eval, eval_rows: EvalRows::HeldOut };
        let picks_are_eval = counts.eval <= counts.train;
        let picks = Picks { rows, picked: counts.eval.min(counts.train), seed: seed.derive("split") };
        Self { counts, held_out: Some(HeldOut { picks, picks_are_eval }) }
    }

    /// `rows` generated rows to train, and `eval_fraction` as many beyond them to evaluate.
    pub(crate) fn of_generated(rows: u64, eval_fraction: f64) -> Self {
        let counts = match share(rows, eval_fraction) {
            0 => SampleCounts { train: rows, eval: rows, eval_rows: EvalRows::Training },
            eval => SampleCounts { train: rows, eval, eval_rows: EvalRows::Generated },
        };
        Self { counts, held_out: None }
    }

    /// Returns the number of training and of held-out samples.
    pub(crate) const fn counts(&self) -> SampleCounts {
        self.counts
    }

    /// Replaces `rows` by the rows of these training samples.
    pub(crate) fn train_rows(&self, samples: &[u64], rows: &mut Vec<u64>) -> Result<(), TrainError> {
        rows.clear();
        for sample in samples {
            rows.push(self.train_row(*sample).ok_or_else(|| no_sample(*sample, self.counts.train))?);
        }
        Ok(())
    }

    /// Replaces `rows` by the rows of these samples of the evaluation.
    pub(crate) fn eval_rows(&self, samples: SampleRange, rows: &mut Vec<u64>) -> Result<(), TrainError> {
        rows.clear();
        for sample in samples.start..samples.end {
            rows.push(self.eval_row(sample).ok_or_else(|| no_sample(sample, self.counts.eval))?);
        }
        Ok(())
    }

    /// The row of a training sample; `None` if there is no such sample.
    fn train_row(&self, sample: u64) -> Option<u64> {
        (sample < self.counts.train).then(|| match self.held_out {
            None => sample,
            Some(HeldOut { picks, picks_are_eval: true }) => picks.rest(sample),
            Some(HeldOut { picks, picks_are_eval: false }) => picks.pick(sample),
        })
    }

    /// The row of a sample held out; `None` if there is no such sample.
    fn eval_row(&self, sample: u64) -> Option<u64> {
        (sample < self.counts.eval).then(|| match (self.counts.eval_rows, self.held_out) {
            (EvalRows::Generated, _) => self.counts.train + sample,
            (_, None) => sample,
            (_, Some(HeldOut { picks, picks_are_eval: true })) => picks.pick(sample),
            (_, Some(HeldOut { picks, picks_are_eval: false })) => picks.rest(sample),
        })
    }
}

fn no_sample(sample: u64, samples: u64) -> TrainError {
    TrainError::Data { sample, why: format!("there are only samples 0..{samples}") }
}

/// `fraction` of `rows`, rounded.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the fraction is in [0, 1), and a share of more than 2^53 rows need not be exact"
)]
pub(crate) fn share(rows: u64, fraction: f64) -> u64 {
    (rows as f64 * fraction).round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_row_is_either_trained_or_held_out() {
        let split = Split::of_rows(1001, 0.2, Seed(5));
        let counts = split.counts();
        assert_eq!((counts.train, counts.eval, counts.eval_rows), (801, 200, EvalRows::HeldOut));
        let mut rows: Vec<u64> = (0..counts.train).filter_map(|sample| split.train_row(sample)).collect();
        rows.extend((0..counts.eval).filter_map(|sample| split.eval_row(sample)));
        rows.sort_unstable();
        assert_eq!(rows, (0..1001).collect::<Vec<_>>());
        assert_eq!((split.train_row(801), split.eval_row(200)), (None, None));
    }

    proptest! {
        #[test]
        fn both_parts_ascend_and_are_all_rows_together(rows in 1_u64..400, fraction in 0.001_f64..0.999, seed: u64) {
            let split = Split::of_rows(rows, fraction, Seed(seed));
            let counts = split.counts();
            prop_assert!(counts.train >= 1);
            let train: Vec<u64> = (0..counts.train).filter_map(|sample| split.train_row(sample)).collect();
            prop_assert!(train.is_sorted_by(|a, b| a < b), "{train:?}");
            prop_assert_eq!(train.len() as u64, counts.train);
            if counts.eval_rows == EvalRows::HeldOut {
                let eval: Vec<u64> = (0..counts.eval).filter_map(|sample| split.eval_row(sample)).collect();
                prop_assert!(eval.is_sorted_by(|a, b| a < b), "{eval:?}");
                let mut all = [train, eval].concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn neighbouring_samples_are_neighbouring_rows_at_any_size() {
        let rows = u64::MAX / 2;
        let split = Split::of_rows(rows, 0.1, Seed(3));
        let counts = split.counts();
        for sample in [0, 1, counts.train / 3, counts.train - 2] {
            let (row, next) = (split.train_row(sample).unwrap(), split.train_row(sample + 1).unwrap());
            // Of two strata of ten rows each, at most two rows side by side are held out.
            assert!(row < next && next <= row + 3 && next < rows, "{sample}: {row}, {next}");
        }
    }

    #[test]
    fn another_seed_holds_out_other_rows() {
        let held_out = |seed| {
            let split = Split::of_rows(1000, 0.2, Seed(seed));
            (0..200).filter_map(|sample| split.eval_row(sample)).collect::<Vec<_>>()
        };
        assert_eq!(held_out(1), held_out(1));
        assert_ne!(held_out(1), held_out(2));
    }

    #[test]
    fn with_nothing_held_out_the_training_rows_are_evaluated() {
        let split = Split::of_rows(10, 0.0, Seed(5));
        assert_eq!(split.counts(), SampleCounts { train: 10, eval: 10, eval_rows: EvalRows::Training });
        assert_eq!((split.train_row(3), split.eval_row(3)), (Some(3), Some(3)));
    }

    #[test]
    fn generated_rows_are_evaluated_beyond_the_training_rows() {
        let split = Split::of_generated(100, 0.25);
        assert_eq!(split.counts(), SampleCounts { train: 100, eval: 25, eval_rows: EvalRows::Generated });
        assert_eq!((split.train_row(99), split.train_row(100)), (Some(99), None));
        assert_eq!((split.eval_row(0), split.eval_row(24), split.eval_row(25)), (Some(100), Some(124), None));
    }

    #[test]
    fn at_least_one_row_is_left_to_train() {
        assert_eq!(Split::of_rows(1, 0.9, Seed(5)).counts().train, 1);
        assert_eq!(Split::of_rows(2, 0.99, Seed(5)).counts().train, 1);
    }
}
