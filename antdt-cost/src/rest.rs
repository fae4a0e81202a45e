//! [`Rest`]: predicts how much job time an action saves in the rest of a job, less its costs, with the standard
//! error.
//!
//! The model: the present slowness lasts for another time `X`, which is exponentially distributed with the
//! mean `L`; the job lasts for another time `R`. The time saved by a plan ([`PlanOutlook`]) and by a restart
//! ([`RestartOutlook`], whose fields the formulas name) is then
//!
//! ```text
//! T(d) = E[(min(X, R) - d)+] = L (exp(-d / L) - exp(-R / L))          expected slow time that is left after a delay d
//!
//! a plan        T(delay) (1 - with / without)  -  (1 - exp(-R / L)) lag healthy
//! a restart     cured T(delay) (1 - after / now)  -  delay (away / now - 1)  -  2 pause
//! ```
//!
//! A plan comes into force after `delay`; a step then takes `with` instead of `without`. When the slowness ends, the plan
//! makes each step longer by the share `healthy`, for `lag`, until the next plan. A restart takes a worker away for `delay`, in
//! which the others do its work and a step takes `away` instead of `now`; after it, a step takes `after`. It pauses all workers
//! twice, for `pause`. Only the share `cured` of restarts ends the slowness.
//!
//! Source: our design.

use std::time::Duration;

/// Errors that a saving must exceed to be sure: of a hundred that are none, two pass.
const SURE: f64 = 2.0;

/// A predicted saving of the time of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saved {
    /// Expected seconds saved; below 0 if the action costs more than it saves.
    pub seconds: f64,
    /// Standard error of `seconds`.
    pub error: f64,
}

impl Saved {
    /// Returns whether the saving exceeds two of its standard errors.
    pub fn is_sure(&self) -> bool {
        self.seconds > SURE * self.error
    }
}

/// Expected effects of a new plan on the steps of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanOutlook {
    /// Expected seconds of a step without the plan, above 0.
    pub without: f64,
    /// Expected seconds of a step with the plan.
    pub with: f64,
    /// Standard error of the ratio `with / without`.
    pub error: f64,
    /// Time from now until the plan is in force.
    pub delay: Duration,
    /// Time from the end of the slowness until the next plan is in force.
    pub lag: Duration,
    /// Share by which the plan makes a step longer while no worker is slow any more.
    pub healthy: f64,
}

/// Expected effects of a worker's restart on the steps of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartOutlook {
    /// Expected seconds of a step before the restart, if batch sizes fit the workers' speeds; above 0.
    pub now: f64,
    /// Expected seconds of a step while the restarted worker is away and the others have its share of the batch.
    pub away: f64,
    /// Expected seconds of a step once the restarted worker is back and healthy.
    pub after: f64,
    /// Probability that the worker is healthy once it is back, from 0 to 1.
    pub cured: f64,
    /// Standard error of the ratio `after / now`.
    pub error: f64,
    /// Expected time from the order to restart the worker to its next batch.
    pub delay: Duration,
    /// Pause of all workers each time that the membership changes.
    pub pause: Duration,
}

/// The rest of a job in which a worker is slow, against which the savings of actions are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rest {
    /// Expected time to the end of the job if no action is taken.
    pub left: Duration,
    /// Expected time until the slowness ends.
    pub goes_on: Duration,
}

impl Rest {
    /// Expected time from `delay` on in which the slowness goes on.
    fn slow_after(&self, delay: Duration) -> f64 {
        let (left, mean) = (self.left.as_secs_f64(), self.goes_on.as_secs_f64().max(f64::MIN_POSITIVE));
        let delay = delay.as_secs_f64().min(left);
        mean * ((-delay / mean).exp() - (-left / mean).exp())
    }

    /// Chance that it ends before the job does.
    fn ends(&self) -> f64 {
        1.0 - (-self.left.as_secs_f64() / self.goes_on.as_secs_f64().max(f64::MIN_POSITIVE)).exp()
    }

    /// Returns the job time that a plan is expected to save, with its standard error.
    pub fn saved_by_plan(&self, plan: &PlanOutlook) -> Saved {
        let slow = self.slow_after(plan.delay);
        let harm = self.ends() * plan.lag.as_secs_f64() * plan.healthy.max(0.0);
        Saved { seconds: slow * (1.0 - plan.with / plan.without) - harm, error: slow * plan.error }
    }

    /// Returns the job time that a restart is expected to save, with its standard error.
    pub fn saved_by_restart(&self, restart: &RestartOutlook) -> Saved {
        let slow = self.slow_after(restart.delay);
        let gain = 1.0 - restart.after / restart.now;
        let delay = restart.delay.min(self.left).as_secs_f64();
        let cost = delay * (restart.away / restart.now - 1.0).max(0.0) + 2.0 * restart.pause.as_secs_f64();
        // Whether it cures is a chance that is taken into account, and no error of the prediction.
        let error = slow * restart.cured * restart.error;
        Saved { seconds: restart.cured * slow * gain - cost, error }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    const PLAN: PlanOutlook = PlanOutlook {
        without: 1.0,
        with: 0.3,
        error: 0.01,
        delay: Duration::from_millis(1500),
        lag: Duration::from_millis(2500),
        healthy: 0.1,
    };

    const RESTART: RestartOutlook = RestartOutlook {
        now: 0.282,
        away: 0.293,
        after: 0.256,
        cured: 0.5,
        error: 0.01,
        delay: Duration::from_secs(10),
        pause: Duration::from_secs(1),
    };

    #[test]
    fn it_is_the_mean_of_many_jobs() {
        let mut rng = Seed(3).rng();
        for (left, mean) in [(300.0, 20.0), (10.0, 20.0), (60.0, 1.0), (60.0, 1e6)] {
            let rest = Rest { left: seconds(left), goes_on: seconds(mean) };
            let (mut by_plan, mut by_restart) = (0.0, 0.0);
            let draws = 100_000;
            for _ in 0..draws {
                let lasts = -mean * (1.0 - rng.unit()).ln();
                let slow = |delay: f64| (lasts.min(left) - delay).max(0.0);
                by_plan += slow(1.5) * 0.7 - if lasts < left { 0.25 } else { 0.0 };
                let cured = if rng.unit() < 0.5 { 1.0 } else { 0.0 };
                by_restart += cured * slow(10.0) * (1.0 - 0.256 / 0.282);
                by_restart -= 10.0_f64.min(left) * (0.293 / 0.282 - 1.0) + 2.0;
            }
            let mean = |sum: f64| sum / f64::from(draws);
            let near =
                |a: f64, b: f64| assert!((a - b).abs() < 0.02 * b.abs() + 0.02, "{rest:?}: {a} and {b}");
            near(rest.saved_by_plan(&PLAN).seconds, mean(by_plan));
            near(rest.saved_by_restart(&RESTART).seconds, mean(by_restart));
        }
    }

    #[test]
    fn a_restart_pays_on_one_side_of_its_break_even_and_not_on_the_other() {
        // A cure that is certain, of a slowness that stays: it pays if the job lasts longer than what is lost in it takes to come back.
        let restart = RestartOutlook { cured: 1.0, error: 0.0, ..RESTART };
        let cost = 10.0 * (restart.away / restart.now - 1.0) + 2.0;
        let break_even = 10.0 + cost / (1.0 - restart.after / restart.now);
        let saved =
            |left: f64| Rest { left: seconds(left), goes_on: seconds(1e7) }.saved_by_restart(&restart);
        assert!(saved(break_even * 1.2).is_sure() && !saved(break_even * 0.8).is_sure());
    }

    proptest! {
        #[test]
        fn nothing_saves_more_than_is_left_and_a_longer_slowness_never_saves_less(
            left in 0.0..1e5_f64, goes_on in 1e-3..1e6_f64, with in 0.01..1.0_f64,
        ) {
            let plan = PlanOutlook { with, healthy: 0.0, ..PLAN };
            let saved = |goes_on: f64| {
                Rest { left: seconds(left), goes_on: seconds(goes_on) }.saved_by_plan(&plan).seconds
            };
            prop_assert!(saved(goes_on).is_finite() && saved(goes_on) <= left * (1.0 - with) + 1e-9);
            prop_assert!(saved(goes_on * 2.0) >= saved(goes_on) - 1e-9);
        }
    }
}
