use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::pair::Pair;
use super::real::Real;
use crate::testing::history::{self, specs};
use crate::testing::story::Story;

thread_local! {
    /// What happened how often, in all histories of a test.
    static SEEN: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// As many cases as `PROPTEST_CASES` says, for each `of_256` of its default of 256.
pub(super) fn config(of_256: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases * of_256 / 256,
        max_shrink_iters: default.max_shrink_iters.min(4_000),
        failure_persistence: None,
        ..default
    }
}

/// Histories in which nothing happens prove nothing: `least` is for 1,000 of them.
pub(super) fn check_seen(seen: &BTreeMap<&'static str, u64>, cases: u32, least: &[(&str, u64)]) {
    for (what, least) in least {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(times * 1_000 >= least * u64::from(cases), "too little happened: {what} in {seen:?}");
    }
}

/// What 1,000 histories must have seen; about half of what they do.
const LEAST: [(&str, u64); 27] = [
    ("granted", 3_000),
    ("granted again", 500),
    ("adopted", 400),
    ("adopted again", 100),
    ("counted at adoption", 30),
    ("not adopted", 1_000),
    ("several at once", 500),
    ("recalled", 40),
    ("resumed", 300),
    ("wait", 2_000),
    ("woken", 1_000),
    ("at limit", 400),
    ("end of data", 500),
    ("stopped by quarantine", 100),
    ("refused question", 2_000),
    ("accepted", 4_000),
    ("stale", 2_000),
    ("refused ack", 2_000),
    ("completed", 1_500),
    ("released", 150),
    ("failed", 100),
    ("fenced", 1_500),
    ("frozen", 700),
    ("cut", 400),
    ("restored", 500),
    ("restarted", 700),
    ("restarted without the end of its log", 300),
];

#[test]
fn every_history_keeps_every_sample_and_counts_none_twice() {
    let config = config(1_024);
    let mut runner = TestRunner::new(config.clone());
    let result = runner.run(&history::of(specs(), 1..=199), |history| {
        let mut story = Story::new(history.setting().clone(), true, false);
        let mut real = Real::new(history.setting().clone());
        for step in history.steps() {
            for call in story.take(step) {
                let expected = story.model.say(&call);
                let reply = real.hear(&call, &expected, &story.model);
                story.heard(&call, &reply);
            }
        }
        SEEN.with_borrow_mut(|seen| {
            for (what, times) in &story.model.book.seen {
                *seen.entry(what).or_insert(0) += times;
            }
            *seen.entry("woken").or_insert(0) += real.wakes();
        });
        Pair { model: story.model, real }.drain();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    SEEN.with_borrow(|seen| check_seen(seen, config.cases, &LEAST));
}
