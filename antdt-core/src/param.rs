//! What a model's parameters look like from outside: one flat vector, and perhaps one table of rows.

use crate::error::InvalidValue;

/// Shape of a model's parameters.
///
/// `dense_len` f32 values in one flat vector, plus an optional table of embedding rows of which a batch touches few.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamLayout {
    /// Length of the flat vector of dense parameters, in elements.
    pub dense_len: usize,
    /// The sparse table, if the model has one.
    pub table: Option<TableSpec>,
}

/// Shape and initial values of a sparse table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableSpec {
    /// Rows; row ids are `0..rows`.
    pub rows: u64,
    /// Values per row, in elements.
    pub dim: usize,
    /// A row starts uniform in `[-init_scale, init_scale)`, as a pure function of (seed, row id):
    /// whoever holds the row computes the same value.
    pub init_scale: f32,
}

impl TableSpec {
    /// Checks that the table can exist.
    ///
    /// # Errors
    /// If it has no rows, no columns, or an initial scale that is negative or not finite.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.rows == 0 {
            return Err(InvalidValue::new("table.rows", 0, "at least 1"));
        }
        if self.dim == 0 {
            return Err(InvalidValue::new("table.dim", 0, "at least 1"));
        }
        if !self.init_scale.is_finite() || self.init_scale < 0.0 {
            return Err(InvalidValue::new("table.init_scale", self.init_scale, "finite and not negative"));
        }
        Ok(())
    }
}

/// How a mean gradient changes the parameters. The same code runs on a server and in a worker's replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerSpec {
    /// `w -= lr * g`.
    Sgd {
        /// Step size.
        learning_rate: f32,
    },
    /// `a += g²; w -= lr * g / (√a + epsilon)`, with `a` from 0.
    Adagrad {
        /// Step size.
        learning_rate: f32,
        /// Keeps the division finite.
        epsilon: f32,
    },
}

impl OptimizerSpec {
    /// The step size.
    pub const fn learning_rate(&self) -> f32 {
        match self {
            Self::Sgd { learning_rate } | Self::Adagrad { learning_rate, .. } => *learning_rate,
        }
    }

    /// Checks that the numbers make sense.
    ///
    /// # Errors
    /// If the step size is not finite and positive, or epsilon is negative or not finite.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let learning_rate = self.learning_rate();
        if !learning_rate.is_finite() || learning_rate <= 0.0 {
            return Err(InvalidValue::new("learning_rate", learning_rate, "finite and above 0"));
        }
        if let Self::Adagrad { epsilon, .. } = self
            && (!epsilon.is_finite() || *epsilon < 0.0)
        {
            return Err(InvalidValue::new("epsilon", epsilon, "finite and not negative"));
        }
        Ok(())
    }
}
