//! How well the monitor finds stragglers: seeded traces whose labels are fixed by hindsight, before a detector runs.
//!
//! The workers of a synchronous job report each step to a [`StragglerDetector`]. A worker **is** slow from the step in which its true slowness
//! rises to `SLOW` to the one in which it falls below, if that lasts `LASTS` short windows; what is shorter or less is neither to
//! be found nor a mistake. A verdict is right if the worker was slow in the true sense in a short window before it, and wrong if
//! it was within `LIKE` of healthy through all of it.

use std::ops::Range;
use std::time::Duration;

use antdt_core::{
    BatchReport, DetRng, DeviceClass, Holder, Incarnation, Iteration, JobTime, Machine, NodeId, NodeInfo,
    Phase, PlanVersion, Seed,
};
use antdt_monitor::{MonitorConfig, MonitorEffect, StragglerDetector};
use anyhow::Result;

use super::spread::spread;
use crate::{Entry, Rows};

/// Slowness from which on a worker is a straggler, as the pace rule has it by default, with a margin: at the limit itself noise decides.
const SLOW: f64 = 1.5;
/// Slowness up to which a worker is like its peers.
const LIKE: f64 = 1.1;
/// Short windows that a slowdown must last to count.
const LASTS: u32 = 3;

/// Targets.
const PRECISION: f64 = 0.99;
const RECALL: f64 = 0.95;
const DELAY_WINDOWS: f64 = 3.0;

const WORKERS: u32 = 8;
const STEPS: u32 = 600;
const SAMPLES: u64 = 64;
/// Time of a batch of a healthy worker.
const BATCH: Duration = Duration::from_millis(100);

/// What was found in one trace or in several.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// Slowdowns that are to be found, and those that were.
    to_find: u32,
    found: u32,
    /// Verdicts against workers that were like their peers.
    wrong: u32,
    /// Short windows from the beginning of each slowdown that was found to its verdict.
    delays: Vec<f64>,
}

impl Found {
    pub(super) fn add(&mut self, other: Self) {
        self.to_find += other.to_find;
        self.found += other.found;
        self.wrong += other.wrong;
        self.delays.extend(other.delays);
    }

    /// Takes note of one that is to be found, and of the windows until it was, if it was.
    pub(super) fn label(&mut self, delay: Option<f64>) {
        self.to_find += 1;
        self.found += u32::from(delay.is_some());
        self.delays.extend(delay);
    }

    /// Takes note of verdicts against what was like its peers.
    pub(super) fn accuse(&mut self, verdicts: usize) {
        self.wrong += u32::try_from(verdicts).unwrap_or(u32::MAX);
    }

    /// Number that are to be found.
    pub(super) const fn to_find(&self) -> u32 {
        self.to_find
    }

    /// Whether no worker was slow for long enough to be found.
    pub(super) const fn is_empty(&self) -> bool {
        self.to_find == 0
    }

    /// Verdicts against workers that were like their peers.
    pub(super) const fn wrong(&self) -> u32 {
        self.wrong
    }

    fn precision(&self) -> f64 {
        share(self.found, self.found + self.wrong)
    }

    fn recall(&self) -> f64 {
        share(self.found, self.to_find)
    }

    fn delay(&self) -> f64 {
        let mut delays = self.delays.clone();
        delays.sort_by(f64::total_cmp);
        delays.get(delays.len() * 95 / 100).copied().unwrap_or(0.0)
    }
}

/// Of nothing all is right.
fn share(of: u32, all: u32) -> f64 {
    if all == 0 { 1.0 } else { f64::from(of) / f64::from(all) }
}

/// The true slowness of each worker at each step.
pub(super) type Truth = Vec<Vec<f64>>;

/// One to three workers are slow for a while, 1.6 to 6 times.
fn episodes(rng: &mut DetRng) -> Truth {
    let mut truth = vec![vec![1.0; STEPS as usize]; WORKERS as usize];
    for _ in 0..=rng.below(3) {
        let worker = rng.below(u64::from(WORKERS)) as usize;
        let from = rng.below(u64::from(STEPS * 2 / 3)) as usize;
        let lasts = 80 + rng.below(240) as usize;
        let slow = 1.6 + 4.4 * rng.unit();
        truth[worker].iter_mut().skip(from).take(lasts).for_each(|it| *it = slow);
    }
    truth
}

/// No worker is slow.
fn quiet(_: &mut DetRng) -> Truth {
    vec![vec![1.0; STEPS as usize]; WORKERS as usize]
}

/// A slowdown that is to be found.
struct Episode {
    worker: usize,
    /// Its steps, the last one exclusive.
    from: usize,
    to: usize,
    /// Step of the first verdict against it.
    found: Option<usize>,
}

/// The slowdowns that last long enough to be found, with a short window of so many batches.
fn labels(truth: &Truth, window: usize) -> Vec<Episode> {
    let mut episodes = Vec::new();
    for (worker, slowness) in truth.iter().enumerate() {
        let mut from = None;
        for step in 0..=slowness.len() {
            let is_slow = slowness.get(step).is_some_and(|it| *it >= SLOW);
            match (is_slow, from) {
                (true, None) => from = Some(step),
                (false, Some(began)) => {
                    // The last one may go on where the trace ends, and counts if it was long enough until then.
                    if step - began >= window * LASTS as usize {
                        episodes.push(Episode { worker, from: began, to: step, found: None });
                    }
                    from = None;
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
    }
    episodes
}

fn report(holder: Holder, step: u64, compute: Duration, barrier_wait: Duration) -> BatchReport {
    BatchReport {
        holder,
        sequence: step + 1,
        iteration: Iteration(step),
        plan: PlanVersion(1),
        phase: Phase::Train,
        samples: SAMPLES,
        micro_batches: 1,
        data_wait: Duration::ZERO,
        compute,
        communicate: Duration::ZERO,
        barrier_wait,
    }
}

/// Puts a trace to a detector.
pub(super) fn detect(truth: &Truth, noise: f64, rng: &mut DetRng) -> Result<Found> {
    let config = MonitorConfig::default();
    let window = config.window.short_batches as usize;
    let mut detector = StragglerDetector::new(config)?;
    let holders: Vec<Holder> =
        (0..).map(NodeId::worker).map(|node| Holder::new(node, Incarnation(0))).take(truth.len()).collect();
    for holder in &holders {
        detector.node_joined(
            JobTime::ZERO,
            &NodeInfo {
                holder: *holder,
                host: format!("host-{}", holder.node.index),
                device: DeviceClass::default(),
                memory_bytes: None,
                batch_size_min: 1,
                batch_size_max: 1 << 20,
            },
        );
    }
    // The labels are fixed first.
    let mut episodes = labels(truth, window);
    let (mut now, mut wrong) = (JobTime::ZERO, 0);
    let steps = truth.iter().map(Vec::len).min().unwrap_or(0);
    for step in 0..steps {
        let times: Vec<Duration> = truth
            .iter()
            .map(|slowness| BATCH.mul_f64(slowness[step] * (noise * rng.normal()).exp()))
            .collect();
        let wall = times.iter().max().copied().unwrap_or_default();
        now = now + wall;
        for (holder, compute) in holders.iter().zip(&times) {
            detector.report(now, &report(*holder, step as u64, *compute, wall - *compute));
        }
        while let Some(effect) = detector.poll_effect() {
            let MonitorEffect::PaceChanged { holder, from, to, .. } = effect else { continue };
            if !to.is_straggler() || from.is_straggler() {
                continue;
            }
            let worker = holder.node.index as usize;
            let is_meant =
                |it: &&mut Episode| it.worker == worker && it.from <= step && step < it.to + window;
            if let Some(episode) = episodes.iter_mut().find(is_meant) {
                episode.found.get_or_insert(step);
            } else {
                let before = &truth[worker][(step + 1).saturating_sub(2 * window)..=step];
                wrong += u32::from(before.iter().all(|slowness| *slowness <= LIKE));
            }
        }
    }
    let found: Vec<(usize, usize)> =
        episodes.iter().filter_map(|episode| Some((episode.from, episode.found?))).collect();
    #[allow(clippy::cast_precision_loss, reason = "a number of steps")]
    let delays = found.iter().map(|(from, found)| (found - from + 1) as f64 / window as f64).collect();
    let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
    Ok(Found { to_find: count(episodes.len()), found: count(found.len()), wrong, delays })
}

/// Puts traces with stragglers and without to the detector, two of each seed: what was found in those with, and in those without.
fn seeded(seeds: Range<u64>) -> Result<(Found, Found)> {
    let mut slow = Found::default();
    let mut quiet_found = Found::default();
    let seeds: Vec<u64> = seeds.collect();
    let found = spread(&seeds, |seed| {
        let rng = &mut Seed(*seed).derive("detection").rng();
        let noise = [0.05, 0.1, 0.2][(seed % 3) as usize];
        let truth = episodes(rng);
        Ok((detect(&truth, noise, rng)?, detect(&quiet(rng), noise, rng)?))
    })?;
    for (with, without) in found {
        slow.add(with);
        quiet_found.add(without);
    }
    Ok((slow, quiet_found))
}

/// Puts so many seeded traces to the detector, and the recorded series.
///
/// # Errors
/// If the detector's settings make no sense.
pub(super) fn run(seeds: u64, rows: &mut Rows) -> Result<()> {
    let (slow, quiet_found) = seeded(0..seeds)?;
    let about = format!(
        "{seeds} traces of {WORKERS} workers and {STEPS} steps, noise 5, 10 and 20 %; {} slowdowns of {SLOW}x and more",
        slow.to_find
    );
    rows.extend(told("stragglers of seeded traces", &slow, &about));
    let row = Entry::shown(
        "detection, traces without a straggler: workers called slow",
        f64::from(quiet_found.wrong),
        "",
    );
    rows.push(row.at_most(0.0).beside(format!("{seeds} traces, noise 5, 10 and 20 %")));
    Ok(())
}

/// The rows of what was found.
pub(super) fn told(name: &str, found: &Found, about: &str) -> [Entry; 3] {
    [
        Entry::shown(format!("detection, {name}: precision"), found.precision(), "")
            .at_least(PRECISION)
            .beside(format!(
                "{about}; {} found, {} verdicts against healthy workers",
                found.found, found.wrong
            )),
        Entry::shown(format!("detection, {name}: recall"), found.recall(), "")
            .at_least(RECALL)
            .beside(about.to_owned()),
        Entry::shown(format!("detection, {name}: delay in windows, 95 %"), found.delay(), "")
            .at_most(DELAY_WINDOWS)
            .beside(about.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_worker_is_found_once_and_a_healthy_one_is_none() {
        let rng = &mut Seed(1).rng();
        let mut truth = quiet(rng);
        truth[3].iter_mut().skip(200).take(200).for_each(|it| *it = 4.0);
        let found = detect(&truth, 0.05, rng).unwrap();
        assert_eq!((found.to_find, found.found, found.wrong), (1, 1, 0), "{found:?}");
        assert!(found.delay() <= DELAY_WINDOWS && found.delay() > 0.0, "{found:?}");
        let found = detect(&quiet(rng), 0.05, rng).unwrap();
        assert_eq!((found.to_find, found.found, found.wrong), (0, 0, 0), "{found:?}");
    }

    /// Seeds that the bench has none of.
    #[test]
    fn other_seeds_than_those_of_the_bench_meet_its_targets() {
        const OTHERS: u64 = 1 << 32;
        let traces = std::env::var("DETECTION_TRACES").map_or(30, |text| text.parse().unwrap());
        let (slow, quiet) = seeded(OTHERS..OTHERS + traces).unwrap();
        println!(
            "{traces} traces: precision {}, recall {}, delay {}, {} to find; {} wrong without a straggler",
            slow.precision(),
            slow.recall(),
            slow.delay(),
            slow.to_find,
            quiet.wrong
        );
        assert!(slow.precision() >= PRECISION && slow.recall() >= RECALL, "{slow:?}");
        assert!(slow.delay() <= DELAY_WINDOWS && quiet.wrong == 0, "{slow:?}, {quiet:?}");
    }

    #[test]
    fn missed_and_wrong_verdicts_count_against_the_detector() {
        let found = Found { to_find: 10, found: 9, wrong: 1, delays: vec![1.0; 9] };
        assert!((found.recall() - 0.9).abs() < 1e-9 && (found.precision() - 0.9).abs() < 1e-9);
        let [precision, recall, delay] = told("x", &found, "");
        use crate::entry::State;
        assert_eq!([precision.state, recall.state, delay.state], [State::Failed, State::Failed, State::Ok]);
    }
}
