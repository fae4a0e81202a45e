//! The lines of a recording: the events, answers and effects of a job's state machines.
//!
//! A trace is text: one JSON object per line, first a [`TraceHeader`], then a [`TraceEntry`] for each event,
//! answer or effect. The entries of one machine stand in the order in which they happened; those of two
//! machines may overtake each other by moments, as the machines did. A machine that is made as the header
//! says and is told the recorded events at the recorded times gives the recorded answers and effects, byte
//! for byte.
//!
//! The last line is a [`TraceEntry`] of kind [`EntryKind::End`], unless the recording process was killed.
//!
//! This module reads and writes no file.
//!
//! Source: our design.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::time::JobTime;

/// Version of the trace format that this release writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// The first line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// Version of the trace format.
    pub antdt_trace: u32,
    /// Name and version of the program that recorded the trace.
    pub recorder: String,
    /// Name of the job.
    pub job: String,
    /// Settings of the job by name, in text form.
    pub settings: BTreeMap<String, String>,
    /// For each machine by name, the settings that it was made from.
    pub machines: BTreeMap<String, Value>,
}

/// Reason why a line of a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line is not the header of a trace.
    #[error("it does not begin with the header of a trace; record one with `antdt run --record FILE`")]
    NoHeader,
    /// Another release wrote the trace: read it with that release.
    #[error(
        "its format version is {version}, and {VERSION} can be read; read it with the release that wrote it"
    )]
    Version {
        /// Format version of the trace.
        version: u64,
    },
    /// The line is not JSON, or has the wrong fields.
    #[error("it is no entry of a trace: {0}")]
    Entry(#[from] serde_json::Error),
}

impl TraceHeader {
    /// Returns a header of the current version, without machines; `recorder` is the name and version of the
    /// program.
    pub fn new(recorder: impl Into<String>, job: impl Into<String>) -> Self {
        Self {
            antdt_trace: VERSION,
            recorder: recorder.into(),
            job: job.into(),
            settings: BTreeMap::new(),
            machines: BTreeMap::new(),
        }
    }

    /// Parses the first line of a trace.
    ///
    /// # Errors
    /// If the line is not a header, or of an unknown version.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        let value: Value = serde_json::from_str(line).map_err(|_| LineError::NoHeader)?;
        match value.get("antdt_trace").and_then(Value::as_u64) {
            None => Err(LineError::NoHeader),
            Some(version) if version != u64::from(VERSION) => Err(LineError::Version { version }),
            Some(_) => Ok(serde_json::from_value(value)?),
        }
    }

    /// Appends the header as a line.
    ///
    /// # Errors
    /// If the header cannot be written as JSON. Its fields are strings and JSON values, so this does not happen.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(&mut *out, self)?;
        out.push(b'\n');
        Ok(())
    }
}

/// Kind of an entry of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// The value is an event that the machine was told.
    Event,
    /// The value is the machine's answer to the event before.
    Answer,
    /// The machine was told that its deadline passed; there is no value.
    Deadline,
    /// The value is an effect that the machine asked its driver to carry out.
    Effect,
    /// The machine was lost, and recovered from the records that its earlier effects had stored; there is no
    /// value.
    Restart,
    /// The recording ends here; the value is a [`TraceEnd`].
    End,
}

impl EntryKind {
    /// Returns the name of the kind in a trace.
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

/// An entry of a trace: any line but the first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceEntry {
    /// Job time at which the entry happened.
    #[serde(rename = "t")]
    pub at: JobTime,
    /// Name of the machine; [`TraceEntry::TRACE`] for the recording itself.
    #[serde(rename = "m")]
    pub machine: String,
    /// Kind of the entry.
    #[serde(rename = "k")]
    pub kind: EntryKind,
    /// The event, answer or effect as JSON, kept as it was written so that it can be compared without being
    /// parsed.
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
    /// Machine name of entries about the recording itself.
    pub const TRACE: &'static str = "trace";

    /// Parses a line of a trace other than the first.
    ///
    /// # Errors
    /// If the line is not an entry.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Parses the value as type `T`.
    ///
    /// # Errors
    /// If the value is not of that type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.value.get())
    }
}

/// The last entry's value: how many entries a recording has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceEnd {
    /// Number of entries before the last one.
    pub entries: u64,
    /// Number of entries that are missing because the recording had to stop.
    pub dropped: u64,
}

/// Appends the line of one entry to `out`, or nothing on an error.
///
/// # Errors
/// If the value cannot be written as JSON.
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
