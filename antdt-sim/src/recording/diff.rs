//! Where two traces part.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead};

/// Lines that are shown before and after the first difference.
const CONTEXT: usize = 3;

/// Characters of a line that are shown.
const SHOWN: usize = 160;

/// The first difference of two traces, with what stands around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The line, from 1; the header is one too.
    pub line: u64,
    /// Bytes of that line that are the same in both.
    pub column: usize,
    /// Up to three lines before it, which are the same in both.
    pub before: Vec<String>,
    /// The line and up to three after it, in the first trace; empty if that ends here.
    pub left: Vec<String>,
    /// The same of the second one.
    pub right: Vec<String>,
}

/// Compares two traces, byte for byte: times, order and header count. `None` if they are the same. Reads no further than
/// it must, and keeps a few lines in memory.
///
/// # Errors
/// If one of them cannot be read.
pub fn diff(mut a: impl BufRead, mut b: impl BufRead) -> io::Result<Option<Difference>> {
    let mut before = VecDeque::with_capacity(CONTEXT + 1);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for line in 1.. {
        left.clear();
        right.clear();
        a.read_until(b'\n', &mut left)?;
        b.read_until(b'\n', &mut right)?;
        if left != right {
            let column = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            return Ok(Some(Difference {
                line,
                column,
                before: before.into(),
                left: rest(&left, &mut a)?,
                right: rest(&right, &mut b)?,
            }));
        }
        if left.is_empty() {
            break;
        }
        before.push_back(text(&left));
        if before.len() > CONTEXT {
            before.pop_front();
        }
    }
    Ok(None)
}

/// A line and those after it.
fn rest(first: &[u8], reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut line = first.to_vec();
    while !line.is_empty() && lines.len() <= CONTEXT {
        lines.push(text(&line));
        line.clear();
        reader.read_until(b'\n', &mut line)?;
    }
    Ok(lines)
}

fn text(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}

impl fmt::Display for Difference {
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
