//! Mixes of devices that a dedicated cluster has: what each policy makes of them, against the best that any batch sizes and
//! micro-batches can be.
//!
//! The time of a step is that of the settled job, the difference of two jobs of unlike length in the simulator, so that it holds the
//! all-reduce and no profile; the time of a whole job stands beside it. The best is found by trying every number of samples in every
//! number of micro-batches on each kind of device, with the times of the table itself and not with a line through them.

use std::io::Read;
use std::time::Instant;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::apportion::{Share, apportion};
use antdt_controller::policy::REGISTRY;
use antdt_core::{JobTime, NodeId};
use antdt_sim::model::compute::{DeviceTable, DeviceTimes};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Hosts, Models, scheduler};
use antdt_sim::{Setup, World};
use anyhow::{Context, Result, anyhow};

use super::START;
use super::spread::spread;
use crate::entry::State;
use crate::{Entry, Rows};

/// Most micro-batches of a batch: the default of `dd`.
const COUNTS_MAX: u32 = 16;

/// What the step under `dd` may take, of the best.
const OF_THE_BEST: f64 = 1.03;

/// Samples of a worker's batch in an even plan, steps of the shorter of the two jobs, and steps that the longer one has more: the end
/// of a job is known to a heartbeat, 0.5 s.
const SHARE: u32 = 64;
const STEPS: u32 = 150;
const SETTLED: u32 = 3_000;

/// Devices of a job, in the order of the workers.
struct Mix {
    name: String,
    times: DeviceTimes,
    devices: Vec<String>,
    /// Samples of a step.
    global: u32,
    /// Whether `dd` has to come close to the best: where a larger batch takes less time than a smaller one, no line does.
    is_judged: bool,
}

/// Times of a micro-batch of two devices, in milliseconds: 20 + 2.5 a sample, of which 128 fit, and 25 + 6, of which 96 fit.
fn affine() -> Result<DeviceTimes> {
    let row = |device: &str, samples: u32, ms: f64| (device.to_owned(), samples, 1000.0 / ms);
    Ok(DeviceTimes::new([
        row("fast", 1, 22.5),
        row("fast", 128, 340.0),
        row("slow", 1, 31.0),
        row("slow", 96, 601.0),
    ])?)
}

/// So many workers with each of the devices.
fn devices(of: &[(&str, usize)]) -> Vec<String> {
    of.iter().flat_map(|(device, count)| std::iter::repeat_n((*device).to_owned(), *count)).collect()
}

/// Mixes of the devices of [`affine`].
fn made_up() -> Result<Vec<Mix>> {
    let mix = |share: u32| {
        let (name, devices) =
            (format!("4 fast, 4 slow, {share} a worker"), devices(&[("fast", 4), ("slow", 4)]));
        Ok(Mix { name, times: affine()?, devices, global: 8 * share, is_judged: true })
    };
    // Without micro-batches more than 96 samples do not fit the slow ones.
    [SHARE, 96].into_iter().map(mix).collect()
}

/// Mixes of devices whose times were measured, as Gavel's; `None` without that data set.
fn measured() -> Result<Option<Vec<Mix>>> {
    let Some(folder) = std::env::var_os("ANTDT_DATA") else { return Ok(None) };
    let mut mixes = Vec::new();
    let file = std::path::PathBuf::from(folder).join("gavel_throughputs/simulation_throughputs.json.gz");
    let mut text = String::new();
    antdt_rt::open_trace(&file)
        .and_then(|mut it| it.read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", file.display()))?;
    for model in ["ResNet-50", "ResNet-18", "Transformer", "LM"] {
        for (what, of) in [
            ("4 V100, 4 P100", &[("v100", 4), ("p100", 4)][..]),
            ("2 V100, 2 P100, 4 K80", &[("v100", 2), ("p100", 2), ("k80", 4)][..]),
        ] {
            let times = antdt_sim::replay::read_gavel(&text, model).map_err(|error| anyhow!("{error}"))?;
            let name = format!("{model} on {what}");
            // 16 samples take a K80 longer than 32 there.
            let is_judged = model != "ResNet-18";
            mixes.push(Mix { name, times, devices: devices(of), global: 8 * SHARE, is_judged });
        }
    }
    Ok(Some(mixes))
}

impl Mix {
    /// Seconds until the commit of the last sample, from the start of the workers.
    fn took(&self, policy: &str, steps: u32) -> Result<f64> {
        let network =
            AlphaBeta::new(Hosts::default(), CostModel::LOOPBACK, CostModel::LOOPBACK, Choice::Auto)?;
        let models = Models {
            compute: Box::new(DeviceTable::new(&self.times, &self.devices)?.bounded()),
            network: Box::new(network),
            scheduler: Box::new(scheduler::Constant(START)),
            faults: Box::new(Listed::new([])),
        };
        let workers = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
        let samples = u64::from(self.global) * u64::from(steps);
        let setup = Setup { workers, global_batch_size: self.global, samples, ..Setup::default() };
        let policy = REGISTRY.by_name(policy).map_err(|error| anyhow!("{error}"))?;
        let (job, _) =
            World::new(setup, policy, models)?.run(JobTime::NEVER).map_err(|(violation, _)| violation)?;
        job.result.map_err(|why| anyhow!("the simulated job failed: {why}"))?;
        Ok(job.completed.since(JobTime::ZERO + START).as_secs_f64())
    }

    /// Seconds of a step once the policy has settled, and of the whole of the shorter job.
    fn step(&self, policy: &str) -> Result<(f64, f64)> {
        let (short, long) = (self.took(policy, STEPS)?, self.took(policy, STEPS + SETTLED)?);
        Ok(((long - short) / f64::from(SETTLED), short))
    }

    /// Seconds of even batches on the slowest device.
    fn uniform(&self) -> f64 {
        let samples = self.global / u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
        let of = |device: &String| self.times.seconds(device, samples.into()).unwrap_or(0.0);
        self.devices.iter().map(of).fold(0.0, f64::max)
    }

    /// Seconds that a device takes for each number of samples at best; infinite for what it cannot hold.
    fn batches(&self, device: &str) -> Vec<f64> {
        let seconds = |samples: u32| self.times.seconds(device, samples.into()).unwrap_or(f64::INFINITY);
        let most = self.times.largest(device).unwrap_or(0);
        let pieces = |samples: u32, count: u32| {
            let (floor, more) = (samples / count, samples % count);
            let fits = floor >= 1 && samples.div_ceil(count) <= most;
            let time = f64::from(more) * seconds(floor + 1) + f64::from(count - more) * seconds(floor);
            if fits { time } else { f64::INFINITY }
        };
        let best =
            |samples| (1..=COUNTS_MAX).map(|count| pieces(samples, count)).fold(f64::INFINITY, f64::min);
        (0..=self.global).map(|samples| if samples == 0 { 0.0 } else { best(samples) }).collect()
    }

    /// The least time in which all devices together can be done with the global batch, communication left out: in less, each
    /// doing the most that it can is not enough.
    fn best(&self) -> f64 {
        let batches: Vec<Vec<f64>> = self.devices.iter().map(|device| self.batches(device)).collect();
        let most = |time: f64| -> u64 {
            let of = |batches: &Vec<f64>| batches.iter().rposition(|it| *it <= time).unwrap_or(0) as u64;
            batches.iter().map(of).sum()
        };
        let mut times: Vec<f64> = batches.iter().flatten().copied().filter(|time| time.is_finite()).collect();
        times.sort_by(f64::total_cmp);
        let at = times.partition_point(|time| most(*time) < u64::from(self.global));
        times.get(at).copied().unwrap_or(f64::INFINITY)
    }
}

/// Runs all mixes, then the solver on a large one.
///
/// # Errors
/// If a job cannot be run.
pub(super) fn run(rows: &mut Rows) -> Result<()> {
    let measured = measured()?;
    if measured.is_none() {
        let why = "set ANTDT_DATA to a folder that has gavel_throughputs/simulation_throughputs.json.gz";
        rows.push(Entry::without("devices, measured times of V100, P100 and K80", State::NotCompared, why));
    }
    let mixes: Vec<Mix> = made_up()?.into_iter().chain(measured.into_iter().flatten()).collect();
    let policies = ["none", "lb-bsp", "dd"];
    let jobs: Vec<(&Mix, &str)> = mixes.iter().flat_map(|mix| policies.map(|policy| (mix, policy))).collect();
    let steps = spread(&jobs, |(mix, policy)| mix.step(policy))?;
    for (mix, steps) in mixes.iter().zip(steps.chunks_exact(policies.len())) {
        let best = mix.best();
        let name = &mix.name;
        let &[(none, none_job), (lb, lb_job), (dd, dd_job)] = steps else { continue };
        // The best has no communication, and every policy the same.
        let best = best + (none - mix.uniform()).max(0.0);
        let row = Entry::shown(format!("devices, {name}: step under dd over the best"), dd / best, "x");
        let row = if mix.is_judged { row.at_most(OF_THE_BEST) } else { row };
        rows.push(row.beside(format!(
            "best {:.1} ms, dd {:.1} ms, lb-bsp {:.1} ms, none {:.1} ms",
            best * 1e3,
            dd * 1e3,
            lb * 1e3,
            none * 1e3
        )));
        let row = Entry::shown(
            format!("devices, {name}: time of none over dd, {STEPS} steps"),
            none_job / dd_job,
            "x",
        );
        rows.push(row.beside(format!(
            "none {none_job:.1} s, lb-bsp {lb_job:.1} s, dd {dd_job:.1} s, its profile included"
        )));
    }
    rows.push(solver());
    Ok(())
}

/// Devices of the large problem, and the most that its solution may take.
const DEVICES: u32 = 1000;
const SOLVER_MS: f64 = 5.0;

/// The median time of a solution for many devices of four kinds.
fn solver() -> Entry {
    let shares: Vec<Share> = (0..DEVICES)
        .map(|index| {
            let (fixed, per_sample, most) =
                [(20, 2500, 128), (25, 6000, 96), (44, 2800, 128), (80, 22_000, 64)][index as usize % 4];
            Share {
                fixed: std::time::Duration::from_millis(fixed),
                micro_batches_max: COUNTS_MAX,
                ..Share::new(NodeId::worker(index), std::time::Duration::from_micros(per_sample), 1, most)
            }
        })
        .collect();
    let mut times: Vec<f64> = (0..21_u32)
        .map(|round| {
            let began = Instant::now();
            let solution = apportion(150_000 + 997 * round, 1, &shares);
            let took = began.elapsed().as_secs_f64() * 1e3;
            assert!(
                solution.is_ok_and(|it| it.batch_sizes.len() == DEVICES as usize),
                "the problem has a solution"
            );
            took
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let name = format!("batches of {DEVICES} devices of 4 kinds, solved exactly");
    Entry::shown(name, times[times.len() / 2], "ms").at_most(SOLVER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_table_is_that_of_its_closed_form_and_dd_comes_close() {
        for mut mix in made_up().unwrap() {
            let closed = |device: &str| {
                let (fixed, per_sample, most) =
                    if device == "fast" { (20, 2500, 128) } else { (25, 6000, 96) };
                Share {
                    fixed: std::time::Duration::from_millis(fixed),
                    micro_batches_max: COUNTS_MAX,
                    ..Share::new(NodeId::worker(0), std::time::Duration::from_micros(per_sample), 1, most)
                }
            };
            let shares: Vec<Share> = (0..)
                .zip(&mix.devices)
                .map(|(index, device)| Share { id: NodeId::worker(index), ..closed(device) })
                .collect();
            let solved = apportion(mix.global, 1, &shares).unwrap().step_time.as_secs_f64();
            assert!((mix.best() / solved - 1.0).abs() < 0.005, "{} and {solved}", mix.best());
            let (dd, _) = mix.step("dd").unwrap();
            let (none, _) = mix.step("none").unwrap();
            assert!(dd <= solved * OF_THE_BEST && none > dd * 1.4, "{dd}, {none} and {solved}");
            // What does not fit at once is computed in micro-batches, from the start.
            mix.global *= 8;
            assert!(mix.took("dd", 20).is_ok());
        }
    }
}
