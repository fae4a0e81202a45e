//! [`UpdateRule`]: the settings by which gradients change a model.
//!
//! A step goes in this order: sums of gradients become a mean; the mean is clipped by its norm; the optimizer adds weight
//! decay and takes a step at the scheduled rate.

use std::sync::Arc;

use antdt_core::InvalidValue;
use antdt_core::registry::BuildError;
use serde::{Deserialize, Serialize};

use crate::gradient::{clip_factor, norm};
use crate::optimizer::{Optimizer, REGISTRY, STATE_MAX, UpdateStep};
use crate::schedule::RateSchedule;

/// Progress of a model's training. The learning rate and bias correction depend on it, so it moves with the
/// parameters from process to process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Trained {
    /// Number of optimizer steps.
    pub steps: u64,
    /// Number of samples that the parameters were trained on.
    pub samples: u64,
}

/// How gradients change a model: optimizer, learning rate and its schedule, clipping, and weight decay.
#[derive(Debug, Clone)]
pub struct UpdateRule {
    /// Optimizer that takes the steps.
    pub optimizer: Arc<dyn Optimizer>,
    /// Base learning rate; the schedule multiplies it by a share.
    pub rate: f32,
    /// Share of the learning rate by the number of samples trained.
    pub schedule: RateSchedule,
    /// Largest norm of the mean gradient, dense parameters and rows together; a longer gradient is shortened
    /// to it.
    pub clip_norm: Option<f32>,
    /// Weight decay. It reaches the rows of a table only when a batch touches them.
    pub decay: f32,
    /// Number of samples of a step at the whole rate. A step with fewer, as at the end of the data, is taken
    /// at their share of the rate, so that no sample moves the model more than others do. `None` takes every
    /// step at the whole rate.
    ///
    /// Near the end of the data a slow worker may take several steps after the others have no data left. At
    /// the whole rate the noise of its few samples would dominate these steps. In this case PyTorch divides
    /// by the number of workers at the beginning (`Join`, recalled).
    pub full_batch: Option<u64>,
}

impl UpdateRule {
    /// Returns a rule with the optimizer's default rate and decay, a constant rate and no clipping.
    pub fn new(optimizer: Box<dyn Optimizer>) -> Self {
        let defaults = optimizer.defaults();
        Self {
            optimizer: optimizer.into(),
            rate: defaults.rate,
            schedule: RateSchedule::default(),
            clip_norm: None,
            decay: defaults.decay,
            full_batch: None,
        }
    }

    /// Returns a rule with the registry's optimizer of this name in its default settings, and this rate.
    ///
    /// # Errors
    /// If no optimizer has this name.
    pub fn named(optimizer: &str, rate: f32) -> Result<Self, BuildError> {
        Ok(Self { rate, ..Self::new(REGISTRY.by_name(optimizer)?) })
    }

    /// Checks that the settings are valid.
    ///
    /// # Errors
    /// If the rate or the norm is not finite and above 0, the decay is negative or not finite, a full batch has no samples, or the
    /// optimizer keeps more numbers than it may.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let positive = |number: f32| number.is_finite() && number > 0.0;
        if !positive(self.rate) {
            return Err(InvalidValue::new(
                "learning rate",
                self.rate,
                "a finite number above 0, such as 0.05",
            ));
        }
        if let Some(norm) = self.clip_norm.filter(|norm| !positive(*norm)) {
            return Err(InvalidValue::new("clip norm", norm, "a finite number above 0, such as 1"));
        }
        if !(self.decay.is_finite() && self.decay >= 0.0) {
            let expected = "a finite number of at least 0, such as 0.01";
            return Err(InvalidValue::new("weight decay", self.decay, expected));
        }
        if self.full_batch == Some(0) {
            return Err(InvalidValue::new("full batch", 0, "at least 1 sample"));
        }
        let kept = self.optimizer.state_per_value();
        if kept > STATE_MAX {
            let expected = format!("at most {STATE_MAX} for each parameter");
            return Err(InvalidValue::new("numbers that the optimizer keeps", kept, expected));
        }
        Ok(())
    }

    /// Returns the learning rate of the next step of a model that was trained on this many samples.
    pub fn rate_at(&self, samples: u64) -> f32 {
        #[allow(clippy::cast_possible_truncation, reason = "rounded once a step, the same everywhere")]
        let rate = (f64::from(self.rate) * self.schedule.share(samples)) as f32;
        rate
    }

    /// The next step of a model, with these parts of the sums of its gradient, dense and of rows, that become a mean by
    /// `scale`.
    pub(crate) fn next<'a>(
        &self,
        trained: Trained,
        sums: impl IntoIterator<Item = &'a [f32]>,
        scale: f32,
    ) -> UpdateStep {
        self.next_of(trained, || norm(sums), scale)
    }

    /// The same step, with the norm of the sums, which is asked for only where gradients are clipped.
    pub(crate) fn next_of(&self, trained: Trained, norm: impl FnOnce() -> f64, scale: f32) -> UpdateStep {
        let clipped = match self.clip_norm {
            Some(limit) => clip_factor(limit, norm() * f64::from(scale)),
            None => 1.0,
        };
        UpdateStep {
            number: trained.steps + 1,
            rate: self.rate_at(trained.samples),
            scale: scale * clipped,
            decay: self.decay,
        }
    }

    /// Returns the share of the rate at which a step of so many samples is taken, all that there were for it.
    pub(crate) fn share_of(&self, samples: u64) -> f32 {
        #[allow(clippy::cast_precision_loss, reason = "a share")]
        let share = |full: u64| samples as f32 / full as f32;
        self.full_batch.filter(|full| samples < *full).map_or(1.0, share)
    }

    /// Returns the optimizer and its settings in one line. Rules with equal lines can continue from each
    /// other's optimizer state.
    pub fn identity(&self) -> String {
        let settings = self.optimizer.settings();
        let settings: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        match self.optimizer.name() {
            name if settings.is_empty() => name.to_owned(),
            name => format!("{name} ({})", settings.join(", ")),
        }
    }
}

impl PartialEq for UpdateRule {
    fn eq(&self, other: &Self) -> bool {
        let Self { optimizer: _, rate, schedule, clip_norm, decay, full_batch } = self;
        self.identity() == other.identity()
            && (*rate, *schedule, *clip_norm, *decay, *full_batch)
                == (other.rate, other.schedule, other.clip_norm, other.decay, other.full_batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sgd() -> UpdateRule {
        UpdateRule::named("sgd", 0.5).unwrap()
    }

    #[test]
    fn a_rule_names_its_state_by_the_optimizer_alone() {
        let adam = UpdateRule::named("adam", 0.1).unwrap();
        assert_eq!(adam.identity(), "adam (beta1=0.9, beta2=0.999, epsilon=0.00000001)");
        assert_eq!(UpdateRule { rate: 0.2, decay: 0.1, ..adam.clone() }.identity(), adam.identity());
        assert_eq!(sgd().identity(), "sgd");
        assert_eq!(sgd(), sgd());
        assert_ne!(sgd(), UpdateRule { clip_norm: Some(1.0), ..sgd() });
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_by_name() {
        let bad = [f32::NAN, f32::INFINITY, -1.0];
        for number in bad.into_iter().chain([0.0]) {
            let error = UpdateRule { rate: number, ..sgd() }.validate().unwrap_err();
            assert_eq!(error.field, "learning rate");
            let error = UpdateRule { clip_norm: Some(number), ..sgd() }.validate().unwrap_err();
            assert_eq!(error.field, "clip norm");
        }
        for decay in bad {
            assert_eq!(UpdateRule { decay, ..sgd() }.validate().unwrap_err().field, "weight decay");
        }
        assert_eq!(UpdateRule { full_batch: Some(0), ..sgd() }.validate().unwrap_err().field, "full batch");
        UpdateRule { clip_norm: Some(1.0), full_batch: Some(1), ..sgd() }.validate().unwrap();
    }

    #[test]
    fn a_mean_gradient_that_is_too_long_is_shortened_to_the_limit() {
        // A sum of length 10 over 2 samples: a mean of length 5.
        let sums: [&[f32]; 2] = [&[6.0], &[0.0, 8.0]];
        let scale_of = |limit: f32| {
            let rule = UpdateRule { clip_norm: Some(limit), ..sgd() };
            rule.next(Trained::default(), sums, 0.5).scale
        };
        assert_eq!([scale_of(1.0), scale_of(2.5), scale_of(5.0), scale_of(9.0)], [0.1, 0.25, 0.5, 0.5]);
        assert_eq!(sgd().next(Trained::default(), sums, 0.5).scale, 0.5);
    }

    #[test]
    fn a_step_with_fewer_samples_than_a_full_one_is_taken_at_their_share_of_the_rate() {
        let rule = UpdateRule { full_batch: Some(8), ..sgd() };
        let shares = |rule: &UpdateRule| [1, 4, 8, 9].map(|samples| rule.share_of(samples));
        assert_eq!(shares(&rule), [0.125, 0.5, 1.0, 1.0]);
        assert_eq!(shares(&sgd()), [1.0; 4]);
        assert_ne!(rule, sgd());
    }

    #[test]
    fn a_step_has_the_number_after_the_last_and_the_rate_of_the_samples_behind_it() {
        let rule = UpdateRule { schedule: "step:every=100,factor=0.5".parse().unwrap(), ..sgd() };
        for (samples, rate) in [(0, 0.5), (99, 0.5), (100, 0.25), (250, 0.125)] {
            let step = rule.next(Trained { steps: 7, samples }, [], 1.0);
            assert_eq!((step.number, step.rate), (8, rate), "{samples}");
        }
    }
}
