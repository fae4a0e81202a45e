//! [`Keep`]: a worker's part in taking checkpoints.

use antdt_agent::runtime::{Agent, Copies, WrittenPart};
use antdt_checkpoint::Folder;
use antdt_core::{CheckpointId, ParamLayout};
use antdt_model::{Portion, Trained};

use super::error::WorkerError;
use crate::job::JobSpec;

/// A copy of the model, as far as it is this worker's to write.
pub(super) struct ModelCopy {
    /// How far it is trained.
    pub(super) trained: Trained,
    /// The numbers; `None` if servers write them.
    pub(super) portion: Option<Portion>,
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

    /// The worker stands still between two steps: it takes the copies if the master says so, and goes on while they are written.
    pub(super) fn rest(
        &self,
        checkpoint: CheckpointId,
        copy: impl FnOnce() -> Result<ModelCopy, WorkerError>,
    ) -> Result<(), WorkerError> {
        if self.agent.rest(checkpoint)? {
            let copied = self.cut(checkpoint, copy)?;
            if let Some(write) = copied.and_then(|portion| self.writer(checkpoint, portion)) {
                self.agent.write_beside(checkpoint, write);
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
        let copied = self.cut(checkpoint, copy)?;
        if let Some(write) = copied.and_then(|portion| self.writer(checkpoint, portion)) {
            self.agent.written(checkpoint, write())?;
        }
        Ok(())
    }

    /// Copies the worker's model and asks the master to cut the ledger. Returns the part of the model that this worker is to write.
    fn cut(
        &self,
        checkpoint: CheckpointId,
        copy: impl FnOnce() -> Result<ModelCopy, WorkerError>,
    ) -> Result<Option<Portion>, WorkerError> {
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
        Ok(copied?.portion.filter(|_| taken))
    }

    fn writer(
        &self,
        checkpoint: CheckpointId,
        portion: Portion,
    ) -> Option<impl FnOnce() -> Result<WrittenPart, String> + Send + 'static> {
        let (folder, layout) = (self.folder.clone()?, self.layout.clone());
        Some(move || write(&folder, checkpoint, "replica", &layout, &portion))
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
    let written = folder.write_part(checkpoint, name, layout, portion).map_err(|error| error.to_string())?;
    Ok(WrittenPart { name: written.name, bytes: written.bytes, crc32c: written.crc32c })
}
