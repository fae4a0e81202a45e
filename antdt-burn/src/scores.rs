//! [`Scores`]: labels and predictions of evaluated samples, for metrics that need all samples at once, such
//! as the area under the ROC curve.

use antdt_core::{Metric, MetricError, Metrics};

/// Labels and predicted probabilities of evaluated samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// Label, 0 or 1, of each sample.
    pub labels: Vec<f32>,
    /// Predicted probability of label 1 for each sample.
    pub probabilities: Vec<f32>,
}

impl Scores {
    /// Returns the mean log loss; `None` without samples.
    pub fn log_loss(&self) -> Option<f64> {
        if self.labels.is_empty() {
            return None;
        }
        let sum: f64 = self
            .labels
            .iter()
            .zip(&self.probabilities)
            .map(|(label, p)| {
                let p = f64::from(*p).clamp(1e-7, 1.0 - 1e-7);
                if *label > 0.5 { -p.ln() } else { -(1.0 - p).ln() }
            })
            .sum();
        #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
        Some(sum / self.labels.len() as f64)
    }

    /// Records the metrics `loss` and, where both labels occur, `auc`.
    ///
    /// # Errors
    /// If one of these metrics was recorded before with another rule.
    pub fn record(&self, metrics: &mut Metrics) -> Result<(), MetricError> {
        #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
        let weight = self.labels.len() as f64;
        if let Some(loss) = self.log_loss() {
            metrics.record(Metric::mean(Metric::LOSS, loss, weight).lower_is_better())?;
        }
        if let Some(auc) = self.auc() {
            metrics.record(Metric::whole("auc", auc, weight).higher_is_better())?;
        }
        Ok(())
    }

    /// Returns the area under the ROC curve, ties counted half; `None` unless both labels occur.
    pub fn auc(&self) -> Option<f64> {
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        order.sort_by(|a, b| self.probabilities[*a].total_cmp(&self.probabilities[*b]));
        let (mut rank_sum, mut positives) = (0.0_f64, 0_u64);
        let mut i = 0;
        while i < order.len() {
            let tied = order[i..]
                .iter()
                .take_while(|j| self.probabilities[**j].total_cmp(&self.probabilities[order[i]]).is_eq())
                .count();
            // Tied samples share the mean of the ranks they cover (1-based).
            #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
            let rank = i as f64 + (tied as f64 + 1.0) / 2.0;
            for j in &order[i..i + tied] {
                if self.labels[*j] > 0.5 {
                    rank_sum += rank;
                    positives += 1;
                }
            }
            i += tied;
        }
        let negatives = self.labels.len() as u64 - positives;
        if positives == 0 || negatives == 0 {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
        let (p, n) = (positives as f64, negatives as f64);
        Some((rank_sum - p * (p + 1.0) / 2.0) / (p * n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(pairs: &[(f32, f32)]) -> Scores {
        Scores {
            labels: pairs.iter().map(|p| p.0).collect(),
            probabilities: pairs.iter().map(|p| p.1).collect(),
        }
    }

    #[test]
    fn auc_is_the_share_of_ordered_pairs_with_ties_half() {
        let scored = scores(&[(0.0, 0.1), (1.0, 0.4), (0.0, 0.4), (1.0, 0.8)]);
        // Pairs (positive, negative): (0.4, 0.1) 1, (0.4, 0.4) half, (0.8, 0.1) 1, (0.8, 0.4) 1.
        assert_eq!(scored.auc(), Some(3.5 / 4.0));
        assert_eq!(scores(&[(1.0, 0.5)]).auc(), None);
        assert_eq!(scores(&[]).auc(), None);
    }

    #[test]
    fn log_loss_is_the_mean_over_samples() {
        let scored = scores(&[(1.0, 0.5), (0.0, 0.5)]);
        assert!((scored.log_loss().unwrap() - std::f64::consts::LN_2).abs() < 1e-7);
    }
}
