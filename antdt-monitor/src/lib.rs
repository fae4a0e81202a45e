#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod config;
pub mod rule;
pub mod stats;
pub mod window;

pub mod deadlines;
pub mod detector;
pub mod exit;
pub mod hang;
pub mod links;
pub mod liveness;
pub mod slow_classes;

mod baseline;
mod chance;
mod running_median;
mod segment;
mod steps;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use chance::ERROR_RATE;
pub use config::{MonitorConfig, WindowConfig};
pub use deadlines::{Deadline, Deadlines, WaitConfig};
pub use detector::{DetectorEvent, MonitorEffect, Observation, ReportAnswer, StragglerDetector};
pub use exit::classify;
pub use hang::{HangConfig, Suspicion};
pub use links::{LinkChange, LinkVerdict, LinkWatch};
pub use liveness::{Liveness, LivenessConfig, LivenessTracker};
pub use rule::{Evidence, PaceRule, RatioRule, Rule};
pub use steps::StepArrival;
