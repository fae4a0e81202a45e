//! The parts of a job's master that a program may replace.

use std::error::Error;

use antdt_controller::LauncherFactory;
use antdt_controller::runtime::launcher::ProcessLauncher;
use antdt_rt::{Packing, TraceSink};
use antdt_shard::{BoxStore, DatasetSpec, NullStore};

use super::record;
use crate::job::JobSpec;

/// Why a part of a program's own cannot be had.
pub type PartError = Box<dyn Error + Send + Sync>;

/// Builds the store of the ledger's log.
pub type StoreFactory = Box<dyn FnOnce(&JobSpec, &DatasetSpec) -> Result<BoxStore, PartError> + Send>;

/// Opens what a job is recorded to, and says how it is packed; `None` if it is not to be recorded.
pub type RecorderFactory =
    Box<dyn FnOnce(&JobSpec) -> Result<Option<(Box<dyn TraceSink>, Packing)>, PartError> + Send>;

/// The parts of a job's master that a program may replace. Each default is what `antdt run` has.
pub struct Seams {
    /// Starts and ends the nodes: processes of this machine.
    pub launcher: LauncherFactory,
    /// Keeps the ledger's log: nothing does.
    pub store: StoreFactory,
    /// Takes the recording: the file that `--record` names.
    pub recorder: RecorderFactory,
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            launcher: Box::new(|outlets| Box::new(ProcessLauncher::new(outlets))),
            store: Box::new(|_, _| Ok(BoxStore::new(NullStore))),
            recorder: Box::new(|spec| {
                let Some(path) = &spec.record else { return Ok(None) };
                Ok(Some((Box::new(record::open(path)?), Packing::of(path))))
            }),
        }
    }
}

impl std::fmt::Debug for Seams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seams")
    }
}
