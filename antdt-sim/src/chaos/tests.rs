use std::collections::{BTreeMap, BTreeSet};
use std::io::BufWriter;

use antdt_core::trace::EntryKind;
use antdt_core::{Holder, Role};
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent, Reply};
use antdt_shard::ledger::{Answer, Event};

use super::*;
use crate::Recording;
use crate::recording::RecordingError;

/// Cases of the suite: all that a debug build does in a few seconds.
const SEEDS: u64 = 300;

#[test]
fn a_case_and_its_history_are_functions_of_its_seed() {
    for seed in 0..5 {
        assert_eq!(case(seed), case(seed));
        assert_eq!(case(seed).run(), case(seed).run());
    }
    assert_ne!(case(0), case(1));
}

#[test]
fn cases_are_of_every_kind() {
    let cases: Vec<Case> = (0..500).map(case).collect();
    for sync in ["allreduce", "ps-bsp", "ps-asp", "ps-ssp=2", "ps-backup=1"] {
        assert!(cases.iter().any(|case| case.setup.sync.to_string() == sync));
    }
    let kinds: BTreeSet<_> = cases
        .iter()
        .flat_map(|case| &case.faults)
        .map(|(_, fault)| format!("{fault:?}").split('(').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(kinds.len(), 11, "{kinds:?}");
    assert!(cases.iter().any(|case| case.faults.is_empty()));
    assert!(cases.iter().all(|case| case.setup.validate().is_ok()));
}

#[test]
fn every_invariant_holds_in_random_worlds() {
    hold_in(0..SEEDS);
}

/// Some of the defects in `mutants.toml` need more of them.
#[test]
fn every_invariant_holds_in_more_random_worlds_in_which_everything_goes_wrong() {
    let tally = hold_in(SEEDS..SEEDS + SEEDS_ENOUGH);
    assert_eq!(tally.missing(&JobEnding::ALL), Vec::<String>::new(), "{tally}");
}

/// Workers ask for a group again and again while the master stands still. Once it goes on, copies of what they asked come
/// after the group was formed, and one of its members dies: what they said in the group before was taken for what
/// they have.
#[test]
fn old_questions_for_a_group_that_a_master_finds_when_it_goes_on_decide_nothing() {
    let ms = Duration::from_millis;
    let (paused, crashed) = (JobTime(2_666_069_620), JobTime(9_339_256_718));
    let faults = vec![
        (paused, Fault::PauseMaster(Duration::from_nanos(46_893_195_713))),
        (paused, Fault::Cut(NodeId::worker(0), Duration::from_nanos(745_229_339))),
        (crashed, Fault::Crash(NodeId::worker(3))),
    ];
    let setup = Setup {
        global_batch_size: 4,
        samples: 44,
        workers_per_host: 2,
        gradient_bytes: 256,
        max_restarts: 50,
        control_tick: ms(57),
        heartbeat: ms(87),
        silence_limit: Duration::from_nanos(2_476_230_254),
        collective_timeout: ms(1_521),
        seed: Seed(16_758),
        ..Setup::default()
    };
    let rough = Rough {
        sample_time: Duration::from_micros(1_899),
        slow: vec![1, 1, 6, 1],
        variation: 0.0,
        latency: Duration::from_micros(1_477),
        jitter: Duration::from_nanos(4_750_426),
        loss: 0.0,
        start: Duration::from_nanos(2_526_860_686),
        calm_from: crashed,
    };
    let outcome = Case { setup, policy: "none", rough, faults }.run();
    assert_eq!(outcome.map(|outcome| outcome.result), Ok(Ok(())));
}

/// Beyond those, each the first one in which a defect in `mutants.toml` shows: what a broken step took, taken twice; the
/// newest dead life not fenced; a checkpoint begun while others train.
#[test]
fn every_invariant_holds_where_a_rare_defect_would_show() {
    hold_in([1913, 2298, 2380, 3034, 4457]);
}

/// A master writes down that it adds a server, and dies before it launches it: the next one ends the life that never began.
#[test]
fn a_server_that_was_added_and_never_began_is_ended_by_the_next_master() {
    hold_in([6469, 8178]);
}

/// A master writes down that it has one server fewer, and dies before it tells the launcher: workers of the next one waited for ever for
/// the server that is gone.
#[test]
fn a_job_has_the_servers_that_its_last_master_wrote_down() {
    hold_in([9305]);
}

/// Those seeds that are known by name keep their histories, whatever is drawn for others.
#[test]
fn the_number_of_servers_changes_in_a_hundredth_of_all_worlds_and_in_none_that_is_known_by_name() {
    let tally = hold_in(0..2_000);
    assert!(tally.with(FaultKind::ScaleServers) >= 20, "{tally}");
    for seed in [1913, 2298, 2380, 3034, 4457, 761, 1707] {
        let has = |is: fn(&Fault) -> bool| case(seed).faults.iter().any(|(_, fault)| is(fault));
        let keeps_its_master = !has(|fault| matches!(fault, Fault::RestartMaster(..)));
        assert!(!(keeps_its_master && has(|fault| matches!(fault, Fault::ScaleServers(_)))), "{seed}");
    }
}

/// A job that goes on with another master: that one restarted slow nodes as if none had been restarted before (761), and sooner than
/// they are to be left alone (1707).
#[test]
fn restarts_that_a_master_has_spent_on_slow_nodes_are_spent_under_the_next_one() {
    hold_in([761, 1707]);
}

/// The job of a seed, but that its workers average in groups that the master forms.
fn in_groups(seed: u64) -> Case {
    let modes = [
        "ripples=smart:2",
        "ripples=division:3",
        "ripples=buffer:2",
        "ripples=arrival:2",
        "ad-psgd",
        "ad-psgd=overlap",
    ];
    let mut case = case(seed);
    case.setup.sync = modes[index(&mut Seed(seed).derive("mode").rng(), modes.len())].parse().unwrap();
    case.setup.servers = 0;
    case.faults.retain(|(_, fault)| fault.node().is_none_or(|node| node.role == Role::Worker));
    case
}

/// Counts what becomes of groups.
#[derive(Debug, Default)]
struct GroupsSeen(BTreeMap<&'static str, u32>);

impl Observer for GroupsSeen {
    fn saw(&mut self, _: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        let what = match what {
            Happening::Effect(HeadEffect::Committed(_, commit)) => {
                match (commit.counted, commit.asked % 2, commit.contributors.len()) {
                    (false, ..) => "skipped",
                    (true, 0, _) => "run",
                    (true, _, 0..=1) => "committed alone",
                    (true, _, _) => "committed",
                }
            }
            Happening::Effect(HeadEffect::Undone(_)) => "undone",
            Happening::Worker(_, Reply::Broken, _) => "broken",
            Happening::Died(_) => "died",
            _ => return Ok(()),
        };
        *self.0.entry(what).or_default() += 1;
        Ok(())
    }
}

#[test]
fn every_invariant_holds_in_random_jobs_whose_workers_average_in_groups() {
    let mut all = GroupsSeen::default();
    for seed in 0..400 {
        let case = in_groups(seed);
        let (result, seen) = case.run_watched(GroupsSeen::default()).unwrap();
        if let Err(error) = result {
            panic!("seed {seed}: {error}\n{case}\n{}", case.story());
        }
        for (what, count) in seen.0 {
            *all.0.entry(what).or_default() += count;
        }
    }
    // Without these nothing is shown.
    assert!(all.0.len() == 7 && all.0.values().all(|count| *count > 10), "{all:?}");
}

fn hold_in(seeds: impl IntoIterator<Item = u64>) -> Tally {
    let mut all = Tally::default();
    for seed in seeds {
        match case(seed).run_counted() {
            Ok((_, tally)) => all.add(&tally),
            Err(error) => panic!(
                "seed {seed}: {error}\ncargo run -p antdt-sim --release --bin antdt-sim-chaos -- --seed {seed}"
            ),
        }
    }
    all
}

/// The trace of a case, and its recording.
fn recorded(case: &Case) -> (tempfile::NamedTempFile, Recording) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    case.trace(BufWriter::new(&mut file)).unwrap();
    let recording = Recording::read(file.path()).unwrap();
    (file, recording)
}

#[test]
fn a_simulated_trace_replays_entry_by_entry_with_any_faults_in_it() {
    let (mut syncs, mut restarts, mut wakes) = (BTreeSet::new(), 0, 0);
    for case in (0..).map(case).filter(|case| !case.setup.goes_back).take(80) {
        let seed = case.setup.seed.0;
        let (_file, recording) = recorded(&case);
        let replayed = recording
            .replay_with(case.policy().unwrap())
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(!replayed.cut_off && replayed.compared > replayed.events, "seed {seed}: {replayed:?}");
        let outcome = case.run().unwrap();
        assert_eq!(replayed.ledger.unwrap().counts(), outcome.counts, "seed {seed}");
        syncs.insert(case.setup.sync.to_string());
        for entry in recording.entries().unwrap().map(Result::unwrap) {
            restarts += u32::from(entry.kind == EntryKind::Restart);
            wakes += u32::from(entry.machine == "ledger" && entry.value.get() == "\"Wake\"");
        }
    }
    assert_eq!(syncs.len(), SyncMode::examples().len(), "{syncs:?}");
    assert!(restarts > 10 && wakes > 100, "{restarts} {wakes}");
}

#[test]
fn a_change_planted_in_a_simulated_trace_is_found_at_its_entry() {
    let kinds = [
        r#""m":"ledger","k":"effect","v":{"Record":{"Acked""#,
        r#""m":"ledger","k":"effect","v":"Wake""#,
        r#""m":"ledger","k":"answer","v":{"Exchange""#,
        r#""m":"ledger","k":"effect","v":{"Record":{"GenerationStarted""#,
        r#""m":"head","k":"effect""#,
    ];
    // The first case of each mode in which the service is restarted, and all of these are to be seen.
    for sync in SyncMode::examples() {
        let restarted = |case: &Case| case.faults.iter().any(|(_, fault)| *fault == Fault::RestartLedger);
        let fits = |case: &Case| case.setup.sync == sync && !case.setup.goes_back && restarted(case);
        let cases = (0..1000).map(case).filter(fits);
        let mut told = cases.map(|case| {
            let (file, _) = recorded(&case);
            let text = std::fs::read_to_string(file.path()).unwrap();
            (case, file, text)
        });
        let (found, file, text) =
            told.find(|(.., text)| kinds.iter().all(|what| text.contains(what))).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let place = |what: &str| lines.iter().rposition(|line| line.contains(what)).unwrap();
        let parts_at = |lines: Vec<String>| {
            std::fs::write(file.path(), lines.join("\n") + "\n").unwrap();
            match Recording::read(file.path()).unwrap().replay_with(found.policy().unwrap()) {
                Err(RecordingError::Parted { parting, .. }) => *parting,
                other => panic!("{} must part: {other:?}", sync),
            }
        };
        let owned = || lines.iter().map(|line| (*line).to_owned()).collect::<Vec<String>>();
        for what in kinds {
            let index = place(what);
            let mut changed = owned();
            changed[index] = changed[index].replacen(r#""v":"#, r#""v":[0],"w":"#, 1);
            let entry = changed[index].split(r#","w""#).next().unwrap().to_owned() + "}";
            changed[index] = entry;
            let found = parts_at(changed);
            assert_eq!(found.entry, index as u64, "{}: {what}", sync);
            assert_eq!(found.recorded.as_deref().and_then(|text| text.rsplit(' ').next()), Some("[0]"));
        }
        // A restart that is left out: the ledger would still be in its generation.
        let index = place(r#""k":"restart""#);
        let mut fewer = owned();
        fewer.remove(index);
        assert_eq!(parts_at(fewer).machine, "ledger");
    }
}

/// Ends the simulation after so many happenings.
struct Objects(u32);

impl Observer for Objects {
    fn saw(&mut self, at: JobTime, _: &Happening<'_>) -> Result<(), Violation> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| Violation {
            invariant: "patience",
            at,
            what: "enough".to_owned(),
        })?;
        Ok(())
    }
}

#[test]
fn a_trace_that_breaks_off_anywhere_replays_up_to_there() {
    let case = case(1);
    let mut compared = BTreeSet::new();
    for enough in (0..420).step_by(7) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let tracer = Tracer::new(&mut file, "job", &case.setup, case.policy().unwrap()).unwrap();
        let (result, (tracer, _)) = case.run_watched((tracer, Objects(enough))).unwrap();
        assert!(result.is_err(), "{enough}");
        tracer.break_off().unwrap();
        let replayed = Recording::read(file.path()).unwrap().replay().unwrap();
        assert!(replayed.cut_off);
        compared.insert(replayed.compared);
    }
    assert!(compared.len() > 30, "{compared:?}");
}

/// Workers at their own pace are cut off while a policy restarts now one, now another, and the shard service is started
/// again meanwhile. So a life that was given up comes back from behind its cut before the order to end reaches it, with a push
/// that it wants to be counted and leases of a service that is another one now.
fn with_the_dead_coming_back(seed: u64) -> Case {
    let rng = &mut Seed(seed).derive("the dead").rng();
    let ms = |least: u64, most: u64, rng: &mut DetRng| Duration::from_millis(least + rng.below(most - least));
    let workers = 3 + below(rng, 3);
    let heartbeat = ms(300, 600, rng);
    let setup = Setup {
        sync: "ps-asp".parse().unwrap(),
        workers,
        servers: 1 + below(rng, 2),
        global_batch_size: workers * (4 + below(rng, 12)),
        samples: 4_000,
        shard_len: Some(20 + rng.below(40)),
        gradient_bytes: 1 << 16,
        max_restarts: 50,
        control_tick: ms(50, 250, rng),
        heartbeat,
        silence_limit: Duration::from_secs(60),
        seed: Seed(seed),
        ..Setup::default()
    };
    let rough = Rough {
        sample_time: Duration::from_millis(4 + rng.below(8)),
        slow: vec![1; workers as usize],
        variation: 0.1,
        latency: Duration::from_micros(200),
        jitter: Duration::ZERO,
        loss: 0.0,
        start: Duration::from_secs(1),
        calm_from: JobTime::ZERO,
    };
    let mut faults: Vec<(JobTime, Fault)> = (1..workers)
        .map(|index| {
            let (at, lasting) = (ms(1_500, 6_000, rng), ms(5_000, 12_000, rng));
            (JobTime::ZERO + at, Fault::Cut(NodeId::worker(index), lasting))
        })
        .chain((0..3).map(|_| (JobTime::ZERO, Fault::RestartLedger)))
        .collect();
    for (at, fault) in &mut faults {
        if *fault == Fault::RestartLedger {
            *at = JobTime::ZERO + ms(5_000, 12_000, rng);
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    Case { setup, policy: Restless::NAME, rough, faults }
}

#[test]
fn dead_workers_that_come_back_after_a_restart_of_the_service_change_nothing() {
    let (mut given_up, mut came_back) = (0, 0);
    for seed in 0..150 {
        let case = with_the_dead_coming_back(seed);
        let (result, seen) = case.run_watched(CameBack::default()).unwrap();
        let outcome = result.unwrap_or_else(|error| panic!("{seed}: {error}\n{case}"));
        assert_eq!(outcome.result, Ok(()), "{seed}: {case}");
        given_up += seen.fenced.len();
        came_back += seen.refused.len();
    }
    // Without them nothing is shown.
    assert!(given_up > 100 && came_back > 5, "{given_up} given up, {came_back} came back after a restart");
}

/// Finds lives that want a push counted, or register, when the service has been started again since they were given up.
#[derive(Debug, Default)]
struct CameBack {
    /// At which life of the service.
    fenced: BTreeMap<Holder, u32>,
    services: u32,
    refused: BTreeSet<Holder>,
}

impl Observer for CameBack {
    fn saw(&mut self, _: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        match what {
            Happening::Fault(Fault::RestartLedger) => self.services += 1,
            Happening::Ledger(Event::WorkerLost { holder }, _) => {
                self.fenced.entry(*holder).or_insert(self.services);
            }
            Happening::Head(HeadEvent::Ready { holder, .. }, HeadAnswer::Fenced)
            | Happening::Ledger(Event::Register { holder, .. }, Answer::Register(Err(_)))
                if self.fenced.get(holder).is_some_and(|service| *service < self.services) =>
            {
                self.refused.insert(*holder);
            }
            _ => {}
        }
        Ok(())
    }
}
