//! Samples of dense models. A sample has a fixed number of input values, and a class for each position that the model predicts:
//! one for a picture, one for each byte of a text.

use std::fmt;

use super::RowError;

/// Lengths of a sample of a dense model. Constant for a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleShape {
    /// Number of input values of a sample.
    pub inputs: usize,
    /// Number of positions of a sample for which the model predicts a class: 1 for a sample with one label.
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
    /// Removes the samples, and keeps the memory for later ones.
    pub fn clear(&mut self) {
        self.inputs.clear();
        self.classes.clear();
    }
}

/// A data set of samples of one length, read by number.
pub trait Examples: fmt::Debug + Send {
    /// Returns the number of rows, which are numbered `0..rows()`.
    fn rows(&self) -> u64;

    /// Returns the lengths of the samples.
    fn shape(&self) -> ExampleShape;

    /// Returns a checksum of all that was read when the data were opened; `None` if nothing was. Of text, that is every byte.
    fn content_checksum(&self) -> Option<u32> {
        None
    }

    /// Appends the rows of these numbers to `batch`, in this order.
    ///
    /// # Errors
    /// If a row does not exist or cannot be read. The content of `batch` is undefined then, and the caller
    /// must clear it.
    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError>;
}
