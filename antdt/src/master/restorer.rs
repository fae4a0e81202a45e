//! [`Restorer`]: restores the ledger of a running job to the newest checkpoint, and tells workers where
//! models start from then.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use antdt_checkpoint::Folder;
use antdt_core::{CheckpointId, RollbackId};
use antdt_job::head::RolledBack;
use antdt_job::{Head, HeadEvent};
use antdt_rt::Mailbox;
use antdt_shard::runtime::ShardHandle;
use antdt_shard::{DatasetSpec, LedgerSnapshot};

use super::desk::Desk;
use super::lock;

/// What the job began with.
#[derive(Debug)]
pub(super) struct Start {
    /// The ledger.
    pub(super) snapshot: LedgerSnapshot,
    /// The checkpoint of an earlier run, if the job was resumed from one.
    pub(super) checkpoint: Option<PathBuf>,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Restorer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: ShardHandle,
    dataset: DatasetSpec,
    /// Where the job keeps its checkpoints, and the number of the first.
    folder: Option<(Folder, CheckpointId)>,
    desk: Option<Desk>,
    start: Start,
    /// The checkpoint that nodes start from.
    from: Mutex<Option<PathBuf>>,
    head: Mailbox<Head>,
}

/// A moment to which model and ledger can go back.
struct Moment {
    snapshot: LedgerSnapshot,
    checkpoint: Option<PathBuf>,
    name: String,
}

impl Restorer {
    pub(super) fn new(
        ledger: ShardHandle,
        dataset: DatasetSpec,
        folder: Option<(Folder, CheckpointId)>,
        desk: Option<Desk>,
        start: Start,
        head: Mailbox<Head>,
    ) -> Self {
        let from = Mutex::new(start.checkpoint.clone());
        Self(Arc::new(Inner { ledger, dataset, folder, desk, start, from, head }))
    }

    /// The checkpoint that nodes start from; `None` if they start as every job does.
    pub(super) fn from(&self) -> Option<PathBuf> {
        lock(&self.0.from).clone()
    }

    /// Goes back to the newest checkpoint that this job has taken, or to its start, and tells the head.
    pub(super) async fn roll_back(&self, rollback: RollbackId) {
        let outcome = self.try_roll_back().await;
        // A head that has ended goes nowhere.
        let _ = self.0.head.send(HeadEvent::RolledBack { rollback, outcome }).await;
    }

    async fn try_roll_back(&self) -> Result<RolledBack, String> {
        if let Some(desk) = &self.0.desk {
            desk.void().await;
        }
        let inner = Arc::clone(&self.0);
        // Every file of the checkpoint is read.
        let found = tokio::task::spawn_blocking(move || inner.newest()).await.map_err(|e| e.to_string())?;
        let Moment { snapshot, checkpoint, name } = found?;
        let gone = |error: antdt_shard::SourceError| error.to_string();
        let before = self.0.ledger.status().await.map_err(gone)?.counts;
        self.0.ledger.restore(snapshot).await.map_err(gone)?;
        let counts = self.0.ledger.status().await.map_err(gone)?.counts;
        let text = format!(
            "went back to {name}: {} of {} samples are done, {} are trained again",
            counts.acked,
            counts.total,
            before.acked.saturating_sub(counts.acked)
        );
        let place = checkpoint.as_ref().map(|path| path.to_string_lossy().into_owned().into());
        *lock(&self.0.from) = checkpoint;
        Ok(RolledBack { checkpoint: place, counts, text })
    }
}

impl Inner {
    fn newest(&self) -> Result<Moment, String> {
        if let Some((folder, first)) = &self.folder {
            let newest = folder.newest_from(*first).map_err(|error| error.to_string())?;
            for (id, why) in newest.passed_over {
                tracing::warn!("checkpoint {id} is passed over: {why}");
            }
            if let Some(found) = newest.checkpoint {
                let cut = found.ledger_cut(&self.dataset).map_err(|error| error.to_string())?;
                let name = format!("checkpoint {}", found.manifest().checkpoint);
                let checkpoint = Some(found.path().to_owned());
                return Ok(Moment { snapshot: cut.snapshot().clone(), checkpoint, name });
            }
        }
        let Start { snapshot, checkpoint } = &self.start;
        let name = "the start of the job, which has no later checkpoint".to_owned();
        Ok(Moment { snapshot: snapshot.clone(), checkpoint: checkpoint.clone(), name })
    }
}
