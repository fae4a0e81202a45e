//! Conversion between wire messages and core types: `From` to the wire, `TryFrom` from it. Incoming messages
//! are checked here and nowhere else.

pub mod common;
pub mod control;
pub mod group;
pub mod metric;
pub mod shard;

pub use shard::ack_outcome;

/// Reason why a message was refused: a field is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A required field is missing.
    #[error("field `{field}` is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has a number outside of its range, or an unknown enum value.
    #[error("field `{field}` has the unknown value {value}")]
    Unknown {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: i64,
    },
    /// A field holds bytes that cannot be decoded.
    #[error("field `{field}` cannot be read: {why}")]
    Damaged {
        /// Name of the field.
        field: &'static str,
        /// Error of the decoder.
        why: String,
    },
    /// The metrics of a message cannot be recorded together.
    #[error(transparent)]
    Metric(#[from] antdt_core::MetricError),
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// Returns the value of a required field.
///
/// # Errors
/// If the field is missing.
pub fn required<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

/// Returns a duration in nanoseconds for the wire; saturates after 584 years.
pub fn to_ns(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
