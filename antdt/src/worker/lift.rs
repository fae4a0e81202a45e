//! Gradients that stay on this worker's GPU: whether the dense parameters lie in its memory, where gradients are reduced and applied.

use std::sync::Arc;

use antdt_agent::{DeviceValues, TrainError, Trainer};
use antdt_collective::runtime::Backend;
use antdt_collective::runtime::flat::{FlatError, FlatMemory, FlatShape};
use antdt_core::Holder;
use antdt_model::HotReplica;

use crate::gpu;
use crate::job::JobSpec;
use crate::job::processor::Place;

/// A device of a program's own in place of a GPU, for dense parameters and their gradients.
#[derive(Debug, Clone, Copy)]
pub struct Accelerator {
    /// Function that makes memory for a flat vector of the given shape, or returns the reason why there is none.
    pub flat: fn(FlatShape) -> Result<Arc<dyn FlatMemory>, FlatError>,
    /// Function that wraps the backend of a worker's groups in one whose groups reduce in the memory of such devices.
    pub backend: fn(Box<dyn Backend>) -> Box<dyn Backend>,
}

#[cfg(feature = "cuda")]
use antdt_gpu::flat::on_gpu;

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: u32, _: FlatShape) -> Result<Arc<dyn FlatMemory>, FlatError> {
    Err(FlatError::None("this program is built without feature `cuda`".to_owned()))
}

/// What a job says of the gradients of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifting<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) holder: Holder,
    /// The device that the program has of its own.
    pub(super) own: Option<Accelerator>,
    /// The groups of the job's workers can reduce in the memory of GPUs. The same on all workers.
    pub(super) reduces_there: bool,
}

impl Lifting<'_> {
    /// Whether gradients travel in the buckets of a plan, be it one: that is so for all workers of a job or for none, also where one of
    /// them cannot leave its gradients on a GPU.
    pub(super) const fn is_wanted(&self) -> bool {
        self.reduces_there && self.spec.compress.is_none()
    }

    /// Keeps the dense parameters on the worker's GPU from now on. If the job wants gradients to stay there and they cannot, one warning
    /// says why.
    pub(super) fn lift(&self, model: &mut HotReplica, trainer: &dyn Trainer) {
        if !self.reduces_there {
            return;
        }
        match self.can_lift(trainer).and_then(|()| self.try_lift(model)) {
            Ok(parameters) => {
                tracing::info!(holder = %self.holder, parameters, "gradients stay on the GPU");
            }
            Err(why) => self.warn(&why),
        }
    }

    /// Says why gradients are on the host, if the job wants them to stay on a GPU.
    pub(super) fn decline(&self, why: &str, trainer: &dyn Trainer) {
        if self.reduces_there {
            self.warn(&self.can_lift(trainer).err().unwrap_or_else(|| why.to_owned()));
        }
    }

    fn warn(&self, why: &str) {
        tracing::warn!(holder = %self.holder, why, "gradients are copied from the device to the host");
    }

    /// Whether the job and the workload allow it, or why not.
    fn can_lift(&self, trainer: &dyn Trainer) -> Result<(), String> {
        if self.spec.compress.is_some() {
            return Err("--compress works on the host".to_owned());
        }
        if !trainer.takes_device_dense() {
            return Err("the workload computes in the host's memory".to_owned());
        }
        Ok(())
    }

    /// Returns how many parameters lie there, or why none does.
    fn try_lift(&self, model: &mut HotReplica) -> Result<usize, String> {
        let shape = model.flat_shape().map_err(|error| error.to_string())?;
        let memory = match &self.own {
            Some(own) => (own.flat)(shape),
            None => on_gpu(self.gpu()?, shape),
        };
        model.lift(memory.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        Ok(shape.len)
    }

    /// Index of the GPU that the worker computes on, or why it computes on none.
    fn gpu(&self) -> Result<u32, String> {
        match gpu::place(self.spec.processor(), self.holder.node.index) {
            Ok((Place::Gpu(index), _)) => Ok(index),
            Ok((Place::Cpu(Some(why)), _)) => Err(format!("this worker computes on none: {why}")),
            _ => Err("this worker computes on none (--device)".to_owned()),
        }
    }
}

/// A device that failed may do for the next process.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
pub(super) fn failed(error: FlatError) -> TrainError {
    TrainError::Device(format!("{error}; --transport auto trains with gradients on the host"))
}

/// The dense parameters in the memory of a device, as a trainer gets them.
#[derive(Debug)]
pub(super) struct LiftedDense(pub(super) Arc<dyn FlatMemory>);

impl DeviceValues for LiftedDense {
    fn len(&self) -> usize {
        self.0.shape().len
    }

    fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError> {
        let begin = into.len();
        into.resize(begin + self.len(), 0.0);
        self.0.read(&mut into[begin..]).map_err(failed)
    }

    fn copy_to(&self, address: u64) -> Result<(), TrainError> {
        self.0.copy_to(address).map_err(failed)
    }
}
