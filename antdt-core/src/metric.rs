//! Results of an evaluation: named values, each with the rule by which values of several evaluators become
//! one.

/// Rule by which values of one metric, each over other samples, become the value over all of these samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Combine {
    /// Mean of the values by their weights, as for a loss or an accuracy.
    Mean,
    /// Sum of the values, as for a number of mistakes.
    Sum,
    /// Largest of the values.
    Max,
    /// Smallest of the values.
    Min,
    /// The values cannot be combined: the metric needs all samples at once, like the area under a ROC curve.
    /// One evaluator sees them all and returns the value.
    Whole,
}

/// Whether a larger or a smaller value of a metric is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Better {
    /// Neither is better: the metric only describes the model.
    #[default]
    Neither,
    /// A larger value is better.
    Higher,
    /// A smaller value is better.
    Lower,
}

/// A named value of an evaluation.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Metric {
    /// Name of the metric in reports. [`Metric::LOSS`] is the loss that training minimises.
    pub name: String,
    /// Value over the samples seen so far.
    pub value: f64,
    /// Weight of the value in a mean, usually a number of samples; 0 leaves the metric out.
    pub weight: f64,
    /// Rule by which values of several evaluators are combined.
    pub combine: Combine,
    /// Whether larger or smaller values are better.
    pub better: Better,
}

impl Metric {
    /// Name of the metric that is the loss.
    pub const LOSS: &str = "loss";
    /// Largest length of a metric's name, in bytes.
    pub const NAME_MAX: usize = 64;

    /// Returns a metric whose values are combined by the rule `combine`.
    pub fn new(name: impl Into<String>, value: f64, weight: f64, combine: Combine) -> Self {
        Self { name: name.into(), value, weight, combine, better: Better::Neither }
    }

    /// Returns a metric that is the mean over samples; `weight` is usually their number.
    pub fn mean(name: impl Into<String>, value: f64, weight: f64) -> Self {
        Self::new(name, value, weight, Combine::Mean)
    }

    /// Returns a metric that can only be computed from all samples together, so that its values cannot be
    /// combined.
    pub fn whole(name: impl Into<String>, value: f64, weight: f64) -> Self {
        Self::new(name, value, weight, Combine::Whole)
    }

    /// Returns the same metric, of which a larger value is better.
    #[must_use]
    pub fn higher_is_better(self) -> Self {
        Self { better: Better::Higher, ..self }
    }

    /// Returns the same metric, of which a smaller value is better.
    #[must_use]
    pub fn lower_is_better(self) -> Self {
        Self { better: Better::Lower, ..self }
    }
}

/// Reason why a metric cannot be recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricError {
    /// Reports cannot print the name of the metric.
    #[error(
        "`{name}` names no metric; use 1 to {} of the characters a-z, A-Z, 0-9, _, -, ., /, @",
        Metric::NAME_MAX
    )]
    Name {
        /// Name of the metric.
        name: String,
    },
    /// There are too many metrics.
    #[error("`{name}` would be metric number {}; record at most {}", Metrics::COUNT_MAX + 1, Metrics::COUNT_MAX)]
    Count {
        /// Name of the metric that was to be recorded.
        name: String,
    },
    /// Values of one metric were recorded with different rules.
    #[error("metric `{name}` was recorded as {before:?} and now as {now:?}; give it one rule")]
    Rule {
        /// Name of the metric.
        name: String,
        /// Rule of the earlier value.
        before: Combine,
        /// Rule of the new value.
        now: Combine,
    },
    /// A metric got a second value, though its rule, [`Combine::Whole`], forbids to combine values.
    #[error(
        "metric `{name}` needs all samples at once and has a value already; let one evaluator record it once"
    )]
    Whole {
        /// Name of the metric.
        name: String,
    },
}

/// Metrics by name, in the order in which they were first recorded.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Metrics {
    metrics: Vec<Metric>,
}

impl Metrics {
    /// Largest number of metrics in a set.
    pub const COUNT_MAX: usize = 256;

    /// Records a value of a metric; an earlier value of this name is combined with it by the metric's rule. A
    /// metric of weight 0 is checked and left out.
    ///
    /// # Errors
    /// If the name cannot be used, the rule differs from the earlier one, there are too many metrics, or the
    /// rule is [`Combine::Whole`] and there is a value already. Nothing is changed then.
    pub fn record(&mut self, metric: Metric) -> Result<(), MetricError> {
        let suits = |c: char| c.is_ascii_alphanumeric() || "_-./@".contains(c);
        let Metric { name, value, weight, combine, better } = metric;
        if name.is_empty() || name.len() > Metric::NAME_MAX || !name.chars().all(suits) {
            return Err(MetricError::Name { name });
        }
        let Some(found) = self.metrics.iter_mut().find(|found| found.name == name) else {
            if self.metrics.len() == Self::COUNT_MAX {
                return Err(MetricError::Count { name });
            }
            if weight > 0.0 {
                self.metrics.push(Metric { name, value, weight, combine, better });
            }
            return Ok(());
        };
        if found.combine != combine {
            return Err(MetricError::Rule { name, before: found.combine, now: combine });
        }
        if combine == Combine::Whole {
            return Err(MetricError::Whole { name });
        }
        if weight > 0.0 {
            let total = found.weight + weight;
            found.value = match combine {
                Combine::Mean => found.value * (found.weight / total) + value * (weight / total),
                Combine::Sum => found.value + value,
                Combine::Max => found.value.max(value),
                Combine::Min | Combine::Whole => found.value.min(value),
            };
            found.weight = total;
        }
        Ok(())
    }

    /// Adds the metrics that another evaluator computed from other samples.
    ///
    /// # Errors
    /// As [`record`](Self::record); metrics that were merged before the error stay.
    pub fn merge(&mut self, other: Self) -> Result<(), MetricError> {
        other.metrics.into_iter().try_for_each(|metric| self.record(metric))
    }

    /// Removes values that are infinite or not a number.
    pub fn retain_finite(&mut self) {
        self.metrics.retain(|metric| metric.value.is_finite());
    }

    /// Returns the value of the metric with this name; `None` if it was not recorded.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// Returns all metrics, in the order in which they were first recorded.
    pub fn iter(&self) -> std::slice::Iter<'_, Metric> {
        self.metrics.iter()
    }
}

impl<'a> IntoIterator for &'a Metrics {
    type Item = &'a Metric;
    type IntoIter = std::slice::Iter<'a, Metric>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(combine: Combine, values: &[(f64, f64)]) -> Option<f64> {
        let mut metrics = Metrics::default();
        for (value, weight) in values {
            metrics.record(Metric::new("m", *value, *weight, combine)).unwrap();
        }
        metrics.get("m")
    }

    #[test]
    fn values_are_combined_by_the_rule_of_their_metric() {
        let values = [(1.0, 3.0), (5.0, 1.0), (2.0, 4.0)];
        assert_eq!(recorded(Combine::Mean, &values), Some(2.0));
        assert_eq!(recorded(Combine::Sum, &values), Some(8.0));
        assert_eq!(recorded(Combine::Max, &values), Some(5.0));
        assert_eq!(recorded(Combine::Min, &values), Some(1.0));
        assert_eq!(recorded(Combine::Mean, &[(7.0, 0.0)]), None, "no samples say nothing");
    }

    #[test]
    fn evaluators_of_other_samples_merge_to_the_result_of_one() {
        let part = |values: &[f64]| {
            let mut metrics = Metrics::default();
            for value in values {
                metrics.record(Metric::mean("loss", *value, 1.0)).unwrap();
                metrics.record(Metric::new("worst", *value, 1.0, Combine::Max)).unwrap();
            }
            metrics
        };
        let mut merged = part(&[1.0, 2.0, 6.0]);
        merged.merge(part(&[7.0])).unwrap();
        assert_eq!((merged.get("loss"), merged.get("worst")), (Some(4.0), Some(7.0)));
    }

    #[test]
    fn a_metric_of_all_samples_is_never_combined() {
        let mut metrics = Metrics::default();
        metrics.record(Metric::whole("auc", 0.7, 10.0).higher_is_better()).unwrap();
        let again = metrics.clone().merge(metrics.clone());
        assert_eq!(again, Err(MetricError::Whole { name: "auc".to_owned() }));
        let mean = metrics.record(Metric::mean("auc", 0.8, 1.0));
        assert!(matches!(mean, Err(MetricError::Rule { .. })), "{mean:?}");
        assert_eq!(metrics.get("auc"), Some(0.7));
    }

    #[test]
    fn names_suit_a_report() {
        let mut metrics = Metrics::default();
        for name in ["", "a b", "<b>", "ä", &"x".repeat(65)] {
            assert!(
                matches!(metrics.record(Metric::mean(name, 0.0, 1.0)), Err(MetricError::Name { .. })),
                "{name}"
            );
        }
        for number in 0..Metrics::COUNT_MAX {
            metrics.record(Metric::mean(format!("top-{number}/recall@5"), 0.0, 1.0)).unwrap();
        }
        assert!(matches!(metrics.record(Metric::mean("more", 0.0, 1.0)), Err(MetricError::Count { .. })));
    }

    #[test]
    fn values_that_are_no_numbers_are_left_out() {
        let mut metrics = Metrics::default();
        for (name, value) in [("a", f64::NAN), ("b", f64::INFINITY), ("c", 1.0)] {
            metrics.record(Metric::mean(name, value, 1.0)).unwrap();
        }
        metrics.retain_finite();
        assert_eq!(metrics.iter().map(|metric| metric.name.as_str()).collect::<Vec<_>>(), ["c"]);
    }
}
