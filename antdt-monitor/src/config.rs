//! Settings of the monitor. The defaults suit jobs of thirty seconds as well as jobs of thirty hours.

use antdt_core::InvalidValue;

use crate::deadlines::WaitConfig;
use crate::hang::HangConfig;
use crate::liveness::LivenessConfig;
use crate::rule::Rule;

/// Lengths of the windows of recent batches by which a node is judged. They are counted in batches, so that
/// they follow the job's own step time.
///
/// A node that makes fewer batches in the same time (under ASP a slow one does) has proportionally fewer in
/// its windows: all nodes are judged over the same stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowConfig {
    /// Length of the short window in batches, for a node of median pace.
    ///
    /// Default 20: a median over fewer batches follows every short disturbance. The reaction lag is half of
    /// this length.
    #[doc(alias = "W_short")]
    pub short_batches: u32,
    /// Length of the long window, as a number of short windows. Default 10: long enough that one burst is not
    /// mistaken for a slow machine.
    #[doc(alias = "W_long")]
    pub long_factor: u32,
    /// Number of batches at the start of an incarnation that are ignored: cold caches, first touch of memory,
    /// lazily opened files.
    ///
    /// Default 5: a quarter of a short window. The median tolerates a longer warm-up; a larger number delays
    /// the first verdict of a short job.
    pub warmup_batches: u32,
}

impl WindowConfig {
    /// Returns the number of batches from one verdict to the next, for a node of median pace: a quarter of
    /// the short window.
    pub const fn beat_batches(&self) -> u32 {
        let quarter = self.short_batches / 4;
        if quarter == 0 { 1 } else { quarter }
    }

    /// Returns the number of verdicts in the long window.
    pub const fn long_beats(&self) -> usize {
        (self.short_batches as usize * self.long_factor as usize).div_ceil(self.beat_batches() as usize)
    }
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self { short_batches: 20, long_factor: 10, warmup_batches: 5 }
    }
}

/// All settings of a [`StragglerDetector`](crate::StragglerDetector).
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MonitorConfig {
    /// Lengths of the windows of recent batches.
    pub window: WindowConfig,
    /// Rule that decides which nodes are slow.
    pub rule: Rule,
    /// When a silent node counts as lost.
    pub liveness: LivenessConfig,
    /// When a worker without progress counts as hung.
    #[cfg_attr(feature = "serde", serde(default))]
    pub hang: HangConfig,
    /// Longest waits of nodes for each other and for the master.
    #[cfg_attr(feature = "serde", serde(default))]
    pub wait: WaitConfig,
}

impl MonitorConfig {
    /// Checks that the settings are valid together.
    ///
    /// # Errors
    /// The first invalid value, and what would be valid in its place.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let window = &self.window;
        // The upper ends bound the memory of a node: 4 * 4096 entries and 10 000 verdicts.
        if !(4..=4096).contains(&window.short_batches) {
            return Err(InvalidValue::new(
                "window.short_batches",
                window.short_batches,
                "between 4 and 4096",
            ));
        }
        if !(2..=1000).contains(&window.long_factor) {
            return Err(InvalidValue::new("window.long_factor", window.long_factor, "between 2 and 1000"));
        }
        if window.warmup_batches > 1_000_000 {
            return Err(InvalidValue::new("window.warmup_batches", window.warmup_batches, "at most 1000000"));
        }
        self.hang.validate()?;
        self.liveness.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_the_long_window_is_ten_short_ones() {
        let config = MonitorConfig::default();
        config.validate().unwrap();
        assert_eq!(config.window.beat_batches() as usize * config.window.long_beats(), 200);
    }

    #[test]
    fn a_setting_that_cannot_work_is_refused_by_name() {
        let with = |short_batches, long_factor| MonitorConfig {
            window: WindowConfig { short_batches, long_factor, ..WindowConfig::default() },
            ..MonitorConfig::default()
        };
        assert!(with(0, 10).validate().unwrap_err().to_string().contains("short_batches"));
        assert!(with(20, 1).validate().unwrap_err().to_string().contains("long_factor"));
    }
}
