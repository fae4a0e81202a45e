//! Criteo's click logs as published: label, 13 integers, 26 categories.

use super::{Bucketing, Columns, Dialect, FieldSink, RowField, Schema};

/// Integer columns.
pub(in crate::data) const INTEGERS: usize = 13;
/// Categorical columns.
pub(in crate::data) const CATEGORIES: usize = 26;

/// The columns as a model sees them.
pub(in crate::data) const SCHEMA: Schema =
    Schema { numeric: &[Bucketing::LogSquared; INTEGERS], categorical: CATEGORIES };

pub(super) struct Criteo;

impl Columns for Criteo {
    const NAME: &'static str = "criteo";
    const SHAPE: &'static str =
        "label, 13 integers, 26 categories, separated by tabs or commas, empty = missing";
    const SCHEMA: Schema = SCHEMA;
    const FIRST_COLUMN: &'static str = "label";
    const CHECK: &'static str = "criteo 1";

    fn dialect(first: &[u8]) -> Dialect {
        if !first.contains(&b'\t') && first.contains(&b',') { Dialect::csv() } else { Dialect::tsv() }
    }

    fn parse(column: usize, field: &RowField<'_>, sink: &mut impl FieldSink) -> Result<(), &'static str> {
        if column == 0 {
            sink.label(field.label(b"1", b"0").ok_or("a label, 0 or 1")?);
        } else if column <= INTEGERS {
            sink.numeric(field.number().ok_or("an integer")?);
        } else {
            sink.category(field.category());
        }
        Ok(())
    }
}
