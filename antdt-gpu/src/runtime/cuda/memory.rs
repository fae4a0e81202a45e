//! Memory of a GPU, for buffers that are reduced where they lie.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use antdt_collective::error::CollectiveError;
use antdt_collective::runtime::region::{DeviceMemory, DevicePlace, Region};
use cudarc::driver::{result, sys};

use super::CudaError;
use super::context::{Context, refused};
use super::lane::Lane;
use crate::device::pause;
use crate::runtime::device::bulk::BulkError;

/// Bytes that go through pinned memory at a time, where a group reduces over messages.
const STAGE: usize = 8 << 20;

/// How long a copy may take: more than any does that comes to an end.
const COPY: Duration = Duration::from_secs(60);

/// Memory that was given back, by GPU and length. It is never given to the driver: another process may still have it open.
static IDLE: Mutex<BTreeMap<(u128, usize), Vec<sys::CUdeviceptr>>> = Mutex::new(BTreeMap::new());

/// Memory of a GPU of this process.
struct CudaMemory {
    gpu: Arc<Context>,
    // With the pinned memory that copies go through; made when the first one does.
    lane: Option<Lane>,
    address: sys::CUdeviceptr,
    len: usize,
}

/// Returns a region of `len_bytes` zeroed bytes on the GPU with this index. Groups over NCCL or CUDA IPC
/// reduce such a region without copying it to the host.
///
/// # Errors
/// If there is no such GPU, or the GPU has no memory left.
pub fn memory(gpu: u32, len_bytes: usize) -> Result<Region, CudaError> {
    let gpu = Arc::new(Context::open(gpu)?);
    let failed = |error: BulkError| CudaError::Driver { call: "memory", why: error.to_string() };
    let memory = CudaMemory::new(gpu, len_bytes).map_err(failed)?;
    Ok(Region::on_device(Box::new(memory)))
}

/// The same on a GPU that is open.
pub(in crate::runtime) fn memory_of(gpu: &Arc<Context>, len_bytes: usize) -> Result<Region, BulkError> {
    Ok(Region::on_device(Box::new(CudaMemory::new(Arc::clone(gpu), len_bytes)?)))
}

impl CudaMemory {
    fn new(gpu: Arc<Context>, len: usize) -> Result<Self, BulkError> {
        gpu.make_current()?;
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match idle.get_mut(&(gpu.identity, len)).and_then(Vec::pop) {
            Some(address) => address,
            // SAFETY: it is written below, before anything reads it.
            None => unsafe { result::malloc_sync(len.max(1)) }.map_err(refused("memory of the GPU"))?,
        };
        drop(idle);
        let memory = Self { gpu, lane: None, address, len };
        if len > 0 {
            // SAFETY: so many bytes belong to it.
            unsafe { result::memset_d8_sync(address, 0, len) }.map_err(refused("to zero memory"))?;
        }
        Ok(memory)
    }

    // Copies piece after piece through pinned memory: `host` reads or writes each.
    fn stage(&mut self, up: bool, mut host: impl FnMut(usize, &mut [u8])) -> Result<(), BulkError> {
        let lane = match self.lane.take() {
            Some(lane) => lane,
            None => Lane::new(&self.gpu)?,
        };
        let lane = self.lane.insert(lane);
        self.gpu.make_current()?;
        lane.reserve(STAGE)?;
        // Behind whatever wrote the memory on the default stream.
        lane.follow(0)?;
        for at in (0..self.len).step_by(STAGE) {
            let len = STAGE.min(self.len - at);
            let (place, stream) = (self.address + at as u64, lane.stream);
            let pinned = &mut lane.host()[..len];
            if up {
                host(at, pinned);
                // SAFETY: both are so long, and the pinned part is not written before the stream is done.
                unsafe { result::memcpy_htod_async(place, pinned, stream) }
                    .map_err(refused("a copy to the GPU"))?;
            } else {
                // SAFETY: both are so long, and the pinned part is not read before the stream is done.
                unsafe { result::memcpy_dtoh_async(pinned, place, stream) }
                    .map_err(refused("a copy from the GPU"))?;
            }
            wait(lane)?;
            if !up {
                host(at, &mut lane.host()[..len]);
            }
        }
        Ok(())
    }
}

fn wait(lane: &Lane) -> Result<(), BulkError> {
    let deadline = Instant::now() + COPY;
    for asked in 0_u32.. {
        if lane.is_idle()? {
            return Ok(());
        }
        let now = Instant::now();
        if now >= deadline {
            break;
        }
        std::thread::sleep(pause(asked, deadline - now));
    }
    Err(BulkError::Late)
}

#[allow(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn failed(error: BulkError) -> CollectiveError {
    CollectiveError::Io { what: format!("memory of a GPU: {error}"), kind: std::io::ErrorKind::Other }
}

impl DeviceMemory for CudaMemory {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn place(&self) -> DevicePlace {
        DevicePlace { gpu: self.gpu.identity, address: self.address, stream: 0 }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), CollectiveError> {
        self.stage(false, |at, pinned| into[at..at + pinned.len()].copy_from_slice(pinned)).map_err(failed)
    }

    fn write(&mut self, from: &[u8]) -> Result<(), CollectiveError> {
        self.stage(true, |at, pinned| pinned.copy_from_slice(&from[at..at + pinned.len()])).map_err(failed)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.entry((self.gpu.identity, self.len)).or_default().push(self.address);
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaMemory({} bytes)", self.len)
    }
}
