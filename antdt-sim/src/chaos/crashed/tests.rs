use std::collections::BTreeSet;

use super::*;

/// Crashed jobs of the suite: all that a debug build does in a few seconds.
const SEEDS: u64 = 200;

#[test]
fn the_samples_of_all_lives_are_those_of_an_uninterrupted_job() {
    let mut all = Resumption::default();
    let (mut twice, mut fewer, mut more, mut others) = (0, 0, 0, 0);
    let mut modes = BTreeSet::new();
    for seed in 0..SEEDS {
        let job = crashed(seed);
        let seen = job.run().unwrap_or_else(|error| panic!("seed {seed}: {error}\n{job}"));
        all.resumed += seen.resumed;
        all.anew += seen.anew;
        all.again += seen.again;
        if seen.resumed > 0 {
            let [first, .., last] = &job.lives[..] else { panic!("seed {seed}: one life") };
            modes.insert(first.setup.sync.to_string());
            twice += u32::from(job.points.len() > 1);
            fewer += u32::from(last.setup.workers < first.setup.workers);
            more += u32::from(last.setup.workers > first.setup.workers);
            others += u32::from(last.setup.sync != first.setup.sync);
        }
    }
    // Without these little is shown.
    assert_eq!(modes.len(), SyncMode::examples().len(), "{modes:?}");
    assert!(all.resumed > 100 && all.again > 1000, "{all:?}");
    let rest = [all.anew, twice, fewer, more, others];
    assert!(rest.iter().all(|count| *count > 10), "{all:?} {rest:?}");
}

#[test]
fn a_crashed_job_and_its_history_are_functions_of_its_seed() {
    for seed in 0..3 {
        assert_eq!(crashed(seed), crashed(seed));
        assert_eq!(crashed(seed).run(), crashed(seed).run());
    }
    assert_ne!(crashed(0), crashed(1));
}

#[test]
fn a_model_that_lacks_a_sample_or_has_one_twice_is_no_success() {
    let job = crashed(0);
    // Another data set has other samples.
    let mut other = job.clone();
    other.lives[0].setup.samples += 1;
    let (_, counted) = run(&other.lives[0], None).unwrap();
    let (_, expected) = run(&job.lives[0], None).unwrap();
    let compared = compare(counted.times(), expected.times(), Resumption::default());
    assert!(matches!(compared, Err(CaseError::Counted(_))), "{compared:?}");
    let total = u64::from(job.lives[0].setup.epochs) * job.lives[0].setup.samples;
    assert_eq!(expected.times().total(), total);
}
