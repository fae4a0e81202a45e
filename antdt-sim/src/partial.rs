//! Training with partial all-reduce on a virtual clock: workers, each with a model of its own, that average with a few others
//! at a time.
//!
//! What decides is production's own: a [`GroupGenerator`](antdt_groups::GroupGenerator), and in each worker a
//! [`GroupMember`](antdt_groups::GroupMember). What is simulated is what they meet: how long a step takes, how
//! messages travel, what an average costs by the formulas of `antdt-collective`, and who dies in it; and a monitor that gives
//! up whoever is silent and starts another life of its node.
//!
//! It is a world of its own, since nothing of a job's master, shards or plans takes part; clock, models, invariants, seeds
//! and the shrinking of failures are those of [`World`](crate::World).

mod setup;
mod world;

pub use setup::{Formation, GeneratorSettings, Setup};
pub use world::{Outcome, World};

#[cfg(test)]
mod tests;
