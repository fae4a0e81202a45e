//! Registered memory: pages that an adapter reads and writes.
#![allow(unsafe_code, reason = "as in the module above")]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::super::result::{Result, VerbsError};
use super::super::sys;
use super::device::ProtectionDomain;

const PAGE: usize = 4 << 10;

/// Which side may write registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Access {
    /// This host's adapter, for work that this process posts.
    Local,
    /// Peers as well, if they have the key.
    Remote,
}

/// Zeroed pages, registered with an adapter until they are dropped.
pub(in super::super) struct MemoryRegion {
    start: NonNull<u8>,
    len: usize,
    region: NonNull<sys::ibv_mr>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: an address range that stays mapped and registered until it is dropped; which bytes belong to whom is a matter
// of the protocol that `safe` describes, not of threads.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Maps and registers pages for `len` bytes.
    pub(in super::super) fn new(
        domain: &Arc<ProtectionDomain>,
        len: usize,
        access: Access,
    ) -> Result<Arc<Self>> {
        let mapped = len.max(1).next_multiple_of(PAGE);
        let failed = |source: io::Error| VerbsError::Memory { len, source };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping of its own, at an address that the system chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) };
        let start = start.map_err(|e| failed(e.into()))?;
        // Older kernels give a child process the page that the adapter has, and this one a copy.
        // SAFETY: the range was just mapped.
        let _ = unsafe { madvise(start, mapped, Advice::LinuxDontFork) };
        let flags = match access {
            Access::Local => sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Access::Remote => {
                sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
        };
        // SAFETY: the domain is alive, and the range is mapped until `drop`, where it is deregistered first.
        let region = unsafe { sys::ibv_reg_mr(domain.as_ptr(), start, mapped, flags.0 as i32) };
        let (Some(region), Some(start)) = (NonNull::new(region), NonNull::new(start.cast::<u8>())) else {
            let error = io::Error::last_os_error();
            // SAFETY: mapped above, and not in use.
            let _ = unsafe { munmap(start, mapped) };
            return Err(failed(error));
        };
        Ok(Arc::new(Self { start, len: mapped, region, domain: domain.clone() }))
    }

    /// Returns the key that this process's work requests use.
    pub(in super::super) const fn local_key(&self) -> u32 {
        // SAFETY: registered until `drop`.
        unsafe { self.region.as_ref().lkey }
    }

    /// Returns the key that peers use.
    pub(in super::super) const fn remote_key(&self) -> u32 {
        // SAFETY: registered until `drop`.
        unsafe { self.region.as_ref().rkey }
    }

    /// Returns the address of the byte at `at`.
    pub(in super::super) fn address(&self, at: usize) -> u64 {
        assert!(at <= self.len, "an address beyond registered memory");
        self.start.as_ptr().expose_provenance() as u64 + at as u64
    }

    /// Returns whether these bytes lie here.
    pub(in super::super) fn holds(&self, bytes: &[u8]) -> bool {
        let (first, start) = (bytes.as_ptr().addr(), self.start.as_ptr().addr());
        start <= first && first + bytes.len() <= start + self.len
    }

    /// Returns bytes.
    ///
    /// # Safety
    /// No adapter and no other reference writes them as long as the result lives.
    pub(in super::super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at, "bytes beyond registered memory");
        // SAFETY: inside of the mapping; the rest is the caller's promise.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    /// Returns bytes to be written.
    ///
    /// # Safety
    /// No adapter and no other reference reads or writes them as long as the result lives.
    #[allow(clippy::mut_from_ref, reason = "the protocol keeps the parts of a region apart")]
    pub(in super::super) unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at, "bytes beyond registered memory");
        // SAFETY: inside of the mapping; the rest is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: nothing but this value has the registration or the mapping; adapters are told first.
        unsafe {
            sys::ibv_dereg_mr(self.region.as_ptr());
            let _ = munmap(self.start.as_ptr().cast::<c_void>(), self.len);
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes on {})", self.len, self.domain.device().name())
    }
}

/// Memory that a transport over RDMA handed out: registered once, however often it is reduced.
pub(in super::super) struct RegisteredRegion {
    region: Arc<MemoryRegion>,
    len: usize,
}

impl RegisteredRegion {
    /// The only one of that memory.
    pub(in super::super) const fn new(region: Arc<MemoryRegion>, len: usize) -> Self {
        Self { region, len }
    }
}

impl Deref for RegisteredRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: adapters write it only where a call of the transport has it borrowed exclusively.
        unsafe { self.region.bytes(0, self.len) }
    }
}

impl DerefMut for RegisteredRegion {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the transport itself makes no slices of it.
        unsafe { self.region.bytes_mut(0, self.len) }
    }
}

impl fmt::Debug for RegisteredRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredRegion({} bytes)", self.len)
    }
}
