//! [`Recording`]: reads a recorded job (`antdt run --record FILE`), replays it, compares it, and turns it
//! into models for a simulation.
//!
//! A recording is read from front to back, entry by entry, as often as it is needed; it is never in memory as a whole.
//! The end of a file may be torn, because the process was killed while it wrote: that is no error, and
//! [`Entries::torn`] tells. Anything else that is no entry is an error that names the line.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use antdt_core::registry::BuildError;
use antdt_core::trace::{EntryKind, LineError, TraceEnd, TraceEntry, TraceHeader};
use antdt_job::HeadSettings;
use antdt_shard::DatasetSpec;

use crate::read;

pub mod diff;
pub mod facts;
pub mod models;
pub mod replay;

#[cfg(test)]
mod tests;

pub use diff::{DiffError, Difference, diff};
pub use facts::{ActionFact, BatchFact, EndFact, Facts, StartFact};
pub use models::{RecordedCompute, RecordedFaults, RecordedStarts};
pub use replay::{Parting, Replayed};

/// Reason why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file of the recording cannot be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// Path of the recording.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A line of the recording is malformed, and it is not the incomplete end of the file.
    #[error("{}, line {line}: {source}", file.display())]
    Line {
        /// Path of the recording.
        file: PathBuf,
        /// Line number, counted from 1.
        line: u64,
        /// Reason why the line is malformed.
        source: LineError,
    },
    /// The value of an entry is not one that its state machine can have.
    #[error("{}, line {line}: the {what} cannot be read: {source}; read it with the release that wrote it", file.display())]
    Value {
        /// Path of the recording.
        file: PathBuf,
        /// Line number, counted from 1.
        line: u64,
        /// Description of the value that cannot be read, such as `header of the head`.
        what: String,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// The header lacks the settings of a state machine.
    #[error("{}: the header has no {machine}; record the job again", file.display())]
    NoMachine {
        /// Path of the recording.
        file: PathBuf,
        /// Name of the state machine.
        machine: &'static str,
    },
    /// An entry belongs to a state machine that this release does not know.
    #[error("{}, line {line}: {machine:?} is no machine of a job", file.display())]
    UnknownMachine {
        /// Path of the recording.
        file: PathBuf,
        /// Line number, counted from 1.
        line: u64,
        /// Name of the state machine in the line.
        machine: String,
    },
    /// The job was recorded under a policy that this program does not know.
    #[error(transparent)]
    Policy(#[from] BuildError),
    /// A state machine cannot be made from its settings in the header.
    #[error("{}: the {machine} cannot be made from the header: {why}", file.display())]
    Machine {
        /// Path of the recording.
        file: PathBuf,
        /// Name of the state machine.
        machine: &'static str,
        /// Reason, in words.
        why: String,
    },
    /// A replayed state machine of this release does something else than the recorded one did.
    #[error("{}: {parting}", file.display())]
    Parted {
        /// Path of the recording.
        file: PathBuf,
        /// The first difference.
        parting: Box<Parting>,
    },
}

/// Function that opens a recording for reading from its first byte. A program can pass one that decompresses
/// files.
pub type Open = fn(&Path) -> io::Result<Box<dyn BufRead>>;

/// Opens a file without decompressing it.
///
/// # Errors
/// If the file cannot be opened.
pub fn open_plain(path: &Path) -> io::Result<Box<dyn BufRead>> {
    Ok(Box::new(BufReader::new(File::open(path)?)))
}

/// A recorded job. Only the header of the recording is in memory.
///
/// ```no_run
/// use antdt_sim::recording::Recording;
///
/// let recording = Recording::read("night.trace")?;
/// // The machines of this release decide as those of that night did.
/// recording.replay()?;
/// let facts = recording.facts()?;
/// println!("{:?} after {:?}", facts.outcome, facts.completed);
/// # Ok::<(), antdt_sim::recording::RecordingError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Recording {
    path: PathBuf,
    open: Open,
    header: TraceHeader,
}

impl Recording {
    /// Reads the header of the recording in a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a recording of a known version.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        Self::read_with(path, open_plain)
    }

    /// Reads a recording as [`read`](Self::read) does; `open` opens the file each time that it is read.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_with(path: impl AsRef<Path>, open: Open) -> Result<Self, RecordingError> {
        let path = path.as_ref().to_owned();
        let (header, _) = begin(&path, open)?;
        Ok(Self { path, open, header })
    }

    /// Returns the path of the recording's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the header: the recorder, the job, and the settings of its state machines.
    pub const fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Returns the settings of the master's head.
    ///
    /// # Errors
    /// If the header lacks them, or they cannot be read.
    pub fn head(&self) -> Result<HeadSettings, RecordingError> {
        self.machine("head")?
            .ok_or_else(|| RecordingError::NoMachine { file: self.path.clone(), machine: "head" })
    }

    /// Returns the settings of the ledger's data set; `None` if the job had no ledger.
    ///
    /// # Errors
    /// If the header has settings that cannot be read.
    pub fn dataset(&self) -> Result<Option<DatasetSpec>, RecordingError> {
        self.machine("ledger")
    }

    fn machine<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RecordingError> {
        let value = self.header.machines.get(name).cloned();
        value.map(serde_json::from_value).transpose().map_err(|source| RecordingError::Value {
            file: self.path.clone(),
            line: 1,
            what: format!("header of the {name}"),
            source,
        })
    }

    /// Returns the entries of the recording, from the first one on.
    ///
    /// # Errors
    /// If the file cannot be opened any more.
    pub fn entries(&self) -> Result<Entries, RecordingError> {
        let (_, reader) = begin(&self.path, self.open)?;
        Ok(Entries { file: self.path.clone(), reader, line: 1, buffer: Vec::new(), end: None, torn: None })
    }

    fn value_error(&self, line: u64, entry: &TraceEntry, source: serde_json::Error) -> RecordingError {
        let what = format!("{} of the {}", entry.kind.name(), entry.machine);
        RecordingError::Value { file: self.path.clone(), line, what, source }
    }
}

/// Opens a file and reads its first line.
fn begin(path: &Path, open: Open) -> Result<(TraceHeader, Box<dyn BufRead>), RecordingError> {
    let failed = |source| RecordingError::Io { file: path.to_owned(), source };
    let mut reader = open(path).map_err(failed)?;
    let mut line = Vec::new();
    // A file without lines must not be read into memory to find that out.
    io::Read::take(&mut reader, HEADER_MAX).read_until(b'\n', &mut line).map_err(failed)?;
    let header = TraceHeader::parse(&String::from_utf8_lossy(&line));
    let header = header.map_err(|source| RecordingError::Line { file: path.to_owned(), line: 1, source })?;
    Ok((header, reader))
}

/// Longest first line that is read. One has a few thousand bytes.
const HEADER_MAX: u64 = 1 << 20;

/// An iterator over the entries of a recording, in order, from [`Recording::entries`].
pub struct Entries {
    file: PathBuf,
    reader: Box<dyn BufRead>,
    line: u64,
    buffer: Vec<u8>,
    end: Option<TraceEnd>,
    torn: Option<u64>,
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("file", &self.file).field("line", &self.line).finish_non_exhaustive()
    }
}

impl Entries {
    /// Returns the line number of the entry that was returned last; the header is line 1.
    pub const fn line(&self) -> u64 {
        self.line
    }

    /// Returns the content of the recording's last entry, once it was returned. `None` after all entries
    /// means that the recording was cut off.
    pub const fn end(&self) -> Option<TraceEnd> {
        self.end
    }

    /// Returns, after all entries, the number of bytes of an incomplete last line; `None` if there is none.
    pub const fn torn(&self) -> Option<u64> {
        self.torn
    }

    /// Returns whether the recording is complete: it was closed in order, and no entries are missing.
    pub fn is_whole(&self) -> bool {
        self.end.is_some_and(|end| end.dropped == 0)
    }
}

impl Iterator for Entries {
    type Item = Result<TraceEntry, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.torn.is_some() {
            return None;
        }
        self.buffer.clear();
        match read::line(&mut self.reader, &mut self.buffer) {
            Ok(0) => return None,
            Ok(_) => {}
            // A compressed file that was cut off.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.torn = Some(self.buffer.len() as u64);
                return None;
            }
            Err(source) => return Some(Err(RecordingError::Io { file: self.file.clone(), source })),
        }
        self.line += 1;
        let whole = self.buffer.last() == Some(&b'\n');
        let text = String::from_utf8_lossy(&self.buffer);
        match TraceEntry::parse(text.trim_end_matches('\n')) {
            Ok(entry) => {
                if entry.kind == EntryKind::End {
                    self.end = entry.read().ok();
                }
                Some(Ok(entry))
            }
            Err(_) if !whole => {
                self.torn = Some(self.buffer.len() as u64);
                None
            }
            Err(source) => {
                Some(Err(RecordingError::Line { file: self.file.clone(), line: self.line, source }))
            }
        }
    }
}
