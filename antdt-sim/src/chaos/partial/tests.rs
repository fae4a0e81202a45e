use std::collections::{BTreeMap, BTreeSet};

use antdt_collective::partial::member::MemberEffect;
use antdt_collective::partial::{GeneratorEffect, GroupKind};

use super::*;
use crate::happening::Happening;

#[test]
fn a_case_is_a_function_of_its_seed_and_so_is_what_happens() {
    for seed in 0..20 {
        assert_eq!(partial_case(seed), partial_case(seed));
        assert_eq!(partial_case(seed).run(), partial_case(seed).run());
        assert!(partial_case(seed).setup.validate().is_ok());
    }
    assert_ne!(partial_case(0), partial_case(1));
}

/// Counts what happens.
#[derive(Debug, Default)]
struct Counted(BTreeMap<&'static str, u32>, BTreeSet<GroupKind>);

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
            Happening::Group(_, Ok(antdt_collective::partial::Taken::Again)) => "said again",
            Happening::Group(_, Ok(antdt_collective::partial::Taken::Old)) => "old",
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
            panic!("seed {seed}: {error}\ncargo xtask sim --seed {seed}\n{}", case.story());
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
