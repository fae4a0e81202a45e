#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod data;
pub mod split;

pub mod model;

pub mod click;
pub mod features;
pub mod scores;
pub mod trainer;

pub mod dense;

pub mod device;
pub mod dropout;
pub mod flat;

pub mod workload;

mod adopt;
mod engine;
mod errors;
mod lend;
mod size;

pub use antdt_data::{Cache, UnpackNotice};
pub use data::synthetic::{Clicks, write_tsv};
pub use data::{DataSource, Dataset, DatasetError, Format};
pub use dense::DenseTrainer;
pub use device::Device;
pub use model::Model;
pub use scores::Scores;
pub use split::{EvalRows, SampleCounts};
pub use trainer::ClickTrainer;
pub use workload::{WorkloadSpec, global_batch_size_default};
