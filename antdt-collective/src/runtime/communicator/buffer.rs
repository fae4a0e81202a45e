//! Buffers in a communicator's own memory, which it reduces without copying them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::element::Element;
use crate::runtime::region::{DeviceMemory, DevicePlace, Region};
use crate::runtime::transport::Transport;

/// Two memory regions of equal length from a communicator: the live one holds the operand, the spare one
/// takes the result. When the result counts, the two swap roles. Both lie in host memory or both on a GPU. A
/// group that cannot reduce on the GPU copies the operand to the host and the result back.
#[derive(Debug)]
pub struct Halves {
    live: Region,
    spare: Region,
}

impl Halves {
    /// Pairs two regions of the same length.
    ///
    /// # Panics
    /// If their lengths differ, or one lies on a GPU and the other does not.
    pub fn new(live: Region, spare: Region) -> Self {
        assert_eq!(live.len_bytes(), spare.len_bytes(), "both halves are equally long");
        assert_eq!(live.is_on_device(), spare.is_on_device(), "both halves lie on the same side");
        Self { live, spare }
    }

    /// Returns the bytes of the operand.
    pub fn live(&self) -> &[u8] {
        &self.live
    }

    /// Returns the bytes of the operand, for writing.
    pub fn live_mut(&mut self) -> &mut [u8] {
        &mut self.live
    }

    /// Returns the bytes of the operand, and the memory for the result.
    pub fn parts(&mut self) -> (&[u8], &mut [u8]) {
        (&self.live, &mut self.spare)
    }

    /// Returns the length of the operand in bytes, on the host or on a GPU.
    pub fn len_bytes(&self) -> usize {
        self.live.len_bytes()
    }

    /// Returns the operand and the memory for the result, if they lie on a GPU.
    pub fn device_parts(&mut self) -> Option<(&mut dyn DeviceMemory, &mut dyn DeviceMemory)> {
        Some((self.live.device()?, self.spare.device()?))
    }

    // Whether it lies in memory of a transport, all of it.
    pub(super) fn is_of(&self, transport: &impl Transport) -> bool {
        self.spare.len() == self.live.len() && transport.owns(&self.live) && transport.owns(&self.spare)
    }

    // Puts other memory in the place of what the result would be made in: others may still write there.
    pub(super) fn forsake(&mut self) {
        self.spare = Region::heap(0);
    }

    /// Makes the last result the operand of the next call. Changes nothing if there is no result.
    pub fn adopt(&mut self) {
        if self.spare.len_bytes() == self.live.len_bytes() {
            std::mem::swap(&mut self.live, &mut self.spare);
        }
    }
}

/// Elements in a communicator's own memory, zeroed at first, from
/// [`Communicator::buffer`](super::Communicator::buffer). The first call of a later group's communicator
/// moves them to that communicator's memory.
pub struct CommunicatorBuffer<E> {
    halves: Halves,
    element: PhantomData<E>,
}

impl<E: Element> CommunicatorBuffer<E> {
    pub(super) const fn of(halves: Halves) -> Self {
        Self { halves, element: PhantomData }
    }

    pub(super) const fn as_halves(&mut self) -> &mut Halves {
        &mut self.halves
    }

    /// Returns a buffer in halves of the caller's own, such as memory of a GPU. Dereferenced as elements of the host a buffer
    /// on a GPU is empty.
    ///
    /// # Panics
    /// If the halves have a broken number of elements.
    pub fn in_halves(halves: Halves) -> Self {
        assert_eq!(halves.len_bytes() % size_of::<E>(), 0, "halves hold whole elements");
        Self::of(halves)
    }

    /// Returns the number of elements, on the host or on a GPU.
    pub fn elements(&self) -> usize {
        self.halves.len_bytes() / size_of::<E>()
    }

    /// Returns where the content lies, if it lies on a GPU.
    pub fn device_place(&mut self) -> Option<DevicePlace> {
        self.halves.device_parts().map(|(live, _)| live.place())
    }

    /// Makes the result the content of the buffer, after a call that failed on this rank but counts: to be
    /// called once, after [`Resolution::Committed`](crate::outcome::Resolution::Committed). Changes nothing
    /// if there is no result.
    pub fn adopt(&mut self) {
        self.halves.adopt();
    }
}

impl<E: Element> Deref for CommunicatorBuffer<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        bytemuck::cast_slice(self.halves.live())
    }
}

impl<E: Element> DerefMut for CommunicatorBuffer<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        bytemuck::cast_slice_mut(self.halves.live_mut())
    }
}

impl<E: Element> fmt::Debug for CommunicatorBuffer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommunicatorBuffer({} of {})", self.elements(), E::TYPE)
    }
}
