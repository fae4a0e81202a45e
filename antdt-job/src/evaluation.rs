//! [`EvalEvery`] and [`EarlyStopping`]: when the model of a job is evaluated, and when an evaluation ends the job.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use antdt_core::metric::{Better, Metric};
use antdt_core::{InvalidValue, Metrics};

/// An evaluation of the model at the end of an epoch.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EvaluationEntry {
    /// Number of epochs that the model was trained for.
    pub epoch: u32,
    /// Number of the checkpoint with the evaluated model, which may have been deleted since; `None` if there
    /// is none.
    pub checkpoint: Option<u64>,
    /// Number of samples that the model was evaluated on; 0 if there was none.
    pub samples: u64,
    /// All metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// Whether larger or smaller values are better, for each metric that judges the model.
    pub better: BTreeMap<String, Better>,
}

impl EvaluationEntry {
    /// Returns the entry of an evaluation that gave these metrics.
    pub fn of(epoch: u32, checkpoint: Option<u64>, samples: u64, metrics: &Metrics) -> Self {
        let judges = metrics.iter().filter(|metric| metric.better != Better::Neither);
        Self {
            epoch,
            checkpoint,
            samples,
            metrics: metrics.iter().map(|metric| (metric.name.clone(), metric.value)).collect(),
            better: judges.map(|metric| (metric.name.clone(), metric.better)).collect(),
        }
    }
}

/// Times at which the model is evaluated, besides the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvalEvery {
    /// At the end of the job only.
    #[default]
    End,
    /// After every this many epochs; at least 1.
    Epochs(u32),
}

impl EvalEvery {
    /// Returns the epoch after which a job of `epochs` epochs evaluates its model next, once `done` epochs
    /// are trained.
    pub fn next(self, done: u32, epochs: u32) -> u32 {
        match self {
            Self::End => epochs,
            Self::Epochs(every) => (done / every).saturating_add(1).saturating_mul(every).min(epochs),
        }
    }

    /// Returns whether a job of `epochs` epochs evaluates its model once `done` epochs are trained, besides what it does
    /// at its end in any case.
    pub const fn is_after(self, done: u32, epochs: u32) -> bool {
        match self {
            Self::End => false,
            Self::Epochs(every) => done > 0 && (done.is_multiple_of(every) || done == epochs),
        }
    }
}

impl fmt::Display for EvalEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("end"),
            Self::Epochs(1) => f.write_str("epoch"),
            Self::Epochs(every) => every.fmt(f),
        }
    }
}

impl FromStr for EvalEvery {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused =
            || InvalidValue::new("--eval-every", text, "epoch, a number of epochs from 1, such as 5, or end");
        match text {
            "end" => Ok(Self::End),
            "epoch" => Ok(Self::Epochs(1)),
            _ => text.parse().ok().filter(|every| *every > 0).map(Self::Epochs).ok_or_else(refused),
        }
    }
}

/// Rule by which a job ends before its last epoch: after this many evaluations in a row without an
/// improvement of a metric.
///
/// Text form: `3`, for the loss, or `3:auc`. Source: early stopping with patience (Prechelt 1998, recalled).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlyStopping {
    /// Number of evaluations in a row without an improvement after which the job ends; at least 1.
    pub patience: u32,
    /// Name of the metric that must improve.
    pub metric: String,
}

/// Whether a job goes on after an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvaluationVerdict {
    /// The job goes on.
    GoOn,
    /// The job ends well, for this reason.
    Stop(String),
    /// The job cannot be judged by its metric, for this reason.
    Unknown(String),
}

impl EarlyStopping {
    /// Judges the evaluations of a job, in order. A value that is not a number is no improvement, and an evaluation without
    /// samples does not count.
    pub fn judge(&self, evaluations: &[EvaluationEntry]) -> EvaluationVerdict {
        let Self { patience, metric } = self;
        let evaluations: Vec<&EvaluationEntry> =
            evaluations.iter().filter(|evaluation| evaluation.samples > 0).collect();
        let Some(newest) = evaluations.last() else { return EvaluationVerdict::GoOn };
        let better = match newest.better.get(metric) {
            Some(better @ (Better::Higher | Better::Lower)) => *better,
            Some(Better::Neither) | None => {
                let names: Vec<&str> = newest.better.keys().map(String::as_str).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return EvaluationVerdict::Unknown(format!(
                    "--early-stopping = {self}: must name a metric by which the model is judged; it has {names}"
                ));
            }
        };
        let mut best: Option<(usize, f64)> = None;
        for (at, evaluation) in evaluations.iter().enumerate() {
            let value = evaluation.metrics.get(metric).copied().unwrap_or(f64::NAN);
            let improves = match (best, better) {
                (None, _) => !value.is_nan(),
                (Some((_, best)), Better::Higher) => value > best,
                (Some((_, best)), Better::Lower | Better::Neither) => value < best,
            };
            if improves {
                best = Some((at, value));
            }
        }
        let since = evaluations.len() - best.map_or(0, |(at, _)| at + 1);
        if since < *patience as usize {
            return EvaluationVerdict::GoOn;
        }
        EvaluationVerdict::Stop(match best {
            Some((at, value)) => {
                let EvaluationEntry { epoch, checkpoint, .. } = evaluations[at];
                let kept = checkpoint.map(|id| format!(", in checkpoint {id}")).unwrap_or_default();
                format!(
                    "--early-stopping {self}: ended after {} epochs; {metric} was best after epoch {epoch}, {value:.5}{kept}",
                    newest.epoch
                )
            }
            None => {
                format!(
                    "--early-stopping {self}: ended after {} epochs; {metric} was never a number",
                    newest.epoch
                )
            }
        })
    }
}

impl fmt::Display for EarlyStopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.patience.fmt(f)?;
        if self.metric == Metric::LOSS { Ok(()) } else { write!(f, ":{}", self.metric) }
    }
}

impl FromStr for EarlyStopping {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (patience, metric) = text.split_once(':').unwrap_or((text, Metric::LOSS));
        match patience.parse() {
            Ok(patience @ 1..) if !metric.is_empty() => Ok(Self { patience, metric: metric.to_owned() }),
            _ => {
                let expected =
                    "a number of evaluations from 1, alone (for the loss) or with a metric, such as 3:auc";
                Err(InvalidValue::new("--early-stopping", text, expected))
            }
        }
    }
}

/// As the text of the flag.
#[cfg(feature = "serde")]
impl serde::Serialize for EarlyStopping {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for EarlyStopping {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluations after each epoch that found these values of a metric.
    fn found(metric: &str, better: Better, values: &[f64]) -> Vec<EvaluationEntry> {
        let entry = |(epoch, value): (u32, &f64)| EvaluationEntry {
            epoch,
            checkpoint: Some(u64::from(epoch) * 10),
            samples: 10,
            metrics: [(metric.to_owned(), *value)].into(),
            better: [(metric.to_owned(), better)].into(),
        };
        (1..).zip(values).map(entry).collect()
    }

    #[test]
    fn a_job_is_evaluated_after_whole_multiples_of_epochs_and_at_its_end() {
        let every = |text: &str| text.parse::<EvalEvery>().unwrap();
        let course = |text: &str, epochs| {
            let mut at = vec![every(text).next(0, epochs)];
            while at.last() != Some(&epochs) {
                at.push(every(text).next(at[at.len() - 1], epochs));
            }
            at
        };
        assert_eq!(course("epoch", 3), [1, 2, 3]);
        assert_eq!(course("2", 5), [2, 4, 5]);
        assert_eq!(course("end", 5), [5]);
        assert_eq!(course("9", 5), [5]);
        assert_eq!(every("2").next(3, 9), 4, "a job that was resumed in between keeps the rhythm");
        assert_eq!(every(&u32::MAX.to_string()).next(7, 9), 9);
        for (text, epochs) in [("epoch", 3), ("2", 5), ("9", 5)] {
            let after: Vec<u32> = (0..=epochs).filter(|done| every(text).is_after(*done, epochs)).collect();
            assert_eq!(after, course(text, epochs));
        }
        assert!(!every("end").is_after(5, 5), "nobody writes down what it finds");
        for text in ["end", "epoch", "4"] {
            assert_eq!(every(text).to_string(), text);
        }
        for wrong in ["0", "-1", "", "epochs", "1.5", "every"] {
            let error = wrong.parse::<EvalEvery>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--eval-every = {wrong}: must be epoch, a number")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_job_ends_after_so_many_evaluations_without_an_improvement() {
        let rule: EarlyStopping = "2:auc".parse().unwrap();
        let judge = |values: &[f64]| rule.judge(&found("auc", Better::Higher, values));
        for values in [&[][..], &[0.7], &[0.7, 0.6], &[0.7, 0.6, 0.8], &[0.7, 0.6, 0.8, 0.8], &[f64::NAN]] {
            assert_eq!(judge(values), EvaluationVerdict::GoOn, "{values:?}");
        }
        let EvaluationVerdict::Stop(why) = judge(&[0.7, 0.8, 0.8, f64::NAN]) else {
            panic!("it has not improved twice")
        };
        let expected = "--early-stopping 2:auc: ended after 4 epochs; auc was best after epoch 2, 0.80000, in checkpoint 20";
        assert_eq!(why, expected);
        let loss: EarlyStopping = "1".parse().unwrap();
        assert_eq!(loss.judge(&found("loss", Better::Lower, &[0.9, 0.8])), EvaluationVerdict::GoOn);
        assert!(matches!(loss.judge(&found("loss", Better::Lower, &[0.8, 0.9])), EvaluationVerdict::Stop(_)));
        assert!(matches!(loss.judge(&found("loss", Better::Lower, &[f64::NAN])), EvaluationVerdict::Stop(_)));
    }

    #[test]
    fn a_metric_that_the_model_is_not_judged_by_is_refused() {
        let rule: EarlyStopping = "2:auk".parse().unwrap();
        let EvaluationVerdict::Unknown(why) = rule.judge(&found("auc", Better::Higher, &[0.7])) else {
            panic!("there is no such metric")
        };
        assert!(why.ends_with("must name a metric by which the model is judged; it has auc"), "{why}");
        for text in ["3", "1:auc", "2:a:b"] {
            assert_eq!(text.parse::<EarlyStopping>().unwrap().to_string(), text);
        }
        for wrong in ["0", "", "auc", "3:", ":auc", "-1:auc"] {
            let error = wrong.parse::<EarlyStopping>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("--early-stopping = {wrong}: must be a number")), "{error}");
        }
    }
}
