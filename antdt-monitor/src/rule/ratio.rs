//! The default pace rule: thresholds on the slowness ratio, with hysteresis.

use antdt_core::registry::Settings;
use antdt_core::{InvalidValue, Pace, StragglerKind};

use super::{Evidence, PaceRule};

antdt_core::settings! {
    /// The default pace rule: thresholds on the slowness ratio, with hysteresis.
    ///
    /// | verdict | entered | left |
    /// |---|---|---|
    /// | transient | short ratio ≥ `transient`, and more than noise explains | short ratio < `transient × hysteresis` |
    /// | persistent | slow now, long ratio ≥ `persistent` and slow fraction ≥ `slow_fraction` | one of the three below `hysteresis` × its threshold |
    /// | leader | short ratio ≤ 1 / `transient` | short ratio > 1 / (`transient × hysteresis`) |
    ///
    /// Source: our design; that slowness is a ratio to the peers' time is the idea attributed to the `AntDT` paper by
    /// summaries, whose numbers we do not know. For scale: `DLRover` calls a node slow at twice the median of a probe.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct RatioRule {
        /// Slowness ratio over the short window from which a node is slow. Default 1.3: noise of healthy nodes in public
        /// traces stays below 1.25 at the 99th percentile.
        #[doc(alias = "lambda")]
        pub transient: f64 = 1.3, "a node is slow at this multiple of the median of its peers", "a number";
        /// Slowness ratio over the long window from which a slow node may be a persistent straggler, which a policy may
        /// restart. Default 1.5: below it, even a restart that cures the node hardly pays.
        pub persistent: f64 = 1.5, "multiple from which a restart is considered", "a number";
        /// Smallest share of the long window in which a node was slow, from 0 to 1, for it to be a persistent straggler.
        /// Default 0.8: no single burst makes a node persistent.
        pub slow_fraction: f64 = 0.8, "share of the long window that must have been slow for that",
            "a number", if |share| share > 0.0 && share <= 1.0, else "above 0 and at most 1";
        /// Fraction of its threshold below which a verdict ends. Default 0.9: a ratio near the threshold does not
        /// change the verdict back and forth.
        pub hysteresis: f64 = 0.9, "fraction of its threshold at which a verdict is left",
            "a number", if |part| part > 0.0 && part <= 1.0, else "above 0 and at most 1";
    }
}

impl RatioRule {
    /// Name of the rule in the registry.
    pub const NAME: &'static str = "ratio";

    /// Reads the thresholds and checks that they make sense together.
    pub(super) fn read(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        let rule: Self = settings.read()?;
        // Written so that NaN is refused.
        let transient_fits = rule.transient * rule.hysteresis > 1.0 && rule.transient.is_finite();
        if !transient_fits {
            let expected = format!("finite and above 1 / hysteresis = {}", 1.0 / rule.hysteresis);
            return Err(settings.refuse("transient", rule.transient, &expected));
        }
        let persistent_fits = rule.persistent >= rule.transient && rule.persistent.is_finite();
        if !persistent_fits {
            let expected = format!("finite and at least transient = {}", rule.transient);
            return Err(settings.refuse("persistent", rule.persistent, &expected));
        }
        Ok(rule)
    }
}

impl PaceRule for RatioRule {
    fn is_slow(&self, ratio: f64) -> bool {
        ratio >= self.transient
    }

    fn judge(&self, evidence: &Evidence, current: Pace) -> Pace {
        // A worker with a verdict keeps it down to `hysteresis` times its threshold.
        let ease = |held: bool| if held { self.hysteresis } else { 1.0 };
        let was_straggler = current.is_straggler();
        let was_persistent = current == Pace::Straggler(StragglerKind::Persistent);

        let explained = !was_straggler && evidence.ratio_short <= evidence.ratio_by_chance;
        if evidence.ratio_short >= self.transient * ease(was_straggler) && !explained {
            let ease = ease(was_persistent);
            let persistent = evidence.ratio_long >= self.persistent * ease
                && evidence.slow_fraction_long >= self.slow_fraction * ease;
            return Pace::Straggler(if persistent {
                StragglerKind::Persistent
            } else {
                StragglerKind::Transient
            });
        }
        if evidence.ratio_short * self.transient * ease(current == Pace::Leader) <= 1.0 {
            return Pace::Leader;
        }
        Pace::Normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSIENT: Pace = Pace::Straggler(StragglerKind::Transient);
    const PERSISTENT: Pace = Pace::Straggler(StragglerKind::Persistent);

    fn judge(ratio_short: f64, ratio_long: f64, slow_fraction_long: f64, current: Pace) -> Pace {
        let ratio_by_chance = 1.1;
        let evidence = Evidence { ratio_short, ratio_by_chance, ratio_long, slow_fraction_long };
        RatioRule::default().judge(&evidence, current)
    }

    #[test]
    fn slowness_that_noise_explains_makes_no_straggler_and_keeps_one() {
        let evidence =
            Evidence { ratio_short: 1.5, ratio_by_chance: 1.6, ratio_long: 1.5, slow_fraction_long: 1.0 };
        let judge =
            |ratio_short, current| RatioRule::default().judge(&Evidence { ratio_short, ..evidence }, current);
        assert_eq!((judge(1.5, Pace::Normal), judge(1.61, Pace::Normal)), (Pace::Normal, PERSISTENT));
        assert_eq!((judge(1.5, TRANSIENT), judge(1.1, TRANSIENT)), (PERSISTENT, Pace::Normal));
    }

    #[test]
    fn every_row_of_the_table() {
        let cases = [
            // short, long, fraction, current, expected
            (1.29, 1.0, 0.0, Pace::Normal, Pace::Normal),
            (1.30, 1.0, 0.0, Pace::Normal, TRANSIENT),
            (1.18, 1.0, 0.0, TRANSIENT, TRANSIENT),
            (1.16, 1.0, 0.0, TRANSIENT, Pace::Normal),
            (4.0, 4.0, 0.79, Pace::Normal, TRANSIENT),
            (4.0, 4.0, 0.80, TRANSIENT, PERSISTENT),
            (1.4, 1.4, 1.0, TRANSIENT, TRANSIENT),
            (1.4, 1.4, 1.0, PERSISTENT, PERSISTENT),
            (4.0, 4.0, 0.73, PERSISTENT, PERSISTENT),
            (4.0, 4.0, 0.71, PERSISTENT, TRANSIENT),
            // Fast again: the long window does not hold it back.
            (1.0, 4.0, 1.0, PERSISTENT, Pace::Normal),
            (0.76, 1.0, 0.0, Pace::Normal, Pace::Leader),
            (0.78, 1.0, 0.0, Pace::Normal, Pace::Normal),
            (0.84, 1.0, 0.0, Pace::Leader, Pace::Leader),
            (0.86, 1.0, 0.0, Pace::Leader, Pace::Normal),
            (1.0, 1.0, 0.0, Pace::Unknown, Pace::Normal),
        ];
        for (short, long, fraction, current, expected) in cases {
            assert_eq!(
                judge(short, long, fraction, current),
                expected,
                "{short} {long} {fraction} {current:?}"
            );
        }
    }
}
