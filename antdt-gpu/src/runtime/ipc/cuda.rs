//! Windows in the memory of a GPU, opened by the handles of CUDA IPC.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use antdt_collective::runtime::region::DevicePlace;
use cudarc::driver::{DriverError, result, sys};

use super::card::{Card, Gpu, Mark, Window};
use super::error::IpcError;
use super::kernel::{Kernel, Work};
use crate::device::{Abilities, Statement};
use crate::runtime::cuda::context::{Context, refused};
use crate::runtime::cuda::kernels::{BLOCK, Kernels, blocks};
use crate::runtime::cuda::lane::Lane;
use crate::runtime::device::bulk::{BulkError, size_of_element};

/// Bytes of each half of a window. Longer data goes in pieces, each of which costs two rounds over the group below.
const WINDOW: usize = 32 << 20;

/// Version of what members offer each other.
const VERSION: u32 = 100;

/// Bytes of a handle.
const HANDLE: usize = 64;

/// A GPU with the compiler for it.
pub(super) struct CudaGpu {
    pub(super) context: Arc<Context>,
    host: u64,
    kernels: Arc<Mutex<Kernels<Kernel>>>,
    // Lanes of earlier communicators. Their memory is given back only with this: a peer may have it open until then.
    idle: Arc<Mutex<Vec<Lane>>>,
}

impl CudaGpu {
    /// Opens the GPU with this index, and compiles a first kernel for it.
    ///
    /// # Errors
    /// If this host lacks the driver, the GPU or the compiler.
    pub(super) fn open(index: u32) -> Result<Self, IpcError> {
        let context = Arc::new(Context::open(index)?);
        let mut kernels = Kernels::open(&context)?;
        let first =
            Kernel::Reduce(antdt_collective::op::ReduceOp::Sum, antdt_collective::element::ElementType::F32);
        kernels.function(first).map_err(|error| IpcError::Call(error.to_string()))?;
        let host = host()?;
        Ok(Self { context, host, kernels: Arc::new(Mutex::new(kernels)), idle: Arc::default() })
    }
}

impl CudaGpu {
    /// A kernel, compiled and loaded.
    pub(super) fn function(&self, kernel: Kernel) -> Result<sys::CUfunction, BulkError> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).function(kernel)
    }
}

/// The identity of this host, until it is started again.
fn host() -> Result<u64, IpcError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(|error| IpcError::Call(format!("{path}: {error}")))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).map_err(|error| IpcError::Call(format!("{path}: {error}")))
}

impl Gpu for CudaGpu {
    type Card = CudaCard;

    fn statement(&self) -> Statement {
        Statement {
            gpu: Some(self.context.identity),
            host: self.host,
            version: VERSION,
            abilities: Abilities::default(),
            last: None,
        }
    }

    fn card(&mut self) -> Result<CudaCard, BulkError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut lane = match idle {
            Some(lane) => lane,
            None => Lane::new(&self.context)?,
        };
        lane.reserve(2 * WINDOW)?;
        let events = Events { filled: Event::new(&self.context)?, reduced: Event::new(&self.context)? };
        let (kernels, idle) = (Arc::clone(&self.kernels), Arc::clone(&self.idle));
        Ok(CudaCard { events, lane: Some(lane), kernels, idle })
    }
}

/// An event that other processes can open, or one of another process.
struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: an event is bound to the context, not to a thread.
unsafe impl Send for Event {}

impl Event {
    fn new(context: &Arc<Context>) -> Result<Self, BulkError> {
        context.make_current()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint
            | sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
        // SAFETY: one pointer is written.
        done("an event", unsafe { sys::cuEventCreate(&raw mut raw, flags) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    fn open(context: &Arc<Context>, handle: [u8; HANDLE]) -> Result<Self, BulkError> {
        let mut raw = std::ptr::null_mut();
        let handle = sys::CUipcEventHandle_st { reserved: handle.map(signed) };
        // SAFETY: one pointer is written; a handle that is none is refused.
        done("an event of a peer", unsafe { sys::cuIpcOpenEventHandle(&raw mut raw, handle) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    fn handle(&self) -> Result<[u8; HANDLE], BulkError> {
        let mut handle = sys::CUipcEventHandle_st { reserved: [0; HANDLE] };
        // SAFETY: the event lives, and one handle is written.
        done("the handle of an event", unsafe { sys::cuIpcGetEventHandle(&raw mut handle, self.raw) })?;
        Ok(handle.reserved.map(unsigned))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: it has no other owner here; the driver keeps it for streams that still wait for it.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

struct Events {
    filled: Event,
    reduced: Event,
}

impl Events {
    const fn of(&self, mark: Mark) -> sys::CUevent {
        match mark {
            Mark::Filled => self.filled.raw,
            Mark::Reduced => self.reduced.raw,
        }
    }
}

/// A stream with its window.
pub(super) struct CudaCard {
    events: Events,
    // There until the card is dropped.
    lane: Option<Lane>,
    kernels: Arc<Mutex<Kernels<Kernel>>>,
    idle: Arc<Mutex<Vec<Lane>>>,
}

/// A window of another process, opened.
pub(super) struct CudaPeer {
    context: Arc<Context>,
    events: Events,
    base: sys::CUdeviceptr,
    // Other memory of it that was reached, by its handle.
    reached: BTreeMap<[u8; HANDLE], sys::CUdeviceptr>,
}

impl Drop for CudaPeer {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            for base in self.reached.values().chain([&self.base]) {
                // SAFETY: it was opened once here, and the stream that used it is done: it was waited for.
                let _ = unsafe { sys::cuIpcCloseMemHandle(*base) };
            }
        }
    }
}

impl Drop for CudaCard {
    fn drop(&mut self) {
        // What is not done in time may still use the memory: the lane then keeps it.
        let settled = self.settle();
        if let Some(lane) = self.lane.take_if(|_| settled) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
        }
    }
}

impl CudaCard {
    fn lane(&mut self) -> Result<&mut Lane, BulkError> {
        let lane = self.lane.as_mut().ok_or_else(|| BulkError::Failed("the stream is gone".to_owned()))?;
        lane.gpu.make_current()?;
        Ok(lane)
    }
}

const fn window_at(base: u64) -> Window {
    Window { from: base, into: base + WINDOW as u64 }
}

impl Card for CudaCard {
    type Peer = CudaPeer;

    const WINDOW: usize = WINDOW;

    fn offer(&mut self) -> Result<Vec<u8>, BulkError> {
        let base = self.lane()?.address();
        let memory = handle_of(base)?;
        Ok([memory, self.events.filled.handle()?, self.events.reduced.handle()?].concat())
    }

    fn open(&mut self, offer: &[u8]) -> Result<CudaPeer, BulkError> {
        let odd = || BulkError::Failed(format!("{} bytes that offer no window", offer.len()));
        let (handles, []) = offer.as_chunks::<HANDLE>() else { return Err(odd()) };
        let [memory, filled, reduced] = handles else { return Err(odd()) };
        let context = Arc::clone(&self.lane()?.gpu);
        let events =
            Events { filled: Event::open(&context, *filled)?, reduced: Event::open(&context, *reduced)? };
        let base = open_memory(*memory)?;
        Ok(CudaPeer { context, events, base, reached: BTreeMap::new() })
    }

    fn window(&self) -> Window {
        window_at(self.lane.as_ref().map_or(0, Lane::address))
    }

    fn window_of(peer: &CudaPeer) -> Window {
        window_at(peer.base)
    }

    // The handle of the allocation, and where in it the memory begins.
    fn share(&mut self, place: &DevicePlace) -> Result<Vec<u8>, BulkError> {
        if self.lane()?.gpu.identity != place.gpu {
            return Err(BulkError::Failed("memory of another GPU".to_owned()));
        }
        let mut base = 0;
        // SAFETY: one address is written, and no length; an address that is in no allocation is refused.
        let status =
            unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, std::ptr::null_mut(), place.address) };
        done("the allocation of memory", status)?;
        Ok([&handle_of(base)?[..], &(place.address - base).to_le_bytes()].concat())
    }

    fn reach(&mut self, peer: &mut CudaPeer, shared: &[u8]) -> Result<u64, BulkError> {
        let odd = || BulkError::Failed(format!("{} bytes that share no memory", shared.len()));
        let (handle, offset) = shared.split_first_chunk::<HANDLE>().ok_or_else(odd)?;
        let offset = u64::from_le_bytes(offset.try_into().map_err(|_| odd())?);
        self.lane()?;
        let base = match peer.reached.get(handle) {
            Some(base) => *base,
            None => {
                let base = open_memory(*handle)?;
                peer.reached.insert(*handle, base);
                base
            }
        };
        Ok(base + offset)
    }

    fn follow(&mut self, place: &DevicePlace) -> Result<(), BulkError> {
        self.lane()?.follow(place.stream)
    }

    fn fill(&mut self, data: &[u8]) -> Result<(), BulkError> {
        let lane = self.lane()?;
        lane.host()[..data.len()].copy_from_slice(data);
        lane.send_up(data.len())
    }

    fn mark(&mut self, mark: Mark) -> Result<(), BulkError> {
        let event = self.events.of(mark);
        let stream = self.lane()?.stream;
        // SAFETY: both live, and belong to one context.
        unsafe { result::event::record(event, stream) }.map_err(refused("a mark"))
    }

    fn wait(&mut self, peer: &CudaPeer, mark: Mark) -> Result<(), BulkError> {
        let stream = self.lane()?.stream;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live; the event of another process may be waited for.
        unsafe { result::stream::wait_event(stream, peer.events.of(mark), flags) }
            .map_err(refused("to wait for a mark"))
    }

    fn reduce(&mut self, work: &Work<'_>) -> Result<(), BulkError> {
        let function = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).function(work.kernel)?;
        let lane = self.lane()?;
        launch(function, work, lane.gpu.multiprocessors, lane.stream)
    }

    fn fetch(&mut self, at: usize, len: usize) -> Result<(), BulkError> {
        self.lane()?.send_down(WINDOW + at, len)
    }

    fn is_idle(&mut self) -> Result<bool, BulkError> {
        self.lane()?.is_idle()
    }

    fn settle(&mut self) -> bool {
        self.lane().is_ok_and(|lane| lane.settle())
    }

    fn fetched(&mut self) -> &[u8] {
        self.lane.as_mut().map_or(&[], |lane| &lane.host()[WINDOW..])
    }
}

/// Puts a kernel on a stream.
pub(super) fn launch(
    function: sys::CUfunction,
    work: &Work<'_>,
    multiprocessors: u32,
    stream: sys::CUstream,
) -> Result<(), BulkError> {
    let mut places = work.places();
    let (mut world, mut targets) = (count(work.from.len()), count(work.into.len()));
    let (mut start, mut len, mut total) = (work.start as u64, work.len as u64, work.total);
    let vectors = work.vectors(size_of_element(work.kernel.element()));
    let pieces = if vectors == 0 { work.len } else { vectors };
    let mut vectors = vectors as u64;
    let mut arguments: [*mut c_void; 7] = [
        (&raw mut places).cast(),
        (&raw mut world).cast(),
        (&raw mut targets).cast(),
        (&raw mut vectors).cast(),
        (&raw mut start).cast(),
        (&raw mut len).cast(),
        (&raw mut total).cast(),
    ];
    // Only a weighted mean has the last one.
    let arguments = match work.kernel {
        Kernel::Reduce(..) => &mut arguments[..6],
        Kernel::WeightedMean(_) => &mut arguments[..],
    };
    let grid = (blocks(pieces, multiprocessors), 1, 1);
    // SAFETY: the arguments are those of the kernel, in its order and of its types, and the call copies them. The memory that
    // it names belongs to windows that their owners keep until the stream has come past it.
    unsafe { result::launch_kernel(function, grid, (BLOCK, 1, 1), 0, stream, arguments) }
        .map_err(refused("to start a kernel"))
}

fn handle_of(base: sys::CUdeviceptr) -> Result<[u8; HANDLE], BulkError> {
    let mut memory = sys::CUipcMemHandle_st { reserved: [0; HANDLE] };
    // SAFETY: one handle is written; an address that is that of no allocation is refused.
    done("the handle of memory", unsafe { sys::cuIpcGetMemHandle(&raw mut memory, base) })?;
    Ok(memory.reserved.map(unsigned))
}

fn open_memory(handle: [u8; HANDLE]) -> Result<sys::CUdeviceptr, BulkError> {
    let memory = sys::CUipcMemHandle_st { reserved: handle.map(signed) };
    let mut base = 0;
    let lazily = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
    // SAFETY: one address is written; a handle that is none, or of a GPU that this one does not reach, is refused.
    let status = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut base, memory, lazily) };
    done("the memory of a peer", status)?;
    Ok(base)
}

fn count(members: usize) -> u32 {
    u32::try_from(members).unwrap_or(u32::MAX)
}

fn done(call: &'static str, status: sys::CUresult) -> Result<(), BulkError> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(refused(call)(DriverError(code))),
    }
}

const fn signed(byte: u8) -> c_char {
    byte.cast_signed()
}

const fn unsigned(byte: c_char) -> u8 {
    byte.cast_unsigned()
}
