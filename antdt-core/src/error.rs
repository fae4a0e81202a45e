//! Types that all errors of AntDT share: when to try again, and which value was wrong.

use std::fmt;

/// What the caller of a failed operation should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Nothing was changed; the same request may be sent at once.
    Now,
    /// The service is busy or unreachable; back off, then send the same request.
    Later,
    /// The service does not know the caller any more: register again, present the leases held, then send the
    /// same request.
    Register,
    /// The request itself is wrong or forbidden; sending it again cannot help.
    Never,
}

/// A refused input value, with a description of valid ones.
///
/// ```
/// let e = antdt_core::InvalidValue::new("global_batch_size", 0, "at least 1");
/// assert_eq!(e.to_string(), "global_batch_size = 0: must be at least 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct InvalidValue {
    /// Name of the field or flag, as the user wrote it.
    pub field: String,
    /// The refused value.
    pub value: String,
    /// Description of the values that are accepted, to be read after "must be".
    pub expected: String,
}

impl InvalidValue {
    /// Returns the error for a value that can be printed.
    pub fn new(field: impl Into<String>, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self { field: field.into(), value: value.to_string(), expected: expected.into() }
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: must be {}", self.field, self.value, self.expected)
    }
}

impl std::error::Error for InvalidValue {}
