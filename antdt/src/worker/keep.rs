//! [`Keep`]: a worker's part in taking checkpoints.

use antdt_agent::runtime::{Agent, Copies, WrittenPart};
use antdt_checkpoint::{CheckpointWriteError, FileEntry, Folder};
use antdt_core::{CheckpointId, ParamLayout, PushMark};
use antdt_model::{Portion, Trained};

use super::error::WorkerError;
use super::plane::{CopiedNumbers, ModelCopy};
use crate::job::JobSpec;

/// Where the copies are that belong to the ledger's cut.
enum Copied {
    /// With this worker, which is to write them.
    Here(CopiedNumbers),
    /// On the servers, which write them.
    OnServers,
    /// Nowhere: the ledger was not cut.
    InVain,
}

/// See the [module](self).
pub(super) struct Keep<'a> {
    agent: &'a Agent,
    folder: Option<Folder>,
    optimizer: String,
    layout: ParamLayout,
}

impl<'a> Keep<'a> {
    /// # Errors
    /// If the job keeps checkpoints in a folder that is not there.
    pub(super) fn new(
        agent: &'a Agent,
        spec: &JobSpec,
        layout: ParamLayout,
        optimizer: String,
    ) -> Result<Self, WorkerError> {
        let folder = spec.checkpoint_dir.clone().map(Folder::open).transpose();
        let folder = folder.map_err(|error| WorkerError::Input(format!("--checkpoint-dir: {error}")))?;
        Ok(Self { agent, folder, optimizer, layout })
    }

    /// The worker stands still between two steps: it takes the copies if the master says so, and goes on while they are written. Where
    /// servers write them, it asks before that whether the job hands its servers over, and stands still for that if it does.
    ///
    /// `copy` gets the pushes that servers apply before they copy their parts.
    pub(super) fn rest(
        &self,
        checkpoint: CheckpointId,
        copy: impl FnOnce(&[PushMark]) -> Result<ModelCopy, WorkerError>,
    ) -> Result<(), WorkerError> {
        if let Some(pushes) = self.agent.rest(checkpoint)? {
            match self.cut(checkpoint, || copy(&pushes))? {
                Copied::Here(numbers) => {
                    if let Some(write) = self.writer(checkpoint, numbers) {
                        self.agent.write_beside(checkpoint, write);
                    }
                }
                Copied::OnServers => drop(self.agent.rest(checkpoint)?),
                Copied::InVain => {}
            }
        }
        Ok(())
    }

    /// Takes the checkpoint that ends the job, and waits until this worker's part of it is written.
    pub(super) fn last(
        &self,
        checkpoint: CheckpointId,
        copy: impl FnOnce() -> Result<ModelCopy, WorkerError>,
    ) -> Result<(), WorkerError> {
        if let Copied::Here(numbers) = self.cut(checkpoint, copy)?
            && let Some(write) = self.writer(checkpoint, numbers)
        {
            self.agent.written(checkpoint, write())?;
        }
        Ok(())
    }

    /// Copies the worker's model and asks the master to cut the ledger.
    fn cut(
        &self,
        checkpoint: CheckpointId,
        copy: impl FnOnce() -> Result<ModelCopy, WorkerError>,
    ) -> Result<Copied, WorkerError> {
        let copied = copy();
        let copies = match &copied {
            Ok(ModelCopy { trained: Trained { steps, samples }, .. }) => Ok(Copies {
                steps: *steps,
                samples: *samples,
                layout: serde_json::to_string(&self.layout)
                    .map_err(|e| WorkerError::Parameters(e.to_string()))?,
                optimizer: self.optimizer.clone(),
            }),
            Err(error) => Err(error.to_string()),
        };
        let taken = self.agent.cut(checkpoint, &copies)?;
        Ok(match copied?.numbers {
            _ if !taken => Copied::InVain,
            Some(numbers) => Copied::Here(numbers),
            None => Copied::OnServers,
        })
    }

    fn writer(
        &self,
        checkpoint: CheckpointId,
        numbers: CopiedNumbers,
    ) -> Option<impl FnOnce() -> Result<WrittenPart, String> + Send + 'static> {
        let (folder, layout) = (self.folder.clone()?, self.layout.clone());
        Some(move || match &numbers {
            CopiedNumbers::Portion(portion) => write(&folder, checkpoint, "replica", &layout, portion),
            CopiedNumbers::State(model) => written(folder.write_state(checkpoint, model)),
        })
    }
}

/// Writes one part of a checkpoint.
pub(crate) fn write(
    folder: &Folder,
    checkpoint: CheckpointId,
    name: &str,
    layout: &ParamLayout,
    portion: &Portion,
) -> Result<WrittenPart, String> {
    written(folder.write_part(checkpoint, name, layout, portion))
}

fn written(entry: Result<FileEntry, CheckpointWriteError>) -> Result<WrittenPart, String> {
    let FileEntry { name, bytes, crc32c } = entry.map_err(|error| error.to_string())?;
    Ok(WrittenPart { name, bytes, crc32c })
}
