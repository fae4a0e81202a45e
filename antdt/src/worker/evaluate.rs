//! How good the model is at the end.

use antdt_agent::{Evaluation, TrainError, Trainer};
use antdt_core::SampleRange;
use antdt_model::Replica;

use super::error::WorkerError;
use super::push::Servers;

/// Samples evaluated at once: bounds the memory, and is large enough to be fast; larger ones gained nothing.
const EVAL_BATCH: u64 = 256;

/// A trained model that can be asked for its parameters.
pub(super) trait Model {
    /// Fills `dense`, and `values` with these rows.
    fn read(&mut self, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Result<(), WorkerError>;
}

impl Model for Replica {
    fn read(&mut self, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Result<(), WorkerError> {
        dense.copy_from_slice(self.dense());
        values.clear();
        self.gather(rows, values).map_err(|e| WorkerError::Parameters(e.to_string()))
    }
}

impl Model for Servers {
    fn read(&mut self, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Result<(), WorkerError> {
        self.pull(rows, dense, values)
    }
}

/// What the evaluation found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quality {
    pub(super) samples: u64,
    pub(super) loss: Option<f64>,
    pub(super) auc: Option<f64>,
}

/// Predicts all held-out samples.
pub(super) fn evaluate(trainer: &mut dyn Trainer, model: &mut impl Model) -> Result<Quality, WorkerError> {
    let samples = trainer.eval_samples();
    let mut dense = vec![0.0; trainer.layout().dense_len];
    let mut values = Vec::new();
    let mut found = Evaluation::default();
    let mut start = 0;
    while start < samples {
        let range = SampleRange { start, end: (start + EVAL_BATCH).min(samples) };
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
        model.read(&rows, &mut dense, &mut values)?;
        trainer.evaluate(&dense, &values, &mut found)?;
        start = range.end;
    }
    Ok(Quality { samples: found.labels.len() as u64, loss: found.log_loss(), auc: found.auc() })
}
