//! What the workers of a simulated job meet, made from a seed.

use std::time::Duration;

use antdt_core::{DetRng, JobTime, NodeId, Seed};
use antdt_sim::model::compute::{Straggler, Who};

use super::{SPEED, WORKERS};

/// A kind of stragglers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace {
    pub(super) name: &'static str,
    /// Standard deviation of the logarithm of a batch's time.
    pub(super) noise: f64,
    /// Where the model is: the sync mode of the job, and its servers.
    pub(super) sync: &'static str,
    pub(super) servers: u32,
    /// How many times slower the network card of a worker's host is, in the middle third of the job.
    pub(super) slow_link: f64,
    make: fn(&mut DetRng, f64) -> Vec<Straggler>,
}

/// A job that all-reduces, whose workers meet these stragglers.
const fn kind(name: &'static str, noise: f64, make: fn(&mut DetRng, f64) -> Vec<Straggler>) -> Trace {
    Trace { name, noise, sync: "allreduce", servers: 0, slow_link: 1.0, make }
}

/// All kinds.
pub(super) const ALL: [Trace; 10] = [
    kind("steady", 0.05, |_, _| vec![slow(1, 4.0, 0.0, None)]),
    kind("transient", 0.05, episodes),
    kind("persistent", 0.05, |_, length| vec![curable(slow(3, 4.0, 0.2 * length, None))]),
    kind("mixed", 0.1, mixed),
    kind("whole host", 0.05, |_, length| {
        // The two workers of one host of four, as by another job that takes its cores.
        [2, 3].map(|worker| slow(worker, 3.0, 0.2 * length, Some(length))).into()
    }),
    kind("bursts", 0.05, bursts),
    kind("noise", 0.3, |_, _| Vec::new()),
    Trace { slow_link: 8.0, ..kind("slow link", 0.05, |_, _| Vec::new()) },
    // Steps that the master commits, so that backup workers are to be had: the same bursts, and a server that is slow.
    Trace { sync: "ps-bsp", servers: 2, ..kind("bursts with servers", 0.05, bursts) },
    Trace {
        sync: "ps-bsp",
        servers: 2,
        ..kind("server", 0.05, |_, length| vec![slow_server(0, 8.0, 0.2 * length)])
    },
];

impl Trace {
    /// Whether `antdt run` can make real processes meet it: slow workers, in an all-reduce.
    pub(super) fn can_be_emulated(&self) -> bool {
        let has_any = !self.stragglers(Seed(1), 100.0).is_empty();
        self.sync == "allreduce" && self.slow_link <= 1.0 && has_any
    }

    /// The stragglers of a job that would take `length` seconds without any.
    pub(super) fn stragglers(&self, seed: Seed, length: f64) -> Vec<Straggler> {
        (self.make)(&mut seed.derive(self.name).rng(), length)
    }
}

/// Stragglers are made for so many times the length of a job without any: no job takes longer.
const REACH: f64 = 8.0;

fn at(seconds: f64) -> JobTime {
    JobTime::from_duration(Duration::from_secs_f64(seconds))
}

fn slow(worker: u32, slow: f64, from: f64, to: Option<f64>) -> Straggler {
    let to = to.map_or(JobTime::NEVER, at);
    Straggler { who: Who::Node(NodeId::worker(worker)), slow, from: at(from), to, cured_by_restart: false }
}

fn slow_server(server: u32, slow: f64, from: f64) -> Straggler {
    let who = Who::Node(NodeId::server(server));
    Straggler { who, slow, from: at(from), to: JobTime::NEVER, cured_by_restart: false }
}

fn curable(straggler: Straggler) -> Straggler {
    Straggler { cured_by_restart: true, ..straggler }
}

fn between(rng: &mut DetRng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.unit()
}

fn any_worker(rng: &mut DetRng) -> u32 {
    u32::try_from(rng.below(u64::from(WORKERS))).unwrap_or_default()
}

/// One worker after another is three to five times slower for 20 to 60 s.
fn episodes(rng: &mut DetRng, length: f64) -> Vec<Straggler> {
    let (mut stragglers, mut from) = (Vec::new(), between(rng, 5.0, 15.0));
    while from < REACH * length {
        let to = from + between(rng, 20.0, 60.0);
        stragglers.push(slow(any_worker(rng), between(rng, 3.0, 5.0), from, Some(to)));
        from = to + between(rng, 10.0, 30.0);
    }
    stragglers
}

/// One of many workers is four times slower for 0.3 to 1.5 s, which is over before a plan can answer it.
fn bursts(rng: &mut DetRng, length: f64) -> Vec<Straggler> {
    let (mut stragglers, mut from) = (Vec::new(), between(rng, 2.0, 8.0));
    while from < REACH * length {
        let to = from + between(rng, 0.3, 1.5);
        stragglers.push(slow(any_worker(rng), 4.0, from, Some(to)));
        from = to + between(rng, 5.0, 10.0);
    }
    stragglers
}

/// One worker that is always half as fast, others that are slow for a while, and bursts.
fn mixed(rng: &mut DetRng, length: f64) -> Vec<Straggler> {
    let mut stragglers = vec![slow(1, 2.0, 0.0, None)];
    stragglers.extend(episodes(rng, length));
    stragglers.extend(bursts(rng, length));
    stragglers
}

/// Seconds that a job of so many samples takes at the very least: if all workers compute all the time, each as fast as it is at
/// that moment. A slowness that a restart would cure slows no other worker.
pub(super) fn least_s(stragglers: &[Straggler], workers: u32, noise: f64, samples: f64) -> f64 {
    const SLICE: f64 = 0.01;
    // The noise has a mean of 1: in the long run no worker is faster. The margin is for a finite number of batches.
    let speed = SPEED * (noise * noise).exp();
    let (mut done, mut now) = (0.0, 0.0);
    let of = |worker: u32| {
        let hits = |it: &&Straggler| it.who == Who::Node(NodeId::worker(worker)) && !it.cured_by_restart;
        let mut own: Vec<Straggler> = stragglers.iter().filter(hits).copied().collect();
        own.sort_by_key(|it| it.from);
        own
    };
    let stragglers: Vec<Vec<Straggler>> = (0..workers).map(of).collect();
    // What has ended is not looked at again.
    let mut ended = vec![0; stragglers.len()];
    while done < samples {
        let moment = at(now);
        for (own, ended) in stragglers.iter().zip(&mut ended) {
            while own.get(*ended).is_some_and(|it| it.to <= moment) {
                *ended += 1;
            }
            let begun = own[*ended..].iter().take_while(|it| it.from <= moment);
            let active = begun.filter(|it| moment < it.to);
            done += SLICE * speed / active.map(|it| it.slow).product::<f64>();
        }
        now += SLICE;
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_stragglers_again_and_another_seed_others() {
        for trace in ALL {
            let [one, again, other] = [1, 1, 2].map(|seed| trace.stragglers(Seed(seed), 100.0));
            assert_eq!(one, again);
            assert_eq!(
                one == other,
                !["transient", "mixed", "bursts", "bursts with servers"].contains(&trace.name),
                "{}",
                trace.name
            );
        }
    }

    #[test]
    fn the_least_time_is_that_of_all_workers_computing_all_the_time() {
        let near =
            |time: f64, expected: f64| assert!((time / expected - 1.0).abs() < 1e-3, "{time} and {expected}");
        let samples = SPEED * f64::from(WORKERS) * 10.0;
        near(least_s(&[], WORKERS, 0.0, samples), 10.0);
        let share = (f64::from(WORKERS) - 0.75) / f64::from(WORKERS);
        near(least_s(&[slow(1, 4.0, 0.0, None)], WORKERS, 0.0, samples), 10.0 / share);
        near(least_s(&[curable(slow(1, 4.0, 0.0, None))], WORKERS, 0.0, samples), 10.0);
        // Slow for its first 5 s only: the job is longer by what it did not do in them.
        near(
            least_s(&[slow(1, 4.0, 0.0, Some(5.0))], WORKERS, 0.0, samples),
            10.0 + 5.0 * 0.75 / f64::from(WORKERS),
        );
    }
}
