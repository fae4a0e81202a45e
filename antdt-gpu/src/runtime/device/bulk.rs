//! What a library of collectives between GPUs is asked for.

use std::time::Instant;

use antdt_collective::element::ElementType;
use antdt_collective::elements::with_type;
use antdt_collective::error::CollectiveError;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::AbortHandle;
use antdt_collective::runtime::process_group::ProcessGroup;
use antdt_collective::runtime::region::DevicePlace;
use antdt_collective::schedule::Span;

use crate::device::{Statement, Stop, Terms, pause};

/// One call, the same on all members. Memory is the host's, where nothing else is said.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "nccl"), allow(dead_code, reason = "kernels reduce; only NCCL carries messages"))]
pub(in crate::runtime) enum Job<'a> {
    /// The reduction over all members' elements; not a mean.
    AllReduce { element: ElementType, op: ReduceOp, data: &'a [u8] },
    /// The reduction over memory of the members' GPUs, a mean included. All have said that they can reach theirs.
    OnDevice { element: ElementType, op: ReduceOp, from: DevicePlace, into: DevicePlace, len_bytes: usize },
    /// The part of it of this member, the rank `me`: the spans, in elements, are those of all ranks.
    ReduceScatter { element: ElementType, op: ReduceOp, data: &'a [u8], spans: &'a [Span], me: usize },
    /// The mean of all members' floats, each with its member's weight; the weights are by rank, and not all 0.
    /// `me` is this member's rank.
    Weighted { element: ElementType, data: &'a [u8], weights: &'a [f64], me: usize, total: f64 },
    /// Messages between members, each with the peer's rank. The result holds those received, in their order.
    Exchange { sends: &'a [(u32, &'a [u8])], receives: &'a [(u32, usize)] },
    /// The bytes of `root`, so many; `data` is empty elsewhere.
    Broadcast { root: u32, data: &'a [u8], len: usize },
}

/// Reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::runtime) enum BulkError {
    /// It was not done at the deadline.
    #[error("not done at the deadline")]
    Late,
    /// The abort handle was used.
    #[error("aborted")]
    Aborted,
    /// The library, or the driver of the GPU, says so.
    #[error("{0}")]
    Failed(String),
    /// The group below failed within the call.
    #[error("{0}")]
    Below(CollectiveError),
}

/// How long a call may take, and what ends it early.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct Patience {
    pub(in crate::runtime) deadline: Instant,
    pub(in crate::runtime) abort: AbortHandle,
}

impl Patience {
    /// Asks until there is an answer.
    ///
    /// # Errors
    /// If the deadline passes or the abort handle is used first, or the answer is an error.
    pub(in crate::runtime) fn poll<T>(
        &self,
        mut ask: impl FnMut() -> Result<Option<T>, BulkError>,
    ) -> Result<T, BulkError> {
        let mut asked = 0_u32;
        loop {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            if self.abort.reason().is_some() {
                return Err(BulkError::Aborted);
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Err(BulkError::Late);
            }
            let pause = pause(asked, self.deadline - now);
            asked = asked.saturating_add(1);
            if pause.is_zero() {
                std::hint::spin_loop();
            } else {
                let refused = |error| BulkError::Failed(format!("waiting: {error}"));
                self.abort.wait_until(now + pause).map_err(refused)?;
            }
        }
    }
}

/// A communicator of a library.
pub(in crate::runtime) trait Bulk: Send {
    /// Whether it carries messages. What does not only reduces.
    const MOVES: bool;

    /// Whether a call can reduce memory of this place, for all members: the answer is told to them.
    fn reaches(&mut self, place: &DevicePlace) -> bool;

    /// Carries out a call; the result lies in memory of the communicator until the next one. After an error no other call
    /// is made. What members have to tell each other meanwhile goes over the group below: if one of them fails, all get to
    /// know it, or the group below fails.
    fn run(
        &mut self,
        job: &Job<'_>,
        below: &mut dyn ProcessGroup,
        patience: &Patience,
    ) -> Result<&[u8], BulkError>;
}

/// A library of collectives between GPUs, and the GPU of this process.
pub(in crate::runtime) trait Library: Send {
    /// Its communicators. One that is dropped gives up what it has under way.
    type Comm: Bulk + 'static;

    /// What it asks of the members of a group.
    const TERMS: Terms;

    /// What this member says of itself, without the communicator that it may have.
    fn statement(&self) -> Statement;

    /// Makes what the others need of this member, the rank `me`, to join a new communicator.
    fn offer(&mut self, me: u32) -> Result<Vec<u8>, BulkError>;

    /// Joins a new communicator as `me`, with what all members have made for it, by rank.
    fn init(&mut self, offers: &[Vec<u8>], me: u32, patience: &Patience) -> Result<Self::Comm, BulkError>;

    /// Leaves the excluded ranks out of a communicator.
    fn shrink(
        &mut self,
        comm: Self::Comm,
        excluded: &[u32],
        stop: Stop,
        patience: &Patience,
    ) -> Result<Self::Comm, BulkError>;

    /// Cuts a communicator in parts, each of which becomes one of its own; `part` says which one this member is in, as the rank
    /// `me`. All members of the communicator call it together, also those that are in none and get nothing.
    fn split(
        &mut self,
        comm: &mut Self::Comm,
        part: Option<u32>,
        me: u32,
        patience: &Patience,
    ) -> Result<Option<Self::Comm>, BulkError>;

    /// Makes what the others need of this member, the rank `me`, to grow a communicator, which it may have.
    fn offer_to_grow(&mut self, comm: Option<&mut Self::Comm>, me: u32) -> Result<Vec<u8>, BulkError>;

    /// Grows a communicator, with what all members have made for it. `comm` is that of a member that has it; a new one
    /// joins as `me`.
    fn grow(
        &mut self,
        comm: Option<Self::Comm>,
        offers: &[Vec<u8>],
        me: u32,
        patience: &Patience,
    ) -> Result<Self::Comm, BulkError>;
}

/// Bytes of an element.
pub(in crate::runtime) fn size_of_element(element: ElementType) -> usize {
    with_type!(element, E => size_of::<E>())
}
