//! [`ProcessGroup`]: the group of which a process is a member, over any implementation of the collectives.
//!
//! A process is in one group after the other as others come and go. A [`Backend`] forms them; a [`ProcessGroup`] is one
//! of them: its collectives, how its choices are fitted to the network, and how this process leaves it. Both are
//! object-safe, so that a training loop knows neither transports nor algorithms. [`TransportBackend`] makes groups of a
//! [`Fabric`]'s transports; a library that brings collectives of its own, and no messages, is another backend.

mod registry;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::Rank;

pub use registry::{Entry, Library, REGISTRY};

use super::AbortHandle;
use super::communicator::{
    Communicator, CommunicatorConfig, Halves, History, ScheduledCommunicator, forward,
};
use super::transport::{Fabric, Listener, Regroup, Transfer};
use crate::element::ElementType;
use crate::elements::{Elements, ElementsMut, with_type};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::op::ReduceOp;
use crate::outcome::Resolution;
use crate::weighted::WeightedMean;

/// Forms the groups that a process joins one after the other, and carries state from each group to the next.
pub trait Backend: Send {
    /// Joins a group and waits for its other members, which all call this with the same list of members. The
    /// timeouts of `config` hold for this wait as well. Returns the group, and the fate of this member's last
    /// unanimous call.
    ///
    /// The caller must have [left](ProcessGroup::leave) or dropped the previous group. If it was dropped,
    /// none of its state is kept.
    ///
    /// # Errors
    /// If the members cannot connect; the caller tries again with the next group unless the error [is
    /// permanent](CollectiveError::is_permanent).
    fn join(
        &mut self,
        listener: &Listener,
        group: &Group,
        config: CommunicatorConfig,
        abort: &AbortHandle,
    ) -> Result<(Box<dyn ProcessGroup>, Resolution), CollectiveError>;

    /// Joins a group of some members of the last group that was [joined](Self::join), or of all of them, for a
    /// partial all-reduce: the next group has other members, and this one may meet again. A backend whose
    /// groups are costly to form may keep what it can use then; the default forms every group alike.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    fn join_few(
        &mut self,
        listener: &Listener,
        group: &Group,
        config: CommunicatorConfig,
        abort: &AbortHandle,
    ) -> Result<(Box<dyn ProcessGroup>, Resolution), CollectiveError> {
        self.join(listener, group, config, abort)
    }
}

/// A group that this process is a member of.
pub trait ProcessGroup: Communicator {
    /// Measures the network and uses the result to choose algorithms from now on. All members call it at the
    /// same time, best once after they have joined.
    ///
    /// # Errors
    /// As any collective; see [`CollectiveError`].
    fn fit(&mut self) -> Result<(), CollectiveError>;

    /// Sets the timeout of calls that begin from now on, in place of [`CommunicatorConfig::timeout`], because
    /// the usual duration of a step may be known only after the group was formed.
    fn set_timeout(&mut self, timeout: Duration);

    /// Returns the bytes that this rank sent to each other member since the last call, and the time that the
    /// network took for them. Empty by default, for groups that cannot measure the time.
    fn transfers(&mut self) -> Vec<Transfer> {
        Vec::new()
    }

    /// Replaces `data` by the result of an in-place all-reduce of the previous group that failed on this rank
    /// but counts. To be called once, after [`Resolution::Committed`].
    ///
    /// # Errors
    /// If there is no such result, or `data` is longer than it.
    fn adopt(&mut self, data: ElementsMut<'_>) -> Result<(), CollectiveError>;

    /// Leaves the group; its backend keeps connections and measurements for the next group. The caller leaves
    /// a failed group, too.
    fn leave(self: Box<Self>);
}

/// A [`Backend`] that forms groups over the transports of a [`Fabric`].
pub struct TransportBackend {
    fabric: Box<dyn Fabric>,
    kept: Arc<Mutex<Kept>>,
}

/// What is left of the last group.
#[derive(Default)]
struct Kept {
    transport: Option<Box<dyn Regroup>>,
    history: History,
}

impl TransportBackend {
    /// Returns a backend whose groups communicate over `fabric`.
    pub fn new(fabric: Box<dyn Fabric>) -> Self {
        Self { fabric, kept: Arc::default() }
    }
}

impl fmt::Debug for TransportBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportBackend").field("fabric", &self.fabric).finish_non_exhaustive()
    }
}

impl Backend for TransportBackend {
    fn join(
        &mut self,
        listener: &Listener,
        group: &Group,
        config: CommunicatorConfig,
        abort: &AbortHandle,
    ) -> Result<(Box<dyn ProcessGroup>, Resolution), CollectiveError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let transport = match kept.transport.take() {
            Some(last) => last.regroup(listener, group, config.timeout, abort)?,
            None => self.fabric.connect(listener, group, config.timeout, abort)?,
        };
        let history = std::mem::take(&mut kept.history);
        match ScheduledCommunicator::join(transport, config, history) {
            Ok((communicator, resolution)) => {
                Ok((Box::new(Scheduled { communicator, kept: Arc::clone(&self.kept) }), resolution))
            }
            Err(broken) => {
                kept.history = broken.history;
                Err(broken.error)
            }
        }
    }
}

/// A group of transports.
struct Scheduled {
    communicator: ScheduledCommunicator<Box<dyn Regroup>>,
    kept: Arc<Mutex<Kept>>,
}

impl ProcessGroup for Scheduled {
    fn fit(&mut self) -> Result<(), CollectiveError> {
        self.communicator.fit().map(drop)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.communicator.set_timeout(timeout);
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.communicator.transfers()
    }

    fn adopt(&mut self, data: ElementsMut<'_>) -> Result<(), CollectiveError> {
        with_type!(data.element(), E => self.communicator.adopt(data.slice::<E>()))
    }

    fn leave(self: Box<Self>) {
        let (transport, history) = self.communicator.leave();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Kept { transport: Some(transport), history };
    }
}

impl Communicator for Scheduled {
    forward!(self => self.communicator);
}

#[cfg(test)]
mod tests;
