#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod job;

mod descriptors;
pub mod diagnosis;
pub mod gpu;
pub mod host;
mod lead;
mod live;
pub mod master;
pub mod net;
pub mod node;
pub mod remote;
pub mod resume;
pub mod run_dir;
#[cfg(feature = "cli")]
mod secret;
pub mod server;
pub mod transport;
pub mod worker;

pub mod workload;

mod protection;
mod random;
pub mod report;

#[cfg(feature = "cli")]
pub mod builder;
#[cfg(feature = "cli")]
pub mod checkpoints;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod command;
#[cfg(feature = "cli")]
pub mod doctor;
#[cfg(feature = "cli")]
mod hosts;
#[cfg(feature = "cli")]
pub mod simulate;
#[cfg(feature = "cli")]
mod submit;

#[cfg(feature = "cli")]
pub use builder::JobBuilder;

pub use antdt_agent as agent;
pub use antdt_checkpoint as checkpoint;
pub use antdt_collective as collective;
pub use antdt_controller as controller;
pub use antdt_core as core;
pub use antdt_launch as launch;
pub use antdt_model as model;
pub use antdt_monitor as monitor;
pub use antdt_shard as shard;
