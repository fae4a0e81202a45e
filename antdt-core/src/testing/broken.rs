//! [`Broken`]: the report of an invariant that is broken in a history.

use std::fmt;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::history::{History, Line, Setting, replay};
use super::promises::Promise;

/// Report that an invariant is broken in a history. Its text names the invariant and the step, says how the
/// invariant was broken, and gives the line that replays the history.
#[derive(Clone, PartialEq, Eq)]
pub struct Broken<I, S: Setting>(Box<Found<I, S>>);

#[derive(Clone, PartialEq, Eq)]
struct Found<I, S: Setting> {
    invariant: I,
    step: usize,
    at: String,
    what: String,
    history: History<S>,
}

impl<I: Promise, S: Setting> Broken<I, S> {
    /// Returns the report that `invariant` is broken at `step`, numbered from 1. `at` says where that is, for
    /// people, and `what` how it is broken.
    pub fn new(
        invariant: I,
        step: usize,
        at: impl Into<String>,
        what: impl Into<String>,
        history: History<S>,
    ) -> Self {
        Self(Box::new(Found { invariant, step, at: at.into(), what: what.into(), history }))
    }

    /// Returns the broken invariant.
    pub fn invariant(&self) -> I {
        self.0.invariant
    }

    /// Returns the number of the step, from 1, after which the invariant was broken; 0 if that was before the
    /// first step, and one more than there are steps if it was after the last.
    pub fn step(&self) -> usize {
        self.0.step
    }

    /// Returns a description of how the invariant was broken.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns the history in which the invariant was broken.
    pub fn history(&self) -> &History<S> {
        &self.0.history
    }
}

impl<I: Promise, S: Setting> fmt::Display for Broken<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { invariant, at, what, history, .. } = &*self.0;
        writeln!(f, "invariant {invariant} is broken: {}", invariant.promise())?;
        write!(f, "  {at}\n  {what}\n  replay: {}", Line(history))
    }
}

impl<I: Promise, S: Setting> fmt::Debug for Broken<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<I: Promise, S: Setting> std::error::Error for Broken<I, S> {}

/// Checks so many histories, the same each time.
///
/// # Errors
/// The invariant that is broken in a history from which no step can be taken: without any of its steps the
/// invariant would hold.
///
/// # Panics
/// If a history breaks an invariant once and not again, also from the line that replays it; or if no
/// histories can be drawn.
pub fn find_break<I: Promise, S: Setting>(
    cases: u32,
    histories: impl Strategy<Value = History<S>>,
    check: impl Fn(&History<S>) -> Result<(), Broken<I, S>>,
) -> Result<(), Broken<I, S>> {
    let config = Config { cases, max_shrink_iters: 4_000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let history = match runner.run(&histories, |history| Ok(check(&history)?)) {
        Ok(()) => return Ok(()),
        Err(TestError::Fail(_, history)) => history,
        Err(TestError::Abort(why)) => panic!("no histories could be drawn: {why}"),
    };
    let Err(broken) = check(&history) else {
        panic!("a history breaks an invariant once and not again:\n{history:?}")
    };
    let broken = smallest(&check, broken);
    let again = check(&replay(&broken.history().to_string()));
    assert_eq!(again.as_ref().err(), Some(&broken), "the line replays another history");
    Err(broken)
}

/// Takes steps away while the same invariant is broken. proptest does so before it makes steps smaller, and
/// not again after.
fn smallest<I: Promise, S: Setting>(
    check: impl Fn(&History<S>) -> Result<(), Broken<I, S>>,
    mut broken: Broken<I, S>,
) -> Broken<I, S> {
    let less = |broken: &Broken<I, S>| {
        let without = |at| check(&broken.history().without(at)).err();
        let same = |smaller: &Broken<I, S>| smaller.invariant() == broken.invariant();
        (0..broken.history().steps().len()).rev().find_map(|at| without(at).filter(same))
    };
    while let Some(smaller) = less(&broken) {
        broken = smaller;
    }
    broken
}
