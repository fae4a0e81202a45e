//! Buffers that a communicator reduces without copying them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::element::Element;
use crate::runtime::region::Region;
use crate::runtime::transport::Transport;

/// Memory of a communicator, twice: what is reduced, and where the result is made. When the result counts, the two
/// change places.
#[derive(Debug)]
pub struct Halves {
    live: Region,
    spare: Region,
}

impl Halves {
    /// Two regions of the same length.
    ///
    /// # Panics
    /// If their lengths differ.
    pub fn new(live: Region, spare: Region) -> Self {
        assert_eq!(live.len(), spare.len(), "both halves are equally long");
        Self { live, spare }
    }

    /// Returns what is reduced.
    pub fn live(&self) -> &[u8] {
        &self.live
    }

    /// Returns what is reduced, to be written.
    pub fn live_mut(&mut self) -> &mut [u8] {
        &mut self.live
    }

    /// Returns what is reduced, and where the result is made.
    pub fn parts(&mut self) -> (&[u8], &mut [u8]) {
        (&self.live, &mut self.spare)
    }

    // Whether it lies in memory of a transport, all of it.
    pub(super) fn is_of(&self, transport: &impl Transport) -> bool {
        self.spare.len() == self.live.len() && transport.owns(&self.live) && transport.owns(&self.spare)
    }

    // Puts other memory in the place of what the result would be made in: others may still write there.
    pub(super) fn forsake(&mut self) {
        self.spare = Region::heap(0);
    }

    /// Makes the result what is reduced next. Where there is no result, nothing changes.
    pub fn adopt(&mut self) {
        if self.spare.len() == self.live.len() {
            std::mem::swap(&mut self.live, &mut self.spare);
        }
    }
}

/// Elements in memory of a communicator, zeroed at first: taken from [`Communicator::buffer`](super::Communicator::buffer).
/// A communicator of a later group moves it to its own memory.
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

    /// Takes over the result of a call that failed here and counts all the same: after
    /// [`Resolution::Committed`](crate::outcome::Resolution::Committed), once. Where there is no result, nothing changes.
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
        write!(f, "CommunicatorBuffer({} of {})", self.len(), E::TYPE)
    }
}
