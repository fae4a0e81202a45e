#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod trainer;

pub mod batcher;
pub mod meter;
pub mod session;
pub mod switch;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use batcher::{Batch, Batcher};
pub use meter::{Meter, Part};
pub use session::{AgentSession, Beat, BeatReply, Notice, Reported, SessionState};
pub use switch::PlanSwitch;
pub use trainer::{Evaluation, Gradient, StepStats, TrainError, Trainer};
