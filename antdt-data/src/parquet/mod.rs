//! Data sets of Parquet files, which are cut into shards at the ends of row groups.

use std::fs::File;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::{Compression, Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy, RowGroupMetaData,
};
use ::parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};
use antdt_core::SampleRange;
use crc32c::crc32c_append;

use crate::cuts::{Block, Cuts};
use crate::error::{OpenError, ReadError};
use crate::kept::IndexPlace;
use crate::layout::DatasetLayout;
use crate::source::Source;
use crate::splitter::Splitter;

mod column;
mod decode;
mod field;
mod seal;

#[cfg(test)]
mod tests;

pub use column::{Column, ColumnRow, ColumnRows, Texts, Value, Values};
pub use field::{Meaning, ParquetField};
use seal::Seal;
pub use seal::{ColumnCheck, ValueTest};

/// A data set whose samples are the rows of Parquet files, one file after the other.
///
/// Opening reads only the footers; [`sealed`](Self::sealed) reads every byte once. A shard holds whole row groups, or a piece of a long one; the pages before
/// a piece are skipped unread. Columns that are not requested are not read. Lists, maps and INT96 are
/// refused; the fields of structs are columns of their own.
#[derive(Debug, Clone, Default)]
pub struct Parquet {
    files: Vec<Opened>,
    columns: Vec<Wanted>,
    /// The row groups that have rows.
    groups: Vec<Arc<Group>>,
    /// Of the row groups, each taken as a file.
    layout: DatasetLayout,
}

#[derive(Debug, Clone)]
struct Opened {
    source: Source,
    /// What the file's metadata say of the wanted columns.
    descriptors: Vec<ColumnDescPtr>,
    /// `None` while not every byte was read.
    seal: Option<Seal>,
}

/// A row group, of whose columns only what is read is known: a file may have many thousand groups.
#[derive(Debug)]
struct Group {
    /// Which of the files it is in.
    file: usize,
    /// Which of the file's groups it is, empty ones counted.
    number: usize,
    rows: usize,
    /// The wanted columns.
    chunks: Box<[Chunk]>,
}

/// Where a column of a row group is in its file: what a read needs of its metadata, which take twenty times as much.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    at: i64,
    len_bytes: i64,
    compression: Compression,
}

impl Chunk {
    fn of(chunk: &ColumnChunkMetaData) -> Self {
        let at = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
        Self { at, len_bytes: chunk.compressed_size(), compression: chunk.compression() }
    }

    /// One past its last byte; `None` if its numbers are none of a file.
    fn end(&self) -> Option<u64> {
        u64::try_from(self.at).ok()?.checked_add(u64::try_from(self.len_bytes).ok()?)
    }

    /// The metadata that a reader of pages takes.
    fn metadata(&self, descriptor: &ColumnDescPtr) -> Result<ColumnChunkMetaData, ParquetError> {
        ColumnChunkMetaData::builder(Arc::clone(descriptor))
            .set_compression(self.compression)
            .set_data_page_offset(self.at)
            .set_total_compressed_size(self.len_bytes)
            .build()
    }
}

impl Group {
    /// One past its last byte that is read.
    fn end(&self) -> u64 {
        self.chunks.iter().filter_map(Chunk::end).max().unwrap_or(0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    name: String,
    kind: Type,
    /// Whether it can be null in some file.
    nullable: bool,
}

impl Parquet {
    /// Opens files, in the order given, with the named columns, in the order given.
    ///
    /// # Errors
    /// If a file is missing, is not a Parquet file, or has no rows; if a column is missing or not flat in a
    /// file.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        columns: &[&str],
    ) -> Result<Self, OpenError> {
        Self::with(paths.into_iter().map(Source::file), Some(columns))
    }

    /// Opens files with all their columns, which must be the same in each, in any order.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the files differ in their columns.
    pub fn open_all<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, OpenError> {
        Self::with(paths.into_iter().map(Source::file), None)
    }

    /// Opens sources on disks of this machine, with all their columns: see [`Source::seekable`].
    ///
    /// # Errors
    /// As [`open_all`](Self::open_all).
    pub fn of(sources: impl IntoIterator<Item = Source>) -> Result<Self, OpenError> {
        Self::with(sources.into_iter().map(Ok), None)
    }

    /// Opens sources on disks of this machine, with the named columns, in the order given.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_columns(
        sources: impl IntoIterator<Item = Source>,
        columns: &[&str],
    ) -> Result<Self, OpenError> {
        Self::with(sources.into_iter().map(Ok), Some(columns))
    }

    /// Returns all columns of a file on a disk of this machine, in their order, whether they can be read or not.
    ///
    /// # Errors
    /// If it cannot be read or is not a Parquet file.
    pub fn fields(source: &Source) -> Result<Vec<ParquetField>, OpenError> {
        let metadata = metadata_of(source)?;
        let columns = metadata.file_metadata().schema_descr().columns();
        Ok(columns.iter().map(|column| ParquetField::of(column)).collect())
    }

    fn with(
        sources: impl Iterator<Item = Result<Source, OpenError>>,
        names: Option<&[&str]>,
    ) -> Result<Self, OpenError> {
        let mut opened = Self::default();
        for source in sources {
            opened.add(source?, names)?;
        }
        if opened.files.is_empty() {
            return Err(OpenError::NoFiles { place: "the list of files".into() });
        }
        Ok(opened)
    }

    fn add(&mut self, source: Source, names: Option<&[&str]>) -> Result<(), OpenError> {
        let path = &source.path.clone();
        let metadata = metadata_of(&source)?;
        // The same columns in another order are those of the first file.
        let known: Vec<&str> = self.columns().collect();
        let names = names.or_else(|| is_same_set(&known, &metadata).then_some(&known[..]));
        let (places, columns) = wanted(path, &metadata, names)?;
        match self.files.first() {
            None => self.columns = columns,
            Some(first) => {
                let error = |what| OpenError::Columns {
                    path: path.to_owned(),
                    first: first.source.path.clone(),
                    what,
                };
                if columns.len() != self.columns.len() {
                    return Err(error(format!("{} instead of {}", columns.len(), self.columns.len())));
                }
                for (known, new) in self.columns.iter_mut().zip(columns) {
                    if known.name != new.name || known.kind != new.kind {
                        return Err(error(format!(
                            "{} ({}) instead of {} ({})",
                            new.name, new.kind, known.name, known.kind
                        )));
                    }
                    known.nullable |= new.nullable;
                }
            }
        }
        let before = self.groups.len();
        let schema = metadata.file_metadata().schema_descr();
        let num_columns = schema.num_columns();
        let descriptors = places.iter().map(|place| schema.column(*place)).collect();
        // Each is dropped as soon as what is wanted of it is taken.
        for (number, group) in metadata.into_builder().take_row_groups().into_iter().enumerate() {
            let rows = check_group(&group, &source, &places, num_columns)
                .map_err(|why| OpenError::malformed(path, format!("row group {number} {why}")))?;
            if rows == 0 {
                continue;
            }
            if !self.layout.push(rows) {
                return Err(OpenError::TooMany { path: path.to_owned() });
            }
            let chunks = places.iter().map(|place| Chunk::of(group.column(*place))).collect();
            let rows = usize::try_from(rows).map_err(|_| OpenError::TooMany { path: path.to_owned() })?;
            self.groups.push(Arc::new(Group { file: self.files.len(), number, rows, chunks }));
        }
        if self.groups.len() == before {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        self.files.push(Opened { source, descriptors, seal: None });
        Ok(())
    }

    /// Returns the names of the columns that are read, in order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns the file of a sample and the number of its row there, from 0; `None` if there is no such sample.
    pub fn place(&self, sample: u64) -> Option<(&Path, u64)> {
        let end = sample.checked_add(1).filter(|end| *end <= self.num_samples())?;
        let piece = self.layout.pieces(SampleRange { start: sample, end }).next()?;
        let file = self.groups[piece.file].file;
        let first = self.groups.iter().position(|other| other.file == file)?;
        let before = first.checked_sub(1).map_or(0, |group| self.layout.ends()[group]);
        Some((&self.files[file].source.path, sample - before))
    }

    /// Reads every byte of the files once, and checks all values of some columns. A file that another process sealed at the same
    /// `place`, with the same check, is not read again unless its length, its times of change or 16 pieces of it differ.
    ///
    /// # Errors
    /// If a file cannot be read or changes meanwhile, with the row of the first value that fails its check, or if a seal cannot be
    /// written, in which case another [`IndexPlace`] helps.
    ///
    /// # Panics
    /// If the check names a column that is not read.
    pub fn sealed(mut self, place: &IndexPlace, check: ColumnCheck<'_>) -> Result<Self, OpenError> {
        for file in 0..self.files.len() {
            self.files[file].seal = Some(Seal::find(&self, file, place, check)?);
        }
        Ok(self)
    }

    /// Returns a checksum of the content of all files, in their order: every byte counts, as it was when the file was
    /// [sealed](Self::sealed). `None` before.
    pub fn content_checksum(&self) -> Option<u32> {
        self.files.iter().try_fold(0, |sum, file| Some(crc32c_append(sum, &file.seal?.content.to_le_bytes())))
    }

    /// Returns the layout of the files, which says which samples are in which file.
    pub fn file_layout(&self) -> DatasetLayout {
        let mut layout = DatasetLayout::default();
        for groups in self.groups.chunk_by(|one, next| one.file == next.file) {
            let rows: usize = groups.iter().map(|group| group.rows).sum();
            assert!(layout.push(rows as u64), "a file has rows, and all together fewer than 2^64");
        }
        layout
    }

    /// Returns, for each row group, the number of its last sample plus one.
    pub fn row_group_ends(&self) -> &[u64] {
        self.layout.ends()
    }
}

impl Splitter for Parquet {
    type Rows = ColumnRows;

    fn num_samples(&self) -> u64 {
        self.layout.num_samples()
    }

    fn cuts(&self, target_len: NonZeroU64) -> Cuts {
        Cuts::of_blocks(self.layout.ends().iter().copied(), target_len, Block::Divisible)
    }

    fn read(&self, range: SampleRange) -> Result<ColumnRows, ReadError> {
        self.read_columns(range, &(0..self.columns.len()).collect::<Vec<_>>())
    }
}

impl Parquet {
    /// Reads some of the columns that are read, which are named by their places.
    fn read_columns(&self, range: SampleRange, places: &[usize]) -> Result<ColumnRows, ReadError> {
        ReadError::check(range, self.num_samples())?;
        let mut columns: Vec<Column> = places.iter().map(|place| self.columns[*place].empty()).collect();
        let mut open: Option<(usize, Arc<File>)> = None;
        for piece in self.layout.pieces(range) {
            let group = &self.groups[piece.file];
            let Opened { source, descriptors, .. } = &self.files[group.file];
            let file = match open.take() {
                Some((same, file)) if same == group.file => file,
                _ => Arc::new(source.reopen(piece.sample)?),
            };
            for (column, place) in columns.iter_mut().zip(places) {
                let chunk = || group.chunks[*place].metadata(&descriptors[*place]);
                decode::append(&file, chunk, group.rows, piece.rows, column).map_err(|why| {
                    let why = format!("row group {}, column {:?}: {why}", group.number, column.name);
                    ReadError::malformed(&source.path, piece.sample, why)
                })?;
            }
            open = Some((group.file, file));
        }
        Ok(ColumnRows { range, columns })
    }
}

impl Wanted {
    fn empty(&self) -> Column {
        let values = match self.kind {
            Type::BOOLEAN => Values::Bool(Vec::new()),
            Type::INT32 => Values::I32(Vec::new()),
            Type::INT64 => Values::I64(Vec::new()),
            Type::FLOAT => Values::F32(Vec::new()),
            Type::DOUBLE => Values::F64(Vec::new()),
            // INT96 was refused when the file was opened.
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY | Type::INT96 => Values::Bytes(Texts::default()),
        };
        Column { name: self.name.clone(), values, valid: self.nullable.then(Vec::new) }
    }
}

/// The footer of a file.
fn metadata_of(source: &Source) -> Result<ParquetMetaData, OpenError> {
    let malformed = |why| OpenError::malformed(&source.path, why);
    if !source.is_on_disk() {
        return Err(malformed("Parquet is read from a disk only: open it with seekable".into()));
    }
    let file = source.reopen(0).map_err(OpenError::from_read)?;
    // Values are read in any case.
    let skip = ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(skip.clone())
        .with_size_stats_policy(skip.clone())
        .with_encoding_stats_policy(skip);
    let reader = || ParquetMetaDataReader::new().with_metadata_options(Some(options));
    decode::guarded(|| reader().parse_and_finish(&file)).map_err(malformed)
}

/// Whether a file has the columns of these names, each once, and no others.
fn is_same_set(known: &[&str], metadata: &ParquetMetaData) -> bool {
    let columns = metadata.file_metadata().schema_descr().columns();
    let mut found: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
    let mut known = known.to_vec();
    found.sort_unstable();
    known.sort_unstable();
    found == known && known.windows(2).all(|two| two[0] != two[1])
}

/// The wanted columns of a file and their places in it.
fn wanted(
    path: &Path,
    metadata: &ParquetMetaData,
    names: Option<&[&str]>,
) -> Result<(Vec<usize>, Vec<Wanted>), OpenError> {
    let schema = metadata.file_metadata().schema_descr();
    let known: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let places: Vec<usize> = match names {
        None => (0..known.len()).collect(),
        Some(names) => names
            .iter()
            .map(|name| {
                // A list has its elements in a column below its own name.
                let below = format!("{name}.");
                known.iter().position(|known| known == name).map_or_else(
                    || match known.iter().position(|known| known.starts_with(&below)) {
                        Some(place) => Err(column_kind(path, name, format!("made of {}", known[place]))),
                        None => Err(OpenError::NoColumn {
                            path: path.to_owned(),
                            name: (*name).to_owned(),
                            have: known.join(", "),
                        }),
                    },
                    Ok,
                )
            })
            .collect::<Result<_, _>>()?,
    };
    let describe = |place: &usize| {
        let column: &ColumnDescriptor = &schema.columns()[*place];
        let name = known[*place].clone();
        if column.max_rep_level() > 0 {
            return Err(column_kind(path, &name, "a list or part of one".into()));
        }
        let kind = column.physical_type();
        if kind == Type::INT96 {
            return Err(column_kind(path, &name, "INT96, a retired form of time".into()));
        }
        Ok(Wanted { name, kind, nullable: column.max_def_level() > 0 })
    };
    let columns = places.iter().map(describe).collect::<Result<_, _>>()?;
    Ok((places, columns))
}

fn column_kind(path: &Path, name: &str, kind: String) -> OpenError {
    OpenError::ColumnKind { path: path.to_owned(), name: name.to_owned(), kind }
}

/// The rows of a row group, if its numbers can be true of the file and the columns at `places` can be decompressed.
fn check_group(
    group: &RowGroupMetaData,
    source: &Source,
    places: &[usize],
    columns: usize,
) -> Result<u64, String> {
    let rows = u64::try_from(group.num_rows()).map_err(|_| format!("has {} rows", group.num_rows()))?;
    if group.num_columns() != columns {
        return Err(format!("has {} columns instead of {columns}", group.num_columns()));
    }
    for chunk in places.iter().map(|place| group.column(*place)) {
        let name = || chunk.column_path().string();
        match chunk.compression() {
            Compression::UNCOMPRESSED
            | Compression::SNAPPY
            | Compression::GZIP(_)
            | Compression::BROTLI(_)
            | Compression::LZ4
            | Compression::LZ4_RAW => {}
            Compression::ZSTD(_) if cfg!(feature = "zstd") => {}
            Compression::ZSTD(_) => {
                let column = name();
                return Err(format!(
                    "has column {column:?} compressed with ZSTD: build with the feature zstd"
                ));
            }
            other => {
                let column = name();
                return Err(format!(
                    "has column {column:?} compressed with {other}, which is not supported: write it with SNAPPY or ZSTD"
                ));
            }
        }
        if Chunk::of(chunk).end().is_none_or(|end| end > source.stamp.len_bytes) {
            return Err(format!("has column {:?} outside the file", name()));
        }
    }
    Ok(rows)
}
