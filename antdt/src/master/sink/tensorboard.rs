//! [`TensorboardSink`]: the job as an event file of TensorBoard.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_core::JobTime;

use super::{JobNote, NoteSink};
use crate::host;
use crate::live::{JobView, tensorboard};
use crate::master::{JobError, PartError};

/// Time between two records. A file of a day has 86,400 of them, of some hundred bytes with few workers.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Writes the state of the job into a file, once a second.
pub(super) struct TensorboardSink {
    file: File,
    view: JobView,
    /// When the next record is due.
    due: JobTime,
    /// Evaluations that are written.
    evaluations: u64,
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl TensorboardSink {
    /// Begins a new file in `folder`, which is made if needed.
    pub(super) fn open(folder: &Path) -> Result<Self, JobError> {
        let now = now();
        let name = format!("events.out.tfevents.{}.{}.{}", now.as_secs(), host::name(), std::process::id());
        let opened = (|| {
            std::fs::create_dir_all(folder)?;
            let mut file = File::create(folder.join(name))?;
            file.write_all(&tensorboard::beginning(now.as_secs_f64()))?;
            Ok(file)
        })();
        let file = opened.map_err(|source| JobError::Tensorboard { folder: folder.to_owned(), source })?;
        Ok(Self { file, view: JobView::default(), due: JobTime::ZERO, evaluations: 0 })
    }
}

impl NoteSink for TensorboardSink {
    fn note(&mut self, at: JobTime, note: &JobNote) -> Result<(), PartError> {
        self.view.note(at, note);
        let is_due = match note {
            JobNote::Progress(_) => at >= self.due,
            JobNote::Ended(_) => true,
            JobNote::Started(_) | JobNote::Head(_) => false,
        };
        if is_due {
            self.due = at + RECORD_EVERY;
            let evaluations = self.view.evaluated();
            let is_new = std::mem::replace(&mut self.evaluations, evaluations) != evaluations;
            self.file.write_all(&tensorboard::record(&self.view, now().as_secs_f64(), is_new))?;
        }
        Ok(())
    }
}
