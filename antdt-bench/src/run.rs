//! Runs `antdt run` as a user does, and reads the report.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use antdt::report::{BatchPoint, BatchSeries, Report, WorkerEntry};
use anyhow::{Context, Result, bail};

use crate::tree::starting;

/// What a job says goes to this file of its report folder.
pub const LOG: &str = "log.txt";

/// Runs `antdt run ARGUMENTS --report-dir FOLDER` and returns its report. The output of the job goes to
/// `FOLDER/log.txt`.
///
/// # Errors
/// If the job cannot be started, is not done within `limit` (it is killed then), fails, or leaves no readable
/// report.
pub fn run(antdt: &Path, arguments: &[String], folder: &Path, limit: Duration) -> Result<Report> {
    finished(start(antdt, arguments, folder)?, arguments, folder, limit)
}

/// [`run`] by a command whose first `words` make it `antdt`, such as `ip` and `netns exec NAME antdt`.
///
/// # Errors
/// As there.
pub fn run_by(
    command: &str,
    words: &[String],
    arguments: &[String],
    folder: &Path,
    limit: Duration,
) -> Result<Report> {
    finished(start_by(Path::new(command), words, arguments, folder)?, arguments, folder, limit)
}

fn finished(child: Child, arguments: &[String], folder: &Path, limit: Duration) -> Result<Report> {
    let log = folder.join(LOG);
    let status = wait(child, limit)
        .with_context(|| format!("antdt run {}; see {}", arguments.join(" "), log.display()))?;
    if !status.success() {
        bail!("antdt run {}: {status}\n{}", arguments.join(" "), last_lines(&log));
    }
    report(folder)
}

/// Starts `PROGRAM run ARGUMENTS --report-dir FOLDER`.
///
/// # Errors
/// If the folder cannot be written, or the program cannot be started.
pub fn start(program: &Path, arguments: &[String], folder: &Path) -> Result<Child> {
    start_by(program, &[], arguments, folder)
}

fn start_by(program: &Path, words: &[String], arguments: &[String], folder: &Path) -> Result<Child> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let log = folder.join(LOG);
    let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    // That of the run before is there.
    let report = ["--report-dir".to_owned(), folder.display().to_string(), "--force".to_owned()];
    program_with(program, &[words, &["run".to_owned()], arguments, &report].concat(), out)
}

/// Starts a program that says all to a file.
///
/// # Errors
/// If it cannot be started.
pub fn program_with(program: &Path, words: &[String], out: File) -> Result<Child> {
    let mut command = Command::new(program);
    // Settings in the environment of the caller are no part of it.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ANTDT_") {
            command.env_remove(name);
        }
    }
    let _may = starting();
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// The report in a job's folder.
///
/// # Errors
/// If there is none that can be read.
pub fn report(folder: &Path) -> Result<Report> {
    let file = folder.join("report.json");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a report", file.display()))
}

/// Waits for a process until `limit` has passed, then kills it.
pub fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if began.elapsed() > limit {
            child.kill().context("cannot kill a process that is overdue")?;
            child.wait()?;
            bail!("not done after {:.0} s", limit.as_secs_f64());
        }
        // The job's times are its own; how late its end is noticed is in no result.
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the last lines of a log.
pub fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Returns the median wall time of a batch, over all workers and from time `from_s` of the job on, in
/// seconds; `None` if there is no batch.
///
/// The median is used because other processes on the machine make some batches late but none early.
pub fn batch_time_s(workers: &[WorkerEntry], from_s: f64) -> Option<f64> {
    let mut times: Vec<(f64, u64)> = Vec::new();
    for worker in workers {
        let after = |point: &&BatchPoint| point.time_s - point.batch_s >= from_s;
        times.extend(worker.series.points().iter().filter(after).map(|point| (point.batch_s, point.batches)));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = times.iter().map(|(_, batches)| batches).sum::<u64>().div_ceil(2);
    let mut seen = 0;
    times
        .iter()
        .find(|(_, batches)| {
            seen += batches;
            seen >= half
        })
        .map(|(time, _)| *time)
}

/// Returns the number of batches that a worker computed before its batch size changed; all of them if it never did.
///
/// Exact while the series is: as long as its job has no more batches than a series has points.
pub fn steps_until_adjusted(series: &BatchSeries) -> u64 {
    let points = series.points();
    let first = points.first().map(|point| point.batch_size);
    points.iter().take_while(|point| Some(point.batch_size) == first).map(|point| point.batches).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(times: &[f64]) -> WorkerEntry {
        let mut series = BatchSeries::default();
        let mut now = 0.0;
        for time in times {
            now += time;
            series.push(now, *time, *time, 64, 64);
        }
        WorkerEntry { series, ..WorkerEntry::default() }
    }

    #[test]
    fn the_batch_time_is_the_median_after_a_moment() {
        let workers = [worker(&[4.0, 1.0, 1.0, 9.0]), worker(&[4.0, 1.0, 1.0])];
        assert_eq!(batch_time_s(&workers, 4.0), Some(1.0));
        assert_eq!(batch_time_s(&workers, 100.0), None);
    }

    #[test]
    fn batches_are_counted_until_their_size_is_another() {
        let sizes = |sizes: &[u32]| {
            let mut series = BatchSeries::default();
            sizes.iter().zip(1_u32..).for_each(|(size, at)| series.push(at.into(), 0.1, 0.1, *size, 1));
            series
        };
        assert_eq!(steps_until_adjusted(&sizes(&[64, 64, 19, 64])), 2);
        assert_eq!(steps_until_adjusted(&sizes(&[64, 64])), 2);
        assert_eq!(steps_until_adjusted(&sizes(&[])), 0);
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no-antdt");
        let error = run(&missing, &[], folder.path(), Duration::from_secs(1)).unwrap_err();
        assert!(format!("{error:#}").contains("no-antdt"));
    }

    #[test]
    fn a_job_that_fails_shows_its_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        // `sh run -c ...` fails because there is no script called "run".
        let error =
            run(Path::new("sh"), &["-c".to_owned()], folder.path(), Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("exit status"), "{error:#}");
    }

    #[test]
    fn an_overdue_process_is_killed() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let error = wait(child, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("not done after"), "{error}");
    }
}
