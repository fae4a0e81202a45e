//! Between wire and core: `From` out, `TryFrom` in. What comes in is checked here and nowhere else.

pub mod common;
pub mod control;
pub mod group;
pub mod metric;
pub mod shard;

pub use shard::ack_outcome;

/// A message with a missing or invalid field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A required field is absent.
    #[error("field `{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A number outside its range, or an unknown enum value.
    #[error("field `{field}` has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: i64,
    },
    /// Metrics that cannot be recorded together.
    #[error(transparent)]
    Metric(#[from] antdt_core::MetricError),
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// The value of a field that must be there.
///
/// # Errors
/// If it is absent.
pub fn required<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

/// A duration as wire nanoseconds; saturates after 584 years.
pub fn to_ns(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
