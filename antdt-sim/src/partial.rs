//! Training with partial all-reduce on a virtual clock: workers, each with a model of its own, that average with a few others
//! at a time.
//!
//! What decides is production's own: a [`GroupGenerator`](antdt_groups::GroupGenerator), and in each worker a
//! [`GroupMember`](antdt_groups::GroupMember). What is simulated is what they meet: how long a step takes, how
//! messages travel, what an average costs by the formulas of `antdt-collective`, and which members die in it; and a monitor that gives
//! up silent workers and starts another incarnation of their node.
//!
//! It is a world of its own, since nothing of a job's master, shards or plans takes part; clock, models, invariants, seeds
//! and the shrinking of failures are those of [`World`](crate::World).

mod setup;
mod world;

pub use setup::{GeneratorSettings, GroupFormation, GroupSetup};
pub use world::{GroupWorld, SimulatedAveraging};

#[cfg(test)]
mod tests;
