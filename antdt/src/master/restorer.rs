//! [`Restorer`]: restores the ledger of a running job to the newest checkpoint, and tells workers where
//! models start from then.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
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
    from: Arc<Mutex<Option<PathBuf>>>,
    head: Mailbox<Head>,
    /// The newest order, and the turn of the one that is carried out.
    newest: AtomicU64,
    turn: tokio::sync::Mutex<()>,
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
        (start, from): (Start, Arc<Mutex<Option<PathBuf>>>),
        head: Mailbox<Head>,
    ) -> Self {
        let (newest, turn) = (AtomicU64::new(0), tokio::sync::Mutex::default());
        Self(Arc::new(Inner { ledger, dataset, folder, desk, start, from, head, newest, turn }))
    }

    /// The checkpoint that nodes start from; `None` if they start as every job does.
    pub(super) fn from(&self) -> Option<PathBuf> {
        lock(&self.0.from).clone()
    }

    /// Goes back to the newest checkpoint that this job has taken, or to its start, and tells the head; unless a newer order has come
    /// meanwhile, which is the one that the head waits for. What an older one undid then would be trained by a job that goes
    /// on already.
    pub(super) async fn roll_back(&self, rollback: RollbackId) {
        self.0.newest.fetch_max(rollback.0, Ordering::Relaxed);
        let _turn = self.0.turn.lock().await;
        if self.0.newest.load(Ordering::Relaxed) > rollback.0 {
            return;
        }
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

#[cfg(test)]
mod tests {
    use antdt_rt::{CancellationToken, JobClock, mailbox};
    use antdt_shard::NullStore;
    use antdt_shard::runtime::ShardService;

    use super::*;

    #[tokio::test]
    async fn an_order_that_a_newer_one_has_overtaken_sets_nothing_back() {
        let dataset = DatasetSpec::new("train", 30, 10);
        let stop = CancellationToken::new();
        let started = ShardService::start(dataset.clone(), NullStore, JobClock::start(), stop.clone());
        let ledger = started.await.unwrap().handle();
        let start = Start { snapshot: ledger.snapshot().await.unwrap(), checkpoint: None };
        let (head, _inbox) = mailbox(8);
        let restorer = Restorer::new(ledger.clone(), dataset, None, None, (start, Arc::default()), head);
        let mut generations = Vec::new();
        for rollback in [2, 1, 3] {
            restorer.roll_back(RollbackId(rollback)).await;
            generations.push(ledger.status().await.unwrap().generation);
        }
        assert_eq!(generations[0], generations[1], "the job may be training again");
        assert_eq!(generations[2], generations[1].next());
        stop.cancel();
    }
}
