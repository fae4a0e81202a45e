//! What a job is, before anything runs.

pub mod spec;

pub use spec::{
    DataFormat, DataSource, JobSpec, LogFormat, RestartEffect, Sharding, StragglerSpec, Workload,
};
