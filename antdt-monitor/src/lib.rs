#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod config;
pub mod stats;
pub mod window;

pub mod contention;
pub mod detector;
pub mod exit;
pub mod liveness;

mod running_median;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::{MonitorConfig, WindowConfig};
pub use detector::rule::{Evidence, PaceRule, RatioRule};
pub use detector::{DetectorEvent, MonitorEffect, Observation, ReportAnswer, StragglerDetector};
pub use exit::classify;
pub use liveness::{Liveness, LivenessConfig, LivenessTracker};
