#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod data;
pub mod split;

pub mod features;
pub mod model;

pub mod device;
pub mod flat;

pub mod trainer;
pub mod workload;

mod engine;

pub use antdt_data::{Cache, Notice};
pub use data::synthetic::{Clicks, write_tsv};
pub use data::{DataSource, Dataset, Format, OpenError};
pub use device::Device;
pub use model::ModelKind;
pub use split::{EvalRows, SampleCounts};
pub use trainer::ClickTrainer;
pub use workload::{WorkloadSpec, count_rows, global_batch_size_default, optimizer_default};
