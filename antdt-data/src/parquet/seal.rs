//! [`Seal`]: that the bytes of a Parquet file were all read once, and the values of some of its columns checked.
//!
//! A file is read from its first byte to its last; each row group is decoded for the columns that are checked as soon as its bytes were
//! read, which the system then still holds. So both cost one read of the file, at the speed of the disk: of 1 GB in the page cache, copies take
//! 0.16 s of a core and the checksum 0.04 s. Tried and rejected: checksums of row groups that are taken when a group is first read need no pass of their own, but an
//! edit is then found in the middle of a resumed job, and each worker would have to be told the checksums of all groups.

use std::io::Read;

use antdt_core::SampleRange;
use crc32c::{crc32c, crc32c_append};
use serde::{Deserialize, Serialize};

use super::{Parquet, Value};
use crate::error::{IndexError, OpenError};
use crate::kept::{self, Fingerprint, IndexPlace};
use crate::rows::Rows;

const MAGIC: [u8; 8] = *b"ANTDTPQS";
const VERSION: u32 = 1;

/// Read at once. Larger ones fall out of the core's own cache before they are added up.
const CHUNK_LEN_BYTES: usize = 256 << 10;

/// Rows decoded at once: a row group may hold all rows of a file.
const ROWS_MAX: u64 = 1 << 18;

/// Looks at a value of a column, which is named by its place in [`ColumnCheck::columns`]; returns an error text if it cannot be used.
pub type ValueTest<'a> = &'a dyn Fn(usize, Value<'_>) -> Result<(), String>;

/// A check of all values of some columns of a data set, done once while the files are sealed.
#[derive(Clone, Copy)]
pub struct ColumnCheck<'a> {
    /// Name of the check; it must change when the check does, because a seal records which check its values have passed.
    pub name: &'a str,
    /// Which of the columns that are read are checked, counted from 0.
    pub columns: &'a [usize],
    /// Function that returns an error text for a value that fails the check.
    pub check: ValueTest<'a>,
}

impl ColumnCheck<'_> {
    /// The check that every value passes.
    pub const NONE: Self = Self { name: "", columns: &[], check: &|_, _| Ok(()) };

    /// Id of the check, with the names of its columns in `data`.
    fn id(self, data: &Parquet) -> u32 {
        let names = self.columns.iter().map(|at| data.columns[*at].name.as_bytes());
        names.fold(crc32c(self.name.as_bytes()), |id, name| crc32c_append(crc32c_append(id, name), &[0]))
    }
}

impl std::fmt::Debug for ColumnCheck<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColumnCheck")
            .field("name", &self.name)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// What is known of a file whose bytes were all read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seal {
    fingerprint: Fingerprint,
    /// Of the check that its values have passed.
    check: u32,
    /// CRC-32C of the whole file.
    pub(super) content: u32,
}

impl Seal {
    /// Takes the seal of a file of `data` from where it is kept, or reads the file and keeps the seal there.
    pub(super) fn find(
        data: &Parquet,
        file: usize,
        place: &IndexPlace,
        check: ColumnCheck<'_>,
    ) -> Result<Self, OpenError> {
        let source = &data.files[file].source;
        let (fingerprint, id) = (Fingerprint::of(source)?, check.id(data));
        let load = |bytes: &[u8]| Self::load(bytes, &fingerprint, id);
        let build = || {
            let content = read_all(data, file, check)?;
            Ok(Self { fingerprint, check: id, content })
        };
        let bytes_of = |seal: &Self| Some(kept::framed(MAGIC, VERSION, seal));
        Ok(kept::find(source, place, load, build, bytes_of)?.0)
    }

    fn load(bytes: &[u8], fingerprint: &Fingerprint, check: u32) -> Result<Self, IndexError> {
        let seal: Self = kept::unframed(MAGIC, VERSION, bytes)?;
        let other = (seal.check != check).then_some("what its values were checked for");
        match seal.fingerprint.difference(fingerprint).or(other) {
            Some(what) => Err(IndexError::OtherData { what }),
            None => Ok(seal),
        }
    }
}

/// Reads a file once, checks the values of its columns, and returns the CRC-32C of its bytes.
fn read_all(data: &Parquet, file: usize, check: ColumnCheck<'_>) -> Result<u32, OpenError> {
    let source = &data.files[file].source;
    let changed = || OpenError::Changed { path: source.stored_at().to_owned() };
    let mut stream = source.stream(0)?;
    let (mut sum, mut at) = (0, 0);
    let mut buffer = vec![0; CHUNK_LEN_BYTES];
    let mut read_to = |end: u64| {
        while at < end {
            let read = stream.read(&mut buffer).map_err(OpenError::io(source.stored_at(), "read"))?;
            if read == 0 {
                return Err(changed());
            }
            sum = crc32c_append(sum, &buffer[..read]);
            at += read as u64;
        }
        Ok(sum)
    };
    let first = data.groups.partition_point(|group| group.file < file);
    for (number, group) in data.groups.iter().enumerate().skip(first) {
        if group.file != file {
            break;
        }
        if check.columns.is_empty() {
            continue;
        }
        read_to(group.end().min(source.len_bytes()))?;
        let start = number.checked_sub(1).map_or(0, |before| data.layout.ends()[before]);
        check_group(data, SampleRange { start, end: data.layout.ends()[number] }, check)?;
    }
    // A file that grew is noticed by what it is now.
    let sum = read_to(source.len_bytes())?;
    if source.is_unchanged()? { Ok(sum) } else { Err(changed()) }
}

/// Checks the values of these samples.
fn check_group(data: &Parquet, group: SampleRange, check: ColumnCheck<'_>) -> Result<(), OpenError> {
    let mut start = group.start;
    while start < group.end {
        let range = SampleRange { start, end: group.end.min(start.saturating_add(ROWS_MAX)) };
        let rows = data.read_columns(range, check.columns).map_err(OpenError::from_read)?;
        for sample in range.start..range.end {
            let Some(row) = rows.row(sample) else { continue };
            for (column, value) in row.values().enumerate() {
                (check.check)(column, value).map_err(|why| {
                    let (path, row) = data.place(sample).expect("the sample was just read");
                    OpenError::Value { path: path.to_owned(), row: row + 1, why }
                })?;
            }
        }
        start = range.end;
    }
    Ok(())
}
