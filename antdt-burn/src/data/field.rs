//! One value of a row, whatever kind of file the row was read from: the input of the formats' parsers.

use std::borrow::Cow;

use antdt_data::Value;

use super::{MISSING, NO_CATEGORY, RowBatch, category};

/// One value of a row.
#[derive(Debug, Clone)]
pub enum RowField<'a> {
    /// The row has no value.
    Missing,
    /// The value as written in a text file, or in a column of strings.
    Text(Cow<'a, [u8]>),
    /// The value of a column of integers or booleans.
    Integer(i64),
    /// The value of a column of floating point numbers.
    Real(f64),
}

impl<'a> RowField<'a> {
    /// Returns the value of a row of text; an empty one is missing.
    pub fn of_text(text: Cow<'a, [u8]>) -> Self {
        if text.is_empty() { Self::Missing } else { Self::Text(text) }
    }

    /// A value of a Parquet row; an empty string is missing, and so is what is no number.
    pub(super) fn of_value(value: Value<'a>) -> Self {
        match value {
            Value::Bool(value) => Self::Integer(value.into()),
            Value::I32(value) => Self::Integer(value.into()),
            Value::I64(value) => Self::Integer(value),
            Value::F32(value) => Self::of_real(value.into()),
            Value::F64(value) => Self::of_real(value),
            Value::Bytes(text) => Self::of_text(text.trim_ascii().into()),
            // And forms of values that a later version of the reader may know.
            _ => Self::Missing,
        }
    }

    const fn of_real(value: f64) -> Self {
        if value.is_nan() { Self::Missing } else { Self::Real(value) }
    }

    /// Returns the value of a numeric column, [`MISSING`] if the row has none; `None` if it is no whole number. Numbers beyond
    /// 32 bits are cut to the nearest that fits: buckets that far out are wider than the cut.
    pub fn number(&self) -> Option<i32> {
        let value = match self {
            Self::Missing => return Some(MISSING),
            Self::Text(text) => integer(text)?,
            Self::Integer(value) => *value,
            // Columns of integers of which some are missing are often stored so.
            #[allow(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
            Self::Real(value) => (value.fract() == 0.0).then_some(*value as i64)?,
        };
        let value = value.clamp(i64::from(MISSING) + 1, i64::from(i32::MAX));
        Some(i32::try_from(value).expect("the value was just clamped to this range"))
    }

    /// Returns whether the row has no value: it is empty, is no number in a column of numbers, or is a text that says so in tables:
    /// `NA`, `N/A`, `NaN`, `null`, `None`, `?` or `\N`, in any case.
    pub fn is_missing(&self) -> bool {
        const WORDS: [&[u8]; 7] = [b"na", b"n/a", b"nan", b"null", b"none", b"?", b"\\n"];
        match self {
            Self::Missing => true,
            Self::Text(text) => {
                let text = text.trim_ascii();
                text.is_empty()
                    || (text.len() < 5 && WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)))
            }
            Self::Integer(_) => false,
            Self::Real(value) => value.is_nan(),
        }
    }

    /// Returns the value as a number, however it is written; `None` if it is none.
    pub fn real(&self) -> Option<f64> {
        let value = match self {
            Self::Missing => return None,
            Self::Text(text) => std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()?,
            #[allow(clippy::cast_precision_loss, reason = "as a file of floating point numbers has it")]
            Self::Integer(value) => *value as f64,
            Self::Real(value) => *value,
        };
        (!value.is_nan()).then_some(value)
    }

    /// Returns whether the value is this word, which is in lower case, in any case.
    pub(super) fn is_word(&self, word: &str) -> bool {
        match self {
            Self::Missing => false,
            Self::Text(text) => {
                let text = text.trim_ascii();
                text.eq_ignore_ascii_case(word.as_bytes())
                    || (!text.is_ascii() && String::from_utf8_lossy(text).to_lowercase() == word)
            }
            Self::Integer(value) => value.to_string() == word,
            Self::Real(value) => value.to_string() == word,
        }
    }

    /// Returns the code of a category, [`NO_CATEGORY`] if the row has none. Integers of 32 bits are codes already, signed or
    /// not.
    pub fn category(&self) -> u32 {
        match self {
            Self::Missing => NO_CATEGORY,
            Self::Text(text) => category(text),
            Self::Integer(value) => u32::try_from(*value)
                .or_else(|_| i32::try_from(*value).map(i32::cast_unsigned))
                .map_or_else(|_| category(value.to_string().as_bytes()), |code| code.max(NO_CATEGORY + 1)),
            Self::Real(value) => category(value.to_string().as_bytes()),
        }
    }

    /// Returns the label: 0 or 1 in a column of numbers, `no` or `yes` in text; `None` if it is neither.
    pub fn label(&self, yes: &[u8], no: &[u8]) -> Option<f32> {
        let is_one = match self {
            Self::Text(text) if **text == *yes => true,
            Self::Text(text) if **text == *no => false,
            Self::Integer(value) if *value == 0 || *value == 1 => *value == 1,
            Self::Real(value) if *value == 0.0 || *value == 1.0 => *value == 1.0,
            Self::Missing | Self::Text(_) | Self::Integer(_) | Self::Real(_) => return None,
        };
        Some(f32::from(u8::from(is_one)))
    }

    /// What is wrong with it in this column, counted from 0 here and from 1 in the text.
    pub(super) fn wrong(&self, column: usize, expected: &str) -> String {
        let found: String = match self {
            Self::Missing => "nothing".into(),
            Self::Text(text) => String::from_utf8_lossy(text).chars().take(40).collect(),
            Self::Integer(value) => value.to_string(),
            Self::Real(value) => value.to_string(),
        };
        format!("column {}: '{found}' is not {expected}", column + 1)
    }
}

/// A decimal integer; what is beyond 64 bits is cut.
fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
    }
    Some(if negative { -value } else { value })
}

/// Destination of the values of a row, column by column.
pub trait FieldSink {
    /// Takes the label of the row: of a format with fixed columns 0 or 1.
    fn label(&mut self, label: f32);
    /// Takes the value of the next numeric column; [`MISSING`] if the row has none.
    fn numeric(&mut self, value: i32);
    /// Takes the code of the next categorical column; [`NO_CATEGORY`] if the row has none.
    fn category(&mut self, code: u32);
}

impl FieldSink for RowBatch {
    fn label(&mut self, label: f32) {
        self.labels.push(label);
    }

    fn numeric(&mut self, value: i32) {
        self.numeric.push(value);
    }

    fn category(&mut self, code: u32) {
        self.categories.push(code);
    }
}

/// A sink for rows that are only checked.
#[derive(Debug)]
pub(super) struct Discard;

impl FieldSink for Discard {
    fn label(&mut self, _: f32) {}

    fn numeric(&mut self, _: i32) {}

    fn category(&mut self, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> RowField<'_> {
        RowField::of_text(text.as_bytes().into())
    }

    #[test]
    fn numbers_are_the_same_from_text_integers_and_reals() {
        for (field, expected) in [
            (text("-12"), Some(-12)),
            (text("+7"), Some(7)),
            (text(""), Some(MISSING)),
            (text("-"), None),
            (text("1.5"), None),
            (text("999999999999999999999999"), Some(i32::MAX)),
            (text("-999999999999999999999999"), Some(MISSING + 1)),
            (RowField::of_value(Value::I64(-12)), Some(-12)),
            (RowField::of_value(Value::F64(-12.0)), Some(-12)),
            (RowField::of_value(Value::F64(f64::NAN)), Some(MISSING)),
            (RowField::of_value(Value::F32(0.5)), None),
            (RowField::of_value(Value::Null), Some(MISSING)),
        ] {
            assert_eq!(field.number(), expected, "{field:?}");
        }
    }

    #[test]
    fn a_category_is_the_same_as_hexadecimal_text_and_as_an_integer() {
        for code in [1_u32, 42, 0xdead_beef] {
            let written = format!("{code:08x}");
            assert_eq!(text(&written).category(), code);
            assert_eq!(RowField::of_value(Value::I64(code.into())).category(), code);
            assert_eq!(RowField::of_value(Value::I32(code.cast_signed())).category(), code);
        }
        assert_eq!(text("").category(), NO_CATEGORY);
        assert_ne!(RowField::Integer(0).category(), NO_CATEGORY);
        assert_eq!(RowField::Integer(1 << 40).category(), text("1099511627776").category());
    }
}
