#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod per_sample;
pub mod trainer;

pub mod activity;
pub mod batcher;
pub mod meter;
pub mod session;
pub mod switch;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use activity::Activity;
pub use batcher::{Batch, Batcher, MicroBatch};
pub use meter::{Meter, Part};
pub use per_sample::{PerSample, SampleLoss};
pub use session::{AgentSession, Beat, BeatReply, Notice, Reported, SessionState};
pub use switch::PlanSwitch;
pub use trainer::{
    Buffer, DeviceValues, Gradient, GradientError, GradientSink, Params, StepStats, TrainError, Trainer,
};
