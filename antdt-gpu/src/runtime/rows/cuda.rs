//! Rows in the memory of a GPU of this process, and how fast its kernels are.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_collective::RowStep;
use antdt_collective::runtime::region::{DevicePlace, Region};
use cudarc::driver::{result, sys};

use super::card::Card;
use super::kernel::{RowKernel, TEXT, Work};
use super::store::{STAGE, Store};
use super::{RowMemory, RowShape, RowsError};
use crate::device::pause;
use crate::runtime::cuda::context::{Context, refused};
use crate::runtime::cuda::kernels::{BLOCK, Compiled, Kernels, blocks};
use crate::runtime::cuda::lane::Lane;
use crate::runtime::cuda::memory_of;
use crate::runtime::cuda::nvrtc::Source;
use crate::runtime::device::bulk::BulkError;
use crate::runtime::ipc::Speed;

/// How long what is under way may take: more than anything does that comes to an end.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns memory for rows on the GPU with this index: `slots` zeroed slots.
///
/// # Errors
/// If this host lacks the driver, the GPU or the compiler of kernels, or the GPU has too little memory; the
/// error says which.
pub fn on_gpu(gpu: u32, shape: RowShape, slots: u32) -> Result<Box<dyn RowMemory>, RowsError> {
    Ok(Box::new(Store::new(CudaCard::open(gpu)?, shape, slots)?))
}

impl RowKernel {
    /// Name of its function, and what of the text it runs.
    const fn names(self) -> [&'static str; 2] {
        match self {
            Self::Gather => ["gather_rows", "gather"],
            Self::Scatter => ["scatter_rows", "scatter"],
            Self::Sgd => ["update_sgd", "update<Sgd>"],
            Self::Momentum => ["update_momentum", "update<Momentum>"],
            Self::Adagrad => ["update_adagrad", "update<Adagrad>"],
            Self::Adam => ["update_adam", "update<Adam>"],
            Self::AddFlat => ["flat_add", "add_flat"],
            Self::SetFlat => ["flat_set", "set_flat"],
            Self::SgdFlat => ["update_flat_sgd", "update_flat<Sgd>"],
            Self::MomentumFlat => ["update_flat_momentum", "update_flat<Momentum>"],
            Self::AdagradFlat => ["update_flat_adagrad", "update_flat<Adagrad>"],
            Self::AdamFlat => ["update_flat_adam", "update_flat<Adam>"],
            Self::SquaresFlat => ["flat_squares", "squares_flat"],
        }
    }
}

impl Compiled for RowKernel {
    fn source(self) -> Source {
        let [name, body] = self.names();
        let options = vec![format!("-DKERNEL_NAME={name}"), format!("-DKERNEL_BODY={body}")];
        Source { file: c"rows.cu", text: TEXT, name: name.to_owned(), options }
    }
}

/// A stream of a GPU with its memory.
pub(in crate::runtime) struct CudaCard {
    // First: what is under way ends before the kernels are unloaded.
    lane: Lane,
    kernels: Kernels<RowKernel>,
    held: Vec<sys::CUdeviceptr>,
}

#[allow(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn failed(error: BulkError) -> RowsError {
    RowsError::Device(error.to_string())
}

impl CudaCard {
    /// Opens the GPU with this index.
    ///
    /// # Errors
    /// If this host lacks the driver, the GPU or the compiler of kernels.
    pub(in crate::runtime) fn open(gpu: u32) -> Result<Self, RowsError> {
        let context = Context::open(gpu).map_err(|error| RowsError::None(error.to_string()))?;
        let context = Arc::new(context);
        let mut kernels = Kernels::open(&context).map_err(|error| RowsError::None(error.to_string()))?;
        // A compiler that fails does so before any row is there.
        kernels.function(RowKernel::Gather).map_err(|error| RowsError::None(error.to_string()))?;
        let mut lane = Lane::new(&context).map_err(failed)?;
        lane.reserve(STAGE).map_err(failed)?;
        Ok(Self { lane, kernels, held: Vec::new() })
    }

    fn wait(&self) -> Result<(), RowsError> {
        let deadline = Instant::now() + LIMIT;
        for asked in 0_u32.. {
            if self.lane.is_idle().map_err(failed)? {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                break;
            }
            std::thread::sleep(pause(asked, deadline - now));
        }
        Err(failed(BulkError::Late))
    }

    /// Zeroed memory of the GPU that others may open.
    pub(in crate::runtime) fn region(&self, len_bytes: usize) -> Result<Region, RowsError> {
        let region = memory_of(&self.lane.gpu, len_bytes).map_err(failed)?;
        // It is zeroed on the default stream.
        self.lane.follow(0).map_err(failed)?;
        Ok(region)
    }

    fn make_current(&self) -> Result<(), RowsError> {
        self.lane.gpu.make_current().map_err(failed)
    }
}

impl Card for CudaCard {
    fn allocate(&mut self, len_bytes: usize) -> Result<u64, RowsError> {
        self.make_current()?;
        // SAFETY: it is written below, before anything reads it.
        let address = unsafe { result::malloc_sync(len_bytes) };
        let address = address.map_err(|error| failed(refused("memory of the GPU")(error)))?;
        self.held.push(address);
        // SAFETY: so many bytes belong to it.
        unsafe { result::memset_d8_sync(address, 0, len_bytes) }
            .map_err(|error| failed(refused("to zero memory")(error)))?;
        // It is zeroed on the default stream, which the lane's does not wait for by itself.
        self.lane.follow(0).map_err(failed)?;
        Ok(address)
    }

    fn release(&mut self, address: u64) {
        let Some(at) = self.held.iter().position(|held| *held == address) else { return };
        if self.make_current().is_ok() {
            // SAFETY: it was allocated here, and its owner says that nothing is under way.
            let _ = unsafe { result::free_sync(self.held.swap_remove(at)) };
        }
    }

    fn place(&self, address: u64) -> DevicePlace {
        DevicePlace { gpu: self.lane.gpu.identity, address, stream: self.lane.stream as u64 }
    }

    fn up(&mut self, address: u64, bytes: &[u8]) -> Result<(), RowsError> {
        self.make_current()?;
        for (part, bytes) in (0_u64..).zip(bytes.chunks(STAGE)) {
            // The pinned memory is read until the copy before is done.
            self.wait()?;
            let (at, stream) = (address + part * STAGE as u64, self.lane.stream);
            let pinned = &mut self.lane.host()[..bytes.len()];
            pinned.copy_from_slice(bytes);
            // SAFETY: both are so long, and the pinned part is not written before the stream is done.
            unsafe { result::memcpy_htod_async(at, pinned, stream) }
                .map_err(|error| failed(refused("a copy to the GPU")(error)))?;
        }
        Ok(())
    }

    fn start(&mut self, kernel: RowKernel, work: &Work) -> Result<(), RowsError> {
        self.make_current()?;
        let function = self.kernels.function(kernel).map_err(failed)?;
        launch(function, work, &self.lane).map_err(failed)
    }

    fn holds(&mut self, address: u64) -> Result<bool, RowsError> {
        self.lane.gpu.holds(address).map_err(failed)
    }

    fn copy(&mut self, from: u64, to: u64, len_bytes: usize) -> Result<(), RowsError> {
        self.make_current()?;
        // SAFETY: so many bytes are a batch of the store. Those that are written are memory of the GPU, as the store has asked, so that
        // nothing of the host's can change; the giver of the address answers for its length.
        unsafe { result::memcpy_dtod_async(to, from, len_bytes, self.lane.stream) }
            .map_err(|error| failed(refused("a copy within the GPU")(error)))
    }

    fn down(&mut self, address: u64, into: &mut [u8]) -> Result<(), RowsError> {
        self.make_current()?;
        for (part, into) in (0_u64..).zip(into.chunks_mut(STAGE)) {
            self.wait()?;
            let (at, stream) = (address + part * STAGE as u64, self.lane.stream);
            let pinned = &mut self.lane.host()[..into.len()];
            // SAFETY: both are so long, and the pinned part is not read before the stream is done.
            unsafe { result::memcpy_dtoh_async(pinned, at, stream) }
                .map_err(|error| failed(refused("a copy from the GPU")(error)))?;
            self.wait()?;
            into.copy_from_slice(&self.lane.host()[..into.len()]);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), RowsError> {
        self.wait()
    }
}

impl Drop for CudaCard {
    fn drop(&mut self) {
        // Memory that something may still write is never given back.
        if self.make_current().is_ok() && self.lane.settle() {
            for address in &self.held {
                // SAFETY: it was allocated here, and nothing is under way.
                let _ = unsafe { result::free_sync(*address) };
            }
        }
    }
}

fn launch(function: sys::CUfunction, work: &Work, lane: &Lane) -> Result<(), BulkError> {
    let mut work = *work;
    let grid = (blocks(work.elements(), lane.gpu.multiprocessors), 1, 1);
    let mut arguments: [*mut c_void; 1] = [(&raw mut work).cast()];
    // SAFETY: the argument is that of the kernel, and the call copies it. The memory that it names belongs to the store that
    // has checked it, and outlives what is under way.
    unsafe { result::launch_kernel(function, grid, (BLOCK, 1, 1), 0, lane.stream, &mut arguments) }
        .map_err(refused("to start a kernel"))
}

/// How often each is repeated; the fastest counts.
const TIMES: u32 = 20;

/// Measures the throughput of a copy on the GPU with this index (first in the result), and of the kernels
/// that gather rows and apply optimizer steps to them. They run on `rows` rows of 16 values, in as many
/// slots; `rows` is a power of two.
///
/// # Errors
/// If this host lacks a GPU or the compiler, or the GPU fails.
pub fn measure(gpu: u32, rows: u32) -> Result<Vec<Speed>, RowsError> {
    const DIM: usize = 16;
    let none = 0.0;
    let steps = [
        RowStep::Sgd { rate: none, scale: none, decay: none },
        RowStep::Adagrad { rate: none, scale: none, decay: none, epsilon: 1.0 },
        RowStep::Adam {
            rate: none,
            scale: none,
            decay: none,
            keep: 1.0,
            beta1: none,
            rest1: none,
            beta2: none,
            rest2: none,
            correction: none,
            epsilon: 1.0,
        },
    ];
    let mut speeds = Vec::new();
    for step in steps {
        let shape = RowShape { dim: DIM, state_per_value: step.state_per_value() };
        let mut card = CudaCard::open(gpu)?;
        let count = rows as usize;
        let memory = card.allocate(count * shape.width() * 4)?;
        let [packed, copied] = [card.allocate(count * DIM * 4)?, card.allocate(count * DIM * 4)?];
        let places = card.allocate(count * 4)?;
        // An odd number beyond half of them has no divisor in common with a power of two: every slot once, neighbours far apart.
        let stride = (u64::from(rows) * 5 / 8) | 1;
        let far = |row: u32| u32::try_from(u64::from(row) * stride % u64::from(rows)).unwrap_or(0);
        let order: Vec<u32> = (0..rows).map(far).collect();
        card.up(places, bytemuck::cast_slice(&order))?;
        let work = Work {
            rows: memory,
            packed,
            places,
            count: rows,
            slots: rows,
            dim: DIM as u32,
            stride: u32::try_from(shape.width()).unwrap_or(u32::MAX),
            ..Work::default()
        };
        let moved = (count * DIM * 4) as f64;
        if speeds.is_empty() {
            let seconds = fastest(&card, || {
                // SAFETY: both parts are so long.
                unsafe { result::memcpy_dtod_async(copied, packed, count * DIM * 4, card.lane.stream) }
                    .map_err(refused("a copy"))
            })?;
            speeds.push(Speed { name: "copy".to_owned(), bytes_per_s: 2.0 * moved / seconds });
            let function = card.kernels.function(RowKernel::Gather).map_err(failed)?;
            let seconds = fastest(&card, || launch(function, &work, &card.lane))?;
            let bytes = 2.0 * moved + 4.0 * f64::from(rows);
            speeds.push(Speed { name: "gather_rows".to_owned(), bytes_per_s: bytes / seconds });
        }
        let kernel = RowKernel::of(&step);
        let function = card.kernels.function(kernel).map_err(failed)?;
        let work = work.with(&step);
        let seconds = fastest(&card, || launch(function, &work, &card.lane))?;
        // The sums are read, and the rows with what is kept of them read and written.
        let bytes = moved * (3 + 2 * shape.state_per_value) as f64 + 4.0 * f64::from(rows);
        speeds.push(Speed { name: kernel.names()[0].to_owned(), bytes_per_s: bytes / seconds });
    }
    Ok(speeds)
}

// Seconds of the fastest repetition; the first ones warm up.
fn fastest(card: &CudaCard, start: impl Fn() -> Result<(), BulkError>) -> Result<f64, RowsError> {
    let mut fastest = f64::INFINITY;
    card.wait()?;
    for _ in 0..TIMES {
        let began = Instant::now();
        start().map_err(failed)?;
        while !card.lane.is_idle().map_err(failed)? {
            if began.elapsed() > LIMIT {
                return Err(failed(BulkError::Late));
            }
            std::hint::spin_loop();
        }
        fastest = fastest.min(began.elapsed().as_secs_f64());
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Target;
    use crate::runtime::cuda::CompilerError;
    use crate::runtime::cuda::nvrtc::Nvrtc;

    const ALL: [RowKernel; 13] = [
        RowKernel::Gather,
        RowKernel::Scatter,
        RowKernel::Sgd,
        RowKernel::Momentum,
        RowKernel::Adagrad,
        RowKernel::Adam,
        RowKernel::AddFlat,
        RowKernel::SetFlat,
        RowKernel::SgdFlat,
        RowKernel::MomentumFlat,
        RowKernel::AdagradFlat,
        RowKernel::AdamFlat,
        RowKernel::SquaresFlat,
    ];

    #[test]
    fn the_compiler_for_gpus_takes_every_kernel_of_rows_where_it_is() {
        let compiler = match Nvrtc::load() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(matches!(error, CompilerError::NoCompiler { .. }), "{error}");
                return println!("skipped, not here: {error}");
            }
        };
        let oldest = compiler.known().unwrap().into_iter().min().unwrap();
        for kernel in ALL {
            let compiled = compiler.compile(&kernel.source(), Target::Portable(oldest)).unwrap();
            let (text, [name, _]) = (String::from_utf8_lossy(&compiled), kernel.names());
            assert!(text.contains(&format!(".visible .entry {name}(")), "{text}");
            // What the host passes is as long as what the kernel expects, and nothing is fused or flushed to zero.
            assert!(text.contains(&format!("{name}_param_0[{}]", size_of::<Work>())), "{text}");
            assert!(!text.contains("fma.") && !text.contains(".ftz") && !text.contains(".approx"), "{name}");
        }
        println!("{} kernels for sm_{oldest}", ALL.len());
    }

    #[test]
    fn a_host_without_a_gpu_says_why_rows_cannot_lie_on_one() {
        match on_gpu(0, RowShape { dim: 4, state_per_value: 1 }, 8) {
            Ok(rows) => assert_eq!(rows.slots(), 8),
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("rows cannot lie on a GPU: ") && !text.contains('\n'), "{text}");
            }
        }
    }
}
