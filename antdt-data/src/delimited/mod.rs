//! Data sets of text rows, such as CSV and TSV, with an index of where the rows begin.

use std::num::NonZeroU64;
use std::path::Path;

use antdt_core::SampleRange;
use crc32c::crc32c_append;

use crate::cuts::Cuts;
use crate::error::{OpenError, ReadError};
use crate::kept::{self, Fingerprint, IndexOrigin, IndexPlace};
use crate::layout::DatasetLayout;
use crate::rows::ByteRows;
use crate::source::Source;
use crate::splitter::Splitter;
use index::{RowForm, RowIndex};
use order::ColumnOrder;
use scan::{RowScanner, Span};

mod dialect;
mod index;
mod order;
mod scan;

#[cfg(test)]
mod tests;

pub use dialect::{Dialect, Fields};
pub use index::{RowCheck, RowTest};

/// A data set whose samples are the rows of text files, one file after the other.
///
/// Opening reads each file once, to find where its rows begin, and keeps that in an index of 1/30 byte per row; the next
/// process finds the index and reads nothing. A shard is read with one read per file. Compressed files are refused, as
/// rows in the middle of them cannot be reached: [`Source::seekable`] unpacks them.
#[derive(Debug, Clone)]
pub struct Delimited {
    dialect: Dialect,
    files: Vec<Indexed>,
    layout: DatasetLayout,
    header: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Indexed {
    source: Source,
    index: RowIndex,
    origin: IndexOrigin,
    /// Where the columns of the first file are; `None` if where they are there.
    order: Option<ColumnOrder>,
}

impl Delimited {
    /// Opens text files, in the order given, and indexes those that have no stored index yet.
    ///
    /// Rows of a file whose header names the columns of the first file in another order, or others beside them, are checked and read
    /// with the columns of the first file, in its order.
    ///
    /// Several processes may do so at the same time: an index file appears complete or not at all, and in a
    /// folder of indexes only one process builds it.
    ///
    /// # Errors
    /// If a file is missing, without rows, compressed, or ends inside a quote; if its header lacks a column of the first file; if an index
    /// cannot be written, in which case another [`IndexPlace`] helps.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        dialect: Dialect,
        place: &IndexPlace,
    ) -> Result<Self, OpenError> {
        // Before any file is looked for.
        dialect.check()?;
        let sources = paths.into_iter().map(Source::file).collect::<Result<Vec<_>, _>>()?;
        Self::of(sources, dialect, place, RowCheck::NONE)
    }

    /// Opens sources, on disks or in an object store, as [`open`](Self::open) does for files, and checks each
    /// row while it is indexed. The rows of a loaded index were checked when it was built.
    ///
    /// # Errors
    /// As [`open`](Self::open), and with the line of the first row that fails its check.
    pub fn of(
        sources: impl IntoIterator<Item = Source>,
        dialect: Dialect,
        place: &IndexPlace,
        check: RowCheck<'_>,
    ) -> Result<Self, OpenError> {
        dialect.check()?;
        let mut opened = Self { dialect, files: Vec::new(), layout: DatasetLayout::default(), header: None };
        for source in sources {
            opened.add(source, place, check)?;
        }
        if opened.files.is_empty() {
            return Err(OpenError::NoFiles { place: "the list of files".into() });
        }
        Ok(opened)
    }

    fn add(&mut self, source: Source, place: &IndexPlace, check: RowCheck<'_>) -> Result<(), OpenError> {
        let path = source.path.clone();
        let header = if self.dialect.header { header(&source, self.dialect)? } else { None };
        let order = match (&self.header, &header, self.files.first()) {
            (Some(expected), Some(header), Some(first)) => ColumnOrder::of(self.dialect, expected, header)
                .map_err(|what| {
                    let first = first.source.path.clone();
                    OpenError::Columns { path: path.clone(), first, what }
                })?,
            _ => None,
        };
        let form = RowForm { dialect: self.dialect, check, order };
        let (index, origin) = find(&source, &form, place)?;
        if index.num_rows == 0 {
            return Err(OpenError::Empty { path });
        }
        if !self.layout.push(index.num_rows) {
            return Err(OpenError::TooMany { path });
        }
        self.header = self.header.take().or(header);
        self.files.push(Indexed { source, index, origin, order: form.order });
        Ok(())
    }

    /// Returns the rows of a text in memory, header included, to look at before a data set is opened. `whole` says whether the
    /// text ends here; otherwise its last row, of which a part may be missing, is left out. A quote that nothing closes ends it.
    pub fn rows_of(dialect: Dialect, text: &[u8], whole: bool) -> Vec<&[u8]> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut rows = Vec::new();
        let mut take = |span: Span| {
            // Fits: both are places in the text.
            let row = &text[span.start as usize..span.end as usize];
            rows.extend(dialect.is_row(row).then_some(row));
        };
        let mut scanner = RowScanner::new(dialect, 0);
        scanner.feed(text, &mut take);
        if whole {
            // What is wrong with it is found with its line, when the text is indexed.
            let _ = scanner.finish(&mut take);
        }
        rows
    }

    /// Returns the dialect of the rows; [`Dialect::fields`] splits one into fields.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the position of a column, from 0, by its name in the header; `None` without a header or such a
    /// column.
    pub fn column(&self, name: &str) -> Option<usize> {
        let header = self.header.as_deref()?;
        self.dialect.fields(header).position(|field| *field == *name.as_bytes())
    }

    /// Returns the layout, which says which samples are in which file.
    pub const fn layout(&self) -> &DatasetLayout {
        &self.layout
    }

    /// Returns a checksum of the content of all files, in their order: every byte counts, as it was when the file was indexed.
    pub fn content_checksum(&self) -> u32 {
        self.files.iter().fold(0, |sum, file| crc32c_append(sum, &file.index.content.to_le_bytes()))
    }

    /// Returns the origin of each file's row index, in the order of the files.
    pub fn origins(&self) -> impl Iterator<Item = &IndexOrigin> {
        self.files.iter().map(|file| &file.origin)
    }
}

impl Splitter for Delimited {
    type Rows = ByteRows;

    fn num_samples(&self) -> u64 {
        self.layout.num_samples()
    }

    fn cuts(&self, target_len: NonZeroU64) -> Cuts {
        Cuts::even(self.num_samples(), target_len)
    }

    fn read(&self, range: SampleRange) -> Result<ByteRows, ReadError> {
        ReadError::check(range, self.num_samples())?;
        let mut rows = ByteRows::starting_at(range.start);
        for piece in self.layout.pieces(range) {
            let Indexed { source, index, order, .. } = &self.files[piece.file];
            let window = index.window(piece.rows.start, piece.rows.end);
            let base = rows.buffer().len();
            source.append(window.at, window.len_bytes, piece.sample, rows.buffer())?;
            let (bytes, spans) = rows.parts();
            let (mut skip, mut due) = (window.skip, piece.rows.len());
            spans.reserve(usize::try_from(due).unwrap_or(0));
            let mut take = |span: Span| {
                // Fits: both are places in the buffer.
                let (start, end) = (base + span.start as usize, base + span.end as usize);
                if !self.dialect.is_row(&bytes[start..end]) {
                    return;
                }
                if skip > 0 {
                    skip -= 1;
                } else if due > 0 {
                    due -= 1;
                    spans.push((start, end));
                }
            };
            let mut scanner = RowScanner::new(self.dialect, 0);
            scanner.feed(&bytes[base..], &mut take);
            let closed = scanner.finish(&mut take).is_ok();
            if due > 0 || !closed {
                return Err(source.changed(piece.sample));
            }
            if let Some(order) = order {
                let arrange = |row: &[u8], into: &mut Vec<u8>| order.arrange(self.dialect, row, into);
                rows.rewrite(piece.sample, arrange).map_err(|_| source.changed(piece.sample))?;
            }
        }
        Ok(rows)
    }
}

/// Takes the index from where it is kept, or builds it and keeps it there.
fn find(
    source: &Source,
    form: &RowForm<'_>,
    place: &IndexPlace,
) -> Result<(RowIndex, IndexOrigin), OpenError> {
    let fingerprint = Fingerprint::of(source)?;
    let load = |bytes: &[u8]| {
        let index = RowIndex::from_bytes(bytes)?;
        index.check(&fingerprint, form).map(|()| index)
    };
    let build = || RowIndex::build(source, form, fingerprint);
    // A file without rows is refused; its index would outlive that.
    kept::find(source, place, load, build, |index| (index.num_rows > 0).then(|| index.to_bytes()))
}

/// The header of a file, its first row; `None` if the file has no row.
fn header(source: &Source, dialect: Dialect) -> Result<Option<Vec<u8>>, OpenError> {
    index::text_begin(source)?;
    for len_bytes in [64 << 10, 16 << 20] {
        let begin = source.first(len_bytes)?;
        let whole = begin.len() as u64 == source.len_bytes();
        let header = Delimited::rows_of(dialect, &begin, whole).first().map(|row| row.to_vec());
        if header.is_some() || whole {
            return Ok(header);
        }
    }
    Err(OpenError::malformed(&source.path, "no header ends within its first 16 MB".to_owned()))
}
