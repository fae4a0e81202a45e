//! [`SpeedPredictor`]: predicts how fast a worker will be from how fast it was.
//!
//! Values are logarithms of seconds per sample, in the order in which they were seen: a worker that becomes twice as fast and
//! one that becomes twice as slow are equally far off. All predictors are of constant memory and constant time.
//!
//! | name | predicts | good at |
//! |---|---|---|
//! | `median` | the median of the newest five | single values that are far off |
//! | `ewma` | an exponentially weighted mean | noise around a speed that changes slowly |
//! | `autoregressive` | a linear function of the newest two, fitted as it goes | speeds that swing back |
//!
//! `cargo xtask bench policies` measures them against each other, and against the newest value, on recorded slowdowns.
//!
//! Source: recursive least squares with forgetting, textbook; that LB-BSP predicts by a recurrent network is what its abstract says.

use std::collections::VecDeque;
use std::fmt;

use antdt_core::InvalidValue;
use antdt_core::text::nearest;

/// Predicts the next value of a series, such as the logarithm of a worker's seconds per sample.
pub trait SpeedPredictor: fmt::Debug + Send {
    /// Returns the predictor's name in settings.
    fn name(&self) -> &'static str;

    /// Adds the newest value of the series. A value that is not finite is ignored.
    fn observe(&mut self, value: f64);

    /// Returns the predicted next value; `None` before the first value.
    fn predict(&self) -> Option<f64>;

    /// Returns a copy of the predictor in the same state.
    fn clone_box(&self) -> Box<dyn SpeedPredictor>;
}

impl Clone for Box<dyn SpeedPredictor> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Names of all predictors.
pub const NAMES: [&str; 3] = [WindowMedian::NAME, Ewma::NAME, AutoRegressive::NAME];

/// Returns the predictor of this name. `smoothing` is the weight of the newest value in [`Ewma`]; the others
/// ignore it.
///
/// # Errors
/// If there is no predictor of this name.
pub fn by_name(name: &str, smoothing: f64) -> Result<Box<dyn SpeedPredictor>, InvalidValue> {
    match name {
        WindowMedian::NAME => Ok(Box::new(WindowMedian::default())),
        Ewma::NAME => Ok(Box::new(Ewma::new(smoothing))),
        AutoRegressive::NAME => Ok(Box::new(AutoRegressive::default())),
        other => {
            let near =
                nearest(other, &NAMES).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            Err(InvalidValue::new("predictor", other, format!("one of {}{near}", NAMES.join(", "))))
        }
    }
}

/// The predictor whose prediction is the median of the newest five values.
#[derive(Debug, Clone, Default)]
pub struct WindowMedian(VecDeque<f64>);

impl WindowMedian {
    /// Name of the predictor in settings.
    pub const NAME: &'static str = "median";

    /// Values that it looks at. 5: two that are far off change nothing, and a change is followed after three.
    const NEWEST: usize = 5;
}

impl SpeedPredictor for WindowMedian {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn observe(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.0.len() == Self::NEWEST {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    fn predict(&self) -> Option<f64> {
        let mut values: Vec<f64> = self.0.iter().copied().collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len().saturating_sub(1) / 2).copied()
    }

    fn clone_box(&self) -> Box<dyn SpeedPredictor> {
        Box::new(self.clone())
    }
}

/// The predictor whose prediction is an exponentially weighted mean.
#[derive(Debug, Clone, Copy)]
pub struct Ewma {
    smoothing: f64,
    mean: Option<f64>,
}

impl Ewma {
    /// Name of the predictor in settings.
    pub const NAME: &'static str = "ewma";

    /// Returns a predictor in which the newest value has the weight `smoothing`, above 0 and at most 1.
    pub const fn new(smoothing: f64) -> Self {
        Self { smoothing, mean: None }
    }
}

impl SpeedPredictor for Ewma {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn observe(&mut self, value: f64) {
        if value.is_finite() {
            self.mean = Some(self.mean.map_or(value, |mean| mean + self.smoothing * (value - mean)));
        }
    }

    fn predict(&self) -> Option<f64> {
        self.mean
    }

    fn clone_box(&self) -> Box<dyn SpeedPredictor> {
        Box::new(*self)
    }
}

/// The predictor that is a linear function of the newest two values, whose weights are fitted to the series
/// as it grows.
#[derive(Debug, Clone)]
pub struct AutoRegressive {
    /// Of the constant, the newest value and the one before.
    weights: [f64; 3],
    /// Inverse of the correlation of the inputs, as far as it is known.
    inverse: [[f64; 3]; 3],
    newest: Option<f64>,
    before: Option<f64>,
}

impl Default for AutoRegressive {
    fn default() -> Self {
        let mut inverse = [[0.0; 3]; 3];
        for (at, row) in inverse.iter_mut().enumerate() {
            row[at] = Self::PRIOR;
        }
        Self { weights: [0.0, 1.0, 0.0], inverse, newest: None, before: None }
    }
}

impl AutoRegressive {
    /// Name of the predictor in settings.
    pub const NAME: &'static str = "autoregressive";

    /// How freely weights move at first, from "as the newest value". 1: a dozen values of a spread of 10 % move them little.
    const PRIOR: f64 = 1.0;

    /// What an older value weighs less than the next one. 0.98: half after 35 values.
    const FORGET: f64 = 0.98;

    /// Bound on the inverse: without news it would grow without one.
    const INVERSE_MAX: f64 = 1e6;

    /// Values that have been seen so far are in the range of predictions, a bit widened: a fit to few may be far off.
    const REACH: f64 = 0.7;

    /// The inputs, with values relative to the newest but one, so that the constant is a trend and not a level.
    fn inputs(before: f64, newest: f64) -> [f64; 3] {
        [1.0, newest, before]
    }
}

impl SpeedPredictor for AutoRegressive {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn observe(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if let (Some(newest), Some(before)) = (self.newest, self.before) {
            let inputs = Self::inputs(before, newest);
            let predicted: f64 = inputs.iter().zip(self.weights).map(|(input, weight)| input * weight).sum();
            let product = self.inverse.map(|row| row.iter().zip(inputs).map(|(a, b)| a * b).sum::<f64>());
            let scale = Self::FORGET + inputs.iter().zip(product).map(|(a, b)| a * b).sum::<f64>();
            let gain = product.map(|it| it / scale);
            for (weight, gain) in self.weights.iter_mut().zip(gain) {
                *weight += gain * (value - predicted);
            }
            for (row, gain) in self.inverse.iter_mut().zip(gain) {
                for (entry, product) in row.iter_mut().zip(product) {
                    let next = (*entry - gain * product) / Self::FORGET;
                    *entry = next.clamp(-Self::INVERSE_MAX, Self::INVERSE_MAX);
                }
            }
        }
        self.before = self.newest;
        self.newest = Some(value);
    }

    fn predict(&self) -> Option<f64> {
        let newest = self.newest?;
        let Some(before) = self.before else { return Some(newest) };
        let inputs = Self::inputs(before, newest);
        let predicted: f64 = inputs.iter().zip(self.weights).map(|(input, weight)| input * weight).sum();
        let (low, high) = (newest.min(before) - Self::REACH, newest.max(before) + Self::REACH);
        // Weights that ran away predict nothing.
        Some(if predicted.is_finite() { predicted.clamp(low, high) } else { newest })
    }

    fn clone_box(&self) -> Box<dyn SpeedPredictor> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;
    use proptest::prelude::*;

    use super::*;

    fn all() -> Vec<Box<dyn SpeedPredictor>> {
        NAMES.iter().map(|name| by_name(name, 0.5).unwrap()).collect()
    }

    /// Mean absolute error of each, of the values after the first ten: squares would be those of the rare spikes alone.
    fn errors(values: &[f64]) -> Vec<f64> {
        let error = |mut predictor: Box<dyn SpeedPredictor>| {
            let mut sum = 0.0;
            for (at, value) in values.iter().enumerate() {
                if at >= 10 {
                    sum += (predictor.predict().unwrap() - value).abs();
                }
                predictor.observe(*value);
            }
            sum / (values.len() - 10) as f64
        };
        all().into_iter().map(error).collect()
    }

    #[test]
    fn each_predictor_is_best_on_its_own_kind_of_series() {
        let mut rng = Seed(1).rng();
        let mut spiky = Vec::new();
        for _ in 0..400 {
            spiky.push(if rng.unit() < 0.1 { 1.5 } else { 0.01 * rng.normal() });
        }
        // A random walk under noise.
        let (mut level, mut noisy) = (0.0, Vec::new());
        for _ in 0..400 {
            level += 0.05 * rng.normal();
            noisy.push(level + 0.05 * rng.normal());
        }
        let mut swinging = vec![0.0, 0.3];
        for at in 2..400 {
            let (newest, before): (f64, f64) = (swinging[at - 1], swinging[at - 2]);
            swinging.push(1.6 * newest - 0.9 * before + 0.05 * rng.normal());
        }
        for (best, values) in [spiky, noisy, swinging].iter().enumerate() {
            let errors = errors(values);
            assert!(errors.iter().all(|error| *error >= errors[best]), "{}: {errors:?}", NAMES[best]);
        }
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_the_nearest() {
        let error = by_name("emwa", 0.5).unwrap_err().to_string();
        assert!(error.contains("one of median, ewma, autoregressive; did you mean `ewma`?"), "{error}");
    }

    proptest! {
        #[test]
        fn predictions_are_finite_near_past_values_and_none_before_the_first(
            values in prop::collection::vec(prop_oneof![9 => -20.0..20.0_f64, 1 => Just(f64::NAN)], 0..200)
        ) {
            for mut predictor in all() {
                let mut seen: Vec<f64> = Vec::new();
                for value in &values {
                    predictor.observe(*value);
                    seen.extend(value.is_finite().then_some(*value));
                    let predicted = predictor.predict();
                    prop_assert_eq!(predicted.is_some(), !seen.is_empty());
                    let Some(predicted) = predicted else { continue };
                    let low = seen.iter().copied().fold(f64::INFINITY, f64::min);
                    let high = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    prop_assert!((low - 1.0..=high + 1.0).contains(&predicted), "{} of {seen:?}", predictor.name());
                }
            }
        }

        #[test]
        fn a_constant_is_predicted(value in -20.0..20.0_f64) {
            for mut predictor in all() {
                (0..50).for_each(|_| predictor.observe(value));
                prop_assert!((predictor.predict().unwrap() - value).abs() < 1e-3, "{predictor:?}");
            }
        }
    }
}
