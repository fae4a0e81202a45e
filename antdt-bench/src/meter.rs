//! Clocks and memory as the system counts them, and what many values come to.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::sched_getaffinity;
use rustix::time::{ClockId, clock_gettime};

/// Time that something took, on the wall and on the cores. What else runs on the machine is in the first only.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// On the wall.
    pub wall: Duration,
    /// On the cores.
    pub cpu: Duration,
}

/// Measures what this thread does.
pub fn on_this_thread<T>(work: impl FnOnce() -> T) -> (T, Took) {
    measure(ClockId::ThreadCPUTime, work)
}

/// Measures what all threads of this process do meanwhile.
pub fn in_this_process<T>(work: impl FnOnce() -> T) -> (T, Took) {
    measure(ClockId::ProcessCPUTime, work)
}

fn measure<T>(clock: ClockId, work: impl FnOnce() -> T) -> (T, Took) {
    let (wall, cpu) = (Instant::now(), clock_time(clock));
    let result = work();
    (result, Took { wall: wall.elapsed(), cpu: clock_time(clock).saturating_sub(cpu) })
}

/// What a clock of the system shows.
pub fn clock_time(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

/// How many bytes more than now this process holds at its peak while `work` runs. Memory that was freed before and
/// kept by the allocator is not counted, so this belongs at the start of a process.
///
/// # Errors
/// If the system does not tell; Linux does.
pub fn peak_growth<T>(work: impl FnOnce() -> T) -> Result<(T, u64)> {
    reset_peak()?;
    let before = status_bytes("VmRSS:")?;
    let result = work();
    Ok((result, status_bytes("VmHWM:")?.saturating_sub(before)))
}

/// Sets the peak of memory (`VmHWM:`) back to what is held now: proc_pid_clear_refs(5).
///
/// # Errors
/// If the system can't; Linux can.
pub fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak of memory")
}

/// A field of this process's status, in bytes, such as `VmRSS:`.
///
/// # Errors
/// If there is none of that name.
pub fn status_bytes(field: &str) -> Result<u64> {
    status_bytes_of("self", field)
}

/// A field of the status of a process, in bytes.
///
/// # Errors
/// If there is none of that name, or no such process.
pub fn status_bytes_of(process: &str, field: &str) -> Result<u64> {
    let file = format!("/proc/{process}/status");
    let status = fs::read_to_string(&file).context("the system does not tell of memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).with_context(|| format!("{file} has no {field}"))
}

/// The value in the middle; the higher one of two. 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The value in the middle of `values`, which are drawn alike, and the 95 % interval of the median that they were drawn from: the
/// innermost pair of them between which it lies with that probability, whatever their distribution is. Of fewer than six there is no
/// such pair, and the interval is no number.
pub fn median_interval(values: &[f64]) -> (f64, [f64; 2]) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The median lies below the value at index `cut` with the probability of at most `cut` heads in as many tosses as there are values.
    let (mut below, mut tosses) = (0.0, 0.5_f64.powi(sorted.len() as i32));
    let mut pair = None;
    for cut in 0..sorted.len() / 2 {
        below += tosses;
        if below > 0.025 {
            break;
        }
        pair = Some([sorted[cut], sorted[sorted.len() - 1 - cut]]);
        tosses *= (sorted.len() - cut) as f64 / (cut + 1) as f64;
    }
    (median(sorted), pair.unwrap_or([f64::NAN; 2]))
}

/// The least of some values; infinite of none.
pub fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

/// The least value that `share` of the values do not exceed; zero of none. Sorts them.
pub fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Two-sided 95 % points of Student's t, for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Mean and 95 % interval of the mean of values that are drawn alike. Of fewer than two, the interval is no number.
pub fn interval(values: &[f64]) -> (f64, [f64; 2]) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let Some(freedom) = values.len().checked_sub(1).filter(|freedom| *freedom > 0) else {
        return (mean, [f64::NAN; 2]);
    };
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / freedom as f64;
    // Beyond the table, that of 30 is a little too wide.
    let half = STUDENT[freedom.min(STUDENT.len()) - 1] * (variance / count).sqrt();
    (mean, [mean - half, mean + half])
}

/// What others take of the cores while a process of this one works.
#[derive(Debug)]
pub struct Others {
    began: Instant,
    /// Processes that live meanwhile and are no others.
    live: Vec<i32>,
    /// Time that the cores of this process were busy, and that of it which this process and those that it has waited for had.
    busy: Option<(Duration, Duration)>,
}

impl Others {
    /// From now on.
    pub fn watch() -> Self {
        Self::than(Vec::new())
    }

    /// From now on; these processes, whose end will not be waited for before, are no others.
    pub fn than(live: Vec<i32>) -> Self {
        Self { began: Instant::now(), busy: busy(&live), live }
    }

    /// Share of the cores that others have had; `None` if the system does not tell. Processes whose end was not waited for
    /// count as others, unless they were named.
    pub fn share(&self) -> Option<f64> {
        let (all, ours) = self.since()?;
        Some(self.of_cores(all.saturating_sub(ours)))
    }

    /// Share of the cores that were busy, with whatever; `None` if the system does not tell.
    pub fn load(&self) -> Option<f64> {
        self.since().map(|(all, _)| self.of_cores(all))
    }

    /// Time that the cores were busy since then, and that of it which was ours.
    fn since(&self) -> Option<(Duration, Duration)> {
        let (all_before, ours_before) = self.busy?;
        let (all, ours) = busy(&self.live)?;
        Some((all.saturating_sub(all_before), ours.saturating_sub(ours_before)))
    }

    fn of_cores(&self, busy: Duration) -> f64 {
        let cores = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        busy.as_secs_f64() / self.began.elapsed().as_secs_f64().max(f64::MIN_POSITIVE) / cores
    }
}

/// A tick of the times in `/proc`: `USER_HZ` is 100 wherever Linux runs today.
const TICK: Duration = Duration::from_millis(10);

/// See [`Others`].
fn busy(live: &[i32]) -> Option<(Duration, Duration)> {
    let allowed = sched_getaffinity(None).ok()?;
    let cores = fs::read_to_string("/proc/stat").ok()?;
    let all: u64 = cores.lines().filter_map(|line| busy_ticks(line, |core| allowed.is_set(core))).sum();
    let own = fs::read_to_string("/proc/self/stat").ok()?;
    let live = live.iter().filter_map(|process| fs::read_to_string(format!("/proc/{process}/stat")).ok());
    // Of one that has ended meanwhile, its parent has the time.
    let ours = ticks_of(&own)? + live.filter_map(|stat| ticks_of(&stat)).sum::<u64>();
    let time = |ticks: u64| TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
    Some((time(all), time(ours)))
}

/// Ticks of a process and of those that it has waited for, of its `/proc/PID/stat`.
fn ticks_of(stat: &str) -> Option<u64> {
    // The name, in brackets, may hold blanks; the times are 12th to 15th after it.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    Some(fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum())
}

/// Ticks that a core was not idle, of a line of `/proc/stat` that is about one that counts.
fn busy_ticks(line: &str, counts: impl Fn(usize) -> bool) -> Option<u64> {
    let (core, times) = line.strip_prefix("cpu")?.split_once(' ')?;
    core.parse().ok().filter(|core| counts(*core))?;
    let times: Vec<u64> = times.split_whitespace().filter_map(|time| time.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    Some(times.iter().take(8).sum::<u64>() - times.iter().skip(3).take(2).sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_mean_of_values_drawn_alike() {
        let (mean, [low, high]) = interval(&[1.0, 2.0, 3.0]);
        // t of two degrees of freedom, times 1 / sqrt(3).
        assert!((mean - 2.0).abs() < 1e-12 && (high - 2.0 - 4.303 / 3_f64.sqrt()).abs() < 1e-9);
        assert!((mean - low - (high - mean)).abs() < 1e-12);
        assert_eq!(interval(&[5.0; 4]), (5.0, [5.0, 5.0]));
        assert!(interval(&[5.0]).1[0].is_nan());
        assert!(interval(&(0..90).map(f64::from).collect::<Vec<_>>()).1[0] > 0.0);
    }

    #[test]
    fn the_interval_of_a_median_is_the_innermost_pair_that_holds_it_in_95_of_100_draws() {
        let of = |count: u32| {
            let values: Vec<f64> = (0..count).rev().map(f64::from).collect();
            median_interval(&values)
        };
        // 1 in 32 of six are all on one side of the median; of nine, 1 + 9 in 256; of thirty, 0.0428 have nine or fewer on one side.
        assert_eq!(of(6), (3.0, [0.0, 5.0]));
        assert_eq!(of(9), (4.0, [1.0, 7.0]));
        assert_eq!(of(30), (15.0, [9.0, 20.0]));
        assert!(of(5).1.iter().all(|end| end.is_nan()) && of(0).1[0].is_nan());
        assert_eq!(median_interval(&[2.0; 7]), (2.0, [2.0, 2.0]));
    }

    #[test]
    fn of_a_core_that_counts_all_but_idle_and_waiting_is_busy() {
        let line = "cpu1 10 2 30 4000 500 6 7 8 9 0";
        assert_eq!(busy_ticks(line, |core| core == 1), Some(63));
        assert_eq!(busy_ticks(line, |core| core == 0), None);
        assert_eq!(busy_ticks("cpu  10 2 30 4000 500 6 7 8 9 0", |_| true), None, "the sum of all");
        assert_eq!(busy_ticks("intr 5", |_| true), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_of_this_process_is_not_counted_as_others() {
        let (all, ours) = busy(&[]).unwrap();
        assert!(all >= ours, "{all:?} {ours:?}");
        assert!(Others::watch().share().is_some());
        // A process that is named counts once more.
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(busy(&[me]).unwrap().1 >= 2 * ours);
        assert_eq!(ticks_of("7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0"), Some(127));
    }

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
