//! The job of a scenario.

use std::collections::BTreeMap;

use antdt_controller::policy;
use antdt_core::InvalidValue;
use antdt_job::SyncMode;
use antdt_monitor::Rule;
use serde::Deserialize;

use super::ScenarioError;
use super::models::{Span, within};
use crate::Setup;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct JobFile {
    sync: String,
    policy: String,
    dry_run: bool,
    pace_rule: String,
    workers: u32,
    servers: u32,
    global_batch_size: Option<u32>,
    samples: u64,
    epochs: u32,
    shard_len: Option<u64>,
    sharding: Sharding,
    workers_per_host: u32,
    gradient_bytes: u64,
    max_restarts: u32,
    goes_back: bool,
    checkpoint_every: Option<String>,
    control_tick: Span,
    heartbeat: Span,
    silence_limit: Span,
    collective_timeout: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Sharding {
    Dynamic,
    Static,
}

impl Default for JobFile {
    fn default() -> Self {
        let setup = Setup::default();
        Self {
            sync: setup.sync.to_string(),
            policy: policy::DEFAULT.to_owned(),
            dry_run: setup.dry_run,
            pace_rule: setup.pace_rule.name().to_owned(),
            workers: setup.workers,
            servers: setup.servers,
            global_batch_size: None,
            samples: setup.samples,
            epochs: setup.epochs,
            shard_len: setup.shard_len,
            sharding: Sharding::Dynamic,
            workers_per_host: setup.workers_per_host,
            gradient_bytes: setup.gradient_bytes,
            max_restarts: setup.max_restarts,
            goes_back: setup.goes_back,
            checkpoint_every: None,
            control_tick: Span(setup.control_tick),
            heartbeat: Span(setup.heartbeat),
            silence_limit: Span(setup.silence_limit),
            collective_timeout: Span(setup.collective_timeout),
        }
    }
}

impl JobFile {
    pub(super) fn resolve(&self) -> Result<(Setup, String), InvalidValue> {
        let pace_rule = Rule::named(&self.pace_rule, &BTreeMap::new()).map_err(|error| {
            InvalidValue::new("job.pace-rule", &self.pace_rule, format!("a known one: {error}"))
        })?;
        let every = self.checkpoint_every.as_deref().map(str::parse).transpose();
        let checkpoint_every = every.map_err(|error: InvalidValue| InvalidValue {
            field: "job.checkpoint-every".to_owned(),
            ..error
        })?;
        let setup = Setup {
            sync: sync_mode(&self.sync)?,
            dry_run: self.dry_run,
            pace_rule,
            workers: self.workers,
            servers: self.servers,
            global_batch_size: self.global_batch_size.unwrap_or(Setup::default().global_batch_size),
            samples: self.samples,
            epochs: self.epochs,
            shard_len: self.shard_len,
            static_sharding: self.sharding == Sharding::Static,
            workers_per_host: self.workers_per_host,
            gradient_bytes: self.gradient_bytes,
            reports_links: Setup::default().reports_links,
            max_restarts: self.max_restarts,
            goes_back: self.goes_back,
            checkpoint_every,
            eval_every: Setup::default().eval_every,
            choice: Setup::default().choice,
            control_tick: self.control_tick.0,
            heartbeat: self.heartbeat.0,
            silence_limit: self.silence_limit.0,
            collective_timeout: self.collective_timeout.0,
            seed: Setup::default().seed,
        };
        Ok((setup, self.policy.clone()))
    }
}

fn sync_mode(text: &str) -> Result<SyncMode, InvalidValue> {
    text.parse().map_err(|error: InvalidValue| InvalidValue { field: "job.sync".to_owned(), ..error })
}

/// By the rules of `antdt run`.
pub(super) fn check(setup: &Setup, policy: &str) -> Result<(), ScenarioError> {
    policy::build(policy, &BTreeMap::new())?;
    Ok(within("job", setup.validate())?)
}
