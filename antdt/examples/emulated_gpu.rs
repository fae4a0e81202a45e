//! The command with a GPU that is none: the dense parameters of workers, and their gradients, lie in the memory of a process that runs
//! the kernels of GPUs on the processor of this machine, and groups reduce them there. Needs `g++`. The tests run it:
//! `cargo run -p antdt --example emulated_gpu -- run --workload gpu-mlp --data synthetic:2000 --report-dir report`
//!
//! With `EMULATED_GPU_STRICT` in the environment every copy of a gradient to the host fails, and with it the job. With
//! `EMULATED_GPU_ALONE` no group reduces in the memory of these GPUs.

use std::sync::{Arc, Mutex, PoisonError};

use antdt::JobBuilder;
use antdt::agent::{Buffer, DeviceValues, Gradient, GradientSink, Params, StepStats, TrainError, Trainer};
use antdt::core::{Metrics, ParamLayout, SampleRange, Seed};
use antdt::job::JobSpec;
use antdt::worker::Accelerator;
use antdt::worker::plane::{Devices, Standard};
use antdt::workload::{self, Entry, Workload};
use antdt_collective::runtime::Backend;
use antdt_collective::runtime::flat::{FlatError, FlatMemory, FlatShape};
use antdt_gpu::runtime::flat::testing::{EmulatedGpu, EmulatedTensor};
use antdt_gpu::runtime::rows::testing::HostKernels;

/// The one of this process, made when it is first used.
fn gpu() -> Result<EmulatedGpu, FlatError> {
    static GPU: Mutex<Option<EmulatedGpu>> = Mutex::new(None);
    let mut gpu = GPU.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = &*gpu {
        return Ok(gpu.clone());
    }
    // The process goes on without the folder that it was built in.
    let kernels = HostKernels::build().map_err(FlatError::None)?;
    let is_strict = std::env::var_os("EMULATED_GPU_STRICT").is_some();
    Ok(gpu.insert(EmulatedGpu::start(&kernels, is_strict)?).clone())
}

fn flat(shape: FlatShape) -> Result<Arc<dyn FlatMemory>, FlatError> {
    gpu()?.flat(shape)
}

fn backend(below: Box<dyn Backend>) -> Box<dyn Backend> {
    match gpu() {
        Ok(gpu) if std::env::var_os("EMULATED_GPU_ALONE").is_none() => gpu.backend(below),
        _ => below,
    }
}

#[allow(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn failed(error: FlatError) -> TrainError {
    TrainError::Device(error.to_string())
}

/// A trainer that computes on the GPU: what another one computes on the processor, in the GPU's memory.
struct OnGpu {
    inner: Box<dyn Trainer>,
    gradient: Gradient,
}

/// The gradient of a group.
#[derive(Debug)]
struct Computed(EmulatedTensor, usize);

impl DeviceValues for Computed {
    fn len(&self) -> usize {
        self.1
    }

    fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError> {
        into.extend(self.0.gradient().map_err(failed)?);
        Ok(())
    }

    fn copy_to(&self, _: u64) -> Result<(), TrainError> {
        Err(TrainError::Device("copy from this address".to_owned()))
    }

    fn address(&self) -> Result<u64, TrainError> {
        Ok(self.0.address())
    }
}

impl Trainer for OnGpu {
    fn layout(&self) -> &ParamLayout {
        self.inner.layout()
    }

    fn takes_device_dense(&self) -> bool {
        true
    }

    fn train_samples(&self) -> u64 {
        self.inner.train_samples()
    }

    fn eval_samples(&self) -> u64 {
        self.inner.eval_samples()
    }

    fn initial_dense(&self, seed: Seed) -> Vec<f32> {
        self.inner.initial_dense(seed)
    }

    fn of_epochs(&mut self, epochs: &[u32]) {
        self.inner.of_epochs(epochs);
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        self.inner.load(samples)
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        self.inner.load_eval(samples)
    }

    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let gpu = gpu().map_err(failed)?;
        let dense = match params.dense {
            Buffer::Device(values) => {
                let tensor = gpu.tensor(values.len()).map_err(failed)?;
                values.copy_to(tensor.address())?;
                tensor.computed().map_err(failed)?
            }
            dense => dense.host()?.to_vec(),
        };
        let stats = self.gradient.compute(&mut *self.inner, &dense, params.rows.host()?)?;
        let layout = self.inner.layout();
        if !sink.takes_device() {
            sink.all(layout, &self.gradient.dense, &self.gradient.rows)?;
            return Ok(stats);
        }
        let places: Vec<_> = layout.ranges().map(|(place, _)| place).collect();
        for (group, place) in places.into_iter().enumerate().rev() {
            let tensor = gpu.tensor(place.len()).map_err(failed)?;
            let len = place.len();
            tensor.compute(&self.gradient.dense[place]).map_err(failed)?;
            sink.group(group, Buffer::Device(&Computed(tensor, len)))?;
        }
        sink.rows(Buffer::Host(&self.gradient.rows))?;
        Ok(stats)
    }

    fn begin_evaluation(&mut self) {
        self.inner.begin_evaluation();
    }

    fn evaluate(&mut self, params: Params<'_>, metrics: &mut Metrics) -> Result<(), TrainError> {
        self.inner.evaluate(params, metrics)
    }

    fn end_evaluation(&mut self, metrics: &mut Metrics) -> Result<(), TrainError> {
        self.inner.end_evaluation(metrics)
    }
}

/// A workload of this release, on the GPU.
fn on_gpu(name: &'static str) -> Workload {
    Workload::new(move |spec, announce| {
        let spec = JobSpec { workload: name.to_owned(), ..spec.clone() };
        let inner = workload::of(&spec)?.open(&spec, announce)?;
        Ok(Box::new(OnGpu { gradient: Gradient::new(inner.layout()), inner }))
    })
}

fn main() -> std::process::ExitCode {
    let devices = Devices { dense: Some(Accelerator { flat, backend }), ..Devices::default() };
    JobBuilder::new()
        .data_plane(Standard { devices })
        .trainer(Entry::new("gpu-mlp", "mlp on the emulated GPU", |_| Ok(on_gpu("mlp"))))
        .trainer(Entry::new("gpu-deepfm", "deepfm on the emulated GPU", |_| Ok(on_gpu("deepfm"))))
        .main()
}
