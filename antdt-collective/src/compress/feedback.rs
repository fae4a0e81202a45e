//! Error feedback: the part of a gradient that compression did not send, kept for the next step.

use crate::error::CollectiveError;

/// The residual of one gradient: the part that earlier steps did not send. Each step adds the residual to the
/// gradient, compresses the sum, and keeps what the compression lost.
///
/// The residual belongs to this process and one gradient, not to the group: it stays valid when the group
/// changes. When the process ends, its residual is lost.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ErrorFeedback {
    residual: Vec<f32>,
}

impl ErrorFeedback {
    /// Returns the residual: the values that no step has sent yet; empty before the first step.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Returns the gradient plus the residual: the values to compress in this step.
    ///
    /// # Errors
    /// If the gradient has another length than in earlier steps.
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

    /// Stores the values that compression lost as the residual of the next step. Values that are not finite
    /// are dropped: the step has sent the overflow or NaN as such, and it must spoil that step only.
    pub fn keep(&mut self, mut lost: Vec<f32>) {
        lost.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
        self.residual = lost;
    }
}
