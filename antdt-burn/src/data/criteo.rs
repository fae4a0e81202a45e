//! Criteo's click logs as published: label, 13 integers, 26 categories, separated by tabs.

use super::memory::{Place, RowSink};
use super::{Format, MISSING, NO_CATEGORY, OpenError, Schema, category};
use crate::features::Bucket;

/// Integer columns.
pub(super) const INTEGERS: usize = 13;
/// Categorical columns.
pub(super) const CATEGORIES: usize = 26;
const COLUMNS: usize = 1 + INTEGERS + CATEGORIES;

pub(super) const SCHEMA: Schema =
    Schema { numeric: &[Bucket::LogSquared; INTEGERS], categorical: CATEGORIES };

/// Parses one row.
pub(super) fn parse(text: &[u8], place: Place<'_>, row: &mut RowSink) -> Result<(), OpenError> {
    let found = text.iter().filter(|byte| **byte == b'\t').count() + 1;
    if found != COLUMNS {
        let what = "label, 13 integers, 26 categories, separated by tabs, empty = missing";
        return Err(place.columns(found, COLUMNS, Format::Criteo, what));
    }
    for (column, token) in text.split(|byte| *byte == b'\t').enumerate() {
        if column == 0 {
            row.label(match token {
                b"0" => false,
                b"1" => true,
                _ => return Err(place.value(column, token, "a label, 0 or 1")),
            });
        } else if column <= INTEGERS {
            row.numeric(if token.is_empty() { MISSING } else { place.integer(column, token)? });
        } else {
            row.category(if token.is_empty() { NO_CATEGORY } else { category(token) });
        }
    }
    Ok(())
}
