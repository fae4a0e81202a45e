//! Buffers that a communicator reduces without copying them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::element::Element;
use crate::runtime::region::Region;

/// Elements in memory of the transport, twice: what is reduced, and where the result is made. When the result counts,
/// the two change places. Taken from [`Communicator::buffer`](super::Communicator::buffer), zeroed.
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

    /// Takes over the result of a call that failed here and counts all the same: after
    /// [`Resolution::Committed`](crate::outcome::Resolution::Committed), once.
    pub fn adopt(&mut self) {
        std::mem::swap(&mut self.live, &mut self.spare);
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
