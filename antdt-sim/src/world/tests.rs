use antdt_controller::policy::by_name;
use antdt_core::Seed;

use super::*;
use crate::model::{Compute, Faults, Network, Scheduler};

/// A second for 100 samples; worker 0 is slower by a factor.
#[derive(Debug)]
struct Even(f64);

impl Compute for Even {
    fn time(&mut self, _at: JobTime, holder: Holder, samples: u64, _rng: &mut DetRng) -> Duration {
        if holder.node.role == Role::Server {
            return Duration::ZERO;
        }
        let slowdown = if holder.node == NodeId::worker(0) { self.0 } else { 1.0 };
        Duration::from_secs_f64(samples as f64 / 100.0 * slowdown)
    }
}

#[derive(Debug)]
struct Quick;

impl Network for Quick {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at + Duration::from_micros(100))
    }
    fn collective(&mut self, _: JobTime, _: crate::model::Collective, _: u32, _: &mut DetRng) -> Duration {
        Duration::from_micros(500)
    }
}

impl Scheduler for Quick {
    fn start(&mut self, _: JobTime, _: Holder, _: &mut DetRng) -> Option<Duration> {
        Some(Duration::from_millis(500))
    }
}

#[derive(Debug)]
struct Plan(Vec<(JobTime, Fault)>);

impl Faults for Plan {
    fn next(&mut self, _: &mut DetRng) -> Option<(JobTime, Fault)> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}

fn models(slowdown: f64, faults: Vec<(JobTime, Fault)>) -> Models {
    Models {
        compute: Box::new(Even(slowdown)),
        network: Box::new(Quick),
        scheduler: Box::new(Quick),
        faults: Box::new(Plan(faults)),
    }
}

fn job(sync: SyncMode, policy: &str, slowdown: f64, faults: Vec<(JobTime, Fault)>) -> Outcome {
    let setup = Setup {
        sync,
        servers: if sync.has_servers() { 2 } else { 0 },
        samples: 10_240,
        seed: Seed(1),
        ..Setup::default()
    };
    let world =
        World::new(setup, by_name(policy).unwrap(), models(slowdown, faults)).unwrap().at_most(2_000_000);
    let (outcome, _) = world.run(JobTime::from_duration(Duration::from_secs(100_000))).unwrap();
    outcome
}

const MODES: [SyncMode; 3] = [SyncMode::AllReduce, SyncMode::PsBsp, SyncMode::PsAsp];

#[test]
fn a_job_in_which_nothing_goes_wrong_takes_what_its_gradients_take() {
    for sync in MODES {
        let outcome = job(sync, "none", 1.0, Vec::new());
        assert_eq!(outcome.result, Ok(()), "{sync:?}");
        assert_eq!(outcome.counts.acked, 10_240);
        // 40 steps of 64 samples on each of four workers.
        let seconds = outcome.completed.as_secs_f64();
        assert!((25.6..27.5).contains(&seconds), "{sync:?}: {seconds}");
    }
}

#[test]
fn a_slow_worker_holds_up_all_of_a_synchronous_step_and_a_policy_helps() {
    for sync in [SyncMode::AllReduce, SyncMode::PsBsp] {
        let none = job(sync, "none", 4.0, Vec::new());
        assert_eq!(none.result, Ok(()));
        let seconds = none.completed.as_secs_f64();
        assert!((102.4..104.5).contains(&seconds), "{sync:?}: {seconds}");
        let nd = job(sync, "nd", 4.0, Vec::new());
        assert_eq!(nd.result, Ok(()));
        assert!(nd.completed.as_secs_f64() < 0.6 * seconds, "{sync:?}: {:?}", nd.completed);
        assert!(nd.actions.iter().any(|action| action.kind == "ADJUST_BS"));
    }
}

#[test]
fn whatever_happens_to_a_worker_every_sample_is_counted_once() {
    let at = |seconds: u64| JobTime::from_duration(Duration::from_secs(seconds));
    for sync in MODES {
        for fault in [
            Fault::Crash(NodeId::worker(1)),
            Fault::Exit(NodeId::worker(2), 75),
            Fault::Pause(NodeId::worker(3), Duration::from_secs(5)),
            Fault::Pause(NodeId::worker(3), Duration::from_secs(60)),
            Fault::Cut(NodeId::worker(0), Duration::from_secs(3)),
            Fault::Cut(NodeId::worker(0), Duration::from_secs(60)),
            Fault::PauseMaster(Duration::from_secs(20)),
            Fault::RestartLedger,
        ] {
            let outcome = job(sync, "none", 1.0, vec![(at(5), fault)]);
            assert_eq!(outcome.result, Ok(()), "{sync:?} {fault:?}\n{:#?}", outcome.events);
            assert_eq!(outcome.counts.acked, 10_240, "{sync:?} {fault:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let fault = vec![(JobTime::from_duration(Duration::from_secs(7)), Fault::Crash(NodeId::worker(1)))];
    let first = job(SyncMode::AllReduce, "nd", 3.0, fault.clone());
    assert_eq!(first.result, Ok(()), "{:#?} {:#?}", first.actions, first.events);
    assert_eq!(first, job(SyncMode::AllReduce, "nd", 3.0, fault));
}

/// A worker that was granted a shard, asked to give it back, and granted it again, went on so for ever: its peers, who
/// could have begun it, waited for its batch.
#[test]
fn a_shard_that_was_given_back_is_not_asked_for_again_in_the_same_step() {
    let fault = vec![(JobTime::from_duration(Duration::from_secs(7)), Fault::Crash(NodeId::worker(1)))];
    let outcome = job(SyncMode::AllReduce, "nd", 3.0, fault);
    assert_eq!(outcome.result, Ok(()));
    assert!(outcome.simulated < 10_000, "{}", outcome.simulated);
}

/// Who does not look does not see what is done out of turn; so nothing may come of it.
#[test]
fn what_nobody_watches_goes_as_what_is_watched() {
    struct Watching;
    impl Observer for Watching {
        fn saw(&mut self, _: JobTime, _: &Happening<'_>) -> Result<(), Violation> {
            Ok(())
        }
    }
    for seed in 0..200 {
        let case = crate::chaos::case(seed);
        let models = || case.models().unwrap();
        let policy = || case.policy().unwrap();
        let limit = JobTime::ZERO + Duration::from_secs(3600);
        let blind = World::new(case.setup.clone(), policy(), models()).unwrap();
        let watched = World::watched(case.setup.clone(), policy(), models(), Watching).unwrap();
        let (unseen, _) = blind.at_most(5_000_000).run(limit).unwrap();
        let Ok((seen, _)) = watched.at_most(5_000_000).run(limit) else { panic!("{seed}: a violation") };
        assert_eq!(unseen, seen, "{seed}");
    }
}
