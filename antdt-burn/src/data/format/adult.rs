//! UCI Adult (census income): 14 attributes and the label, separated by spaces or by commas.

use super::{Bucketing, Columns, Dialect, FieldSink, RowField, Schema};

/// Which columns are numeric, from 0: age, sampling weight, years of education, capital gain, capital loss, hours per week.
const NUMERIC: [usize; 6] = [0, 2, 4, 10, 11, 12];

/// The columns of a row in either spelling: `39 State-gov 77516 …` or `39, State-gov, 77516, …`.
fn columns(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text.split(|byte| [b' ', b','].contains(byte)).filter(|token| !token.is_empty())
}

pub(super) struct Adult;

impl Columns for Adult {
    const NAME: &'static str = "adult";
    const SHAPE: &'static str = "14 attributes and the label, separated by spaces or commas, ? = missing";
    const SCHEMA: Schema = Schema {
        numeric: &[
            Bucketing::Exact,
            Bucketing::LogSquared,
            Bucketing::Exact,
            Bucketing::LogSquared,
            Bucketing::LogSquared,
            Bucketing::Exact,
        ],
        categorical: 8,
    };
    const FIRST_COLUMN: &'static str = "age";
    const LABEL: usize = Self::COLUMNS - 1;
    const CHECK: &'static str = "adult 1";
    // The published test file starts with a line `|1x3 Cross validator`.
    const COMMENT: Option<u8> = Some(b'|');

    fn fits(first: &[u8]) -> bool {
        columns(first).count() == Self::COLUMNS
    }

    fn dialect(_first: &[u8]) -> Dialect {
        Dialect::tsv().with_delimiter(b' ')
    }

    fn fields(_dialect: Dialect, row: &[u8]) -> impl Iterator<Item = RowField<'_>> + Clone {
        columns(row).map(|token| RowField::of_text(token.into()))
    }

    fn parse(column: usize, field: &RowField<'_>, sink: &mut impl FieldSink) -> Result<(), &'static str> {
        let missing = RowField::Missing;
        let field = match field {
            RowField::Text(text) if **text == *b"?" => &missing,
            field => field,
        };
        if column == Self::COLUMNS - 1 {
            let label = match field {
                // The published test file ends its labels with a dot.
                RowField::Text(text) => {
                    let text = text.strip_suffix(b".").unwrap_or(text);
                    RowField::of_text(text.into()).label(b">50K", b"<=50K")
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
}
