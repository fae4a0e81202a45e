//! A stream of a GPU with the memory that is used on it.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};

use super::context::{Context, refused};
use crate::device::pause;
use crate::runtime::device::bulk::BulkError;

/// How long the end of what is under way is waited for. What takes longer, a defect of the driver or a peer's, is left alone,
/// with its memory.
pub(in crate::runtime) const END: Duration = Duration::from_secs(5);

/// Buffers begin at multiples of this: what copies of a GPU are fastest with.
#[cfg(feature = "nccl")]
pub(in crate::runtime) const ALIGNMENT: usize = 256;

/// A stream with the memory that is used on it.
pub(in crate::runtime) struct Lane {
    pub(in crate::runtime) gpu: Arc<Context>,
    pub(in crate::runtime) stream: sys::CUstream,
    // Of equal length: what is sent, then what is received.
    host: *mut c_void,
    device: sys::CUdeviceptr,
    len: usize,
}

// SAFETY: stream and memory are bound to the context, not to a thread.
unsafe impl Send for Lane {}

impl Lane {
    pub(in crate::runtime) fn new(gpu: &Arc<Context>) -> Result<Self, BulkError> {
        gpu.make_current()?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(refused("a stream"))?;
        Ok(Self { gpu: Arc::clone(gpu), stream, host: std::ptr::null_mut(), device: 0, len: 0 })
    }

    // Makes room for so many bytes; nothing is under way.
    pub(in crate::runtime) fn reserve(&mut self, len: usize) -> Result<(), BulkError> {
        if len <= self.len {
            return Ok(());
        }
        self.release();
        // SAFETY: what is allocated is written before it is read: the part that is sent by us, the other by the GPU.
        self.host = unsafe { result::malloc_host(len, 0) }.map_err(refused("pinned memory"))?;
        // SAFETY: as above.
        self.device = unsafe { result::malloc_sync(len) }.map_err(refused("memory of the GPU"))?;
        self.len = len;
        Ok(())
    }

    fn release(&mut self) {
        self.len = 0;
        if !self.host.is_null() {
            // SAFETY: it was allocated by `reserve` and nothing is under way.
            let _ = unsafe { result::free_host(self.host) };
            self.host = std::ptr::null_mut();
        }
        if self.device != 0 {
            // SAFETY: as above.
            let _ = unsafe { result::free_sync(self.device) };
            self.device = 0;
        }
    }

    pub(in crate::runtime) fn host(&mut self) -> &mut [u8] {
        if self.host.is_null() {
            return &mut [];
        }
        // SAFETY: so many bytes were allocated, and no copy is under way while the slice lives: `run` waits for its own.
        unsafe { std::slice::from_raw_parts_mut(self.host.cast(), self.len) }
    }

    pub(in crate::runtime) const fn address(&self) -> u64 {
        self.device
    }

    // Begins to copy so many bytes to the GPU.
    pub(in crate::runtime) fn send_up(&mut self, len: usize) -> Result<(), BulkError> {
        let (device, stream) = (self.device, self.stream);
        // SAFETY: both are so long, and the pinned part is not written before the stream is done.
        unsafe { result::memcpy_htod_async(device, &self.host()[..len], stream) }
            .map_err(refused("a copy to the GPU"))
    }

    // Begins to copy so many bytes from the GPU.
    pub(in crate::runtime) fn send_down(&mut self, at: usize, len: usize) -> Result<(), BulkError> {
        let (device, stream) = (self.device + at as u64, self.stream);
        // SAFETY: both are so long, and the pinned part is not read before the stream is done.
        unsafe { result::memcpy_dtoh_async(&mut self.host()[at..at + len], device, stream) }
            .map_err(refused("a copy from the GPU"))
    }

    pub(in crate::runtime) fn is_idle(&self) -> Result<bool, BulkError> {
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(refused("what was under way")(DriverError(code))),
        }
    }

    /// Does what is asked for from now on behind what another stream of this process was asked for.
    pub(in crate::runtime) fn follow(&self, stream: u64) -> Result<(), BulkError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(refused("an event"))?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the owner of the memory says that this is its stream; the event lives until it is destroyed below, and the
        // driver keeps it for the stream that waits.
        let followed = unsafe { result::event::record(event, stream as sys::CUstream) }
            // SAFETY: as above.
            .and_then(|()| unsafe { result::stream::wait_event(self.stream, event, flags) });
        // SAFETY: as above.
        let destroyed = unsafe { result::event::destroy(event) };
        followed.and(destroyed).map_err(refused("to follow a stream"))
    }

    /// Waits for what is under way, not forever. `false`: it may still read and write the memory.
    pub(in crate::runtime) fn settle(&self) -> bool {
        let deadline = Instant::now() + END;
        for asked in 0_u32.. {
            if self.is_idle() == Ok(true) {
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                break;
            }
            std::thread::sleep(pause(asked, deadline - now));
        }
        false
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Memory that something may still write is never given back.
        if self.gpu.make_current().is_ok() && self.settle() {
            self.release();
            // SAFETY: the stream is done and has no other owner.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}
