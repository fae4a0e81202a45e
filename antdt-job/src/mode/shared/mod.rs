//! What several modes have in common: groups of workers that hold the model, steps that the master commits, groups of a few that it forms and commits, and entry to a job with
//! servers and the way to them and back.

pub(super) mod coordinated;
pub(super) mod group;
pub(super) mod grouped;
pub(super) mod local_steps;
pub(super) mod member;
#[cfg(test)]
pub(super) mod mixing;
pub(super) mod servers;
pub(super) mod trip;

/// Times that samples are tried again whose gradient came too late, before another worker gets them.
pub(super) const RETRIES: u32 = 3;
