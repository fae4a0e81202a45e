//! Data sets of one sample per file: pictures, recordings, documents.

use std::fs;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use antdt_core::SampleRange;
use crc32c::crc32c_append;

use crate::cuts::Cuts;
use crate::error::{OpenError, ReadError};
use crate::rows::ByteRows;
use crate::source::{Source, open_regular};
use crate::splitter::Splitter;

#[cfg(test)]
mod tests;

/// A data set of one sample per file. The number of a sample is the position of its file in the list.
///
/// Only the list is read when the data set is opened. A missing or empty file is reported when its sample is
/// read.
#[derive(Debug, Clone)]
pub struct Files {
    paths: Vec<PathBuf>,
}

impl Files {
    /// Returns the data set of these files, in this order; a file may occur several times.
    ///
    /// # Errors
    /// If the list is empty.
    pub fn new(paths: Vec<PathBuf>) -> Result<Self, OpenError> {
        if paths.is_empty() {
            return Err(OpenError::NoFiles { place: "the list of files".into() });
        }
        Ok(Self { paths })
    }

    /// Returns the data set of the files below `folder` for which `keep` returns true, sorted by path, folder
    /// by folder, so that every machine numbers them alike. Names that begin with a dot are left out; links
    /// to folders are not followed.
    ///
    /// # Errors
    /// If a folder cannot be listed or nothing is kept.
    pub fn list(folder: impl AsRef<Path>, keep: impl Fn(&Path) -> bool) -> Result<Self, OpenError> {
        let folder = folder.as_ref();
        let mut paths = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let listing = fs::read_dir(&folder).map_err(OpenError::io(&folder, "list"))?;
            for entry in listing {
                let entry = entry.map_err(OpenError::io(&folder, "list"))?;
                let path = entry.path();
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let kind = entry.file_type().map_err(OpenError::io(&path, "read"))?;
                if kind.is_dir() {
                    folders.push(path);
                } else if (kind.is_file() || path.is_file()) && keep(&path) {
                    paths.push(path);
                }
            }
        }
        if paths.is_empty() {
            return Err(OpenError::NoFiles { place: folder.display().to_string() });
        }
        paths.sort_unstable();
        Ok(Self { paths })
    }

    /// Returns the data set of the files that a manifest names, a text file with one path per line. Relative
    /// paths are relative to the manifest's folder.
    ///
    /// # Errors
    /// If the manifest cannot be read, is not UTF-8, or names nothing.
    pub fn manifest(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(OpenError::io(path, "read"))?;
        let text = String::from_utf8(bytes).map_err(|error| OpenError::malformed(path, error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let paths: Vec<_> = lines.map(|line| folder.join(line)).collect();
        if paths.is_empty() {
            return Err(OpenError::NoFiles { place: path.display().to_string() });
        }
        Ok(Self { paths })
    }

    /// Returns a digest of the files, by which they are recognised wherever `root` is: of their paths below `root`, in order, of their
    /// lengths, and of 16 pieces of 4 KB of each, which is all of a file of at most 64 KB.
    ///
    /// # Errors
    /// If a file cannot be read; an empty one can.
    pub fn fingerprint(&self, root: &Path) -> Result<String, OpenError> {
        let (mut sum, mut all_bytes) = (0, 0);
        for path in &self.paths {
            let name = path.strip_prefix(root).unwrap_or(path).as_os_str().as_encoded_bytes();
            let (len_bytes, content) = match Source::file(path) {
                Ok(source) => (source.len_bytes(), source.checksum()?),
                Err(OpenError::Empty { .. }) => (0, 0),
                Err(error) => return Err(error),
            };
            for part in
                [&(name.len() as u64).to_le_bytes(), name, &len_bytes.to_le_bytes(), &content.to_le_bytes()]
            {
                sum = crc32c_append(sum, part);
            }
            all_bytes += len_bytes;
        }
        Ok(format!("{}:{all_bytes}:{sum:08x}", self.paths.len()))
    }

    /// Returns the path of a sample's file; `None` if the sample does not exist. The path often tells the
    /// label.
    pub fn path(&self, sample: u64) -> Option<&Path> {
        self.paths.get(usize::try_from(sample).ok()?).map(PathBuf::as_path)
    }
}

impl Splitter for Files {
    type Rows = ByteRows;

    fn num_samples(&self) -> u64 {
        self.paths.len() as u64
    }

    fn cuts(&self, target_len: NonZeroU64) -> Cuts {
        Cuts::even(self.num_samples(), target_len)
    }

    fn read(&self, range: SampleRange) -> Result<ByteRows, ReadError> {
        ReadError::check(range, self.num_samples())?;
        let mut rows = ByteRows::starting_at(range.start);
        for sample in range.start..range.end {
            let path = self.path(sample).expect("the range was checked");
            let (mut file, _) = open_regular(path).map_err(ReadError::io(path, sample))?;
            let buffer = rows.buffer();
            let start = buffer.len();
            let len = file.read_to_end(buffer).map_err(ReadError::io(path, sample))?;
            if len == 0 {
                return Err(ReadError::Empty { sample, path: path.to_owned() });
            }
            rows.parts().1.push((start, start + len));
        }
        Ok(rows)
    }
}
