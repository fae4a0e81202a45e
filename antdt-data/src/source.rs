//! A file of a data set: on this machine or in an object store, read by range, and refused once it has changed.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crc32c::{crc32c, crc32c_append};
use serde::{Deserialize, Serialize};

use crate::error::{OpenError, ReadError};
#[cfg(feature = "remote")]
use crate::remote::RemoteObject;

/// By what a change of a file is noticed without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// Its length.
    pub(crate) len_bytes: u64,
    /// When it was last written: nanoseconds since 1970, 0 where the file system does not say.
    pub(crate) modified_ns: u64,
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        Self { len_bytes: metadata.len(), modified_ns }
    }
}

/// Opens a file to read; refuses folders, and pipes, which would block the caller.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// Pieces of a file that its checksum covers, and their length.
const PROBES: u64 = 16;
const PROBE_LEN_BYTES: usize = 4 << 10;

/// Container format of a file, detected from its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// No known container format: probably text.
    Plain,
    /// The Parquet format.
    Parquet,
    /// Compressed with gzip.
    Gzip,
    /// Compressed with Zstandard.
    Zstd,
    /// Compressed in a form, named here, that this crate does not read.
    Unknown(&'static str),
}

impl Container {
    fn of(first: &[u8]) -> Self {
        const KNOWN: [(&[u8], Container); 6] = [
            (b"PAR1", Container::Parquet),
            (b"\x1f\x8b", Container::Gzip),
            (b"\x28\xb5\x2f\xfd", Container::Zstd),
            (b"\xfd7zXZ\0", Container::Unknown("xz")),
            (b"BZh", Container::Unknown("bzip2")),
            (b"PK\x03\x04", Container::Unknown("zip")),
        ];
        KNOWN
            .into_iter()
            .find_map(|(magic, container)| first.starts_with(magic).then_some(container))
            .unwrap_or(Self::Plain)
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Parquet => "Parquet",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Unknown(name) => name,
        })
    }
}

/// A file of a data set in the state in which it was opened, on a disk of this machine or in an object store.
///
/// Every read checks that the file is still the same: by length and time of change on a disk, by entity tag
/// in an object store.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path, or the URL, under which the user knows it.
    pub(crate) path: PathBuf,
    /// The file on this machine that is read in place of it, if that is another one.
    copy: Option<PathBuf>,
    pub(crate) stamp: Stamp,
    medium: Medium,
}

#[derive(Debug, Clone)]
enum Medium {
    Disk,
    #[cfg(feature = "remote")]
    Remote(RemoteObject),
}

impl Source {
    /// Opens a file on this machine. Reads no content yet.
    ///
    /// # Errors
    /// If the file is missing, empty or not a regular file.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let (_, metadata) = open_regular(path).map_err(OpenError::io(path, "open"))?;
        Self::new(path, Stamp::of(&metadata), Medium::Disk)
    }

    #[cfg(feature = "remote")]
    pub(crate) fn remote(object: RemoteObject) -> Result<Self, OpenError> {
        let path = PathBuf::from(object.url());
        let stamp = object.stamp();
        Self::new(&path, stamp, Medium::Remote(object))
    }

    fn new(path: &Path, stamp: Stamp, medium: Medium) -> Result<Self, OpenError> {
        if stamp.len_bytes == 0 {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), copy: None, stamp, medium })
    }

    /// The same content, which the user knows under another path or URL. Errors of the content name that one, errors of the disk
    /// the file itself.
    pub(crate) fn copy_of(self, path: PathBuf) -> Self {
        Self { copy: Some(self.path), path, ..self }
    }

    /// The file that is read.
    pub(crate) fn stored_at(&self) -> &Path {
        self.copy.as_deref().unwrap_or(&self.path)
    }

    /// Returns the path or URL by which the user knows the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length of the file in bytes.
    pub const fn len_bytes(&self) -> u64 {
        self.stamp.len_bytes
    }

    /// Returns whether the file is on a disk of this machine.
    pub const fn is_on_disk(&self) -> bool {
        match self.medium {
            Medium::Disk => true,
            #[cfg(feature = "remote")]
            Medium::Remote(_) => false,
        }
    }

    /// Detects the container format from the file's first bytes.
    ///
    /// # Errors
    /// If these bytes cannot be read.
    pub fn container(&self) -> Result<Container, OpenError> {
        Ok(Container::of(&self.first(8)?))
    }

    /// Returns the first bytes of the file, at most `limit_bytes`.
    ///
    /// # Errors
    /// If these bytes cannot be read.
    pub fn first(&self, limit_bytes: u64) -> Result<Vec<u8>, OpenError> {
        let mut first = Vec::new();
        self.append(0, limit_bytes.min(self.stamp.len_bytes), 0, &mut first).map_err(OpenError::from_read)?;
        Ok(first)
    }

    /// Its bytes from `at` on, one after the other. The reader fails if the file changes meanwhile.
    pub(crate) fn stream(&self, at: u64) -> Result<Box<dyn Read + '_>, OpenError> {
        match &self.medium {
            Medium::Disk => {
                let mut file = self.reopen(0).map_err(OpenError::from_read)?;
                file.seek(SeekFrom::Start(at)).map_err(OpenError::io(self.stored_at(), "read"))?;
                Ok(Box::new(file))
            }
            #[cfg(feature = "remote")]
            Medium::Remote(object) => Ok(Box::new(object.stream(at))),
        }
    }

    /// Whether the file is still the one that was opened.
    pub(crate) fn is_unchanged(&self) -> Result<bool, OpenError> {
        match &self.medium {
            Medium::Disk => {
                let metadata =
                    fs::metadata(self.stored_at()).map_err(OpenError::io(self.stored_at(), "read"))?;
                Ok(Stamp::of(&metadata) == self.stamp)
            }
            // Each of its reads names the version.
            #[cfg(feature = "remote")]
            Medium::Remote(_) => Ok(true),
        }
    }

    /// When the file or what is known of it last changed, which no program can set: nanoseconds since 1970, 0 where the system does not
    /// say.
    pub(crate) fn changed_ns(&self) -> Result<i64, OpenError> {
        match &self.medium {
            #[cfg(unix)]
            Medium::Disk => {
                let found = fs::metadata(self.stored_at());
                let metadata = found.map_err(OpenError::io(self.stored_at(), "read"))?;
                Ok(metadata.ctime().saturating_mul(1_000_000_000).saturating_add(metadata.ctime_nsec()))
            }
            #[cfg(not(unix))]
            Medium::Disk => Ok(0),
            #[cfg(feature = "remote")]
            Medium::Remote(_) => Ok(0),
        }
    }

    /// A checksum that tells versions of the file apart: of 16 pieces of it, or of its version in an object store.
    pub(crate) fn checksum(&self) -> Result<u32, OpenError> {
        match &self.medium {
            Medium::Disk => {
                let mut file = self.reopen(0).map_err(OpenError::from_read)?;
                let mut sum = 0;
                let mut piece = Vec::with_capacity(PROBE_LEN_BYTES);
                let last = self.stamp.len_bytes.saturating_sub(PROBE_LEN_BYTES as u64);
                for probe in 0..PROBES {
                    // The first piece begins the file, the last one ends it.
                    let at = u128::from(last) * u128::from(probe) / u128::from(PROBES - 1);
                    let at = u64::try_from(at).expect("within the file");
                    piece.clear();
                    file.seek(SeekFrom::Start(at)).map_err(OpenError::io(self.stored_at(), "read"))?;
                    let mut limited = Read::by_ref(&mut file).take(PROBE_LEN_BYTES as u64);
                    limited.read_to_end(&mut piece).map_err(OpenError::io(self.stored_at(), "read"))?;
                    sum = crc32c_append(sum, &piece);
                }
                Ok(sum)
            }
            #[cfg(feature = "remote")]
            Medium::Remote(object) => Ok(crc32c(object.version().as_bytes())),
        }
    }

    /// A number that tells sources of one file name apart: of the absolute path, or of the URL.
    pub(crate) fn place(&self) -> u32 {
        let absolute = match self.medium {
            Medium::Disk => {
                std::path::absolute(self.stored_at()).unwrap_or_else(|_| self.stored_at().to_owned())
            }
            #[cfg(feature = "remote")]
            Medium::Remote(_) => self.path.clone(),
        };
        crc32c(absolute.as_os_str().as_encoded_bytes())
    }

    /// Opens the file on this machine again, if it is still the same.
    pub(crate) fn reopen(&self, sample: u64) -> Result<File, ReadError> {
        let (file, metadata) =
            open_regular(self.stored_at()).map_err(ReadError::io(self.stored_at(), sample))?;
        if Stamp::of(&metadata) == self.stamp { Ok(file) } else { Err(self.changed(sample)) }
    }

    /// Reads `len_bytes` bytes from `at` on, with one read, and appends them to `into`.
    pub(crate) fn append(
        &self,
        at: u64,
        len_bytes: u64,
        sample: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let too_large = || ReadError::TooLarge { sample, path: self.path.clone(), len_bytes };
        let len = usize::try_from(len_bytes).map_err(|_| too_large())?;
        into.try_reserve_exact(len).map_err(|_| too_large())?;
        match &self.medium {
            Medium::Disk => {
                let mut file = self.reopen(sample)?;
                file.seek(SeekFrom::Start(at)).map_err(ReadError::io(self.stored_at(), sample))?;
                let read = file
                    .take(len_bytes)
                    .read_to_end(into)
                    .map_err(ReadError::io(self.stored_at(), sample))?;
                // It was cut off after its length was checked.
                if read == len { Ok(()) } else { Err(self.changed(sample)) }
            }
            #[cfg(feature = "remote")]
            Medium::Remote(object) => object.append(at, len_bytes, sample, into),
        }
    }

    pub(crate) fn changed(&self, sample: u64) -> ReadError {
        ReadError::Changed { sample, path: self.stored_at().to_owned() }
    }
}

/// Returns a digest of the content of these files, in this order, by which the data are recognised wherever
/// they are stored. It covers their lengths, and 16 pieces of each file, or the file's version in an object
/// store.
///
/// Reads 64 KiB a file, so a file that was changed between these pieces without growing is not noticed.
///
/// # Errors
/// If a file cannot be read.
pub fn fingerprint(sources: &[Source]) -> Result<String, OpenError> {
    let mut sum = 0;
    for source in sources {
        sum = crc32c_append(sum, &source.len_bytes().to_le_bytes());
        sum = crc32c_append(sum, &source.checksum()?.to_le_bytes());
    }
    let len_bytes: u64 = sources.iter().map(Source::len_bytes).sum();
    Ok(format!("{}:{len_bytes}:{sum:08x}", sources.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_fingerprint_is_that_of_the_content_and_not_of_the_place() {
        let folder = Folder::new();
        let text = "1,2,3\n".repeat(5000);
        let source = |name: &str, text: &str| Source::file(folder.write(name, text.as_bytes())).unwrap();
        let (a, copy) = (source("a", &text), source("copy", &text));
        let longer = source("longer", &(text.clone() + "4,5,6\n"));
        let other = source("other", &("9".to_owned() + &text[1..]));
        let print =
            |sources: &[&Source]| fingerprint(&sources.iter().copied().cloned().collect::<Vec<_>>()).unwrap();
        assert_eq!(print(&[&a]), print(&[&copy]));
        let all =
            [print(&[&a]), print(&[&longer]), print(&[&other]), print(&[&a, &other]), print(&[&other, &a])];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{all:?}");
        }
    }

    #[test]
    fn containers_are_told_by_their_first_bytes() {
        let folder = Folder::new();
        let cases: [(&[u8], Container); 5] = [
            (b"a,b\n", Container::Plain),
            (b"\x1f\x8b\x08", Container::Gzip),
            (b"\x28\xb5\x2f\xfd....", Container::Zstd),
            (b"PAR1 and more", Container::Parquet),
            (b"BZh9", Container::Unknown("bzip2")),
        ];
        for (bytes, expected) in cases {
            let source = Source::file(folder.write("a", bytes)).unwrap();
            assert_eq!(source.container().unwrap(), expected);
        }
    }
}
