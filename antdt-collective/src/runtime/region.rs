//! Memory that a transport hands out for buffers that it reduces fastest.

use std::ops::{Deref, DerefMut};

use super::transport::shm::SharedRegion;

/// Zeroed bytes, aligned to 8 at least, that may be sent from and received into like any others. What is special about
/// them is known to the transport that made them.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Heap { words: Vec<u64>, len: usize },
    Shared(SharedRegion),
}

impl Region {
    /// A region on the heap, of `len` bytes.
    pub fn heap(len: usize) -> Self {
        Self { memory: Memory::Heap { words: vec![0; len.div_ceil(8)], len } }
    }

    pub(super) const fn shared(region: SharedRegion) -> Self {
        Self { memory: Memory::Shared(region) }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap { words, len } => &bytemuck::cast_slice(words)[..*len],
            Memory::Shared(region) => region,
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap { words, len } => &mut bytemuck::cast_slice_mut(words)[..*len],
            Memory::Shared(region) => region,
        }
    }
}
