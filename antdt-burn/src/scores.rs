//! [`Scores`]: predictions and labels of evaluated samples, for metrics that need all samples at once, such as the area
//! under the ROC curve.

use antdt_core::{Metric, MetricError, Metrics};

/// Samples whose predictions are kept one by one: 4 MiB. Their area is exact.
const EACH_MAX: usize = 1 << 20;

/// Low bits of a prediction that a cell leaves out: predictions of one cell differ by less than 1/2048 of their value.
const CELL_BITS: u32 = 12;

/// Cells from 0 to 1, each with two counts: 4 MiB.
const CELLS: usize = (1.0_f32.to_bits() >> CELL_BITS) as usize + 1;

/// Predictions and labels of evaluated samples, in memory that does not grow with their number.
///
/// Up to 1,048,576 samples are kept one by one. Beyond, predictions that differ by less than 1/2048 of their value are
/// counted as equal; [`auc_error`](Self::auc_error) bounds what this does to the area.
///
/// ```
/// let mut scores = antdt_burn::Scores::default();
/// scores.extend(&[0.0, 1.0, 0.0, 1.0], &[0.1, 0.4, 0.4, 0.8]);
/// assert_eq!(scores.auc(), Some(3.5 / 4.0));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    samples: u64,
    positives: u64,
    /// Sum of the samples' log losses.
    loss: f64,
    ranked: Ranked,
}

/// The predictions, by which samples are ranked.
#[derive(Debug, Clone, PartialEq)]
enum Ranked {
    /// The prediction of each sample with its label as the lowest bit.
    Each(Vec<u32>),
    /// Negatives and positives by cell of the prediction.
    Cells(Vec<[u64; 2]>),
}

impl Default for Ranked {
    fn default() -> Self {
        Self::Each(Vec::new())
    }
}

/// The bits of a prediction, which are in the order of the predictions. What is not a number ranks highest.
const fn bits(probability: f32) -> u32 {
    probability.to_bits() & (u32::MAX >> 1)
}

/// The cell of the bits of a prediction.
fn cell(bits: u32) -> usize {
    ((bits >> CELL_BITS) as usize).min(CELLS - 1)
}

impl Scores {
    /// Adds samples: their labels, 0 or 1, and their predicted probabilities of label 1.
    pub fn extend(&mut self, labels: &[f32], probabilities: &[f32]) {
        for (label, probability) in labels.iter().zip(probabilities) {
            let positive = *label > 0.5;
            self.samples += 1;
            self.positives += u64::from(positive);
            let p = f64::from(*probability).clamp(1e-7, 1.0 - 1e-7);
            self.loss -= if positive { p.ln() } else { (1.0 - p).ln() };
            self.ranked.add(bits(*probability), positive);
        }
    }

    /// Returns how many samples were added.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns how many samples with label 1 were added.
    pub const fn positives(&self) -> u64 {
        self.positives
    }

    /// Returns the mean log loss; `None` without samples.
    pub fn log_loss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / count(self.samples))
    }

    /// Records the metrics `loss` and, where both labels occur, `auc`.
    ///
    /// # Errors
    /// If one of these metrics was recorded before with another rule.
    pub fn record(&mut self, metrics: &mut Metrics) -> Result<(), MetricError> {
        let weight = count(self.samples);
        if let Some(loss) = self.log_loss() {
            metrics.record(Metric::mean(Metric::LOSS, loss, weight).lower_is_better())?;
        }
        if let Some(auc) = self.auc() {
            metrics.record(Metric::whole("auc", auc, weight).higher_is_better())?;
        }
        Ok(())
    }

    /// Returns the area under the ROC curve, ties counted half; `None` unless both labels occur.
    pub fn auc(&mut self) -> Option<f64> {
        self.ordered_pairs().map(|(ordered, tied)| ordered + tied / 2.0)
    }

    /// Returns how far the area may be from the one of all predictions as they were: half the pairs that count as tied,
    /// as a share of all; 0 while samples are kept one by one. `None` unless both labels occur.
    pub fn auc_error(&mut self) -> Option<f64> {
        let each = matches!(self.ranked, Ranked::Each(_));
        self.ordered_pairs().map(|(_, tied)| if each { 0.0 } else { tied / 2.0 })
    }

    /// Of all pairs of a positive and a negative sample, the shares in which the positive one is predicted higher, and
    /// equally high.
    fn ordered_pairs(&mut self) -> Option<(f64, f64)> {
        let pairs = count(self.positives) * count(self.samples - self.positives);
        if pairs == 0.0 {
            return None;
        }
        let (mut below, mut ordered, mut tied) = (0.0_f64, 0.0_f64, 0.0_f64);
        self.ranked.ascending(|negatives, positives| {
            ordered += below * count(positives);
            tied += count(negatives) * count(positives);
            below += count(negatives);
        });
        Some((ordered / pairs, tied / pairs))
    }
}

impl Ranked {
    fn add(&mut self, bits: u32, positive: bool) {
        if let Self::Each(each) = self {
            if each.len() < EACH_MAX {
                each.push(bits << 1 | u32::from(positive));
                return;
            }
            let mut cells = vec![[0; 2]; CELLS];
            for key in each {
                cells[cell(*key >> 1)][(*key & 1) as usize] += 1;
            }
            *self = Self::Cells(cells);
        }
        if let Self::Cells(cells) = self {
            cells[cell(bits)][usize::from(positive)] += 1;
        }
    }

    /// Calls `each` with the numbers of negatives and positives of each prediction, in ascending order.
    fn ascending(&mut self, mut each: impl FnMut(u64, u64)) {
        match self {
            Self::Each(keys) => {
                keys.sort_unstable();
                for tied in keys.chunk_by(|a, b| a >> 1 == b >> 1) {
                    let negatives = tied.partition_point(|key| key & 1 == 0);
                    each(negatives as u64, (tied.len() - negatives) as u64);
                }
            }
            Self::Cells(cells) => {
                cells.iter().for_each(|[negatives, positives]| each(*negatives, *positives));
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a count of samples")]
const fn count(samples: u64) -> f64 {
    samples as f64
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;
    use proptest::prelude::*;

    use super::*;

    fn scores(pairs: &[(f32, f32)]) -> Scores {
        let mut scores = Scores::default();
        for (label, probability) in pairs {
            scores.extend(&[*label], &[*probability]);
        }
        scores
    }

    /// The area by its definition, all pairs compared.
    fn area(pairs: &[(f32, f32)]) -> Option<f64> {
        let of = |label: f32| pairs.iter().filter(move |pair| pair.0 == label).map(|pair| pair.1);
        let (mut sum, mut all) = (0.0, 0.0);
        for positive in of(1.0) {
            for negative in of(0.0) {
                sum +=
                    if positive > negative { 1.0 } else { f64::from(u8::from(positive == negative)) / 2.0 };
                all += 1.0;
            }
        }
        (all > 0.0).then(|| sum / all)
    }

    #[test]
    fn auc_is_the_share_of_ordered_pairs_with_ties_half() {
        // Pairs (positive, negative): (0.4, 0.1) 1, (0.4, 0.4) half, (0.8, 0.1) 1, (0.8, 0.4) 1.
        let mut scored = scores(&[(0.0, 0.1), (1.0, 0.4), (0.0, 0.4), (1.0, 0.8)]);
        assert_eq!((scored.auc(), scored.auc_error()), (Some(3.5 / 4.0), Some(0.0)));
        assert_eq!(scores(&[(1.0, 0.5)]).auc(), None);
        assert_eq!(scores(&[]).auc(), None);
    }

    #[test]
    fn log_loss_is_the_mean_over_samples() {
        let scored = scores(&[(1.0, 0.5), (0.0, 0.5)]);
        assert!((scored.log_loss().unwrap() - std::f64::consts::LN_2).abs() < 1e-7);
        assert!(scores(&[(1.0, f32::NAN)]).log_loss().unwrap().is_nan());
    }

    proptest! {
        #[test]
        fn auc_is_that_of_all_pairs(
            pairs in prop::collection::vec((0..2_u8, prop_oneof![0.0..1.0_f32, Just(0.25), Just(0.0), Just(1.0)]), 0..60),
        ) {
            let pairs: Vec<(f32, f32)> = pairs.into_iter().map(|(label, p)| (f32::from(label), p)).collect();
            match (scores(&pairs).auc(), area(&pairs)) {
                (Some(auc), Some(area)) => prop_assert!((auc - area).abs() < 1e-12, "{} and {}", auc, area),
                (auc, area) => prop_assert_eq!(auc, area),
            }
        }
    }

    /// `samples` clicks, about one in ten predictions, and the area of all of them kept one by one.
    fn many(samples: usize) -> (Scores, f64) {
        let mut rng = Seed(5).derive("clicks").rng();
        let (mut scores, mut keys) = (Scores::default(), Vec::new());
        for _ in 0..samples {
            #[allow(clippy::cast_possible_truncation, reason = "a prediction has no more digits")]
            let p = (rng.unit() * rng.unit() * 0.4) as f32;
            let label = f32::from(u8::from(rng.unit() < f64::from(p)));
            scores.extend(&[label], &[p]);
            keys.push(bits(p) << 1 | u32::from(label > 0.5));
        }
        let mut each = Scores { ranked: Ranked::Each(keys), ..scores.clone() };
        (scores, each.auc().unwrap())
    }

    #[test]
    fn beyond_a_million_samples_the_area_stays_within_the_bound_that_is_told() {
        let (mut all, exact) = many(EACH_MAX);
        assert_eq!((all.auc(), all.auc_error()), (Some(exact), Some(0.0)));
        let (mut all, exact) = many(EACH_MAX + EACH_MAX / 8);
        assert!(matches!(all.ranked, Ranked::Cells(_)));
        let (auc, error) = (all.auc().unwrap(), all.auc_error().unwrap());
        assert!((auc - exact).abs() <= error, "{auc} and {exact}, {error} allowed");
        assert!(error < 2e-4, "{error}");
        assert!((auc - exact).abs() < 1e-6, "{auc} and {exact}");
    }

    #[test]
    fn memory_is_bounded() {
        let mut ranked = Ranked::default();
        for at in 0..3 * EACH_MAX {
            ranked.add(if at % 2 == 0 { 0 } else { u32::MAX >> 1 }, at % 3 == 0);
        }
        let Ranked::Cells(cells) = &ranked else { panic!("{} samples are kept one by one", 3 * EACH_MAX) };
        assert!(size_of_val(&cells[..]) <= 5 << 20);
        let mut seen = (0, 0);
        ranked.ascending(|negatives, positives| seen = (seen.0 + negatives, seen.1 + positives));
        assert_eq!(seen, (2 * EACH_MAX as u64, EACH_MAX as u64));
    }
}
