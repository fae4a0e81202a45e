//! [`Checkpoint`]: one complete checkpoint of a folder, to be read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use antdt_core::CheckpointId;
use antdt_model::Portion;
use antdt_shard::{DatasetSpec, LedgerCut};

use super::read::{self, CheckpointReadError};
use super::storage::Storage;
use crate::manifest::Manifest;
use crate::part;
use crate::state::ModelState;

/// A complete checkpoint: it has a manifest, and every file that the manifest lists, with its length.
///
/// The checksums of the files are checked when they are read, or by [`verify`](Self::verify).
#[derive(Debug, Clone)]
pub struct Checkpoint {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    pub(super) fn open(
        storage: &Arc<dyn Storage>,
        path: PathBuf,
        id: CheckpointId,
    ) -> Result<Self, CheckpointReadError> {
        let manifest = read::manifest(&**storage, &path, id)?;
        manifest.files.iter().try_for_each(|file| read::check_length(&**storage, &path, file))?;
        Ok(Self { storage: Arc::clone(storage), path, manifest })
    }

    /// Returns the path of the checkpoint's own folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the manifest of the checkpoint.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads and checks all files: each has the checksum in the manifest, each part is one of this model, and
    /// together they hold every dense parameter once. Needs little memory.
    ///
    /// # Errors
    /// The first file that was changed since it was written.
    pub fn verify(&self) -> Result<(), CheckpointReadError> {
        let layout = &self.manifest.job.layout;
        let mut places = Vec::new();
        for file in &self.manifest.files {
            let is_part = file.name.ends_with(Manifest::PART);
            let shape = read::verify(&*self.storage, &self.path, file, is_part.then_some(layout))?;
            if is_part {
                places.push((file.name.as_str(), shape.dense));
            }
        }
        part::check_cover(layout.dense_len(), &places)
            .map_err(|error| CheckpointReadError::Part { path: self.path.clone(), error })
    }

    /// Returns the parts of the model, in the order of the manifest. Each part is read and checked when the
    /// iterator reaches it, so that only one is in memory at a time. A row that is in no part was never
    /// trained; its values follow from the seed. A model that is a program's [own](Self::state) is in no portion.
    ///
    /// After an error the iterator ends.
    pub fn portions(&self) -> impl Iterator<Item = Result<Portion, CheckpointReadError>> + '_ {
        let layout = &self.manifest.job.layout;
        let mut failed = false;
        let parts = self.manifest.parts().filter(|file| file.name != Manifest::STATE);
        parts.map_while(move |file| {
            let portion = (!failed).then(|| read::portion(&*self.storage, &self.path, file, layout))?;
            failed = portion.is_err();
            Some(portion)
        })
    }

    /// Returns the model of a program that keeps it itself; `None` if the model is in [portions](Self::portions).
    ///
    /// # Errors
    /// If the file is damaged, or is no such model.
    pub fn state(&self) -> Result<Option<ModelState>, CheckpointReadError> {
        let entry = self.manifest.file(Manifest::STATE);
        entry.map(|entry| read::state(&*self.storage, &self.path, entry)).transpose()
    }

    /// Returns the ledger's cut, for a data set with these settings.
    ///
    /// # Errors
    /// If the file is damaged, belongs to a data set with other settings, or was not cut together with the
    /// model.
    pub fn ledger_cut(&self, spec: &DatasetSpec) -> Result<LedgerCut, CheckpointReadError> {
        let path = self.path.join(Manifest::LEDGER);
        let entry =
            self.manifest.file(Manifest::LEDGER).ok_or_else(|| CheckpointReadError::Missing(path.clone()))?;
        let bytes = read::small(&*self.storage, &self.path, entry)?;
        let cut = LedgerCut::from_bytes(&bytes, spec)
            .map_err(|error| CheckpointReadError::Ledger { path: path.clone(), error })?;
        cut.check(&self.manifest.ledger).map_err(|error| CheckpointReadError::Pair { path, error })?;
        Ok(cut)
    }
}
