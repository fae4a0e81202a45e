//! Which rows train and which are held out.

use antdt_core::{Permutation, Seed};

/// Where the rows for evaluation come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalRows {
    /// Held out of the data set; never trained.
    HeldOut,
    /// Generated beyond the training rows; never trained.
    Generated,
    /// The training rows themselves, since none were held out: the figures say how well they were learnt, not how
    /// well the model generalises.
    Training,
}

/// Samples of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleCounts {
    /// Samples to train in each epoch.
    pub train: u64,
    /// Samples to evaluate.
    pub eval: u64,
    /// Where the samples to evaluate come from.
    pub eval_rows: EvalRows,
}

/// Maps samples to rows of the data set.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    counts: SampleCounts,
    /// The order that decides who is held out; `None` keeps the order of the data set.
    order: Option<Permutation>,
}

impl Split {
    /// Splits `rows` rows of a file by a permutation that belongs to `seed`: the first `eval_fraction` of it, rounded,
    /// is held out, and at least one row stays for training.
    pub(crate) fn of_rows(rows: u64, eval_fraction: f64, seed: Seed) -> Self {
        let eval = share(rows, eval_fraction).min(rows.saturating_sub(1));
        if eval == 0 {
            let counts = SampleCounts { train: rows, eval: rows, eval_rows: EvalRows::Training };
            return Self { counts, order: None };
        }
        let counts = SampleCounts { train: rows - eval, eval, eval_rows: EvalRows::HeldOut };
        Self { counts, order: Some(Permutation::new(seed.derive("split"), rows)) }
    }

    /// `rows` generated rows to train, and `eval_fraction` as many beyond them to evaluate.
    pub(crate) fn of_generated(rows: u64, eval_fraction: f64) -> Self {
        let counts = match share(rows, eval_fraction) {
            0 => SampleCounts { train: rows, eval: rows, eval_rows: EvalRows::Training },
            eval => SampleCounts { train: rows, eval, eval_rows: EvalRows::Generated },
        };
        Self { counts, order: None }
    }

    /// How many there are of each.
    pub(crate) const fn counts(&self) -> SampleCounts {
        self.counts
    }

    /// The row of a training sample; `None` if there is no such sample.
    pub(crate) fn train_row(&self, sample: u64) -> Option<u64> {
        (sample < self.counts.train)
            .then(|| self.order.map_or(sample, |order| order.at(self.counts.eval + sample)))
    }

    /// The row of a sample held out; `None` if there is no such sample.
    pub(crate) fn eval_row(&self, sample: u64) -> Option<u64> {
        (sample < self.counts.eval).then(|| match (self.counts.eval_rows, self.order) {
            (EvalRows::Generated, _) => self.counts.train + sample,
            (_, Some(order)) => order.at(sample),
            (_, None) => sample,
        })
    }
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
