//! [`Portion`]: a model, or one server's part of it, as plain numbers.
//!
//! A portion says where its numbers belong: where its dense values begin in the flat vector, and which rows of which table it
//! has. So the portions of any number of servers can be restored into any other number of servers, or into a replica.
//!
//! Source: our design.

use antdt_core::{InvalidValue, ParamLayout, TableSpec};

use crate::dense::DenseParams;
use crate::optimizer::Optimizer;
use crate::tables::Tables;

/// A part of a model as plain numbers, for checkpoints: parameters with their optimizer state, and where they
/// belong.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Portion {
    /// Index of the first value of `dense` in the layout's flat vector.
    pub dense_from: usize,
    /// A contiguous piece of the flat vector.
    pub dense: Vec<f32>,
    /// Optimizer state of `dense`: one array of the same length for each number that the optimizer keeps per
    /// value.
    pub dense_state: Vec<Vec<f32>>,
    /// The rows of each table of the layout, in order.
    pub tables: Vec<TablePortion>,
}

/// Rows of one table that a gradient has touched. All other rows have the values that follow from the job's
/// seed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TablePortion {
    /// Indices of the rows in their table, ascending.
    pub rows: Vec<u64>,
    /// Values of the rows, `[rows, dim]`.
    pub values: Vec<f32>,
    /// Optimizer state of the rows: one array `[rows, dim]` for each number that the optimizer keeps per
    /// value.
    pub state: Vec<Vec<f32>>,
}

impl Portion {
    /// Returns the size of all numbers of the portion in bytes.
    pub fn bytes(&self) -> usize {
        let dense = size_of_val(&self.dense[..]) * (1 + self.dense_state.len());
        let table = |table: &TablePortion| {
            size_of_val(&table.rows[..]) + size_of_val(&table.values[..]) * (1 + table.state.len())
        };
        dense + self.tables.iter().map(table).sum::<usize>()
    }

    /// Checks that the numbers fit a model of this layout.
    ///
    /// # Errors
    /// If the dense values lie outside the flat vector, a row does not exist or is out of order, or an array has
    /// another length than what it goes with.
    pub fn validate(&self, layout: &ParamLayout) -> Result<(), InvalidValue> {
        let ends = self.dense_from.checked_add(self.dense.len());
        if ends.is_none_or(|end| end > layout.dense_len()) {
            return Err(InvalidValue::new(
                "dense values",
                format!("{} from {}", self.dense.len(), self.dense_from),
                format!("within a flat vector of {}", layout.dense_len()),
            ));
        }
        check_len("optimizer state of dense values", &self.dense_state, self.dense.len())?;
        if self.tables.len() != layout.tables().len() {
            let expected = layout.tables().len().to_string();
            return Err(InvalidValue::new("tables", self.tables.len(), expected));
        }
        for (table, spec) in self.tables.iter().zip(layout.tables()) {
            let field = |what: &str| format!("{what} of table `{}`", spec.name);
            let ascend = table.rows.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascend || table.rows.last().is_some_and(|last| *last >= spec.rows) {
                let expected = format!("ascending and below {}", spec.rows);
                return Err(InvalidValue::new(field("rows"), format!("{} rows", table.rows.len()), expected));
            }
            let due = table.rows.len() * spec.dim;
            check_len(&field("values"), std::slice::from_ref(&table.values), due)?;
            check_len(&field("optimizer state"), &table.state, due)?;
        }
        Ok(())
    }

    /// The numbers of a model or of a server's part of it.
    pub(crate) fn of(
        dense_from: usize,
        dense: &DenseParams,
        tables: &Tables,
        optimizer: &dyn Optimizer,
    ) -> Self {
        let kept = optimizer.state_per_value();
        let specs = tables.layout().tables();
        // As long as they will be: while they grew, the copy would take up to three times the memory of the rows.
        let of_table = |(spec, rows): (&TableSpec, usize)| TablePortion {
            rows: Vec::with_capacity(rows),
            values: Vec::with_capacity(rows * spec.dim),
            state: (0..kept).map(|_| Vec::with_capacity(rows * spec.dim)).collect(),
        };
        let mut portions: Vec<_> = specs.iter().zip(tables.stored_by_table()).map(of_table).collect();
        for (row, values, state) in tables.stored() {
            let number = tables.layout().table_of(row).expect("a stored row exists");
            let portion = &mut portions[number];
            portion.rows.push(row - tables.layout().first_row(number));
            portion.values.extend_from_slice(values);
            for (into, numbers) in portion.state.iter_mut().zip(state.chunks_exact(values.len())) {
                into.extend_from_slice(numbers);
            }
        }
        let dense_state = dense.state().into_iter().take(kept).map(<[f32]>::to_vec).collect();
        Self { dense_from, dense: dense.values().to_vec(), dense_state, tables: portions }
    }

    /// Sets what a part of a model, whose dense values begin at `dense_from`, has in common with this portion. Says how many
    /// dense values that were. The optimizer's state is set only `with_state`.
    ///
    /// # Errors
    /// If the portion does not fit the layout, or keeps another number of numbers than the optimizer. Nothing is changed then.
    pub(crate) fn restore_into(
        &self,
        dense_from: usize,
        dense: &mut DenseParams,
        tables: &mut Tables,
        optimizer: &dyn Optimizer,
        with_state: bool,
    ) -> Result<usize, InvalidValue> {
        self.validate(tables.layout())?;
        let kept = optimizer.state_per_value();
        let kept_here =
            std::iter::once(self.dense_state.len()).chain(self.tables.iter().map(|table| table.state.len()));
        if let Some(len) = kept_here.into_iter().find(|len| with_state && *len != kept) {
            return Err(InvalidValue::new(
                "numbers that the optimizer keeps of a value",
                len,
                kept.to_string(),
            ));
        }
        let start = self.dense_from.max(dense_from);
        let end = (self.dense_from + self.dense.len()).min(dense_from + dense.values().len());
        let common = end.saturating_sub(start);
        if common > 0 {
            let (theirs, ours) = (start - self.dense_from, start - dense_from);
            dense.values_mut()[ours..][..common].copy_from_slice(&self.dense[theirs..][..common]);
            if with_state {
                for (into, state) in dense.state_mut().into_iter().zip(&self.dense_state) {
                    into[ours..][..common].copy_from_slice(&state[theirs..][..common]);
                }
            }
        }
        let mut state = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            let (first, dim) = (tables.layout().first_row(number), tables.layout().tables()[number].dim);
            for (index, row) in table.rows.iter().enumerate() {
                if !tables.holds(first + row) {
                    continue;
                }
                let at = index * dim..(index + 1) * dim;
                state.clear();
                if with_state {
                    table.state.iter().for_each(|numbers| state.extend_from_slice(&numbers[at.clone()]));
                }
                state.resize(dim * kept, 0.0);
                tables.overwrite(first + row, &table.values[at], &state);
            }
        }
        Ok(common)
    }
}

fn check_len(field: &str, arrays: &[Vec<f32>], due: usize) -> Result<(), InvalidValue> {
    match arrays.iter().find(|array| array.len() != due) {
        Some(array) => {
            Err(InvalidValue::new(field, format!("{} values", array.len()), format!("{due} values")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
