//! How fast the kernels are on this host's GPU, beside its own copies.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::time::{Duration, Instant};

use antdt_collective::element::ElementType;
use antdt_collective::op::ReduceOp;
use cudarc::driver::result;

use super::cuda::{CudaGpu, launch};
use super::error::IpcError;
use super::kernel::{Kernel, Work};
use crate::runtime::cuda::context::refused;
use crate::runtime::cuda::lane::Lane;
use crate::runtime::device::bulk::{BulkError, size_of_element};

/// How often each is repeated; the fastest counts.
const TIMES: u32 = 20;

/// What the GPU may take for one.
const LIMIT: Duration = Duration::from_secs(10);

/// Measured throughput of a GPU kernel or copy.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// Name of the kernel, or `copy` for a copy on the GPU.
    pub name: String,
    /// Bytes read and written per second, added together.
    pub bytes_per_s: f64,
}

/// Measures the throughput of a copy on the GPU with this index, and of the kernels that combine two operands
/// of `len_bytes` bytes: sums and weighted means of `f32`, `f16` and `bf16`. The copy comes first in the
/// result.
///
/// # Errors
/// If this host lacks a GPU or the compiler, or the GPU fails.
pub fn measure(gpu: u32, len_bytes: usize) -> Result<Vec<Speed>, IpcError> {
    let gpu = CudaGpu::open(gpu)?;
    speeds(&gpu, len_bytes - len_bytes % 256).map_err(|error| IpcError::Call(error.to_string()))
}

fn speeds(gpu: &CudaGpu, len_bytes: usize) -> Result<Vec<Speed>, BulkError> {
    let mut lane = Lane::new(&gpu.context)?;
    // Two operands and a result.
    lane.reserve(3 * len_bytes)?;
    let [left, right, into] = [0, 1, 2].map(|part| lane.address() + (part * len_bytes) as u64);
    // SAFETY: so many bytes were reserved.
    unsafe { result::memset_d8_sync(left, 0, 3 * len_bytes) }.map_err(refused("to zero memory"))?;
    let moved = len_bytes as f64;
    let mut speeds = vec![Speed {
        name: "copy".to_owned(),
        bytes_per_s: 2.0 * moved
            / fastest(&lane, || {
                // SAFETY: both parts are so long.
                unsafe { result::memcpy_dtod_async(into, left, len_bytes, lane.stream) }
                    .map_err(refused("a copy"))
            })?,
    }];
    let elements = [ElementType::F32, ElementType::F16, ElementType::Bf16];
    let sums = elements.map(|element| Kernel::Reduce(ReduceOp::Sum, element));
    for kernel in sums.into_iter().chain(elements.map(Kernel::WeightedMean)) {
        let (function, weights) = (gpu.function(kernel)?, [1.0, 2.0]);
        let weights: &[f64] = if matches!(kernel, Kernel::WeightedMean(_)) { &weights } else { &[] };
        let (from, into, len) = ([left, right], [into], len_bytes / size_of_element(kernel.element()));
        let work = Work { kernel, from: &from, into: &into, weights, total: 3.0, start: 0, len };
        let seconds = fastest(&lane, || launch(function, &work, gpu.context.multiprocessors, lane.stream))?;
        speeds.push(Speed { name: kernel.name(), bytes_per_s: 3.0 * moved / seconds });
    }
    Ok(speeds)
}

// Seconds of the fastest repetition; the first ones warm up.
fn fastest(lane: &Lane, start: impl Fn() -> Result<(), BulkError>) -> Result<f64, BulkError> {
    let mut fastest = f64::INFINITY;
    for _ in 0..TIMES {
        let began = Instant::now();
        start()?;
        while !lane.is_idle()? {
            if began.elapsed() > LIMIT {
                return Err(BulkError::Late);
            }
            std::hint::spin_loop();
        }
        fastest = fastest.min(began.elapsed().as_secs_f64());
    }
    Ok(fastest)
}
