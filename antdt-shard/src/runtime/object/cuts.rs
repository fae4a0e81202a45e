//! Consistent cuts in an object store.

use std::sync::Arc;

use antdt_core::Seed;
use object_store::ObjectStore;

use super::bucket::{Bucket, ObjectTimeouts};
use super::{ObjectError, nonce};
use crate::store::CutStore;

/// A [`CutStore`] in an object store, with one object for each checkpoint, below `{prefix}/cuts`.
#[derive(Debug)]
pub struct ObjectCuts {
    bucket: Bucket,
}

impl ObjectCuts {
    /// Returns the store of cuts below a prefix, which may be that of an [`ObjectLog`](super::ObjectLog).
    ///
    /// # Errors
    /// If the prefix is not a valid path in an object store.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        patience: ObjectTimeouts,
    ) -> Result<Self, ObjectError> {
        let seed = Seed(nonce() as u64);
        Ok(Self { bucket: Bucket::new(store, prefix, ("cuts", "cut"), patience, seed)? })
    }
}

impl CutStore for ObjectCuts {
    type Error = ObjectError;

    async fn save(&mut self, checkpoint: u64, cut: Vec<u8>) -> Result<(), ObjectError> {
        self.bucket.put(checkpoint, cut).await
    }

    async fn load(&mut self, checkpoint: u64) -> Result<Option<Vec<u8>>, ObjectError> {
        self.bucket.get(checkpoint).await
    }

    async fn list(&mut self) -> Result<Vec<u64>, ObjectError> {
        self.bucket.list(None).await
    }

    async fn keep(&mut self, newest: usize) -> Result<(), ObjectError> {
        let mut checkpoints = self.list().await?;
        checkpoints.truncate(checkpoints.len().saturating_sub(newest));
        self.bucket.remove(&checkpoints).await
    }
}
