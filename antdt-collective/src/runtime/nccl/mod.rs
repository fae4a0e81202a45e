//! Groups whose long messages travel between GPUs, by NCCL. Feature `nccl`.
//!
//! [`NcclBackend`] forms groups over another backend, and moves by NCCL what is long. The group below carries what is short,
//! and all that NCCL has no word for: that all members make the same call, who is dead or late when a call fails, and, for
//! unanimous calls, the votes. So a group keeps what every other one promises, and where a member has no GPU or no library,
//! all of its calls go over the group below.
//!
//! How a communicator becomes that of the next group is decided by what all members say of theirs (`nccl::way`): it is
//! kept, shrinks or grows, where the library can (`ncclCommShrink`, `ncclCommGrow`, `ncclCommRevoke`), or all give it up and
//! initialise a new one. A communicator never blocks: what is under way is asked for, with pauses, until the deadline. One
//! that is given up is aborted, on a thread of its own, since that may hang with the driver.
//!
//! Buffers are the host's, as everywhere in this crate: a call copies through pinned memory to the GPU and back.
//!
//! Cost: a round of short messages before each call, two copies on the host and two over the bus, besides NCCL's own.
//!
//! Rejected: cudarc's safe communicators, which neither abort nor shrink, and panic where a function is missing; learned
//! deadlines for calls over NCCL, because a member that gives up before the others would name those for late that still
//! wait; NCCL's reduce-scatter, which wants parts of equal length.

mod api;
mod backend;
mod bulk;
mod error;
mod group;
mod library;

pub use self::error::NcclError;

use std::fmt;

use self::backend::DeviceBackend;
use self::library::Nccl;
use super::process_group::{Backend, ProcessGroup};
use super::transport::Listener;
use super::{AbortHandle, CommunicatorConfig};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::outcome::Resolution;

/// A [`Backend`] whose groups move long messages by NCCL, where every member has it.
pub struct NcclBackend(DeviceBackend<Nccl>);

impl NcclBackend {
    /// Returns a backend on the GPU with this index, over another backend. `None`, or a host without a GPU or without NCCL:
    /// groups with this member communicate over the other backend alone, and a warning says why.
    pub fn new(gpu: Option<u32>, below: Box<dyn Backend>) -> Self {
        let library = match gpu {
            Some(index) => Nccl::open(index).map_err(|error| error.to_string()),
            None => Err("this process computes on no GPU".to_owned()),
        };
        Self(DeviceBackend::new(library, below))
    }

    /// Returns whether the GPU with this index can communicate by NCCL.
    ///
    /// # Errors
    /// If not; the error says what this host lacks.
    pub fn check(gpu: u32) -> Result<(), NcclError> {
        Nccl::open(gpu).map(drop)
    }
}

impl fmt::Debug for NcclBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NcclBackend").field(&self.0).finish()
    }
}

impl Backend for NcclBackend {
    fn join(
        &mut self,
        listener: &Listener,
        group: &Group,
        config: CommunicatorConfig,
        abort: &AbortHandle,
    ) -> Result<(Box<dyn ProcessGroup>, Resolution), CollectiveError> {
        self.0.join(listener, group, config, abort)
    }
}

#[cfg(test)]
mod tests;
