//! Dialects of text files: how rows and fields are separated.

use std::borrow::Cow;
use std::iter;

use memchr::memchr;
use serde::{Deserialize, Serialize};

use crate::error::OpenError;

/// Dialect of a text file: how its rows and fields are separated.
///
/// A row ends with a line feed, before which a carriage return is dropped; the last row needs none. Empty
/// lines, lines of spaces, and lines that begin with the comment byte are not rows. In a dialect with quotes,
/// a field that begins with the quote byte ends at the next one and may contain delimiters and line ends; inside
/// it, two quote bytes in a row stand for one and do not end it. A quote byte anywhere else in a field is an
/// ordinary byte. There is no escape character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dialect {
    pub(super) delimiter: u8,
    pub(super) quote: Option<u8>,
    pub(super) header: bool,
    pub(super) comment: Option<u8>,
}

impl Dialect {
    /// Returns the dialect of CSV: fields separated by commas, quoted with `"`; no header.
    pub const fn csv() -> Self {
        Self { delimiter: b',', quote: Some(b'"'), header: false, comment: None }
    }

    /// Returns the dialect of TSV: fields separated by tabs, without quotes; no header.
    pub const fn tsv() -> Self {
        Self { delimiter: b'\t', quote: None, header: false, comment: None }
    }

    /// Returns the dialect with a header: the first row of every file names the columns and is no sample.
    #[must_use]
    pub const fn with_header(mut self) -> Self {
        self.header = true;
        self
    }

    /// Returns the dialect with another delimiter between fields.
    #[must_use]
    pub const fn with_delimiter(mut self, delimiter: u8) -> Self {
        self.delimiter = delimiter;
        self
    }

    /// Returns the dialect with another quote byte, or without quotes. Without quotes, rows are found faster.
    #[must_use]
    pub const fn with_quote(mut self, quote: Option<u8>) -> Self {
        self.quote = quote;
        self
    }

    /// Returns the dialect with comments: lines that begin with this byte are not rows. `None` removes
    /// comments from the dialect.
    #[must_use]
    pub const fn with_comment(mut self, comment: Option<u8>) -> Self {
        self.comment = comment;
        self
    }

    /// Returns the byte between two fields.
    pub const fn delimiter(self) -> u8 {
        self.delimiter
    }

    /// Returns whether the first row of every file names the columns.
    pub const fn has_header(self) -> bool {
        self.header
    }

    /// Whether a line, which is not empty, is a row.
    pub(super) fn is_row(&self, line: &[u8]) -> bool {
        let first = line.first();
        let comment = self.comment.is_some() && first == self.comment.as_ref();
        // Nearly every line shows in its first byte that it is not blank.
        !comment && (first != Some(&b' ') || line.iter().any(|byte| *byte != b' '))
    }

    pub(super) fn check(self) -> Result<(), OpenError> {
        let line_end = |byte| byte == b'\n' || byte == b'\r';
        let what = if self.quote == Some(self.delimiter) {
            "separates and quotes fields with the same byte"
        } else if line_end(self.delimiter) {
            "separates fields with a line end"
        } else if self.quote.is_some_and(line_end) {
            "quotes fields with a line end"
        } else if self.comment.is_some_and(line_end) {
            "begins comments with a line end"
        } else {
            return Ok(());
        };
        Err(OpenError::Dialect { what })
    }

    /// Returns the fields of a row, without their quotes. An empty row has one empty field.
    pub const fn fields<'a>(&self, row: &'a [u8]) -> Fields<'a> {
        Fields { dialect: *self, rest: Some(row) }
    }

    /// The fields of a row as they are written there, quotes included.
    pub(super) fn raw_fields(self, row: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut fields = self.fields(row);
        iter::from_fn(move || {
            let from = fields.rest?;
            fields.next();
            // What is left begins after a delimiter.
            let left = fields.rest.map_or(0, |rest| rest.len() + 1);
            Some(&from[..from.len() - left])
        })
    }
}

/// The fields of a row; see [`Dialect::fields`].
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    dialect: Dialect,
    /// From the beginning of the next field on; `None` after the last.
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Cow<'a, [u8]>> {
        let rest = self.rest.take()?;
        match self.dialect.quote {
            Some(quote) if rest.first() == Some(&quote) => Some(self.quoted(quote, &rest[1..])),
            _ => Some(Cow::Borrowed(self.plain(rest))),
        }
    }
}

impl<'a> Fields<'a> {
    /// What is before the next delimiter; the rest is kept.
    fn plain(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let end = memchr(self.dialect.delimiter, rest);
        self.rest = end.map(|end| &rest[end + 1..]);
        &rest[..end.unwrap_or(rest.len())]
    }

    /// `rest` begins after the opening quote.
    fn quoted(&mut self, quote: u8, mut rest: &'a [u8]) -> Cow<'a, [u8]> {
        let mut field = Cow::Borrowed(&rest[..0]);
        loop {
            // A row that a scanner found closes its quotes; any other text is taken as it is.
            let end = memchr(quote, rest).unwrap_or(rest.len());
            extend(&mut field, &rest[..end]);
            rest = rest.get(end + 1..).unwrap_or(&[]);
            if rest.first() != Some(&quote) {
                break;
            }
            extend(&mut field, &rest[..1]);
            rest = &rest[1..];
        }
        let tail = self.plain(rest);
        extend(&mut field, tail);
        field
    }
}

/// Copies only when there are two pieces.
fn extend<'a>(field: &mut Cow<'a, [u8]>, piece: &'a [u8]) {
    if field.is_empty() {
        *field = Cow::Borrowed(piece);
    } else if !piece.is_empty() {
        field.to_mut().extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(dialect: Dialect, row: &str) -> Vec<String> {
        dialect.fields(row.as_bytes()).map(|field| String::from_utf8_lossy(&field).into_owned()).collect()
    }

    #[test]
    fn fields_lose_their_quotes_and_nothing_else() {
        let cases: [(&str, &[&str]); 10] = [
            ("a,b,c", &["a", "b", "c"]),
            ("", &[""]),
            (",", &["", ""]),
            ("a,,", &["a", "", ""]),
            (r#""a,b",c"#, &["a,b", "c"]),
            (r#""say ""hi""",x"#, &[r#"say "hi""#, "x"]),
            (r#""""""#, &[r#"""#]),
            (r#"5" pipe,"""#, &[r#"5" pipe"#, ""]),
            (r#""ab"c,d"#, &["abc", "d"]),
            ("\"two\nlines\",z", &["two\nlines", "z"]),
        ];
        for (row, expected) in cases {
            assert_eq!(fields(Dialect::csv(), row), expected, "{row}");
        }
        assert_eq!(fields(Dialect::tsv(), "\"a\tb\"\t"), ["\"a", "b\"", ""]);
    }

    #[test]
    fn a_dialect_that_contradicts_itself_is_refused() {
        assert!(Dialect::csv().with_delimiter(b'"').check().is_err());
        assert!(Dialect::csv().with_delimiter(b'\n').check().is_err());
        assert!(Dialect::tsv().with_quote(Some(b'\r')).check().is_err());
        assert!(Dialect::tsv().with_comment(Some(b'\n')).check().is_err());
        assert!(Dialect::csv().with_delimiter(b';').with_quote(Some(b'\'')).check().is_ok());
    }
}
