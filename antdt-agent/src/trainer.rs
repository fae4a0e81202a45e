//! The seam to a training framework: it computes gradients, and knows nothing of peers, shards or plans.

use antdt_core::{ParamLayout, SampleRange, Seed};

/// Why a batch could not be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Samples cannot be read. The shard's fault, not the node's: it counts towards quarantine.
    #[error("sample {sample}: {why}")]
    Data {
        /// Number of the first sample that could not be read.
        sample: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The loss or a gradient is not a number; the learning rate is the first suspect.
    #[error("the loss became {loss} on a batch of {samples}; lower --learning-rate")]
    Diverged {
        /// The loss.
        loss: f64,
        /// Samples in the batch.
        samples: usize,
    },
    /// The framework failed.
    #[error("the model failed: {0}")]
    Model(String),
}

/// Where a batch's gradient goes: sums over samples, not means.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gradient {
    /// Sum over the batch, `[dense_len]`.
    pub dense: Vec<f32>,
    /// Sum over the batch for each touched row, `[touched rows, dim]`, in the order that
    /// [`Trainer::load`] gave the rows.
    pub rows: Vec<f32>,
}

/// What a batch's computation yields besides the gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepStats {
    /// Sum of the samples' losses.
    pub loss_sum: f64,
    /// Samples computed.
    pub samples: u64,
}

/// Labels and predicted probabilities of evaluated samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// 0 or 1 for each sample.
    pub labels: Vec<f32>,
    /// Predicted probability of 1 for each sample.
    pub probabilities: Vec<f32>,
}

impl Evaluation {
    /// Mean log loss; `None` without samples.
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

    /// Area under the ROC curve, ties counted half; `None` unless both labels occur.
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

/// Computes gradients of a model on samples named by number.
///
/// The parameters are not the trainer's: they come in with each call, from a replica or from servers, as one flat
/// vector and the rows that the batch touches. The framework sees only the compact `[touched rows, dim]` slice.
///
/// Calls come in this order for each batch: [`load`](Self::load), then
/// [`forward_backward`](Self::forward_backward) or [`evaluate`](Self::evaluate).
pub trait Trainer: Send {
    /// Shape of the parameters. Constant.
    fn layout(&self) -> &ParamLayout;

    /// Training samples: numbers `0..train_samples()`.
    fn train_samples(&self) -> u64;

    /// Samples held out for evaluation, numbered from 0 in a space of their own; 0 when there are none.
    fn eval_samples(&self) -> u64;

    /// Initial dense parameters, `[dense_len]`: a pure function of `seed`, the same on every node.
    fn initial_dense(&self, seed: Seed) -> Vec<f32>;

    /// Reads the samples of the next batch. Returns the rows of the table that they touch, ascending, each once;
    /// empty if the layout has no table.
    ///
    /// # Errors
    /// [`TrainError::Data`] if a sample cannot be read.
    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError>;

    /// Reads held-out samples as the next batch; otherwise like [`load`](Self::load).
    ///
    /// # Errors
    /// [`TrainError::Data`] if a sample cannot be read.
    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError>;

    /// Computes the gradient of the loaded batch. `dense` is `[dense_len]`; `rows` is `[touched rows, dim]` in the
    /// order that `load` returned. `gradient` is overwritten, its buffers are reused.
    ///
    /// # Errors
    /// If the framework fails or the loss is not finite.
    fn forward_backward(
        &mut self,
        dense: &[f32],
        rows: &[f32],
        gradient: &mut Gradient,
    ) -> Result<StepStats, TrainError>;

    /// Predicts the loaded batch and appends to `into`.
    ///
    /// # Errors
    /// If the framework fails.
    fn evaluate(&mut self, dense: &[f32], rows: &[f32], into: &mut Evaluation) -> Result<(), TrainError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(pairs: &[(f32, f32)]) -> Evaluation {
        Evaluation {
            labels: pairs.iter().map(|p| p.0).collect(),
            probabilities: pairs.iter().map(|p| p.1).collect(),
        }
    }

    #[test]
    fn auc_is_the_share_of_ordered_pairs_with_ties_half() {
        let e = evaluation(&[(0.0, 0.1), (1.0, 0.4), (0.0, 0.4), (1.0, 0.8)]);
        // Pairs (positive, negative): (0.4, 0.1) 1, (0.4, 0.4) half, (0.8, 0.1) 1, (0.8, 0.4) 1.
        assert_eq!(e.auc(), Some(3.5 / 4.0));
        assert_eq!(evaluation(&[(1.0, 0.5)]).auc(), None);
        assert_eq!(evaluation(&[]).auc(), None);
    }

    #[test]
    fn log_loss_is_the_mean_over_samples() {
        let e = evaluation(&[(1.0, 0.5), (0.0, 0.5)]);
        assert!((e.log_loss().unwrap() - std::f64::consts::LN_2).abs() < 1e-7);
    }
}
