//! The parts of a job's master that a program may replace.

use std::error::Error;

use antdt_launch::LauncherFactory;
use antdt_rt::{Packing, TraceSink};
use antdt_shard::{BoxStore, DatasetSpec};

use super::record;
use crate::job::JobSpec;

/// Error of a factory for a replaced part.
pub type PartError = Box<dyn Error + Send + Sync>;

/// Callback that builds the store of the ledger's log.
pub type StoreFactory = Box<dyn FnOnce(&JobSpec, &DatasetSpec) -> Result<BoxStore, PartError> + Send>;

/// Callback that opens the recording of a job and chooses its compression; `None` if the job is not recorded.
pub type RecorderFactory =
    Box<dyn FnOnce(&JobSpec) -> Result<Option<(Box<dyn TraceSink>, Packing)>, PartError> + Send>;

/// Callback that builds the replaced parts once more, for a job that continues in another sync mode.
pub type PartsAgain = Box<dyn FnOnce() -> Seams + Send>;

/// The parts of a job's master that a program may replace.
pub struct Seams {
    /// Builds the launcher, which starts and ends the nodes. Default: `None`, the launcher that the job's settings name.
    pub launcher: Option<LauncherFactory>,
    /// Store of the ledger's log. Default: a folder in the run directory if the master may have a successor, otherwise the log
    /// is not kept.
    pub store: Option<StoreFactory>,
    /// Opens the recording of the job. Default: the file that `--record` names.
    pub recorder: RecorderFactory,
    /// Builds the same parts once more for a job that continues in another sync mode (`--sync auto`). With
    /// `None` such a job stays in its first mode. Default: builds the default parts.
    pub again: Option<PartsAgain>,
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            launcher: None,
            store: None,
            recorder: Box::new(|spec| {
                let Some(path) = &spec.record else { return Ok(None) };
                Ok(Some((Box::new(record::open(path)?), Packing::of(path))))
            }),
            again: Some(Box::new(Self::default)),
        }
    }
}

impl std::fmt::Debug for Seams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seams")
    }
}
