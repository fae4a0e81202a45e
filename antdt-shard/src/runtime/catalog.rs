//! The data sets of a job (to train on, to evaluate, to predict), each with a shard service of its own.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use antdt_core::{Holder, Incarnation, InvalidValue, NodeId, Seed};
use antdt_rt::{CancellationToken, JobClock};
use tokio::task::JoinHandle;

use crate::error::SourceError;
use crate::ledger::{LedgerStatus, ShardLedger};
use crate::runtime::service::{ServiceError, ShardHandle, ShardService};
use crate::spec::{Cut, DatasetSpec};
use crate::store::LedgerStore;

/// Data sets of a job at most: each costs a task and, with a log, a thread and an open file.
const DATASETS_MAX: usize = 256;

/// Reason why a data set could not be opened, was not found, or was not shut down in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// The settings of the data set are invalid.
    #[error(transparent)]
    Spec(#[from] InvalidValue),
    /// A data set of this name is open with other settings. Use those, or another name.
    #[error(
        "data set {name:?} is open with {field} = {open} and was asked for with {asked}; \
         ask for it as it is, or take another name"
    )]
    SpecMismatch {
        /// Name of the data set.
        name: String,
        /// Name of the first setting that differs.
        field: String,
        /// Value of that setting in the open data set.
        open: String,
        /// Value of that setting in the call.
        asked: String,
    },
    /// No data set of this name is open: open it first.
    #[error("there is no data set {name:?}; there is {known:?}")]
    UnknownDataset {
        /// Name that was asked for.
        name: String,
        /// Names of the open data sets.
        known: Vec<String>,
    },
    /// No more data sets can be opened.
    #[error("{most} data sets are open, and more are not served; data set {name:?} must do without")]
    TooMany {
        /// Name that was asked for.
        name: String,
        /// Largest number of data sets that can be open.
        most: usize,
    },
    /// The store for the log of the data set cannot be opened.
    #[error("the store of data set {name:?} cannot be opened")]
    Store {
        /// Name of the data set.
        name: String,
        /// Error of the store.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The service of the data set could not start, or ended with an error.
    #[error(transparent)]
    Service(Box<dyn Error + Send + Sync>),
    /// The catalog was shut down and opens no more data sets.
    #[error("the service of data set {name:?} has shut down with all others; start it again")]
    ShutDown {
        /// Name that was asked for.
        name: String,
    },
}

impl CatalogError {
    fn service<E: Error + Send + Sync + 'static>(source: ServiceError<E>) -> Self {
        Self::Service(Box::new(source))
    }
}

/// The service of one data set, with any kind of store.
#[derive(Debug)]
struct Running {
    spec: DatasetSpec,
    handle: ShardHandle,
    task: JoinHandle<Result<ShardLedger, CatalogError>>,
}

type Starting = Pin<Box<dyn Future<Output = Result<Running, CatalogError>> + Send>>;

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<String, Running>,
    /// Lives that were declared lost: data sets that are opened later must know it too.
    lost: BTreeMap<NodeId, Incarnation>,
    /// Whether it was shut down.
    closed: bool,
}

struct Inner {
    start: Box<dyn Fn(DatasetSpec, CancellationToken) -> Starting + Send + Sync>,
    shutdown: CancellationToken,
    state: Mutex<State>,
    /// Held while a data set is opened, which can take long if its log is large.
    opening: tokio::sync::Mutex<()>,
}

/// The running services of a job's data sets. Cheap to clone; clones are one catalog.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use antdt_rt::JobClock;
/// use antdt_shard::runtime::Catalog;
/// use antdt_shard::{DatasetSpec, NullStore};
///
/// let catalog = Catalog::new(JobClock::start(), |_| Ok(NullStore));
/// catalog.open(DatasetSpec::new("train", 1_000_000, 2_560)).await?;
/// catalog.open(DatasetSpec::new("evaluate", 10_000, 500)).await?;
/// assert_eq!(catalog.names(), ["evaluate", "train"]);
/// assert_eq!(catalog.get("train")?.status().await?.counts.todo, 1_000_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("state", &self.inner.state).finish_non_exhaustive()
    }
}

impl Catalog {
    /// Returns a catalog without data sets. It calls `store` once for each data set that is opened. `store`
    /// may block, and must return a store that holds the records of that data set's name and no other: see
    /// [`dataset_folder`].
    pub fn new<S, F>(clock: JobClock, store: F) -> Self
    where
        S: LedgerStore,
        F: Fn(&DatasetSpec) -> Result<S, S::Error> + Send + Sync + 'static,
    {
        let store = Arc::new(store);
        let start = move |spec: DatasetSpec, shutdown: CancellationToken| -> Starting {
            let store = Arc::clone(&store);
            Box::pin(async move { start(spec, move |spec| store(spec), clock, shutdown).await })
        };
        Self {
            inner: Arc::new(Inner {
                start: Box::new(start),
                shutdown: CancellationToken::new(),
                state: Mutex::default(),
                opening: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Returns a catalog whose data sets have their logs in folders below `root`. Nothing is open yet:
    /// [`reopen`](Self::reopen) opens the data sets that have a log there.
    #[cfg(feature = "file-store")]
    pub fn in_folder(root: impl Into<PathBuf>, options: super::FileStoreOptions, clock: JobClock) -> Self {
        let root = root.into();
        Self::new(clock, move |spec: &DatasetSpec| {
            let folder = dataset_folder(&root, &spec.name);
            let store = super::FileStore::open(&folder, spec.clone(), options)?;
            super::file::describe(&folder, spec)?;
            Ok(store)
        })
    }

    /// Opens every data set that has a log in a folder below `root`, each with the settings that it was first
    /// opened with, and returns their names. A restarted service calls it to serve what it served before.
    ///
    /// # Errors
    /// At the first data set whose settings or log cannot be read. The data sets before it are open then.
    #[cfg(feature = "file-store")]
    pub async fn reopen(&self, root: impl AsRef<Path>) -> Result<Vec<String>, CatalogError> {
        let root = root.as_ref().to_owned();
        let found = tokio::task::spawn_blocking(move || super::file::described(&root)).await;
        let found = found.map_err(|panicked| CatalogError::Service(Box::new(panicked)))?;
        let mut names = Vec::new();
        for spec in found.map_err(|source| CatalogError::Service(Box::new(source)))? {
            names.push(spec.name.clone());
            self.open(spec).await?;
        }
        Ok(names)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is done under the lock is done by single calls of maps; a panic cannot leave them half changed.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a data set and returns a handle to its service. The service continues from the log, if there is
    /// one. If the data set is open with equal settings, its handle is returned; if its service had ended
    /// with an error, it is started again.
    ///
    /// # Errors
    /// If the settings are invalid, differ from those of the open data set of that name or of its log, or if
    /// the store fails.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the opening: a later call continues it.
    pub async fn open(&self, spec: DatasetSpec) -> Result<ShardHandle, CatalogError> {
        spec.validate()?;
        if let Some(handle) = self.find(&spec)? {
            return Ok(handle);
        }
        let catalog = self.clone();
        let opening = tokio::spawn(async move {
            let _one_at_a_time = catalog.inner.opening.lock().await;
            catalog.start(spec).await
        });
        opening.await.map_err(|panicked| CatalogError::Service(Box::new(panicked)))?
    }

    /// The service that runs for a data set.
    fn find(&self, spec: &DatasetSpec) -> Result<Option<ShardHandle>, CatalogError> {
        let state = self.state();
        let name = &spec.name;
        if state.closed {
            return Err(CatalogError::ShutDown { name: name.clone() });
        }
        match state.running.get(name) {
            Some(running) => match difference(&running.spec, spec) {
                Some([field, open, asked]) => {
                    Err(CatalogError::SpecMismatch { name: name.clone(), field, open, asked })
                }
                None => Ok((!running.task.is_finished()).then(|| running.handle.clone())),
            },
            None if state.running.len() >= DATASETS_MAX => {
                Err(CatalogError::TooMany { name: name.clone(), most: DATASETS_MAX })
            }
            None => Ok(None),
        }
    }

    async fn start(&self, spec: DatasetSpec) -> Result<ShardHandle, CatalogError> {
        // Another client may have opened it meanwhile.
        if let Some(handle) = self.find(&spec)? {
            return Ok(handle);
        }
        let name = spec.name.clone();
        let running = (self.inner.start)(spec, self.inner.shutdown.child_token()).await?;
        let handle = running.handle.clone();
        let lost = {
            let mut state = self.state();
            if state.closed {
                // No caller will join it. It ends by the token.
                return Err(CatalogError::ShutDown { name });
            }
            state.running.insert(name, running);
            state.lost.clone()
        };
        for (node, incarnation) in lost {
            let holder = Holder::new(node, incarnation);
            handle.worker_lost(holder).await.map_err(|ended| CatalogError::Service(Box::new(ended)))?;
        }
        Ok(handle)
    }

    /// Returns a handle to an open data set.
    ///
    /// # Errors
    /// If no data set of that name is open, or its service has ended.
    pub fn get(&self, name: &str) -> Result<ShardHandle, CatalogError> {
        let state = self.state();
        if state.closed {
            return Err(CatalogError::ShutDown { name: name.to_owned() });
        }
        state.running.get(name).map(|running| running.handle.clone()).ok_or_else(|| {
            CatalogError::UnknownDataset {
                name: name.to_owned(),
                known: state.running.keys().cloned().collect(),
            }
        })
    }

    /// Returns the names of the open data sets, sorted.
    pub fn names(&self) -> Vec<String> {
        self.state().running.keys().cloned().collect()
    }

    /// Declares an incarnation of a worker lost, and all before it, in every data set; also in those that are
    /// opened later.
    ///
    /// # Errors
    /// If the service of one data set has ended. All others have been told.
    pub async fn worker_lost(&self, holder: Holder) -> Result<(), SourceError> {
        let handles: Vec<ShardHandle> = {
            let mut state = self.state();
            let through = state.lost.entry(holder.node).or_insert(holder.incarnation);
            *through = holder.incarnation.max(*through);
            state.running.values().map(|running| running.handle.clone()).collect()
        };
        let mut told = Ok(());
        for handle in handles {
            told = told.and(handle.worker_lost(holder).await);
        }
        told
    }

    /// Returns the progress of each data set by name, or an error where its service has ended.
    pub async fn status(&self) -> BTreeMap<String, Result<LedgerStatus, SourceError>> {
        let handles: Vec<ShardHandle> =
            self.state().running.values().map(|running| running.handle.clone()).collect();
        let mut all = BTreeMap::new();
        for handle in handles {
            all.insert(handle.dataset().to_owned(), handle.status().await);
        }
        all
    }

    /// Ends all services, waits until what they stored is durable, and returns their ledgers by name.
    ///
    /// # Errors
    /// If a service had ended with an error. The others have been shut down all the same.
    pub async fn shutdown(&self) -> Result<BTreeMap<String, ShardLedger>, CatalogError> {
        let running = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.running)
        };
        self.inner.shutdown.cancel();
        let (mut ledgers, mut failure) = (BTreeMap::new(), None);
        for (name, Running { task, .. }) in running {
            match task.await {
                Ok(Ok(ledger)) => drop(ledgers.insert(name, ledger)),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panicked) => failure = failure.or(Some(CatalogError::Service(Box::new(panicked)))),
            }
        }
        failure.map_or(Ok(ledgers), Err)
    }
}

async fn start<S: LedgerStore>(
    spec: DatasetSpec,
    store: impl FnOnce(&DatasetSpec) -> Result<S, S::Error> + Send + 'static,
    clock: JobClock,
    shutdown: CancellationToken,
) -> Result<Running, CatalogError> {
    let name = spec.name.clone();
    let asked = spec.clone();
    let opened = tokio::task::spawn_blocking(move || store(&asked)).await;
    let store = match opened {
        Ok(Ok(store)) => store,
        Ok(Err(e)) => return Err(CatalogError::Store { name, source: Box::new(e) }),
        Err(panicked) => return Err(CatalogError::Store { name, source: Box::new(panicked) }),
    };
    let service = ShardService::start(spec.clone(), store, clock, shutdown).await;
    let service = service.map_err(CatalogError::service)?;
    let handle = service.handle();
    let task = tokio::spawn(async move { service.join().await.map_err(CatalogError::service) });
    Ok(Running { spec, handle, task })
}

/// The first setting in which two data sets of one name differ: its name and the two values.
fn difference(open: &DatasetSpec, asked: &DatasetSpec) -> Option<[String; 3]> {
    let DatasetSpec {
        name: _,
        num_samples,
        cut,
        epochs,
        shuffle,
        seed,
        epoch_overlap,
        delivery,
        max_data_faults,
        on_quarantine,
        max_leases_per_holder,
        assignment,
    } = open;
    let text = |value: &dyn fmt::Debug| format!("{value:?}");
    let field = |name: &str, a: &dyn fmt::Debug, b: &dyn fmt::Debug| {
        let (a, b) = (text(a), text(b));
        (a != b).then(|| [name.to_owned(), a, b])
    };
    field("num_samples", num_samples, &asked.num_samples)
        .or_else(|| cut_difference(cut, &asked.cut))
        .or_else(|| field("epochs", epochs, &asked.epochs))
        .or_else(|| field("shuffle", shuffle, &asked.shuffle))
        .or_else(|| field("seed", &seed.0, &asked.seed.0))
        .or_else(|| field("epoch_overlap", epoch_overlap, &asked.epoch_overlap))
        .or_else(|| field("delivery", delivery, &asked.delivery))
        .or_else(|| field("max_data_faults", max_data_faults, &asked.max_data_faults))
        .or_else(|| field("on_quarantine", on_quarantine, &asked.on_quarantine))
        .or_else(|| field("max_leases_per_holder", max_leases_per_holder, &asked.max_leases_per_holder))
        .or_else(|| field("assignment", assignment, &asked.assignment))
}

/// As [`difference`]; a cut can have more places than a reader wants.
fn cut_difference(open: &Cut, asked: &Cut) -> Option<[String; 3]> {
    let differ = |field: &str, a: String, b: String| Some([field.to_owned(), a, b]);
    let short = |cut: &Cut| match cut {
        Cut::Every(len) => format!("every {len} samples"),
        Cut::At(ends) => format!("at {} places", ends.len()),
    };
    match (open, asked) {
        _ if open == asked => None,
        (Cut::At(a), Cut::At(b)) if a.len() == b.len() => {
            let (index, (a, b)) = a.iter().zip(&**b).enumerate().find(|(_, (a, b))| a != b)?;
            differ(&format!("cut[{index}]"), a.to_string(), b.to_string())
        }
        _ => differ("cut", short(open), short(asked)),
    }
}

/// Returns the folder of a data set below `root`, for any name that a data set can have. Different names give
/// different folders, never above `root` or hidden. Small letters, digits, `-` and `_` stand for themselves,
/// all else is escaped.
///
/// A name that becomes too long for a file system is cut and ends with a hash of the whole. If two names give
/// the same folder, opening the second data set fails, because the log has the settings that it was written
/// with.
///
/// ```
/// use std::path::Path;
/// use antdt_shard::runtime::dataset_folder;
///
/// let root = Path::new("journal");
/// assert_eq!(dataset_folder(root, "clicks-2024"), root.join("clicks-2024"));
/// assert_eq!(dataset_folder(root, "../A"), root.join("%2E%2E%2F%41"));
/// ```
pub fn dataset_folder(root: &Path, name: &str) -> PathBuf {
    /// Half of what every common file system takes.
    const LEN_MAX: usize = 128;
    let mut folder = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => folder.push(byte.into()),
            _ => folder.push_str(&format!("%{byte:02X}")),
        }
    }
    if folder.len() > LEN_MAX {
        folder.truncate(LEN_MAX - 17);
        // No short name has a `~`.
        folder.push_str(&format!("~{:016x}", Seed(0).derive(name).0));
    }
    root.join(folder)
}

#[cfg(test)]
mod tests;
