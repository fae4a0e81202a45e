//! One version of an object, read by range.

use std::fmt::Write;
use std::io::{self, Read};
use std::path::PathBuf;

use object_store::ObjectMeta;

use super::store::RemoteStore;
use crate::error::ReadError;
use crate::source::Stamp;

/// Read at once when an object is read from one end to the other: long against a round trip, small against the memory.
const CHUNK_LEN_BYTES: u64 = 8 << 20;

/// One version of an object.
#[derive(Debug, Clone)]
pub(crate) struct RemoteObject {
    store: RemoteStore,
    url: String,
    meta: ObjectMeta,
    version: String,
}

impl RemoteObject {
    pub(super) fn new(store: RemoteStore, url: String, meta: ObjectMeta) -> Self {
        let version = version_of(&meta);
        Self { store, url, meta, version }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What tells its versions apart.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn stamp(&self) -> Stamp {
        let modified = self.meta.last_modified.timestamp_nanos_opt();
        let modified_ns = modified.and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        Stamp { len_bytes: self.meta.size, modified_ns }
    }

    /// Reads `len_bytes` bytes from `at` on and appends them to `into`.
    pub(crate) fn append(
        &self,
        at: u64,
        len_bytes: u64,
        sample: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        if len_bytes == 0 {
            return Ok(());
        }
        let path = || PathBuf::from(&self.url);
        let (meta, bytes) = self
            .store
            .range(&self.meta.location, at, len_bytes)
            .map_err(|why| ReadError::Io { sample, path: path(), source: io::Error::other(why) })?;
        if version_of(&meta) != self.version || bytes.len() as u64 != len_bytes {
            return Err(ReadError::Changed { sample, path: path() });
        }
        into.extend_from_slice(&bytes);
        Ok(())
    }

    /// Its bytes from `at` on, one after the other.
    pub(crate) const fn stream(&self, at: u64) -> RemoteStream<'_> {
        RemoteStream { object: self, next: at, chunk: Vec::new(), taken: 0 }
    }
}

/// The entity tag where the store has one, and what else it says.
fn version_of(meta: &ObjectMeta) -> String {
    let mut version = meta.e_tag.clone().unwrap_or_default();
    // A string takes all that is written to it.
    let _ = write!(version, " {} {}", meta.last_modified.timestamp_nanos_opt().unwrap_or(0), meta.size);
    version
}

/// An object from some place to its end.
#[derive(Debug)]
pub(crate) struct RemoteStream<'a> {
    object: &'a RemoteObject,
    /// Where the chunk after this one begins.
    next: u64,
    chunk: Vec<u8>,
    /// Bytes of the chunk that were read.
    taken: usize,
}

impl Read for RemoteStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() {
            let len_bytes = CHUNK_LEN_BYTES.min(self.object.meta.size.saturating_sub(self.next));
            self.chunk.clear();
            self.taken = 0;
            self.object.append(self.next, len_bytes, 0, &mut self.chunk).map_err(|error| match error {
                ReadError::Io { source, .. } => source,
                error => io::Error::other(error.to_string()),
            })?;
            self.next += len_bytes;
        }
        let rest = &self.chunk[self.taken..];
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        self.taken += len;
        Ok(len)
    }
}
