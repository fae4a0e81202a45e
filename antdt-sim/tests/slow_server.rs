//! A slow parameter server, whose share of the parameters the policy makes smaller.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::policy;
use antdt_core::{JobTime, Role, Seed};
use antdt_sim::invariant::{self, Checkers};
use antdt_sim::model::compute::{ByRole, Constant, LogNormal, Slow, Straggler, Who};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Hosts, Models, scheduler};
use antdt_sim::{Setup, SimulatedJob, World};

const WORKERS: u32 = 4;
const STEPS: u64 = 1_200;
const SLOW_FROM: Duration = Duration::from_secs(5);

struct Case {
    policy: &'static str,
    settings: &'static [(&'static str, &'static str)],
    /// Factor by which server 1 takes longer for a request.
    slow: f64,
    cured: bool,
    /// Noise of a server's time for a request.
    noise: f64,
    dry_run: bool,
    seed: u64,
}

const SLOW: Case =
    Case { policy: "nd", settings: &[], slow: 3.0, cured: false, noise: 0.05, dry_run: false, seed: 5 };

/// A step of a worker is 64 ms of computation; each of four servers answers eight requests of 4 ms in it.
fn run(case: &Case) -> SimulatedJob {
    let slow = Straggler {
        who: Who::Node(antdt_core::NodeId::server(1)),
        slow: case.slow,
        from: JobTime::from_duration(SLOW_FROM),
        to: JobTime::NEVER,
        cured_by_restart: case.cured,
    };
    let hosts = Hosts::default();
    let server = Constant { fixed: Duration::from_millis(4), per_sample: Duration::ZERO };
    let servers = LogNormal::new(server, case.noise).unwrap();
    let compute = ByRole {
        workers: LogNormal::new(Constant::speed(1000.0).unwrap(), 0.03).unwrap(),
        servers: Slow::new(servers, hosts, (case.slow > 1.0).then_some(slow)).unwrap(),
    };
    let models = Models {
        compute: Box::new(compute),
        network: Box::new(
            AlphaBeta::new(hosts, CostModel::LOOPBACK, CostModel::LOOPBACK, Choice::Auto).unwrap(),
        ),
        scheduler: Box::new(scheduler::Constant(Duration::from_secs(1))),
        faults: Box::new(Listed::new([])),
    };
    let setup = Setup {
        sync: "ps-bsp".parse().unwrap(),
        workers: WORKERS,
        servers: 4,
        global_batch_size: 64 * WORKERS,
        samples: 64 * u64::from(WORKERS) * STEPS,
        gradient_bytes: 4_000_000,
        // Servers report their service time as often as real ones do.
        heartbeat: Duration::from_millis(100),
        checkpoint_every: Some("50steps".parse().unwrap()),
        goes_back: true,
        dry_run: case.dry_run,
        seed: Seed(case.seed),
        ..Setup::default()
    };
    let settings: BTreeMap<String, String> =
        case.settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let policy = policy::build(case.policy, &settings).unwrap();
    let checkers = Checkers::new(invariant::all(&setup).unwrap());
    let world = World::watched(setup, policy, models, checkers).unwrap();
    let (job, mut checkers) = world.run(JobTime::NEVER).map_err(|(violation, _)| violation).unwrap();
    checkers.finish().unwrap();
    assert_eq!(job.result, Ok(()));
    job
}

fn of_kind<'a>(job: &'a SimulatedJob, kind: &str) -> Vec<&'a antdt_sim::journal::JournalAction> {
    job.actions.iter().filter(|action| action.kind == kind).collect()
}

/// Samples per second between two times of a job.
fn rate(job: &SimulatedJob, from: Duration, to: Duration) -> f64 {
    let (begin, end) = (JobTime::from_duration(from), JobTime::from_duration(to));
    let workers = job.series.iter().filter(|(node, _)| node.role == Role::Worker);
    let within = workers.flat_map(|(_, points)| points).filter(|point| point.at > begin && point.at <= end);
    let samples: u64 = within.map(|point| point.samples).sum();
    samples as f64 / (to - from).as_secs_f64()
}

/// The acceptance of the peers' list: nine tenths of what healthy servers reach, within 30 s, with one 3x slow server of four.
#[test]
fn a_slow_server_gets_a_smaller_share_and_the_job_its_speed_back_within_thirty_seconds() {
    let healthy = run(&Case { slow: 1.0, policy: "none", ..SLOW });
    let kept = run(&Case { policy: "none", ..SLOW });
    let after = SLOW_FROM + Duration::from_secs(30);
    let window = (after, after + Duration::from_secs(40));
    let of_healthy = |job: &SimulatedJob| rate(job, window.0, window.1) / rate(&healthy, window.0, window.1);
    println!("without a policy: {:.3} of the speed", of_healthy(&kept));
    assert!(of_healthy(&kept) < 0.7, "the slow server costs something: {}", of_healthy(&kept));
    for policy in ["nd", "predictive"] {
        let job = run(&Case { policy, ..SLOW });
        let shares = of_kind(&job, "REPARTITION");
        println!(
            "{policy}: {:.3} of the speed; {}",
            of_healthy(&job),
            shares
                .iter()
                .map(|action| format!("{} {}: {}", action.at, action.target, action.reason))
                .collect::<String>()
        );
        assert_eq!(shares.len(), 1, "{policy}: once, and it stays so: {:?}", job.actions);
        assert_eq!(shares[0].target, "server-1", "{policy}");
        assert!(of_healthy(&job) >= 0.9, "{policy}: {}", of_healthy(&job));
        assert!(of_kind(&job, "KILL_RESTART").is_empty(), "{policy}: {:?}", job.actions);
        let mut workers = job.usage.iter().filter(|usage| usage.holder.node.role == Role::Worker);
        assert!(
            workers.all(|usage| usage.holder.incarnation.0 == 0),
            "{policy}: workers keep their processes"
        );
    }
}

/// Where a restart is trusted to cure, it comes first; where it did not, a smaller share follows.
#[test]
fn a_restart_that_cures_is_enough_and_one_that_does_not_is_followed_by_a_smaller_share() {
    let trusts: &[(&str, &str)] = &[("restart-cures", "1")];
    let cured = run(&Case { settings: trusts, cured: true, ..SLOW });
    assert_eq!(of_kind(&cured, "KILL_RESTART").len(), 1, "{:?}", cured.actions);
    assert!(of_kind(&cured, "REPARTITION").is_empty(), "{:?}", cured.actions);
    let kept = run(&Case { settings: trusts, ..SLOW });
    let kinds: Vec<&str> = kept
        .actions
        .iter()
        .map(|action| action.kind)
        .filter(|kind| kind.ends_with("ART") || kind.ends_with("ION"))
        .collect();
    assert_eq!(kinds, ["KILL_RESTART", "REPARTITION"], "{:?}", kept.actions);
}

#[test]
fn noise_of_healthy_servers_moves_no_parameters() {
    for seed in 0..10 {
        for policy in ["nd", "predictive"] {
            let job = run(&Case { slow: 1.0, noise: 0.4, policy, seed, ..SLOW });
            let acted = [of_kind(&job, "REPARTITION"), of_kind(&job, "KILL_RESTART")].concat();
            assert!(acted.is_empty(), "{policy}, seed {seed}: {acted:?}");
        }
    }
}

#[test]
fn a_dry_run_says_so_and_leaves_the_servers_alone() {
    let job = run(&Case { dry_run: true, ..SLOW });
    let would = of_kind(&job, "WOULD_REPARTITION");
    assert!(!would.is_empty() && would[0].reason.contains("not carried out"), "{:?}", job.actions);
    assert!(of_kind(&job, "REPARTITION").is_empty());
    let servers = job.usage.iter().filter(|usage| usage.holder.node.role == Role::Server);
    assert_eq!(servers.count(), 4, "none was started again");
}
