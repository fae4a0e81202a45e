//! [`HotReplica`]: a replica whose table has its hot rows in the memory of a GPU, with what the optimizer keeps of them.
//!
//! A batch is gathered where its hot rows lie, and a step changes them there; the other rows stay in the host's memory. All
//! parameters, and what is kept of them, are those of a [`Replica`] that takes the same steps, to the bit. Which rows are hot,
//! [`HotRows`](crate::HotRows) decides. What reads the model as a whole, a checkpoint or a copy for another worker, has the changed
//! rows [settled](HotReplica::settle) first.
//!
//! Without a memory no row is hot, and each call is the replica's own: a worker has one kind of model, whatever it computes on.
//!
//! Rejected: hot rows of a model that a worker trains by itself between two averages, because each of its steps first reads the rows
//! that it changes, as they are to be at the next average.

use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};
use antdt_core::InvalidValue;

use crate::gradient::SparseGradient;
use crate::optimizer::UpdateStep;
use crate::portion::Portion;
use crate::replica::Replica;
use crate::rule::Trained;
use crate::table::TableError;

mod fuse;
mod tier;

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
}

/// A whole model whose most used table rows lie in GPU memory, with their optimizer state. See the
/// [module](self).
#[derive(Debug)]
pub struct HotReplica {
    replica: Replica,
    /// Of the model's only table; `None` if all rows lie in the host's memory.
    tier: Option<Tier>,
}

impl From<Replica> for HotReplica {
    /// Wraps a model all of whose rows lie in host memory, until it is given a GPU's by
    /// [`heat`](Self::heat).
    fn from(replica: Replica) -> Self {
        Self { replica, tier: None }
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
        let optimizer = self.replica.optimizer();
        let any = UpdateStep { number: 1, rate: 0.0, scale: 0.0, decay: 0.0 };
        if optimizer.row_step(any).is_none() {
            let expected = "one with a kernel, such as adagrad; rows of others stay in the host's memory";
            return Err(InvalidValue::new("optimizer", optimizer.name(), expected));
        }
        Ok(RowShape { dim: table.spec().dim, state_per_value: optimizer.state_per_value() })
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

    /// Returns the flat vector, `[dense_len]`.
    pub fn dense(&self) -> &[f32] {
        self.replica.dense()
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

    /// Returns the flat vector, `[dense_len]`, and the rows of the batch that was [loaded](Self::load) last, if
    /// they lie in GPU memory.
    pub fn parameters(&mut self) -> (&[f32], Option<LoadedRows<'_>>) {
        (self.replica.dense(), self.tier.as_mut().map(|tier| LoadedRows { tier }))
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

    /// Takes one step with the mean of the gradients of this worker's batch and of other workers' batches, as
    /// [`Replica::apply`] does.
    ///
    /// # Errors
    /// If the lengths do not fit the model, a row does not exist or is out of order, or the optimizer has no kernel; nothing is then
    /// changed. Or the GPU memory fails.
    pub fn apply(&mut self, dense_sum: &[f32], rows: &SparseGradient, samples: u64) -> Result<(), HotError> {
        let Some(tier) = &mut self.tier else { return Ok(self.replica.apply(dense_sum, rows, samples)?) };
        let Some(step) = self.replica.step(dense_sum, rows, samples)? else { return Ok(()) };
        let optimizer = self.replica.optimizer();
        if let Some(table) = self.replica.only_table_mut() {
            tier.apply(table, rows, step, &*optimizer)?;
        }
        self.replica.apply_dense(dense_sum, step, samples);
        self.replica.count(samples);
        Ok(())
    }

    /// Writes all changed rows from GPU memory to host memory, and returns the model with the newest values, for a checkpoint or a copy
    /// for another worker. Hot rows stay hot.
    ///
    /// # Errors
    /// If the GPU memory fails.
    pub fn settle(&mut self) -> Result<&Replica, HotError> {
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
    /// memory stays for its rows, also one that has failed.
    pub fn replace(&mut self, replica: Replica) {
        self.replica = replica;
        if let (Some(tier), Some(table)) = (&mut self.tier, self.replica.only_table()) {
            tier.forget(table);
        }
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
        self.replica.restore(portion, with_state)
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
