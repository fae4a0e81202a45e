//! Sizes of models as settings: one whole number, or one for each layer.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The largest size of one thing. A layer between two of these has as many weights as fit the memory of a large
/// machine; beyond, a slip of the hand is likelier than a wish.
const MAX: usize = 1 << 16;

/// The most layers that a model has.
const LAYERS_MAX: usize = 256;

/// Sizes of layers, one after another. Text form: `64,32`; the empty text is no layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        text.split(',').map(|size| size.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&sizes.join(","))
    }
}

impl Sizes {
    /// What the sizes of layers must be.
    pub(crate) const EXPECTED: &str =
        "whole numbers between 1 and 65536 with commas between them, such as 64,32";

    /// Returns whether a model can have these layers.
    pub(crate) fn fit(&self) -> bool {
        self.0.len() <= LAYERS_MAX && self.0.iter().all(|size| fits(*size))
    }
}

/// What one size must be.
pub(crate) const EXPECTED: &str = "a whole number between 1 and 65536";

/// Returns whether a model can have this size.
pub(crate) fn fits(size: usize) -> bool {
    (1..=MAX).contains(&size)
}
