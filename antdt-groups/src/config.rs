//! [`GeneratorConfig`]: the settings of a generator of groups.

use std::time::Duration;

use antdt_core::{InvalidValue, Seed};

use crate::filter::ProgressFilter;

/// Settings of a [`GroupGenerator`](crate::GroupGenerator).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratorConfig {
    /// Limit on how far behind a worker may be to be drafted. Default: fewer than 3 requests.
    pub filter: ProgressFilter,
    /// Longest time from the start of a group to the last report, unless the members give up before. Default
    /// 60 s: longer than a member waits for its peers, and than it takes to repeat lost messages.
    pub group_limit: Duration,
    /// Number of times a group may run before its members go on without an average. Default 3: a member that
    /// is suspected to have made a run fail is left out of the next, so that only several failures at once need more runs.
    pub attempts_max: u32,
    /// Whether the generator also forms groups that connect workers whose groups had no member in common for
    /// a while.
    pub bridges: bool,
    /// Largest number of workers that may take part. Default 65,536, which take some 200 bytes each.
    pub members_max: u32,
    /// Seed from which all groups are drawn.
    pub seed: Seed,
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            filter: ProgressFilter::default(),
            group_limit: Duration::from_secs(60),
            attempts_max: 3,
            bridges: true,
            members_max: 1 << 16,
            seed: Seed(0),
        }
    }
}

impl GeneratorConfig {
    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        if self.group_limit.is_zero() {
            return Err(InvalidValue::new("group_limit", "0s", "longer than 0; 60 s is usual"));
        }
        for (field, value) in [("attempts_max", self.attempts_max), ("members_max", self.members_max)] {
            if value == 0 {
                return Err(InvalidValue::new(field, value, "at least 1"));
            }
        }
        Ok(())
    }
}
