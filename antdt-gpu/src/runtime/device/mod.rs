//! Groups whose long messages a library between GPUs moves or reduces, over another backend.
//!
//! The group below carries what is short, and all that a library has no word for: that all members make the same call, who
//! is dead or late when a call fails, and, for unanimous calls, the votes. So a group keeps what every other one promises,
//! and where a member has no GPU or no library, all of its calls go over the group below.
//!
//! How a communicator becomes that of the next group is decided by what all members say of theirs
//! ([`way`](crate::device::way)). A communicator never blocks: what is under way is asked for, with pauses, until the
//! deadline.
//!
//! Cost: a round of short messages before each call, besides the library's own.
//!
//! Rejected: learned deadlines for calls over a library, because a member that gives up before the others would name those
//! for late that still wait.

pub(in crate::runtime) mod backend;
pub(in crate::runtime) mod bulk;
pub(in crate::runtime) mod group;

#[cfg(test)]
pub(in crate::runtime) mod tests;
