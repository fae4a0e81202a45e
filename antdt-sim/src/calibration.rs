//! How far simulated jobs are from real ones: the last run of the calibration gate, shipped with the crate.
//!
//! `cargo xtask bench calibrate` runs jobs as processes and simulates each. Its result is `calibration.json`; whoever shows a
//! simulated figure shows it beside it, and shows none if the gate was not passed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What came of a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Jobs that were run and simulated, without the probes that the simulation takes its figures from.
    pub runs: usize,
    /// Median error of the completion time, percent of the real one.
    pub median_percent: f64,
    /// The error that one job in twenty exceeds.
    pub p95_percent: f64,
    /// Actions of a policy that came more than two steps apart, or not at all. At their own pace, two steps of each worker.
    pub actions_off: usize,
}

/// The gate was not passed: no simulated figure is to be trusted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the simulator's last calibration failed ({0}), so no simulated figure is shown; mend the models, then run \
     `cargo xtask bench calibrate`"
)]
pub struct NotCalibrated(pub Calibration);

impl Calibration {
    /// Jobs that the gate asks for.
    pub const RUNS_MIN: usize = 20;
    /// What stands in place of [`line`](Self::line) beside figures of workers that average in groups: the gate runs none.
    pub const NONE_OF_GROUPS: &str = "not calibrated: no real job averages in groups yet";
    /// The largest median error, percent.
    pub const MEDIAN_MAX: f64 = 5.0;
    /// The largest error that one job in twenty may exceed, percent.
    pub const P95_MAX: f64 = 10.0;

    /// That of this version of the crate; `None` if the gate was not run on it.
    ///
    /// # Panics
    /// Never: the file is part of the crate, and a test reads it.
    pub fn shipped() -> Option<Self> {
        serde_json::from_str(include_str!("../calibration.json")).expect("a test reads the file")
    }

    /// One line that belongs beside every figure of a simulated job of this version.
    ///
    /// # Errors
    /// If the gate was run and not passed: then no figure is to be shown.
    pub fn line() -> Result<String, NotCalibrated> {
        Ok(match Self::shipped() {
            Some(calibration) => format!("calibration: {}", calibration.check()?),
            None => "calibration: none of this version; cargo xtask bench calibrate makes one".to_owned(),
        })
    }

    /// Whether simulated figures may be shown.
    pub fn passed(&self) -> bool {
        self.runs >= Self::RUNS_MIN
            && self.median_percent <= Self::MEDIAN_MAX
            && self.p95_percent <= Self::P95_MAX
            && self.actions_off == 0
    }

    /// Itself, if simulated figures may be shown.
    ///
    /// # Errors
    /// If they may not.
    pub fn check(self) -> Result<Self, NotCalibrated> {
        if self.passed() { Ok(self) } else { Err(NotCalibrated(self)) }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, median_percent, p95_percent, actions_off } = self;
        write!(
            f,
            "completion times of {runs} real jobs were met within {median_percent:.1} % (median) and {p95_percent:.1} % \
             (p95), and "
        )?;
        match actions_off {
            0 => write!(f, "the policies acted at the same steps"),
            1 => write!(f, "1 action came at another step"),
            off => write!(f, "{off} actions came at other steps"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_reads_and_did_not_fail() {
        assert!(Calibration::line().is_ok());
    }

    #[test]
    fn each_limit_counts() {
        let good = Calibration { runs: 20, median_percent: 5.0, p95_percent: 10.0, actions_off: 0 };
        assert!(good.passed());
        for bad in [
            Calibration { runs: 19, ..good.clone() },
            Calibration { median_percent: 5.1, ..good.clone() },
            Calibration { p95_percent: f64::NAN, ..good.clone() },
            Calibration { actions_off: 1, ..good },
        ] {
            let text = bad.check().unwrap_err().to_string();
            assert!(text.contains("cargo xtask bench calibrate"), "{text}");
        }
    }
}
