//! Reading pieces of files that must not have changed.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::error::{OpenError, ReadError};

/// By what a change of a file is noticed without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Opens a file to read; refuses folders, and pipes, which would make us wait.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// A file as it was when the data set was opened.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) stamp: Stamp,
}

impl Source {
    /// Opens a file of a data set; also refuses what is empty and what is no regular file.
    pub(crate) fn open(path: &Path) -> Result<(Self, File), OpenError> {
        let (file, metadata) = open_regular(path).map_err(OpenError::io(path, "open"))?;
        let stamp = Stamp::of(&metadata);
        if stamp.len_bytes == 0 {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        Ok((Self { path: path.to_owned(), stamp }, file))
    }

    /// Opens it again, if it is still the same.
    pub(crate) fn reopen(&self, sample: u64) -> Result<File, ReadError> {
        let (file, metadata) = open_regular(&self.path).map_err(ReadError::io(&self.path, sample))?;
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
        let mut file = self.reopen(sample)?;
        let too_large = || ReadError::TooLarge { sample, path: self.path.clone(), len_bytes };
        let len = usize::try_from(len_bytes).map_err(|_| too_large())?;
        into.try_reserve_exact(len).map_err(|_| too_large())?;
        file.seek(SeekFrom::Start(at)).map_err(ReadError::io(&self.path, sample))?;
        let read = file.take(len_bytes).read_to_end(into).map_err(ReadError::io(&self.path, sample))?;
        // It was cut off after its length was checked.
        if read == len { Ok(()) } else { Err(self.changed(sample)) }
    }

    pub(crate) fn changed(&self, sample: u64) -> ReadError {
        ReadError::Changed { sample, path: self.path.clone() }
    }
}
