//! Copies of files that cannot be read by range. A file is unpacked or fetched once, to a disk of this
//! machine.
//!
//! A compressed stream has no random access, and Parquet is read in pieces too small for the round trips of an object
//! store. Both become an ordinary file in the [`Cache`]. Access points into the compressed stream would save the space,
//! at 32 KB of window each and the repeated decompression of what lies before a shard; the one crate for gzip that has
//! them (`indexed_deflate`) is a first version.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process;

use flate2::bufread::GzDecoder;

use crate::cache::{Cache, Turn};
use crate::error::OpenError;
use crate::source::{Container, Source};

/// Copied at once.
const CHUNK_LEN_BYTES: usize = 256 << 10;

/// Progress of the copy of a file into the cache, for one line of output to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnpackNotice {
    /// The copy begins.
    Begun {
        /// Path of the file that is copied, because it cannot be read by range.
        path: PathBuf,
        /// Length of the file in bytes.
        len_bytes: u64,
        /// Container format of the file; [`Container::Parquet`] is copied without a change.
        container: Container,
        /// Folder that the copy is written to.
        folder: PathBuf,
    },
    /// The copy is complete.
    Complete {
        /// Path of the file that was copied.
        path: PathBuf,
        /// Length of the copy in bytes.
        len_bytes: u64,
    },
}

impl fmt::Display for UnpackNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[allow(clippy::cast_precision_loss, reason = "a length to read, not to compute with")]
        let size = |len_bytes: &u64| format!("{:.1} MB", *len_bytes as f64 / 1e6);
        match self {
            Self::Begun { path, len_bytes, container, folder } => write!(
                f,
                "{} ({} of {container}) cannot be read by range: copying its content to {}",
                path.display(),
                size(len_bytes),
                folder.display()
            ),
            Self::Complete { path, len_bytes } => {
                write!(f, "{} takes {} there", path.display(), size(len_bytes))
            }
        }
    }
}

impl Source {
    /// Returns the source itself if it can be read by range; otherwise its copy in the cache, which is made
    /// if it does not exist yet. The copy has the [`path`](Self::path) of the source, which errors of its content
    /// name. `announce` is called before a copy begins and when it is complete.
    ///
    /// If several processes of one machine need the same copy, one process makes it, and the others wait.
    ///
    /// # Errors
    /// If the file cannot be read, its form is unknown, or the copy cannot be kept, for example on a full disk.
    pub fn seekable(self, cache: &Cache, announce: &mut dyn FnMut(&UnpackNotice)) -> Result<Self, OpenError> {
        let container = self.container()?;
        match container {
            Container::Plain => return Ok(self),
            Container::Parquet if self.is_on_disk() => return Ok(self),
            Container::Parquet | Container::Gzip => {}
            Container::Zstd if cfg!(feature = "zstd") => {}
            Container::Zstd | Container::Unknown(_) => {
                return Err(OpenError::Compressed { path: self.path, container });
            }
        }
        let target = self.place_in(cache)?;
        let failed =
            |source| OpenError::Copy { path: self.path.clone(), folder: cache.folder().into(), source };
        // A copy appears whole or not at all, and its name says of what.
        if let Some(copy) = Self::sealed(&target) {
            return Ok(copy.copy_of(self.path));
        }
        let turn = Turn::take(&target, self.len_bytes()).map_err(failed)?;
        if let Some(copy) = Self::sealed(&target) {
            return Ok(copy.copy_of(self.path));
        }
        announce(&UnpackNotice::Begun {
            path: self.path.clone(),
            len_bytes: self.len_bytes(),
            container,
            folder: cache.folder().into(),
        });
        // What a process left that was killed half-way is written over by the next.
        let part = match turn {
            Turn::Alone(_) => target.with_extension("part"),
            Turn::TimedOut => target.with_extension(format!("{}.part", process::id())),
        };
        let copied =
            self.copy(container, &part, cache.unpack_limit_bytes(self.len_bytes())).and_then(|len_bytes| {
                // The seal first: a copy without one is made again.
                fs::write(seal_of(&target), Self::file(&part)?.seal()?).map_err(failed)?;
                fs::rename(&part, &target).map_err(failed)?;
                Ok(len_bytes)
            });
        let len_bytes = copied.inspect_err(|_| {
            // The error that came first is the one to report.
            let _ = fs::remove_file(&part);
        })?;
        announce(&UnpackNotice::Complete { path: self.path.clone(), len_bytes });
        self.remove_older(&target);
        if len_bytes == 0 {
            return Err(OpenError::Empty { path: self.path });
        }
        Ok(Self::file(&target)?.copy_of(self.path))
    }

    /// The copy at `target`, if it is there as it was made.
    fn sealed(target: &Path) -> Option<Self> {
        let copy = Self::file(target).ok()?;
        let seal = fs::read_to_string(seal_of(target)).ok()?;
        (copy.seal().ok()? == seal).then_some(copy)
    }

    /// What tells a file from one that was cut or written to since: length, time of change, and a checksum of 16 pieces.
    fn seal(&self) -> Result<String, OpenError> {
        Ok(format!("{} {} {:08x}\n", self.stamp.len_bytes, self.stamp.modified_ns, self.checksum()?))
    }

    /// Where the copy of this version of the file lies.
    fn place_in(&self, cache: &Cache) -> Result<PathBuf, OpenError> {
        let version = self.checksum()? ^ u32::try_from(self.stamp.modified_ns & 0xffff_ffff).unwrap_or(0);
        Ok(cache.folder().join(format!("{}{}-{version:08x}.copy", self.copies(), self.len_bytes())))
    }

    /// What the names of all copies of the file begin with, whatever its version.
    fn copies(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name}-{:08x}-", self.place())
    }

    /// Writes its content to `part`, at most `limit_bytes` of it. Returns how many bytes that are.
    fn copy(&self, container: Container, part: &Path, limit_bytes: u64) -> Result<u64, OpenError> {
        let damaged = |source: io::Error| OpenError::Io { path: self.path.clone(), doing: "read", source };
        let folder = part.parent().unwrap_or(Path::new("")).to_owned();
        let full = |source| OpenError::Copy { path: self.path.clone(), folder: folder.clone(), source };
        let packed = BufReader::with_capacity(CHUNK_LEN_BYTES, self.stream(0)?);
        let mut plain: Box<dyn Read + '_> = match container {
            Container::Gzip => Box::new(GzipMembers { now: Some(GzDecoder::new(packed)) }),
            #[cfg(feature = "zstd")]
            Container::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed).map_err(damaged)?),
            #[cfg(not(feature = "zstd"))]
            Container::Zstd => Box::new(packed),
            Container::Plain | Container::Parquet | Container::Unknown(_) => Box::new(packed),
        };
        let mut out = File::create(part).map_err(full)?;
        let mut chunk = vec![0; CHUNK_LEN_BYTES];
        let mut written = 0;
        loop {
            let len = match plain.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.is_on_disk() => {
                    let (path, len_bytes) = (self.path.clone(), self.len_bytes());
                    return Err(OpenError::CutOff { path, container, len_bytes, unpacked: written });
                }
                Err(error) => return Err(damaged(error)),
            };
            written += len as u64;
            if written > limit_bytes {
                let (path, len_bytes) = (self.path.clone(), self.len_bytes());
                return Err(OpenError::Unpacked { path, container, len_bytes, limit_bytes });
            }
            out.write_all(&chunk[..len]).map_err(full)?;
        }
        if !self.is_unchanged()? {
            return Err(OpenError::Changed { path: self.path.clone() });
        }
        out.sync_all().map_err(full)?;
        Ok(written)
    }

    /// Removes copies of earlier versions of the file, whole or not. What cannot be removed stays.
    fn remove_older(&self, target: &Path) {
        let of_this_file = self.copies();
        for entry in
            target.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten()
        {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let of_a_copy = [".copy", ".copy.seal", ".part"].iter().any(|end| name.ends_with(end));
            let is_new = path == target || path == seal_of(target);
            if !is_new && name.starts_with(&of_this_file) && of_a_copy {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Where the seal of the copy at `target` lies.
fn seal_of(target: &Path) -> PathBuf {
    let mut seal = target.as_os_str().to_owned();
    seal.push(".seal");
    seal.into()
}

/// The members of a gzip file one after the other, as gzip(1) reads them: zeros behind the last one fill up a block of its medium.
struct GzipMembers<R> {
    now: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.now {
            let len = member.read(out)?;
            if len > 0 || out.is_empty() {
                return Ok(len);
            }
            let Some(mut packed) = self.now.take().map(GzDecoder::into_inner) else { break };
            if skip_zeros(&mut packed)? {
                self.now = Some(GzDecoder::new(packed));
            }
        }
        Ok(0)
    }
}

/// Whether something else follows.
fn skip_zeros(packed: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match packed.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(false);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        if zeros < bytes.len() {
            packed.consume(zeros);
            return Ok(true);
        }
        packed.consume(zeros);
    }
}

#[cfg(test)]
mod tests;
