//! Clocks and memory as the system counts them, and what many values come to.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// Time that something took, on the wall and on the cores. What else runs on the machine is in the first only.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Took {
    /// On the wall.
    pub(crate) wall: Duration,
    /// On the cores.
    pub(crate) cpu: Duration,
}

/// Measures what this thread does.
pub(crate) fn on_this_thread<T>(work: impl FnOnce() -> T) -> (T, Took) {
    measure(ClockId::ThreadCPUTime, work)
}

/// Measures what all threads of this process do meanwhile.
pub(crate) fn in_this_process<T>(work: impl FnOnce() -> T) -> (T, Took) {
    measure(ClockId::ProcessCPUTime, work)
}

fn measure<T>(clock: ClockId, work: impl FnOnce() -> T) -> (T, Took) {
    let (wall, cpu) = (Instant::now(), clock_time(clock));
    let result = work();
    (result, Took { wall: wall.elapsed(), cpu: clock_time(clock).saturating_sub(cpu) })
}

/// What a clock of the system shows.
pub(crate) fn clock_time(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

/// How many bytes more than now this process holds at its peak while `work` runs. Memory that was freed before and
/// kept by the allocator is not counted, so this belongs at the start of a process.
///
/// # Errors
/// If the system does not tell; Linux does.
pub(crate) fn peak_growth<T>(work: impl FnOnce() -> T) -> Result<(T, u64)> {
    reset_peak()?;
    let before = status_bytes("VmRSS:")?;
    let result = work();
    Ok((result, status_bytes("VmHWM:")?.saturating_sub(before)))
}

/// Sets the peak of memory (`VmHWM:`) back to what is held now: proc_pid_clear_refs(5).
///
/// # Errors
/// If the system can't; Linux can.
pub(crate) fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak of memory")
}

/// A field of this process's status, in bytes, such as `VmRSS:`.
///
/// # Errors
/// If there is none of that name.
pub(crate) fn status_bytes(field: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("the system does not tell of memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).with_context(|| format!("/proc/self/status has no {field}"))
}

/// The value in the middle; the higher one of two. 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The least of some values; infinite of none.
pub(crate) fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

/// The least value that `share` of the values do not exceed; zero of none. Sorts them.
pub(crate) fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median([9.0, 1.0, 5.0]) - 5.0).abs() < 1e-12);
        assert!(median([]).abs() < 1e-12);
    }

    #[test]
    fn a_quantile_is_a_value_that_occurred() {
        let mut values: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut values, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&mut values, 0.5), Duration::from_millis(50));
        assert_eq!(quantile(&mut values, 1.0), Duration::from_millis(100));
        assert_eq!(quantile(&mut [], 0.99), Duration::ZERO);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_peak_is_seen_after_it_has_passed() {
        const BYTES: usize = 32 << 20;
        // Not zeroed, for pages of zeros are not held.
        let (sum, grown) =
            peak_growth(|| vec![1_u8; BYTES].iter().map(|b| u64::from(*b)).sum::<u64>()).unwrap();
        assert_eq!(sum, BYTES as u64);
        assert!(grown >= BYTES as u64 / 2, "{grown} bytes");
    }

    #[test]
    fn work_is_seen_on_the_cores() {
        let (_, took) = on_this_thread(|| (0..1_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)));
        assert!(took.cpu > Duration::ZERO && took.wall > Duration::ZERO);
    }
}
