//! A host that makes its workers slow, and the policy that moves them away from it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::policy;
use antdt_core::{JobTime, Seed};
use antdt_sim::model::compute::{Constant, LogNormal, Slow, Straggler, Who};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Host, Hosts, Models, scheduler};
use antdt_sim::{Setup, SimulatedJob, World};

const WORKERS: u32 = 8;
const STEPS: u64 = 6_000;

/// A job of two workers to a host, whose second host takes four times as long from the tenth second on, whichever worker runs there.
fn run(policy: &str, hosts_known: bool) -> SimulatedJob {
    let per_host = if hosts_known { 2 } else { WORKERS };
    let hosts = Hosts::new(2).unwrap();
    let slow = Straggler {
        who: Who::Host(Host::Workers(1)),
        slow: 4.0,
        from: JobTime::from_duration(Duration::from_secs(10)),
        to: JobTime::NEVER,
        cured_by_restart: false,
    };
    let compute = LogNormal::new(Constant::speed(250.0).unwrap(), 0.05).unwrap();
    let models = Models {
        compute: Box::new(Slow::new(compute, hosts, [slow]).unwrap()),
        network: Box::new(
            AlphaBeta::new(hosts, CostModel::LOOPBACK, CostModel::LOOPBACK, Choice::Auto).unwrap(),
        ),
        scheduler: Box::new(scheduler::Constant(Duration::from_secs(5))),
        faults: Box::new(Listed::new([])),
    };
    let setup = Setup {
        workers: WORKERS,
        workers_per_host: per_host,
        global_batch_size: 64 * WORKERS,
        samples: 64 * u64::from(WORKERS) * STEPS,
        seed: Seed(5),
        ..Setup::default()
    };
    let policy = policy::build(policy, &BTreeMap::new()).unwrap();
    let (job, _) = World::new(setup, policy, models).unwrap().run(JobTime::NEVER).unwrap();
    assert_eq!(job.result, Ok(()));
    job
}

fn count(job: &SimulatedJob, kind: &str) -> usize {
    job.actions.iter().filter(|action| action.kind == kind).count()
}

#[test]
fn workers_of_a_slow_host_are_restarted_elsewhere_and_the_job_ends_sooner() {
    let (stay, leave) = (run("nd", true), run("nd+exclude-host", true));
    assert_eq!((count(&stay, "EXCLUDE_HOST"), count(&leave, "EXCLUDE_HOST")), (0, 1), "{:#?}", leave.actions);
    // The host makes a new process as slow as the old one: only elsewhere does a restart help.
    let at = |kind: &str| leave.actions.iter().position(|action| action.kind == kind);
    assert!(at("EXCLUDE_HOST") < at("KILL_RESTART"), "{:#?}", leave.actions);
    assert_eq!(count(&leave, "KILL_RESTART"), 2, "both workers, once each: {:#?}", leave.actions);
    let took = |job: &SimulatedJob| job.completed.as_secs_f64();
    println!("{:.0} s at home, {:.0} s elsewhere", took(&stay), took(&leave));
    // Six workers of eight and two at a quarter of the speed, against eight after some minutes.
    assert!(took(&leave) < 0.95 * took(&stay), "{} and {}", took(&leave), took(&stay));
}

#[test]
fn where_all_workers_are_on_one_host_nothing_is_excluded_and_the_job_goes_on() {
    let job = run("nd+exclude-host", false);
    assert_eq!(count(&job, "EXCLUDE_HOST") + count(&job, "REFUSED"), 0, "{:#?}", job.actions);
}
