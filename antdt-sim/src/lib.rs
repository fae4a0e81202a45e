#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod read;

#[cfg(test)]
mod source;

pub mod setup;

pub mod model;
pub mod replay;

pub mod scenario;

pub mod happening;
pub mod invariant;

pub mod calibration;
pub mod journal;
pub mod recording;

mod queue;
pub mod world;

pub mod tracer;
pub mod whatif;

pub mod chaos;
pub mod shrink;

pub use calibration::Calibration;
pub use happening::{Happening, Observer};
pub use invariant::{Invariant, Violation};
pub use journal::SimulatedJob;
pub use model::Models;
pub use recording::Recording;
pub use scenario::Scenario;
pub use setup::Setup;
pub use tracer::Tracer;
pub use whatif::WhatIf;
pub use world::{Moment, World};
