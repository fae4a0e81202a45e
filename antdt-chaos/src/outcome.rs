//! The outcome of a chaos run: the faults that were injected, and whether every sample was trained once.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::kind::ChaosKind;

/// A scheduled fault, and whether and when it happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultEntry {
    /// Number of the fault in the schedule, from 0.
    pub number: u32,
    /// Kind of the fault.
    pub kind: ChaosKind,
    /// Scheduled time of the fault, in seconds since the job began to train.
    pub due_s: f64,
    /// Time at which the fault began, in seconds since the job began to train; `None` if it did not happen.
    pub began_s: Option<f64>,
    /// Time at which the fault ended, in seconds since the job began to train; `None` if it has no duration.
    pub ended_s: Option<f64>,
    /// Process that the fault hit and how, or the reason why it did not happen.
    pub text: String,
}

/// Number of faults of one kind in a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindEntry {
    /// Kind of the faults.
    pub kind: ChaosKind,
    /// Number of faults of this kind that happened.
    pub injected: u32,
    /// Number of scheduled faults of this kind that did not happen.
    pub missed: u32,
    /// Reason why this kind of fault cannot be injected on this machine or into this job; `None` if it can.
    pub skipped: Option<String>,
}

/// The report of `antdt-chaos`: the faults that hit a job, and how the job did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChaosReport {
    /// Seed of the schedule.
    pub seed: u64,
    /// Kinds of faults that the user asked for.
    pub kinds: Vec<KindEntry>,
    /// Faults in order of time.
    pub faults: Vec<FaultEntry>,
    /// Time from the job's first step to its end, in seconds.
    pub lasted_s: f64,
    /// Number of masters that were started.
    pub masters: u32,
    /// How the job ended.
    pub outcome: String,
    /// Basis of the count of trained samples, in words.
    pub counted: String,
    /// What the job did wrong, in words; empty if it did nothing wrong.
    pub violations: Vec<String>,
}

impl ChaosReport {
    /// Returns whether the job did nothing wrong.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns the report as text of some lines.
    pub fn render(&self) -> String {
        let mut text = format!("\n{:<18}{:>9}{:>8}\n", "fault", "injected", "missed");
        for KindEntry { kind, injected, missed, skipped } in &self.kinds {
            let _ = match skipped {
                Some(why) => writeln!(text, "{:<18}  skipped: {why}", kind.name()),
                None if *injected == 0 => {
                    writeln!(text, "{:<18}{injected:>9}{missed:>8}  never occurred", kind.name())
                }
                None => writeln!(text, "{:<18}{injected:>9}{missed:>8}", kind.name()),
            };
        }
        let injected: u32 = self.kinds.iter().map(|kind| kind.injected).sum();
        let _ = writeln!(
            text,
            "\nseed {}: {injected} faults in {:.1} s, {} masters; {}",
            self.seed, self.lasted_s, self.masters, self.outcome
        );
        let _ = writeln!(text, "counted {}", self.counted);
        for violation in &self.violations {
            let _ = writeln!(text, "VIOLATION: {violation}");
        }
        text += if self.is_good() { "verdict: exact\n" } else { "verdict: NOT EXACT\n" };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_never_occurred_or_was_skipped_is_named() {
        let kind = |kind, injected, skipped: Option<&str>| KindEntry {
            kind,
            injected,
            missed: 0,
            skipped: skipped.map(str::to_owned),
        };
        let mut report = ChaosReport {
            seed: 7,
            kinds: vec![
                kind(ChaosKind::WorkerKill, 3, None),
                kind(ChaosKind::Hang, 0, None),
                kind(ChaosKind::ServerKill, 0, Some("the job has no servers")),
            ],
            faults: Vec::new(),
            lasted_s: 12.0,
            masters: 2,
            outcome: "completed".to_owned(),
            counted: "by the model".to_owned(),
            violations: Vec::new(),
        };
        let text = report.render();
        assert!(text.contains("hang                      0       0  never occurred"), "{text}");
        assert!(text.contains("server-kill         skipped: the job has no servers"), "{text}");
        assert!(text.ends_with("verdict: exact\n"), "{text}");
        report.violations.push("sample 7 is 3 times in the model".to_owned());
        assert!(
            report.render().ends_with("VIOLATION: sample 7 is 3 times in the model\nverdict: NOT EXACT\n")
        );
    }
}
