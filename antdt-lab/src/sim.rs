//! The benchmark `sim`: measures the simulator: the time of an event, beside that of a plain event loop in
//! the same run; how large a job may be, and its memory; and whether an event costs the same whatever the
//! number of workers, beside the least that the machine's memory allows (`walk.rs`). It also measures the
//! generator of groups (`groups.rs`).
//!
//! An event may cost six times what it costs to pop and push a heap of the same size, and costs eight to ten times that. Samples of the processor (perf, 1,500 steps
//! of 1,000 workers, release without link-time optimization) say where it goes. What an event does is a mean: a step of one worker has
//! 6.7 events, of which three are its own and the others heartbeats.
//!
//! | part | of the time | over a heap's | what one event does of it |
//! |---|---|---|---|
//! | policy: two forecasts 10 %, batch sizes 5 %, what is believed of speeds 2 % | 24 % | 2.3 | looks at 0.46 workers |
//! | views of the nodes, and the rest of a control tick | 13 % | 1.2 | 0.46 workers |
//! | reports in the detector: six windows each, which lie apart in memory | 21 % | 2.0 | 0.15 reports |
//! | training loops, their groups and the time that they compute | 19 % | 1.8 | 0.9 steps of a loop |
//! | the rest of the head's heartbeats | 6 % | 0.6 | 0.18 heartbeats |
//! | the shard service | 5 % | 0.5 | 0.15 questions |
//! | the simulator's own queue | 6 % | 0.6 | itself |
//! | messages, network, memory, all else | 6 % | 0.6 | |
//!
//! So the simulator is the least of it: the machines of production do nearly all of the work, and do it once. Without control ticks an event costs
//! about five of a heap's (the second row), so that six times is met only if a look at each worker, five times a second, is all but
//! free. A master would gain next to nothing: with 1,000 workers, control ticks take less than two thousandths of its time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use antdt_core::{JobTime, Seed};
use antdt_sim::model::compute::{Constant, Normal, Slow, Straggler, Who};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Hosts, Models, scheduler};
use antdt_sim::{Setup, SimulatedJob, World};
use anyhow::Result;

use crate::meter::{Took, median, on_this_thread, peak_growth};
use crate::walk::Memory;
use crate::{Entry, Rows, Settings};

/// Samples of a worker's batch in an even plan, and of a worker per second: half a second a step.
const BATCH: u32 = 64;
const SPEED: f64 = 128.0;

/// Samples of a shard where jobs are compared: what a job of 16,384 workers and 1,000 steps has by default. A job of more steps
/// has longer shards, asks for fewer, and by that has cheaper events, which is not the workers' doing.
const SHARD_LEN: u64 = 160;

/// A job of so many workers and steps: computing varies by 5 %, one worker takes three times as long, the policy is `nd`.
/// Heartbeats and control ticks are those of a job that does not choose, so that an event costs what a user's does.
fn job(workers: u32, steps: u64, shard_len: Option<u64>) -> Result<(Setup, Models)> {
    let setup = Setup {
        workers,
        global_batch_size: BATCH * workers,
        samples: u64::from(BATCH * workers) * steps,
        shard_len,
        seed: Seed(7),
        ..Setup::default()
    };
    let straggler = Straggler {
        who: Who::Node(antdt_core::NodeId::worker(3)),
        slow: 3.0,
        from: JobTime::ZERO,
        to: JobTime::NEVER,
        cured_by_restart: false,
    };
    let normal = Normal::new(Constant::speed(SPEED)?, 0.05)?;
    let models = Models {
        compute: Box::new(Slow::new(normal, Hosts::default(), [straggler])?),
        network: Box::new(AlphaBeta::default()),
        scheduler: Box::new(scheduler::Constant(Duration::from_secs(2))),
        faults: Box::new(Listed::new([])),
    };
    Ok((setup, models))
}

/// Simulates a job. What it took, and what came of it.
fn simulate(workers: u32, steps: u64, shard_len: Option<u64>) -> Result<(SimulatedJob, Took)> {
    simulated(job(workers, steps, shard_len)?)
}

/// Simulates the same job as [`simulate`] with half as many control ticks. What it takes less is half of what they cost, and all else is the same:
/// without any, the straggler would keep its batch, and steps three times as long would have three times as many heartbeats, which
/// have nothing to say and cost little.
fn simulate_with_half_the_ticks(workers: u32, steps: u64) -> Result<(SimulatedJob, Took)> {
    let (setup, models) = job(workers, steps, None)?;
    simulated((Setup { control_tick: 2 * setup.control_tick, ..setup }, models))
}

fn simulated((setup, models): (Setup, Models)) -> Result<(SimulatedJob, Took)> {
    let workers = setup.workers;
    let policy = antdt_controller::policy::REGISTRY.by_name("nd")?;
    let world = World::new(setup, policy, models)?;
    let (outcome, took) = on_this_thread(|| world.run(JobTime::NEVER));
    let (outcome, _) = outcome.map_err(|(violation, _)| violation)?;
    if let Err(why) = &outcome.result {
        anyhow::bail!("the simulated job of {workers} workers failed: {why}");
    }
    Ok((outcome, took))
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn nanos_per_event(outcome: &SimulatedJob, took: Took) -> f64 {
    took.cpu.as_secs_f64() * 1e9 / outcome.simulated as f64
}

/// What the memory of one worker's step costs, in a job of so many workers: nanoseconds.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn nanos_of_memory(workers: usize) -> f64 {
    let mut memory = Memory::new(workers);
    // The first step gets the memory from the system.
    memory.walk(1);
    let steps = WALKED / workers;
    let (_, took) = on_this_thread(|| std::hint::black_box(memory.walk(steps)));
    took.cpu.as_secs_f64() * 1e9 / (workers * steps) as f64
}

/// Events of a worker that wait at a time: its call and its heartbeat.
const PENDING: usize = 2;

/// An entry of a plain event loop: when it is due, its number among those due at one time, and what is due, in the 24 bytes that
/// the simulator needs for that.
type Plain = Reverse<(u64, u64, [u64; 3])>;

/// The plainest event loop there is: pops the earliest of so many entries of a binary heap and pushes a later one. Nanoseconds.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn nanos_of_heap(entries: usize) -> f64 {
    const EVENTS: u64 = 1 << 20;
    let mut rng = Seed(7).rng();
    let mut heap: BinaryHeap<Plain> =
        (0..entries as u64).map(|number| Reverse((rng.below(1 << 20), number, [number; 3]))).collect();
    let (_, took) = on_this_thread(|| {
        for number in 0..EVENTS {
            let Some(Reverse((at, _, what))) = heap.pop() else { break };
            heap.push(Reverse((at + 1 + rng.below(1 << 20), entries as u64 + number, what)));
        }
        std::hint::black_box(heap.len())
    });
    took.cpu.as_secs_f64() * 1e9 / EVENTS as f64
}

/// Rounds in which what is compared takes turns, so that whatever else runs on the machine hits both alike.
const ROUNDS: usize = 3;

/// The median of the ratios of all rounds, with the figures of that round.
fn median_round(mut rounds: Vec<[f64; 2]>) -> [f64; 2] {
    rounds.sort_by(|[a, by], [b, with]| (a / by).total_cmp(&(b / with)));
    rounds[(rounds.len() - 1) / 2]
}

/// Steps of single workers that [`nanos_of_memory`] takes: about a second's worth with many of them.
const WALKED: usize = 1 << 21;

/// Runs the benchmark `sim` and adds its rows to `rows`.
///
/// # Errors
/// If a job cannot be simulated.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let shrink = if settings.quick { 20 } else { 1 };
    // The largest first, for its memory is to be seen.
    let large_steps = (1000 / shrink).max(40);
    let (large, grown) = peak_growth(|| simulate(16_384, large_steps, Some(SHARD_LEN)))?;
    let (outcome, took) = large?;
    let name = format!("16,384 workers x {} steps", grouped(large_steps));
    rows.push(shown(&name, took.wall, &outcome));
    rows.push(Entry::shown(format!("{name}: memory"), grown as f64 / (1 << 30) as f64, "GiB").at_most(4.0));
    let at_large = nanos_per_event(&outcome, took);
    let events_per_step = outcome.simulated as f64 / (16_384 * outcome.steps) as f64;
    let steps = 10_000 / shrink;
    let (mut rounds, mut without_ticks) = (Vec::new(), Vec::new());
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let before = nanos_of_heap(1000 * PENDING);
        let (outcome, took) = simulate(1000, steps, None)?;
        let plain = f64::midpoint(before, nanos_of_heap(1000 * PENDING));
        let event = nanos_per_event(&outcome, took);
        let half =
            simulate_with_half_the_ticks(1000, steps).map(|(half, took)| nanos_per_event(&half, took))?;
        without_ticks.push([(2.0 * half - event).max(0.0), plain]);
        if round == 0 {
            rows.push(shown(&format!("1,000 workers x {} steps", grouped(steps)), took.wall, &outcome));
        }
        rates.push(outcome.simulated as f64 / took.wall.as_secs_f64() / 1e6);
        rounds.push([event, plain]);
    }
    rows.push(Entry::shown("events", median(rates), "M/s"));
    let [event, plain] = median_round(rounds);
    let over = Entry::shown("1,000 workers, an event over a heap's", event / plain, "x").at_most(6.0);
    rows.push(over.beside(format!("{event:.0} ns over {plain:.0} ns of popping and pushing a binary heap")));
    let [event, plain] = median_round(without_ticks);
    let beside = format!(
        "{event:.0} ns; the rest are looks at every worker and decisions of the policy, five a second"
    );
    rows.push(Entry::shown("of which without control ticks", event / plain, "x").beside(beside));
    // As many events of few workers, for the ratio.
    let steps = large_steps * 20 / shrink;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        // The first one was measured with its memory.
        let at_large = match round {
            0 => at_large,
            _ => simulate(16_384, large_steps, Some(SHARD_LEN))
                .map(|(large, took)| nanos_per_event(&large, took))?,
        };
        let (few, took) = simulate(100, steps, Some(SHARD_LEN))?;
        rounds.push([at_large, nanos_per_event(&few, took)]);
    }
    let [at_large, at_small] = median_round(rounds);
    let of = |workers: &str, steps| format!("{workers} workers x {} steps: an event", grouped(steps));
    rows.push(Entry::shown(of("100", steps), at_small, "ns"));
    rows.push(Entry::shown(of("16,384", large_steps), at_large, "ns"));
    let memory = (nanos_of_memory(16_384) - nanos_of_memory(100)).max(0.0) / events_per_step;
    let (ratio, least) = (at_large / at_small, (at_small + memory) / at_small);
    let beside =
        format!("the least that memory allows: {least:.2}; reached {:.0} % of it", 100.0 * least / ratio);
    rows.push(Entry::shown("16,384 workers over 100, an event", ratio, "x").at_most(1.6).beside(beside));
    rows.push(Entry::shown("of which memory alone", memory, "ns"));
    crate::groups::requests(if settings.quick { 8 } else { 1 }, rows)?;
    Ok(())
}

/// With a comma for every three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let lead = digits.len() % 3;
    let mut text = digits[..lead].to_owned();
    for group in digits.as_bytes()[lead..].chunks(3) {
        if !text.is_empty() {
            text.push(',');
        }
        text.extend(group.iter().copied().map(char::from));
    }
    text
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn shown(name: &str, wall: Duration, outcome: &SimulatedJob) -> Entry {
    Entry::shown(name, wall.as_secs_f64(), "s").beside(format!(
        "{} steps, {} events, {:.0} s simulated, {} actions",
        outcome.steps,
        outcome.simulated,
        outcome.completed.as_secs_f64(),
        outcome.actions.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_disturbed_is_not_the_figure() {
        assert_eq!(median_round(vec![[300.0, 50.0], [900.0, 50.0], [310.0, 50.0]]), [310.0, 50.0]);
        assert_eq!(median_round(vec![[600.0, 100.0], [300.0, 60.0]]), [300.0, 60.0]);
    }

    #[test]
    fn a_job_is_named_by_its_settings_and_runs_with_a_users_defaults() {
        assert_eq!(
            [7, 50, 1_000, 10_000, 1_234_567].map(grouped),
            ["7", "50", "1,000", "10,000", "1,234,567"]
        );
        let (setup, _) = job(1000, 50, None).unwrap();
        let default = Setup::default();
        assert_eq!(
            (setup.heartbeat, setup.control_tick, setup.silence_limit, setup.collective_timeout),
            (default.heartbeat, default.control_tick, default.silence_limit, default.collective_timeout)
        );
        assert_eq!(setup.samples / u64::from(setup.global_batch_size), 50);
    }
}
