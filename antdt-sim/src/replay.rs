//! What was recorded elsewhere, read from text files: how slow workers were, which machines came and went, how fast
//! devices are, how long starts waited.

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

/// A file that does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A line is not as it should be.
    #[error("line {line}: `{text}`: must be {expected}")]
    Line {
        /// From 1.
        line: usize,
        /// What stands there.
        text: String,
        /// What would be accepted.
        expected: String,
    },
    /// The lines read, but do not make sense together.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// The text is no JSON.
    #[error("no JSON: {0}")]
    Json(String),
}

/// The lines that say something, with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn refused(line: usize, text: &str, expected: impl Into<String>) -> ReplayError {
    ReplayError::Line { line, text: beginning(text), expected: expected.into() }
}

/// The columns of a line, if they are so many.
fn columns<const N: usize>(line: usize, text: &str, expected: &str) -> Result<[String; N], ReplayError> {
    let columns: Vec<String> = text.split(',').map(|column| column.trim().to_owned()).collect();
    columns.try_into().map_err(|_| refused(line, text, expected))
}

fn number<T: FromStr>(line: usize, text: &str, expected: &str) -> Result<T, ReplayError> {
    text.parse().map_err(|_| refused(line, text, expected))
}

/// The lines after the header, which must be `header`.
fn after_header<'a>(
    text: &'a str,
    header: &str,
) -> Result<impl Iterator<Item = (usize, &'a str)>, ReplayError> {
    let mut lines = lines(text);
    match lines.next() {
        Some((_, first)) if first == header => Ok(lines),
        Some((line, first)) => Err(refused(line, first, format!("the header `{header}`"))),
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
