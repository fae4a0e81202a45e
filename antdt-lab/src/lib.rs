#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod baselines;
pub mod calibrate;
pub mod cluster;
pub mod policies;
pub mod shard;
pub mod sim;
pub mod survive;

mod groups;
mod hosts;
mod store;
mod walk;

use antdt_bench::arguments::Name;
use antdt_bench::{Bench, Entry, Rows, Settings, entry, meter, run, tree};

/// Returns the function that runs the benchmark of this name; `None` for those of `antdt-bench`.
pub const fn bench(name: Name) -> Option<Bench> {
    match name {
        Name::Job | Name::Collective | Name::Pytorch => None,
        Name::Shard => Some(shard::run),
        Name::Sim => Some(sim::run),
        Name::Calibrate => Some(calibrate::run),
        Name::Policies => Some(policies::run),
        Name::Survive => Some(survive::run),
        Name::Cluster => Some(cluster::run),
        Name::Baselines => Some(baselines::run),
    }
}
