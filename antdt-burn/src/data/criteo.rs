//! Criteo's click logs as published: label, 13 integers, 26 categories.

use super::Schema;
use super::field::{Field, Sink};
use crate::features::Bucket;

/// Integer columns.
pub(super) const INTEGERS: usize = 13;
/// Categorical columns.
pub(super) const CATEGORIES: usize = 26;
/// Columns of a row, label included.
pub(super) const COLUMNS: usize = 1 + INTEGERS + CATEGORIES;

/// What the columns are.
pub(super) const SHAPE: &str =
    "label, 13 integers, 26 categories, separated by tabs or commas, empty = missing";

pub(super) const SCHEMA: Schema =
    Schema { numeric: &[Bucket::LogSquared; INTEGERS], categorical: CATEGORIES };

/// Parses the value of a column, counted from 0.
pub(super) fn parse(column: usize, field: &Field<'_>, sink: &mut impl Sink) -> Result<(), &'static str> {
    if column == 0 {
        sink.label(field.label(b"1", b"0").ok_or("a label, 0 or 1")?);
    } else if column <= INTEGERS {
        sink.numeric(field.number().ok_or("an integer")?);
    } else {
        sink.category(field.category());
    }
    Ok(())
}
