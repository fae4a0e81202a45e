//! Conversion of the metrics of an evaluation.

use antdt_core as core;

use super::WireError;
use crate::v1;

impl From<&core::Metric> for v1::Metric {
    fn from(metric: &core::Metric) -> Self {
        let combine = match metric.combine {
            core::Combine::Mean => v1::Combine::Mean,
            core::Combine::Sum => v1::Combine::Sum,
            core::Combine::Max => v1::Combine::Max,
            core::Combine::Min => v1::Combine::Min,
            core::Combine::Whole => v1::Combine::Whole,
        };
        let better = match metric.better {
            core::Better::Neither => v1::Better::Neither,
            core::Better::Higher => v1::Better::Higher,
            core::Better::Lower => v1::Better::Lower,
        };
        Self {
            name: metric.name.clone(),
            value: metric.value,
            weight: metric.weight,
            combine: combine.into(),
            better: better.into(),
        }
    }
}

impl TryFrom<v1::Metric> for core::Metric {
    type Error = WireError;

    fn try_from(wire: v1::Metric) -> Result<Self, WireError> {
        let combine = match v1::Combine::try_from(wire.combine) {
            Ok(v1::Combine::Mean) => core::Combine::Mean,
            Ok(v1::Combine::Sum) => core::Combine::Sum,
            Ok(v1::Combine::Max) => core::Combine::Max,
            Ok(v1::Combine::Min) => core::Combine::Min,
            Ok(v1::Combine::Whole) => core::Combine::Whole,
            Ok(v1::Combine::Unspecified) | Err(_) => {
                return Err(WireError::Unknown { field: "metric.combine", value: wire.combine.into() });
            }
        };
        let better = match v1::Better::try_from(wire.better) {
            Ok(v1::Better::Higher) => core::Better::Higher,
            Ok(v1::Better::Lower) => core::Better::Lower,
            // A direction that is not known here judges nothing.
            Ok(v1::Better::Neither) | Err(_) => core::Better::Neither,
        };
        Ok(Self { name: wire.name, value: wire.value, weight: wire.weight, combine, better })
    }
}

/// Converts metrics to wire messages, in the order in which they were first recorded.
pub fn from_core(metrics: &core::Metrics) -> Vec<v1::Metric> {
    metrics.iter().map(Into::into).collect()
}

/// Converts wire messages to metrics; values that are infinite or not a number are left out.
///
/// # Errors
/// If a name or a rule is invalid, or there are too many metrics.
pub fn to_core(wire: Vec<v1::Metric>) -> Result<core::Metrics, WireError> {
    let mut metrics = core::Metrics::default();
    for metric in wire {
        metrics.record(metric.try_into()?)?;
    }
    metrics.retain_finite();
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_come_back_from_the_wire() {
        let mut metrics = core::Metrics::default();
        for combine in [
            core::Combine::Mean,
            core::Combine::Sum,
            core::Combine::Max,
            core::Combine::Min,
            core::Combine::Whole,
        ] {
            let metric = core::Metric::new(format!("{combine:?}"), 0.5, 3.0, combine);
            metrics.record(metric).unwrap();
        }
        metrics.record(core::Metric::mean("accuracy", 0.9, 3.0).higher_is_better()).unwrap();
        metrics.record(core::Metric::mean("loss", 0.1, 3.0).lower_is_better()).unwrap();
        assert_eq!(to_core(from_core(&metrics)), Ok(metrics));
    }

    #[test]
    fn a_peer_cannot_send_metrics_that_make_no_sense() {
        let good = v1::Metric::from(&core::Metric::mean("loss", 1.0, 1.0));
        let no_rule = to_core(vec![v1::Metric { combine: 0, ..good.clone() }]);
        assert_eq!(no_rule, Err(WireError::Unknown { field: "metric.combine", value: 0 }));
        let no_name = to_core(vec![v1::Metric { name: "<b>".to_owned(), ..good }]);
        assert!(matches!(no_name, Err(WireError::Metric(_))), "{no_name:?}");
        let no_number = to_core(vec![v1::Metric { value: f64::NAN, ..good }]);
        assert_eq!(no_number, Ok(core::Metrics::default()));
    }
}
