//! What several modes have in common: groups of workers that hold the model, and entry to a job with servers.

pub(super) mod group;
pub(super) mod member;
pub(super) mod servers;
