//! [`EmulatedGpu`]: a GPU that is none, for tests: its memory is that of a process that runs the kernels on the CPU of this machine, and
//! the host reads none of it except by copies that are counted, or refused. Emulated GPUs reduce in each other's memory as those of NCCL
//! and CUDA IPC do: [`EmulatedGpu::backend`]. Feature `testing`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use antdt_collective::element::{Element as _, ElementType};
use antdt_collective::elements::{with_float, with_type};
use antdt_collective::error::CollectiveError;
use antdt_collective::kernel;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::RowsError;
use antdt_collective::runtime::process_group::{Backend, ProcessGroup};
use antdt_collective::runtime::region::{DeviceMemory, DevicePlace, Region};
use antdt_collective::weighted::{self, Weighed};

use super::store::{FlatCard, Store};
use super::{FlatError, FlatMemory, FlatShape};
use crate::device::{Abilities, Statement, Stop, Terms};
use crate::runtime::device::backend::DeviceBackend;
use crate::runtime::device::bulk::{Bulk, BulkError, Job, Library, Patience, size_of_element};
use crate::runtime::rows::card::Card;
use crate::runtime::rows::kernel::{RowKernel, Work};
use crate::runtime::rows::testing::{HostCard, HostKernels};

/// The emulated GPUs of this process, by identity.
static GPUS: Mutex<BTreeMap<u128, Arc<Shared>>> = Mutex::new(BTreeMap::new());

/// What all that use one emulated GPU share.
struct Shared {
    identity: u128,
    card: Mutex<HostCard>,
    /// Copies of gradients to the host.
    gradients: AtomicU64,
    /// Whether such a copy fails, and the GPU with it.
    is_strict: bool,
    has_failed: AtomicBool,
}

/// What a strict GPU fails of.
const COPIED: &str = "a gradient was to be copied to the host";

impl Shared {
    fn card(&self) -> Result<MutexGuard<'_, HostCard>, RowsError> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(RowsError::Device(COPIED.to_owned()));
        }
        Ok(self.card.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn copy_gradient(&self) {
        self.gradients.fetch_add(1, Ordering::Relaxed);
        if self.is_strict {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Gives memory back.
    fn release(&self, address: u64) {
        if let Ok(mut card) = self.card() {
            card.release(address);
        }
    }
}

/// See the [module](self).
#[derive(Clone)]
pub struct EmulatedGpu {
    shared: Arc<Shared>,
}

impl EmulatedGpu {
    /// Starts a process that runs the kernels. If it is strict, a copy of a gradient to the host fails, and all
    /// that is asked of it later.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(kernels: &HostKernels, is_strict: bool) -> Result<Self, FlatError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let identity = u128::from(std::process::id()) << 64 | u128::from(number);
        let card = Mutex::new(kernels.card()?);
        let shared = Arc::new(Shared {
            identity,
            card,
            gradients: AtomicU64::new(0),
            is_strict,
            has_failed: AtomicBool::new(false),
        });
        GPUS.lock().unwrap_or_else(PoisonError::into_inner).insert(identity, Arc::clone(&shared));
        Ok(Self { shared })
    }

    /// Returns how often a gradient was copied to the host, or was to be.
    pub fn gradients_copied(&self) -> u64 {
        self.shared.gradients.load(Ordering::Relaxed)
    }

    /// Returns memory for a flat vector.
    ///
    /// # Errors
    /// If no GPU takes one of this shape, or the process has ended.
    pub fn flat(&self, shape: FlatShape) -> Result<Arc<dyn FlatMemory>, FlatError> {
        Ok(Arc::new(Store::new(EmulatedCard(Arc::clone(&self.shared)), shape)?))
    }

    /// Returns zeroed memory for `len` values, as a training framework allocates a tensor.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn tensor(&self, len: usize) -> Result<EmulatedTensor, FlatError> {
        let address = self.shared.card()?.allocate((4 * len).max(1))?;
        Ok(EmulatedTensor { shared: Arc::clone(&self.shared), address, len })
    }

    /// Wraps `below` in a backend whose groups reduce in the memory of emulated GPUs.
    pub fn backend(&self, below: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(DeviceBackend::new(Ok(Emulated { gpu: self.shared.identity }), below))
    }
}

impl fmt::Debug for EmulatedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedGpu")
            .field("gradients_copied", &self.gradients_copied())
            .finish_non_exhaustive()
    }
}

/// Values in the memory of an emulated GPU, which what computes on that GPU reads and writes.
pub struct EmulatedTensor {
    shared: Arc<Shared>,
    address: u64,
    len: usize,
}

impl EmulatedTensor {
    /// Returns the address of the first value.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Writes the values, as a computation on the GPU does.
    ///
    /// # Errors
    /// If the process has ended.
    ///
    /// # Panics
    /// If the tensor has another length.
    pub fn compute(&self, values: &[f32]) -> Result<(), FlatError> {
        assert_eq!(values.len(), self.len, "a tensor has one length");
        Ok(self.shared.card()?.up(self.address, bytemuck::cast_slice(values))?)
    }

    /// Returns the values, for what computes on the GPU: no copy to the host.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn computed(&self) -> Result<Vec<f32>, FlatError> {
        let mut values = vec![0.0; self.len];
        self.shared.card()?.down(self.address, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Copies the gradient that the tensor holds to the host, which is counted.
    ///
    /// # Errors
    /// If the GPU is strict, or the process has ended.
    pub fn gradient(&self) -> Result<Vec<f32>, FlatError> {
        self.shared.copy_gradient();
        self.computed()
    }
}

impl fmt::Debug for EmulatedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmulatedTensor({} values)", self.len)
    }
}

impl Drop for EmulatedTensor {
    fn drop(&mut self) {
        self.shared.release(self.address);
    }
}

/// The card of all that use the GPU.
struct EmulatedCard(Arc<Shared>);

impl Card for EmulatedCard {
    fn allocate(&mut self, len_bytes: usize) -> Result<u64, RowsError> {
        self.0.card()?.allocate(len_bytes)
    }

    fn release(&mut self, address: u64) {
        self.0.release(address);
    }

    fn place(&self, address: u64) -> DevicePlace {
        DevicePlace { gpu: self.0.identity, address, stream: 0 }
    }

    fn up(&mut self, address: u64, bytes: &[u8]) -> Result<(), RowsError> {
        self.0.card()?.up(address, bytes)
    }

    fn start(&mut self, kernel: RowKernel, work: &Work) -> Result<(), RowsError> {
        self.0.card()?.start(kernel, work)
    }

    fn holds(&mut self, address: u64) -> Result<bool, RowsError> {
        self.0.card()?.holds(address)
    }

    fn copy(&mut self, from: u64, to: u64, len_bytes: usize) -> Result<(), RowsError> {
        self.0.card()?.copy(from, to, len_bytes)
    }

    fn down(&mut self, address: u64, into: &mut [u8]) -> Result<(), RowsError> {
        self.0.card()?.down(address, into)
    }

    fn finish(&mut self) -> Result<(), RowsError> {
        self.0.card()?.finish()
    }
}

impl FlatCard for EmulatedCard {
    fn region(&mut self, len_bytes: usize) -> Result<Region, RowsError> {
        let address = self.0.card()?.allocate(len_bytes.max(1))?;
        Ok(Region::on_device(Box::new(EmulatedRegion { shared: Arc::clone(&self.0), address, len_bytes })))
    }
}

/// Half of a bucket.
struct EmulatedRegion {
    shared: Arc<Shared>,
    address: u64,
    len_bytes: usize,
}

fn failed(what: impl fmt::Display) -> CollectiveError {
    CollectiveError::Io { what: format!("memory of a GPU: {what}"), kind: std::io::ErrorKind::Other }
}

impl DeviceMemory for EmulatedRegion {
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn place(&self) -> DevicePlace {
        DevicePlace { gpu: self.shared.identity, address: self.address, stream: 0 }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), CollectiveError> {
        self.shared.copy_gradient();
        self.shared.card().and_then(|mut card| card.down(self.address, into)).map_err(failed)
    }

    fn write(&mut self, from: &[u8]) -> Result<(), CollectiveError> {
        self.shared.card().and_then(|mut card| card.up(self.address, from)).map_err(failed)
    }
}

impl Drop for EmulatedRegion {
    fn drop(&mut self) {
        self.shared.release(self.address);
    }
}

impl fmt::Debug for EmulatedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmulatedRegion({} bytes)", self.len_bytes)
    }
}

/// The library between emulated GPUs. Its wires are the group below.
struct Emulated {
    gpu: u128,
}

struct EmulatedComm {
    gpu: u128,
    /// What the last call made; 8-byte aligned.
    result: Vec<u64>,
}

fn anew() -> BulkError {
    BulkError::Failed("communicators of emulated GPUs are made anew for every group".to_owned())
}

impl Library for Emulated {
    type Comm = EmulatedComm;

    const TERMS: Terms =
        Terms { library: "emulated GPUs", shares_gpus: true, one_host: false, world_max: u32::MAX };

    fn statement(&self) -> Statement {
        Statement { gpu: Some(self.gpu), host: 0, version: 1, abilities: Abilities::default(), last: None }
    }

    fn offer(&mut self, _: u32) -> Result<Vec<u8>, BulkError> {
        Ok(Vec::new())
    }

    fn init(&mut self, _: &[Vec<u8>], _: u32, _: &Patience) -> Result<EmulatedComm, BulkError> {
        Ok(EmulatedComm { gpu: self.gpu, result: Vec::new() })
    }

    fn shrink(
        &mut self,
        _: EmulatedComm,
        _: &[u32],
        _: Stop,
        _: &Patience,
    ) -> Result<EmulatedComm, BulkError> {
        Err(anew())
    }

    fn split(
        &mut self,
        _: &mut EmulatedComm,
        _: Option<u32>,
        _: u32,
        _: &Patience,
    ) -> Result<Option<EmulatedComm>, BulkError> {
        Err(anew())
    }

    fn offer_to_grow(&mut self, _: Option<&mut EmulatedComm>, _: u32) -> Result<Vec<u8>, BulkError> {
        Err(anew())
    }

    fn grow(
        &mut self,
        _: Option<EmulatedComm>,
        _: &[Vec<u8>],
        _: u32,
        _: &Patience,
    ) -> Result<EmulatedComm, BulkError> {
        Err(anew())
    }
}

impl EmulatedComm {
    /// The GPU, if it has memory at this place.
    fn reach(&self, place: &DevicePlace) -> Option<Arc<Shared>> {
        let gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = gpus.get(&place.gpu).filter(|_| place.gpu == self.gpu)?;
        let held = shared.card().and_then(|mut card| card.holds(place.address));
        held.is_ok_and(|holds| holds).then(|| Arc::clone(shared))
    }

    /// All members' operands, combined in order of rank; the result is kept.
    fn combine(
        &mut self,
        element: ElementType,
        op: ReduceOp,
        mine: &[u8],
        below: &mut dyn ProcessGroup,
    ) -> Result<&mut [u8], BulkError> {
        let world = below.group().world();
        let blocks = below.all_gather_v(mine).map_err(BulkError::Below)?;
        self.result = vec![0; mine.len().div_ceil(8)];
        let result = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.result)[..mine.len()];
        let combined = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        result.copy_from_slice(&blocks[0]);
        with_type!(element, E => {
            for block in &blocks[1..] {
                kernel::reduce_bytes::<E>(combined, bytemuck::cast_slice_mut(result), block);
            }
            if op == ReduceOp::Mean {
                kernel::divide::<E>(bytemuck::cast_slice_mut(result), world);
            }
        });
        Ok(result)
    }
}

impl Bulk for EmulatedComm {
    const MOVES: bool = false;

    fn reaches(&mut self, place: &DevicePlace) -> bool {
        self.reach(place).is_some()
    }

    fn run(&mut self, job: &Job<'_>, below: &mut dyn ProcessGroup, _: &Patience) -> Result<&[u8], BulkError> {
        let refused = |error: RowsError| BulkError::Failed(error.to_string());
        match *job {
            Job::AllReduce { element, op, data } => Ok(self.combine(element, op, data, below)?),
            Job::OnDevice { element, op, from, into, len_bytes } => {
                let gone = || BulkError::Failed("the emulated GPU is gone".to_owned());
                let shared = self.reach(&from).ok_or_else(gone)?;
                let mut operand = vec![0_u64; len_bytes.div_ceil(8)];
                let operand = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut operand)[..len_bytes];
                // As its peers read it.
                shared.card().and_then(|mut card| card.down(from.address, operand)).map_err(refused)?;
                let result = self.combine(element, op, operand, below)?;
                shared.card().and_then(|mut card| card.up(into.address, result)).map_err(refused)?;
                Ok(&[])
            }
            Job::ReduceScatter { element, op, data, spans, me } => {
                let (size, span) = (size_of_element(element), spans[me]);
                let result = self.combine(element, op, data, below)?;
                Ok(&result[span.start * size..][..span.len * size])
            }
            Job::Weighted { element, data, weights, me, total } => with_float!(element, E => {
                type Sum = <E as Weighed>::Sum;
                let mut sums = vec![Sum::default(); data.len() / size_of::<E>()];
                weighted::weigh::<E>(bytemuck::cast_slice(data), weights[me], &mut sums);
                let mine = bytemuck::cast_slice(&sums);
                let result = self.combine(Sum::TYPE, ReduceOp::Sum, mine, below)?;
                sums.copy_from_slice(bytemuck::cast_slice(result));
                let means = &mut result[..data.len()];
                weighted::unweigh::<E>(&sums, total, bytemuck::cast_slice_mut(means));
                Ok(means)
            }, else => Err(BulkError::Failed("integers have no mean".to_owned()))),
            Job::Exchange { .. } | Job::Broadcast { .. } => {
                Err(BulkError::Failed("messages do not travel between emulated GPUs".to_owned()))
            }
        }
    }
}
