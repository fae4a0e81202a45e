//! The parts of a job's master that a program may replace.

use std::error::Error;
use std::sync::Arc;

use antdt_core::Connections;
use antdt_launch::LauncherFactory;
use antdt_rt::{Packing, TraceSink};
use antdt_shard::{BoxStore, DatasetSpec};

use super::{SinkFactory, record};
use crate::job::JobSpec;

/// Error of a factory for a replaced part.
pub type PartError = Box<dyn Error + Send + Sync>;

/// Callback that builds an empty store for the ledger's log, once for each start of the job's processes.
pub type StoreFactory = Arc<dyn Fn(&JobSpec, &DatasetSpec) -> Result<BoxStore, PartError> + Send + Sync>;

/// Callback that opens a recording and chooses its compression; `None` if the job is not recorded. It is asked once for each start
/// of the job's processes.
pub type RecorderFactory =
    Arc<dyn Fn(&JobSpec) -> Result<Option<(Box<dyn TraceSink>, Packing)>, PartError> + Send + Sync>;

/// The parts of a job's master that a program may replace.
#[derive(Clone)]
pub struct Seams {
    /// Builds the launcher, which starts and ends the nodes. Default: `None`, the launcher that the job's settings name.
    pub launcher: Option<LauncherFactory>,
    /// Store of the ledger's log. Default: a folder in the run directory if the master may have a successor, otherwise the log
    /// is not kept.
    pub store: Option<StoreFactory>,
    /// Opens the recording of the job. Default: the file that `--record` names.
    pub recorder: RecorderFactory,
    /// How the processes of the job connect with each other. Default: over plain streams.
    pub connections: Connections,
    /// Open sinks for all that happens in the job, besides those that ship. Default: none.
    pub sinks: Vec<SinkFactory>,
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            launcher: None,
            store: None,
            sinks: Vec::new(),
            recorder: Arc::new(|spec| {
                let Some(path) = &spec.record else { return Ok(None) };
                Ok(Some((Box::new(record::open(path)?), Packing::of(path))))
            }),
            connections: Connections::default(),
        }
    }
}

impl std::fmt::Debug for Seams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seams")
    }
}
