//! [`ErrorSums`]: how far predictions of classes and of numbers are from the labels, added up sample by sample.

use antdt_core::{Metric, MetricError, Metrics};

use crate::data::LabelKind;

/// Sums over evaluated samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ErrorSums {
    samples: u64,
    /// Of the samples' losses.
    loss: f64,
    /// Samples whose most probable class is the right one.
    right: u64,
    /// Of the distances of predicted numbers from the labels, in standard deviations.
    distance: f64,
}

impl ErrorSums {
    /// Adds samples: their classes, and the predicted probabilities of all classes, `[samples, count]`.
    pub(crate) fn add_classes(&mut self, classes: &[f32], probabilities: &[f32], count: usize) {
        for (class, probabilities) in classes.iter().zip(probabilities.chunks(count)) {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the number of a class"
            )]
            let class = *class as usize;
            self.samples += 1;
            let p = probabilities.get(class).copied().unwrap_or(f32::NAN);
            self.loss -= f64::from(p).clamp(1e-7, 1.0).ln();
            // What is not a number is more than nothing, and so never right.
            let is_most = probabilities.iter().enumerate().all(|(at, other)| at == class || *other < p);
            self.right += u64::from(is_most);
        }
    }

    /// Adds samples: their labels and predictions, in standard deviations.
    pub(crate) fn add_numbers(&mut self, labels: &[f32], predicted: &[f32]) {
        for (label, predicted) in labels.iter().zip(predicted) {
            let distance = f64::from(predicted - label);
            self.samples += 1;
            self.loss += distance * distance;
            self.distance += distance.abs();
        }
    }

    /// Records the metric `loss`, and `accuracy` of classes, or `rmse` and `mae` of numbers in the unit of the label's column.
    ///
    /// # Errors
    /// If one of these metrics was recorded before with another rule.
    #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
    pub(crate) fn record(&self, label: LabelKind, metrics: &mut Metrics) -> Result<(), MetricError> {
        if self.samples == 0 {
            return Ok(());
        }
        let weight = self.samples as f64;
        let loss = self.loss / weight;
        metrics.record(Metric::mean(Metric::LOSS, loss, weight).lower_is_better())?;
        match label {
            LabelKind::Number { deviation, .. } => {
                // No mean of those of parts.
                let rmse = Metric::whole("rmse", loss.sqrt() * deviation, weight);
                metrics.record(rmse.lower_is_better())?;
                let mae = Metric::mean("mae", self.distance / weight * deviation, weight);
                metrics.record(mae.lower_is_better())
            }
            LabelKind::Binary | LabelKind::Classes(_) => {
                let accuracy = Metric::mean("accuracy", self.right as f64 / weight, weight);
                metrics.record(accuracy.higher_is_better())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(sums: ErrorSums, label: LabelKind) -> Metrics {
        let mut metrics = Metrics::default();
        sums.record(label, &mut metrics).unwrap();
        metrics
    }

    #[test]
    fn errors_of_numbers_are_in_the_unit_of_the_column() {
        let mut sums = ErrorSums::default();
        sums.add_numbers(&[0.0, 1.0], &[0.5, 0.0]);
        sums.add_numbers(&[-1.0], &[-1.0]);
        let metrics = recorded(sums, LabelKind::Number { mean: 7.0, deviation: 10.0 });
        let near = |name: &str, value: f64| (metrics.get(name).unwrap() - value).abs() < 1e-6;
        assert!(near("loss", 1.25 / 3.0) && near("mae", 5.0) && near("rmse", 10.0 * (1.25_f64 / 3.0).sqrt()));
    }

    #[test]
    fn accuracy_counts_samples_whose_own_class_is_the_most_probable() {
        let mut sums = ErrorSums::default();
        sums.add_classes(&[0.0, 2.0], &[0.5, 0.25, 0.25, 0.5, 0.25, 0.25], 3);
        // Nothing is told apart, and nothing is a number.
        sums.add_classes(&[1.0, 1.0], &[0.25, 0.25, 0.25, f32::NAN, 0.5, 0.5], 3);
        let metrics = recorded(sums, LabelKind::Classes(3));
        assert_eq!(metrics.get("accuracy"), Some(0.25));
        assert!(recorded(ErrorSums::default(), LabelKind::Classes(3)).iter().next().is_none());
        let mut certain = ErrorSums::default();
        certain.add_classes(&[1.0], &[0.0, 1.0], 2);
        assert_eq!(recorded(certain, LabelKind::Classes(2)).get("loss"), Some(0.0));
    }
}
