//! Reading the files of a checkpoint, each with its checksum.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use antdt_core::{CheckpointId, ParamLayout};
use antdt_model::Portion;
use antdt_shard::error::{DecodeError, RecoverError};

use super::storage::Storage;
use crate::header::Header;
use crate::manifest::{FileEntry, Manifest, ManifestError};
use crate::part::{self, PartFileError, PartShape};
use crate::state::{self, ModelState};

/// Reason why a checkpoint cannot be read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointReadError {
    /// The folder of checkpoints does not exist.
    #[error("{}: there is no such folder; name the folder of checkpoints, or the run directory of a job that kept some", .0.display())]
    NoFolder(PathBuf),
    /// The URL does not name a place for checkpoints.
    #[error("{url}: {why}")]
    Url {
        /// URL that was given.
        url: String,
        /// Reason why the URL does not name a place for checkpoints, in words.
        why: String,
    },
    /// The folder has no checkpoint of this number.
    #[error("{} has no checkpoint {checkpoint}; `antdt model list` shows those there are", folder.display())]
    NoCheckpoint {
        /// Path of the folder of checkpoints.
        folder: PathBuf,
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
    },
    /// The checkpoint in this folder has no manifest: the attempt to take it was interrupted.
    #[error("{}: it has no {}: it was not finished, or is being removed; take another checkpoint", .0.display(), Manifest::NAME)]
    Unfinished(PathBuf),
    /// The manifest cannot be used.
    #[error("{}: {error}", path.display())]
    Manifest {
        /// Path of the manifest.
        path: PathBuf,
        /// Reason why the manifest cannot be used.
        error: ManifestError,
    },
    /// A file that the manifest lists does not exist.
    #[error("{}: the file is missing; take another checkpoint", .0.display())]
    Missing(PathBuf),
    /// A file does not have the length in the manifest.
    #[error("{}: it has {bytes} bytes, {} says {due}: it is torn; take another checkpoint", path.display(), Manifest::NAME)]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Length that the file has, in bytes.
        bytes: u64,
        /// Length that the manifest says, in bytes.
        due: u64,
    },
    /// A file does not have the checksum in the manifest: its content has changed.
    #[error("{}: its crc32c is {found:08x}, {} says {due:08x}: it is damaged; take another checkpoint", path.display(), Manifest::NAME)]
    Checksum {
        /// Path of the file.
        path: PathBuf,
        /// Checksum (CRC-32C) that the file has.
        found: u32,
        /// Checksum that the manifest says.
        due: u32,
    },
    /// A file is not a part of the model, or the parts together are not the whole model.
    #[error("{}: {error}; take another checkpoint", path.display())]
    Part {
        /// Path of the file, or of the checkpoint's folder.
        path: PathBuf,
        /// Reason why the file, or the set of parts, is wrong.
        error: PartFileError,
    },
    /// The ledger's cut cannot be read with the settings of this data set.
    #[error("{}: {error}; resume with the data set and the --shard-len of the checkpoint", path.display())]
    Ledger {
        /// Path of the file with the ledger's cut.
        path: PathBuf,
        /// Reason why the cut cannot be read.
        error: DecodeError,
    },
    /// The ledger's cut and the model do not come from the same checkpoint.
    #[error("{}: {error}", path.display())]
    Pair {
        /// Path of the file with the ledger's cut.
        path: PathBuf,
        /// Difference between the binding in the cut and that in the manifest.
        error: RecoverError,
    },
    /// The operating system could not read a file.
    #[error("cannot read {}: {error}; see to its permissions, and to the disk or store that it is on", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
}

pub(super) fn unread(path: &Path) -> impl Fn(io::Error) -> CheckpointReadError + '_ {
    move |error| match error.kind() {
        ErrorKind::NotFound => CheckpointReadError::Missing(path.to_owned()),
        _ => CheckpointReadError::Io { path: path.to_owned(), error },
    }
}

/// Longest manifest that is read, in bytes: one of 100,000 files is shorter.
const MANIFEST_LEN_MAX: u64 = 64 << 20;

/// Reads the manifest of the checkpoint in a folder.
pub(super) fn manifest(
    storage: &dyn Storage,
    folder: &Path,
    checkpoint: CheckpointId,
) -> Result<Manifest, CheckpointReadError> {
    let path = folder.join(Manifest::NAME);
    let mut bytes = Vec::new();
    let read = storage.read(&path).and_then(|file| file.take(MANIFEST_LEN_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| match error.kind() {
        ErrorKind::NotFound => CheckpointReadError::Unfinished(folder.to_owned()),
        _ => unread(&path)(error),
    })?;
    let manifest = Some(&bytes[..])
        .filter(|bytes| bytes.len() as u64 <= MANIFEST_LEN_MAX)
        .ok_or_else(|| ManifestError::Malformed { why: format!("it has more than {MANIFEST_LEN_MAX} bytes") })
        .and_then(Manifest::from_json)
        .map_err(|error| CheckpointReadError::Manifest { path: path.clone(), error })?;
    if manifest.checkpoint != checkpoint {
        let why = format!("it is of checkpoint {}, in a folder of another", manifest.checkpoint);
        return Err(CheckpointReadError::Manifest { path, error: ManifestError::Malformed { why } });
    }
    Ok(manifest)
}

/// Checks that a file is there with the length that is due.
pub(super) fn check_length(
    storage: &dyn Storage,
    folder: &Path,
    entry: &FileEntry,
) -> Result<(), CheckpointReadError> {
    let path = folder.join(&entry.name);
    let bytes = storage.len_bytes(&path).map_err(unread(&path))?;
    if bytes == entry.bytes {
        Ok(())
    } else {
        Err(CheckpointReadError::Length { path, bytes, due: entry.bytes })
    }
}

/// A file that is read from beginning to end.
struct Source {
    path: PathBuf,
    file: Box<dyn Read + Send>,
    crc32c: u32,
    left: u64,
    entry: FileEntry,
}

impl Source {
    /// So much is read and summed at a time.
    const CHUNK: usize = 1 << 20;

    fn open(storage: &dyn Storage, folder: &Path, entry: &FileEntry) -> Result<Self, CheckpointReadError> {
        check_length(storage, folder, entry)?;
        let path = folder.join(&entry.name);
        let file = storage.read(&path).map_err(unread(&path))?;
        Ok(Self { path, file, crc32c: 0, left: entry.bytes, entry: entry.clone() })
    }

    /// Fills `into` with the next bytes; that many are left.
    fn take(&mut self, into: &mut [u8]) -> Result<(), CheckpointReadError> {
        for chunk in into.chunks_mut(Self::CHUNK) {
            self.file.read_exact(chunk).map_err(|error| match error.kind() {
                // It was longer a moment ago.
                ErrorKind::UnexpectedEof => {
                    let (due, bytes) = (self.entry.bytes, self.entry.bytes - self.left);
                    CheckpointReadError::Length { path: self.path.clone(), bytes, due }
                }
                _ => unread(&self.path)(error),
            })?;
            self.crc32c = crc32c::crc32c_append(self.crc32c, chunk);
            self.left -= chunk.len() as u64;
        }
        Ok(())
    }

    /// Reads what is left, and compares the checksum.
    fn finish(mut self) -> Result<(), CheckpointReadError> {
        let mut chunk = vec![0; Self::CHUNK.min(usize::try_from(self.left).unwrap_or(usize::MAX))];
        while self.left > 0 {
            let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(chunk.len());
            self.take(&mut chunk[..len])?;
        }
        let (found, due) = (self.crc32c, self.entry.crc32c);
        if found == due { Ok(()) } else { Err(CheckpointReadError::Checksum { path: self.path, found, due }) }
    }

    /// Reads the header, and what it says of the part: of a program's own, that it is the whole model.
    fn shape(
        &mut self,
        layout: &ParamLayout,
    ) -> Result<Result<PartShape, PartFileError>, CheckpointReadError> {
        let is_state = self.entry.name == Manifest::STATE;
        Ok(self.header()?.and_then(|header| match is_state {
            true => state::outline(&header).map(|_| PartShape {
                dense: 0..layout.dense_len(),
                states: 0,
                rows: Vec::new(),
            }),
            false => PartShape::from_header(&header, layout),
        }))
    }

    fn header(&mut self) -> Result<Result<Header, PartFileError>, CheckpointReadError> {
        let mut prefix = [0; Header::PREFIX];
        if self.left < prefix.len() as u64 {
            return Ok(Err(PartFileError::from("it is too short".to_owned())));
        }
        self.take(&mut prefix)?;
        let len = match Header::json_len(prefix, self.entry.bytes) {
            Ok(len) => len,
            Err(why) => return Ok(Err(why.into())),
        };
        let mut json = vec![0; len];
        self.take(&mut json)?;
        let left = self.left;
        Ok(Header::decode(&json).map_err(PartFileError::from).and_then(|header| {
            let due = header.data_bytes();
            if due != left {
                return Err(format!("{left} bytes follow its header, which announces {due}").into());
            }
            Ok(header)
        }))
    }

    /// A header that makes no sense is damage, where the checksum says so, else a file that is not ours.
    fn refuse(self, error: PartFileError) -> CheckpointReadError {
        let path = self.path.clone();
        self.finish().err().unwrap_or(CheckpointReadError::Part { path, error })
    }
}

/// Reads a whole file that is small.
pub(super) fn small(
    storage: &dyn Storage,
    folder: &Path,
    entry: &FileEntry,
) -> Result<Vec<u8>, CheckpointReadError> {
    let mut source = Source::open(storage, folder, entry)?;
    let mut bytes = vec![0; usize::try_from(entry.bytes).unwrap_or(usize::MAX)];
    source.take(&mut bytes)?;
    source.finish()?;
    Ok(bytes)
}

/// Reads a file to its end for its checksum; of a part, says which piece of the flat vector it holds.
pub(super) fn verify(
    storage: &dyn Storage,
    folder: &Path,
    entry: &FileEntry,
    layout: Option<&ParamLayout>,
) -> Result<PartShape, CheckpointReadError> {
    let mut source = Source::open(storage, folder, entry)?;
    let shape = match layout.map(|layout| source.shape(layout)).transpose()? {
        None => PartShape { dense: 0..0, states: 0, rows: Vec::new() },
        Some(Ok(shape)) => shape,
        Some(Err(error)) => return Err(source.refuse(error)),
    };
    source.finish()?;
    Ok(shape)
}

/// Reads a model that is a program's own.
pub(super) fn state(
    storage: &dyn Storage,
    folder: &Path,
    entry: &FileEntry,
) -> Result<ModelState, CheckpointReadError> {
    let mut source = Source::open(storage, folder, entry)?;
    // The file is as long as all that is allocated here.
    let mut model = match source.header()?.and_then(state::zeros) {
        Ok(model) => model,
        Err(error) => return Err(source.refuse(error)),
    };
    for tensor in &mut model.tensors {
        source.take(&mut tensor.bytes)?;
    }
    source.finish()?;
    Ok(model)
}

/// Reads a part of the model.
pub(super) fn portion(
    storage: &dyn Storage,
    folder: &Path,
    entry: &FileEntry,
    layout: &ParamLayout,
) -> Result<Portion, CheckpointReadError> {
    let mut source = Source::open(storage, folder, entry)?;
    let shape = match source.shape(layout)? {
        Ok(shape) => shape,
        Err(error) => return Err(source.refuse(error)),
    };
    // The file is as long as all that is allocated here.
    let mut portion = shape.zeros(layout);
    for array in part::arrays_mut(&mut portion) {
        source.take(array)?;
    }
    let path = source.path.clone();
    source.finish()?;
    portion
        .validate(layout)
        .map_err(|error| CheckpointReadError::Part { path, error: error.to_string().into() })?;
    Ok(portion)
}
