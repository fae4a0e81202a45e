//! Fabrics: the ways in which the processes of a job reach each other.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::{Channel, ChannelError, Listener, TcpChannel, Transport};
use crate::error::CollectiveError;
use crate::group::{Group, JobToken};
use crate::runtime::abort::AbortHandle;
use crate::runtime::connection::BulkStream;

/// A way in which the processes of a job communicate, known by its name in the [registry](super::registry).
/// It makes the transports of groups, and channels between two processes. A process uses one fabric for all
/// its groups.
pub trait Fabric: Debug + Send + Sync {
    /// Connects this process with all other members of a group; every member calls this with the same list.
    ///
    /// # Errors
    /// If a member cannot be reached over this fabric, has died, passes another list of members, or has not
    /// called within `timeout`; if the abort handle was used; if a newer membership has begun.
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError>;

    /// Makes a channel from a connection that this process opened to a process outside of groups, which
    /// [accepts](Self::accept) it over the same fabric. The default is a channel over TCP.
    ///
    /// `job` is the token of the job whose processes trust each other; the caller checks the identity of its
    /// peer by the first messages.
    ///
    /// # Errors
    /// If that process cannot be reached over this fabric, or does not answer before the deadline.
    fn dial(
        &self,
        stream: BulkStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        self.accept(stream, job, deadline, abort)
    }

    /// Makes a channel from a connection that another process [dialled](Self::dial).
    ///
    /// # Errors
    /// As [`dial`](Self::dial).
    fn accept(
        &self,
        stream: BulkStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        let _ = (job, deadline);
        Ok(Box::new(TcpChannel::new(stream, abort)))
    }
}

/// A transport that can be moved to the next group.
pub trait Regroup: Transport {
    /// Returns the transport of a newer membership. It keeps connections with members that stay, where it
    /// can; a call that failed before does not matter.
    ///
    /// # Errors
    /// As [`Fabric::connect`]; also if the membership is not newer. All connections are then closed.
    fn regroup(
        self: Box<Self>,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError>;
}
