//! What the clients know, whichever service answers them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use antdt_core::{Counts, Epoch, Generation, Grant, ShardKey};
use antdt_shard::runtime::{FileStore, FileStoreOptions, dataset_folder};
use antdt_shard::{DatasetSpec, LedgerStore, Recovery, ShardLedger};
use tokio::sync::Notify;

use crate::Failure;

/// A shard, as far as clients know it.
#[derive(Default, Clone)]
struct Known {
    /// The acknowledged offset that a service said was accepted.
    promised: u64,
    /// The offset that a client asked a service to acknowledge.
    said: u64,
    /// What was promised when the machine of the service was lost last: that was durable.
    durable: u64,
    /// How often each sample was trained, in the order of the shard.
    trained: Vec<u32>,
}

pub(crate) struct ServiceWorld {
    spec: DatasetSpec,
    shards: Mutex<BTreeMap<ShardKey, Known>>,
    /// The last life of the service whose machine was lost: its promises are worth what its disk says.
    lost: AtomicU64,
    answers: AtomicU64,
    answered: Notify,
    adopted: AtomicU64,
    completed: AtomicU64,
    void: AtomicU64,
    recalled: AtomicU64,
    deaths: AtomicU64,
    lost_bytes: AtomicU64,
    hurry: AtomicBool,
}

impl ServiceWorld {
    pub(crate) fn new(spec: DatasetSpec) -> Self {
        Self {
            spec,
            shards: Mutex::default(),
            lost: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            answered: Notify::new(),
            adopted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            void: AtomicU64::new(0),
            recalled: AtomicU64::new(0),
            deaths: AtomicU64::new(0),
            lost_bytes: AtomicU64::new(0),
            hurry: AtomicBool::new(false),
        }
    }

    pub(crate) fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<ShardKey, Known>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No process will be killed any more: large steps from now on.
    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    pub(crate) fn in_hurry(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(crate) async fn answered(&self) {
        self.answered.notified().await;
    }

    pub(crate) fn count_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.answered.notify_one();
    }

    pub(crate) fn count_death(&self) {
        self.deaths.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_recalled(&self) {
        self.recalled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn promised(&self) -> u64 {
        self.shards().values().map(|known| known.promised).sum()
    }

    pub(crate) fn said(&self) -> u64 {
        self.shards().values().map(|known| known.said).sum()
    }

    /// A service granted a shard: from where it must, and not from where no worker has been.
    pub(crate) fn granted(&self, grant: &Grant) -> Result<(), Failure> {
        let known = self.shards().get(&grant.key).cloned().unwrap_or_default();
        if grant.resume_at < known.promised || grant.resume_at > known.said || grant.resume_at >= grant.len {
            let (promised, said) = (known.promised, known.said);
            return Err(format!("{promised} were promised and {said} said to be done of {grant:?}").into());
        }
        Ok(())
    }

    /// A lease of before was presented with an offset, and this is what came of it.
    pub(crate) fn presented(
        &self,
        by: Generation,
        key: ShardKey,
        offset: u64,
        adopted: Option<&Grant>,
    ) -> Result<(), Failure> {
        let Some(grant) = adopted else {
            // Of a shard that is done there is nothing to adopt.
            let done = offset == self.spec.shard(key.index).len();
            let counter = if done { &self.completed } else { &self.void };
            counter.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        self.adopted.fetch_add(1, Ordering::Relaxed);
        if (grant.key, grant.resume_at) != (key, offset) {
            return Err(format!("{key:?} was presented at {offset} and adopted as {grant:?}").into());
        }
        self.accepted(by, key, offset);
        Ok(())
    }

    /// Samples `from..to` of a shard are trained.
    pub(crate) fn trained(&self, key: ShardKey, from: u64, to: u64) {
        let mut shards = self.shards();
        let known = shards.entry(key).or_default();
        known.trained.resize(self.spec.shard(key.index).len() as usize, 0);
        for times in &mut known.trained[from as usize..to as usize] {
            *times += 1;
        }
    }

    /// A service is going to be asked to count samples `0..offset`.
    pub(crate) fn say(&self, key: ShardKey, offset: u64) {
        let mut shards = self.shards();
        let known = shards.entry(key).or_default();
        known.said = known.said.max(offset);
    }

    /// A life of the service has said that it did. Its last answers may be read when its machine is long lost.
    pub(crate) fn accepted(&self, by: Generation, key: ShardKey, offset: u64) {
        let mut shards = self.shards();
        if by.0 <= self.lost.load(Ordering::Relaxed) {
            return;
        }
        let known = shards.entry(key).or_default();
        known.promised = known.promised.max(offset);
    }

    /// The machine of the service was lost, and `left` is what its disk says. That may be less than what was promised,
    /// but not less than what was durable.
    pub(crate) fn take_back(
        &self,
        generation: Generation,
        left: &ShardLedger,
        lost_bytes: u64,
    ) -> Result<(), Failure> {
        self.lost_bytes.fetch_add(lost_bytes, Ordering::Relaxed);
        let mut offsets = BTreeMap::new();
        for epoch in [Epoch(0), Epoch(1)] {
            for missing in left.missing(epoch, usize::MAX) {
                // Neighbours come as one: the first shard may be begun, the others are not.
                let mut start = missing.samples.start;
                while start < missing.samples.end {
                    let index = start / 32;
                    let shard = self.spec.shard(index);
                    offsets.insert(ShardKey { epoch, index }, start - shard.start);
                    start = shard.end;
                }
            }
        }
        let mut shards = self.shards();
        self.lost.store(generation.0, Ordering::Relaxed);
        for (key, known) in shards.iter_mut() {
            let offset = offsets.get(key).copied().unwrap_or_else(|| self.spec.shard(key.index).len());
            if offset < known.durable || offset > known.said {
                let Known { durable, said, .. } = known;
                return Err(
                    format!("{key:?} is left at {offset}; {durable} were durable, {said} said").into()
                );
            }
            known.promised = known.promised.min(offset);
            // The next life begins with all that is left made durable.
            known.durable = offset;
        }
        Ok(())
    }

    /// What is left on the disk agrees with what the clients know. Samples trained more often than once.
    pub(crate) async fn check(&self, root: &Path) -> Result<u64, Failure> {
        let folder = dataset_folder(root, &self.spec.name);
        let mut store = FileStore::open(folder, self.spec.clone(), FileStoreOptions::default())?;
        let recovery = store.load(Recovery::new(self.spec.clone())?).await?;
        let ledger = recovery.finish(Generation(u64::MAX))?;
        let total = self.spec.num_samples * 2;
        let expected = Counts { total, acked: total, ..Counts::default() };
        if ledger.counts() != expected || !ledger.is_finished() {
            return Err(format!("the log says {:?}", ledger.counts()).into());
        }
        let shards = self.shards();
        let mut times = 0;
        for epoch in [Epoch(0), Epoch(1)] {
            for index in 0..self.spec.shard_count() {
                let key = ShardKey { epoch, index };
                let known = shards.get(&key).cloned().unwrap_or_default();
                // The last ack of a shard may have been stored and its answer lost with the service.
                if known.said != self.spec.shard(index).len() || known.trained.contains(&0) {
                    return Err(format!("{key:?} is done though nobody trained it").into());
                }
                times += known.trained.iter().map(|times| u64::from(*times)).sum::<u64>();
            }
        }
        Ok(times - total)
    }

    pub(crate) fn summary(&self, repeated: u64) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} deaths of clients, {} answers, {} leases adopted, {} done by it, {} void, {} recalled, {} bytes of the log lost; \
             {repeated} of {} samples trained again, nothing lost, nothing counted twice",
            count(&self.deaths),
            count(&self.answers),
            count(&self.adopted),
            count(&self.completed),
            count(&self.void),
            count(&self.recalled),
            count(&self.lost_bytes),
            self.spec.num_samples * 2,
        )
    }
}
