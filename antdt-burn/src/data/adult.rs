//! UCI Adult (census income): 14 attributes and the label, separated by spaces or by commas.

use super::Schema;
use super::field::{Field, Sink};
use crate::features::Bucket;

/// Columns of a row, label included.
pub(super) const COLUMNS: usize = 15;

/// What the columns are.
pub(super) const SHAPE: &str = "14 attributes and the label, separated by spaces or commas, ? = missing";

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
pub(super) fn columns(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text.split(|byte| [b' ', b','].contains(byte)).filter(|token| !token.is_empty())
}

/// Parses the value of a column, counted from 0.
pub(super) fn parse(column: usize, field: &Field<'_>, sink: &mut impl Sink) -> Result<(), &'static str> {
    let missing = Field::Missing;
    let field = match field {
        Field::Text(text) if **text == *b"?" => &missing,
        field => field,
    };
    if column == COLUMNS - 1 {
        let label = match field {
            // The published test file ends its labels with a dot.
            Field::Text(text) => {
                let text = text.strip_suffix(b".").unwrap_or(text);
                Field::of_text(text.into()).label(b">50K", b"<=50K")
            }
            field => field.label(b"1", b"0"),
        };
        sink.label(label.ok_or("a label, >50K or <=50K")?);
    } else if NUMERIC.contains(&column) {
        sink.numeric(field.number().ok_or("an integer")?);
    } else {
        sink.category(field.category());
    }
    Ok(())
}
