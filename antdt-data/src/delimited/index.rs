//! Where the rows of a text file begin: the offset of every 256th, and how to keep it on disk.
//!
//! An index is a cache. It carries the file's length, time of change and a checksum of 16 pieces of it, so that an index
//! of other data is noticed without reading the data; it is then built again. A change of a few bytes that keeps length
//! and time of change, and misses those pieces, is not noticed.
//!
//! Format 1, little-endian: `ANTDTROW`, version `u32`, delimiter, quote, whether there are quotes, whether there is a
//! header (`u8` each), file length, time of change in ns, both `u64`, checksum of the pieces `u32`, start and end of the
//! header, stride, rows, one offset for each mark, all `u64`, and the CRC-32C of all this.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crc32c::{crc32c, crc32c_append};

use super::dialect::Dialect;
use super::scan::RowScanner;
use crate::disk::{Source, Stamp};
use crate::error::{IndexError, OpenError};

#[cfg(test)]
mod tests;

const MAGIC: &[u8; 8] = b"ANTDTROW";
const VERSION: u32 = 1;

/// Rows from one mark to the next. Of rows of 200 bytes, a read begins at most 51 KB early, and the index is 1/6400 of
/// the data; a larger stride would save memory that is not missed, and cost small shards time.
const STRIDE: u64 = 256;

/// Read at once while indexing. Larger ones fall out of the core's own cache between the read and the scan.
const CHUNK_LEN_BYTES: usize = 256 << 10;

/// Pieces of a file that its fingerprint covers, and their length.
const PROBES: u64 = 16;
const PROBE_LEN_BYTES: usize = 4 << 10;

/// By what an index knows its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    stamp: Stamp,
    /// CRC-32C of the pieces.
    probes: u32,
}

impl Fingerprint {
    pub(super) fn of(source: &Source, file: &mut File) -> Result<Self, OpenError> {
        let mut probes = 0;
        let mut piece = Vec::with_capacity(PROBE_LEN_BYTES);
        let last = source.stamp.len_bytes.saturating_sub(PROBE_LEN_BYTES as u64);
        for probe in 0..PROBES {
            // The first piece begins the file, the last one ends it.
            let at = u128::from(last) * u128::from(probe) / u128::from(PROBES - 1);
            let at = u64::try_from(at).expect("within the file");
            piece.clear();
            file.seek(SeekFrom::Start(at)).map_err(OpenError::io(&source.path, "read"))?;
            let mut limited = Read::by_ref(file).take(PROBE_LEN_BYTES as u64);
            limited.read_to_end(&mut piece).map_err(OpenError::io(&source.path, "read"))?;
            probes = crc32c_append(probes, &piece);
        }
        Ok(Self { stamp: source.stamp, probes })
    }
}

/// Where the rows of one file begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowIndex {
    fingerprint: Fingerprint,
    dialect: Dialect,
    /// Start and end of the header; both 0 without one.
    pub(super) header: (u64, u64),
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
    /// Reads the whole file once.
    pub(super) fn build(
        source: &Source,
        file: &mut File,
        dialect: Dialect,
        fingerprint: Fingerprint,
    ) -> Result<Self, OpenError> {
        let path = &source.path;
        let begin = text_begin(path, file)?;
        file.seek(SeekFrom::Start(begin)).map_err(OpenError::io(path, "read"))?;
        let mut index =
            Self { fingerprint, dialect, header: (0, 0), num_rows: 0, stride: STRIDE, marks: Vec::new() };
        let mut scanner = RowScanner::new(dialect, begin);
        let mut header_due = dialect.header;
        let mut row = |start, end| {
            if header_due {
                header_due = false;
                index.header = (start, end);
                return;
            }
            if index.num_rows.is_multiple_of(STRIDE) {
                index.marks.push(start);
            }
            index.num_rows += 1;
        };
        let mut chunk = vec![0; CHUNK_LEN_BYTES];
        let mut read_bytes = begin;
        loop {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => {
                    read_bytes += len as u64;
                    scanner.feed(&chunk[..len], &mut row);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(OpenError::io(path, "read")(error)),
            }
        }
        let finished = scanner.finish(&mut row);
        let now = file.metadata().map_err(OpenError::io(path, "read"))?;
        if Stamp::of(&now) != source.stamp || read_bytes != source.stamp.len_bytes {
            return Err(OpenError::Changed { path: path.clone() });
        }
        finished.map_err(|open| OpenError::Quote { path: path.clone(), at: open.at, row: index.num_rows })?;
        Ok(index)
    }

    /// The bytes to read for rows `start..end`, which must exist.
    pub(super) fn window(&self, start: u64, end: u64) -> Window {
        let mark = |row: u64| usize::try_from(row).ok().and_then(|at| self.marks.get(at)).copied();
        let len_bytes = self.fingerprint.stamp.len_bytes;
        let at = mark(start / self.stride).unwrap_or(len_bytes);
        let until = mark(end.div_ceil(self.stride)).unwrap_or(len_bytes);
        Window { at, len_bytes: until.saturating_sub(at), skip: start % self.stride }
    }

    /// Whether it is the index of a file, read in a dialect.
    pub(super) fn check(&self, fingerprint: &Fingerprint, dialect: Dialect) -> Result<(), IndexError> {
        let (ours, theirs) = (self.fingerprint, fingerprint);
        let what = if ours.stamp.len_bytes != theirs.stamp.len_bytes {
            "the length of the file"
        } else if ours.stamp.modified_ns != theirs.stamp.modified_ns {
            "the time of its last change"
        } else if ours.probes != theirs.probes {
            "its content"
        } else if self.dialect != dialect {
            "the dialect"
        } else {
            return Ok(());
        };
        Err(IndexError::OtherData { what })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_LEN_BYTES + 8 * self.marks.len() + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let Dialect { delimiter, quote, header } = self.dialect;
        out.extend([delimiter, quote.unwrap_or(0), u8::from(quote.is_some()), u8::from(header)]);
        let Fingerprint { stamp, probes } = self.fingerprint;
        out.extend_from_slice(&stamp.len_bytes.to_le_bytes());
        out.extend_from_slice(&stamp.modified_ns.to_le_bytes());
        out.extend_from_slice(&probes.to_le_bytes());
        for number in [self.header.0, self.header.1, self.stride, self.num_rows].iter().chain(&self.marks) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, IndexError> {
        let malformed = |why| IndexError::Malformed { why };
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(malformed("it begins with other bytes"));
        };
        let (version, _) = rest.split_first_chunk().ok_or(malformed("it is cut off"))?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(IndexError::Version { found: version, known: VERSION });
        }
        let (body, sum) = bytes.split_last_chunk().ok_or(malformed("it is cut off"))?;
        if crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(malformed("its checksum is wrong"));
        }
        let (head, marks) = body.split_first_chunk::<FIXED_LEN_BYTES>().ok_or(malformed("it is cut off"))?;
        let head = Fixed(head);
        let (marks, odd) = marks.as_chunks::<8>();
        let [delimiter, quote, quotes, header] = head.bytes(12);
        let index = Self {
            fingerprint: Fingerprint {
                stamp: Stamp { len_bytes: head.number(16), modified_ns: head.number(24) },
                probes: u32::from_le_bytes(head.bytes(32)),
            },
            dialect: Dialect { delimiter, quote: (quotes != 0).then_some(quote), header: header != 0 },
            header: (head.number(36), head.number(44)),
            stride: head.number(52),
            num_rows: head.number(60),
            marks: marks.iter().map(|mark| u64::from_le_bytes(*mark)).collect(),
        };
        if !odd.is_empty() || !index.is_sound() {
            return Err(malformed("its numbers contradict each other"));
        }
        Ok(index)
    }

    /// Whether it can be the index of any file.
    fn is_sound(&self) -> bool {
        let len_bytes = self.fingerprint.stamp.len_bytes;
        self.stride > 0
            && self.num_rows <= len_bytes
            && self.num_rows.div_ceil(self.stride) == self.marks.len() as u64
            && self.header.0 <= self.header.1
            && self.marks.first().is_none_or(|first| *first >= self.header.1)
            && self.marks.is_sorted_by(|a, b| a < b)
            && self.marks.last().map_or(self.header.1 <= len_bytes, |last| *last < len_bytes)
    }
}

const FIXED_LEN_BYTES: usize = 68;

/// What comes before the marks.
struct Fixed<'a>(&'a [u8; FIXED_LEN_BYTES]);

impl Fixed<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}

/// Where the text of a file begins: after a byte order mark. Refuses what is compressed.
fn text_begin(path: &Path, file: &mut File) -> Result<u64, OpenError> {
    const FORMATS: [(&[u8], &str); 4] =
        [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2")];
    let mut first = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(OpenError::io(path, "read"))?;
    Read::by_ref(file).take(8).read_to_end(&mut first).map_err(OpenError::io(path, "read"))?;
    if let Some((_, format)) = FORMATS.iter().find(|(magic, _)| first.starts_with(magic)) {
        return Err(OpenError::Compressed { path: path.to_owned(), format });
    }
    Ok(if first.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 })
}

/// Where row indexes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IndexPlace {
    /// Nowhere: they are built each time a data set is opened, by every process that opens it.
    Memory,
    /// Beside each file, as `NAME.antdt-index`.
    #[default]
    Beside,
    /// In a folder of their own, for data that is read-only; it is created when it is missing.
    Folder(PathBuf),
}

impl IndexPlace {
    /// The index file of a data file.
    pub(super) fn of(&self, path: &Path) -> Option<PathBuf> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Self::Memory => None,
            Self::Beside => Some(path.with_file_name(format!("{name}.antdt-index"))),
            Self::Folder(folder) => {
                // Files of one name in several folders have an index each; should two share one all the same, it is
                // noticed as other data.
                let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
                let place = crc32c(absolute.as_os_str().as_encoded_bytes());
                Some(folder.join(format!("{name}-{place:08x}.antdt-index")))
            }
        }
    }
}

/// Writes a file so that others see all of it or nothing.
pub(super) fn save(path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
    static SAVED: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = SAVED.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_file_name(format!(".{name}.{}-{number}", process::id()));
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|error| {
        // What matters is the error that came first.
        let _ = fs::remove_file(&unfinished);
        OpenError::IndexPlace { path: path.to_owned(), source: error }
    })
}
