//! What must come of a scenario.

use std::time::Duration;

use antdt_controller::action;
use antdt_core::text::nearest;
use antdt_core::{InvalidValue, NodeId};
use serde::Deserialize;

use super::models::{Actions, Span};
use crate::SimulatedJob;

/// The end of a job that a scenario expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The job commits every sample.
    Completes,
    /// The job ends with an error.
    Fails,
}

/// The result that a scenario expects. A field that is left out allows any value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Expectation {
    /// Expected end of the job.
    pub outcome: Option<Ending>,
    /// Shortest time until the job ends.
    pub shortest: Option<Span>,
    /// Longest time until the job ends.
    pub longest: Option<Span>,
    /// Actions that must be taken, in the form of reports: `KILL_RESTART`, or `KILL_RESTART worker-1`.
    pub must: Actions,
    /// Kinds of actions that must not be taken.
    pub must_not: Actions,
}

/// Actions as the report writes them: what policies decide on, the restart of a node that ended, and a decision that was refused.
fn kinds() -> Vec<&'static str> {
    [action::REGISTRY.names(), vec!["RESTART", "REFUSED"]].concat()
}

impl Expectation {
    /// Whether it names actions that there are.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        let kinds = kinds();
        for (field, actions) in [("expect.must", &self.must), ("expect.must-not", &self.must_not)] {
            for action in actions {
                let (kind, target) = action.split_once(' ').unwrap_or((action, "all"));
                if !kinds.contains(&kind) {
                    let hint = nearest(kind, &kinds).map(|known| format!("; did you mean {known}?"));
                    let (names, hint) = (kinds.join(", "), hint.unwrap_or_default());
                    let remedy = format!("one of {names}, alone or before a node{hint}");
                    return Err(InvalidValue::new(field, format!("`{action}`"), remedy));
                }
                if target != "all" {
                    target
                        .parse::<NodeId>()
                        .map_err(|error| InvalidValue { field: field.to_owned(), ..error })?;
                }
            }
        }
        Ok(())
    }

    /// Returns the differences between a simulated job and the expected result, one line each; empty if there
    /// are none.
    pub fn check(&self, outcome: &SimulatedJob) -> Vec<String> {
        let took = outcome.completed.since_start();
        let mut wrong = ends(self.outcome, self.shortest, self.longest, &outcome.result, took);
        let taken = |wanted: &str| {
            outcome.actions.iter().any(|action| match wanted.split_once(' ') {
                Some((kind, target)) => (action.kind, action.target.as_str()) == (kind, target),
                None => action.kind == wanted,
            })
        };
        wrong.extend(
            self.must.iter().filter(|wanted| !taken(wanted)).map(|wanted| format!("{wanted} was not done")),
        );
        wrong.extend(
            self.must_not.iter().filter(|wanted| taken(wanted)).map(|wanted| format!("{wanted} was done")),
        );
        wrong
    }
}

/// What is not as expected of the end, one line each.
pub(super) fn ends(
    expected: Option<Ending>,
    shortest: Option<Span>,
    longest: Option<Span>,
    result: &Result<(), String>,
    took: Duration,
) -> Vec<String> {
    let mut wrong = Vec::new();
    match (expected, result) {
        (Some(Ending::Completes), Err(why)) => wrong.push(format!("should complete, but failed: {why}")),
        (Some(Ending::Fails), Ok(())) => wrong.push("should fail, but completed".to_owned()),
        (Some(Ending::Completes), Ok(())) | (Some(Ending::Fails), Err(_)) | (None, _) => {}
    }
    if let Some(Span(shortest)) = shortest.filter(|shortest| took < shortest.0) {
        wrong.push(format!("took {took:?}, less than {shortest:?}"));
    }
    if let Some(Span(longest)) = longest.filter(|longest| took > longest.0) {
        wrong.push(format!("took {took:?}, more than {longest:?}"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use antdt_core::{Counts, JobTime};

    use super::*;
    use crate::journal::JournalAction;

    fn action(kind: &'static str, target: &str) -> JournalAction {
        JournalAction { at: JobTime::ZERO, step: 0, kind, target: target.to_owned(), reason: String::new() }
    }

    #[test]
    fn each_deviation_is_one_line() {
        let second = Duration::from_secs(1);
        let expect = Expectation {
            outcome: Some(Ending::Completes),
            shortest: Some(Span(second * 2)),
            longest: Some(Span(second * 4)),
            must: vec!["KILL_RESTART worker-1".to_owned()],
            must_not: vec!["ADJUST_BS".to_owned()],
        };
        let outcome = |result, seconds: u32, actions: &[(&'static str, &str)]| SimulatedJob {
            result,
            completed: JobTime::from_duration(second * seconds),
            actions: actions.iter().map(|(kind, target)| action(kind, target)).collect(),
            steps: 0,
            counts: Counts::default(),
            events: Vec::new(),
            switches: Vec::new(),
            exits: Vec::new(),
            usage: Vec::new(),
            series: BTreeMap::new(),
            kept: None,
            simulated: 0,
        };
        let restart = ("KILL_RESTART", "worker-1");
        assert_eq!(expect.check(&outcome(Ok(()), 3, &[restart])), [""; 0]);
        let actions = [("KILL_RESTART", "worker-2"), ("ADJUST_BS", "all")];
        let lines = [
            "should complete, but failed: lost",
            "took 5s, more than 4s",
            "KILL_RESTART worker-1 was not done",
            "ADJUST_BS was done",
        ];
        assert_eq!(expect.check(&outcome(Err("lost".to_owned()), 5, &actions)), lines);
        let fails = Expectation { outcome: Some(Ending::Fails), ..expect };
        assert_eq!(fails.check(&outcome(Ok(()), 1, &[restart])).len(), 2);
        assert_eq!(Expectation::default().check(&outcome(Err(String::new()), 9, &[])), [""; 0]);
    }
}
