//! [`TraceFileSink`]: the job as a file that Perfetto and Chrome show as a timeline.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use antdt_core::JobTime;

use super::{JobNote, NoteSink};
use crate::live::TraceLanes;
use crate::master::{JobError, PartError};

/// Writes what happens, an event a line. A file without its end, of a master that was killed, can be read as well.
pub(super) struct TraceFileSink {
    file: BufWriter<File>,
    lanes: TraceLanes,
    is_begun: bool,
}

impl TraceFileSink {
    /// Creates the file, in place of an older one.
    pub(super) fn open(path: &Path) -> Result<Self, JobError> {
        let file = File::create(path);
        let file = file.map_err(|source| JobError::TraceFile { file: path.to_owned(), source })?;
        Ok(Self { file: BufWriter::new(file), lanes: TraceLanes::default(), is_begun: false })
    }
}

impl NoteSink for TraceFileSink {
    fn note(&mut self, at: JobTime, note: &JobNote) -> Result<(), PartError> {
        for event in self.lanes.note(at, note) {
            let before = if std::mem::replace(&mut self.is_begun, true) { ",\n" } else { "[\n" };
            write!(self.file, "{before}{event}")?;
        }
        match note {
            JobNote::Ended(_) => {
                self.file.write_all(b"\n]\n")?;
                self.file.flush()?;
            }
            // What a killed master leaves is at most a tick old.
            JobNote::Progress(_) => self.file.flush()?,
            JobNote::Started(_) | JobNote::Head(_) => {}
        }
        Ok(())
    }
}
