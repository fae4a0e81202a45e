//! `ADJUST_LR`: the share of the learning rate at which a worker's gradients change the model.
//!
//! | value | share of a worker with batches of `x` samples, where an even share is `b` |
//! |---|---|
//! | `linear` | `x / b`: every sample weighs the same, whichever worker trains it |
//! | `sqrt` | `sqrt(x / b)`: the noise of a worker's steps stays the same |
//! | `fixed=F` | `F`, from 0.1 to 10, of all workers |
//!
//! `linear` and `sqrt` are per worker, and follow the batch sizes of every later plan by themselves. They are for modes in which a step of one
//! worker has the weight of any other's: servers that apply each push at once, and models that are averaged uniformly. Elsewhere a sample
//! weighs the same already, because the mean of a step, or an average, is taken over samples; there the two are refused.
//!
//! Source: linear scaling (Goyal et al., 2017) and square root scaling (Krizhevsky, 2014), recalled; per worker it is our design.

use std::fmt;
use std::str::FromStr;

use antdt_core::{Capabilities, Holder, InvalidValue};

use super::{Asked, ValueAction, Worker};
use crate::validate::Refusal;

/// Rule by which the learning rate follows a worker's batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RateRule {
    /// The worker's share of the learning rate is proportional to its batch size.
    Linear,
    /// The worker's share of the learning rate is proportional to the square root of its batch size.
    SquareRoot,
    /// Every worker has this share of the learning rate, whatever its batch size.
    Fixed(f32),
}

impl RateRule {
    /// Text forms of a rate rule, for help texts.
    pub const USAGES: [&'static str; 3] = ["linear", "sqrt", "fixed=SHARE"];

    /// Least and largest share that may be fixed. A tenth and ten times: beyond, a slip of the hand is likelier than a wish.
    const FIXED: (f32, f32) = (0.1, 10.0);

    /// Returns the share of the learning rate for a worker with batches of `batch_size` samples; `even` is
    /// the batch size, in samples, at which the share is 1 under the two rules that follow batch sizes.
    pub fn share(self, batch_size: u32, even: f64) -> f32 {
        let ratio = f64::from(batch_size.max(1)) / even.max(f64::MIN_POSITIVE);
        #[allow(clippy::cast_possible_truncation, reason = "rounded once a plan, on one worker")]
        match self {
            Self::Linear => ratio as f32,
            Self::SquareRoot => ratio.sqrt() as f32,
            Self::Fixed(share) => share,
        }
    }

    /// Checks that the rule makes sense in a sync mode.
    ///
    /// # Errors
    /// If the rule follows batch sizes and the sync mode averages over samples: every sample then has the
    /// same weight already.
    pub fn suits(self, mode: Capabilities) -> Result<(), InvalidValue> {
        let steps_alone = mode.mixes() || (mode.needs_servers() && !mode.steps_in_common());
        match self {
            Self::Linear | Self::SquareRoot if !steps_alone => Err(InvalidValue::new(
                AdjustLr::NAME,
                self,
                "fixed=SHARE in this sync mode: its means are taken over samples, so that all weigh the same already",
            )),
            Self::Linear | Self::SquareRoot | Self::Fixed(_) => Ok(()),
        }
    }
}

impl fmt::Display for RateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear => f.write_str("linear"),
            Self::SquareRoot => f.write_str("sqrt"),
            Self::Fixed(share) => write!(f, "fixed={share}"),
        }
    }
}

impl FromStr for RateRule {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (least, most) = Self::FIXED;
        let refused = || {
            let expected = format!("one of {}, with a share from {least} to {most}", Self::USAGES.join(", "));
            InvalidValue::new(AdjustLr::NAME, format!("`{text}`"), expected)
        };
        match text.split_once('=') {
            None if text == "linear" => Ok(Self::Linear),
            None if text == "sqrt" => Ok(Self::SquareRoot),
            Some(("fixed", share)) => match share.parse() {
                Ok(share) if (least..=most).contains(&share) => Ok(Self::Fixed(share)),
                Ok(_) | Err(_) => Err(refused()),
            },
            Some(_) | None => Err(refused()),
        }
    }
}

/// The action that gives each worker a share of the learning rate, by a [`RateRule`]. All workers switch at
/// one iteration.
#[doc(alias = "ADJUST_LR")]
#[derive(Debug, Clone, Copy)]
pub struct AdjustLr;

impl ValueAction for AdjustLr {
    type Value = RateRule;

    const NAME: &'static str = "ADJUST_LR";
    const DRY_NAME: &'static str = "WOULD_ADJUST_LR";
    const ABOUT: &'static str = "the share of the learning rate, by a rule, of each worker";

    fn read(&self, text: &str) -> Result<RateRule, InvalidValue> {
        text.parse()
    }

    fn check(&self, rule: &RateRule, _: Option<Holder>, asked: &Asked<'_>) -> Result<(), Refusal> {
        Ok(rule.suits(asked.view.mode)?)
    }

    fn begin(&self, rule: RateRule, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        worker.set_rate_share(Some(rule.share(worker.batch_size(), worker.even_batch_size())));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, JobTime, LocalSteps, NodeId, ParamPlace};

    use super::*;
    use crate::action::{self, ActionValues};
    use crate::budget::RestartBudget;
    use crate::policy::Decision;
    use crate::testing::quiet_view;

    #[test]
    fn a_rule_is_read_and_written_back_and_one_that_is_none_is_refused() {
        for text in ["linear", "sqrt", "fixed=0.5", "fixed=10"] {
            assert_eq!(text.parse::<RateRule>().unwrap().to_string(), text);
        }
        for text in ["", "lin", "fixed", "fixed=", "fixed=0", "fixed=11", "fixed=NaN", "linear=2"] {
            let error = text.parse::<RateRule>().unwrap_err().to_string();
            assert!(error.starts_with("ADJUST_LR") && error.contains("fixed=SHARE"), "{error}");
        }
    }

    #[test]
    fn with_linear_shares_every_sample_weighs_the_same() {
        // A mean of the batch at a share of the rate: the weight of one of its samples is share / batch.
        let sizes = [1, 7, 64, 200];
        let weight = |rule: RateRule, size: u32| f64::from(rule.share(size, 64.0)) / f64::from(size);
        assert!(sizes.iter().all(|size| (weight(RateRule::Linear, *size) - 1.0 / 64.0).abs() < 1e-8));
        assert_eq!(
            sizes.map(|size| RateRule::SquareRoot.share(size * 4, 64.0)),
            [0.25, 0.661_437_8, 2.0, 3.535_534]
        );
        assert_eq!(sizes.map(|size| RateRule::Fixed(0.5).share(size, 64.0)), [0.5; 4]);
        assert_eq!(RateRule::Linear.share(64, 64.0), 1.0);
    }

    #[test]
    fn rules_by_batch_size_are_for_modes_in_which_each_worker_steps_alone() {
        let decided = |value: &str, mode| {
            let decision = Decision { actions: values(value), ..Decision::default() };
            action::validate(
                JobTime::ZERO,
                &decision,
                &quiet_view(mode, &[1000; 4]),
                &RestartBudget::default(),
            )
        };
        for mode in Capabilities::COMMON {
            decided("fixed=0.5", mode).unwrap();
            let is_alone = mode.dense == ParamPlace::Mixed || !(mode.steps_in_common());
            for value in ["linear", "sqrt"] {
                assert_eq!(decided(value, mode).is_ok(), is_alone, "{value} in {mode:?}");
            }
            assert!(matches!(decided("fast", mode), Err(Refusal::Value(_))));
        }
        assert!(!Capabilities::COMMON.iter().all(|mode| mode.local_steps == LocalSteps::One));
    }

    fn values(value: &str) -> ActionValues {
        [(AdjustLr::NAME.to_owned(), value.to_owned())].into_iter().collect()
    }

    #[test]
    fn a_worker_has_the_share_of_its_batch_in_the_plan() {
        #[derive(Default)]
        struct Of(u32, Option<f32>);
        impl Worker for Of {
            fn holder(&self) -> Holder {
                Holder::new(NodeId::worker(0), Incarnation(0))
            }
            fn mode(&self) -> Capabilities {
                Capabilities::SERVERS_AT_OWN_PACE
            }
            fn batch_size(&self) -> u32 {
                self.0
            }
            fn even_batch_size(&self) -> f64 {
                40.0
            }
            fn set_rate_share(&mut self, share: Option<f32>) {
                self.1 = share;
            }
            fn tell_trainer(&mut self, action: &str, value: &str) -> Result<(), InvalidValue> {
                Err(InvalidValue::new(action, value, "nothing"))
            }
        }
        let share = |value: &str, size: u32| {
            let mut worker = Of(size, None);
            action::begin(&values(value), &mut worker).map(|()| worker.1)
        };
        assert_eq!(share("linear", 10), Ok(Some(0.25)));
        assert_eq!(share("sqrt", 10), Ok(Some(0.5)));
        assert_eq!(share("fixed=2", 10), Ok(Some(2.0)));
        assert!(share("quick", 10).is_err());
    }
}
