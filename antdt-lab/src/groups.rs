//! The generator of groups: what a worker's synchronisation costs it, and whether that grows with the workers.
//!
//! One generator serves all workers of a job, so it has to take in a request of each in the time of a step. A request is counted
//! with all that comes of it: the groups that are formed, the messages to their members, the reports, and the commit.

use std::collections::VecDeque;

use antdt_core::{DetRng, Holder, Incarnation, JobTime, Machine, NodeId, Seed};
use antdt_groups::{
    Division, GeneratorConfig, GeneratorEffect, GroupGenerator, GroupPolicy, InterIntra, Random,
    ReduceOutcome,
};
use anyhow::Result;

use crate::meter::on_this_thread;
use crate::{Entry, Rows};

/// Workers of a host.
const PER_HOST: u32 = 8;

/// Members of a group, as policies aim at.
const GROUP: u32 = 4;

/// Steps a second: a shorter one than 100 ms is rather made longer than averaged.
const STEPS_PER_S: u32 = 10;

/// Requests that are measured.
const REQUESTS: u32 = 1 << 20;

/// Workers whose averages take no time, and that ask again soon after they are answered, in an order that changes.
struct Workers {
    generator: GroupGenerator,
    sequences: Vec<u64>,
    ready: VecDeque<Holder>,
    rng: DetRng,
    now: JobTime,
}

impl Workers {
    fn new(workers: u32, policy: Box<dyn GroupPolicy>) -> Result<Self> {
        let mut generator = GroupGenerator::new(GeneratorConfig::default(), policy)?;
        let holder = |index| Holder::new(NodeId::worker(index), Incarnation(0));
        for index in 0..workers {
            generator.hello(JobTime::ZERO, holder(index), index / PER_HOST)?;
        }
        while generator.poll_effect().is_some() {}
        Ok(Self {
            generator,
            sequences: vec![0; workers as usize],
            ready: (0..workers).map(holder).collect(),
            rng: Seed(1).rng(),
            now: JobTime::ZERO,
        })
    }

    /// Returns one of the next ready workers. An error if none is ready: then all wait for each other.
    fn next(&mut self) -> Result<Holder> {
        let soon = (self.ready.len() / 4).max(1) as u64;
        let at = usize::try_from(self.rng.below(soon))?;
        self.ready.swap_remove_front(at).ok_or_else(|| anyhow::anyhow!("no worker is answered any more"))
    }

    fn requests(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let holder = self.next()?;
            self.now = JobTime(self.now.0 + 1_000);
            let sequence = &mut self.sequences[holder.node.index as usize];
            *sequence += 1;
            self.generator.request(self.now, holder, *sequence)?;
            while let Some(effect) = self.generator.poll_effect() {
                match effect {
                    GeneratorEffect::Go { to, go, last, .. } => {
                        self.generator.done(self.now, to, go.key, ReduceOutcome::Reduced)?;
                        if last {
                            self.ready.push_back(to);
                        }
                    }
                    GeneratorEffect::Skip { to, .. } => self.ready.push_back(to),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Nanoseconds on the core of a request.
fn nanos_per_request(workers: u32, policy: Box<dyn GroupPolicy>, requests: u32) -> Result<f64> {
    let mut all = Workers::new(workers, policy)?;
    all.requests(4 * workers)?;
    let (done, took) = on_this_thread(|| all.requests(requests));
    done?;
    Ok(took.cpu.as_secs_f64() * 1e9 / f64::from(requests))
}

/// The rows, of a part of the requests.
///
/// # Errors
/// If the generator refuses something, or no worker is answered any more.
pub(crate) fn requests(shrink: u32, rows: &mut Rows) -> Result<()> {
    let policies: [Box<dyn GroupPolicy>; 3] = [
        Box::new(Division::new(GROUP)?),
        Box::new(InterIntra::new(GROUP)?),
        Box::new(Random::buffered(GROUP)?),
    ];
    for policy in policies {
        let name = policy.name();
        let mut of_few = 0.0;
        for (workers, text) in [(16, "16"), (1_024, "1,024"), (16_384, "16,384")] {
            let nanos = nanos_per_request(workers, policy.clone(), REQUESTS / shrink)?;
            let title = format!("generator of groups, {name}: {text} workers");
            let asked = f64::from(workers * STEPS_PER_S);
            let beside = format!("{nanos:.0} ns a request; asked are {STEPS_PER_S} steps a second of each");
            rows.push(Entry::shown(title, 1e9 / nanos, "requests/s").at_least(asked).beside(beside));
            of_few = if workers == 16 { nanos } else { of_few };
            if workers == 16_384 {
                let title = format!("generator of groups, {name}: a request, {text} workers over 16");
                rows.push(Entry::shown(title, nanos / of_few, "x"));
            }
        }
    }
    Ok(())
}
