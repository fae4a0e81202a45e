//! Hot rows: whether rows of the model's table lie in the memory of this worker's GPU, and how the trainer gets those of a batch.

use std::cell::RefCell;

use antdt_agent::{DeviceValues, TrainError, Trainer};
use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};
use antdt_core::Holder;
#[cfg(feature = "cuda")]
use antdt_gpu::rows::on_gpu;
use antdt_model::{HotError, HotReplica, LoadedRows};

use crate::gpu;
use crate::job::processor::Place;
use crate::job::{HotRowsSpec, JobSpec};

/// Function that makes memory with the given number of slots for rows of the given shape, or returns the reason
/// why there is none.
pub type RowMemoryFactory = fn(RowShape, u32) -> Result<Box<dyn RowMemory>, RowsError>;

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: u32, _: RowShape, _: u32) -> Result<Box<dyn RowMemory>, RowsError> {
    Err(RowsError::None("this program is built without feature `cuda`".to_owned()))
}

/// What a job says of the hot rows of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heating<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) holder: Holder,
    /// What makes the memory in a program with a device of its own.
    pub(super) own: Option<RowMemoryFactory>,
}

impl Heating<'_> {
    /// Keeps rows that are touched often on the worker's GPU from now on. If the job wants it and it cannot be, one warning says why.
    pub(super) fn heat(&self, model: &mut HotReplica, trainer: &dyn Trainer) {
        if !self.is_wanted(trainer) {
            return;
        }
        match self.try_heat(model, trainer) {
            Ok(slots) => tracing::info!(holder = %self.holder, slots, "hot rows of the table lie on the GPU"),
            Err(why) => self.decline(&why, trainer),
        }
    }

    /// Says why rows lie where they do, if the job wants hot ones.
    pub(super) fn decline(&self, why: &str, trainer: &dyn Trainer) {
        if self.is_wanted(trainer) {
            tracing::warn!(holder = %self.holder, why, "no hot rows: all rows of the table lie in the host's memory");
        }
    }

    /// Whether rows of this model are to be hot, if they can be.
    fn is_wanted(&self, trainer: &dyn Trainer) -> bool {
        self.spec.hot_rows != HotRowsSpec::Off && !trainer.layout().tables().is_empty()
    }

    /// Index and memory, in bytes, of the GPU that the worker computes on, or why it computes on none.
    fn gpu(&self) -> Result<(u32, u64), String> {
        match gpu::place(self.spec.processor(), self.holder.node.index) {
            Ok((Place::Gpu(index), Some(gpu))) => Ok((index, gpu.memory_bytes)),
            Ok((Place::Cpu(Some(why)), _)) => Err(format!("this worker computes on none: {why}")),
            _ => Err("this worker computes on none (--device)".to_owned()),
        }
    }

    /// Returns how many rows have room, or why none has.
    fn try_heat(&self, model: &mut HotReplica, trainer: &dyn Trainer) -> Result<u32, String> {
        if !trainer.takes_device_rows() {
            return Err("the workload takes rows in the host's memory only".to_owned());
        }
        let shape = model.shape().map_err(|error| error.to_string())?;
        let slots = |memory_bytes| {
            let (rows, slot_bytes) = (trainer.layout().rows(), size_of::<f32>() * shape.width());
            let sharers = gpu::sharers(self.spec.processor(), self.spec.workers);
            self.spec.hot_rows.slots(rows, slot_bytes, memory_bytes, sharers)
        };
        let memory = if let Some(factory) = self.own {
            let slots = slots(0).ok_or("only a number says how much of this program's own memory to take")?;
            factory(shape, slots)
        } else {
            let (index, memory_bytes) = self.gpu().map_err(|why| RowsError::None(why).to_string())?;
            let few = || format!("{memory_bytes} bytes of a GPU's memory have no room for any");
            on_gpu(index, shape, slots(memory_bytes).ok_or_else(few)?)
        };
        let memory = memory.map_err(|error| error.to_string())?;
        let slots = memory.slots();
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

#[cfg(test)]
mod tests {
    use antdt_agent::{GradientSink, Params, StepStats};
    use antdt_core::{Incarnation, Metrics, NodeId, ParamLayout, SampleRange, Seed, TableSpec};
    use antdt_gpu::runtime::rows::testing::HostKernels;
    use antdt_model::{Replica, UpdateRule};

    use super::*;

    /// A trainer that is asked what it takes, and no more.
    struct Asked {
        layout: ParamLayout,
        takes_device_rows: bool,
    }

    impl Trainer for Asked {
        fn layout(&self) -> &ParamLayout {
            &self.layout
        }
        fn takes_device_rows(&self) -> bool {
            self.takes_device_rows
        }
        fn train_samples(&self) -> u64 {
            0
        }
        fn eval_samples(&self) -> u64 {
            0
        }
        fn initial_dense(&self, _: Seed) -> Vec<f32> {
            Vec::new()
        }
        fn load(&mut self, _: &[u64]) -> Result<&[u64], TrainError> {
            Ok(&[])
        }
        fn load_eval(&mut self, _: SampleRange) -> Result<&[u64], TrainError> {
            Ok(&[])
        }
        fn forward_backward(
            &mut self,
            _: Params<'_>,
            _: &mut dyn GradientSink,
        ) -> Result<StepStats, TrainError> {
            Ok(StepStats::default())
        }
        fn evaluate(&mut self, _: Params<'_>, _: &mut Metrics) -> Result<(), TrainError> {
            Ok(())
        }
    }

    /// What becomes of a model with these tables of ten rows, and how many rows then come in the host's memory.
    fn heated(
        own: Option<RowMemoryFactory>,
        hot_rows: &str,
        tables: &[&str],
        takes_device_rows: bool,
    ) -> (Result<u32, String>, usize) {
        let spec = JobSpec { hot_rows: hot_rows.parse().unwrap(), ..JobSpec::default() };
        let holder = Holder { node: NodeId::worker(0), incarnation: Incarnation(0) };
        let table =
            |layout: ParamLayout, name: &&str| layout.with_table(TableSpec::new(*name, 10, 1, 0.5)).unwrap();
        let layout = tables.iter().fold(ParamLayout::dense(1), table);
        let replica = Replica::new(&layout, &UpdateRule::named("adagrad", 0.1).unwrap(), Seed(1), vec![0.0]);
        let mut model: HotReplica = replica.unwrap().into();
        let heating = Heating { spec: &spec, holder, own };
        let got = heating.try_heat(&mut model, &Asked { layout, takes_device_rows });
        let mut host = Vec::new();
        model.load(&[3, 7], &mut host).unwrap();
        (got, host.len())
    }

    #[test]
    fn rows_that_cannot_be_hot_stay_on_the_host_for_a_reason() {
        let none = |why: &str| (Err(why.to_owned()), 2);
        let gpu = "rows cannot lie on a GPU: this worker computes on none (--device)";
        for hot_rows in ["auto", "4"] {
            assert_eq!(heated(None, hot_rows, &["a"], true), none(gpu));
            let host_only = "the workload takes rows in the host's memory only";
            assert_eq!(heated(None, hot_rows, &["a"], false), none(host_only));
            let several = "tables of the model = 2: must be 1 for rows in the memory of a GPU";
            assert_eq!(heated(None, hot_rows, &["a", "b"], true), none(several));
        }
        if let Err(why) = HostKernels::build() {
            return println!("skipped, not here: {why}");
        }
        let own: RowMemoryFactory =
            |shape, slots| HostKernels::build().map_err(RowsError::None)?.rows(shape, slots);
        assert_eq!(heated(Some(own), "4", &["a"], true), (Ok(4), 0));
        assert_eq!(
            heated(Some(own), "auto", &["a"], true),
            none("only a number says how much of this program's own memory to take")
        );
    }
}
