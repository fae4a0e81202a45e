//! [`ShownSink`]: the job on its live page and in its metrics.

use std::sync::Arc;

use antdt_core::JobTime;

use super::{JobNote, NoteSink};
use crate::master::PartError;
use crate::master::http::Board;

/// Tells the board of all that happens.
pub(super) struct ShownSink(pub(super) Arc<Board>);

impl NoteSink for ShownSink {
    fn note(&mut self, at: JobTime, note: &JobNote) -> Result<(), PartError> {
        self.0.note(at, note);
        Ok(())
    }
}
