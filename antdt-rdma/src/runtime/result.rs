//! Verbs that return results: what a call of the library said, as a typed error.
#![allow(unsafe_code, reason = "reads the library's texts")]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::ptr::NonNull;

use super::sys;

/// Reason why an operation on an RDMA adapter (a verb) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// This host has no RDMA adapter, or its driver is not loaded.
    #[error(
        "this host has no RDMA adapter; load its driver (`rdma link` lists what there is), or choose another transport"
    )]
    NoAdapter,
    /// This host has no adapter of the requested name.
    #[error("device = {asked}: this host has {there}")]
    NoSuchAdapter {
        /// Requested name.
        asked: String,
        /// Names of the adapters that this host has.
        there: String,
    },
    /// This host has adapters, but none can be used.
    #[error("no RDMA adapter of this host can be used: {why}")]
    Unusable {
        /// For each adapter, what it lacks.
        why: String,
    },
    /// The connection manager of the RDMA stack cannot be used.
    #[error("the RDMA connection manager cannot be used: {why}")]
    NoManager {
        /// What the connection manager lacks.
        why: String,
    },
    /// The operating system does not let this process lock memory.
    #[error(
        "registering {len} bytes: {source}; allow this process to lock more memory (`ulimit -l unlimited`)"
    )]
    Memory {
        /// Length of the memory, in bytes.
        len: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// A queue of work requests is full at the moment.
    #[error("a queue of work requests is full")]
    Full,
    /// Another verb failed.
    #[error("{verb}: {source}")]
    Call {
        /// Name of the verb.
        verb: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Result of a verb.
pub(super) type Result<T> = std::result::Result<T, VerbsError>;

/// The result of a verb that returns zero, or the number of an error.
pub(super) fn zero(verb: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        // Some return the number, some -1 and leave it in `errno`.
        -1 => Err(VerbsError::Call { verb, source: io::Error::last_os_error() }),
        code => Err(VerbsError::Call { verb, source: io::Error::from_raw_os_error(code.abs()) }),
    }
}

/// The result of a verb that returns an object, or null.
pub(super) fn object<T>(verb: &'static str, pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| VerbsError::Call { verb, source: io::Error::last_os_error() })
}

/// The result of posting a work request.
pub(super) fn posted(verb: &'static str, code: c_int) -> Result<()> {
    match zero(verb, code) {
        // Providers differ in how they say that a queue is full.
        Err(VerbsError::Call { source, .. })
            if matches!(source.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull) =>
        {
            Err(VerbsError::Full)
        }
        result => result,
    }
}

/// The result of a work request that an RDMA adapter has processed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WorkStatus(u32);

impl WorkStatus {
    pub(super) const fn new(code: u32) -> Self {
        Self(code)
    }

    /// Returns whether the work request succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == sys::ibv_wc_status::IBV_WC_SUCCESS
    }

    /// Returns whether the work request failed because the peer's adapter did not answer any attempt.
    pub const fn is_silence(self) -> bool {
        matches!(
            self.0,
            sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR | sys::ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR
        )
    }

    /// Returns whether the work request failed because the peer had no receive posted at any attempt.
    pub const fn is_not_ready(self) -> bool {
        self.0 == sys::ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR
    }

    /// Returns whether the peer's adapter refused the access, because the key or the address is wrong.
    pub const fn is_refused(self) -> bool {
        self.0 == sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR
    }

    /// Returns whether the adapter dropped the work request, because an earlier one had failed or the queue
    /// pair was closed.
    pub const fn is_flushed(self) -> bool {
        self.0 == sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }
}

impl fmt::Display for WorkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the library returns a constant text for any number.
        let text = unsafe { CStr::from_ptr(sys::ibv_wc_status_str(self.0)) };
        write!(f, "{} ({})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for WorkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
