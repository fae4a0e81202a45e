//! Workers that average in groups, as a scenario has them.

use std::path::Path;

use antdt_core::{InvalidValue, Seed};
use serde::Deserialize;

use super::expect::{Ending, ends};
use super::models::{Cluster, ModelsSpec, ScenarioFile, Span, within};
use super::{ScenarioError, about, toml};
use crate::model::Models;
use crate::partial::{GroupFormation, GroupSetup, SimulatedAveraging};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct GroupsFile {
    policy: GroupFormation,
    workers: u32,
    workers_per_host: u32,
    group_size: u32,
    /// See [`GroupSetup::progress_gap_max`]; 0 drafts all workers.
    progress_gap_max: u64,
    bridges: bool,
    steps: u32,
    batch_size: u64,
    model_bytes: u64,
    max_restarts: u32,
    attempts_max: u32,
    again_after: Span,
    collective_timeout: Span,
    group_limit: Span,
    silence_limit: Span,
    repeats: f64,
}

impl Default for GroupsFile {
    fn default() -> Self {
        let setup = GroupSetup::default();
        Self {
            policy: setup.formation,
            workers: setup.workers,
            workers_per_host: setup.workers_per_host,
            group_size: setup.group_size,
            progress_gap_max: setup.progress_gap_max,
            bridges: setup.bridges,
            steps: setup.steps,
            batch_size: setup.batch_size,
            model_bytes: setup.model_bytes,
            max_restarts: setup.max_restarts,
            attempts_max: setup.attempts_max,
            again_after: Span(setup.again_after),
            collective_timeout: Span(setup.collective_timeout),
            group_limit: Span(setup.group_limit),
            silence_limit: Span(setup.silence_limit),
            repeats: setup.repeats,
        }
    }
}

impl GroupsFile {
    /// The links and the algorithm are those of `[network]`.
    fn resolve(&self, models: &ModelsSpec) -> Result<GroupSetup, InvalidValue> {
        let (inside, between, algorithm) = models.links()?;
        Ok(GroupSetup {
            workers: self.workers,
            workers_per_host: self.workers_per_host,
            formation: self.policy,
            group_size: self.group_size,
            progress_gap_max: self.progress_gap_max,
            bridges: self.bridges,
            steps: self.steps,
            batch_size: self.batch_size,
            model_bytes: self.model_bytes,
            inside,
            between,
            algorithm,
            again_after: self.again_after.0,
            collective_timeout: self.collective_timeout.0,
            group_limit: self.group_limit.0,
            attempts_max: self.attempts_max,
            silence_limit: self.silence_limit.0,
            max_restarts: self.max_restarts,
            repeats: self.repeats,
            seed: GroupSetup::default().seed,
        })
    }
}

/// The result that a scenario of workers that average in groups expects. A field that is left out allows any value.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GroupExpectation {
    /// Whether all workers take all of their steps.
    pub outcome: Option<Ending>,
    /// Shortest time until all workers have taken their steps.
    pub shortest: Option<Span>,
    /// Longest time until all workers have taken their steps.
    pub longest: Option<Span>,
    /// Least share of their time that workers train in.
    pub busy_min: Option<f64>,
    /// Largest share of their time that workers train in.
    pub busy_max: Option<f64>,
}

impl GroupExpectation {
    fn validate(&self) -> Result<(), InvalidValue> {
        for (field, share) in [("expect.busy-min", self.busy_min), ("expect.busy-max", self.busy_max)] {
            if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
                return Err(InvalidValue::new(field, share, "a share between 0 and 1, such as 0.5"));
            }
        }
        Ok(())
    }

    /// Returns the differences from the expected result, one line each.
    pub fn check(&self, outcome: &SimulatedAveraging) -> Vec<String> {
        let took = outcome.completed.since_start();
        let mut wrong = ends(self.outcome, self.shortest, self.longest, &outcome.result, took);
        if let Some(least) = self.busy_min.filter(|least| outcome.busy < *least) {
            wrong.push(format!("workers trained {:.3} of their time, less than {least}", outcome.busy));
        }
        if let Some(most) = self.busy_max.filter(|most| outcome.busy > *most) {
            wrong.push(format!("workers trained {:.3} of their time, more than {most}", outcome.busy));
        }
        wrong
    }
}

/// Workers that average in groups, and what they meet.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupScenario {
    /// What the scenario shows: the comment at the head of the file.
    pub about: String,
    /// Settings of the workers, and of how groups are formed.
    pub setup: GroupSetup,
    /// Result that the scenario expects.
    pub expect: GroupExpectation,
    models: ModelsSpec,
}

impl GroupScenario {
    /// Reads a text. `files` gives the text of each recording that it names.
    ///
    /// # Errors
    /// As [`AnyScenario::read`](super::AnyScenario::read).
    pub fn parse(
        text: &str,
        files: impl FnMut(&Path) -> Result<String, ScenarioError>,
    ) -> Result<Self, ScenarioError> {
        let mut file: ScenarioFile<GroupExpectation> = toml(text)?;
        let groups = file.groups.take().unwrap_or_default();
        let expect = std::mem::take(&mut file.expect);
        expect.validate()?;
        let models = ModelsSpec::resolve(file, files)?;
        if models.has_servers() {
            let remedy = "left out: workers that average in groups have no servers";
            return Err(InvalidValue::new("compute.server", "(given)", remedy).into());
        }
        let scenario = Self { about: about(text), setup: groups.resolve(&models)?, expect, models };
        // What cannot be built is refused now.
        scenario.build(Seed(0))?;
        Ok(scenario)
    }

    /// The workers and what they meet, with all randomness from `seed`.
    ///
    /// # Errors
    /// If the setup, which may have been changed since it was read, cannot be.
    pub fn build(&self, seed: Seed) -> Result<(GroupSetup, Models), ScenarioError> {
        within("groups", self.setup.validate())?;
        let setup = GroupSetup { seed, ..self.setup.clone() };
        let models = self.models.build(&Cluster::of_groups(&setup))?;
        Ok((setup, models))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use antdt_core::JobTime;

    use super::*;

    #[test]
    fn each_deviation_is_one_line() {
        let seconds = |seconds| Some(Span(Duration::from_secs(seconds)));
        let expect = GroupExpectation {
            outcome: Some(Ending::Completes),
            shortest: seconds(2),
            longest: seconds(4),
            busy_min: Some(0.5),
            busy_max: Some(0.9),
        };
        let outcome = |result, seconds, busy| SimulatedAveraging {
            result,
            completed: JobTime::from_duration(Duration::from_secs(seconds)),
            steps: 0,
            averages: 0,
            busy,
            simulated: 0,
        };
        assert_eq!(expect.check(&outcome(Ok(()), 3, 0.7)), [""; 0]);
        let lines = [
            "should complete, but failed: lost",
            "took 5s, more than 4s",
            "workers trained 0.250 of their time, less than 0.5",
        ];
        assert_eq!(expect.check(&outcome(Err("lost".to_owned()), 5, 0.25)), lines);
        let lines = ["took 1s, less than 2s", "workers trained 0.950 of their time, more than 0.9"];
        assert_eq!(expect.check(&outcome(Ok(()), 1, 0.95)), lines);
        assert_eq!(GroupExpectation::default().check(&outcome(Err(String::new()), 9, 0.0)), [""; 0]);
    }
}
