//! What counts as slow: the rule is a value, so that another one can be tried.

use std::fmt::Debug;

use antdt_core::{InvalidValue, Pace, StragglerKind};

/// What a rule judges a node by. All ratios are against the median of the live nodes of the same role and device
/// class, at the same moment; above 1 is slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Over the short window.
    pub ratio_short: f64,
    /// Median over the long window.
    pub ratio_long: f64,
    /// Share of the long window in which the node was slow, 0 to 1.
    pub slow_fraction_long: f64,
}

/// Turns evidence into a verdict.
pub trait PaceRule: Debug + Send {
    /// Whether a node at this ratio counts as slow at this moment.
    fn is_slow(&self, ratio: f64) -> bool;

    /// The verdict. `current` is the one in force, for hysteresis; it is never `Straggler(Deterministic)`, which
    /// is a verdict on the device class, not on the node.
    fn judge(&self, evidence: &Evidence, current: Pace) -> Pace;
}

/// Thresholds on the slowness ratio, with hysteresis.
///
/// | verdict | entered | left |
/// |---|---|---|
/// | transient | short ratio ≥ `transient` | short ratio < `transient × hysteresis` |
/// | persistent | slow now, long ratio ≥ `persistent` and slow fraction ≥ `slow_fraction` | one of the three below `hysteresis` × its threshold |
/// | leader | short ratio ≤ 1 / `transient` | short ratio > 1 / (`transient × hysteresis`) |
///
/// Source: our design; that slowness is a ratio to the peers' time is the idea attributed to the `AntDT` paper by
/// summaries, whose numbers we do not know. For scale: `DLRover` calls a node slow at twice the median of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RatioRule {
    /// Slow at this ratio. 1.3: noise of healthy nodes in public traces stays below 1.25 at the 99th percentile.
    #[doc(alias = "lambda")]
    pub transient: f64,
    /// Slow enough for a restart to be thought about. 1.5: below, even a perfect cure hardly pays.
    pub persistent: f64,
    /// Share of the long window that must have been slow. 0.8: no single burst makes a node persistent.
    pub slow_fraction: f64,
    /// A verdict is left at this fraction of its threshold. 0.9: keeps it from flapping at the threshold.
    pub hysteresis: f64,
}

impl Default for RatioRule {
    fn default() -> Self {
        Self { transient: 1.3, persistent: 1.5, slow_fraction: 0.8, hysteresis: 0.9 }
    }
}

impl RatioRule {
    /// Checks that the thresholds make sense together.
    ///
    /// # Errors
    /// The first one that does not.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        // Written so that NaN is refused.
        let hysteresis_fits = self.hysteresis > 0.0 && self.hysteresis <= 1.0;
        if !hysteresis_fits {
            return Err(InvalidValue::new("rule.hysteresis", self.hysteresis, "above 0 and at most 1"));
        }
        let transient_fits = self.transient * self.hysteresis > 1.0 && self.transient.is_finite();
        if !transient_fits {
            let expected = format!("finite and above 1 / hysteresis = {}", 1.0 / self.hysteresis);
            return Err(InvalidValue::new("rule.transient", self.transient, expected));
        }
        let persistent_fits = self.persistent >= self.transient && self.persistent.is_finite();
        if !persistent_fits {
            let expected = format!("finite and at least rule.transient = {}", self.transient);
            return Err(InvalidValue::new("rule.persistent", self.persistent, expected));
        }
        let fraction_fits = self.slow_fraction > 0.0 && self.slow_fraction <= 1.0;
        if !fraction_fits {
            return Err(InvalidValue::new("rule.slow_fraction", self.slow_fraction, "above 0 and at most 1"));
        }
        Ok(())
    }
}

impl PaceRule for RatioRule {
    fn is_slow(&self, ratio: f64) -> bool {
        ratio >= self.transient
    }

    fn judge(&self, evidence: &Evidence, current: Pace) -> Pace {
        // Whoever has a verdict keeps it down to `hysteresis` times its threshold.
        let ease = |held: bool| if held { self.hysteresis } else { 1.0 };
        let was_persistent = current == Pace::Straggler(StragglerKind::Persistent);

        if evidence.ratio_short >= self.transient * ease(current.is_straggler()) {
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
        RatioRule::default().judge(&Evidence { ratio_short, ratio_long, slow_fraction_long }, current)
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
