use super::*;

/// Cases of the suite: all that a debug build does in a few seconds.
const SEEDS: u64 = 300;

/// And all of them.
const SEEDS_MORE: u64 = 1000;

#[test]
fn a_case_is_a_function_of_its_seed_and_so_is_what_happens() {
    for seed in 0..5 {
        assert_eq!(case(seed), case(seed));
        assert_eq!(case(seed).run(), case(seed).run());
    }
    assert_ne!(case(0), case(1));
}

#[test]
fn cases_are_of_every_kind() {
    let cases: Vec<Case> = (0..500).map(case).collect();
    for sync in [SyncMode::AllReduce, SyncMode::PsBsp, SyncMode::PsAsp] {
        assert!(cases.iter().any(|case| case.setup.sync == sync));
    }
    let kinds: std::collections::BTreeSet<_> = cases
        .iter()
        .flat_map(|case| &case.faults)
        .map(|(_, fault)| format!("{fault:?}").split('(').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(kinds.len(), 6, "{kinds:?}");
    assert!(cases.iter().any(|case| case.faults.is_empty()));
    assert!(cases.iter().all(|case| case.setup.validate().is_ok()));
}

#[test]
fn every_invariant_holds_in_random_worlds() {
    hold_in(0..SEEDS);
}

/// Some of the defects in `mutants.toml` need more of them.
#[test]
fn every_invariant_holds_in_more_random_worlds() {
    hold_in(SEEDS..SEEDS_MORE);
}

fn hold_in(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(error) = case(seed).run() {
            panic!(
                "seed {seed}: {error}\ncargo run -p antdt-sim --release --bin antdt-chaos -- --seed {seed}"
            );
        }
    }
}
