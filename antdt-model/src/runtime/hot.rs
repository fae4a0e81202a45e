//! [`HotReplica`]: a replica whose table has its hot rows in the memory of a GPU, with what the optimizer keeps of them, or whose flat
//! vector lies there.
//!
//! A batch is gathered where its hot rows lie, and a step changes them there; the other rows stay in the host's memory. All
//! parameters, and what is kept of them, are those of a [`Replica`] that takes the same steps, to the bit. Which rows are hot,
//! [`HotRows`](crate::HotRows) decides. What reads the model as a whole, a checkpoint or a copy for another worker, has the changed
//! rows [settled](HotReplica::settle) first.
//!
//! The flat vector lies on a GPU where its gradients do: the optimizer's step is taken there with their sums, and none of them goes to
//! the host ([`lift`](HotReplica::lift)).
//!
//! Without a memory no row is hot, and each call is the replica's own: a worker has one kind of model, whatever it computes on.
//!
//! Rejected: hot rows of a model that a worker trains by itself between two averages, because each of its steps first reads the rows
//! that it changes, as they are to be at the next average.

use std::sync::Arc;

use antdt_collective::runtime::flat::{FlatError, FlatMemory, FlatShape};
use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};
use antdt_core::InvalidValue;

use crate::gradient::SparseGradient;
use crate::optimizer::UpdateStep;
use crate::portion::Portion;
use crate::replica::Replica;
use crate::rule::Trained;
use crate::table::TableError;

mod fuse;
mod lifted;
mod tier;

use lifted::Lifted;
use tier::Tier;

/// Reason why the parameters of a model with hot rows cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HotError {
    /// The arguments do not fit the model; nothing has changed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no kernel for this optimizer, which the model did not have when its rows became hot; nothing
    /// has changed.
    #[error("optimizer `{0}` has no kernel, so hot rows cannot take its steps")]
    Optimizer(&'static str),
    /// The GPU memory failed. The newest values of the hot rows are lost and with them the model, unless the
    /// error is [`RowsError::Elsewhere`].
    #[error(transparent)]
    Memory(RowsError),
    /// The GPU memory failed at an earlier call, for this reason. No call brings the model back.
    #[error("the hot rows were lost before: {0}")]
    Lost(RowsError),
    /// The memory of the flat vector refuses a call, or failed. After [`FlatError::Device`] the model is lost.
    #[error(transparent)]
    Flat(#[from] FlatError),
}

/// The flat vector of a model, where it lies.
#[derive(Debug, Clone, Copy)]
pub enum Dense<'a> {
    /// In host memory, `[dense_len]`.
    Host(&'a [f32]),
    /// On a GPU.
    Device(&'a Arc<dyn FlatMemory>),
}

/// The sums of the gradients of the flat vector, where they lie.
#[derive(Debug, Clone, Copy)]
pub enum DenseSums<'a> {
    /// In host memory, `[dense_len]`.
    Host(&'a [f32]),
    /// On a GPU, at these addresses, one for each group of the layout. The caller owns the memory there.
    Device(&'a [u64]),
}

fn on_host() -> FlatError {
    FlatError::None("the flat vector lies in the host's memory".to_owned())
}

/// A whole model whose most used table rows lie in GPU memory, with their optimizer state. See the
/// [module](self).
#[derive(Debug)]
pub struct HotReplica {
    replica: Replica,
    /// Of the model's only table; `None` if all rows lie in the host's memory.
    tier: Option<Tier>,
    /// `None` if the flat vector lies in the host's memory.
    lifted: Option<Lifted>,
}

impl From<Replica> for HotReplica {
    /// Wraps a model all of whose rows lie in host memory, until it is given a GPU's by
    /// [`heat`](Self::heat).
    fn from(replica: Replica) -> Self {
        Self { replica, tier: None, lifted: None }
    }
}

impl HotReplica {
    /// Returns the shape of the slots for rows of this model's table under its optimizer.
    ///
    /// # Errors
    /// If no row can be hot, because the model has no table or several, or there is no kernel for its optimizer.
    pub fn shape(&self) -> Result<RowShape, InvalidValue> {
        let tables = self.replica.layout().tables().len();
        let table = self.replica.only_table().ok_or_else(|| {
            InvalidValue::new("tables of the model", tables, "1 for rows in the memory of a GPU")
        })?;
        Ok(RowShape { dim: table.spec().dim, state_per_value: self.kept_by_kernel("rows")? })
    }

    /// The numbers that the optimizer keeps of each parameter, if there is a kernel for it.
    fn kept_by_kernel(&self, what: &str) -> Result<usize, InvalidValue> {
        let optimizer = self.replica.optimizer();
        let any = UpdateStep { number: 1, rate: 0.0, scale: 0.0, decay: 0.0 };
        if optimizer.row_step(any).is_none() {
            let expected =
                format!("one with a kernel, such as adagrad; {what} of others stay in the host's memory");
            return Err(InvalidValue::new("optimizer", optimizer.name(), expected));
        }
        Ok(optimizer.state_per_value())
    }

    /// Returns the shape of the memory for this model's flat vector under its optimizer.
    ///
    /// # Errors
    /// If it must stay in the host's memory, because it is empty or there is no kernel for the optimizer.
    pub fn flat_shape(&self) -> Result<FlatShape, InvalidValue> {
        let len = self.replica.layout().dense_len();
        if len == 0 {
            let expected = "at least 1 for parameters in the memory of a GPU";
            return Err(InvalidValue::new("dense parameters of the model", len, expected));
        }
        Ok(FlatShape { len, state_per_value: self.kept_by_kernel("parameters")? })
    }

    /// Keeps the flat vector, and what the optimizer keeps of it, in `memory` from now on.
    ///
    /// # Errors
    /// If it must stay in the host's memory, as [`flat_shape`](Self::flat_shape) says, the memory has another shape or fails, or the
    /// vector lies in another already. Nothing is changed then.
    pub fn lift(&mut self, memory: Arc<dyn FlatMemory>) -> Result<(), InvalidValue> {
        let (shape, due) = (memory.shape(), self.flat_shape()?);
        if shape != due {
            return Err(InvalidValue::new("shape of the vector", format!("{shape:?}"), format!("{due:?}")));
        }
        if self.lifted.is_some() {
            let expected = "1, which has the newest values";
            return Err(InvalidValue::new("memories for the flat vector", "a second one", expected));
        }
        let lifted = Lifted::new(memory, &mut self.replica);
        let failed = |error| InvalidValue::new("memory for the flat vector", error, "writable");
        self.lifted = Some(lifted.map_err(failed)?);
        Ok(())
    }

    /// Returns the memory of the flat vector, if it lies on a GPU.
    pub fn flat(&self) -> Option<&Arc<dyn FlatMemory>> {
        self.lifted.as_ref().map(Lifted::memory)
    }

    /// Keeps the rows that batches touch often in `memory` from now on.
    ///
    /// # Errors
    /// If no row can be hot, as [`shape`](Self::shape) says, the memory has slots of another shape, or the model
    /// has a memory already.
    pub fn heat(&mut self, memory: Box<dyn RowMemory>) -> Result<(), InvalidValue> {
        let (shape, due) = (memory.shape(), self.shape()?);
        if shape != due {
            return Err(InvalidValue::new("shape of slots", format!("{shape:?}"), format!("{due:?}")));
        }
        if self.tier.is_some() {
            let expected = "1, which may have their newest values";
            return Err(InvalidValue::new("memories for hot rows", "a second one", expected));
        }
        self.tier = self.replica.only_table().map(|table| Tier::new(table, memory));
        Ok(())
    }

    /// Returns the number of rows in GPU memory.
    pub fn hot_rows(&self) -> usize {
        self.tier.as_ref().map_or(0, Tier::hot_rows)
    }

    /// Returns the flat vector, `[dense_len]`, in host memory. Where it lies on a GPU, it is copied once after each step.
    ///
    /// # Errors
    /// If the GPU memory fails.
    pub fn dense(&mut self) -> Result<&[f32], HotError> {
        if let Some(lifted) = &mut self.lifted {
            lifted.refresh_values(&mut self.replica)?;
        }
        Ok(self.replica.dense())
    }

    /// Sets the share of the learning rate at which later steps change the model, as [`Replica::set_rate_share`] does.
    pub const fn set_rate_share(&mut self, share: f32) {
        self.replica.set_rate_share(share);
    }

    /// Sets the numbers of steps and samples that the model was trained for, after its portions were
    /// restored.
    pub const fn set_trained(&mut self, trained: Trained) {
        self.replica.set_trained(trained);
    }

    /// Gathers the values of the rows that a batch touches, `[rows, dim]`. They stay in GPU memory until the next
    /// batch, and [`parameters`](Self::parameters) returns them; if all rows lie in host memory, they are
    /// appended to `into` instead. `rows` ascend, each once.
    ///
    /// # Errors
    /// If a row does not exist or is out of order, or the GPU memory fails.
    pub fn load(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), HotError> {
        match (&mut self.tier, self.replica.only_table_mut()) {
            (Some(tier), Some(table)) => tier.load(table, rows),
            _ => Ok(self.replica.gather(rows, into)?),
        }
    }

    /// Returns the flat vector where it lies, and the rows of the batch that was [loaded](Self::load) last, if
    /// they lie in GPU memory.
    pub fn parameters(&mut self) -> (Dense<'_>, Option<LoadedRows<'_>>) {
        let dense = match &self.lifted {
            Some(lifted) => Dense::Device(lifted.memory()),
            None => Dense::Host(self.replica.dense()),
        };
        (dense, self.tier.as_mut().map(|tier| LoadedRows { tier }))
    }

    /// Appends the values of `rows`, `[rows, dim]`, to `into`, in host memory, for an evaluation. `rows` ascend,
    /// each once.
    ///
    /// # Errors
    /// If a row does not exist or is out of order, or the GPU memory fails.
    pub fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), HotError> {
        if let (Some(tier), Some(table)) = (&mut self.tier, self.replica.only_table_mut()) {
            tier.write_back(table, rows)?;
        }
        Ok(self.replica.gather(rows, into)?)
    }

    /// Takes one step with the mean of the gradients of this worker's batch and of other workers' batches, as [`Replica::apply`] does,
    /// of a model that may be a part of a larger one. The sums lie where its flat vector does: sums on the host for a flat vector that
    /// lies on a GPU, and the other way round, are refused.
    ///
    /// `norm` is that of the gradient of a larger model of which this one is a part: gradients are clipped by it. `None` if this is
    /// the whole model.
    ///
    /// # Errors
    /// If the lengths do not fit the model, a row does not exist or is out of order, or the optimizer has no kernel; nothing is then
    /// changed. Or the GPU memory fails.
    pub fn apply_part(
        &mut self,
        dense: DenseSums<'_>,
        rows: &SparseGradient,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), HotError> {
        match dense {
            DenseSums::Host(sums) => self.step_here(sums, rows, samples, norm),
            DenseSums::Device(sums) => self.step_lifted(sums, rows, samples, norm),
        }
    }

    /// Returns the sum of the squares of a gradient of this model, as [`Replica::square_sum`] does.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or the GPU memory fails.
    pub fn square_sum(&self, dense: DenseSums<'_>, rows: &SparseGradient) -> Result<f64, HotError> {
        match (dense, &self.lifted) {
            (DenseSums::Host(sums), _) => Ok(self.replica.square_sum(sums, rows)?),
            (DenseSums::Device(sums), Some(lifted)) => {
                lifted.check(&self.replica, sums)?;
                lifted.square_sum(&self.replica, sums, &rows.values)
            }
            (DenseSums::Device(_), None) => Err(on_host().into()),
        }
    }

    fn step_here(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), HotError> {
        if self.lifted.is_some() {
            return Err(
                FlatError::None("sums on the host for a flat vector that is not there".to_owned()).into()
            );
        }
        let Some(step) = self.replica.step(dense_sum, rows, samples, norm)? else { return Ok(()) };
        self.step_rows(rows, step)?;
        self.replica.apply_dense(dense_sum, step, samples);
        self.replica.count(samples);
        Ok(())
    }

    fn step_lifted(
        &mut self,
        dense_sums: &[u64],
        rows: &SparseGradient,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), HotError> {
        let Some(lifted) = &mut self.lifted else { return Err(on_host().into()) };
        lifted.check(&self.replica, dense_sums)?;
        if samples == 0 {
            return Ok(());
        }
        let norm = match norm {
            None if self.replica.clips() => {
                lifted.square_sum(&self.replica, dense_sums, &rows.values)?.sqrt()
            }
            norm => norm.unwrap_or(0.0),
        };
        let step = self.replica.step_of(|| norm, samples);
        self.step_rows(rows, step)?;
        if let Some(lifted) = &mut self.lifted {
            lifted.apply(&self.replica, dense_sums, step, samples)?;
        }
        self.replica.count_step();
        self.replica.count(samples);
        Ok(())
    }

    /// Takes the step on rows, where they lie.
    fn step_rows(&mut self, rows: &SparseGradient, step: UpdateStep) -> Result<(), HotError> {
        let optimizer = self.replica.optimizer();
        match (&mut self.tier, self.replica.only_table_mut()) {
            (Some(tier), Some(table)) => tier.apply(table, rows, step, &*optimizer),
            _ => Ok(self.replica.apply_rows(rows, step)?),
        }
    }

    /// Writes all changed rows, and the flat vector, from GPU memory to host memory, and returns the model with the newest values, for a
    /// checkpoint or a copy for another worker. Hot rows stay hot, and the flat vector where it is.
    ///
    /// # Errors
    /// If the GPU memory fails.
    pub fn settle(&mut self) -> Result<&Replica, HotError> {
        if let Some(lifted) = &mut self.lifted {
            lifted.refresh(&mut self.replica)?;
        }
        if let (Some(tier), Some(table)) = (&mut self.tier, self.replica.only_table_mut()) {
            tier.write_back_all(table)?;
        }
        Ok(&self.replica)
    }

    /// Writes all changed rows from GPU memory to host memory, and returns the model without the GPU memory.
    ///
    /// # Errors
    /// If the GPU memory fails.
    pub fn into_settled(mut self) -> Result<Replica, HotError> {
        self.settle()?;
        Ok(self.replica)
    }

    /// Replaces the model by another one of the same layout and optimizer, none of whose rows is hot yet. The GPU
    /// memory stays for its rows, also one that has failed, and for its flat vector.
    ///
    /// # Errors
    /// If the memory of the flat vector fails.
    pub fn replace(&mut self, replica: Replica) -> Result<(), HotError> {
        self.replica = replica;
        if let (Some(tier), Some(table)) = (&mut self.tier, self.replica.only_table()) {
            tier.forget(table);
        }
        self.lifted.as_mut().map_or(Ok(()), |lifted| lifted.write(&mut self.replica))
    }

    /// Overwrites the parameters that `portion` has and, if `with_state`, their optimizer state, as
    /// [`Replica::restore`] does. No row is hot afterwards.
    ///
    /// # Errors
    /// If the portion does not fit the model or its optimizer keeps other numbers: no value is changed then. Or if the GPU memory
    /// fails: the model must not be used any more.
    pub fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        self.settle().map_err(|error| InvalidValue::new("hot rows", error, "readable"))?;
        if let (Some(tier), Some(table)) = (&mut self.tier, self.replica.only_table()) {
            tier.forget(table);
        }
        let set = self.replica.restore(portion, with_state)?;
        if let Some(lifted) = &mut self.lifted {
            let failed = |error| InvalidValue::new("memory for the flat vector", error, "writable");
            lifted.write(&mut self.replica).map_err(failed)?;
        }
        Ok(set)
    }
}

/// Values of the rows that a batch touches, `[rows, dim]`, in GPU memory.
#[derive(Debug)]
pub struct LoadedRows<'a> {
    tier: &'a mut Tier,
}

impl LoadedRows<'_> {
    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.tier.loaded_len()
    }

    /// Returns whether the batch has no rows.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the values to `into`, in host memory, for a trainer that computes on the host.
    ///
    /// # Errors
    /// If the GPU memory fails.
    pub fn read(&mut self, into: &mut Vec<f32>) -> Result<(), HotError> {
        self.tier.read_loaded(into)
    }

    /// Copies the values to other memory of the same GPU, as [`RowMemory::gathered_at`] does.
    ///
    /// # Errors
    /// If the address is not in the memory of this GPU, or the GPU fails.
    pub fn copy_to(&mut self, address: u64) -> Result<(), HotError> {
        self.tier.copy_loaded(address)
    }
}

#[cfg(test)]
mod tests;
