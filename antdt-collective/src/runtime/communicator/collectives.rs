//! The collectives that a training loop calls.

use antdt_core::Rank;

use super::{CommunicatorBuffer, CopyRole, Halves, copy_by_broadcast};
use crate::element::{Element, ElementType};
use crate::elements::{Elements, ElementsMut};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::op::ReduceOp;
use crate::schedule::split_even;
use crate::weighted::WeightedMean;

/// Collectives of one group. Every member makes the same calls in the same order.
///
/// On an error the caller's buffers are as they were, and every later call fails: form a new group. A call
/// may fail on some members after it succeeded on others, unless all-reduces are
/// [unanimous](super::CommunicatorConfig::unanimous). A caller that must know agrees on the outcome by other
/// means (the next call, or the master). A group of one does nothing and sends nothing.
///
/// The trait is object-safe: a `Box<dyn Communicator>` is a communicator. Calls that are generic over the
/// element take slices of known type and pass them to the call of the same name over [`Elements`], which an
/// implementation provides; an implementation that is generic itself may override them.
pub trait Communicator: Send {
    /// Returns the members of the group.
    fn group(&self) -> &Group;

    /// Replaces `data` by the element-wise reduction over all members' `data`; all members end with the same
    /// bits. The same members, length and operands give the same bits in every run. The reduction is in
    /// place; the communicator keeps a copy of `data` to undo a call that fails.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also for the mean of integers. `data` is then as it was.
    fn all_reduce<E: Element>(&mut self, data: &mut [E], op: ReduceOp) -> Result<(), CollectiveError>
    where
        Self: Sized,
    {
        self.all_reduce_elements(ElementsMut::of(data), op)
    }

    /// All-reduces elements of any type in place, as [`all_reduce`](Self::all_reduce) does.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn all_reduce_elements(&mut self, data: ElementsMut<'_>, op: ReduceOp) -> Result<(), CollectiveError>;

    /// Writes the reduction over all members' `data` to `into`, without a copy of `data`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and if `data` and `into` differ in length. The content of `into`
    /// is undefined then.
    fn all_reduce_into<E: Element>(
        &mut self,
        data: &[E],
        into: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError>
    where
        Self: Sized,
    {
        self.all_reduce_elements_into(Elements::of(data), ElementsMut::of(into), op)
    }

    /// All-reduces elements of any type out of place, as [`all_reduce_into`](Self::all_reduce_into) does.
    /// Both slices have the same element type.
    ///
    /// # Errors
    /// As [`all_reduce_into`](Self::all_reduce_into).
    fn all_reduce_elements_into(
        &mut self,
        data: Elements<'_>,
        into: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>;

    /// Returns zeroed memory for `len` elements that this communicator reduces fastest.
    ///
    /// # Errors
    /// If the system has no memory left.
    fn buffer<E: Element>(&mut self, len: usize) -> Result<CommunicatorBuffer<E>, CollectiveError>
    where
        Self: Sized,
    {
        self.halves(len * size_of::<E>()).map(CommunicatorBuffer::of)
    }

    /// Returns the zeroed memory of a [`buffer`](Self::buffer) of `len_bytes` bytes.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    fn halves(&mut self, len_bytes: usize) -> Result<Halves, CollectiveError>;

    /// All-reduces a [`buffer`](Self::buffer) as [`all_reduce`](Self::all_reduce) does, without a copy.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn all_reduce_buffer<E: Element>(
        &mut self,
        buffer: &mut CommunicatorBuffer<E>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>
    where
        Self: Sized,
    {
        self.all_reduce_halves(buffer.as_halves(), E::TYPE, op)
    }

    /// All-reduces the memory of a buffer of any element type, as
    /// [`all_reduce_buffer`](Self::all_reduce_buffer) does.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn all_reduce_halves(
        &mut self,
        halves: &mut Halves,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>;

    /// Returns this member's part of the reduction over all members' `data`: part `rank` of [`split_even`]
    /// over all members.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn reduce_scatter<E: Element>(&mut self, data: &[E], op: ReduceOp) -> Result<Vec<E>, CollectiveError>
    where
        Self: Sized,
    {
        let group = self.group();
        let len = split_even(data.len(), group.world() as usize)[group.me().0 as usize].len;
        let mut mine = vec![E::default(); len];
        self.reduce_scatter_elements(Elements::of(data), ElementsMut::of(&mut mine), op)?;
        Ok(mine)
    }

    /// Writes this member's part of the reduction to `mine`, for elements of any type, as
    /// [`reduce_scatter`](Self::reduce_scatter) does. `mine` has that type and exactly the length of the
    /// part.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn reduce_scatter_elements(
        &mut self,
        data: Elements<'_>,
        mine: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>;

    /// Returns every member's `mine`, by rank, on every member. Lengths may differ.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if the lengths add up to more than is accepted.
    fn all_gather_v(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Returns every member's `mine`, by rank, on `root`, and an empty list on the others. Lengths may
    /// differ.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if the lengths add up to more than is accepted.
    fn gather_v(&mut self, root: Rank, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Returns this member's block of the `blocks` that `root` passes, one for each rank. The `blocks` of
    /// other members are ignored.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if `root` does not pass one block for each rank, or too many bytes.
    fn scatter_v(&mut self, root: Rank, blocks: &[Vec<u8>]) -> Result<Vec<u8>, CollectiveError>;

    /// Returns the blocks that the members have for this one, by rank of the sender. `blocks` holds one block
    /// for each rank. Lengths may differ.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if there is not one block for each rank, or if the lengths add up to
    /// more than is accepted.
    fn all_to_all_v(&mut self, blocks: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Replaces `bytes` by those of `root`, whatever their length was before.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `bytes` are then as they were.
    fn broadcast(&mut self, root: Rank, bytes: &mut Vec<u8>) -> Result<(), CollectiveError>;

    /// Copies the bytes that some members have, the same ones, to all members that lack them: straight into their memory, unless a library moves them.
    /// Each member says by `role` what it has to do with it. Those that have the bytes share the sending.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if lengths differ, or if members lack bytes that none has. What was to be overwritten may
    /// then be so in part.
    fn copy(&mut self, role: CopyRole<'_>) -> Result<(), CollectiveError> {
        copy_by_broadcast(self, role)
    }

    /// Waits until all members have called this.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Hears, without waiting, whether the group has failed. A caller that waits or computes for long between two
    /// calls does it now and then: a message that was sent and lost on its way is known to its sender only, and
    /// the others wait for it until they are told. Does nothing by default.
    ///
    /// The next call fails then.
    fn attend(&mut self) {}

    /// Replaces `data` by `Σ wᵢ xᵢ / Σ wᵢ` over all members: the mean over all samples if each member's
    /// `data` is the mean over its own `weight` samples. A member of weight 0 adds nothing, whatever its data
    /// hold, and gets the mean like the others. If all weights are 0, `data` stay as they were and the result
    /// says so. A half type is weighed and summed as `f32`, and its mean is rounded once.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if the weight is negative or not finite, and for the mean of integers.
    /// `data` are then as they were.
    fn weighted_mean<E: Element>(
        &mut self,
        data: &mut [E],
        weight: f64,
    ) -> Result<WeightedMean, CollectiveError>
    where
        Self: Sized,
    {
        self.weighted_mean_elements(ElementsMut::of(data), weight)
    }

    /// Averages elements of any type, as [`weighted_mean`](Self::weighted_mean) does.
    ///
    /// # Errors
    /// As [`weighted_mean`](Self::weighted_mean).
    fn weighted_mean_elements(
        &mut self,
        data: ElementsMut<'_>,
        weight: f64,
    ) -> Result<WeightedMean, CollectiveError>;
}

/// Implements the calls of a [`Communicator`] by passing them on to another one.
macro_rules! forward {
    ($self:ident => $inner:expr) => {
        fn group(&$self) -> &Group {
                $inner.group()
            }

        fn all_reduce_elements(&mut $self, data: ElementsMut<'_>, op: ReduceOp) -> Result<(), CollectiveError> {
                $inner.all_reduce_elements(data, op)
            }

        fn all_reduce_elements_into(
                &mut $self,
                data: Elements<'_>,
                into: ElementsMut<'_>,
                op: ReduceOp,
            ) -> Result<(), CollectiveError> {
                $inner.all_reduce_elements_into(data, into, op)
            }

        fn halves(&mut $self, len_bytes: usize) -> Result<Halves, CollectiveError> {
                $inner.halves(len_bytes)
            }

        fn all_reduce_halves(
                &mut $self,
                halves: &mut Halves,
                element: ElementType,
                op: ReduceOp,
            ) -> Result<(), CollectiveError> {
                $inner.all_reduce_halves(halves, element, op)
            }

        fn reduce_scatter_elements(
                &mut $self,
                data: Elements<'_>,
                mine: ElementsMut<'_>,
                op: ReduceOp,
            ) -> Result<(), CollectiveError> {
                $inner.reduce_scatter_elements(data, mine, op)
            }

        fn all_gather_v(&mut $self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
                $inner.all_gather_v(mine)
            }

        fn gather_v(&mut $self, root: Rank, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
                $inner.gather_v(root, mine)
            }

        fn scatter_v(&mut $self, root: Rank, blocks: &[Vec<u8>]) -> Result<Vec<u8>, CollectiveError> {
                $inner.scatter_v(root, blocks)
            }

        fn all_to_all_v(&mut $self, blocks: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
                $inner.all_to_all_v(blocks)
            }

        fn broadcast(&mut $self, root: Rank, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
                $inner.broadcast(root, bytes)
            }

        fn copy(&mut $self, role: $crate::runtime::CopyRole<'_>) -> Result<(), CollectiveError> {
                $inner.copy(role)
            }

        fn barrier(&mut $self) -> Result<(), CollectiveError> {
                $inner.barrier()
            }

        fn attend(&mut $self) {
                $inner.attend();
            }

        fn weighted_mean_elements(
                &mut $self,
                data: ElementsMut<'_>,
                weight: f64,
            ) -> Result<WeightedMean, CollectiveError> {
                $inner.weighted_mean_elements(data, weight)
            }
    };
}

pub(in crate::runtime) use forward;

impl<C: Communicator + ?Sized> Communicator for Box<C> {
    forward!(self => (**self));
}
