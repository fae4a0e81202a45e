//! A trainer for models whose loss is one function of a sample.

use antdt_core::{Metrics, ParamLayout, SampleRange, Seed};

use crate::trainer::{GradientSink, Params, StepStats, TrainError, Trainer};

/// Function that returns the loss of one sample. Arguments: the sample's number, the parameters, and a vector to which
/// the function adds the sample's gradient.
pub type SampleLoss = fn(u64, &[f32], &mut [f32]) -> f32;

/// A [`Trainer`] of a dense model whose loss is a function of the sample's number. All parameters start
/// at 0; no samples are held out for evaluation.
#[derive(Debug)]
pub struct PerSample {
    layout: ParamLayout,
    samples: u64,
    loss: SampleLoss,
    batch: Vec<u64>,
    sums: Vec<f32>,
}

impl PerSample {
    /// Returns the trainer of a model with this many parameters, on this many samples.
    pub fn new(samples: u64, parameters: usize, loss: SampleLoss) -> Self {
        let layout = ParamLayout::dense(parameters);
        Self { layout, samples, loss, batch: Vec::new(), sums: vec![0.0; parameters] }
    }
}

impl Trainer for PerSample {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn train_samples(&self) -> u64 {
        self.samples
    }

    fn eval_samples(&self) -> u64 {
        0
    }

    fn initial_dense(&self, _seed: Seed) -> Vec<f32> {
        vec![0.0; self.sums.len()]
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        self.batch.clear();
        self.batch.extend(samples);
        Ok(&[])
    }

    fn load_eval(&mut self, _samples: SampleRange) -> Result<&[u64], TrainError> {
        self.load(&[])
    }

    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let dense = params.dense.host()?;
        self.sums.fill(0.0);
        let losses = self.batch.iter().map(|sample| f64::from((self.loss)(*sample, dense, &mut self.sums)));
        let loss_sum: f64 = losses.sum();
        if !(loss_sum.is_finite() && self.sums.iter().all(|value| value.is_finite())) {
            return Err(TrainError::Diverged { loss: loss_sum, samples: self.batch.len() });
        }
        sink.all(&self.layout, &self.sums, &[])?;
        Ok(StepStats { loss_sum, samples: self.batch.len() as u64 })
    }

    fn evaluate(&mut self, _params: Params<'_>, _metrics: &mut Metrics) -> Result<(), TrainError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::Gradient;

    #[test]
    #[allow(clippy::cast_precision_loss, reason = "samples below 10")]
    fn a_batch_is_the_sum_of_its_samples_and_a_loss_that_is_no_number_is_refused() {
        let square = |sample: u64, w: &[f32], gradient: &mut [f32]| {
            gradient[0] += 2.0 * (w[0] - sample as f32);
            (w[0] - sample as f32).powi(2)
        };
        let mut trainer = PerSample::new(10, 1, square);
        let mut gradient = Gradient::new(trainer.layout());
        trainer.load(&[1, 3]).unwrap();
        gradient.begin(0);
        let stats = trainer.forward_backward(Params::host(&[0.0], &[]), &mut gradient).unwrap();
        assert_eq!((stats.loss_sum, stats.samples), (10.0, 2));
        assert_eq!((&gradient.dense[..], &gradient.rows[..]), (&[-8.0][..], &[][..]));
        let diverged = trainer.forward_backward(Params::host(&[f32::NAN], &[]), &mut gradient).unwrap_err();
        assert!(matches!(diverged, TrainError::Diverged { samples: 2, .. }));
    }
}
