//! [`ConsoleSink`]: the job on the console, and in the log.

use antdt_core::JobTime;
use antdt_job::{EventKind, Note};
use antdt_launch::OutputStream;

use super::{JobNote, NoteSink};
use crate::master::PartError;
use crate::master::console::Console;

/// Tells the user of the job.
pub(super) struct ConsoleSink {
    console: Console,
}

impl ConsoleSink {
    pub(super) const fn new(console: Console) -> Self {
        Self { console }
    }
}

impl NoteSink for ConsoleSink {
    fn note(&mut self, _at: JobTime, note: &JobNote) -> Result<(), PartError> {
        match note {
            JobNote::Progress(progress) => self.console.progress(*progress),
            JobNote::Started(start) => {
                for text in &start.resumed {
                    self.console.line(OutputStream::Err, text.clone());
                }
            }
            JobNote::Head(Note::Action { kind, target, reason }) => {
                tracing::info!(kind, target, reason, "action");
            }
            JobNote::Head(Note::Event { kind: EventKind::NoCheckpoint, text, .. }) => {
                tracing::warn!("{text}")
            }
            JobNote::Head(Note::ModeChosen { text, measured: true }) => {
                self.console.line(OutputStream::Err, text.clone());
            }
            _ => {}
        }
        Ok(())
    }
}
