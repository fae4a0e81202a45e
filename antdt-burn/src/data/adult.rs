//! UCI Adult (census income): 14 attributes and the label, separated by spaces or by commas.

use super::memory::{Place, RowSink};
use super::{Format, MISSING, NO_CATEGORY, OpenError, Schema, category};
use crate::features::Bucket;

/// Columns of a row, label included.
pub(super) const COLUMNS: usize = 15;

/// Age, sampling weight, years of education, capital gain, capital loss, hours per week.
pub(super) const SCHEMA: Schema = Schema {
    numeric: &[
        Bucket::Exact,
        Bucket::LogSquared,
        Bucket::Exact,
        Bucket::LogSquared,
        Bucket::LogSquared,
        Bucket::Exact,
    ],
    categorical: 8,
};

/// Which columns are numeric, from 0.
const NUMERIC: [usize; 6] = [0, 2, 4, 10, 11, 12];

/// The columns of a row in either spelling: `39 State-gov 77516 …` or `39, State-gov, 77516, …`.
pub(super) fn columns(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| [b' ', b','].contains(byte)).filter(|token| !token.is_empty())
}

/// Parses one row. The published test file starts with a line `|1x3 Cross validator`, which is no row.
pub(super) fn parse(text: &[u8], place: Place<'_>, row: &mut RowSink) -> Result<(), OpenError> {
    if text.starts_with(b"|") {
        return Ok(());
    }
    let found = columns(text).count();
    if found != COLUMNS {
        let what = "14 attributes and the label, separated by spaces or commas, ? = missing";
        return Err(place.columns(found, COLUMNS, Format::Adult, what));
    }
    for (column, token) in columns(text).enumerate() {
        let missing = token == b"?";
        if column == COLUMNS - 1 {
            // The published test file ends its labels with a dot.
            row.label(match token.strip_suffix(b".").unwrap_or(token) {
                b">50K" => true,
                b"<=50K" => false,
                _ => return Err(place.value(column, token, "a label, >50K or <=50K")),
            });
        } else if NUMERIC.contains(&column) {
            row.numeric(if missing { MISSING } else { place.integer(column, token)? });
        } else {
            row.category(if missing { NO_CATEGORY } else { category(token) });
        }
    }
    Ok(())
}
