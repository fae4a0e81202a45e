use std::sync::{Arc, Mutex};

use antdt_controller::RestartBudget;
use antdt_controller::policy::{Decision, ProposedAction, REGISTRY};
use antdt_core::{ClusterView, Exit, Holder, NodeActionKind, Reason, Role, Seed};
use antdt_job::head::{CheckpointEvery, ModeChoice};
use antdt_job::limits::CALL_TIMEOUT;
use antdt_job::{Call, SyncMode};

use super::*;
use crate::invariant::{self, Checkers};
use crate::model::compute::{Constant, LogNormal};
use crate::model::{Collective, Compute, Fault, Faults, Network, Scheduler, Site};

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

/// Collectives take so long.
#[derive(Debug, Clone, Copy)]
struct Net(Duration);

impl Network for Net {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at + Duration::from_micros(100))
    }
    fn collective(&mut self, _: JobTime, _: Collective, _: u32, _: &mut DetRng) -> Duration {
        self.0
    }
}

const QUICK: Net = Net(Duration::from_micros(500));

#[derive(Debug)]
struct Quick;

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
        network: Box::new(QUICK),
        scheduler: Box::new(Quick),
        faults: Box::new(Plan(faults)),
    }
}

fn policy(name: &str) -> Box<dyn Policy> {
    REGISTRY.by_name(name).unwrap()
}

fn at(millis: u64) -> JobTime {
    JobTime::from_duration(Duration::from_millis(millis))
}

fn seconds(seconds: u64) -> JobTime {
    at(1_000 * seconds)
}

/// The settings of most jobs of these tests.
fn setup(sync: &str) -> Setup {
    Setup {
        sync: sync.parse().unwrap(),
        servers: if sync.starts_with("ps-") { 2 } else { 0 },
        samples: 10_240,
        seed: Seed(1),
        ..Setup::default()
    }
}

/// Runs a job to its end under these faults and all invariants: every sample is trained once in each epoch.
fn completed(setup: Setup, policy: Box<dyn Policy>, faults: Vec<(JobTime, Fault)>) -> SimulatedJob {
    let (sync, samples) = (setup.sync.to_string(), setup.samples * u64::from(setup.epochs));
    let checkers = Checkers::new(invariant::all(&setup).unwrap());
    let world = World::watched(setup, policy, models(1.0, faults), checkers).unwrap();
    let ended = world.run(seconds(1_000_000));
    let (outcome, mut checkers) = ended.unwrap_or_else(|(violation, _)| panic!("{sync}: {violation}"));
    checkers.finish().unwrap();
    assert_eq!((&outcome.result, outcome.counts.acked), (&Ok(()), samples), "{sync}: {:#?}", outcome.events);
    outcome
}

fn job(sync: &str, policy_name: &str, slowdown: f64, faults: Vec<(JobTime, Fault)>) -> SimulatedJob {
    let world = World::new(setup(sync), policy(policy_name), models(slowdown, faults)).unwrap();
    world.at_most(2_000_000).run(seconds(100_000)).unwrap().0
}

const MODES: [&str; 4] = ["allreduce", "ps-bsp", "ps-asp", "ps-ssp=1"];

#[test]
fn a_job_without_faults_takes_the_time_of_its_gradients() {
    for sync in MODES {
        let outcome = job(sync, "none", 1.0, Vec::new());
        assert_eq!(outcome.result, Ok(()), "{sync:?}");
        assert_eq!(outcome.counts.acked, 10_240);
        // 40 steps of 64 samples on each of four workers.
        let seconds = outcome.completed.as_secs_f64();
        assert!((25.6..27.5).contains(&seconds), "{sync:?}: {seconds}");
    }
}

/// Of four workers that are equally fast one comes too late in each step, and its batch is computed again.
#[test]
fn a_backup_that_is_not_needed_costs_its_share() {
    for sync in ["ps-backup=1", "allreduce=1"] {
        let outcome = job(sync, "none", 1.0, Vec::new());
        assert_eq!((outcome.result, outcome.counts.acked), (Ok(()), 10_240));
        let seconds = outcome.completed.as_secs_f64();
        assert!((25.6 * 4.0 / 3.0..36.5).contains(&seconds), "{sync}: {seconds}");
    }
}

/// Three of four workers train all samples, in the time that they need for them.
#[test]
fn a_step_does_not_wait_for_a_slow_worker_that_is_its_backup() {
    for sync in ["ps-backup=1", "allreduce=1"] {
        let outcome = job(sync, "none", 4.0, Vec::new());
        assert_eq!((outcome.result, outcome.counts.acked), (Ok(()), 10_240));
        let seconds = outcome.completed.as_secs_f64();
        assert!((30.0..45.0).contains(&seconds), "{sync}: {seconds}");
    }
}

#[test]
fn a_slow_worker_holds_up_all_of_a_synchronous_step_and_a_policy_helps() {
    for sync in ["allreduce", "ps-bsp"] {
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

/// A job that names no policy may be in any mode.
#[test]
fn in_every_mode_the_default_policy_takes_no_longer_than_nd_and_nothing_that_it_decides_is_refused() {
    for sync in SyncMode::examples().iter().map(ToString::to_string) {
        for slowdown in [1.0, 4.0] {
            let [nd, default] = ["nd", antdt_controller::policy::DEFAULT].map(|policy| {
                let outcome = job(&sync, policy, slowdown, Vec::new());
                assert_eq!((&outcome.result, outcome.counts.acked), (&Ok(()), 10_240), "{sync} {policy}");
                let refused: Vec<_> = outcome.actions.iter().filter(|it| it.kind == "REFUSED").collect();
                assert!(refused.is_empty(), "{sync} {policy}: {refused:?}");
                outcome.completed.as_secs_f64()
            });
            assert!(default <= 1.01 * nd, "{sync}, {slowdown}x: {default} s, and {nd} s with nd");
        }
    }
}

#[test]
fn every_sample_is_counted_once_after_any_fault_of_a_worker() {
    for sync in MODES.into_iter().chain(["allreduce=1"]) {
        for fault in [
            Fault::Crash(NodeId::worker(1)),
            Fault::Exit(NodeId::worker(2), 75),
            Fault::Preempt(NodeId::worker(1), Duration::from_millis(1)),
            Fault::Preempt(NodeId::worker(1), Duration::from_secs(30)),
            Fault::Hang(NodeId::worker(2), Duration::from_secs(1)),
            Fault::Hang(NodeId::worker(2), Duration::from_secs(60)),
            Fault::Duplicate(NodeId::worker(3), Duration::from_secs(60)),
            Fault::Pause(NodeId::worker(3), Duration::from_secs(5)),
            Fault::Pause(NodeId::worker(3), Duration::from_secs(60)),
            Fault::Cut(NodeId::worker(0), Duration::from_secs(3)),
            Fault::Cut(NodeId::worker(0), Duration::from_secs(60)),
            Fault::PauseMaster(Duration::from_secs(20)),
            Fault::RestartLedger,
        ] {
            let outcome = job(sync, "none", 1.0, vec![(seconds(5), fault)]);
            assert_eq!(outcome.result, Ok(()), "{sync:?} {fault:?}\n{:#?}", outcome.events);
            assert_eq!(outcome.counts.acked, 10_240, "{sync:?} {fault:?}");
        }
    }
}

/// Lives of workers and of servers.
fn lives(outcome: &SimulatedJob) -> (usize, usize) {
    let of = |role| outcome.usage.iter().filter(|usage| usage.holder.node.role == role).count();
    (of(Role::Worker), of(Role::Server))
}

#[test]
fn another_master_goes_on_with_the_job_and_workers_whose_model_is_on_servers_keep_their_processes() {
    let away = Duration::from_secs(2);
    let ended =
        |sync: &str, faults, goes_back| completed(Setup { goes_back, ..setup(sync) }, policy("nd"), faults);
    for sync in SyncMode::examples().iter().map(ToString::to_string) {
        let calm = ended(&sync, Vec::new(), true);
        // Before any node has registered, while the first do, in the middle, in the midst of an event, and one after the other.
        for (times, within) in
            [(&[0_u64][..], None), (&[500], Some(1)), (&[9_000], None), (&[9_000, 9_900, 12_000], Some(0))]
        {
            let faults = times.iter().map(|time| (at(*time), Fault::RestartMaster(away, within))).collect();
            let outcome = ended(&sync, faults, true);
            let back = outcome.events.iter().filter(|event| event.text.starts_with("went back to the start"));
            assert!(back.count() >= 1, "{sync} {times:?}: {:#?}", outcome.events);
            assert!(outcome.completed > calm.completed, "{sync} {times:?}");
            let (workers, servers) = lives(&outcome);
            if times == [9_000] {
                let kept = sync.starts_with("ps-");
                assert_eq!((workers, servers), if kept { (4, 4) } else { (8, 0) }, "{sync}");
            }
        }
        // No master can go on with a job that cannot go back.
        let alone = ended(&sync, vec![(at(9_000), Fault::RestartMaster(away, None))], false);
        assert_eq!((alone.completed, lives(&alone)), (calm.completed, lives(&calm)), "{sync}");
    }
}

#[test]
fn a_server_that_ends_takes_a_job_back_that_can_go_back() {
    for sync in ["ps-bsp", "ps-asp", "ps-ssp=1", "ps-backup=1"] {
        for time in [1, 9] {
            let setup = Setup { goes_back: true, seed: Seed(0), ..setup(sync) };
            let faults = vec![(seconds(time), Fault::Crash(NodeId::server(1)))];
            let outcome = completed(setup, policy("none"), faults);
            assert_eq!(lives(&outcome), (4, 4), "{sync}: all servers, and no worker");
        }
    }
}

#[test]
fn workers_keep_their_processes_over_evaluations_and_every_sample_counts_once_in_each_epoch() {
    for sync in MODES {
        let ended = |faults: Vec<(JobTime, Fault)>| {
            let setup = Setup {
                samples: 4_096,
                epochs: 3,
                goes_back: true,
                checkpoint_every: Some(CheckpointEvery::End),
                eval_every: Some(1),
                seed: Seed(0),
                ..setup(sync)
            };
            let servers = setup.servers;
            let outcome = completed(setup, policy("none"), faults);
            let told = outcome.events.iter().filter(|event| event.text.contains(" is evaluated; "));
            assert_eq!(told.count(), 2, "{sync}: {:#?}", outcome.events);
            (servers, outcome)
        };
        let (servers, calm) = ended(Vec::new());
        assert_eq!(lives(&calm), (4, 3 * servers as usize), "{sync}: {:#?}", calm.events);
        let undone = calm.events.iter().filter(|event| event.text.starts_with("went back to checkpoint "));
        assert!(
            undone.into_iter().all(|event| event.text.ends_with(": 0 samples are trained again")),
            "{sync}"
        );
        // The next master goes on where the last one was.
        let (crash, away) =
            (Fault::Crash(NodeId::worker(2)), Fault::RestartMaster(Duration::from_secs(2), None));
        ended(vec![(seconds(9), crash), (seconds(13), away)]);
    }
}

#[test]
fn servers_hand_over_to_as_many_as_are_asked_for_and_nothing_is_trained_again() {
    for sync in ["ps-bsp", "ps-asp", "ps-ssp=1", "ps-backup=1"] {
        let changes = [(9_000, 4), (12_000, 4), (15_000, 1)];
        let faults = changes.map(|(time, servers)| (at(time), Fault::ScaleServers(servers))).to_vec();
        let ended = |checkpoint_every, faults| {
            let setup = Setup { goes_back: true, checkpoint_every, seed: Seed(0), ..setup(sync) };
            completed(setup, policy("none"), faults)
        };
        let often = Some(CheckpointEvery::Steps(1_000));
        let scaled = ended(often, faults.clone());
        // Two, then four, then one; and the workers that there were.
        assert_eq!(lives(&scaled), (4, 2 + 4 + 1), "{sync}: {:#?}", scaled.events);
        let back = scaled.events.iter().filter(|event| event.text.starts_with("went back to checkpoint "));
        let undone: Vec<&str> = back.map(|event| &*event.text).collect();
        assert_eq!(undone.len(), 2, "{sync}: {undone:?}");
        assert!(undone.iter().all(|text| text.ends_with(": 0 samples are trained again")), "{undone:?}");
        // Without a master no node is asked; the next one has as many as the last one had.
        let away = vec![
            (at(9_000), Fault::ScaleServers(3)),
            (at(12_000), Fault::RestartMaster(Duration::from_secs(2), None)),
        ];
        let away = [away, vec![(at(13_000), Fault::ScaleServers(1))]].concat();
        let (workers, servers) = lives(&ended(often, away));
        assert_eq!((workers, servers), (4, 2 + 3 + 3), "{sync}");
        // A job that takes no checkpoints refuses it.
        assert_eq!(lives(&ended(None, faults)), (4, 2), "{sync}");
    }
}

#[test]
fn a_hung_worker_is_ended_and_one_taken_back_is_followed_once_its_process_has_ended() {
    let (node, life) = (NodeId::worker(1), Holder::new(NodeId::worker(1), antdt_core::Incarnation(0)));
    let told =
        |outcome: &SimulatedJob, what: &str| outcome.events.iter().any(|event| event.text.contains(what));
    for sync in MODES {
        let hung = job(sync, "none", 1.0, vec![(seconds(10), Fault::Hang(node, Duration::from_secs(120)))]);
        assert!(told(&hung, "worker-1#0 hangs while training"), "{sync}: {:#?}", hung.events);
        let ended = hung.exits.iter().find(|(_, holder, _)| *holder == life);
        assert!(ended.is_some_and(|(_, _, exit)| *exit == Exit::Killed { signal: 9 }), "{sync}: {ended:?}");

        let back = job(sync, "none", 1.0, vec![(seconds(10), Fault::Preempt(node, Duration::from_secs(20)))]);
        assert!(told(&back, "worker-1#0 drained"), "{sync}: {:#?}", back.events);
        let (left, _, exit) = back.exits.iter().find(|(_, holder, _)| *holder == life).unwrap();
        assert!(*exit == Exit::Finished && *left < seconds(12), "{sync}: {exit:?} at {left}");
        let born = back.usage.iter().filter(|usage| usage.holder.node == node).count();
        assert!(born == 2 && !back.actions.iter().any(|action| action.kind == "RESTART"), "{sync}");
    }
}

/// Without a straggler, whatever batch sizes a policy makes follow the noise.
#[test]
fn a_fleet_without_a_straggler_is_left_alone_however_much_its_batches_differ() {
    let job = |workers: u32, noise: f64, seed: u64| {
        let setup = Setup {
            workers,
            global_batch_size: 64 * workers,
            samples: 64 * u64::from(workers) * 800,
            seed: Seed(seed),
            ..Setup::default()
        };
        let usual = Constant { fixed: Duration::from_millis(2), per_sample: Duration::from_millis(1) };
        let compute = Box::new(LogNormal::new(usual, noise).unwrap());
        let models = Models { compute, ..models(1.0, Vec::new()) };
        let world = World::new(setup, policy("nd"), models).unwrap();
        let (outcome, _) = world.run(seconds(100_000)).unwrap();
        assert_eq!(outcome.result, Ok(()));
        // The first plan of every job is no reaction.
        outcome.actions.len() - 1
    };
    for workers in [2, 3, 5, 8] {
        let most = |noise| (0..2).map(|seed| job(workers, noise, seed)).max().unwrap();
        assert_eq!(most(0.05), 0, "{workers} workers");
        // While there is no long window yet, some plans are made of what there is.
        let (noisy, steps) = (most(0.2), 800);
        assert!(noisy <= 8, "{workers} workers: {noisy} plans in {steps} steps");
    }
}

/// Restarts worker 1 once, at the first moment at which it has known for a while how things are.
#[derive(Debug, Clone, Default)]
struct RestartOne(bool);

impl Policy for RestartOne {
    fn name(&self) -> &'static str {
        "restart-one"
    }
    fn decide(&mut self, now: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        let mut decision = Decision::nothing(Reason::Balanced);
        if now.as_secs_f64() > 5.0 && !std::mem::replace(&mut self.0, true) {
            let node = &view.workers[1];
            decision.node_actions.push(ProposedAction {
                target: Holder::new(node.id, node.incarnation),
                kind: NodeActionKind::KillRestart { drain: Duration::from_secs(2) },
                reason: Reason::Balanced,
            });
        }
        decision
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// A restart that was in order when it was decided took the model with it, if the other worker died before it was done.
#[test]
fn the_only_worker_with_the_model_is_not_drained_or_killed_whenever_the_other_dies() {
    let mut restarted = 0;
    for step in 0..400 {
        let at = at(4_000 + 20 * step);
        let setup = Setup { workers: 2, samples: 10_240, seed: Seed(1), ..Setup::default() };
        let models = models(1.0, vec![(at, Fault::Crash(NodeId::worker(0)))]);
        let world = World::new(setup, Box::new(RestartOne::default()), models).unwrap().at_most(2_000_000);
        let (outcome, _) = world.run(seconds(10_000)).unwrap();
        let drained = Holder::new(NodeId::worker(1), antdt_core::Incarnation(0));
        let of_drained = outcome.usage.iter().find(|usage| usage.holder == drained);
        if of_drained.is_some_and(|usage| JobTime::ZERO + usage.alive < at) {
            // It had left when the other one died: no machine can help that.
            break;
        }
        assert_eq!(outcome.result, Ok(()), "{at}: {:#?}", outcome.events);
        restarted += u32::from(outcome.actions.iter().any(|action| action.kind == "KILL_RESTART"));
    }
    assert!(restarted > 10, "{restarted}");
}

/// Workers start after half a second, servers so much later.
#[derive(Debug)]
struct ServersLater(Duration);

impl Scheduler for ServersLater {
    fn start(&mut self, _: JobTime, holder: Holder, _: &mut DetRng) -> Option<Duration> {
        let later = if holder.node.role == Role::Server { self.0 } else { Duration::ZERO };
        Some(Duration::from_millis(500) + later)
    }
}

/// A worker that registered a moment before the last server heard of it with its next heartbeat only.
#[test]
fn a_server_that_comes_up_a_little_later_than_the_workers_costs_a_little() {
    for sync in ["ps-bsp", "ps-asp", "ps-ssp=1"] {
        let completed_at = |later| {
            let setup = Setup { samples: 1_024, ..setup(sync) };
            let models = Models { scheduler: Box::new(ServersLater(later)), ..models(1.0, Vec::new()) };
            let world = World::new(setup, policy("none"), models).unwrap();
            let (outcome, _) = world.run(seconds(1000)).unwrap();
            assert_eq!(outcome.result, Ok(()));
            outcome.completed.since_start()
        };
        let ms = Duration::from_millis;
        let together = completed_at(Duration::ZERO);
        for (later, most) in [(2, 25), (30, 70), (2_000, 2_501)] {
            let costs = completed_at(ms(later)).saturating_sub(together);
            assert!((ms(later)..ms(most)).contains(&(costs + ms(1))), "{sync:?}: {later} ms cost {costs:?}");
        }
    }
}

/// A megabyte takes a second, a model two.
#[derive(Debug)]
struct Narrow;

impl Network for Narrow {
    fn message(&mut self, at: JobTime, _: Site, _: Site, bytes: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at + Duration::from_micros(100 + bytes))
    }
    fn collective(&mut self, _: JobTime, what: Collective, _: u32, _: &mut DetRng) -> Duration {
        match what {
            Collective::Broadcast(_) => Duration::from_secs(2),
            _ => Duration::from_micros(500),
        }
    }
}

/// When a worker began what takes time, and when it was done.
#[derive(Debug, Default)]
struct Transfers {
    begun: BTreeMap<Holder, (&'static str, JobTime)>,
    done: Vec<(Holder, &'static str, JobTime, JobTime)>,
}

impl Observer for Transfers {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        let Happening::Worker(holder, reply, call) = what else { return Ok(()) };
        if matches!(reply, Reply::Pulled | Reply::Pushed | Reply::Entered)
            && let Some((kind, since)) = self.begun.remove(holder)
        {
            self.done.push((*holder, kind, since, at));
        }
        let kind = match call {
            Call::Pull => "pull",
            Call::Push { .. } => "push",
            Call::Enter(_) => "enter",
            _ => return Ok(()),
        };
        self.begun.insert(*holder, (kind, at));
        Ok(())
    }
}

/// Runs a job in which these faults happen under all invariants.
fn transfers(sync: &'static str, faults: Vec<(JobTime, Fault)>) -> (SimulatedJob, Transfers) {
    let setup =
        Setup { workers: 3, samples: 256 * 12, gradient_bytes: 1_000_000, seed: Seed(3), ..setup(sync) };
    let watched = (Transfers::default(), Checkers::new(invariant::all(&setup).unwrap()));
    let models = Models { network: Box::new(Narrow), ..models(1.0, faults) };
    let world = World::watched(setup, policy("none"), models, watched).unwrap().at_most(2_000_000);
    let ended = world.run(seconds(10_000));
    let (outcome, (transfers, mut checkers)) = ended.unwrap_or_else(|(violation, _)| panic!("{violation}"));
    checkers.finish().unwrap();
    if outcome.result.is_ok() {
        assert_eq!(outcome.counts.acked, 256 * 12);
    }
    (outcome, transfers)
}

fn deaths(outcome: &SimulatedJob) -> usize {
    outcome.exits.iter().filter(|(.., exit)| *exit != Exit::Finished).count()
}

#[test]
fn pulls_and_pushes_through_a_cut_get_through_after_it_and_nothing_is_lost() {
    let worker = Holder::new(NodeId::worker(1), antdt_core::Incarnation(0));
    for sync in ["ps-bsp", "ps-asp", "ps-ssp=1"] {
        let (undisturbed, calm) = transfers(sync, Vec::new());
        for kind in ["pull", "push"] {
            let (.., begun, done) =
                calm.done.iter().filter(|(who, what, ..)| (*who, *what) == (worker, kind)).nth(2).unwrap();
            let half = *begun + done.since(*begun) / 2;
            for node in [worker.node, NodeId::server(0)] {
                // Shorter than a worker waits for a server.
                let short = Duration::from_secs(5);
                let (outcome, cut) = transfers(sync, vec![(half, Fault::Cut(node, short))]);
                let through = cut
                    .done
                    .iter()
                    .find(|(who, what, since, _)| (*who, *what, *since) == (worker, kind, *begun));
                let (.., until) = through.unwrap_or_else(|| panic!("{sync:?}: the {kind} never ends"));
                assert!(
                    (half + short..half + short * 2).contains(until),
                    "{sync:?} {kind} {node}: {half} to {until}"
                );
                assert_eq!(outcome.result, Ok(()), "{sync:?} {kind} {node}");
                assert_eq!(deaths(&outcome), 0, "{sync:?} {kind} {node}: {:?}", outcome.exits);
                let lost = outcome.completed.since(undisturbed.completed);
                assert!(lost < short * 2, "{sync:?} {kind} {node} cost {lost:?}");
                // Longer than the master waits for a sign of life: another life of the worker goes on; a server's part of
                // the model is gone, and the job says so.
                let (outcome, _) = transfers(sync, vec![(half, Fault::Cut(node, Duration::from_secs(45)))]);
                assert!(deaths(&outcome) > 0, "{sync:?} {kind} {node}");
                match (node.role, &outcome.result) {
                    (Role::Worker, result) => assert_eq!(*result, Ok(()), "{sync:?} {kind} {node}"),
                    (Role::Server, result) => {
                        let why = result.as_ref().unwrap_err();
                        assert!(why.starts_with("server-0 ended"), "{sync:?} {kind} {node}: {why}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_model_on_its_way_to_a_replacement_when_a_cut_comes_gets_there_later() {
    let crash = (seconds(5), Fault::Crash(NodeId::worker(1)));
    let (_, calm) = transfers("allreduce", vec![crash]);
    let replacement = Holder::new(NodeId::worker(1), antdt_core::Incarnation(1));
    let copied = calm.done.iter().find(|(who, what, ..)| (*who, *what) == (replacement, "enter"));
    let (.., begun, done) = copied.unwrap();
    assert!(done.since(*begun) >= Duration::from_secs(2));
    let half = *begun + done.since(*begun) / 2;
    // The one that gives the model, the one that gets it, and one that looks on.
    for index in 0..3 {
        for seconds in [3, 45] {
            let cut = (half, Fault::Cut(NodeId::worker(index), Duration::from_secs(seconds)));
            let (outcome, all) = transfers("allreduce", vec![crash, cut]);
            assert_eq!(outcome.result, Ok(()), "worker-{index}, {seconds} s: {:#?}", outcome.events);
            let after =
                all.done.iter().filter(|(who, .., until)| who.node == replacement.node && *until > half);
            assert!(after.count() >= 1, "the node never had the model again: worker-{index}, {seconds} s");
        }
    }
}

/// A member that has yet to connect sees that it is cut off; those that wait for it see nothing, and hear of it from the master.
#[test]
fn a_cut_while_a_group_is_set_up_costs_no_timeout_of_those_that_wait() {
    let crash = (seconds(5), Fault::Crash(NodeId::worker(1)));
    let (calm, seen) = transfers("allreduce", vec![crash]);
    let cut = Duration::from_secs(1);
    let entered: Vec<_> =
        seen.done.iter().filter(|(_, what, at, _)| *what == "enter" && *at > crash.0).collect();
    assert_eq!(entered.len(), 3);
    for (holder, _, at, _) in entered {
        let (outcome, _) = transfers("allreduce", vec![crash, (*at, Fault::Cut(holder.node, cut))]);
        assert_eq!((&outcome.result, deaths(&outcome)), (&Ok(()), 1), "{holder}");
        // Those that wait do so for 30 s. A call that the cut swallowed is repeated.
        let costs = outcome.completed.since(calm.completed);
        assert!((cut..cut + CALL_TIMEOUT).contains(&costs), "{holder}: {costs:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let fault = vec![(seconds(7), Fault::Crash(NodeId::worker(1)))];
    let first = job("allreduce", "nd", 3.0, fault.clone());
    assert_eq!(first.result, Ok(()), "{:#?} {:#?}", first.actions, first.events);
    assert_eq!(first, job("allreduce", "nd", 3.0, fault));
}

/// A worker that was granted a shard, asked to give it back, and granted it again, went on so for ever: its peers, who
/// could have begun it, waited for its batch.
#[test]
fn a_shard_that_was_given_back_is_not_asked_for_again_in_the_same_step() {
    let fault = vec![(seconds(7), Fault::Crash(NodeId::worker(1)))];
    let outcome = job("allreduce", "nd", 3.0, fault);
    assert_eq!(outcome.result, Ok(()));
    assert!(outcome.simulated < 10_000, "{}", outcome.simulated);
}

/// An observer that does not look does not see events out of turn; so nothing may come of them.
#[test]
fn a_world_without_observers_goes_as_one_with_them() {
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

#[test]
fn a_checkpoint_is_of_one_moment_whenever_the_master_ends() {
    for sync in SyncMode::examples().iter().map(ToString::to_string) {
        let mut back = 0;
        for shift in 0..50 {
            let fault = Fault::RestartMaster(Duration::from_millis(500), None);
            let outcome = completed(kept(4, &sync), policy("none"), vec![(at(5_000 + 28 * shift), fault)]);
            let mut events = outcome.events.iter();
            back += usize::from(events.any(|event| event.text.starts_with("went back to checkpoint")));
        }
        assert!(back > 0, "{sync}: {back} of 50 went back to a checkpoint");
    }
}

/// 10 ms for the 64 samples of a batch; for 300 ms after the ledger is cut, the worker that writes the checkpoint takes four times
/// as long, or another one does.
#[derive(Debug, Clone)]
struct SlowWhileWriting {
    slow: Arc<Mutex<(Option<Holder>, JobTime)>>,
    is_keeper: bool,
}

impl Compute for SlowWhileWriting {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, _rng: &mut DetRng) -> Duration {
        let (slow, until) = *self.slow.lock().unwrap();
        let slowdown = if slow == Some(holder) && at < until { 4.0 } else { 1.0 };
        Duration::from_secs_f64(samples as f64 / 6400.0 * slowdown)
    }
}

impl Observer for SlowWhileWriting {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        let mut slow = self.slow.lock().unwrap();
        match what {
            Happening::Copied(keeper, _) => {
                let other = NodeId::worker((keeper.node.index + 1) % 4);
                let other = Holder::new(other, keeper.incarnation);
                slow.0 = Some(if self.is_keeper { *keeper } else { other });
            }
            Happening::Cut(_) => slow.1 = at + Duration::from_millis(300),
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn a_worker_that_is_slow_because_it_writes_checkpoints_is_no_straggler() {
    let acts = |is_keeper| {
        let setup = Setup {
            samples: 102_400,
            goes_back: true,
            checkpoint_every: Some(CheckpointEvery::Steps(12)),
            heartbeat: Duration::from_millis(50),
            control_tick: Duration::from_millis(50),
            ..setup("allreduce")
        };
        let compute = SlowWhileWriting { slow: Arc::default(), is_keeper };
        let models = Models { compute: Box::new(compute.clone()), ..models(1.0, Vec::new()) };
        let world = World::watched(setup, policy("nd"), models, compute).unwrap();
        let Ok((outcome, _)) = world.run(seconds(1000)) else { panic!("a violation") };
        assert_eq!((&outcome.result, outcome.counts.acked), (&Ok(()), 102_400));
        outcome.actions.iter().filter(|action| action.reason.contains("peers")).count()
    };
    assert_eq!(acts(true), 0, "it writes");
    assert!(acts(false) > 0, "the same slowness of a worker that writes nothing");
}

/// A job that takes a checkpoint after each second step.
fn kept(workers: u32, sync: &str) -> Setup {
    let checkpoint_every = Some(CheckpointEvery::Steps(2));
    Setup { workers, goes_back: true, checkpoint_every, ..setup(sync) }
}

/// The first job, of which all processes end after one of its events.
fn crashed(sync: &str, after: impl Fn(u64) -> u64) -> SimulatedJob {
    let run = |faults| {
        let world = World::new(kept(4, sync), policy("none"), models(1.0, faults)).unwrap();
        world.run(seconds(1_000)).unwrap().0
    };
    let events = run(Vec::new()).simulated;
    let outcome = run(vec![(JobTime::ZERO, Fault::CrashAll(after(events)))]);
    assert_eq!(outcome.result, Err(ALL_CRASHED.to_owned()));
    outcome
}

#[test]
fn all_processes_end_after_an_event_and_the_newest_whole_checkpoint_is_left() {
    let early = crashed("allreduce", |_| 0);
    assert_eq!((early.simulated, &early.kept), (1, &None), "before any process runs");
    let (one, next) = (crashed("allreduce", |all| all / 2), crashed("allreduce", |all| all / 2 + 1));
    assert_eq!(one.simulated + 1, next.simulated);
    let kept = one.kept.unwrap();
    let counts = kept.counts();
    assert!(kept.checkpoint().is_some() && counts.doing == 0, "{kept:?}");
    assert!(0 < counts.acked && counts.acked <= one.counts.acked, "{counts:?}, {:?}", one.counts);
}

#[test]
fn a_job_is_resumed_with_other_workers_where_its_checkpoint_is_and_goes_back_there() {
    for (before, after) in
        [("allreduce", "allreduce"), ("ps-bsp", "local-sgd=4"), ("ripples=smart:2", "ps-asp")]
    {
        let kept_before = crashed(before, |all| all / 2).kept.unwrap();
        let left = 10_240 - kept_before.counts().acked;
        let setup = kept_before.settings(kept(3, after));
        // The master ends before the second job has taken a checkpoint of its own.
        let faults = vec![(JobTime(50_000_000), Fault::RestartMaster(Duration::from_millis(500), None))];
        let policy = policy("none");
        let world = World::resumed(setup, policy, models(1.0, faults), Blind, &kept_before).unwrap();
        let (outcome, _) = world.run(seconds(1_000)).unwrap();
        assert_eq!((&outcome.result, outcome.counts.acked), (&Ok(()), 10_240), "{:#?}", outcome.events);
        assert!(left < 10_240 && lives(&outcome).0 >= 3, "{after}");
        let first = kept_before.checkpoint().unwrap();
        let back = format!("went back to checkpoint {first}: 0 samples");
        assert!(outcome.events.iter().any(|event| event.text.starts_with(&back)), "{:#?}", outcome.events);
        assert!(outcome.kept.unwrap().checkpoint().unwrap() > first, "numbers are given once");
    }
}

#[test]
fn a_job_stops_for_the_mode_that_suits_its_network_and_goes_on_in_it_from_its_checkpoint() {
    let slow = Net(Duration::from_secs(2));
    let run = |setup: Setup, network: Net, from: Option<&Moment>| {
        let policy = policy("none");
        let models = Models { network: Box::new(network), ..models(1.0, Vec::new()) };
        let world = match from {
            None => World::watched(setup, policy, models, Blind),
            Some(from) => World::resumed(setup, policy, models, Blind, from),
        };
        world.unwrap().run(seconds(10_000)).unwrap().0
    };
    let modes: Vec<SyncMode> = ["allreduce", "local-sgd=8"].map(|mode| mode.parse().unwrap()).to_vec();
    let choice = ModeChoice { modes: modes.clone(), servers: 0, latency: 0.0, whole: 1.0, fixed: None };
    let chooses = Setup { choice: Some(choice.clone()), ..kept(4, "allreduce") };
    let stays = run(chooses.clone(), QUICK, None);
    assert_eq!((&stays.result, stays.counts.acked), (&Ok(()), 10_240), "no other mode is faster");
    let cannot = ModeChoice { fixed: Some("it keeps none".to_owned()), ..choice };
    let stays = run(Setup { choice: Some(cannot), ..chooses.clone() }, slow, None);
    assert_eq!((&stays.result, stays.counts.acked), (&Ok(()), 10_240));
    let stopped = run(chooses, slow, None);
    assert_eq!(stopped.result, Err("goes on with --sync local-sgd=8".to_owned()), "{:#?}", stopped.events);
    let kept_before = stopped.kept.unwrap();
    assert!(kept_before.counts().acked >= 10 * 256, "{:?}", kept_before.counts());
    let setup = Setup { sync: modes[1].clone(), ..kept_before.settings(kept(4, "allreduce")) };
    let ended = run(setup, slow, Some(&kept_before));
    assert_eq!((&ended.result, ended.counts.acked), (&Ok(()), 10_240), "{:#?}", ended.events);
}

#[test]
fn a_job_that_orders_its_samples_otherwise_is_not_resumed() {
    let kept_before = crashed("allreduce", |all| all / 2).kept.unwrap();
    let refused = |change: &dyn Fn(&mut Setup)| {
        let mut setup = kept_before.settings(kept(3, "allreduce"));
        change(&mut setup);
        let policy = policy("none");
        let world = World::resumed(setup, policy, models(1.0, Vec::new()), Blind, &kept_before);
        world.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(refused(&|setup| setup.epochs = 2), Ok(()));
    assert!(refused(&|setup| setup.samples = 10_241).unwrap_err().contains("samples"));
    assert!(refused(&|setup| setup.seed = Seed(2)).unwrap_err().contains("seed of the order"));
    assert!(refused(&|setup| setup.shard_len = Some(7)).unwrap_err().contains("shards"));
    assert!(refused(&|setup| setup.static_sharding = true).unwrap_err().contains("assignment of shards"));
}
