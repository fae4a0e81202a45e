//! Buffers that a communicator reduces without copying them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::element::Element;
use crate::runtime::region::Region;
use crate::runtime::transport::Transport;

/// Elements in memory of the transport, twice: what is reduced, and where the result is made. When the result counts,
/// the two change places. A communicator of a later group moves it to its own memory. Taken from [`Communicator::buffer`](super::Communicator::buffer), zeroed.
pub struct Buffer<E> {
    live: Region,
    spare: Region,
    element: PhantomData<E>,
}

impl<E: Element> Buffer<E> {
    pub(super) const fn new(live: Region, spare: Region) -> Self {
        Self { live, spare, element: PhantomData }
    }

    pub(super) fn halves(&mut self) -> (&[E], &mut [E]) {
        (bytemuck::cast_slice(&self.live), bytemuck::cast_slice_mut(&mut self.spare))
    }

    /// Whether it lies in memory of a transport, all of it.
    pub(super) fn is_of(&self, transport: &impl Transport) -> bool {
        self.spare.len() == self.live.len() && transport.owns(&self.live) && transport.owns(&self.spare)
    }

    /// Puts other memory in the place of what the result would be made in: others may still write there.
    pub(super) fn forsake(&mut self) {
        self.spare = Region::heap(0);
    }

    /// Takes over the result of a call that failed here and counts all the same: after
    /// [`Resolution::Committed`](crate::outcome::Resolution::Committed), once. Where there is no result, nothing changes.
    pub fn adopt(&mut self) {
        if self.spare.len() == self.live.len() {
            std::mem::swap(&mut self.live, &mut self.spare);
        }
    }
}

impl<E: Element> Deref for Buffer<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        bytemuck::cast_slice(&self.live)
    }
}

impl<E: Element> DerefMut for Buffer<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        bytemuck::cast_slice_mut(&mut self.live)
    }
}

impl<E: Element> fmt::Debug for Buffer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {})", self.len(), E::TYPE)
    }
}
