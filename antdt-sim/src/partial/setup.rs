//! What is simulated, apart from how fast and how reliable things are.

use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_core::text::{format_duration, nearest};
use antdt_core::{InvalidValue, Seed};
use antdt_groups::{
    Bipartite, Division, GeneratorConfig, GroupGenerator, GroupPolicy, InterIntra, ProgressFilter, Random,
};
use serde::{Deserialize, Serialize};

use crate::setup::NODES_MAX;

/// How groups are formed: the names of the built-in [`GroupPolicy`] types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupFormation {
    /// Groups of random workers: [`Random`].
    Random,
    /// Groups of random workers, formed only for requests of workers that are in no group: [`Random::buffered`].
    Buffer,
    /// Pairs of an active and a passive worker: [`Bipartite`].
    Bipartite,
    /// Groups that divide the idle workers: [`Division`].
    Division,
    /// Groups between hosts, then within hosts: [`InterIntra`].
    InterIntra,
}

impl GroupFormation {
    /// All ways to form groups.
    pub const ALL: [Self; 5] =
        [Self::Random, Self::Buffer, Self::Bipartite, Self::Division, Self::InterIntra];

    /// Returns the name by which scenarios and commands know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Buffer => "buffer",
            Self::Bipartite => "bipartite",
            Self::Division => "division",
            Self::InterIntra => "inter-intra",
        }
    }

    /// The one of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn by_name(name: &str) -> Result<Self, InvalidValue> {
        let names = Self::ALL.map(Self::name);
        Self::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| {
            let hint = nearest(name, &names).map(|known| format!("; did you mean `{known}`?"));
            let expected = format!("one of {}{}", names.join(", "), hint.unwrap_or_default());
            InvalidValue::new("policy", name, expected)
        })
    }

    /// The policy.
    ///
    /// # Errors
    /// If the size is below 2.
    pub fn policy(self, group_size: u32) -> Result<Box<dyn GroupPolicy>, InvalidValue> {
        Ok(match self {
            Self::Random => Box::new(Random::new(group_size)?),
            Self::Buffer => Box::new(Random::buffered(group_size)?),
            Self::Bipartite => Box::new(Bipartite),
            Self::Division => Box::new(Division::new(group_size)?),
            Self::InterIntra => Box::new(InterIntra::new(group_size)?),
        })
    }
}

/// Settings from which a generator of groups is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratorSettings {
    /// Policy that forms groups.
    pub policy: GroupFormation,
    /// Members of a group, as the policy aims at.
    pub group_size: u32,
    /// All other settings of the generator.
    pub config: GeneratorConfig,
}

impl GeneratorSettings {
    /// A generator in the state in which it begins.
    ///
    /// # Errors
    /// If a setting cannot be used; the error names it.
    pub fn generator(&self) -> Result<GroupGenerator, InvalidValue> {
        GroupGenerator::new(self.config, self.policy.policy(self.group_size)?)
    }
}

/// Settings of a simulation of workers that average in groups.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSetup {
    /// Number of workers.
    pub workers: u32,
    /// Workers that share a host, by their index: `index / workers_per_host`.
    pub workers_per_host: u32,
    /// Way in which groups are formed.
    pub formation: GroupFormation,
    /// Members of a group, as the policy aims at.
    pub group_size: u32,
    /// Workers this many requests behind are not drafted; 0 drafts all.
    pub progress_gap_max: u64,
    /// Whether a group bridges workers whose groups had no member in common for a while.
    pub bridges: bool,
    /// Number of steps of each worker, which is also its number of averages.
    pub steps: u32,
    /// Number of samples in a step.
    pub batch_size: u64,
    /// Size of the model, in bytes.
    pub model_bytes: u64,
    /// Cost of an average among workers of one host.
    pub inside: CostModel,
    /// Cost of an average between hosts. Members on one host share it.
    pub between: CostModel,
    /// Algorithm of the averages.
    pub algorithm: Choice,
    /// A message without an answer is repeated after this.
    pub again_after: Duration,
    /// Longest wait for a peer within an average.
    pub collective_timeout: Duration,
    /// Longest run of a group.
    pub group_limit: Duration,
    /// Most runs of one group: how often it is tried again after a failure.
    pub attempts_max: u32,
    /// Silence after which a worker counts as lost.
    pub silence_limit: Duration,
    /// Most restarts of one node.
    pub max_restarts: u32,
    /// Share of the messages that arrive twice.
    pub repeats: f64,
    /// Seed of all randomness in the simulation.
    pub seed: Seed,
}

impl Default for GroupSetup {
    fn default() -> Self {
        let config = GeneratorConfig::default();
        Self {
            workers: 16,
            workers_per_host: 4,
            formation: GroupFormation::InterIntra,
            group_size: 4,
            progress_gap_max: 3,
            bridges: config.bridges,
            steps: 100,
            batch_size: 32,
            model_bytes: 64 << 20,
            inside: CostModel::SHARED,
            between: CostModel { alpha: 50e-6, bandwidth: 1.2e9, ..CostModel::LOOPBACK },
            algorithm: Choice::Auto,
            again_after: Duration::from_secs(1),
            collective_timeout: Duration::from_secs(30),
            group_limit: config.group_limit,
            attempts_max: config.attempts_max,
            silence_limit: Duration::from_secs(10),
            max_restarts: 3,
            repeats: 0.0,
            seed: Seed(0),
        }
    }
}

impl GroupSetup {
    /// Whether it can be simulated.
    ///
    /// # Errors
    /// With the first setting that is refused, by its name in a scenario's `[groups]`, and what it must be.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        for (field, value) in [
            ("workers", u64::from(self.workers)),
            ("workers-per-host", u64::from(self.workers_per_host)),
            ("steps", u64::from(self.steps)),
            ("batch-size", self.batch_size),
        ] {
            if value == 0 {
                return Err(InvalidValue::new(field, value, "at least 1"));
            }
        }
        if self.workers > NODES_MAX {
            return Err(InvalidValue::new("workers", self.workers, format!("at most {NODES_MAX}")));
        }
        for (field, time) in [
            ("again-after", self.again_after),
            ("collective-timeout", self.collective_timeout),
            ("silence-limit", self.silence_limit),
        ] {
            if time < Duration::from_millis(1) {
                return Err(InvalidValue::new(field, format_duration(time), "at least 1ms"));
            }
        }
        if !(0.0..=1.0).contains(&self.repeats) {
            return Err(InvalidValue::new("repeats", self.repeats, "a share between 0 and 1, such as 0.01"));
        }
        let made = self.generator().and_then(|settings| settings.generator());
        made.map(drop).map_err(|error| InvalidValue { field: error.field.replace('_', "-"), ..error })
    }

    /// Returns the settings of the simulation's generator.
    ///
    /// # Errors
    /// If the progress filter cannot be.
    pub fn generator(&self) -> Result<GeneratorSettings, InvalidValue> {
        let filter = match self.progress_gap_max {
            0 => ProgressFilter::off(),
            gap => ProgressFilter::new(gap)?,
        };
        let config = GeneratorConfig {
            filter,
            group_limit: self.group_limit,
            attempts_max: self.attempts_max,
            bridges: self.bridges,
            members_max: self.workers,
            seed: self.seed.derive("generator"),
        };
        Ok(GeneratorSettings { policy: self.formation, group_size: self.group_size, config })
    }
}
