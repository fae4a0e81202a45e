//! Comparison of two traces: the first place at which they differ.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, BufRead};

use antdt_core::trace::TraceHeader;
use serde_json::Value;

use crate::read;

/// Lines that are shown before and after the first difference.
const CONTEXT: usize = 3;

/// Characters of a line that are shown.
const SHOWN: usize = 160;

/// The differences between two recordings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Fields in which the headers differ: recorder, settings, settings of the state machines.
    pub header: Vec<Field>,
    /// First entry in which the recordings differ; `None` if all entries are the same.
    pub parting: Option<Parting>,
}

/// A field in which the headers of two recordings differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name of the field, from the outermost table to the innermost: `settings.seed`.
    pub name: String,
    /// Value in the first recording, as JSON; `None` if it has no such field.
    pub left: Option<String>,
    /// Value in the second recording, as JSON; `None` if it has no such field.
    pub right: Option<String>,
}

/// The first line in which two recordings differ, with the lines around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    /// Number of the line, from 1; the header counts as a line.
    pub line: u64,
    /// Number of bytes at the start of the line that are equal in both recordings.
    pub column: usize,
    /// Up to three lines before this line, which are equal in both recordings.
    pub before: Vec<String>,
    /// This line and up to three lines after it, in the first recording; empty if the recording ends here.
    pub left: Vec<String>,
    /// This line and up to three lines after it, in the second recording; empty if the recording ends here.
    pub right: Vec<String>,
}

/// Reason why two recordings cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The first recording cannot be read.
    #[error("the first trace: {0}")]
    Left(io::Error),
    /// The second recording cannot be read.
    #[error("the second trace: {0}")]
    Right(io::Error),
}

/// Compares two traces byte for byte, times and order included. Returns `None` if they are equal. Entries are
/// compared even if the headers differ, so that a real job can be compared with a simulated one. A compressed
/// trace that was cut off counts as ending there. Reads only as far as necessary, and keeps a few lines in
/// memory.
///
/// # Errors
/// If one of the traces cannot be read.
pub fn diff(mut a: impl BufRead, mut b: impl BufRead) -> Result<Option<Difference>, DiffError> {
    let mut before = VecDeque::with_capacity(CONTEXT + 1);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut header = Vec::new();
    for line in 1.. {
        left.clear();
        right.clear();
        line_or_end(&mut a, &mut left).map_err(DiffError::Left)?;
        line_or_end(&mut b, &mut right).map_err(DiffError::Right)?;
        if line == 1
            && let (Some(a), Some(b)) = (fields(&left), fields(&right))
        {
            header = differences(&a, &b);
        } else if left != right {
            let column = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            let parting = Parting {
                line,
                column,
                before: before.into(),
                left: rest(&left, &mut a).map_err(DiffError::Left)?,
                right: rest(&right, &mut b).map_err(DiffError::Right)?,
            };
            return Ok(Some(Difference { header, parting: Some(parting) }));
        }
        if left.is_empty() {
            break;
        }
        if left == right {
            before.push_back(text(&left));
        }
        if before.len() > CONTEXT {
            before.pop_front();
        }
    }
    Ok((!header.is_empty()).then_some(Difference { header, parting: None }))
}

/// What a header says, by name; `None` if the line is none.
fn fields(line: &[u8]) -> Option<BTreeMap<String, String>> {
    let line = std::str::from_utf8(line).ok()?;
    TraceHeader::parse(line).ok()?;
    let mut fields = BTreeMap::new();
    flatten(String::new(), &serde_json::from_str(line).ok()?, &mut fields);
    Some(fields)
}

fn flatten(name: String, value: &Value, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(format!("{name}{dot}{key}"), value, fields);
            }
        }
        value => drop(fields.insert(name, value.to_string())),
    }
}

fn differences(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<Field> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let field =
        |name: &String| Field { name: name.clone(), left: a.get(name).cloned(), right: b.get(name).cloned() };
    names.into_iter().map(field).filter(|field| field.left != field.right).collect()
}

/// A line and those after it.
fn rest(first: &[u8], reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut line = first.to_vec();
    while !line.is_empty() && lines.len() <= CONTEXT {
        lines.push(text(&line));
        line.clear();
        line_or_end(reader, &mut line)?;
    }
    Ok(lines)
}

/// Appends the next line, or what there is of it where a compressed file was cut off.
fn line_or_end(reader: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<()> {
    match read::line(reader, into) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        read => read.map(drop),
    }
}

fn text(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.header.is_empty() {
            writeln!(f, "the headers differ")?;
        }
        for Field { name, left, right } in &self.header {
            let text = |side: &Option<String>| side.as_ref().map_or("-".to_owned(), |text| shown(text, 0));
            writeln!(f, "    {name}: {} | {}", text(left), text(right))?;
        }
        match &self.parting {
            Some(parting) => parting.fmt(f),
            None => f.write_str("the entries are the same, byte for byte"),
        }
    }
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the traces part at line {}, byte {}", self.line, self.column + 1)?;
        let first = self.line - self.before.len() as u64;
        for (line, text) in (first..).zip(&self.before) {
            write!(f, "\n    {line:>8}  {}", shown(text, 0))?;
        }
        for (side, lines) in [("<", &self.left), (">", &self.right)] {
            if lines.is_empty() {
                write!(f, "\n  {side} {:>8}  (ends)", self.line)?;
            }
            for (number, (line, text)) in (self.line..).zip(lines).enumerate() {
                let column = if number == 0 { self.column } else { 0 };
                write!(f, "\n  {side} {line:>8}  {}", shown(text, column))?;
            }
        }
        Ok(())
    }
}

/// The part of a line around a byte of it.
fn shown(text: &str, column: usize) -> String {
    let before = text.char_indices().take_while(|(at, _)| *at < column).count();
    let skipped = if before + SHOWN / 4 < SHOWN { 0 } else { before - SHOWN / 4 };
    let part: String = text.chars().skip(skipped).take(SHOWN).collect();
    let left = if skipped > 0 { "…" } else { "" };
    let right = if skipped + part.chars().count() < text.chars().count() { "…" } else { "" };
    format!("{left}{part}{right}")
}
