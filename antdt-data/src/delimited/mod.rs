//! Rows of text: CSV, TSV and their relatives, with an index of where the rows begin.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::path::Path;

use antdt_core::SampleRange;

use crate::cuts::Cuts;
use crate::disk::Source;
use crate::error::{IndexError, OpenError, ReadError};
use crate::layout::DatasetLayout;
use crate::rows::ByteRows;
use crate::splitter::Splitter;
use index::{Fingerprint, RowIndex};
use scan::RowScanner;

mod dialect;
mod index;
mod scan;

#[cfg(test)]
mod tests;

pub use dialect::{Dialect, Fields};
pub use index::IndexPlace;

/// A data set of the rows of text files, one file after the other.
///
/// Opening reads each file once, to find where its rows begin, and keeps that in an index of 1/30 byte per row; the next
/// process finds the index and reads nothing. A shard is read with one read per file. Compressed files are refused: rows
/// in the middle of them cannot be reached.
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
}

/// Where the index of a file came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexOrigin {
    /// It was found and fits.
    Loaded,
    /// There was none.
    Built,
    /// There was one that cannot be used; it was replaced.
    Rebuilt(IndexError),
}

impl Delimited {
    /// Opens files, in the order given, and indexes those that have no index of their own yet.
    ///
    /// Processes may do so at the same time: an index appears whole or not at all. To index once only, let the master
    /// open the data set before the workers do.
    ///
    /// # Errors
    /// If a file is missing, without rows, compressed, or ends inside a quote; if headers differ; if an index cannot be
    /// written: choose another [`IndexPlace`] then.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        dialect: Dialect,
        place: &IndexPlace,
    ) -> Result<Self, OpenError> {
        dialect.check()?;
        let mut opened = Self { dialect, files: Vec::new(), layout: DatasetLayout::default(), header: None };
        for path in paths {
            opened.add(path.as_ref(), place)?;
        }
        if opened.files.is_empty() {
            return Err(OpenError::NoFiles { place: "the list of files".into() });
        }
        Ok(opened)
    }

    fn add(&mut self, path: &Path, place: &IndexPlace) -> Result<(), OpenError> {
        let (source, mut file) = Source::open(path)?;
        let (index, origin) = find(&source, &mut file, self.dialect, place)?;
        if index.num_rows == 0 {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        if self.dialect.header {
            let header = read_header(&source, &index)?;
            match (&self.header, self.files.first()) {
                (Some(expected), Some(first)) if *expected != header => {
                    return Err(OpenError::Columns {
                        path: path.to_owned(),
                        first: first.source.path.clone(),
                        what: format!(
                            "its header is {:?} instead of {:?}",
                            String::from_utf8_lossy(&header),
                            String::from_utf8_lossy(expected)
                        ),
                    });
                }
                _ => self.header = Some(header),
            }
        }
        if !self.layout.push(index.num_rows) {
            return Err(OpenError::TooMany { path: path.to_owned() });
        }
        self.files.push(Indexed { source, index, origin });
        Ok(())
    }

    /// How its rows are to be read: [`Dialect::fields`] takes one apart.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The place of a column, from 0, by its name in the header; `None` without a header or such a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        let header = self.header.as_deref()?;
        self.dialect.fields(header).position(|field| *field == *name.as_bytes())
    }

    /// Which samples are in which file.
    pub const fn layout(&self) -> &DatasetLayout {
        &self.layout
    }

    /// Where the index of each file came from, in the order of the files.
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
            let Indexed { source, index, .. } = &self.files[piece.file];
            let window = index.window(piece.rows.start, piece.rows.end);
            let base = rows.buffer().len();
            source.append(window.at, window.len_bytes, piece.sample, rows.buffer())?;
            let (bytes, spans) = rows.parts();
            let (mut skip, mut due) = (window.skip, piece.rows.len());
            let mut take = |start: u64, end: u64| {
                if skip > 0 {
                    skip -= 1;
                } else if due > 0 {
                    due -= 1;
                    // Fits: both are places in the buffer.
                    spans.push((base + start as usize, base + end as usize));
                }
            };
            let mut scanner = RowScanner::new(self.dialect, 0);
            scanner.feed(&bytes[base..], &mut take);
            let closed = scanner.finish(&mut take).is_ok();
            if due > 0 || !closed {
                return Err(source.changed(piece.sample));
            }
        }
        Ok(rows)
    }
}

/// Takes the index from where it is kept, or builds it and keeps it there.
fn find(
    source: &Source,
    file: &mut File,
    dialect: Dialect,
    place: &IndexPlace,
) -> Result<(RowIndex, IndexOrigin), OpenError> {
    let fingerprint = Fingerprint::of(source, file)?;
    let kept = place.of(&source.path);
    let found = kept.as_deref().map(|path| (path, fs::read(path)));
    let origin = match found {
        None => IndexOrigin::Built,
        Some((_, Err(error))) if error.kind() == io::ErrorKind::NotFound => IndexOrigin::Built,
        Some((path, Err(source))) => {
            return Err(OpenError::IndexPlace { path: path.to_owned(), source });
        }
        Some((_, Ok(bytes))) => {
            let index = RowIndex::from_bytes(&bytes).and_then(|index| {
                index.check(&fingerprint, dialect)?;
                Ok(index)
            });
            match index {
                Ok(index) => return Ok((index, IndexOrigin::Loaded)),
                Err(why) => IndexOrigin::Rebuilt(why),
            }
        }
    };
    let index = RowIndex::build(source, file, dialect, fingerprint)?;
    // A file without rows is refused; its index would outlive that.
    if let Some(kept) = kept.filter(|_| index.num_rows > 0) {
        index::save(&kept, &index.to_bytes())?;
    }
    Ok((index, origin))
}

/// The header row of a file.
fn read_header(source: &Source, index: &RowIndex) -> Result<Vec<u8>, OpenError> {
    let (start, end) = index.header;
    let mut header = Vec::new();
    source.append(start, end - start, 0, &mut header).map_err(|error| match error {
        ReadError::Io { path, source, .. } => OpenError::Io { path, doing: "read", source },
        _ => OpenError::Changed { path: source.path.clone() },
    })?;
    Ok(header)
}
