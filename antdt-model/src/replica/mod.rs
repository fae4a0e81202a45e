//! A whole model in one process. Under all-reduce each worker holds one, and sends it to workers that join.

#[cfg(feature = "runtime")]
use std::sync::Arc;

use antdt_core::{InvalidValue, ParamLayout, Seed};
use serde::{Deserialize, Serialize};

use crate::dense::{Change, DenseParams};
use crate::gradient::{SparseGradient, mean_scale, square_sum};
#[cfg(feature = "runtime")]
use crate::optimizer::Optimizer;
use crate::optimizer::{STATE_MAX, UpdateStep};
use crate::portion::Portion;
use crate::rule::{Trained, UpdateRule};
#[cfg(feature = "runtime")]
use crate::table::SparseTable;
use crate::table::TableError;
use crate::tables::Tables;

/// Reason why bytes cannot be imported as a model of this job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The bytes are not an exported model, or one of another version.
    #[error("not an exported model of version {}", Replica::VERSION)]
    Format,
    /// The bytes are cut off or damaged.
    #[error("the exported model of {len} bytes is damaged: {what}")]
    Damaged {
        /// Number of bytes received.
        len: usize,
        /// Description of the damage.
        what: &'static str,
    },
    /// The model was trained with another optimizer, or with other settings of it.
    #[error(
        "the exported model was trained with the optimizer {theirs}, this job has {ours}; choose the same with --optimizer"
    )]
    Optimizer {
        /// Optimizer in the bytes, with its settings.
        theirs: String,
        /// Optimizer of this job, with its settings.
        ours: String,
    },
    /// The model has another shape than the one of this job.
    #[error("the exported model has {field} {theirs}, this job {ours}")]
    Shape {
        /// Name of the field that differs.
        field: &'static str,
        /// Value of the field in the bytes.
        theirs: u64,
        /// Value of the field in this job.
        ours: u64,
    },
}

/// All parameters of a model with their optimizer state, in one process.
#[derive(Debug, Clone)]
pub struct Replica {
    rule: UpdateRule,
    /// Of the learning rate, by an action; not part of what is exported.
    share: f32,
    trained: Trained,
    dense: DenseParams,
    tables: Tables,
}

impl Replica {
    /// Version of the exported form. A process imports only bytes of its own version.
    pub const VERSION: u32 = 4;
    const MAGIC: [u8; 4] = *b"ADTM";
    const CRC_LEN: usize = 4;

    /// Returns a model that no gradient has touched. `dense` is `[dense_len]`; the rows of tables start with
    /// values from `seed`.
    ///
    /// # Errors
    /// If the layout or the rule is invalid, or `dense` has another length than the layout says.
    pub fn new(
        layout: &ParamLayout,
        rule: &UpdateRule,
        seed: Seed,
        dense: Vec<f32>,
    ) -> Result<Self, InvalidValue> {
        rule.validate()?;
        if dense.len() != layout.dense_len() {
            return Err(InvalidValue::new(
                "dense parameters",
                dense.len(),
                format!("{} values", layout.dense_len()),
            ));
        }
        let optimizer = &*rule.optimizer;
        let tables = Tables::new(layout, optimizer, seed)?;
        let dense = DenseParams::new(optimizer, layout, 0..layout.dense_len(), dense);
        Ok(Self { rule: rule.clone(), share: 1.0, trained: Trained::default(), dense, tables })
    }

    /// Returns the flat vector, `[dense_len]`.
    pub fn dense(&self) -> &[f32] {
        self.dense.values()
    }

    /// Appends the values of `rows`, `[rows, dim]`, to `into`. `rows` ascend, each once; a model without
    /// tables has none.
    ///
    /// # Errors
    /// If a row does not exist or is out of order.
    pub fn gather(&self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), TableError> {
        self.tables.gather(rows, into)
    }

    /// Sets the share of the learning rate at which later steps change the model; 1 at first.
    #[doc(alias = "ADJUST_LR")]
    pub const fn set_rate_share(&mut self, share: f32) {
        self.share = share;
    }

    /// Returns the numbers of steps and samples that the model was trained for.
    pub const fn trained(&self) -> Trained {
        self.trained
    }

    /// Takes one step with the mean of the gradients, which are sums over `samples`. A step with fewer
    /// samples than [a full batch](UpdateRule::full_batch) is taken at their share of the rate; one without
    /// samples changes nothing.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn apply(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<(), TableError> {
        self.apply_alone(dense_sum, rows, samples, None)?;
        self.count(samples);
        Ok(())
    }

    /// Returns the sum of the squares of a gradient of this model. The sums of several models that make up a larger one
    /// add up to that of the larger one.
    ///
    /// # Errors
    /// If `dense_sum` does not fit the model.
    pub fn square_sum(&self, dense_sum: &[f32], rows: &SparseGradient) -> Result<f64, TableError> {
        self.check_len(dense_sum)?;
        Ok(self.squares(dense_sum, rows))
    }

    fn squares(&self, dense_sum: &[f32], rows: &SparseGradient) -> f64 {
        let parts = self.dense.trainable(dense_sum).chain([&rows.values[..]]);
        parts.map(square_sum).fold(0.0, |sum, squares| sum + squares)
    }

    /// As [`apply`](Self::apply), but the samples do not count yet: others have not agreed. `norm` is that of the gradient of a
    /// larger model of which this one is a part.
    pub(crate) fn apply_alone(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), TableError> {
        let Some(step) = self.step(dense_sum, rows, samples, norm)? else { return Ok(()) };
        self.tables.apply(&rows.rows, &rows.values, &self.rule.optimizer.begin(step))?;
        self.apply_dense(dense_sum, step, samples);
        Ok(())
    }

    /// The step that is taken with these sums; `None` without samples, which change nothing. `norm` is as in
    /// [`apply_alone`](Self::apply_alone).
    pub(crate) fn step(
        &self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<Option<UpdateStep>, TableError> {
        self.check_len(dense_sum)?;
        if samples == 0 {
            return Ok(None);
        }
        let own = || self.squares(dense_sum, rows).sqrt();
        Ok(Some(self.step_of(|| norm.unwrap_or_else(own), samples)))
    }

    /// The step that is taken with sums of which this is the norm; it is asked for only where gradients are
    /// [clipped](Self::clips).
    pub(crate) fn step_of(&self, norm: impl FnOnce() -> f64, samples: u64) -> UpdateStep {
        let step = self.rule.next_of(self.trained, norm, mean_scale(samples));
        step.at(self.share * self.rule.share_of(samples))
    }

    /// Takes the step on rows.
    #[cfg(feature = "runtime")]
    pub(crate) fn apply_rows(&mut self, rows: &SparseGradient, step: UpdateStep) -> Result<(), TableError> {
        self.tables.apply(&rows.rows, &rows.values, &self.rule.optimizer.begin(step))
    }

    /// A step was taken on the flat vector where it lies.
    #[cfg(feature = "runtime")]
    pub(crate) const fn count_step(&mut self) {
        self.trained.steps += 1;
    }

    /// The flat vector with what the optimizer keeps of it.
    #[cfg(feature = "runtime")]
    pub(crate) const fn dense_params(&mut self) -> &mut DenseParams {
        &mut self.dense
    }

    /// Whether gradients are clipped.
    #[cfg(feature = "runtime")]
    pub(crate) const fn clips(&self) -> bool {
        self.rule.clip_norm.is_some()
    }

    /// Takes the step on the flat vector, after it was taken on rows. The sums were checked.
    pub(crate) fn apply_dense(&mut self, dense_sum: &[f32], step: UpdateStep, samples: u64) {
        let mean = mean_scale(samples);
        let update = &self.rule.optimizer.begin(step);
        let exempt = &self.rule.optimizer.begin(UpdateStep { decay: 0.0, ..step });
        self.dense.apply(dense_sum, &Change { update, exempt, mean, weight: 1.0 });
        self.trained.steps += 1;
    }

    /// The optimizer of all steps.
    #[cfg(feature = "runtime")]
    pub(crate) fn optimizer(&self) -> Arc<dyn Optimizer> {
        Arc::clone(&self.rule.optimizer)
    }

    /// The table of a model that has one, and no more.
    #[cfg(feature = "runtime")]
    pub(crate) fn only_table(&self) -> Option<&SparseTable> {
        self.tables.only()
    }

    /// As [`only_table`](Self::only_table), to be changed.
    #[cfg(feature = "runtime")]
    pub(crate) fn only_table_mut(&mut self) -> Option<&mut SparseTable> {
        self.tables.only_mut()
    }

    /// These samples are behind the parameters from now on.
    pub(crate) const fn count(&mut self, samples: u64) {
        self.trained.samples += samples;
    }

    /// Overwrites the flat vector, and some rows of the tables; the optimizer's state stays.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn set(&mut self, dense: &[f32], rows: &SparseGradient) -> Result<(), TableError> {
        self.check_len(dense)?;
        self.tables.set_rows(&rows.rows, &rows.values)?;
        self.dense.values_mut().copy_from_slice(dense);
        Ok(())
    }

    /// Returns the rows that a gradient has changed, and their values.
    pub(crate) fn changed_rows(&self) -> SparseGradient {
        let mut rows = SparseGradient::default();
        for (row, values, _) in self.tables.stored() {
            rows.rows.push(row);
            rows.values.extend_from_slice(values);
        }
        rows
    }

    /// Writes the initial value of a row. The row was checked.
    pub(crate) fn initial_row(&self, row: u64, into: &mut [f32]) {
        self.tables.initial(row, into);
    }

    /// Returns the shape of the model.
    pub const fn layout(&self) -> &ParamLayout {
        self.tables.layout()
    }

    /// Returns all numbers of the model, for a checkpoint. [`restore`](Self::restore) puts them back.
    pub fn portion(&self) -> Portion {
        Portion::of(0, &self.dense, &self.tables, &*self.rule.optimizer)
    }

    /// Overwrites the parameters that `portion` has and, if `with_state`, their optimizer state. Returns how
    /// many dense values were set: the model is complete when all are.
    ///
    /// # Errors
    /// If the portion does not fit the model, or its optimizer keeps other numbers. Nothing is changed then.
    pub fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        portion.restore_into(0, &mut self.dense, &mut self.tables, &*self.rule.optimizer, with_state)
    }

    /// Sets the numbers of steps and samples that the model was trained for, after its portions were
    /// restored.
    pub const fn set_trained(&mut self, trained: Trained) {
        self.trained = trained;
    }

    fn check_len(&self, dense: &[f32]) -> Result<(), TableError> {
        let (values, rows) = (dense.len(), self.dense.values().len());
        if values == rows { Ok(()) } else { Err(TableError::Length { values, rows, due: rows }) }
    }

    /// Returns the flat vector and the optimizer's state of it, as they are in memory. An array that the optimizer
    /// does not use is empty.
    pub fn arrays(&self) -> [&[u8]; 1 + STATE_MAX] {
        let [first, second] = self.dense.state();
        [self.dense.values(), first, second].map(bytemuck::cast_slice)
    }

    /// Returns the [`arrays`](Self::arrays) for overwriting.
    pub fn arrays_mut(&mut self) -> [&mut [u8]; 1 + STATE_MAX] {
        self.dense.arrays_mut().map(bytemuck::cast_slice_mut)
    }

    /// Returns the model as bytes, with its optimizer state and its numbers of steps and samples. Rows that
    /// no gradient has touched are left out: the importer computes them.
    pub fn export(&self) -> Vec<u8> {
        self.encode(true)
    }

    /// As [`export`](Self::export), without the [`arrays`](Self::arrays), which go from memory to memory.
    pub fn outline(&self) -> Vec<u8> {
        self.encode(false)
    }

    fn encode(&self, whole: bool) -> Vec<u8> {
        let arrays = if whole { self.arrays() } else { Default::default() };
        let [rows, row_values] = shape(self.layout());
        let stored = self.tables.stored_rows();
        let optimizer = self.rule.identity();
        let per_value = 1 + self.rule.optimizer.state_per_value();
        let row_len =
            8 + self.layout().tables().iter().map(|table| table.dim).max().unwrap_or(0) * 4 * per_value;
        let floats_len = arrays.iter().map(|array| array.len()).sum::<usize>() + stored * row_len;
        let head = Head {
            whole,
            dense_len: self.dense.values().len() as u64,
            rows,
            row_values,
            stored: stored as u64,
            trained: self.trained,
            optimizer: &optimizer,
        };
        let head = postcard::to_stdvec(&head).expect("a head has a form as bytes");
        let mut bytes = Vec::with_capacity(Self::MAGIC.len() + 4 + head.len() + floats_len + Self::CRC_LEN);
        bytes.extend_from_slice(&Self::MAGIC);
        bytes.extend_from_slice(&Self::VERSION.to_le_bytes());
        bytes.extend_from_slice(&head);
        // All values in bulk, as they are in memory.
        for array in arrays {
            bytes.extend_from_slice(array);
        }
        for (row, values, state) in self.tables.stored() {
            bytes.extend_from_slice(&row.to_le_bytes());
            bytes.extend_from_slice(bytemuck::cast_slice(values));
            bytes.extend_from_slice(bytemuck::cast_slice(state));
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a model that [`export`](Self::export) wrote. Layout, optimizer and seed are this job's; the
    /// exporter must have had the same. Rate, schedule, clipping and decay may differ.
    ///
    /// # Errors
    /// If the bytes are damaged, of another version, or a model of another shape or optimizer.
    pub fn import(
        bytes: &[u8],
        layout: &ParamLayout,
        rule: &UpdateRule,
        seed: Seed,
    ) -> Result<Self, ImportError> {
        Self::decode(bytes, true, layout, rule, seed)
    }

    /// Reads what [`outline`](Self::outline) wrote, as [`import`](Self::import) does. The
    /// [`arrays`](Self::arrays) are zeros, to be overwritten.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn from_outline(
        bytes: &[u8],
        layout: &ParamLayout,
        rule: &UpdateRule,
        seed: Seed,
    ) -> Result<Self, ImportError> {
        Self::decode(bytes, false, layout, rule, seed)
    }

    fn decode(
        bytes: &[u8],
        whole: bool,
        layout: &ParamLayout,
        rule: &UpdateRule,
        seed: Seed,
    ) -> Result<Self, ImportError> {
        let damaged = |what| ImportError::Damaged { len: bytes.len(), what };
        let (content, checksum) =
            bytes.split_last_chunk::<{ Self::CRC_LEN }>().ok_or_else(|| damaged("it is cut off"))?;
        if !content.starts_with(&Self::MAGIC) || content.get(4..8) != Some(&Self::VERSION.to_le_bytes()[..]) {
            return Err(ImportError::Format);
        }
        if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
            return Err(damaged("its checksum is wrong"));
        }
        let (head, mut rest) = postcard::take_from_bytes::<Head<'_>>(&content[8..])
            .map_err(|_| damaged("its head makes no sense"))?;
        if head.whole != whole {
            return Err(ImportError::Format);
        }
        let [rows, row_values] = shape(layout);
        for (field, theirs, ours) in [
            ("dense parameters", head.dense_len, layout.dense_len() as u64),
            ("table rows", head.rows, rows),
            ("values in table rows", head.row_values, row_values),
        ] {
            if theirs != ours {
                return Err(ImportError::Shape { field, theirs, ours });
            }
        }
        let ours = rule.identity();
        if head.optimizer != ours {
            return Err(ImportError::Optimizer { theirs: head.optimizer.to_owned(), ours });
        }
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at_checked(len).ok_or_else(|| damaged("it is cut off"))?;
            rest = left;
            Ok(taken)
        };
        let per_value = rule.optimizer.state_per_value();
        let values = match whole {
            true => bytemuck::pod_collect_to_vec(take(layout.dense_len() * 4)?),
            false => vec![0.0; layout.dense_len()],
        };
        let mut dense = DenseParams::new(&*rule.optimizer, layout, 0..layout.dense_len(), values);
        for state in dense.state_mut().into_iter().filter(|_| whole) {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(state);
            bytes.copy_from_slice(take(bytes.len())?);
        }
        let mut tables = Tables::new(layout, &*rule.optimizer, seed)
            .map_err(|_| damaged("its tables do not fit in memory"))?;
        let mut before = None;
        for _ in 0..head.stored {
            let row = u64::from_le_bytes(take(8)?.try_into().map_err(|_| damaged("it is cut off"))?);
            if row >= rows || before.is_some_and(|before| before >= row) {
                return Err(damaged("its rows are out of order"));
            }
            before = Some(row);
            let len = layout.row_len(row);
            let floats = bytemuck::pod_collect_to_vec::<u8, f32>(take(len * 4 * (1 + per_value))?);
            tables.overwrite(row, &floats[..len], &floats[len..]);
        }
        if !rest.is_empty() {
            return Err(damaged("its length does not fit its rows"));
        }
        Ok(Self { rule: rule.clone(), share: 1.0, trained: head.trained, dense, tables })
    }
}

/// What an exported model begins with, after magic and version: its shape, which must be the importer's, and how far it is trained.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    /// Whether the flat vector and its state follow.
    whole: bool,
    dense_len: u64,
    /// Rows of all tables.
    rows: u64,
    /// Values in all rows.
    row_values: u64,
    /// Rows that follow.
    stored: u64,
    trained: Trained,
    optimizer: &'a str,
}

/// What a model must have in common with this layout besides the length of its flat vector: rows, and values in all rows.
fn shape(layout: &ParamLayout) -> [u64; 2] {
    let values = layout.tables().iter().map(|table| table.rows.saturating_mul(table.dim as u64));
    [layout.rows(), values.fold(0, u64::saturating_add)]
}

#[cfg(test)]
mod tests;
