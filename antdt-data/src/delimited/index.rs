//! The index of a text file's rows: the offset of every 256th row, and its format on disk.
//!
//! An index is a cache. It carries the file's length, times of change and a checksum of 16 pieces of it, so that an index
//! of other data is noticed without reading the data; it is then built again. Where the system does not say when a file last changed,
//! a change of a few bytes that keeps length and time of writing, and misses those pieces, is not noticed.
//!
//! Format 6: `ANTDTROW`, version `u32`, the [`RowIndex`] as `postcard` writes it, and the CRC-32C of all this.

use std::io::Read;
use std::path::Path;

use crc32c::{crc32c, crc32c_append};
use serde::{Deserialize, Serialize};

use super::dialect::Dialect;
use super::order::ColumnOrder;
use super::scan::{RowScanner, Span};
use crate::error::{IndexError, OpenError};
use crate::kept::{self, Fingerprint};
use crate::source::{Container, Source};

#[cfg(test)]
mod tests;

const MAGIC: &[u8; 8] = b"ANTDTROW";
const VERSION: u32 = 6;

/// Rows from one mark to the next, while there are few marks. Of rows of 200 bytes, a read begins at most 51 KB early, and
/// the index is 1/6400 of the data; a larger stride would save memory that is not missed, and cost small shards time.
const STRIDE: u64 = 256;

/// Marks of one file, at most: 8 MB of memory, whatever the length of the file. Beyond, the stride doubles; a file of 1 TB
/// has one of 8192 rows.
const MARKS_MAX: usize = 1 << 20;

/// Read at once while indexing. Larger ones fall out of the core's own cache between the read and the scan.
const CHUNK_LEN_BYTES: u64 = 256 << 10;

/// Longest row, in bytes. A click is below 400; what is longer than this is no text of rows, or a quote that was never
/// closed, and must not fill the memory.
const ROW_LEN_MAX_BYTES: usize = 256 << 10;

/// Looks at a row of files in a dialect; returns an error text if it cannot be used.
pub type RowTest<'a> = &'a dyn Fn(Dialect, &[u8]) -> Result<(), String>;

/// A check of every row of a data set, done once while the rows are indexed.
#[derive(Clone, Copy)]
pub struct RowCheck<'a> {
    /// Name of the check; it must change when the check does, because an index records which check its rows
    /// have passed.
    pub name: &'a str,
    /// Function that returns an error text for a row that fails the check.
    pub check: RowTest<'a>,
}

impl RowCheck<'_> {
    /// The check that every row passes.
    pub const NONE: Self = Self { name: "", check: &|_, _| Ok(()) };

    fn id(self) -> u32 {
        crc32c(self.name.as_bytes())
    }
}

impl std::fmt::Debug for RowCheck<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowCheck").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How the rows of one file are read and checked.
#[derive(Debug, Clone)]
pub(super) struct RowForm<'a> {
    pub(super) dialect: Dialect,
    pub(super) check: RowCheck<'a>,
    /// Order in which the check gets the columns; `None` for that of the file.
    pub(super) order: Option<ColumnOrder>,
}

impl RowForm<'_> {
    /// Id of the check, as an index records it.
    fn check_id(&self) -> u32 {
        let check = self.check.id();
        self.order.as_ref().map_or(check, |order| order.check_id(check))
    }
}

/// Where the rows of one file begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowIndex {
    fingerprint: Fingerprint,
    dialect: Dialect,
    /// Of the check that its rows have passed.
    check: u32,
    /// CRC-32C of the whole text.
    pub(super) content: u32,
    pub(super) num_rows: u64,
    stride: u64,
    /// Where rows `0`, `stride`, `2 * stride`, … begin.
    marks: Vec<u64>,
}

/// Bytes of a file in which certain rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The first byte, where a row begins.
    pub(super) at: u64,
    /// Bytes.
    pub(super) len_bytes: u64,
    /// Rows in it before those that were asked for.
    pub(super) skip: u64,
}

impl RowIndex {
    /// Reads the whole file once, and checks every row.
    pub(super) fn build(
        source: &Source,
        form: &RowForm<'_>,
        fingerprint: Fingerprint,
    ) -> Result<Self, OpenError> {
        Self::build_within(MARKS_MAX, source, form, fingerprint)
    }

    /// With `marks_max` marks at most, an even number.
    fn build_within(
        marks_max: usize,
        source: &Source,
        form: &RowForm<'_>,
        fingerprint: Fingerprint,
    ) -> Result<Self, OpenError> {
        let path = &source.path;
        let begin = text_begin(source)?;
        let mut stream = source.stream(begin)?;
        let mut build = Build {
            index: Self {
                fingerprint,
                dialect: form.dialect,
                check: form.check_id(),
                content: 0,
                num_rows: 0,
                stride: STRIDE,
                marks: Vec::new(),
            },
            marks_max,
            form,
            arranged: Vec::new(),
            header_due: form.dialect.header,
            wrong: None,
        };
        let mut scanner = RowScanner::new(form.dialect, begin);
        // What was read from `base` on: the row that has not ended yet, and a chunk.
        let (mut text, mut base) = (Vec::new(), begin);
        loop {
            let before = text.len();
            let read = stream.by_ref().take(CHUNK_LEN_BYTES).read_to_end(&mut text);
            if read.map_err(OpenError::io(source.stored_at(), "read"))? == 0 {
                break;
            }
            build.index.content = crc32c_append(build.index.content, &text[before..]);
            scanner.feed(&text[before..], |span| build.line(&text, base, span));
            build.verdict(path)?;
            // Both are within the text that was read.
            text.drain(..(scanner.row_start() - base) as usize);
            base = scanner.row_start();
            if text.len() > ROW_LEN_MAX_BYTES {
                let limit_bytes = ROW_LEN_MAX_BYTES;
                return Err(OpenError::RowTooLong {
                    path: path.clone(),
                    line: scanner.row_line(),
                    limit_bytes,
                });
            }
        }
        let read_bytes = base + text.len() as u64;
        let finished = scanner.finish(|span| build.line(&text, base, span));
        if !source.is_unchanged()? || read_bytes != source.stamp.len_bytes {
            return Err(OpenError::Changed { path: source.stored_at().to_owned() });
        }
        finished.map_err(|open| OpenError::Quote { path: path.clone(), line: open.line })?;
        build.verdict(path)?;
        Ok(build.index)
    }

    /// The bytes to read for rows `start..end`, which must exist.
    pub(super) fn window(&self, start: u64, end: u64) -> Window {
        let mark = |row: u64| usize::try_from(row).ok().and_then(|at| self.marks.get(at)).copied();
        let len_bytes = self.fingerprint.stamp.len_bytes;
        let at = mark(start / self.stride).unwrap_or(len_bytes);
        let until = mark(end.div_ceil(self.stride)).unwrap_or(len_bytes);
        Window { at, len_bytes: until.saturating_sub(at), skip: start % self.stride }
    }

    /// Whether it is the index of a file whose rows have this form.
    pub(super) fn check(&self, fingerprint: &Fingerprint, form: &RowForm<'_>) -> Result<(), IndexError> {
        let what = if let Some(what) = self.fingerprint.difference(fingerprint) {
            what
        } else if self.dialect != form.dialect {
            "the dialect"
        } else if self.check != form.check_id() {
            "what its rows were checked for"
        } else {
            return Ok(());
        };
        Err(IndexError::OtherData { what })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        kept::framed(*MAGIC, VERSION, self)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, IndexError> {
        let index: Self = kept::unframed(*MAGIC, VERSION, bytes)?;
        let why = "its numbers contradict each other";
        if index.is_sound() { Ok(index) } else { Err(IndexError::Malformed { why }) }
    }

    /// Whether it can be the index of any file.
    fn is_sound(&self) -> bool {
        let len_bytes = self.fingerprint.stamp.len_bytes;
        self.stride > 0
            && self.num_rows <= len_bytes
            && self.num_rows.div_ceil(self.stride) == self.marks.len() as u64
            && self.marks.is_sorted_by(|a, b| a < b)
            && self.marks.last().is_none_or(|last| *last < len_bytes)
    }
}

/// An index that is being built.
struct Build<'a> {
    index: RowIndex,
    marks_max: usize,
    form: &'a RowForm<'a>,
    /// A row in the order that the check needs.
    arranged: Vec<u8>,
    header_due: bool,
    /// The first row that failed its check: its line, and why.
    wrong: Option<(u64, String)>,
}

impl Build<'_> {
    /// A line was found in `text`, which begins at `base`.
    fn line(&mut self, text: &[u8], base: u64, span: Span) {
        // Both are within the text that was read.
        let line = &text[(span.start - base) as usize..(span.end - base) as usize];
        let index = &mut self.index;
        if self.wrong.is_some() || !index.dialect.is_row(line) {
            return;
        }
        if self.header_due {
            self.header_due = false;
            return;
        }
        let check = self.form.check.check;
        let checked = match &self.form.order {
            None => check(index.dialect, line),
            Some(order) => {
                self.arranged.clear();
                let arranged = order.arrange(index.dialect, line, &mut self.arranged);
                let counted = |why| format!("{why} (columns are counted as in the first file)");
                arranged.and_then(|()| check(index.dialect, &self.arranged).map_err(counted))
            }
        };
        if let Err(why) = checked {
            self.wrong = Some((span.line, why));
            return;
        }
        if index.num_rows.is_multiple_of(index.stride) {
            if index.marks.len() == self.marks_max {
                // Their number is even, so this row has a mark at the new stride, too.
                let mut keep = false;
                index.marks.retain(|_| {
                    keep = !keep;
                    keep
                });
                index.stride *= 2;
            }
            index.marks.push(span.start);
        }
        index.num_rows += 1;
    }

    fn verdict(&mut self, path: &Path) -> Result<(), OpenError> {
        let wrong = self.wrong.take();
        wrong.map_or(Ok(()), |(line, why)| Err(OpenError::Row { path: path.to_owned(), line, why }))
    }
}

/// Where the text of a file begins: after a byte order mark. Refuses what is compressed.
pub(super) fn text_begin(source: &Source) -> Result<u64, OpenError> {
    match source.container()? {
        Container::Plain => {}
        container => return Err(OpenError::Compressed { path: source.path.clone(), container }),
    }
    Ok(if source.first(3)? == b"\xef\xbb\xbf" { 3 } else { 0 })
}
