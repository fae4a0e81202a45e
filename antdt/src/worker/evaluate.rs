//! Evaluation of the model at the end of a job.

use antdt_agent::runtime::Pulse;
use antdt_agent::{Params, TrainError, Trainer};
use antdt_core::{CheckpointId, Metrics, SampleRange, Work};

use super::error::WorkerError;
use super::keep::ModelCopy;
use super::push::Servers;
use super::weights::Weights;

/// Samples evaluated at once: bounds the memory, and is large enough to be fast; larger ones gained nothing.
const EVAL_BATCH: u64 = 256;

/// A trained model that can be asked for its parameters.
pub(super) trait Model {
    /// Fills `dense`, and `values` with these rows.
    fn read(&mut self, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Result<(), WorkerError>;

    /// Copies it for a checkpoint, or has the servers do so.
    fn copy(&mut self, checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError>;
}

impl Model for Weights {
    fn read(&mut self, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Result<(), WorkerError> {
        dense.copy_from_slice(self.dense());
        values.clear();
        self.gather(rows, values)
    }

    fn copy(&mut self, _checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError> {
        Self::copy(self)
    }
}

impl Model for Servers {
    fn read(&mut self, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Result<(), WorkerError> {
        self.pull(rows, dense, values)
    }

    fn copy(&mut self, checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError> {
        Self::copy(self, checkpoint)
    }
}

/// Evaluates all held-out samples; returns how many there were and what was found.
pub(super) fn evaluate(
    trainer: &mut dyn Trainer,
    model: &mut impl Model,
    pulse: &Pulse,
) -> Result<(u64, Metrics), WorkerError> {
    let samples = trainer.eval_samples();
    let mut dense = vec![0.0; trainer.layout().dense_len()];
    let mut values = Vec::new();
    let (mut evaluated, mut metrics) = (0, Metrics::default());
    trainer.begin_evaluation();
    let mut start = 0;
    while start < samples {
        let range = SampleRange { start, end: (start + EVAL_BATCH).min(samples) };
        let loading = pulse.begin(Work::Evaluating);
        let rows = match trainer.load_eval(range) {
            Ok(rows) => rows.to_vec(),
            Err(error @ TrainError::Data { .. }) => {
                // One bad held-out sample does not make the model worse: leave its batch out, and say so.
                tracing::warn!(%error, "held-out samples {}..{} are left out", range.start, range.end);
                start = range.end;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        drop(loading);
        model.read(&rows, &mut dense, &mut values)?;
        let _at_work = pulse.begin(Work::Evaluating);
        trainer.evaluate(Params::host(&dense, &values), &mut metrics)?;
        evaluated += range.end - range.start;
        start = range.end;
    }
    trainer.end_evaluation(&mut metrics)?;
    if let Some(names) = not_finite(&metrics) {
        // They are left out of the report, which has finite numbers only.
        tracing::warn!(
            "the evaluation is not finite: {names}; the model has diverged, choose a smaller --learning-rate"
        );
    }
    Ok((evaluated, metrics))
}

/// The metrics that are infinite or not a number, with their values; `None` if there are none.
fn not_finite(metrics: &Metrics) -> Option<String> {
    let odd = metrics.iter().filter(|metric| !metric.value.is_finite());
    let texts: Vec<String> = odd.map(|metric| format!("{} is {}", metric.name, metric.value)).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use antdt_core::Metric;

    use super::*;

    #[test]
    fn metrics_of_a_model_that_has_diverged_are_named() {
        let mut metrics = Metrics::default();
        metrics.record(Metric::mean("auc", 0.5, 1.0)).unwrap();
        assert_eq!(not_finite(&metrics), None);
        metrics.record(Metric::mean("loss", f64::NAN, 1.0)).unwrap();
        assert_eq!(not_finite(&metrics).unwrap(), "loss is NaN");
    }
}
