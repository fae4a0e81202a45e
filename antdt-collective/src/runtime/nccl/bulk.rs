//! What a library of collectives between GPUs is asked for.

use std::time::Instant;

use crate::element::ElementType;
use crate::elements::with_type;
use crate::nccl::{Statement, Stop, pause};
use crate::op::ReduceOp;
use crate::runtime::AbortHandle;
use crate::schedule::Span;

/// One call, the same on all members. Memory is the host's.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job<'a> {
    /// The reduction over all members' elements; not a mean.
    AllReduce { element: ElementType, op: ReduceOp, data: &'a [u8] },
    /// The part of it of this member, the rank `me`: the spans, in elements, are those of all ranks.
    ReduceScatter { element: ElementType, op: ReduceOp, data: &'a [u8], spans: &'a [Span], me: usize },
    /// Messages between members, each with the peer's rank. The result holds those received, in their order.
    Exchange { sends: &'a [(u32, &'a [u8])], receives: &'a [(u32, usize)] },
    /// The bytes of `root`, so many; `data` is empty elsewhere.
    Broadcast { root: u32, data: &'a [u8], len: usize },
}

/// Reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BulkError {
    /// It was not done at the deadline.
    #[error("not done at the deadline")]
    Late,
    /// The abort handle was used.
    #[error("aborted")]
    Aborted,
    /// The library, or the driver of the GPU, says so.
    #[error("{0}")]
    Failed(String),
}

/// How long a call may take, and what ends it early.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    pub(super) deadline: Instant,
    pub(super) abort: AbortHandle,
}

impl Patience {
    /// Asks until there is an answer.
    ///
    /// # Errors
    /// If the deadline passes or the abort handle is used first, or the answer is an error.
    pub(super) fn poll<T>(
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
pub(super) trait Bulk: Send {
    /// Carries out a call; the result lies in memory of the communicator until the next one. After an error no other call
    /// is made.
    fn run(&mut self, job: &Job<'_>, patience: &Patience) -> Result<&[u8], BulkError>;
}

/// A library of collectives between GPUs, and the GPU of this process.
pub(super) trait Library: Send {
    /// Its communicators. One that is dropped gives up what it has under way.
    type Comm: Bulk + 'static;

    /// What this member says of itself, without the communicator that it may have.
    fn statement(&self) -> Statement;

    /// Makes the identity of a new communicator, by which its members find each other.
    fn identity(&mut self) -> Result<Vec<u8>, BulkError>;

    /// Joins a new communicator of `world` members as `rank`.
    fn init(
        &mut self,
        identity: &[u8],
        world: u32,
        rank: u32,
        patience: &Patience,
    ) -> Result<Self::Comm, BulkError>;

    /// Leaves the excluded ranks out of a communicator.
    fn shrink(
        &mut self,
        comm: Self::Comm,
        excluded: &[u32],
        stop: Stop,
        patience: &Patience,
    ) -> Result<Self::Comm, BulkError>;

    /// Makes the identity by which new members find a communicator that grows.
    fn identity_to_grow(&mut self, comm: &mut Self::Comm) -> Result<Vec<u8>, BulkError>;

    /// Grows a communicator to `world` members. `comm` is that of a member that has it; a new one joins as `rank`.
    fn grow(
        &mut self,
        comm: Option<Self::Comm>,
        identity: &[u8],
        world: u32,
        rank: u32,
        patience: &Patience,
    ) -> Result<Self::Comm, BulkError>;
}

/// Bytes of an element.
pub(super) fn size_of_element(element: ElementType) -> usize {
    with_type!(element, E => size_of::<E>())
}
