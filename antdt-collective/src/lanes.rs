//! Control values that are summed with every synchronous step. They make a plan start at the same iteration
//! on all ranks, or on none, without a barrier of its own.
//!
//! Every rank contributes `[n, eod, w, w², reform, leaving, whole, loss]` to sums over all ranks, in `f64`
//! and separate from the gradient. All ranks see the same totals and so decide alike. With `w` the newest
//! plan that a rank holds and can apply, all ranks hold the same one exactly if `world * Σw² = (Σw)²`:
//! equality in the Cauchy-Schwarz inequality. The sum alone would not do: versions 1, 2, 3 add up to three
//! times 2.
//!
//! Source: our design.

use antdt_core::PlanVersion;

/// Control values that one rank contributes to a step, beside its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes {
    /// Samples behind the rank's gradient; 0 if the rank had no data.
    pub samples: u64,
    /// Whether the rank's last fetch was answered with the end of the data.
    pub end_of_data: bool,
    /// Newest plan that the rank holds and can apply.
    pub plan_ready: PlanVersion,
    /// Whether the master asked the rank to form a new group after this step.
    pub reform: bool,
    /// Whether the rank was ordered to leave the job, and would do so after this step. The rank then asks for
    /// a new group, too.
    pub leaving: bool,
    /// Whether the rank needs the mean of all ranks' models in the next step, in a mode whose steps average
    /// the models of a few workers.
    pub whole: bool,
    /// Sum of the losses of the rank's samples in this step.
    pub loss_sum: f64,
}

/// The conclusion that all ranks draw, identically, from the totals of a step's control values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Samples of the step over all ranks; with 0 there is no update to apply.
    pub samples: u64,
    /// Whether every rank has seen the end of the data.
    pub end_of_data: bool,
    /// Plan that every rank holds; `None` if the ranks hold different plans.
    pub plan_agreed: Option<PlanVersion>,
    /// Whether any rank was asked to form a new group.
    pub reform: bool,
    /// Whether every rank would leave. Then rank 0 must stay, or the model would be lost with the last rank.
    pub all_leaving: bool,
    /// Whether any rank needs the mean of all ranks' models in the next step.
    pub whole: bool,
    /// Sum of the losses over all samples of the step.
    pub loss_sum: f64,
}

impl Lanes {
    /// Number of control values that a rank contributes.
    pub const LEN: usize = 8;

    /// Integers up to here are exact in an `f64`; beyond, no agreement is claimed.
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;

    /// Encodes the control values as numbers that are summed over all ranks.
    #[allow(clippy::cast_precision_loss, reason = "counts; a version that does not fit is never agreed on")]
    pub fn encode(&self) -> [f64; Self::LEN] {
        let version = self.plan_ready.0 as f64;
        let flag = |on: bool| f64::from(u8::from(on));
        [
            self.samples as f64,
            flag(self.end_of_data),
            version,
            version * version,
            flag(self.reform),
            flag(self.leaving),
            flag(self.whole),
            self.loss_sum,
        ]
    }

    /// Returns the conclusion from the control values of a step, given their `totals` over all `world` ranks.
    /// Every rank computes the same.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sums of non-negative integers"
    )]
    pub fn decide(totals: &[f64; Self::LEN], world: u32) -> Verdict {
        let [samples, end_of_data, versions, squares, reform, leaving, whole, loss_sum] = *totals;
        let world = f64::from(world);
        let (left, right) = (world * squares, versions * versions);
        let agreed = left == right && left < Self::EXACT_MAX;
        Verdict {
            samples: samples as u64,
            end_of_data: end_of_data >= world,
            plan_agreed: agreed.then(|| PlanVersion((versions / world) as u64)),
            reform: reform > 0.0,
            all_leaving: leaving >= world,
            whole: whole > 0.0,
            loss_sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(versions: &[u64]) -> Option<PlanVersion> {
        let mut totals = [0.0; Lanes::LEN];
        for version in versions {
            let lanes = Lanes { plan_ready: PlanVersion(*version), ..Lanes::default() };
            totals.iter_mut().zip(lanes.encode()).for_each(|(total, lane)| *total += lane);
        }
        Lanes::decide(&totals, u32::try_from(versions.len()).unwrap()).plan_agreed
    }

    #[test]
    fn a_plan_is_agreed_on_exactly_if_all_ranks_hold_it() {
        for a in 0..12 {
            for b in 0..12 {
                for c in 0..12 {
                    let same = a == b && b == c;
                    assert_eq!(verdict(&[a, b, c]), same.then_some(PlanVersion(a)), "{a} {b} {c}");
                }
            }
        }
        assert_eq!(verdict(&[7]), Some(PlanVersion(7)));
    }

    #[test]
    fn neighbouring_versions_are_told_apart_as_long_as_an_agreement_is_claimed() {
        // 1 M plans on 64 ranks still fit.
        assert_eq!(verdict(&[1_000_000; 64]), Some(PlanVersion(1_000_000)));
        let mut one_behind = [1_000_000; 64];
        one_behind[63] -= 1;
        assert_eq!(verdict(&one_behind), None);
        assert_eq!(verdict(&[1 << 40; 4]), None, "squares are not exact up there");
    }

    #[test]
    fn flags_and_counts_add_up() {
        let some = Lanes { samples: 10, end_of_data: true, loss_sum: 2.5, ..Lanes::default() };
        let none = Lanes { samples: 0, reform: true, loss_sum: 0.5, ..Lanes::default() };
        let mut totals = some.encode();
        totals.iter_mut().zip(none.encode()).for_each(|(total, lane)| *total += lane);
        let verdict = Lanes::decide(&totals, 2);
        assert_eq!(
            (verdict.samples, verdict.end_of_data, verdict.reform, verdict.loss_sum),
            (10, false, true, 3.0)
        );
        assert!(!verdict.all_leaving && !verdict.whole);
        let whole = Lanes { whole: true, ..Lanes::default() }.encode();
        assert!(Lanes::decide(&whole, 3).whole, "one rank is enough");
        let leaving = Lanes { leaving: true, reform: true, ..Lanes::default() }.encode();
        assert!(Lanes::decide(&leaving, 1).all_leaving && !Lanes::decide(&leaving, 2).all_leaving);
    }
}
