//! Assembly of a checkpoint in the master: the ledger is cut when the copies of the model exist, parts are
//! announced as they are written, and the manifest follows the last of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_checkpoint::{FileEntry, Folder, Manifest, Retention};
use antdt_core::{CheckpointId, ParamLayout};
use antdt_job::{Head, HeadAnswer, HeadEvent};
use antdt_model::Trained;
use antdt_proto::v1;
use antdt_rt::Mailbox;
use antdt_shard::runtime::ShardHandle;
use antdt_shard::{DatasetSpec, LedgerCut};

use super::lock;
use super::sink::Recorder;
use crate::job::JobSpec;
use crate::report::CheckpointEntry;
use crate::resume::{self, DATASET, SETTINGS};

/// How long acknowledgements of the step that is in the model may be on their way.
const ACKS_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks at the ledger.
const LOOK: Duration = Duration::from_millis(5);

/// Puts the checkpoints of one job together.
#[derive(Debug, Clone)]
pub(super) struct Desk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: Folder,
    spec: JobSpec,
    /// Digest of the data.
    fingerprint: Option<String>,
    dataset: DatasetSpec,
    ledger: ShardHandle,
    head: Mailbox<Head>,
    recorder: Arc<Mutex<Recorder>>,
    /// The checkpoint that nodes start from.
    from: Arc<Mutex<Option<PathBuf>>>,
    /// Number of servers that the job has.
    servers: Arc<AtomicU32>,
    /// Those whose ledger is cut, and files of others that were there before.
    open: Mutex<BTreeMap<CheckpointId, Open>>,
    /// How often what was open became void. Held while a manifest is written.
    voided: tokio::sync::Mutex<u64>,
}

#[derive(Debug, Default)]
struct Open {
    cut: Option<(LedgerCut, ModelCopy)>,
    /// How often all was void when the ledger was cut.
    voided: u64,
    files: Vec<FileEntry>,
}

/// What the keeper says of the copies.
#[derive(Debug, Clone)]
struct ModelCopy {
    trained: Trained,
    layout: ParamLayout,
    optimizer: String,
    /// Number of servers that have a part of it; 0 if it is a worker's.
    servers: u32,
}

impl Desk {
    pub(super) fn new(
        folder: Folder,
        (spec, fingerprint): (JobSpec, Option<String>),
        dataset: DatasetSpec,
        ledger: ShardHandle,
        head: Mailbox<Head>,
        recorder: Arc<Mutex<Recorder>>,
        (from, servers): (Arc<Mutex<Option<PathBuf>>>, Arc<AtomicU32>),
    ) -> Self {
        let (open, voided) = Default::default();
        Self(Arc::new(Inner {
            folder,
            spec,
            fingerprint,
            dataset,
            ledger,
            head,
            recorder,
            from,
            servers,
            open,
            voided,
        }))
    }

    /// The job goes back: no checkpoint that is being taken becomes one. One whose manifest is being written does, before this
    /// returns.
    pub(super) async fn void(&self) {
        *self.0.voided.lock().await += 1;
        lock(&self.0.open).clear();
    }

    /// The copies of the model exist: cuts the ledger at the same moment. Returns whether it could.
    pub(super) async fn cut(&self, request: v1::CutRequest) -> bool {
        let checkpoint = CheckpointId(request.checkpoint);
        if request.failed.is_empty() && self.is_cut(checkpoint) {
            // The answer was lost.
            return true;
        }
        let cut = self.try_cut(checkpoint, request).await;
        // Before the checkpoint can be found whole. A head that has ended needs none.
        let taken = cut.as_ref().map(|_| ()).map_err(String::clone);
        let _ = self.0.head.send(HeadEvent::Cut { checkpoint, taken }).await;
        let Ok((cut, copy, voided)) = cut else { return false };
        {
            let mut all = lock(&self.0.open);
            let open = all.entry(checkpoint).or_default();
            (open.cut, open.voided) = (Some((cut, copy)), voided);
        }
        self.complete(checkpoint);
        true
    }

    fn is_cut(&self, checkpoint: CheckpointId) -> bool {
        lock(&self.0.open).get(&checkpoint).is_some_and(|open| open.cut.is_some())
    }

    /// Returns the ledger's cut, what it belongs to, and how often all was void then.
    async fn try_cut(
        &self,
        checkpoint: CheckpointId,
        request: v1::CutRequest,
    ) -> Result<(LedgerCut, ModelCopy, u64), String> {
        if !request.failed.is_empty() {
            return Err(request.failed);
        }
        let layout =
            serde_json::from_str(&request.layout).map_err(|error| format!("the model's shape: {error}"))?;
        let trained = Trained { steps: request.steps, samples: request.samples };
        let voided = *self.0.voided.lock().await;
        // Those that copied it: before their number changes, what is open is void.
        let servers = self.0.servers.load(Ordering::Relaxed);
        let copy = ModelCopy { trained, layout, optimizer: request.optimizer, servers };
        let cut = self.cut_ledger(checkpoint, trained.samples).await?;
        if *self.0.voided.lock().await != voided {
            return Err("the job went back to an earlier one meanwhile".to_owned());
        }
        Ok((cut, copy, voided))
    }

    /// Cuts the ledger when it has exactly the samples of the model. Where workers average models in groups all of them stand
    /// still, and steps of a dead one may be in the average and not in the ledger: there the ledger is cut as it is.
    async fn cut_ledger(&self, checkpoint: CheckpointId, samples: u64) -> Result<LedgerCut, String> {
        let gone = |error: antdt_shard::SourceError| error.to_string();
        let mode = self.0.spec.sync.capabilities();
        let exact = mode.needs_servers() || mode.steps_in_common();
        let deadline = tokio::time::Instant::now() + ACKS_LIMIT;
        loop {
            let acked = self.0.ledger.status().await.map_err(gone)?.counts.acked;
            if acked == samples || !exact {
                return self.0.ledger.cut(checkpoint, acked).await.map_err(gone);
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(format!("the model has {samples} samples and the ledger {acked}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A part was written, or could not be.
    pub(super) async fn written(&self, request: v1::WrittenRequest) {
        let checkpoint = CheckpointId(request.checkpoint);
        if !request.failed.is_empty() {
            lock(&self.0.open).remove(&checkpoint);
            let folder = self.0.folder.clone();
            let _ = tokio::task::spawn_blocking(move || folder.abandon(checkpoint)).await;
            let _ = self.0.head.send(HeadEvent::Kept { checkpoint, outcome: Err(request.failed) }).await;
            return;
        }
        let entry = FileEntry { name: request.part, bytes: request.bytes, crc32c: request.crc32c };
        {
            let mut open = lock(&self.0.open);
            // Attempts that came to nothing leave parts behind without a waiter.
            while open.len() > 4 {
                open.pop_first();
            }
            let files = &mut open.entry(checkpoint).or_default().files;
            files.retain(|known| known.name != entry.name);
            files.push(entry);
        }
        self.complete(checkpoint);
    }

    /// Writes the manifest beside the job, if the ledger is cut and all parts are there.
    fn complete(&self, checkpoint: CheckpointId) {
        let whole = |open: &Open| {
            let due = open.cut.as_ref().map(|(_, copy)| copy.servers.max(1) as usize);
            due == Some(open.files.len())
        };
        let open = {
            let mut all = lock(&self.0.open);
            match all.get(&checkpoint) {
                Some(open) if whole(open) => all.remove(&checkpoint),
                _ => None,
            }
        };
        let Some(Open { cut: Some((cut, copy)), voided, files }) = open else { return };
        let desk = self.clone();
        tokio::spawn(async move {
            let inner = Arc::clone(&desk.0);
            if !matches!(desk.0.head.call(HeadEvent::Stored { checkpoint }).await, Ok(HeadAnswer::Noted)) {
                let _ = tokio::task::spawn_blocking(move || inner.folder.abandon(checkpoint)).await;
                return;
            }
            // A rollback waits for the manifest, and is as good from this checkpoint as from the one before.
            let writing = desk.0.voided.lock().await;
            if *writing != voided {
                return;
            }
            let committed = tokio::task::spawn_blocking(move || inner.commit(&cut, copy, files)).await;
            let outcome = committed.unwrap_or_else(|error| Err(error.to_string()));
            drop(writing);
            let _ = desk.0.head.send(HeadEvent::Kept { checkpoint, outcome }).await;
        });
    }
}

impl Inner {
    /// The checkpoint of this folder that nodes start from: one that is started later opens it, whatever became of the model since.
    fn pinned(&self) -> Option<CheckpointId> {
        let from = lock(&self.from).clone()?;
        let (folder, checkpoint) = Folder::of_checkpoint(&from)?;
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        (real(&folder) == real(self.folder.path())).then_some(checkpoint)
    }

    fn commit(&self, cut: &LedgerCut, copy: ModelCopy, mut files: Vec<FileEntry>) -> Result<String, String> {
        let ModelCopy { trained, layout, optimizer, servers } = copy;
        let spec = &JobSpec { servers, ..self.spec.clone() };
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut extra = spec.texts();
        let dataset = serde_json::to_string(&self.dataset).map_err(|error| error.to_string())?;
        extra.insert(DATASET.to_owned(), dataset);
        let settings = serde_json::to_string(spec).map_err(|error| error.to_string())?;
        extra.insert(SETTINGS.to_owned(), settings);
        let plan = lock(&self.recorder).newest_plan();
        let manifest = Manifest {
            format: Manifest::FORMAT,
            antdt: env!("CARGO_PKG_VERSION").to_owned(),
            checkpoint: cut.binding().checkpoint,
            created_unix_s: now,
            job: resume::identity(spec, layout, self.dataset.num_samples, self.fingerprint.clone()),
            trained,
            optimizer,
            ledger: cut.binding(),
            mode: spec.sync.to_string(),
            workers: spec.workers,
            servers: spec.servers,
            epochs: spec.epochs,
            shard_len: self.dataset.shard(0).len(),
            plan: plan.into_iter().map(|(node, size)| (node.to_string(), size)).collect(),
            extra,
            files,
        };
        let checkpoint = manifest.checkpoint;
        self.folder.commit(manifest, cut).map_err(|error| error.to_string())?;
        let newest = spec.checkpoint_keep as usize;
        let retention = Retention { newest, max_age: None, pinned: self.pinned() };
        if let Err(error) = self.folder.retain(&retention, now) {
            tracing::warn!(%error, "older checkpoints could not be removed");
        }
        let folder = self.folder.path().to_owned();
        let text = format!("{} samples, in {}", cut.binding().acked, folder.display());
        let entry = CheckpointEntry { id: checkpoint.0, samples: cut.binding().acked, folder };
        lock(&self.recorder).kept(entry);
        Ok(text)
    }
}
