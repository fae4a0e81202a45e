//! What is remembered of a data file from one process to the next: where, in what frame on disk, and how one of other data is told.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crc32c::crc32c;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cache::Turn;
use crate::error::{IndexError, OpenError};
use crate::source::{Source, Stamp};

/// The place where indexes of data files are stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IndexPlace {
    /// Memory only: every process builds an index each time it opens a data set.
    Memory,
    /// A file beside each data file, called `NAME.antdt-index`. Files in an object store are treated as with
    /// [`Memory`](Self::Memory).
    #[default]
    Beside,
    /// Files in this folder, for data that are read-only; the folder is created if it does not exist.
    Folder(PathBuf),
}

impl IndexPlace {
    /// The index file of a data file.
    fn of(&self, source: &Source) -> Option<PathBuf> {
        let path = source.stored_at();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Self::Memory => None,
            // There is no beside in an object store.
            Self::Beside => source.is_on_disk().then(|| path.with_file_name(format!("{name}.antdt-index"))),
            // Files of one name in several folders have an index each; should two share one all the same, it is
            // noticed as other data.
            Self::Folder(folder) => Some(folder.join(format!("{name}-{:08x}.antdt-index", source.place()))),
        }
    }
}

/// Where the index of a file came from when the file was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexOrigin {
    /// A stored index of the file was loaded.
    Loaded,
    /// There was no stored index, so it was built.
    Built,
    /// The stored index could not be used, for this reason; it was built anew and replaced.
    Rebuilt(IndexError),
}

/// By what an index knows its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    pub(crate) stamp: Stamp,
    /// Finds an edit after which the time of the last write was set back.
    changed_ns: i64,
    /// Checksum of pieces of the file.
    checksum: u32,
}

impl Fingerprint {
    pub(crate) fn of(source: &Source) -> Result<Self, OpenError> {
        Ok(Self { stamp: source.stamp, changed_ns: source.changed_ns()?, checksum: source.checksum()? })
    }

    /// What differs in a file that has the fingerprint `now`; `None` if it is the same file.
    pub(crate) fn difference(&self, now: &Self) -> Option<&'static str> {
        if self.stamp.len_bytes != now.stamp.len_bytes {
            Some("the length of the file")
        } else if self.stamp.modified_ns != now.stamp.modified_ns {
            Some("the time of its last change")
        } else if self.checksum != now.checksum {
            Some("its content")
        } else {
            (self.changed_ns != now.changed_ns).then_some("the time of its last change")
        }
    }
}

/// Puts `value` in a frame: `magic`, the version of its format, the value as `postcard` writes it, and the CRC-32C of all this.
pub(crate) fn framed(magic: [u8; 8], version: u32, value: &impl Serialize) -> Vec<u8> {
    let head = [&magic[..], &version.to_le_bytes()].concat();
    let mut out = postcard::to_extend(value, head).expect("an index has a form as bytes");
    out.extend_from_slice(&crc32c(&out).to_le_bytes());
    out
}

/// The value in a frame.
pub(crate) fn unframed<T: DeserializeOwned>(
    magic: [u8; 8],
    version: u32,
    bytes: &[u8],
) -> Result<T, IndexError> {
    let malformed = |why| IndexError::Malformed { why };
    let Some(rest) = bytes.strip_prefix(&magic) else {
        return Err(malformed("it begins with other bytes"));
    };
    let (found, rest) = rest.split_first_chunk().ok_or(malformed("it is cut off"))?;
    let found = u32::from_le_bytes(*found);
    if found != version {
        return Err(IndexError::Version { found, known: version });
    }
    let (value, sum) = rest.split_last_chunk().ok_or(malformed("it is cut off"))?;
    if crc32c(&bytes[..bytes.len() - sum.len()]) != u32::from_le_bytes(*sum) {
        return Err(malformed("its checksum is wrong"));
    }
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(malformed("it is no list of numbers")),
    }
}

/// Takes the index of a file from where it is kept, or builds it and keeps it there as `bytes_of` writes it.
pub(crate) fn find<T>(
    source: &Source,
    place: &IndexPlace,
    load: impl Fn(&[u8]) -> Result<T, IndexError>,
    build: impl FnOnce() -> Result<T, OpenError>,
    bytes_of: impl FnOnce(&T) -> Option<Vec<u8>>,
) -> Result<(T, IndexOrigin), OpenError> {
    let Some(kept) = place.of(source) else {
        return Ok((build()?, IndexOrigin::Built));
    };
    let load = || load_kept(&kept, &load);
    let mut origin = match load()? {
        Ok(index) => return Ok((index, IndexOrigin::Loaded)),
        Err(origin) => origin,
    };
    // A folder that is ours has room for a lock; beside the data nothing is left but the index.
    let _turn = match place {
        IndexPlace::Folder(_) => {
            let failed = |source| OpenError::IndexPlace { path: kept.clone(), source };
            let turn = Turn::take(&kept, source.len_bytes()).map_err(failed)?;
            // Another process may have built it meanwhile.
            match load()? {
                Ok(index) => return Ok((index, IndexOrigin::Loaded)),
                Err(now) => origin = now,
            }
            Some(turn)
        }
        IndexPlace::Beside | IndexPlace::Memory => None,
    };
    let index = build()?;
    if let Some(bytes) = bytes_of(&index) {
        save(&kept, &bytes)?;
    }
    Ok((index, origin))
}

/// The index that is kept, or why one has to be built.
fn load_kept<T>(
    kept: &Path,
    load: impl Fn(&[u8]) -> Result<T, IndexError>,
) -> Result<Result<T, IndexOrigin>, OpenError> {
    match fs::read(kept) {
        Ok(bytes) => Ok(load(&bytes).map_err(IndexOrigin::Rebuilt)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(IndexOrigin::Built)),
        Err(source) => Err(OpenError::IndexPlace { path: kept.to_owned(), source }),
    }
}

/// Writes a file so that others see all of it or nothing.
fn save(path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
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
