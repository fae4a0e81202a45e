//! A simulated job that meets stragglers.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::{Policy, policy};
use antdt_core::{JobTime, Seed};
use antdt_sim::model::compute::{ByRole, Constant, LogNormal, Slow, Straggler};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::{AlphaBeta, SlowLink};
use antdt_sim::model::{Host, Hosts, Models, scheduler};
use antdt_sim::{Setup, SimulatedJob, World};
use anyhow::{Result, anyhow};

use super::foresight::{Foresight, Way};
use super::spread::spread;
use super::trace::{self, Trace};
use super::{BATCH, GRADIENT_OF_LINKS, Runner, SERVE, SPEED, START, WORKERS, best};

/// A simulated job.
pub(super) struct Job {
    pub(super) workers: u32,
    pub(super) sync: &'static str,
    pub(super) servers: u32,
    /// Time that a server is busy with a pull or a push.
    pub(super) serve: Duration,
    pub(super) speed: f64,
    pub(super) steps: u32,
    pub(super) noise: f64,
    pub(super) stragglers: Vec<Straggler>,
    /// How many times slower the card of the first worker's host is in the middle third of so many seconds.
    pub(super) slow_link: (f64, f64),
    pub(super) seed: Seed,
}

impl Job {
    /// The job of a seed that meets this trace and would take `length` seconds without any straggler.
    pub(super) fn of(trace: &Trace, steps: u32, length: f64, seed: Seed) -> Self {
        Self {
            workers: WORKERS,
            sync: trace.sync,
            servers: trace.servers,
            serve: SERVE,
            speed: SPEED,
            steps,
            noise: trace.noise,
            stragglers: shifted(&trace.stragglers(seed, length)),
            slow_link: (trace.slow_link, length),
            seed,
        }
    }

    /// Time below which no job can be, in seconds.
    pub(super) fn least_s(&self) -> f64 {
        let samples = f64::from(BATCH) * f64::from(self.workers) * f64::from(self.steps);
        trace::least_s(&unshifted(&self.stragglers), self.workers, self.noise, samples)
    }

    /// A contender's time, or that of one of the oracle's ways.
    pub(super) fn took_by(&self, runner: Runner) -> Result<f64> {
        match runner {
            Runner::Contender(it) => self.took_in(it.sync, named(it.policy)?),
            Runner::Oracle(way) => self.took(Box::new(self.foresight(way))),
        }
    }

    /// An oracle that knows the slowdowns of this job.
    fn foresight(&self, way: Way) -> Foresight {
        Foresight::new(&self.stragglers, way, JobTime::ZERO + START)
    }

    /// Seconds from the start of its workers to the commit of its last sample.
    pub(super) fn took(&self, policy: Box<dyn Policy>) -> Result<f64> {
        self.took_in(self.sync, policy)
    }

    fn took_in(&self, sync: &str, policy: Box<dyn Policy>) -> Result<f64> {
        let job = self.run(sync, policy)?;
        Ok(job.completed.since(JobTime::ZERO + START).as_secs_f64())
    }

    /// What a policy did beside the first plan.
    pub(super) fn actions(&self, policy: &str) -> Result<u32> {
        let job = self.run(self.sync, named(policy)?)?;
        let acted = job.actions.iter().filter(|action| !action.reason.contains("share the global batch"));
        Ok(u32::try_from(acted.count()).unwrap_or(u32::MAX))
    }

    pub(super) fn run(&self, sync: &str, policy: Box<dyn Policy>) -> Result<SimulatedJob> {
        let hosts = Hosts::default();
        let workers = LogNormal::new(Constant::speed(self.speed)?, self.noise)?;
        let compute = ByRole { workers, servers: Constant { fixed: self.serve, per_sample: Duration::ZERO } };
        let network = AlphaBeta::new(hosts, CostModel::LOOPBACK, CostModel::LOOPBACK, Choice::Auto)?;
        let (slow, length) = self.slow_link;
        let third = |thirds: f64| JobTime::ZERO + START + Duration::from_secs_f64(length * thirds / 3.0);
        let network = SlowLink::new(network, hosts, Host::Workers(0), slow, (third(1.0), third(2.0)))?;
        let models = Models {
            compute: Box::new(Slow::new(compute, hosts, self.stragglers.iter().copied())?),
            network: Box::new(network),
            scheduler: Box::new(scheduler::Constant(START)),
            faults: Box::new(Listed::new([])),
        };
        let sync: antdt_job::SyncMode = sync.parse().map_err(|error| anyhow!("{error}"))?;
        let setup = Setup {
            servers: if sync.capabilities().needs_servers() { self.servers.max(2) } else { 0 },
            sync,
            workers: self.workers,
            global_batch_size: BATCH * self.workers,
            samples: u64::from(BATCH * self.workers) * u64::from(self.steps),
            seed: self.seed,
            ..Setup::default()
        };
        let setup = match slow > 1.0 {
            true => Setup { gradient_bytes: GRADIENT_OF_LINKS, reports_links: true, ..setup },
            false => setup,
        };
        let name = policy.name().to_owned();
        let (job, _) =
            World::new(setup, policy, models)?.run(JobTime::NEVER).map_err(|(violation, _)| violation)?;
        match &job.result {
            Ok(()) => Ok(job),
            Err(why) => Err(anyhow!("the simulated job under {name} failed: {why}")),
        }
    }

    /// The best that is found with perfect foresight; doing nothing is one of the ways.
    pub(super) fn oracle(&self, none: f64) -> Result<f64> {
        let ways = spread(&Way::all(&self.stragglers), |way| self.took_by(Runner::Oracle(*way)))?;
        Ok(best(none, &ways))
    }
}

pub(super) fn shifted(stragglers: &[Straggler]) -> Vec<Straggler> {
    let shift = |at: JobTime| if at == JobTime::NEVER { at } else { at + START };
    stragglers.iter().map(|it| Straggler { from: shift(it.from), to: shift(it.to), ..*it }).collect()
}

fn unshifted(stragglers: &[Straggler]) -> Vec<Straggler> {
    let shift = |at: JobTime| if at == JobTime::NEVER { at } else { at - START };
    stragglers.iter().map(|it| Straggler { from: shift(it.from), to: shift(it.to), ..*it }).collect()
}

pub(super) fn named(name: &str) -> Result<Box<dyn Policy>> {
    policy::build(name, &BTreeMap::new()).map_err(|error| anyhow!("{error}"))
}
