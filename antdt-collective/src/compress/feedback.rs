//! What compression did not send, kept for the next step.

use crate::error::CollectiveError;

/// The residual of one gradient: add it, compress, keep what was lost.
///
/// Move it to the next group's communicator when the group changes: it belongs to this process and its gradient, not to
/// the group. A process that ends takes its residual with it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ErrorFeedback {
    residual: Vec<f32>,
}

impl ErrorFeedback {
    /// What was not sent yet; empty before the first step.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// The gradient and what earlier steps did not send.
    ///
    /// # Errors
    /// If the gradient has another length than those before.
    pub fn compensate(&self, gradient: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        if self.residual.is_empty() {
            return Ok(gradient.to_vec());
        }
        if self.residual.len() != gradient.len() {
            let (kept, len) = (self.residual.len(), gradient.len());
            return Err(CollectiveError::Invalid {
                what: format!(
                    "a gradient of {len} after one of {kept}; keep one error feedback for each gradient"
                ),
            });
        }
        Ok(gradient.iter().zip(&self.residual).map(|(value, kept)| value + kept).collect())
    }

    /// Keeps what was lost for the next step. What is not finite is dropped: an overflow or a NaN has been sent as
    /// such, and must spoil one step only.
    pub fn keep(&mut self, mut lost: Vec<f32>) {
        lost.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
        self.residual = lost;
    }
}
