//! What the values of a Parquet column stand for.

use ::parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use ::parquet::schema::types::ColumnDescriptor;

/// A column of a Parquet file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParquetField {
    /// Name of the column; the fields of a struct are named with a dot.
    pub name: String,
    /// What its values stand for.
    pub meaning: Meaning,
}

/// What the values of a Parquet column stand for; [`Values`](super::Values) are as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// Truth values.
    Truth,
    /// Whole numbers with a sign.
    Whole,
    /// Whole numbers without a sign, stored in the bits of one with a sign.
    Unsigned,
    /// Floating point numbers.
    Real,
    /// Text, or bytes that say nothing about themselves.
    Text,
    /// Whole numbers, or the bytes of one with the highest first, that are multiples of 10 to the power of `-scale`.
    Decimal {
        /// Digits after the decimal point.
        scale: i32,
    },
    /// Days since 1970-01-01.
    Date,
    /// Ticks since 1970-01-01.
    Timestamp {
        /// Ticks of a second.
        per_second: i64,
    },
    /// What no number and no category is, in words: such as `a list`.
    Other(&'static str),
}

impl ParquetField {
    /// Returns whether the values are ones that [`Value`](super::Value) has.
    pub const fn is_readable(&self) -> bool {
        !matches!(self.meaning, Meaning::Other(_))
    }

    pub(super) fn of(column: &ColumnDescriptor) -> Self {
        Self { name: column.path().string(), meaning: Meaning::of(column) }
    }
}

impl Meaning {
    fn of(column: &ColumnDescriptor) -> Self {
        if column.max_rep_level() > 0 {
            return Self::Other("a list");
        }
        let said = match column.logical_type_ref() {
            Some(said) => Self::of_logical(said, column.type_scale()),
            None => Self::of_converted(column.converted_type(), column.type_scale()),
        };
        said.unwrap_or(match column.physical_type() {
            Type::BOOLEAN => Self::Truth,
            Type::INT32 | Type::INT64 => Self::Whole,
            Type::FLOAT | Type::DOUBLE => Self::Real,
            Type::INT96 => Self::Other("a time in the retired form INT96"),
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => Self::Text,
        })
    }

    fn of_logical(said: &LogicalType, scale: i32) -> Option<Self> {
        Some(match said {
            LogicalType::Decimal(_) => Self::Decimal { scale },
            LogicalType::Date => Self::Date,
            LogicalType::Time(_) => Self::Other("a time of day"),
            LogicalType::Timestamp(time) => Self::Timestamp {
                per_second: match time.unit {
                    TimeUnit::MILLIS => 1_000,
                    TimeUnit::MICROS => 1_000_000,
                    TimeUnit::NANOS => 1_000_000_000,
                },
            },
            LogicalType::Integer(kind) if !kind.is_signed => Self::Unsigned,
            LogicalType::String | LogicalType::Enum | LogicalType::Integer(_) => return None,
            LogicalType::Unknown => Self::Other("a column without values"),
            LogicalType::Float16 => Self::Other("a number of 16 bits"),
            LogicalType::Json | LogicalType::Bson | LogicalType::Variant(_) => Self::Other("a document"),
            // The bytes of one value are a category like others.
            LogicalType::Uuid => Self::Text,
            _ => Self::Other("of a kind that is not known here"),
        })
    }

    const fn of_converted(said: ConvertedType, scale: i32) -> Option<Self> {
        Some(match said {
            ConvertedType::DECIMAL => Self::Decimal { scale },
            ConvertedType::DATE => Self::Date,
            ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS => Self::Other("a time of day"),
            ConvertedType::TIMESTAMP_MILLIS => Self::Timestamp { per_second: 1_000 },
            ConvertedType::TIMESTAMP_MICROS => Self::Timestamp { per_second: 1_000_000 },
            ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64 => Self::Unsigned,
            ConvertedType::JSON | ConvertedType::BSON => Self::Other("a document"),
            ConvertedType::INTERVAL => Self::Other("a length of time"),
            _ => return None,
        })
    }
}
