#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod data;
pub mod split;

pub mod features;
pub mod model;

pub mod device;
pub mod flat;

pub mod scores;
pub mod trainer;
pub mod workload;

mod engine;

pub use antdt_data::{Cache, UnpackNotice};
pub use data::synthetic::{Clicks, write_tsv};
pub use data::{DataSource, Dataset, DatasetError, Format};
pub use device::Device;
pub use model::Model;
pub use scores::Scores;
pub use split::{EvalRows, SampleCounts};
pub use trainer::ClickTrainer;
pub use workload::{
    LEARNING_RATE_DEFAULT, OPTIMIZER_DEFAULT, WorkloadSpec, count_rows, global_batch_size_default,
};
