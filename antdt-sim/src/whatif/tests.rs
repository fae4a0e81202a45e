//! From files of each kind to runs.

use std::fmt::Write;
use std::fs::File;

use antdt_controller::policy::{NonDedicated, Unmanaged};
use antdt_core::Holder;

use super::*;
use crate::tracer::Tracer;

fn scenarios(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn refused(name: &str, text: &str) -> String {
    let (_folder, path) = file(name, text);
    WhatIf::read(&path).unwrap_err().to_string()
}

#[test]
fn slowdowns_make_a_job_as_long_as_they_are_and_pass_faster_on_demand() {
    // 40 s in which one of two workers is four times slower for good.
    let mut text = "t_s,worker,slowdown\n".to_owned();
    for second in (0..40).step_by(10) {
        write!(text, "{second},0,1\n{second},1,4\n").unwrap();
    }
    let (_folder, path) = file("night.csv", &text);
    let mut world = WhatIf::read(&path).unwrap();
    assert_eq!((world.setup.workers, world.setup.samples), (2, 80_000));
    let none = world.run(Box::new(Unmanaged)).unwrap();
    let nd = world.run(Box::new(NonDedicated::default())).unwrap();
    assert_eq!((&none.result, &nd.result), (&Ok(()), &Ok(())));
    // All at the pace of the slow one: 500 samples per second.
    let ratio = none.completed.as_secs_f64() / 160.0;
    assert!((1.0..1.05).contains(&ratio), "{ratio}");
    // Shared by speed it would be 1,250 samples per second.
    assert!(nd.completed.as_secs_f64() < 0.5 * none.completed.as_secs_f64(), "{:?}", nd.completed);
    assert!((0.36..0.42).contains(&none.idle_share), "{}", none.idle_share);
    assert!(nd.actions.iter().any(|action| action.kind == "ADJUST_BS"));

    world.compress(10.0).unwrap();
    assert_eq!(world.setup.samples, 8_000);
    assert!(world.compress(f64::NAN).unwrap_err().to_string().starts_with("speedup = NaN"));
    assert!(world.emulate_speed(f64::NAN).unwrap_err().to_string().starts_with("emulate-speed = NaN"));
    world.emulate_speed(2000.0).unwrap();
    let ratio = world.run(Box::new(Unmanaged)).unwrap().completed.as_secs_f64() / 8.0;
    assert!((1.0..1.1).contains(&ratio), "{ratio}");

    let mut scenario = WhatIf::read(&scenarios("even.toml")).unwrap();
    let error = scenario.emulate_speed(2000.0).unwrap_err().to_string();
    assert!(error.starts_with("emulate-speed = 2000: must be left out"), "{error}");
}

#[test]
fn the_same_question_has_the_same_answer() {
    let world = WhatIf::read(&scenarios("bursts.toml")).unwrap();
    let run = || world.run(Box::new(NonDedicated::default())).unwrap();
    assert_eq!(run(), run());
}

#[test]
fn a_slower_network_makes_the_job_longer() {
    let mut world = WhatIf::read(&scenarios("even.toml")).unwrap();
    let near = world.run(Box::new(Unmanaged)).unwrap();
    world.network = Some(CostModel { alpha: 0.02, bandwidth: 125e6, ..CostModel::LOOPBACK });
    let far = world.run(Box::new(Unmanaged)).unwrap();
    assert_eq!(near.steps, far.steps);
    assert!(far.completed > near.completed, "{:?} {:?}", near.completed, far.completed);
}

#[test]
fn a_run_that_takes_too_long_is_given_up() {
    let mut world = WhatIf::read(&scenarios("even.toml")).unwrap();
    world.limit = JobTime(1_000_000_000);
    let run = world.run(Box::new(Unmanaged)).unwrap();
    assert_eq!(run.result, Err("the job is not over after 1 s".to_owned()));
    assert_eq!(run.completed, world.limit);
}

/// The trace of a simulated job, which reads as that of a real one.
fn trace(setup: &Setup) -> (tempfile::TempDir, PathBuf, SimulatedJob) {
    trace_of(setup, |models| models)
}

/// The same, when the job meets something else.
fn trace_of(
    setup: &Setup,
    other: impl FnOnce(Models) -> Models,
) -> (tempfile::TempDir, PathBuf, SimulatedJob) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.trace");
    let mut world = WhatIf::read(&scenarios("straggler.toml")).unwrap();
    world.setup = setup.clone();
    let policy = || Box::new(NonDedicated::default());
    let tracer = Tracer::new(File::create(&path).unwrap(), "job", setup, policy()).unwrap();
    let world = World::watched(setup.clone(), policy(), other(world.models().unwrap()), tracer).unwrap();
    let (outcome, tracer) = world.run(JobTime::NEVER).map_err(|(violation, _)| violation).unwrap();
    tracer.finish().unwrap();
    (folder, path, outcome)
}

#[test]
fn a_trace_of_a_simulated_job_reads_as_a_recording_and_simulates_alike() {
    let mut setup = WhatIf::read(&scenarios("straggler.toml")).unwrap().setup;
    setup.samples = 60_000;
    let (_folder, path, outcome) = trace(&setup);
    let recording = Recording::read(&path).unwrap();
    assert!(recording.facts().unwrap().end.is_some());

    let world = WhatIf::read(&path).unwrap();
    assert_eq!(world.policy(), Some("nd"));
    let recorded = world.recorded().unwrap();
    assert_eq!((recorded.completed, &recorded.result), (outcome.completed, &Ok(())));
    assert_eq!(recorded.source, Provenance::Trace, "it has not really happened");
    assert_eq!((recorded.samples, recorded.cut_off), (60_000, false), "those after the last tick too");
    let kinds = |actions: &[RunAction]| actions.iter().map(|action| action.kind.clone()).collect::<Vec<_>>();
    let simulated: Vec<RunAction> = outcome.actions.iter().cloned().map(RunAction::from).collect();
    assert_eq!(kinds(&recorded.actions), kinds(&simulated));
    assert!((recorded.idle_share - outcome.idle_share()).abs() < 0.05);

    // What was recorded, simulated again, takes about as long.
    let again = world.run(Box::new(NonDedicated::default())).unwrap();
    let ratio = again.completed.as_secs_f64() / recorded.completed.as_secs_f64();
    assert!((0.9..1.1).contains(&ratio), "{ratio}");

    let (_other, other, _) = trace(&setup);
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&other).unwrap(), "same seed, same bytes");
}

#[test]
fn assumptions_after_the_end_of_a_recording_are_named() {
    let mut setup = WhatIf::read(&scenarios("straggler.toml")).unwrap().setup;
    setup.samples = 60_000;
    let (_folder, path, outcome) = trace(&setup);
    let world = WhatIf::read(&path).unwrap();
    let none = world.run(Box::new(Unmanaged)).unwrap();
    assert!(none.completed > outcome.completed);
    let line = format!("the recording reaches until {:.1} s; after", outcome.completed.as_secs_f64());
    assert!(world.beyond(&none)[0].starts_with(&line), "{:?}", world.beyond(&none));
    assert_eq!(world.beyond(&world.recorded().unwrap()), [""; 0]);
    let mut shorter = world.clone();
    shorter.setup.samples = shorter.setup.samples * 4 / 5;
    let run = shorter.run(Box::new(NonDedicated::default())).unwrap();
    assert_eq!(shorter.beyond(&run), [""; 0], "{:?}", run.completed);

    // So many workers are done before anything happens.
    let mut wider = world;
    let recorded = wider.setup.workers;
    wider.setup.workers = 64;
    wider.setup.samples /= 4;
    let run = wider.run(Box::new(Unmanaged)).unwrap();
    let lines = wider.beyond(&run);
    assert_eq!(lines.len(), 2, "{lines:?} {:?}", run.completed);
    let words = format!("{recorded} workers were recorded; the other {} are assumed", 64 - recorded);
    assert!(lines[0].starts_with(&words) && lines[1].starts_with("the first death or action"), "{lines:?}");

    // The first half of it.
    let text = std::fs::read_to_string(&path).unwrap();
    let half = text.lines().take(text.lines().count() / 2).map(|line| format!("{line}\n"));
    let (_other, path) = file("cut.trace", &half.collect::<String>());
    let world = WhatIf::read(&path).unwrap();
    let cut = world.recorded().unwrap();
    assert!(cut.cut_off && cut.result.is_err() && cut.samples < 60_000, "{}", cut.samples);
    let run = world.run(Box::new(NonDedicated::default())).unwrap();
    assert!(!world.beyond(&run).is_empty() && cut.completed < run.completed);
}

#[test]
fn recorded_workers_have_the_devices_that_they_had() {
    let mixed = || WhatIf::read(&scenarios("mixed_devices.toml")).unwrap();
    let setup = mixed().setup;
    let (_folder, path, _) =
        trace_of(&setup, |models| Models { compute: mixed().models().unwrap().compute, ..models });
    let mut world = WhatIf::read(&path).unwrap();
    // Those that were not recorded are like the median of those that were.
    (world.setup.workers, world.setup.samples) = (6, 2 * setup.samples);
    let compute = world.models().unwrap().compute;
    let devices = [0, 1, 2, 3, 5].map(|index| compute.device(NodeId::worker(index)).to_string());
    assert_eq!(devices, ["fast", "slow", "fast", "slow", "slow"]);
    let run = world.run(Box::new(NonDedicated::default())).unwrap();
    assert!(run.actions.iter().all(|action| action.kind != "KILL_RESTART"), "{:?}", run.actions);
}

/// What comes before the first step takes long: longer the later a worker's number, and longest on a server.
#[derive(Debug)]
struct Slow;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Scheduler for Slow {
    fn start(&mut self, _: JobTime, life: Holder, _: &mut DetRng) -> Option<Duration> {
        let of = if life.node.role == Role::Server { 300 } else { 100 };
        Some(ms(of + 10 * u64::from(life.node.index)))
    }
    fn ready(&mut self, _: JobTime, life: Holder, _: &mut DetRng) -> Duration {
        ms(500 + 100 * u64::from(life.node.index))
    }
}

/// Only to form a group takes time.
#[derive(Debug)]
struct Forming;

impl Network for Forming {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at)
    }
    fn collective(&mut self, _: JobTime, _: Collective, _: u32, _: &mut DetRng) -> Duration {
        Duration::ZERO
    }
    fn form(&mut self, _: JobTime, _: u32, _: &mut DetRng) -> Duration {
        ms(400)
    }
}

#[test]
fn the_start_of_a_simulated_recording_takes_as_long_as_recorded() {
    for sync in ["allreduce", "ps-bsp", "ps-asp"] {
        let servers = if sync.starts_with("ps-") { 2 } else { 0 };
        let mut setup = Setup {
            sync: sync.parse().unwrap(),
            servers,
            ..WhatIf::read(&scenarios("even.toml")).unwrap().setup
        };
        setup.samples = u64::from(setup.global_batch_size) * 20;
        let (_folder, path, outcome) = trace_of(&setup, |models| Models {
            scheduler: Box::new(Slow),
            network: Box::new(Forming),
            ..models
        });
        let facts = Recording::read(&path).unwrap().facts().unwrap();
        assert_eq!(facts.formed, (servers == 0).then_some(ms(400)), "{sync:?}");
        for start in &facts.starts {
            let index = u64::from(start.life.node.index);
            let ready = (start.life.node.role == Role::Worker).then_some(ms(500 + 100 * index));
            assert_eq!(start.ready, ready, "{sync:?}: {}", start.life);
        }
        let again = WhatIf::read(&path).unwrap().run(Box::new(NonDedicated::default())).unwrap();
        let differs = again.completed.0.abs_diff(outcome.completed.0) / 1_000_000;
        assert!(differs < 50, "{sync:?}: {:?} in place of {:?}", again.completed, outcome.completed);
    }
}

#[test]
fn an_unusable_file_is_refused_with_its_name() {
    let missing = WhatIf::read(Path::new("no/such/file.csv")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such/file.csv: ") && missing.contains("name a recording"), "{missing}");
    assert!(refused("empty.csv", " \n").contains("nothing is in it"));
    assert!(refused("a.csv", "t_s,worker,slowdown\n0,0,x\n").contains("a.csv: line 2: `x`"));
    assert!(refused("a.jsonl", "{\"a\": 1}\n").contains("record one with `antdt run --record FILE`"));
    assert!(refused("a.toml", "[job]\nworkerz = 1\n").contains("workerz"));
    let mut scenario = WhatIf::read(&scenarios("even.toml")).unwrap();
    assert!(scenario.compress(2.0).unwrap_err().to_string().starts_with("speedup = 2: must be left out"));
}
