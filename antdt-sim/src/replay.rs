//! Parsers for conditions that were recorded elsewhere: slowdowns of workers, spot machines, speeds of
//! devices, waiting times of starts.

mod devices;
mod market;
mod pending;
mod slowdowns;

pub mod example;

pub use devices::{read_devices, read_gavel};
pub use market::read_market;
pub use pending::read_pending;
pub use slowdowns::read_slowdowns;

use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_core::text::beginning;
use csv::{ReaderBuilder, StringRecord, Trim};

/// Reason why a file of recorded conditions cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A line of the file cannot be parsed.
    #[error("line {line}: `{text}`: must be {expected}")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// Text of the line.
        text: String,
        /// Description of a valid value.
        expected: String,
    },
    /// The lines can be parsed, but contradict each other.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// The text is not JSON.
    #[error("no JSON: {0}")]
    Json(String),
}

/// A row of a file whose columns are separated by commas.
#[derive(Debug)]
struct Row<'a> {
    /// Line number, counted from 1.
    line: usize,
    /// The line.
    text: &'a str,
    columns: StringRecord,
}

impl Row<'_> {
    /// Returns the columns, if they are so many.
    fn columns<const N: usize>(&self, expected: &str) -> Result<[&str; N], ReplayError> {
        let columns: Vec<&str> = self.columns.iter().collect();
        columns.try_into().map_err(|_| self.refused(expected))
    }

    fn refused(&self, expected: impl Into<String>) -> ReplayError {
        refused(self.line, self.text, expected)
    }
}

/// The rows that say something: neither empty nor a comment after `#`.
fn rows(text: &str) -> impl Iterator<Item = Result<Row<'_>, ReplayError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines =
        (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let records = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .trim(Trim::All)
        .from_reader(text.as_bytes())
        .into_records();
    let says_something = |record: &Result<StringRecord, csv::Error>| match record {
        Ok(columns) => {
            columns.len() > 1 || columns.get(0).is_some_and(|c| !c.is_empty() && !c.starts_with('#'))
        }
        Err(_) => true,
    };
    records.filter(says_something).map(move |record| {
        let columns = record.map_err(|error| refused(1, "", format!("separated by commas: {error}")))?;
        // A record's position is before the lines that were skipped on the way to it.
        let from = columns.position().map_or(0, csv::Position::line);
        let (line, text) = lines.find(|(line, _)| *line as u64 >= from).unwrap_or_default();
        Ok(Row { line, text, columns })
    })
}

fn refused(line: usize, text: &str, expected: impl Into<String>) -> ReplayError {
    ReplayError::Line { line, text: beginning(text), expected: expected.into() }
}

fn number<T: FromStr>(line: usize, text: &str, expected: &str) -> Result<T, ReplayError> {
    text.parse().map_err(|_| refused(line, text, expected))
}

/// The rows after the header, which must be `header`.
fn after_header<'a>(
    text: &'a str,
    header: &str,
) -> Result<impl Iterator<Item = Result<Row<'a>, ReplayError>>, ReplayError> {
    let mut rows = rows(text);
    match rows.next().transpose()? {
        Some(first) if first.columns.iter().eq(header.split(',')) => Ok(rows),
        Some(first) => Err(first.refused(format!("the header `{header}`"))),
        None => Err(refused(1, "", format!("the header `{header}`"))),
    }
}

/// A moment, from a number of units of so many nanoseconds.
fn moment(line: usize, text: &str, unit_ns: f64) -> Result<antdt_core::JobTime, ReplayError> {
    let expected = "a time of at least 0";
    let value: f64 = number(line, text, expected)?;
    if !(value.is_finite() && value >= 0.0) {
        return Err(refused(line, text, expected));
    }
    Ok(antdt_core::JobTime((value * unit_ns).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_spreadsheets_write_them_and_keep_their_lines() {
        let text = "\u{feff}# so\na, b\r\n\n  # and\n \n\"x, y\",2\r\n3\n";
        let rows: Vec<_> = rows(text).map(Result::unwrap).collect();
        let lines: Vec<_> = rows.iter().map(|row| (row.line, row.text)).collect();
        assert_eq!(lines, [(2, "a, b"), (6, "\"x, y\",2"), (7, "3")]);
        assert_eq!(rows[1].columns::<2>("two").unwrap(), ["x, y", "2"]);
        assert_eq!(rows[2].columns::<2>("two").unwrap_err().to_string(), "line 7: `3`: must be two");
    }
}
