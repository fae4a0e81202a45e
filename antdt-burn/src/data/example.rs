//! Samples of models without tables: a fixed number of values each, and the class of each position.

use std::fmt;

use super::RowError;

/// Lengths of a sample. Constant for a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleShape {
    /// Number of input values.
    pub inputs: usize,
    /// Number of positions of which a class is to be told: 1 for a sample with one label.
    pub positions: usize,
    /// Number of classes.
    pub classes: usize,
}

/// Decoded samples, in the order in which they were requested.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExampleBatch {
    /// Input values, `[samples, inputs]`.
    pub inputs: Vec<f32>,
    /// Class of each position, `[samples, positions]`, in `0..classes`.
    pub classes: Vec<i32>,
}

impl ExampleBatch {
    /// Removes the samples, and keeps the memory for others.
    pub fn clear(&mut self) {
        self.inputs.clear();
        self.classes.clear();
    }
}

/// A data set of samples of one length, read by number.
pub trait Examples: fmt::Debug + Send {
    /// Returns the number of rows, which are numbered `0..rows()`.
    fn rows(&self) -> u64;

    /// Returns the lengths of a sample.
    fn shape(&self) -> ExampleShape;

    /// Appends the rows of these numbers to `batch`, in this order.
    ///
    /// # Errors
    /// If a row does not exist or cannot be read. `batch` then has undefined content: clear it.
    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError>;
}
