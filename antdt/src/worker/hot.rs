//! Hot rows: whether rows of the model's table lie in the memory of this worker's GPU, and how the trainer gets those of a batch.

use std::cell::RefCell;
use std::sync::OnceLock;

use antdt_agent::{DeviceValues, TrainError, Trainer};
#[cfg(feature = "cuda")]
use antdt_collective::runtime::rows::on_gpu;
use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};
use antdt_core::Holder;
use antdt_model::{HotError, LoadedRows};

use super::weights::Weights;
use crate::gpu;
use crate::job::processor::Place;
use crate::job::{HotRowsSpec, JobSpec};

/// Function that makes memory with the given number of slots for rows of the given shape, or returns the reason
/// why there is none.
pub type RowMemoryFactory = fn(RowShape, u32) -> Result<Box<dyn RowMemory>, RowsError>;

/// What makes the memory in a program with a device of its own.
static OWN: OnceLock<RowMemoryFactory> = OnceLock::new();

/// Has the workers of this program keep hot rows in the memory that `factory` makes. The first one counts.
#[cfg(feature = "cli")]
pub(crate) fn keep_in(factory: RowMemoryFactory) {
    let _ = OWN.set(factory);
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: u32, _: RowShape, _: u32) -> Result<Box<dyn RowMemory>, RowsError> {
    Err(RowsError::None("this program is built without feature `cuda`".to_owned()))
}

/// What a job says of the hot rows of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heating<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) holder: Holder,
}

impl Heating<'_> {
    /// Keeps rows that are touched often on the worker's GPU from now on. If the job wants it and it cannot be, a warning says why.
    pub(super) fn heat(&self, weights: &mut Weights, trainer: &dyn Trainer) {
        if !self.is_wanted(trainer) {
            return;
        }
        match self.try_heat(weights, trainer) {
            Ok(slots) => tracing::info!(holder = %self.holder, slots, "hot rows of the table lie on the GPU"),
            Err(why) => self.decline(&why),
        }
    }

    /// Says that the rows of a model on parameter servers stay there, if the job wants others.
    pub(super) fn leave_on_servers(&self, trainer: &dyn Trainer) {
        if self.is_wanted(trainer) {
            self.decline(&format!("with --sync {} the servers have them", self.spec.sync));
        }
    }

    fn decline(&self, why: &str) {
        tracing::warn!(holder = %self.holder, why, "no hot rows: all rows of the table lie in the host's memory");
    }

    /// Whether rows of this model are to be hot: a job says how many, or leaves that to workers on GPUs.
    fn is_wanted(&self, trainer: &dyn Trainer) -> bool {
        let is_wanted = match self.spec.hot_rows {
            HotRowsSpec::Off => false,
            HotRowsSpec::Rows(_) => true,
            HotRowsSpec::Auto => self.gpu().is_some(),
        };
        is_wanted && !trainer.layout().tables().is_empty()
    }

    /// Index and memory, in bytes, of the GPU that the worker computes on, if it is one.
    fn gpu(&self) -> Option<(u32, u64)> {
        match gpu::place(self.spec.processor(), self.holder.node.index) {
            Ok((Place::Gpu(index), Some(gpu))) => Some((index, gpu.memory_bytes)),
            _ => None,
        }
    }

    /// Returns how many rows have room, or why none has.
    fn try_heat(&self, weights: &mut Weights, trainer: &dyn Trainer) -> Result<u32, String> {
        if !trainer.takes_device_rows() {
            return Err("the workload takes rows in the host's memory only".to_owned());
        }
        let Weights::Shared(model) = weights else {
            return Err(format!("with --sync {} each worker has a model of its own", self.spec.sync));
        };
        let shape = model.shape().map_err(|error| error.to_string())?;
        let (rows, slot_bytes) = (trainer.layout().rows(), size_of::<f32>() * shape.width());
        let sharers = gpu::sharers(self.spec.processor(), self.spec.workers);
        let gpu = self.gpu();
        let memory_bytes = gpu.map_or(0, |(_, memory_bytes)| memory_bytes);
        let slots = self.spec.hot_rows.slots(rows, slot_bytes, memory_bytes, sharers);
        let slots =
            slots.ok_or_else(|| format!("{memory_bytes} bytes of a GPU's memory have no room for any"))?;
        let memory = match (OWN.get(), gpu) {
            (Some(factory), _) => factory(shape, slots),
            (None, Some((index, _))) => on_gpu(index, shape, slots),
            (None, None) => Err(RowsError::None("this worker computes on none (--device)".to_owned())),
        };
        let memory = memory.map_err(|error| error.to_string())?;
        model.heat(memory).map_err(|error| error.to_string())?;
        Ok(slots)
    }
}

/// The rows of a batch in the memory of a device, as a trainer gets them.
#[derive(Debug)]
pub(super) struct OnDevice<'a>(RefCell<LoadedRows<'a>>);

impl<'a> OnDevice<'a> {
    pub(super) const fn new(rows: LoadedRows<'a>) -> Self {
        Self(RefCell::new(rows))
    }
}

/// A device that failed may do for the next process.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
pub(super) fn failed(error: HotError) -> TrainError {
    TrainError::Device(format!("hot rows: {error}; --hot-rows off trains without them"))
}

impl DeviceValues for OnDevice<'_> {
    fn len(&self) -> usize {
        self.0.borrow().len()
    }

    fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError> {
        self.0.borrow_mut().read(into).map_err(failed)
    }

    fn copy_to(&self, address: u64) -> Result<(), TrainError> {
        self.0.borrow_mut().copy_to(address).map_err(failed)
    }
}
