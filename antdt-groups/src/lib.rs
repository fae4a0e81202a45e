#![doc = include_str!("../README.md")]
//!
//! # How groups are formed
//!
//! Partial all-reduce: only a few workers average their models at a time, not all, so that a slow worker
//! delays only those few.
//!
//! Every worker trains a model of its own. After a step it averages the **parameters** (not gradients) with a small
//! group, so that all members leave with the same model; over time the progress of every worker reaches every other. Three things
//! have to be right:
//!
//! - *Groups that share a worker run one after the other, in one order at every shared member.* Averaging
//!   over `G` and then `H` is not the same as the other way round, and two members that wait for each other
//!   in different groups wait for ever. The [`GroupGenerator`] numbers groups as it makes them and appends
//!   each to the buffers of all its members in one mutation, so every buffer is a part of one sequence; a
//!   group starts when it is at the front of all of them. So there is no deadlock: the oldest group that has
//!   not ended is at the front of all its members' buffers, and only waits for members that still compute.
//! - *A group counts for all of its members or for none.* Averages are made beside the model; when all
//!   members have reported theirs, the generator commits the group, and after the first failure it aborts the
//!   group. The survivors of an aborted group run again without the members that they blame, in the same
//!   place of the sequence.
//! - *The progress of every worker reaches every other.* Workers of similar speed become idle together, and
//!   would average only with each other. So the generator records which workers the recent groups have
//!   connected, and when they form several separate sets it forms a group with workers of different sets.
//!
//! A [`GroupPolicy`] chooses the members of a group; the [`ProgressFilter`] excludes workers that are too far
//! behind. On clusters of equal workers a [`StaticSchedule`] needs no generator: the group is a function of
//! rank and step.
//!
//! # Cost
//!
//! Each worker sends or receives three short messages (request, go, done) and the commit in one
//! synchronisation; models do not pass through the generator. A request that finds a group in its worker's
//! buffer costs O(1). One that forms groups of `k` idle workers costs O(k log n), which is O(log n) for each
//! of them. The death of a worker costs O(groups it was in × their size).
//!
//! Measured on one core, with all that comes of a request (`antdt-lab sim`): 0.2 us with 16 workers and 0.4 us (inter-intra) to
//! 0.6 us (division) with 16,384, whose states are no longer in a near cache when a group draws them. That is 1.7 million
//! requests a second and more, where workers with steps of 100 ms make 164,000.
//!
//! # What was rejected
//!
//! - *Locks taken when a group is formed*, as the paper's figure has it: a lock would be held while others still compute, and
//!   a deadline could not tell a slow step from a broken connection. Here a group starts when all members have arrived.
//! - *A number of its own for a group that is run again*: it would be larger than those behind it in the buffers. A
//!   [`GroupKey`] is the group's place and the attempt, and the place stays.
//! - *Evicting a member that a peer blames.* A blamed worker may be the only one that is well; it sits one average out, and whether it
//!   is dead is for the monitor to say ([`GeneratorEvent::Lost`]).
//! - *Resetting all progress when the membership changes.* A worker that was slow before is slow after; only a new worker begins
//!   at the median.
//!
//! Source: Ripples (arXiv 1909.08029) and Prague (ASPLOS 2020) for groups, buffer, division and filter, from recollection of
//! the abstracts and of the public part of the implementation (the static schedule); messages, failures and bridges are our
//! design.

#![forbid(unsafe_code)]

pub mod message;

pub mod config;
pub mod generator;
pub mod member;

pub mod draft;
pub mod policy;

pub mod filter;
pub mod lock;

pub mod open_pairs;

mod connectivity;
mod roster;

pub mod static_schedule;

pub use config::GeneratorConfig;
pub use draft::{Candidate, Draft};
pub use filter::ProgressFilter;
pub use generator::GroupGenerator;
pub use lock::LockVector;
pub use member::GroupMember;
pub use message::{
    GeneratorEffect, GeneratorError, GeneratorEvent, Go, GroupDecision, GroupKey, GroupOrigin, ReduceOutcome,
    Taken,
};
pub use open_pairs::{OpenPairs, Pairing};
pub use policy::{Bipartite, Division, FirstToArrive, GroupPolicy, InterIntra, Random};
pub use static_schedule::StaticSchedule;
