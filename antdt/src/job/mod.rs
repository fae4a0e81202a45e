//! What a job is, before anything runs.

pub mod choice;
pub mod data_source;
pub mod setting;
pub mod spec;
pub mod straggler;
pub mod value;

pub use choice::{DataFormat, LogFormat, Sharding, Workload};
pub use data_source::DataSource;
pub use setting::Setting;
pub use spec::{JobSpec, PolicySettings};
pub use straggler::{RestartEffect, StragglerSpec};
