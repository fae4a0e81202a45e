//! NCCL on one GPU of this process. Host memory goes through pinned buffers and buffers on the GPU.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};

use super::api::{Api, Call, Place, Raw};
use super::bulk::{Bulk, BulkError, Job, Library, Patience, size_of_element};
use super::error::NcclError;
use crate::nccl::{Statement, Stop, pause};
use crate::runtime::cuda::{self, CudaError};
use crate::schedule::Span;

/// How long the end of a communicator is waited for. What takes longer, a defect of the driver or a peer's, is left alone,
/// with its memory.
const END: Duration = Duration::from_secs(5);

/// Buffers begin at multiples of this: what copies of a GPU are fastest with.
const ALIGNMENT: usize = 256;

/// The library and the GPU.
pub(super) struct Nccl {
    api: Arc<Api>,
    gpu: Arc<Gpu>,
}

/// A GPU with the context that all users in this process share.
struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    identity: u128,
}

// SAFETY: a context may be made current on any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above, also on several at once.
unsafe impl Sync for Gpu {}

impl Gpu {
    fn open(index: u32) -> Result<Self, CudaError> {
        let count = cuda::gpus()?.len();
        if index as usize >= count {
            let why = format!("there are {count}, and none with the index {index}");
            return Err(CudaError::Driver { call: "a GPU", why });
        }
        let failed =
            |call| move |DriverError(code): DriverError| CudaError::Driver { call, why: format!("{code:?}") };
        let device = result::device::get(index.cast_signed()).map_err(failed("a GPU"))?;
        let uuid = result::device::get_uuid(device).map_err(failed("the identity of a GPU"))?;
        let identity = u128::from_le_bytes(uuid.bytes.map(|byte| byte.to_le_bytes()[0]));
        // SAFETY: the device is one that the driver has just given.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("a context"))?;
        Ok(Self { device, context, identity })
    }

    fn make_current(&self) -> Result<(), BulkError> {
        // SAFETY: the context is retained as long as this lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(refused("a context"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once, when it was opened. Nothing can be done about an error.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

fn refused(call: &'static str) -> impl Fn(DriverError) -> BulkError {
    move |DriverError(code)| BulkError::Failed(format!("the CUDA driver refused {call}: {code:?}"))
}

/// A stream with the memory that is used on it.
struct Lane {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
    // Of equal length: what is sent, then what is received.
    host: *mut c_void,
    device: sys::CUdeviceptr,
    len: usize,
}

// SAFETY: stream and memory are bound to the context, not to a thread.
unsafe impl Send for Lane {}

impl Lane {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, BulkError> {
        gpu.make_current()?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(refused("a stream"))?;
        Ok(Self { gpu: Arc::clone(gpu), stream, host: std::ptr::null_mut(), device: 0, len: 0 })
    }

    // Makes room for so many bytes; nothing is under way.
    fn reserve(&mut self, len: usize) -> Result<(), BulkError> {
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

    fn host(&mut self) -> &mut [u8] {
        if self.host.is_null() {
            return &mut [];
        }
        // SAFETY: so many bytes were allocated, and no copy is under way while the slice lives: `run` waits for its own.
        unsafe { std::slice::from_raw_parts_mut(self.host.cast(), self.len) }
    }

    fn place(&self, at: usize) -> Place {
        Place(self.device + at as u64)
    }

    // Begins to copy so many bytes to the GPU.
    fn send_up(&mut self, len: usize) -> Result<(), BulkError> {
        let (device, stream) = (self.device, self.stream);
        // SAFETY: both are so long, and the pinned part is not written before the stream is done.
        unsafe { result::memcpy_htod_async(device, &self.host()[..len], stream) }
            .map_err(refused("a copy to the GPU"))
    }

    // Begins to copy so many bytes from the GPU.
    fn send_down(&mut self, at: usize, len: usize) -> Result<(), BulkError> {
        let (device, stream) = (self.device + at as u64, self.stream);
        // SAFETY: both are so long, and the pinned part is not read before the stream is done.
        unsafe { result::memcpy_dtoh_async(&mut self.host()[at..at + len], device, stream) }
            .map_err(refused("a copy from the GPU"))
    }

    fn is_idle(&self) -> Result<bool, BulkError> {
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(refused("what was under way")(DriverError(code))),
        }
    }

    /// Waits for what is under way, not forever. `false`: it may still read and write the memory.
    fn settle(&self) -> bool {
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

/// A communicator of NCCL.
pub(super) struct NcclComm {
    api: Arc<Api>,
    // Before the lane: what is under way ends with it.
    raw: Owned,
    lane: Lane,
}

/// A communicator that is given up when it is dropped.
struct Owned {
    api: Arc<Api>,
    raw: Raw,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let (api, raw) = (Arc::clone(&self.api), self.raw);
        let (done, ended) = channel();
        // On a thread of its own: where it hangs, this process goes on.
        std::thread::spawn(move || {
            api.abort(raw);
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(END);
    }
}

impl Nccl {
    /// Loads NCCL for the GPU with this index.
    ///
    /// # Errors
    /// If this host lacks the driver, the GPU or the library.
    pub(super) fn open(index: u32) -> Result<Self, NcclError> {
        let gpu = Arc::new(Gpu::open(index)?);
        Ok(Self { api: Arc::new(Api::load()?), gpu })
    }

    fn wait(&self, comm: Raw, patience: &Patience) -> Result<(), BulkError> {
        patience.poll(|| Ok(self.api.is_done(comm)?.then_some(())))
    }

    fn own(&self, raw: Raw) -> Owned {
        Owned { api: Arc::clone(&self.api), raw }
    }
}

impl Library for Nccl {
    type Comm = NcclComm;

    fn statement(&self) -> Statement {
        Statement {
            gpu: Some(self.gpu.identity),
            version: self.api.version,
            abilities: self.api.abilities(),
            last: None,
        }
    }

    fn identity(&mut self) -> Result<Vec<u8>, BulkError> {
        self.api.identity()
    }

    fn init(
        &mut self,
        identity: &[u8],
        world: u32,
        rank: u32,
        patience: &Patience,
    ) -> Result<NcclComm, BulkError> {
        let lane = Lane::new(&self.gpu)?;
        let raw = self.own(self.api.begin(identity, world, rank)?);
        self.wait(raw.raw, patience)?;
        Ok(NcclComm { api: Arc::clone(&self.api), raw, lane })
    }

    fn shrink(
        &mut self,
        comm: NcclComm,
        excluded: &[u32],
        stop: Stop,
        patience: &Patience,
    ) -> Result<NcclComm, BulkError> {
        let NcclComm { api, raw: parent, lane } = comm;
        self.gpu.make_current()?;
        if stop == Stop::Revoke {
            api.begin_revoke(parent.raw)?;
            self.wait(parent.raw, patience)?;
        }
        let child = api.begin_shrink(parent.raw, excluded, stop == Stop::Abort)?;
        self.wait(parent.raw, patience)?;
        let raw = self.own(child.made()?);
        self.wait(raw.raw, patience)?;
        drop(parent);
        Ok(NcclComm { api, raw, lane })
    }

    fn identity_to_grow(&mut self, comm: &mut NcclComm) -> Result<Vec<u8>, BulkError> {
        self.api.identity_to_grow(comm.raw.raw)
    }

    fn grow(
        &mut self,
        comm: Option<NcclComm>,
        identity: &[u8],
        world: u32,
        rank: u32,
        patience: &Patience,
    ) -> Result<NcclComm, BulkError> {
        self.gpu.make_current()?;
        let parent = comm.as_ref().map(|comm| comm.raw.raw);
        let child = self.api.begin_grow(parent, identity, world, rank)?;
        if let Some(parent) = parent {
            self.wait(parent, patience)?;
        }
        let raw = self.own(child.made()?);
        self.wait(raw.raw, patience)?;
        let lane = comm.map_or_else(|| Lane::new(&self.gpu), |comm| Ok(comm.lane))?;
        Ok(NcclComm { api: Arc::clone(&self.api), raw, lane })
    }
}

impl Bulk for NcclComm {
    fn run(&mut self, job: &Job<'_>, patience: &Patience) -> Result<&[u8], BulkError> {
        let Self { api, raw, lane } = self;
        lane.gpu.make_current()?;
        let (sent, received) = lens(job);
        let at = sent.next_multiple_of(ALIGNMENT);
        lane.reserve(at + received)?;
        write_sent(job, lane.host());
        if sent > 0 {
            lane.send_up(sent)?;
        }
        api.submit(raw.raw, lane.stream.cast(), &calls(job, lane, at))?;
        patience.poll(|| Ok(api.is_done(raw.raw)?.then_some(())))?;
        if received > 0 {
            lane.send_down(at, received)?;
        }
        patience.poll(|| match lane.is_idle()? {
            true => Ok(Some(())),
            // A peer's failure shows only here.
            false => api.is_done(raw.raw).map(|_| None),
        })?;
        Ok(&lane.host()[at..at + received])
    }
}

/// Bytes that a member sends, and that it receives.
fn lens(job: &Job<'_>) -> (usize, usize) {
    match job {
        Job::AllReduce { data, .. } => (data.len(), data.len()),
        Job::ReduceScatter { element, data, spans, me, .. } => {
            (data.len(), spans[*me].len * size_of_element(*element))
        }
        Job::Exchange { sends, receives } => {
            (sends.iter().map(|(_, bytes)| bytes.len()).sum(), receives.iter().map(|(_, len)| len).sum())
        }
        Job::Broadcast { data, len, .. } => (data.len(), *len),
    }
}

fn write_sent(job: &Job<'_>, host: &mut [u8]) {
    match job {
        Job::AllReduce { data, .. } | Job::ReduceScatter { data, .. } | Job::Broadcast { data, .. } => {
            host[..data.len()].copy_from_slice(data);
        }
        Job::Exchange { sends, .. } => {
            let mut at = 0;
            for (_, bytes) in *sends {
                host[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
        }
    }
}

/// What the library is to do; the part that is received begins at `at`.
fn calls(job: &Job<'_>, lane: &Lane, at: usize) -> Vec<Call> {
    let (from, into) = (lane.place(0), lane.place(at));
    match job {
        Job::AllReduce { element, op, data } => {
            let len = data.len() / size_of_element(*element);
            vec![Call::AllReduce(from, into, len, *element, *op)]
        }
        // Parts may differ in length by an element, which the library's own reduce-scatter does not allow.
        Job::ReduceScatter { element, op, spans, .. } => {
            let bytes = size_of_element(*element);
            let call = |(root, span): (u32, &Span)| {
                Call::Reduce(lane.place(span.start * bytes), into, span.len, *element, *op, root)
            };
            (0..).zip(*spans).map(call).collect()
        }
        Job::Exchange { sends, receives } => {
            let (mut out, mut back, mut calls) = (0, at, Vec::new());
            for (rank, bytes) in *sends {
                calls.push(Call::Send(lane.place(out), bytes.len(), *rank));
                out += bytes.len();
            }
            for (rank, len) in *receives {
                calls.push(Call::Receive(lane.place(back), *len, *rank));
                back += len;
            }
            // A message without bytes is none.
            calls.retain(|call| !matches!(call, Call::Send(_, 0, _) | Call::Receive(_, 0, _)));
            calls
        }
        Job::Broadcast { root, len, .. } => vec![Call::Broadcast(from, into, *len, *root)],
    }
}
