//! [`Session`]: a [`ProgramSession`] that Python asks and answers.

use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use antdt::agent::TrainError;
use antdt::checkpoint::{ModelState, StateTensor, TensorSpec};
use antdt::job::DataSpec;
use antdt::node::NodeEnv;
use antdt::worker::program::{CombinedStep, Waited, WorkerAsk};
use antdt::worker::{ProgramModel, ProgramSession, PulledBatch, WorkerEnd};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::{memory, raised};

/// Ctrl-C is heard within this time.
const SIGNALS: Duration = Duration::from_millis(50);

/// What a script is told of the job that it is a worker of.
#[pyclass(frozen, get_all, module = "antdt._antdt")]
pub(crate) struct JobInfo {
    /// Passes over the data.
    epochs: u32,
    /// Samples of a step, over all workers.
    global_batch_size: u32,
    /// Training samples; `None` if the job was not told.
    samples: Option<u64>,
}

/// Returns the job that this process is a worker of.
#[pyfunction]
pub(crate) fn job() -> PyResult<JobInfo> {
    let env = NodeEnv::from_process().map_err(|error| raised(&error))?;
    let samples = match env.spec.data {
        Some(DataSpec::Samples(samples)) => Some(samples),
        _ => None,
    };
    Ok(JobInfo { epochs: env.spec.epochs, global_batch_size: env.spec.global_batch_size, samples })
}

/// A worker of a job. Its thread is the worker; the thread that calls the methods is the program.
#[pyclass(frozen, module = "antdt._antdt")]
pub(crate) struct Session {
    state: Mutex<State>,
    /// A copy of this process has no thread that answers.
    process: u32,
}

/// Samples of one worker in a step, and its marks.
type Brought = (u64, Vec<u64>);

struct State {
    session: ProgramSession,
    batch: PulledBatch,
    step: Option<CombinedStep>,
    model: ModelState,
}

impl Session {
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        if process::id() != self.process {
            return Err(PyRuntimeError::new_err(
                "this process was forked from the worker, whose job goes on there; use antdt in the process that called antdt.init()",
            ));
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Session {
    /// Begins the worker. `parameters` have a gradient; `marks` whole numbers go with each; the program reads `ahead` batches ahead.
    #[new]
    fn new(py: Python<'_>, parameters: usize, samples: u64, marks: usize, ahead: u32) -> PyResult<Self> {
        let model = ProgramModel { parameters, train_samples: samples, marks, read_ahead: ahead };
        let session = py.detach(|| ProgramSession::from_process(model)).map_err(|error| raised(&error))?;
        let (batch, model) = (PulledBatch::default(), ModelState::default());
        Ok(Self { state: Mutex::new(State { session, batch, step: None, model }), process: process::id() })
    }

    /// Waits until the worker asks for something, and returns what: "batch", "gradient", "step", "give" or "take"; or how it ended: "over",
    /// "late" if the job has ended without this worker having its model, or "drained".
    fn wait(&self, py: Python<'_>) -> PyResult<&'static str> {
        loop {
            let waited = py.detach(|| self.state().map(|mut state| state.session.wait(SIGNALS)))?;
            let waited = waited.map_err(|error| raised(&error))?;
            let mut state = self.state()?;
            return Ok(match waited {
                Waited::Nothing => {
                    drop(state);
                    py.check_signals()?;
                    continue;
                }
                Waited::Over(WorkerEnd::EndOfData { has_model: true }) => "over",
                Waited::Over(WorkerEnd::EndOfData { has_model: false }) => "late",
                Waited::Over(WorkerEnd::Drained) => "drained",
                Waited::Asks(WorkerAsk::Batch(batch)) => {
                    state.batch = batch;
                    "batch"
                }
                Waited::Asks(WorkerAsk::Gradient) => "gradient",
                Waited::Asks(WorkerAsk::Step(step)) => {
                    state.step = Some(step);
                    "step"
                }
                Waited::Asks(WorkerAsk::Give) => "give",
                Waited::Asks(WorkerAsk::Take(model)) => {
                    state.model = model;
                    "take"
                }
            });
        }
    }

    /// The samples of the batch, the first epoch that one of them belongs to, and samples that follow as things are.
    fn batch(&self) -> PyResult<(Vec<u64>, u32, Vec<u64>)> {
        let state = self.state()?;
        let epoch = state.batch.epochs.iter().min().copied().unwrap_or(0);
        Ok((state.batch.samples.clone(), epoch, state.batch.upcoming.clone()))
    }

    fn loaded(&self) -> PyResult<()> {
        let loaded = self.state()?.session.loaded();
        loaded.map_err(|error| raised(&error))
    }

    /// The gradient: the `len` values at `address`, each times `scale`, are sums over the batch's samples.
    fn gradient(
        &self,
        py: Python<'_>,
        address: usize,
        len: usize,
        scale: f32,
        marks: Vec<u64>,
    ) -> PyResult<()> {
        let given = py.detach(|| {
            let mut state = self.state()?;
            memory::read(address, len, |values: &[f32]| {
                let fill = |sums: &mut [f32]| {
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = value * scale);
                };
                state.session.gradient(fill, marks)
            })
        })?;
        given.map_err(|error| raised(&error))
    }

    /// What each worker brought to the step, by rank: samples and marks; and the share of its learning rate at which to take it.
    fn step(&self) -> PyResult<(Vec<Brought>, f32)> {
        let state = self.state()?;
        let step = open(&state.step)?;
        let shares = step.shares.iter().map(|share| (share.samples, share.marks.clone())).collect();
        Ok((shares, step.rate_share))
    }

    /// Writes the sums of the step over all samples to `address`, each times `scale`.
    fn sums(&self, py: Python<'_>, address: usize, len: usize, scale: f32) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.state()?;
            let step = state.step.as_mut().ok_or_else(none)?;
            if step.sums.len() != len {
                let message = format!("the step has {} values, not {len}", step.sums.len());
                return Err(PyValueError::new_err(message));
            }
            step.sums.iter_mut().for_each(|sum| *sum *= scale);
            memory::write(&step.sums, address)
        })
    }

    fn stepped(&self) -> PyResult<()> {
        let mut state = self.state()?;
        let step = state.step.take().ok_or_else(none)?;
        let stepped = state.session.stepped(step);
        drop(state);
        stepped.map_err(|error| raised(&error))
    }

    /// The model: an outline, and tensors by name, type, shape and address.
    fn gave(&self, py: Python<'_>, outline: String, tensors: Vec<Tensor>) -> PyResult<()> {
        let given = py.detach(|| {
            let tensors = tensors.into_iter().map(copy).collect::<PyResult<_>>()?;
            self.state().map(|mut state| state.session.gave(ModelState { outline, tensors }))
        })?;
        given.map_err(|error| raised(&error))
    }

    /// The outline of the model to take over.
    fn outline(&self) -> PyResult<String> {
        Ok(self.state()?.model.outline.clone())
    }

    /// Writes one tensor of the model to take over to `address`, of `len` bytes.
    fn tensor(&self, py: Python<'_>, index: usize, address: usize, len: usize) -> PyResult<()> {
        py.detach(|| {
            let state = self.state()?;
            match state.model.tensors.get(index).map(|tensor| &tensor.bytes) {
                Some(bytes) if bytes.len() == len => memory::write(bytes, address),
                bytes => {
                    let has = bytes.map_or(0, Vec::len);
                    let message = format!("tensor {index} of the model has {has} bytes, not {len}");
                    Err(PyValueError::new_err(message))
                }
            }
        })
    }

    fn took(&self) -> PyResult<()> {
        let mut state = self.state()?;
        state.model = ModelState::default();
        let took = state.session.took();
        drop(state);
        took.map_err(|error| raised(&error))
    }

    /// What was asked for cannot be done, which ends the worker.
    fn failed(&self, why: String) -> PyResult<()> {
        let failed = self.state()?.session.failed(TrainError::Model(why));
        failed.map_err(|error| raised(&error))
    }
}

/// A tensor of a program: name, type, shape and address.
type Tensor = (String, String, Vec<u64>, usize);

fn copy((name, dtype, shape, address): Tensor) -> PyResult<StateTensor> {
    let invalid = |why: String| PyValueError::new_err(format!("{name}: {why}"));
    let dtype = dtype.parse().map_err(|error| invalid(format!("{error}")))?;
    let spec = TensorSpec { name: name.clone(), dtype, shape };
    let len = spec.bytes().ok_or_else(|| invalid("larger than any memory".to_owned()))?;
    let bytes = memory::read(address, len, |bytes: &[u8]| bytes.to_vec())?;
    Ok(StateTensor { spec, bytes })
}

fn none() -> PyErr {
    PyRuntimeError::new_err("no step is open")
}

fn open(step: &Option<CombinedStep>) -> PyResult<&CombinedStep> {
    step.as_ref().ok_or_else(none)
}
