//! Memory from a transport, for buffers that the transport reduces fastest.

use std::ops::{Deref, DerefMut};

#[cfg(feature = "rdma")]
use super::transport::rdma::RegisteredRegion;
use super::transport::shm::SharedRegion;

/// Zeroed bytes, aligned to at least 8 bytes, that may be sent from and received into like any others. The
/// transport that made them recognises them, and may move them faster than other memory.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Heap {
        words: Vec<u64>,
        len: usize,
    },
    Shared(SharedRegion),
    #[cfg(feature = "rdma")]
    Registered(RegisteredRegion),
}

impl Region {
    /// Returns a region of `len` bytes on the heap.
    pub fn heap(len: usize) -> Self {
        Self { memory: Memory::Heap { words: vec![0; len.div_ceil(8)], len } }
    }

    pub(super) const fn shared(region: SharedRegion) -> Self {
        Self { memory: Memory::Shared(region) }
    }

    #[cfg(feature = "rdma")]
    pub(super) const fn registered(region: RegisteredRegion) -> Self {
        Self { memory: Memory::Registered(region) }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap { words, len } => &bytemuck::cast_slice(words)[..*len],
            Memory::Shared(region) => region,
            #[cfg(feature = "rdma")]
            Memory::Registered(region) => region,
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap { words, len } => &mut bytemuck::cast_slice_mut(words)[..*len],
            Memory::Shared(region) => region,
            #[cfg(feature = "rdma")]
            Memory::Registered(region) => region,
        }
    }
}
