//! Memory from a transport, for buffers that the transport reduces fastest.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

#[cfg(feature = "rdma")]
use super::transport::rdma::RegisteredRegion;
use super::transport::shm::SharedRegion;
use crate::error::CollectiveError;

/// Where memory of a GPU lies, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePlace {
    /// Identity of the GPU (its UUID, in the order of its bytes).
    pub gpu: u128,
    /// Its address on the GPU.
    pub address: u64,
    /// The stream that wrote it last, as a handle of the CUDA driver in this process; 0 is the default stream. What a
    /// communicator asks of the GPU comes behind what that stream was asked for before the call.
    pub stream: u64,
}

/// Memory of a GPU, which the host does not address: that of this crate (`cuda::memory`), or of a framework that
/// makes its own.
pub trait DeviceMemory: Debug + Send {
    /// Returns its length.
    fn len_bytes(&self) -> usize;

    /// Returns where it lies.
    fn place(&self) -> DevicePlace;

    /// Copies all of it to the host, once its stream has come so far. Called where a group reduces over messages.
    ///
    /// # Errors
    /// If the GPU fails.
    fn read(&mut self, into: &mut [u8]) -> Result<(), CollectiveError>;

    /// Copies from the host, and returns when all is there.
    ///
    /// # Errors
    /// If the GPU fails.
    fn write(&mut self, from: &[u8]) -> Result<(), CollectiveError>;
}

/// Zeroed bytes, aligned to at least 8 bytes, that may be sent from and received into like any others. The
/// transport that made them recognises them, and may move them faster than other memory.
///
/// A region may lie on a GPU ([`on_device`](Self::on_device)). As bytes of the host it is then empty.
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
    Device(Box<dyn DeviceMemory>),
    #[cfg(feature = "rdma")]
    Registered(RegisteredRegion),
}

impl Region {
    /// Returns a region of `len` bytes on the heap.
    pub fn heap(len: usize) -> Self {
        Self { memory: Memory::Heap { words: vec![0; len.div_ceil(8)], len } }
    }

    /// Returns a region of a GPU.
    pub fn on_device(memory: Box<dyn DeviceMemory>) -> Self {
        Self { memory: Memory::Device(memory) }
    }

    /// Returns the memory of a region that lies on a GPU; `None` if it is the host's.
    pub fn device(&mut self) -> Option<&mut dyn DeviceMemory> {
        match &mut self.memory {
            Memory::Device(memory) => Some(&mut **memory),
            _ => None,
        }
    }

    /// Returns its length, wherever it lies.
    pub fn len_bytes(&self) -> usize {
        match &self.memory {
            Memory::Device(memory) => memory.len_bytes(),
            _ => self.len(),
        }
    }

    pub(super) const fn is_on_device(&self) -> bool {
        matches!(self.memory, Memory::Device(_))
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
            Memory::Device(_) => &[],
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
            Memory::Device(_) => &mut [],
            #[cfg(feature = "rdma")]
            Memory::Registered(region) => region,
        }
    }
}
