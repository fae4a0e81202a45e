use std::collections::{BTreeMap, BTreeSet};

use antdt_groups::member::MemberEffect;
use antdt_groups::{GeneratorEffect, GroupOrigin};

use super::*;
use crate::Recording;
use crate::happening::Happening;
use crate::recording::ReplayedGroups;

#[test]
fn a_case_is_a_function_of_its_seed_and_so_is_what_happens() {
    for seed in 0..20 {
        assert_eq!(partial_case(seed), partial_case(seed));
        assert_eq!(partial_case(seed).run(), partial_case(seed).run());
        assert!(partial_case(seed).setup.validate().is_ok());
    }
    assert_ne!(partial_case(0), partial_case(1));
}

#[test]
fn the_trace_of_a_case_is_the_same_each_time_and_replays_entry_by_entry() {
    let (mut restarts, mut deadlines) = (0, 0);
    for seed in 0..60 {
        let case = partial_case(seed);
        let bytes = case.trace(Vec::new()).unwrap();
        assert_eq!(bytes, case.trace(Vec::new()).unwrap(), "seed {seed}");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let replayed = Recording::read(file.path()).unwrap().replay_groups().unwrap();
        assert!(replayed.compared > replayed.events && !replayed.cut_off, "seed {seed}: {replayed:?}");
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count() as u64, 2 + text_entries(&replayed, &text), "seed {seed}");
        restarts += text.matches("\"k\":\"restart\"").count();
        deadlines += text.matches("\"k\":\"deadline\"").count();
    }
    assert!(restarts > 10 && deadlines > 0, "without these nothing is shown: {restarts} {deadlines}");
}

/// Events and deadlines that were put to it, what was compared, and restarts.
fn text_entries(replayed: &ReplayedGroups, text: &str) -> u64 {
    replayed.events + replayed.compared + text.matches("\"k\":\"restart\"").count() as u64
}

#[test]
fn a_trace_that_says_something_else_parts_where_it_does() {
    let text = |seed| String::from_utf8(partial_case(seed).trace(Vec::new()).unwrap()).unwrap();
    let text = (0..).map(text).find(|text| text.matches("\"Commit\"").count() > 2).unwrap();
    let parted = |text: String| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Recording::read(file.path()).unwrap().replay_groups().unwrap_err().to_string()
    };
    let (at, _) = text.match_indices("\"Commit\"").nth(2).unwrap();
    let line = text[..at].lines().count();
    let changed = format!("{}\"Abort\"{}", &text[..at], &text[at + "\"Commit\"".len()..]);
    let error = parted(changed);
    assert!(error.contains(&format!("entry {} (line {line})", line - 1)), "{error}");
    assert!(error.contains("the generator parts from the recording"), "{error}");
    // The recording of a job has no generator.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&crate::chaos::case(3).trace(Vec::new()).unwrap()).unwrap();
    let error = Recording::read(file.path()).unwrap().replay_groups().unwrap_err().to_string();
    assert!(error.ends_with("the header has no generator; record the job again"), "{error}");
}

/// Counts what happens.
#[derive(Debug, Default)]
struct Counted(BTreeMap<&'static str, u32>, BTreeSet<GroupOrigin>);

impl Observer for Counted {
    fn saw(&mut self, _: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        let what = match what {
            Happening::GroupEffect(GeneratorEffect::Go { go, .. }) => {
                self.1.insert(go.kind);
                if go.key.attempt > 0 { "run again" } else { "run" }
            }
            Happening::GroupEffect(GeneratorEffect::Skip { .. }) => "skipped",
            Happening::GroupEffect(GeneratorEffect::Abort { .. }) => "aborted",
            Happening::Member(_, MemberEffect::Apply(_)) => "applied",
            Happening::Member(_, MemberEffect::Fenced(_)) => "fenced",
            Happening::Group(_, Ok(antdt_groups::Taken::Again)) => "said again",
            Happening::Group(_, Ok(antdt_groups::Taken::Old)) => "old",
            Happening::Fault(Fault::Crash(_)) => "crash",
            Happening::Fault(Fault::Pause(..)) => "pause",
            Happening::Fault(Fault::Cut(..)) => "cut",
            Happening::Fault(Fault::PauseMaster(_)) => "generator pauses",
            Happening::Fault(Fault::RestartLedger) => "generator restarts",
            _ => return Ok(()),
        };
        *self.0.entry(what).or_default() += 1;
        Ok(())
    }
}

#[test]
fn groups_are_apart_and_in_order_and_everybody_is_answered_in_random_worlds() {
    let mut all = Counted::default();
    for seed in 0..400 {
        let case = partial_case(seed);
        let (result, counted) = case.run_watched(Counted::default()).unwrap();
        if let Err(error) = result {
            let again = format!("cargo xtask sim --seed {seed} --trace seed-{seed}.jsonl");
            panic!("seed {seed}: {error}\n{again}\n{}", case.story());
        }
        for (what, count) in counted.0 {
            *all.0.entry(what).or_default() += count;
        }
        all.1.extend(counted.1);
    }
    // Without these nothing is shown.
    assert!(all.0.len() == 13 && all.1.len() >= 5, "{all:?}");
    assert!(all.0.values().all(|count| *count > 10), "{all:?}");
}
