//! The parts of a job that its settings name, built with the settings of their own.

use std::collections::BTreeMap;

use antdt_controller::policy::{self, Policy};
use antdt_core::InvalidValue;
use antdt_core::registry::BuildError;
use antdt_launch::runtime::source::{HOST_SOURCES, SourceParts};
use antdt_launch::{LauncherFactory, runtime as launcher};
use antdt_model::{UpdateRule, optimizer};
use antdt_monitor::rule::Rule;

use super::JobSpec;

impl JobSpec {
    /// Builds the job's policy with its settings.
    ///
    /// # Errors
    /// If there is no such policy or setting, or a value is invalid; the error names the table and the key.
    pub fn built_policy(&self) -> Result<Box<dyn Policy>, BuildError> {
        if !self.policy.contains('+') {
            return policy::build(&self.policy, &self.tables.texts("policy", &self.policy)?);
        }
        let mut settings = BTreeMap::new();
        for part in self.policy.split('+') {
            let own = self.tables.texts("policy", part)?;
            settings.extend(own.into_iter().map(|(name, text)| (format!("{part}.{name}"), text)));
        }
        policy::build(&self.policy, &settings)
    }

    /// Returns a line for each policy of the job that does nothing in its sync mode, nor in another one that `--sync auto` may choose.
    ///
    /// # Errors
    /// As [`built_policy`](Self::built_policy).
    pub fn idle_policies(&self) -> Result<Vec<String>, BuildError> {
        let modes = self.choices();
        let mut lines = Vec::new();
        for part in self.policy.split('+') {
            let policy = policy::build(part, &self.tables.texts("policy", part)?)?;
            let reasons: Option<Vec<String>> =
                modes.iter().map(|mode| policy.idle_in(mode.capabilities())).collect();
            let why = reasons.and_then(|reasons| reasons.into_iter().next());
            lines.extend(why.map(|why| {
                let (policy, sync) = (&self.policy, &self.sync);
                format!("--policy {policy}: {part} does nothing with --sync {sync}: {why}")
            }));
        }
        Ok(lines)
    }

    /// Builds the job's pace rule with its settings.
    ///
    /// # Errors
    /// As [`built_policy`](Self::built_policy).
    pub fn built_pace_rule(&self) -> Result<Rule, BuildError> {
        Rule::named(&self.pace_rule, &self.tables.texts("pace-rule", &self.pace_rule)?)
    }

    /// Builds what builds the job's launcher, with its settings.
    ///
    /// # Errors
    /// As [`built_policy`](Self::built_policy).
    pub fn built_launcher(&self) -> Result<LauncherFactory, BuildError> {
        launcher::REGISTRY.build(&self.launcher, &self.tables.texts("launcher", &self.launcher)?)
    }

    /// Builds what builds the source of the job's hosts, with its settings; `None` if the job names none.
    ///
    /// # Errors
    /// As [`built_policy`](Self::built_policy).
    pub fn built_host_source(&self) -> Result<Option<SourceParts>, BuildError> {
        let build = |name: &String| HOST_SOURCES.build(name, &self.tables.texts("host-source", name)?);
        self.host_source.as_ref().map(build).transpose()
    }

    /// Returns the rule by which gradients change the parameters. `optimizer`, `rate` and the weight `decay`
    /// are the program's defaults, for jobs that do not set them.
    ///
    /// # Errors
    /// If there is no such optimizer or setting, or a value is invalid; the error names the flag, or the
    /// table and the key.
    ///
    /// ```
    /// use antdt::job::JobSpec;
    /// let mut spec = JobSpec::default();
    /// assert_eq!(spec.update_rule("sgd", 0.05, 0.0)?.rate, 0.05);
    /// spec.set("optimizer", "adam")?;
    /// assert_eq!(spec.update_rule("sgd", 0.05, 0.0)?.rate, 0.001, "Adam's own");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn update_rule(&self, optimizer: &str, rate: f32, decay: f32) -> Result<UpdateRule, BuildError> {
        let name = self.optimizer.as_deref().unwrap_or(optimizer);
        let built = optimizer::REGISTRY.build(name, &self.tables.texts("optimizer", name)?)?;
        let rule = UpdateRule::new(built);
        // Where all workers take one step of one model with the global batch.
        let mode = self.sync.capabilities();
        let in_common = mode.sums_to_global_batch() && !mode.averages_models();
        let rule = UpdateRule {
            rate: self.learning_rate.unwrap_or(if name == optimizer { rate } else { rule.rate }),
            decay: self.weight_decay.unwrap_or(if name == optimizer { decay } else { rule.decay }),
            schedule: self.lr_schedule,
            clip_norm: self.clip_norm,
            full_batch: in_common.then_some(self.global_batch_size.into()),
            ..rule
        };
        rule.validate().map_err(|error| InvalidValue {
            field: format!("--{}", error.field.replace(' ', "-")),
            ..error
        })?;
        Ok(rule)
    }
}
