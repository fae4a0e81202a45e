#![doc = include_str!("../README.md")]
//!
//! # How groups are formed
//!
//! Partial all-reduce: instead of all workers, a few average their models at a time, so that a slow worker delays only them.
//!
//! Every worker trains a model of its own. After a step it averages the **parameters** (not gradients) with a small
//! group, so that all members leave with the same model; over time the progress of every worker reaches every other. Three things
//! have to be right:
//!
//! - *Groups that share a worker run one after the other, in one order at every shared member.* Averaging over `G` and
//!   then `H` is not the same as the other way round, and two members that wait for each other in different groups wait
//!   for ever. The [`GroupGenerator`] numbers groups as it makes them and appends each to the buffers of all its members
//!   in one mutation, so every buffer is a part of one sequence; a group starts when it is at the front of all of them.
//!   That is the whole argument against deadlock: the oldest group that is not over is at the front everywhere, so it is
//!   only ever computing that it waits for.
//! - *A group counts for all of its members or for none.* Averages are made beside the model; when all have reported
//!   theirs the generator says commit, and after the first failure abort. The survivors of an aborted group run again
//!   without the members that they blame, in the same place of the sequence.
//! - *The progress of every worker reaches every other.* Workers of like speed become idle together and would keep to themselves; of
//!   the groups of a while the generator keeps the components, and bridges them when there are several.
//!
//! A [`GroupPolicy`] chooses the members of a group; the [`ProgressFilter`] excludes workers that are too far behind. On even
//! clusters a [`StaticSchedule`] does without a generator: the group is a function of rank and step.
//!
//! # Cost
//!
//! A synchronisation is three short messages a worker (request, go, done) and the commit; models never pass the generator. A
//! request that finds a group in its worker's buffer is O(1), one that divides the idle is O(k log n) for the k workers that
//! get a group by it, which is O(log n) for each request that is answered by it. A worker's death is
//! O(groups it was in × their size).
//!
//! Measured on one core, with all that comes of a request (`antdt-bench sim`): 0.2 us with 16 workers and 0.4 us (inter-intra) to
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

pub mod generator;
pub mod member;

pub mod draft;
pub mod policy;

pub mod filter;
pub mod lock;

mod connectivity;
mod roster;

pub mod static_schedule;

pub use draft::{Candidate, Draft};
pub use filter::ProgressFilter;
pub use generator::{GeneratorConfig, GroupGenerator};
pub use lock::LockVector;
pub use member::GroupMember;
pub use message::{
    GeneratorEffect, GeneratorError, GeneratorEvent, Go, GroupDecision, GroupKey, GroupOrigin, ReduceOutcome,
    Taken,
};
pub use policy::{Bipartite, Division, FirstToArrive, GroupPolicy, InterIntra, Random};
pub use static_schedule::StaticSchedule;
