//! [`Calibration`]: how far simulated jobs are from real ones, by the last run of the calibration gate, whose
//! result ships with the crate.
//!
//! `cargo xtask bench calibrate` runs jobs as processes and simulates each. Its result is `calibration.json`.
//! A program that shows a simulated figure also shows the calibration, and shows no figure if the gate
//! failed. A calibration is valid for one version of the source of simulator, policies and state machines;
//! for any other version it counts as withdrawn.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One job of a calibration, as it ran for real and as it was simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Description of the job: its sync mode, policy, slowness of the straggler and number of workers.
    pub job: String,
    /// Completion time of the processes, in seconds.
    pub real_s: f64,
    /// Completion time of the simulated job, in seconds.
    pub simulated_s: f64,
    /// Whether the simulation took its figures from this job; such a job is not counted.
    pub is_probe: bool,
    /// Number of the policy's actions that came at other steps in the simulation; see
    /// [`Calibration::actions_off`].
    pub actions_off: usize,
}

/// The result of comparing simulated jobs with real ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Commit at which the comparison was made.
    pub commit: String,
    /// Hash of the source of simulator, policies and state machines at the comparison; see
    /// [`SOURCE`](Self::SOURCE).
    pub source: String,
    /// Number of compared jobs, without the probes from which the simulation takes its figures.
    pub runs: usize,
    /// Median error of the simulated completion time, in percent of the real one.
    pub median_percent: f64,
    /// Error of the simulated completion time that one job in twenty exceeds, in percent of the real one.
    pub p95_percent: f64,
    /// Number of policy actions that were more than two steps apart in the real and the simulated job, or
    /// happened in only one of them. In modes without common steps, two steps of each worker.
    pub actions_off: usize,
    /// All compared jobs, including the probes; empty in a calibration of a release that did not keep rows.
    pub rows: Vec<Row>,
}

/// Error: the newest calibration failed, so that no simulated figure should be shown.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the simulator's last calibration failed ({0}), so no simulated figure is shown; mend the models, then run \
     `cargo xtask bench calibrate`"
)]
pub struct NotCalibrated(pub Calibration);

impl Calibration {
    /// Hash of the source that this simulator is built from: simulator, policies and state machines.
    pub const SOURCE: &str = env!("ANTDT_SIM_SOURCE");
    /// Properties of the compared jobs, as text. The calibration says nothing about other jobs.
    pub const COVERS: &str =
        "emulated compute, permanent stragglers, start-up times taken from the recording that is judged";
    /// Smallest number of jobs that a calibration needs.
    pub const RUNS_MIN: usize = 20;
    /// Largest median error of the completion time with which the calibration passes, in percent.
    pub const MEDIAN_MAX: f64 = 5.0;
    /// Largest error that one job in twenty may exceed if the calibration is to pass, in percent.
    pub const P95_MAX: f64 = 10.0;

    /// Returns the newest calibration, which ships with this crate; it may be of another source than this
    /// simulator.
    ///
    /// # Panics
    /// Never: the file is part of the crate, and a test reads it.
    pub fn shipped() -> Self {
        serde_json::from_str(include_str!("../calibration.json")).expect("a test reads the file")
    }

    /// Returns one line about the calibration, to be shown beside every figure of a simulated job.
    ///
    /// # Errors
    /// If the calibration of this simulator's source failed: no simulated figure should be shown then.
    pub fn line() -> Result<String, NotCalibrated> {
        Self::shipped().line_of(Self::SOURCE)
    }

    /// The line beside a figure of a simulator that is built from `source`.
    fn line_of(self, source: &str) -> Result<String, NotCalibrated> {
        if self.source != source {
            return Ok(format!(
                "calibration: withdrawn; that of commit {:.8} speaks of another source of simulator, policies and machines; \
                 cargo xtask bench calibrate makes one",
                self.commit
            ));
        }
        Ok(format!("calibration: {}; it covers {}", self.check()?, Self::COVERS))
    }

    /// Returns whether the calibration is good enough for simulated figures to be shown.
    pub fn passed(&self) -> bool {
        self.runs >= Self::RUNS_MIN
            && self.median_percent <= Self::MEDIAN_MAX
            && self.p95_percent <= Self::P95_MAX
            && self.actions_off == 0
    }

    /// Returns this calibration if it has [passed](Self::passed).
    ///
    /// # Errors
    /// If it has not.
    pub fn check(self) -> Result<Self, NotCalibrated> {
        if self.passed() { Ok(self) } else { Err(NotCalibrated(self)) }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, median_percent, p95_percent, actions_off, .. } = self;
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
    fn the_shipped_calibration_reads_and_did_not_fail() {
        assert!(Calibration::line().is_ok());
    }

    fn good() -> Calibration {
        Calibration {
            commit: "0123456789ab".to_owned(),
            source: "aa".to_owned(),
            runs: 20,
            median_percent: 5.0,
            p95_percent: 10.0,
            actions_off: 0,
            rows: Vec::new(),
        }
    }

    #[test]
    fn a_calibration_of_another_source_is_withdrawn_and_says_nothing() {
        let line = good().line_of("aa").unwrap();
        assert!(line.contains("20 real jobs") && line.ends_with(Calibration::COVERS), "{line}");
        let failed = || Calibration { runs: 3, ..good() };
        assert!(failed().line_of("aa").is_err());
        for of_other in [good(), failed()] {
            let line = of_other.line_of("ab").unwrap();
            assert!(line.starts_with("calibration: withdrawn; that of commit 01234567 "), "{line}");
            assert!(!line.contains('%'), "{line}");
        }
        assert_eq!(Calibration::SOURCE.len(), 16);
    }

    #[test]
    fn each_limit_counts() {
        let good = good();
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
