//! Whole jobs: {allreduce, ps-bsp, ps-asp} x {none, nd} x {no straggler, one of four four times slower}, and what the
//! ledger gains over static shares.

use std::io::{self, Write};
use std::time::Duration;

use antdt::report::Report;
use anyhow::{Context, Result};

use crate::oracle::Cluster;
use crate::run::{batch_time_s, run as run_antdt};
use crate::{Entry, Settings};

const WORKERS: u32 = 4;
const GLOBAL_BATCH_SIZE: u32 = 256;
const SLOW: f64 = 4.0;
/// Samples per second of a worker. A batch of 64 takes 128 ms: on two cores, the work that is not emulated (four
/// gradients, exchange, update; 5 to 10 ms) must be small against that. Slower workers would make the quick run too long.
const SPEED: f64 = 500.0;
/// Samples per shard. At the end of a job a shard of the straggler takes 1 s.
const SHARD_LEN: u32 = 128;
/// Steps before the batch sizes are evened out: the monitor's short window.
const REACTION: u32 = 20;
/// Starting processes and evaluating: in the job's completion time, in no oracle.
const STARTUP_S: f64 = 3.0;

/// How long the jobs are and how much noise is forgiven.
struct Scale {
    steps: u32,
    /// Tolerance of a step time, percent: what the gradients, the network and this machine's other work add.
    step_percent: f64,
    /// Least share of the oracle's gain.
    gain_share: f64,
    /// What `nd` may cost without a straggler, percent of a step.
    cost_percent: f64,
}

/// One line of the matrix.
#[derive(Clone, Copy)]
struct Case {
    sync: &'static str,
    policy: &'static str,
    sharding: &'static str,
    straggler: bool,
}

impl Case {
    fn name(self) -> String {
        let shares = if self.sharding == "static" { " static" } else { "" };
        let straggler = if self.straggler { "straggler" } else { "even" };
        format!("{} {}{shares} {straggler}", self.sync, self.policy)
    }

    fn cluster(self) -> Cluster {
        Cluster { workers: WORKERS, speed: SPEED, slow: if self.straggler { SLOW } else { 1.0 } }
    }

    fn is_synchronous(self) -> bool {
        self.sync != "ps-asp"
    }

    /// What it takes at most if all goes well, in seconds.
    fn expected_s(self, steps: u32) -> f64 {
        let samples = f64::from(steps * GLOBAL_BATCH_SIZE);
        match (self.is_synchronous(), self.sharding) {
            (true, _) => f64::from(steps) * self.cluster().uniform_step_s(GLOBAL_BATCH_SIZE),
            (false, "static") => self.cluster().static_makespan_s(samples),
            (false, _) => self.cluster().makespan_bound_s(samples, f64::from(SHARD_LEN)),
        }
    }

    fn arguments(self, steps: u32) -> Vec<String> {
        let mut text = format!(
            "--nproc-per-node {WORKERS} --sync {} --policy {} --sharding {} --workload deepfm --epochs 1 --seed 1 \
             --data synthetic:{} --global-batch-size {GLOBAL_BATCH_SIZE} --shard-len {SHARD_LEN} \
             --emulate-speed {SPEED} --quiet",
            self.sync,
            self.policy,
            self.sharding,
            steps * GLOBAL_BATCH_SIZE,
        );
        if self.sync.starts_with("ps-") {
            text.push_str(" --servers 1");
        }
        if self.straggler {
            text.push_str(&format!(" --straggler worker=1,slow={SLOW}"));
        }
        text.split_whitespace().map(str::to_owned).collect()
    }
}

/// Runs the matrix.
///
/// # Errors
/// If a job cannot be run; a job that misses its target is an entry that is not ok.
pub fn run(settings: &Settings) -> Result<Vec<Entry>> {
    let scale = if settings.quick {
        Scale { steps: 36, step_percent: 15.0, gain_share: 0.8, cost_percent: 5.0 }
    } else {
        Scale { steps: 480, step_percent: 10.0, gain_share: 0.9, cost_percent: 1.0 }
    };
    let mut entries = Vec::new();
    for sync in ["allreduce", "ps-bsp", "ps-asp"] {
        let mut reports = Vec::new();
        for (policy, straggler) in [("none", false), ("nd", false), ("none", true), ("nd", true)] {
            let case = Case { sync, policy, sharding: "dynamic", straggler };
            let report = measure(settings, &scale, case, &mut entries)?;
            reports.push(report);
        }
        let [even_none, even_nd, slow_none, slow_nd] = &reports[..] else {
            unreachable!("four cases give four reports");
        };
        entries.push(cost(sync, &scale, even_none, even_nd)?);
        if sync == "ps-asp" {
            let case = Case { sync, policy: "none", sharding: "static", straggler: true };
            let fixed = measure(settings, &scale, case, &mut entries)?;
            let oracle =
                case.expected_s(scale.steps) / Case { sharding: "dynamic", ..case }.expected_s(scale.steps);
            entries.push(gain("ps-asp ledger over static, straggler", &scale, oracle, &fixed, slow_none));
        } else {
            let case = Case { sync, policy: "nd", sharding: "dynamic", straggler: true };
            let adapted = case.cluster().adapted_job_s(GLOBAL_BATCH_SIZE, scale.steps, REACTION);
            let oracle = case.expected_s(scale.steps) / adapted;
            entries.push(gain(
                &format!("{sync} nd over none, straggler"),
                &scale,
                oracle,
                slow_none,
                slow_nd,
            ));
        }
    }
    Ok(entries)
}

/// Runs one case and checks what its own oracle says.
fn measure(settings: &Settings, scale: &Scale, case: Case, entries: &mut Vec<Entry>) -> Result<Report> {
    let name = case.name();
    print!("{name:<28}");
    // Progress only.
    let _ = io::stdout().flush();
    let limit = Duration::from_secs_f64(60.0 + 2.0 * case.expected_s(scale.steps));
    let folder = settings.report_dir.join(name.replace(' ', "-"));
    let report = run_antdt(&settings.antdt, &case.arguments(scale.steps), &folder, limit)?;
    println!(" {:>7.1} s", report.job_completion_time_s);

    let samples = &report.samples;
    let expected = u64::from(scale.steps * GLOBAL_BATCH_SIZE);
    // Zero only if all of it holds: the right number expected, all committed, none lost, repeated or given up.
    let wrong = samples.expected.abs_diff(expected)
        + samples.expected.abs_diff(samples.committed)
        + samples.lost
        + samples.duplicated
        + samples.quarantined;
    #[allow(clippy::cast_precision_loss, reason = "0, or a failure")]
    entries.push(Entry::shown(format!("{name}: samples off"), wrong as f64, "samples").at_most(0.0));
    if case.is_synchronous() {
        entries.extend(step_times(&name, scale, case, &report)?);
    } else {
        let expected = case.expected_s(scale.steps);
        let most = expected * (1.0 + scale.step_percent / 100.0) + STARTUP_S;
        entries.push(
            Entry::shown(format!("{name}: completion"), report.job_completion_time_s, "s")
                .at_most(most)
                .beside(format!("oracle {expected:.1} s")),
        );
    }
    Ok(report)
}

/// Step times before and after the policy acted.
fn step_times(name: &str, scale: &Scale, case: Case, report: &Report) -> Result<Vec<Entry>> {
    let cluster = case.cluster();
    let entry = |what: &str, from_s: f64, oracle: f64| -> Result<Entry> {
        let time =
            batch_time_s(&report.workers, from_s).with_context(|| format!("{name}: no batch {what}"))?;
        Ok(Entry::shown(format!("{name}: step {what}"), time, "s")
            .within(scale.step_percent, oracle)
            .beside(format!("oracle {oracle:.4} s")))
    };
    let adjusted = report.actions.iter().rev().find(|action| action.kind == "ADJUST_BS");
    Ok(match (case.policy, case.straggler, adjusted) {
        ("nd", true, Some(last)) => {
            vec![entry("after the last plan", last.time_s, cluster.best_step_s(GLOBAL_BATCH_SIZE))?]
        }
        // A policy that never acted is held against the steps it should have reached.
        ("nd", true, None) => vec![entry("without any plan", 0.0, cluster.best_step_s(GLOBAL_BATCH_SIZE))?],
        _ => vec![entry("median", 0.0, cluster.uniform_step_s(GLOBAL_BATCH_SIZE))?],
    })
}

/// What the policy costs when there is nothing to do.
fn cost(sync: &str, scale: &Scale, none: &Report, nd: &Report) -> Result<Entry> {
    let time = |report: &Report| batch_time_s(&report.workers, 0.0).context("a job without batches");
    let (none, nd) = (time(none)?, time(nd)?);
    Ok(Entry::shown(format!("{sync} nd over none, even: cost"), 100.0 * (nd / none - 1.0), "%")
        .at_most(scale.cost_percent)
        .beside(format!("none {none:.4} s a step")))
}

/// How many times sooner `better` is done than `worse`.
fn gain(name: &str, scale: &Scale, oracle: f64, worse: &Report, better: &Report) -> Entry {
    let value = worse.job_completion_time_s / better.job_completion_time_s;
    let long = Cluster { workers: WORKERS, speed: SPEED, slow: SLOW }.speedup();
    Entry::shown(name, value, "x").at_least(oracle * scale.gain_share).beside(format!(
        "oracle {oracle:.2} for this length, {long:.2} for a long job; {:.1} s against {:.1} s",
        better.job_completion_time_s, worse.job_completion_time_s
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_command_line_of_antdt() {
        let case = Case { sync: "ps-asp", policy: "none", sharding: "static", straggler: true };
        let line = case.arguments(50).join(" ");
        for part in
            ["--servers 1", "--straggler worker=1,slow=4", "--data synthetic:12800", "--sharding static"]
        {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(case.name(), "ps-asp none static straggler");
    }

    #[test]
    fn the_full_target_is_at_least_the_gain_that_was_promised() {
        let cluster =
            Case { sync: "allreduce", policy: "nd", sharding: "dynamic", straggler: true }.cluster();
        let uniform = 480.0 * cluster.uniform_step_s(GLOBAL_BATCH_SIZE);
        let oracle = uniform / cluster.adapted_job_s(GLOBAL_BATCH_SIZE, 480, REACTION);
        assert!(oracle * 0.9 >= 2.6, "{oracle}");
    }
}
