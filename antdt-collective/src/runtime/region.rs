//! [`Region`]: memory from a transport, for buffers that the transport sends and receives fastest.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

use super::transport::shm::SharedRegion;
use crate::error::CollectiveError;

/// Address of a buffer in GPU memory, and the stream whose work must be done before the buffer is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePlace {
    /// Identity of the GPU: the bytes of its UUID, read as a little-endian number.
    pub gpu: u128,
    /// Address of the buffer in the GPU's memory.
    pub address: u64,
    /// Handle of the CUDA stream that wrote the buffer last, in this process; 0 is the default stream. A
    /// communicator orders its work on the GPU behind the work that this stream had before the call.
    pub stream: u64,
}

impl DevicePlace {
    /// Returns the place `len_bytes` behind this one, in the same buffer.
    #[must_use]
    pub const fn after(self, len_bytes: usize) -> Self {
        Self { address: self.address + len_bytes as u64, ..self }
    }
}

/// A buffer in GPU memory, which host code cannot address: one of this crate (`cuda::memory`), or one of a
/// framework that allocates its own.
pub trait DeviceMemory: Debug + Send {
    /// Returns the length of the buffer in bytes.
    fn len_bytes(&self) -> usize;

    /// Returns where the buffer lies, and the stream that wrote it last.
    fn place(&self) -> DevicePlace;

    /// Copies the whole buffer to the host, once its stream has written it. A group that reduces over
    /// messages calls this.
    ///
    /// # Errors
    /// If the GPU fails.
    fn read(&mut self, into: &mut [u8]) -> Result<(), CollectiveError>;

    /// Overwrites the buffer with bytes of the host, and returns when they are there.
    ///
    /// # Errors
    /// If the GPU fails.
    fn write(&mut self, from: &[u8]) -> Result<(), CollectiveError>;
}

/// Host memory that a transport made in its own way, for example registered with an adapter: zeroed at first,
/// and aligned to at least 8 bytes.
pub trait HostMemory: Debug + Send + DerefMut<Target = [u8]> {}

impl<T: Debug + Send + DerefMut<Target = [u8]>> HostMemory for T {}

/// Zeroed memory, aligned to at least 8 bytes, for messages. The transport that made a region recognises it,
/// and may send and receive it faster than other memory.
///
/// A region may lie on a GPU ([`on_device`](Self::on_device)); dereferenced as host bytes it is then empty.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Heap { words: Vec<u64>, len: usize },
    Shared(SharedRegion),
    Device(Box<dyn DeviceMemory>),
    Host(Box<dyn HostMemory>),
}

impl Region {
    /// Returns a region of `len` bytes in host memory, on the heap.
    pub fn heap(len: usize) -> Self {
        Self { memory: Memory::Heap { words: vec![0; len.div_ceil(8)], len } }
    }

    /// Returns a region that is this host memory of a transport.
    pub fn on_host(memory: Box<dyn HostMemory>) -> Self {
        Self { memory: Memory::Host(memory) }
    }

    /// Returns a region that is this buffer in GPU memory.
    pub fn on_device(memory: Box<dyn DeviceMemory>) -> Self {
        Self { memory: Memory::Device(memory) }
    }

    /// Returns the GPU buffer of a region that lies on a GPU; `None` if the region lies in host memory.
    pub fn device(&mut self) -> Option<&mut dyn DeviceMemory> {
        match &mut self.memory {
            Memory::Device(memory) => Some(&mut **memory),
            _ => None,
        }
    }

    /// Returns the length of the region in bytes, on the host or on a GPU.
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
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap { words, len } => &bytemuck::cast_slice(words)[..*len],
            Memory::Shared(region) => region,
            Memory::Device(_) => &[],
            Memory::Host(memory) => memory,
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap { words, len } => &mut bytemuck::cast_slice_mut(words)[..*len],
            Memory::Shared(region) => region,
            Memory::Device(_) => &mut [],
            Memory::Host(memory) => memory,
        }
    }
}
