//! The lines of a recording: what a machine was told, what it answered, and what it wanted done.
//!
//! A trace is text: one JSON object per line, first a [`TraceHeader`], then a [`TraceEntry`] for each thing that happened. The
//! entries of one machine stand in the order in which they happened; those of two machines may overtake each other by
//! moments, as the machines did. A machine that is made as the header says and is told the recorded events at the
//! recorded times gives the recorded answers and effects, byte for byte.
//!
//! The last line is a [`TraceEntry`] of kind [`EntryKind::End`], unless the recording process was killed.
//!
//! Nothing here reads or writes a file.
//!
//! Source: our design.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::time::JobTime;

/// The version of the format that is written here, and the only one that is read.
pub const VERSION: u32 = 1;

/// The first line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// Version of the format.
    pub antdt_trace: u32,
    /// The program that recorded, and its version.
    pub recorder: String,
    /// The job.
    pub job: String,
    /// Settings of the job by name, in text form.
    pub settings: BTreeMap<String, String>,
    /// By name of the machine: what it was made from.
    pub machines: BTreeMap<String, Value>,
}

/// Why a line is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is not the first line of a trace.
    #[error("it does not begin with the header of a trace; record one with `antdt run --record FILE`")]
    NoHeader,
    /// Written by another release.
    #[error(
        "its format version is {version}, and {VERSION} can be read; read it with the release that wrote it"
    )]
    Version {
        /// Version in the file.
        version: u64,
    },
    /// It is no JSON, or of another shape.
    #[error("it is no entry of a trace: {0}")]
    Entry(#[from] serde_json::Error),
}

impl TraceHeader {
    /// A header of the present version, of no machine yet.
    pub fn new(recorder: impl Into<String>, job: impl Into<String>) -> Self {
        Self {
            antdt_trace: VERSION,
            recorder: recorder.into(),
            job: job.into(),
            settings: BTreeMap::new(),
            machines: BTreeMap::new(),
        }
    }

    /// Reads the first line of a trace.
    ///
    /// # Errors
    /// If it is none, or of a version that is not known.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        let value: Value = serde_json::from_str(line).map_err(|_| LineError::NoHeader)?;
        match value.get("antdt_trace").and_then(Value::as_u64) {
            None => Err(LineError::NoHeader),
            Some(version) if version != u64::from(VERSION) => Err(LineError::Version { version }),
            Some(_) => Ok(serde_json::from_value(value)?),
        }
    }

    /// Appends the line.
    ///
    /// # Errors
    /// Never by itself: a value that cannot be written was refused when it was made.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(&mut *out, self)?;
        out.push(b'\n');
        Ok(())
    }
}

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// The machine was told this.
    Event,
    /// It answered this to the event before.
    Answer,
    /// A deadline of the machine passed, and it was told so. No value.
    Deadline,
    /// It wanted this done.
    Effect,
    /// It was lost, and made again from what it had written down; its effects up to now say what that is. No value.
    Restart,
    /// The recording ends here: a [`TraceEnd`].
    End,
}

impl EntryKind {
    /// As written in a trace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Answer => "answer",
            Self::Deadline => "deadline",
            Self::Effect => "effect",
            Self::Restart => "restart",
            Self::End => "end",
        }
    }
}

/// Any line of a trace but the first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceEntry {
    /// Time at which it happened.
    #[serde(rename = "t")]
    pub at: JobTime,
    /// Name of the machine; [`TraceEntry::TRACE`] of the recording itself.
    #[serde(rename = "m")]
    pub machine: String,
    /// What kind of thing it is.
    #[serde(rename = "k")]
    pub kind: EntryKind,
    /// The event, the answer, the effect: as it was written, so that it can be compared without being understood.
    #[serde(rename = "v")]
    pub value: Box<RawValue>,
}

impl PartialEq for TraceEntry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, &self.machine, self.kind, self.value.get())
            == (other.at, &other.machine, other.kind, other.value.get())
    }
}

impl TraceEntry {
    /// The name that stands for the recording itself.
    pub const TRACE: &'static str = "trace";

    /// Reads a line.
    ///
    /// # Errors
    /// If it is no entry.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Reads the value.
    ///
    /// # Errors
    /// If it is not of that type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.value.get())
    }
}

/// What is written at the end of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceEnd {
    /// Entries before this one.
    pub entries: u64,
    /// Things that happened after the recording had to stop, and are not in it.
    pub dropped: u64,
}

/// Appends the line of one entry. If the value cannot be written nothing is appended.
///
/// # Errors
/// If the value has no form in JSON.
pub fn write_entry<T: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    at: JobTime,
    machine: &str,
    kind: EntryKind,
    value: &T,
) -> Result<(), serde_json::Error> {
    #[derive(Serialize)]
    struct Line<'a, T: ?Sized> {
        t: JobTime,
        m: &'a str,
        k: EntryKind,
        v: &'a T,
    }
    let start = out.len();
    let written = serde_json::to_writer(&mut *out, &Line { t: at, m: machine, k: kind, v: value });
    match &written {
        Ok(()) => out.push(b'\n'),
        Err(_) => out.truncate(start),
    }
    written
}

#[cfg(test)]
mod tests;
