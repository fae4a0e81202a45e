#![allow(unreachable_pub, reason = "the macro defines what a suite offers to others")]

use std::fmt;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;
use crate::InvalidValue;

/// A counter that starts at a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counter {
    start: u8,
}

impl Setting for Counter {
    const NAME: &'static str = "counter";
    type Step = u8;

    fn check(&self) -> Result<(), InvalidValue> {
        if self.start > 9 { Err(InvalidValue::new("start", self.start, "at most 9")) } else { Ok(()) }
    }
}

crate::promises! {
    /// An invariant of a counter.
    pub enum CounterInvariant {
        /// The counter stays small.
        Small = "small",
        /// The counter is not stopped.
        Runs = "runs",
    }

    /// Invariants of a counter.
    pub struct CounterInvariants;
}

impl fmt::Display for CounterInvariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

type CounterBroken = Broken<CounterInvariant, Counter>;

/// The counter adds up its steps; it stays below 20.
fn check(all: &CounterInvariants, history: &History<Counter>) -> Result<(), CounterBroken> {
    let mut count = u32::from(history.setting().start);
    for (at, step) in (1..).zip(history.steps()) {
        count += u32::from(*step);
        if count >= 20 && all.contains(CounterInvariant::Small) {
            let what = format!("it is {count}");
            return Err(Broken::new(
                CounterInvariant::Small,
                at,
                format!("in step {at}"),
                what,
                history.clone(),
            ));
        }
    }
    Ok(())
}

fn histories() -> impl Strategy<Value = History<Counter>> {
    history::of((0..20_u8).prop_map(|start| Counter { start }), 0..9_u8, 0..=40)
}

#[test]
fn smallest_history_that_breaks_an_invariant_is_reported_with_its_line() {
    let found = find_break(100, histories(), |history| check(&CounterInvariants::all(), history));
    let broken = found.unwrap_err();
    let total: u32 = broken.history().steps().iter().copied().map(u32::from).sum();
    assert!(total + u32::from(broken.history().setting().start) >= 20);
    assert_eq!(
        (broken.invariant(), broken.step()),
        (CounterInvariant::Small, broken.history().steps().len())
    );
    let text = broken.to_string();
    assert!(text.starts_with("invariant small is broken: The counter stays small.\n  in step "), "{text}");
    let line = text.rsplit_once("replay: history::replay(r#\"").unwrap().1.strip_suffix("\"#)").unwrap();
    assert_eq!(&history::replay::<Counter>(line), broken.history());
}

#[test]
fn invariant_that_is_left_out_is_not_checked() {
    let others = CounterInvariants::all().without(CounterInvariant::Small);
    assert_eq!(others, CounterInvariants::only([CounterInvariant::Runs]));
    find_break(100, histories(), |history| check(&others, history)).unwrap();
}

#[test]
fn line_that_is_no_history_is_refused_in_one_line() {
    for line in [
        "",
        "{}",
        r#"{"counter":{"start":1}}"#,
        r#"{"counter":{"start":1},"steps":[],"more":1}"#,
        r#"{"counter":{"start":1,"more":1},"steps":[]}"#,
        r#"{"counter":{"start":1},"steps":["x"]}"#,
    ] {
        let error = line.parse::<History<Counter>>().unwrap_err().to_string();
        assert!(error.starts_with("history = ") && error.lines().count() == 1, "{error}");
    }
    let error = r#"{"counter":{"start":10},"steps":[]}"#.parse::<History<Counter>>().unwrap_err();
    assert_eq!(error.to_string(), "start = 10: must be at most 9");
    assert_eq!(
        r#"{"counter":{"start":9},"steps":[1,2]}"#.parse::<History<Counter>>().unwrap().steps(),
        [1, 2]
    );
}
