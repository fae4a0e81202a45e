//! The data plane of a worker: where its parameters live, and how what workers compute changes them.
//!
//! A model has dense parameters and the rows of tables. Each kind has a *home*: replicas in all workers, parameter servers, a
//! model of each worker's own, or what a program brings. A home is an object that is told what the training loop does: a plan
//! begins, the worker joined, a gradient is there, the step is to be applied, a worker lacks the parameters. What a home does
//! not care about has a default.
//!
//! - [`Home`] is what both kinds have in common;
//! - [`DensePlane`] is a home of dense parameters, [`RowsPlane`] one of rows;
//! - [`JointPlane`] is one home for both, which may move them in one message;
//! - [`Plane`] is the data plane of one worker, made by a [`PlaneFactory`] from the capabilities of the job's sync mode.
//!
//! A step of a mode whose workers form groups goes: [`RowsPlane::load`], [`DensePlane::pass`] for each micro-batch, with
//! [`DensePlane::begin`] before the last one, [`DensePlane::reduce`], [`RowsPlane::announce`], an exchange of what all members
//! announced and of the samples behind the step, [`RowsPlane::exchange`], [`Home::apply`]. Each is a collective call of all
//! members, in the same order.
//!
//! To add a home: a file here that implements the traits, and a line in [`Standard`]'s `match`es; or, in a program of your own,
//! a factory that goes with a sync mode ([`ModeParts`]).
//!
//! Source: our design.

mod copy;
mod factory;
mod mean;
mod mixed;
mod offer;
mod own;
mod peers;
mod program;
mod replicas;
mod servers;
mod site;
mod spread;
mod stream;
mod sums;
mod table_sums;
mod weighted;

use std::sync::Arc;

use antdt_agent::{Buffer, DeviceValues, GradientSink, MicroBatch};
use antdt_checkpoint::ModelState;
use antdt_collective::runtime::flat::FlatMemory;
use antdt_core::{CheckpointId, InvalidValue, Joined, PushMark, StepCommit};
use antdt_job::Peers;
use antdt_model::{Portion, SparseGradient, Trained};

use super::WorkerError;

pub use copy::{ModelSource, SharedModel};
pub use factory::{Devices, ModeParts, PlaneFactory, Planes, Standard, dense_home, rows_home};
pub use peers::PeerGroup;
pub use site::WorkerSite;
pub use table_sums::TableSums;

pub(super) use copy::share;
pub(super) use own::kept_optimizer;
pub(super) use program::ProgramReplica;
pub(super) use servers::is_gone;

/// Values to compute with, where they lie.
#[derive(Debug)]
pub enum ParamValues<'a> {
    /// In the host's memory.
    Host(&'a [f32]),
    /// In the memory of a device.
    Device(Box<dyn DeviceValues + 'a>),
}

impl ParamValues<'_> {
    /// Returns the values as a trainer takes them.
    pub fn buffer(&self) -> Buffer<'_> {
        match self {
            Self::Host(values) => Buffer::Host(values),
            Self::Device(values) => Buffer::Device(&**values),
        }
    }
}

/// What a backward pass works with: the dense parameters, and where their gradient goes group by group while it is computed.
pub struct GradientPass<'a> {
    /// Dense parameters.
    pub dense: ParamValues<'a>,
    /// Takes the groups of the gradient as they come, once [`DensePlane::begin`] has said so; otherwise the gradient is
    /// handed over as a whole.
    pub sink: Option<&'a mut dyn GradientSink>,
}

impl std::fmt::Debug for GradientPass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dense, sink } = self;
        f.debug_struct("GradientPass").field("dense", dense).field("streams", &sink.is_some()).finish()
    }
}

/// One step in which workers combine what they computed.
#[derive(Debug, Clone, Copy)]
pub struct GroupStep<'a> {
    /// Number of the step.
    pub number: u64,
    /// Samples of this worker in the step.
    pub samples: u64,
    /// The gradient of the dense parameters was taken [group by group](GradientPass::sink).
    pub streamed: bool,
    /// Members of the group with which this worker combines.
    pub peers: &'a Peers,
}

impl GroupStep<'_> {
    /// Returns whether this worker's gradient is part of the step. Without samples it may still be computed, for another one.
    pub const fn has_gradient(&self) -> bool {
        self.samples > 0 || self.streamed
    }

    /// Takes what this worker brings of the dense gradient, `[len]`: zeros if it is for another step.
    fn take_dense(&self, gradient: &mut BatchGradient<'_>, len: usize) -> Vec<f32> {
        if self.has_gradient() { std::mem::take(gradient.dense) } else { vec![0.0; len] }
    }
}

/// The gradient of a batch: sums over its samples.
#[derive(Debug)]
pub struct BatchGradient<'a> {
    /// Gradient of the dense parameters, `[dense_len]`; empty if it was taken [group by group](GradientPass::sink).
    pub dense: &'a mut Vec<f32>,
    /// Rows that the batch touches, ascending.
    pub rows: &'a mut Vec<u64>,
    /// Gradients of these rows, `[rows, dim]`.
    pub values: &'a mut Vec<f32>,
}

impl BatchGradient<'_> {
    /// Takes the gradient of the rows.
    pub fn take_rows(&mut self) -> SparseGradient {
        SparseGradient { rows: std::mem::take(self.rows), values: std::mem::take(self.values) }
    }
}

/// A step that is to be applied.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepUpdate {
    /// Samples of all members behind the step.
    pub samples: u64,
    /// Samples of all workers of the job since this worker applied a step, if the master has said.
    pub committed: Option<u64>,
    /// All members of the group of all workers took part.
    pub of_all: bool,
    /// Norm of the gradient of both kinds of parameters, where gradients are clipped and each kind has a home of its own.
    pub norm: Option<f64>,
}

/// A copy of the parameters for a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct ModelCopy {
    /// How far the model is trained.
    pub trained: Trained,
    /// The numbers; `None` if other processes write them.
    pub numbers: Option<CopiedNumbers>,
}

/// The numbers of a [`ModelCopy`].
#[derive(Debug, Clone)]
pub enum CopiedNumbers {
    /// Those of parameters that are AntDT's.
    Portion(Portion),
    /// Those of a program that keeps its model itself.
    State(ModelState),
}

impl From<Portion> for CopiedNumbers {
    fn from(portion: Portion) -> Self {
        Self::Portion(portion)
    }
}

/// Where parameters live, in the view of one worker. A home of both kinds of parameters is told everything once.
///
/// # Errors
/// A method that fails ends the worker, with two exceptions: after [`WorkerError::Collective`] and
/// [`WorkerError::Servers`] the worker takes part again, if the failure can pass.
pub trait Home {
    /// Returns whether this worker has the parameters, or reaches those that have them.
    fn is_here(&self) -> bool {
        true
    }

    /// Returns whether AntDT evaluates the parameters. Those of a program, the program does.
    fn is_evaluated(&self) -> bool {
        true
    }

    /// Returns whether workers may begin with parameters that differ: where none is trained, all then take those of the first one.
    fn begins_apart(&self) -> bool {
        false
    }

    /// A plan takes effect: later steps are taken at this share of the learning rate (`None`: the whole).
    fn begin_plan(&mut self, _rate_share: Option<f32>) {}

    /// The master has answered that the worker may take part.
    ///
    /// # Errors
    /// If processes that have the parameters cannot be reached for good.
    fn joined(&mut self, _joined: &Joined) -> Result<(), WorkerError> {
        Ok(())
    }

    /// The worker is in a group of all workers, and has the parameters.
    fn entered(&mut self) {}

    /// The group is about to end: what was [lent](PeerGroup::lend) goes back.
    fn leaving(&mut self, _peers: &mut PeerGroup<'_>) {}

    /// Forgets all training: the parameters are those that every job with this seed begins with, and no step is prepared.
    ///
    /// # Errors
    /// If they do not fit the model, or a device fails.
    fn restart(&mut self, _site: &WorkerSite<'_>) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Drops a step that was combined and not applied.
    fn forget_step(&mut self) {}

    /// Overwrites the parameters that `portion` has, with the state of their optimizer if `with_state`. Returns how many dense
    /// values were set.
    ///
    /// # Errors
    /// If the portion does not fit.
    fn restore(&mut self, _portion: &Portion, _with_state: bool) -> Result<usize, InvalidValue> {
        Ok(0)
    }

    /// Takes over the whole model that a program of its kind has kept in a checkpoint.
    ///
    /// # Errors
    /// If it is no model of this home.
    fn restore_state(&mut self, _model: ModelState) -> Result<(), WorkerError> {
        Err(unfit("the checkpoint has a model of a program's own; go on with that program"))
    }

    /// Sets how far the model is trained, after its portions were restored.
    fn set_trained(&mut self, _trained: Trained) {}

    /// Returns what a worker that joins takes over, if workers have the parameters. All members that have the same parameters
    /// return the same bytes.
    ///
    /// # Errors
    /// If a device fails.
    fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        Ok(Vec::new())
    }

    /// Takes over what another worker [gives](Self::give).
    ///
    /// # Errors
    /// If it does not fit, or no longer comes.
    fn take(&mut self, _from: &mut ModelSource<'_>) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Gets the parameters that the loaded batch needs, if they live in other processes.
    ///
    /// # Errors
    /// If they cannot be reached.
    fn pull(&mut self) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Sends the gradient of a batch to the processes that have the parameters.
    ///
    /// # Errors
    /// If they cannot be reached.
    fn push(
        &mut self,
        _step: u64,
        _samples: u64,
        _gradient: &mut BatchGradient<'_>,
    ) -> Result<(), WorkerError> {
        Ok(())
    }

    /// The master has committed a step.
    fn committed(&mut self, _commit: &StepCommit) {}

    /// Returns the sum of the squares of the gradient in the step that was combined. It is asked for only where gradients are
    /// clipped and each kind of parameters has a home of its own.
    ///
    /// # Errors
    /// If a device fails.
    fn square_sum(&mut self) -> Result<f64, WorkerError> {
        Ok(0.0)
    }

    /// Applies the step that was combined, or has the processes that have the parameters do so. Returns the relative distance of
    /// this worker's parameters to an average, where one was made and is of interest.
    ///
    /// # Errors
    /// If no step was combined, or the parameters cannot be changed.
    fn apply(&mut self, _update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        Ok(None)
    }

    /// Takes a step with this worker's gradient alone. `norm` is as in [`StepUpdate`].
    ///
    /// # Errors
    /// If the gradient does not fit, or a device fails.
    fn advance(
        &mut self,
        _gradient: &mut BatchGradient<'_>,
        _samples: u64,
        _norm: Option<f64>,
    ) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Undoes the steps that this worker took alone since the last average.
    fn revert(&mut self) {}

    /// Has the processes that have the parameters apply these pushes, which count.
    ///
    /// # Errors
    /// If they cannot be reached.
    fn count(&mut self, _pushes: &[PushMark]) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Copies the parameters for a checkpoint, or has the processes that have them do so.
    ///
    /// # Errors
    /// If they cannot be read or reached.
    fn copy(&mut self, checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError>;
}

/// A home of dense parameters.
pub trait DensePlane: Home {
    /// Called before the backward pass of the last micro-batch of a batch. Returns whether the gradient is taken [group by
    /// group](GradientPass::sink) while it is computed; otherwise it is handed over as a whole.
    ///
    /// # Errors
    /// If a device fails.
    fn begin(&mut self, _peers: &mut PeerGroup<'_>) -> Result<bool, WorkerError> {
        Ok(false)
    }

    /// Returns the memory in which the parameters lie, if that is a device's: gradients of micro-batches are added up there.
    fn device(&self) -> Option<Arc<dyn FlatMemory>> {
        None
    }

    /// Returns the parameters to compute with, and where the gradient goes.
    ///
    /// # Errors
    /// If they are not there.
    fn pass(&mut self) -> Result<GradientPass<'_>, WorkerError>;

    /// Returns the parameters in the host's memory, `[dense_len]`: for a gradient that is computed beside further calls, and for an
    /// evaluation.
    ///
    /// # Errors
    /// If a device fails.
    fn host(&mut self) -> Result<&[f32], WorkerError>;

    /// Combines the gradient of a step, or parameters, with the other members.
    ///
    /// # Errors
    /// If a member fails.
    fn reduce(
        &mut self,
        _peers: &mut PeerGroup<'_>,
        _step: &GroupStep<'_>,
        _gradient: &mut BatchGradient<'_>,
    ) -> Result<(), WorkerError> {
        Ok(())
    }
}

/// A home of the rows of tables.
pub trait RowsPlane: Home {
    /// A micro-batch that touches these rows is in memory. The rows ascend, each once.
    ///
    /// # Errors
    /// If a row does not exist, or a device fails.
    fn load(&mut self, rows: &[u64], micro: MicroBatch) -> Result<(), WorkerError>;

    /// Returns the values of the rows of the loaded micro-batch, `[rows, dim]`.
    ///
    /// # Errors
    /// If a device fails.
    fn values(&mut self) -> Result<ParamValues<'_>, WorkerError>;

    /// Takes this worker's gradient for a step, and returns what the other members must know before rows are exchanged, such as
    /// numbers of rows. All members return as many numbers.
    ///
    /// # Errors
    /// If the gradient does not fit.
    fn announce(
        &mut self,
        _step: &GroupStep<'_>,
        _gradient: &mut BatchGradient<'_>,
    ) -> Result<Vec<u64>, WorkerError> {
        Ok(Vec::new())
    }

    /// Combines the gradient of a step, or rows, with the other members. `announced` is what each of them announced, in order of
    /// rank.
    ///
    /// # Errors
    /// If a member fails.
    fn exchange(
        &mut self,
        _peers: &mut PeerGroup<'_>,
        _step: &GroupStep<'_>,
        _announced: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Appends the values of rows to `into`, `[rows, dim]`, in the host's memory, for an evaluation. The rows ascend, each once.
    ///
    /// # Errors
    /// If a row does not exist, or cannot be read or reached.
    fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError>;
}

/// One home for dense parameters and rows. It is told everything in [`Home`] once; in a step [`RowsPlane::exchange`] follows
/// [`DensePlane::reduce`], and in an evaluation [`DensePlane::host`] follows [`RowsPlane::gather`].
pub trait JointPlane: DensePlane + RowsPlane {
    /// Returns what [`DensePlane::pass`] and [`RowsPlane::values`] do, at once.
    ///
    /// # Errors
    /// As those.
    fn pass_with_rows(&mut self) -> Result<(GradientPass<'_>, ParamValues<'_>), WorkerError>;
}

/// The data plane of one worker.
pub struct Plane(Homes);

enum Homes {
    Joint(Box<dyn JointPlane>),
    Apart { dense: Box<dyn DensePlane>, rows: Box<dyn RowsPlane> },
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane").field("is_joint", &self.is_joint()).finish_non_exhaustive()
    }
}

impl Plane {
    /// Returns a data plane with one home for all parameters.
    pub fn joint(home: impl JointPlane + 'static) -> Self {
        Self(Homes::Joint(Box::new(home)))
    }

    /// Returns a data plane with a home for the dense parameters and another one for rows.
    pub fn apart(dense: Box<dyn DensePlane>, rows: Box<dyn RowsPlane>) -> Self {
        Self(Homes::Apart { dense, rows })
    }

    pub(super) const fn is_joint(&self) -> bool {
        matches!(self.0, Homes::Joint(_))
    }

    pub(super) fn dense(&mut self) -> &mut dyn DensePlane {
        match &mut self.0 {
            Homes::Joint(home) => &mut **home,
            Homes::Apart { dense, .. } => &mut **dense,
        }
    }

    pub(super) fn rows(&mut self) -> &mut dyn RowsPlane {
        match &mut self.0 {
            Homes::Joint(home) => &mut **home,
            Homes::Apart { rows, .. } => &mut **rows,
        }
    }

    /// Tells each home once.
    pub(super) fn each<E>(&mut self, mut tell: impl FnMut(&mut dyn Home) -> Result<(), E>) -> Result<(), E> {
        match &mut self.0 {
            Homes::Joint(home) => tell(&mut **home),
            Homes::Apart { dense, rows } => {
                tell(&mut **dense)?;
                tell(&mut **rows)
            }
        }
    }

    /// The same for what cannot fail.
    pub(super) fn all(&mut self, mut tell: impl FnMut(&mut dyn Home)) {
        let Ok(()) = self.each(|home| {
            tell(home);
            Ok::<_, std::convert::Infallible>(())
        });
    }

    pub(super) fn is_here(&self) -> bool {
        match &self.0 {
            Homes::Joint(home) => home.is_here(),
            Homes::Apart { dense, rows } => dense.is_here() && rows.is_here(),
        }
    }

    pub(super) fn is_evaluated(&self) -> bool {
        match &self.0 {
            Homes::Joint(home) => home.is_evaluated(),
            Homes::Apart { dense, rows } => dense.is_evaluated() && rows.is_evaluated(),
        }
    }

    pub(super) fn begins_apart(&self) -> bool {
        match &self.0 {
            Homes::Joint(home) => home.begins_apart(),
            Homes::Apart { dense, rows } => dense.begins_apart() || rows.begins_apart(),
        }
    }

    /// What a backward pass works with, and the values of the rows.
    pub(super) fn pass(&mut self) -> Result<(GradientPass<'_>, ParamValues<'_>), WorkerError> {
        match &mut self.0 {
            Homes::Joint(home) => home.pass_with_rows(),
            Homes::Apart { dense, rows } => Ok((dense.pass()?, rows.values()?)),
        }
    }

    /// What a worker that joins takes over.
    pub(super) fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        match &mut self.0 {
            Homes::Joint(home) => home.give(),
            Homes::Apart { dense, rows } => {
                let mut models = dense.give()?;
                models.extend(rows.give()?);
                Ok(models)
            }
        }
    }

    /// Overwrites what a portion of the whole model has.
    pub(super) fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        match &mut self.0 {
            Homes::Joint(home) => home.restore(portion, with_state),
            Homes::Apart { dense, rows } => {
                let [of_dense, of_rows] = split(portion);
                rows.restore(&of_rows, with_state)?;
                dense.restore(&of_dense, with_state)
            }
        }
    }

    /// Copies all parameters for a checkpoint.
    pub(super) fn copy(&mut self, checkpoint: CheckpointId) -> Result<ModelCopy, WorkerError> {
        match &mut self.0 {
            Homes::Joint(home) => home.copy(checkpoint),
            Homes::Apart { dense, rows } => {
                let ModelCopy { trained, numbers } = dense.copy(checkpoint)?;
                let numbers = match (numbers, rows.copy(checkpoint)?.numbers) {
                    (Some(CopiedNumbers::Portion(dense)), Some(CopiedNumbers::Portion(rows))) => {
                        Some(Portion { tables: rows.tables, ..dense }.into())
                    }
                    (None, _) | (_, None) => None,
                    _ => {
                        return Err(unfit(
                            "a model of a program's own has dense parameters and rows in one home",
                        ));
                    }
                };
                Ok(ModelCopy { trained, numbers })
            }
        }
    }

    /// Takes a step with this worker's gradient alone.
    pub(super) fn advance(
        &mut self,
        mut gradient: BatchGradient<'_>,
        samples: u64,
        norm: impl FnOnce(&BatchGradient<'_>) -> Option<f64>,
    ) -> Result<(), WorkerError> {
        match &mut self.0 {
            Homes::Joint(home) => home.advance(&mut gradient, samples, None),
            Homes::Apart { dense, rows } => {
                let norm = norm(&gradient);
                let BatchGradient { dense: sums, rows: touched, values } = gradient;
                let (mut no_sums, mut no_rows, mut no_values) = (Vec::new(), Vec::new(), Vec::new());
                let mut of_dense = BatchGradient { dense: sums, rows: &mut no_rows, values: &mut no_values };
                dense.advance(&mut of_dense, samples, norm)?;
                let mut of_rows = BatchGradient { dense: &mut no_sums, rows: touched, values };
                rows.advance(&mut of_rows, samples, norm)
            }
        }
    }
}

/// A portion of the dense parameters, and one of the rows.
fn split(portion: &Portion) -> [Portion; 2] {
    let Portion { dense_from, dense, dense_state, tables } = portion;
    let of_dense = Portion {
        dense_from: *dense_from,
        dense: dense.clone(),
        dense_state: dense_state.clone(),
        tables: Vec::new(),
    };
    let no_state = dense_state.iter().map(|_| Vec::new()).collect();
    let of_rows = Portion { dense_from: 0, dense: Vec::new(), dense_state: no_state, tables: tables.clone() };
    [of_dense, of_rows]
}

fn unfit(error: impl std::fmt::Display) -> WorkerError {
    WorkerError::Parameters(error.to_string())
}
