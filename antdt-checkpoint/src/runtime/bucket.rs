//! [`Bucket`]: checkpoints as objects below a prefix of an object store.
//!
//! A put makes an object appear as a whole, so there is nothing to rename. A large object is uploaded in
//! pieces, a few at a time, and appears when the last one is there. A listing shows what was put before it
//! began. Failed requests are repeated by the store's client; here each call has a deadline.

use std::fmt;
use std::future::Future;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path as Location;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::storage::{CheckpointWriteError, Content, Sink, Storage, failed};
use crate::manifest::FileEntry;

/// How long a call is waited for. Clients of the large stores repeat requests for three minutes.
const PATIENCE: Duration = Duration::from_secs(240);

/// A piece of an object that is written or read: S3 takes ten thousand, so an object of 160 GB at most.
const PIECE: usize = 16 << 20;

/// Pieces that are on their way at a time.
const AT_ONCE: usize = 4;

/// See the [module](self).
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// What the names of files begin with.
    root: PathBuf,
    /// Where that is in the store.
    prefix: Location,
    thread: Arc<Thread>,
    #[cfg(test)]
    fault: super::fault::Fault,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("store", &self.store)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The thread that requests run on; `None` only while it is dropped.
struct Thread(Option<Runtime>);

impl Drop for Thread {
    fn drop(&mut self) {
        // Does not wait, and so may happen anywhere.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Bucket {
    /// Below a prefix of a store, and the path that its names begin with.
    pub(super) fn below(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<(PathBuf, Self), String> {
        let location = Location::parse(prefix).map_err(|error| error.to_string())?;
        let root = PathBuf::from(prefix);
        Ok((root.clone(), Self::new(store, root, location)?))
    }

    /// Below a URL, with what the environment says about its store.
    pub(super) fn of_url(url: &str) -> Result<Self, String> {
        let parsed = url::Url::parse(url).map_err(|error| format!("it is no URL: {error}"))?;
        let location = Location::from_url_path(parsed.path()).map_err(|error| error.to_string())?;
        Self::new(client(&parsed)?, PathBuf::from(url), location)
    }

    fn new(store: Arc<dyn ObjectStore>, root: PathBuf, prefix: Location) -> Result<Self, String> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("antdt-objects").enable_all().build();
        let runtime = runtime.map_err(|error| format!("its thread cannot be started: {error}"))?;
        Ok(Self {
            store,
            root,
            prefix,
            thread: Arc::new(Thread(Some(runtime))),
            #[cfg(test)]
            fault: super::fault::Fault::default(),
        })
    }

    fn location(&self, path: &Path) -> Location {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        below
            .iter()
            .fold(self.prefix.clone(), |location, name| location.join(name.to_string_lossy().as_ref()))
    }

    fn ask<A: Send + 'static>(
        &self,
        call: impl Future<Output = object_store::Result<A>> + Send + 'static,
    ) -> io::Result<A> {
        ask(&self.thread, call)
    }

    fn try_write(&self, path: &Path, content: Content<'_>) -> io::Result<FileEntry> {
        let location = self.location(path);
        let mut upload = Upload::Small(Vec::new());
        let mut out = |chunk: &[u8]| self.append(&mut upload, &location, path, chunk);
        let mut sink = Sink::new(&mut out);
        let written = content(&mut sink).map(|()| sink.entry(path));
        match (written, upload) {
            (Ok(entry), upload) => {
                self.step("put", path)?;
                let store = Arc::clone(&self.store);
                self.ask(async move {
                    match upload {
                        Upload::Small(bytes) => store.put(&location, PutPayload::from(bytes)).await.map(drop),
                        Upload::Pieces(pieces) => pieces.finish().await.map(drop),
                        Upload::Broken => {
                            unreachable!("an upload that broke is an error of what was written")
                        }
                    }
                })?;
                Ok(entry)
            }
            (Err(error), upload) => {
                if let Upload::Pieces(pieces) = upload {
                    // The store forgets pieces of what was never put, sooner or later.
                    let _ = self.ask(pieces.abort());
                }
                Err(error)
            }
        }
    }

    /// Adds to an upload, which becomes one in pieces when it is longer than one.
    fn append(&self, upload: &mut Upload, location: &Location, path: &Path, chunk: &[u8]) -> io::Result<()> {
        self.step("write", path)?;
        let bytes = match upload {
            Upload::Small(bytes) if bytes.len() + chunk.len() <= PIECE => {
                bytes.extend_from_slice(chunk);
                return Ok(());
            }
            _ => chunk.to_vec(),
        };
        let (store, location) = (Arc::clone(&self.store), location.clone());
        let begun = std::mem::replace(upload, Upload::Broken);
        let pieces = self.ask(async move {
            let mut pieces = match begun {
                Upload::Pieces(pieces) => pieces,
                Upload::Small(first) => {
                    let begun = store.put_multipart(&location).await?;
                    let mut pieces = WriteMultipart::new_with_chunk_size(begun, PIECE);
                    pieces.write(&first);
                    pieces
                }
                Upload::Broken => unreachable!("nothing is appended after an error"),
            };
            if let Err(error) = pieces.wait_for_capacity(AT_ONCE).await {
                let _ = pieces.abort().await;
                return Err(error);
            }
            pieces.write(&bytes);
            Ok(pieces)
        })?;
        *upload = Upload::Pieces(pieces);
        Ok(())
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests fail here")]
    fn step(&self, _what: &str, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn step(&self, what: &str, path: &Path) -> io::Result<()> {
        self.fault.step(format!("{what} {}", super::storage::shown(path)))
    }
}

/// An object on its way.
enum Upload {
    /// All bytes so far, in memory.
    Small(Vec<u8>),
    /// An upload in pieces, some of which are stored.
    Pieces(WriteMultipart),
    /// The upload failed, and the error was returned.
    Broken,
}

/// Waits for what blocks, on the store's own thread: the caller may be anywhere.
fn ask<A: Send + 'static>(
    thread: &Thread,
    call: impl Future<Output = object_store::Result<A>> + Send + 'static,
) -> io::Result<A> {
    let (answer, answered) = mpsc::sync_channel(1);
    let runtime = thread.0.as_ref().expect("it is there until it is dropped");
    runtime.spawn(async move {
        let found = timeout(PATIENCE, call).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
        // The caller may have gone.
        let _ = answer.send(found.map_err(late).and_then(|found| found.map_err(io::Error::from)));
    });
    // The task ends by itself; the second deadline is for a thread that died.
    let answered = answered.recv_timeout(PATIENCE + Duration::from_secs(10));
    answered.unwrap_or_else(|_| Err(io::Error::other("the thread of the object store does not answer")))
}

impl Storage for Bucket {
    fn write_whole(&self, path: &Path, content: Content<'_>) -> Result<FileEntry, CheckpointWriteError> {
        self.try_write(path, content).map_err(|e| failed("write", path, e))
    }

    fn make_folder(&self, _path: &Path) -> Result<(), CheckpointWriteError> {
        Ok(())
    }

    fn sync_folder(&self, _path: &Path) -> Result<(), CheckpointWriteError> {
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), CheckpointWriteError> {
        let (store, location) = (Arc::clone(&self.store), self.location(path));
        let removed = self.step("remove", path).and_then(|()| {
            self.ask(async move {
                match store.delete(&location).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(()),
                    removed => removed,
                }
            })
        });
        removed.map_err(|e| failed("remove", path, e))
    }

    fn remove_folder(&self, path: &Path) -> Result<(), CheckpointWriteError> {
        let (store, location) = (Arc::clone(&self.store), self.location(path));
        let listed = self.ask(async move { store.list(Some(&location)).try_collect::<Vec<_>>().await });
        for object in listed.map_err(|e| failed("list", path, e))? {
            let name = object.location.filename().unwrap_or_default().to_owned();
            self.remove(&path.join(name))?;
        }
        Ok(())
    }

    fn has(&self, path: &Path) -> io::Result<bool> {
        let (store, location) = (Arc::clone(&self.store), self.location(path));
        self.ask(async move {
            match store.head(&location).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::NotFound { .. }) => {
                    Ok(store.list(Some(&location)).next().await.transpose()?.is_some())
                }
                Err(error) => Err(error),
            }
        })
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let (store, location) = (Arc::clone(&self.store), self.location(folder));
        let listed = self.ask(async move { store.list_with_delimiter(Some(&location)).await })?;
        let objects = listed.objects.iter().map(|object| &object.location);
        let names = listed.common_prefixes.iter().chain(objects).filter_map(Location::filename);
        Ok(names.map(str::to_owned).collect())
    }

    fn len_bytes(&self, path: &Path) -> io::Result<u64> {
        let (store, location) = (Arc::clone(&self.store), self.location(path));
        Ok(self.ask(async move { store.head(&location).await })?.size)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        let len_bytes = self.len_bytes(path)?;
        Ok(Box::new(ObjectReader {
            store: Arc::clone(&self.store),
            thread: Arc::clone(&self.thread),
            location: self.location(path),
            at: 0,
            len_bytes,
            piece: Vec::new(),
            taken: 0,
        }))
    }

    #[cfg(test)]
    fn fault(&self) -> &super::fault::Fault {
        &self.fault
    }
}

/// An object that is read from its beginning, a piece at a time.
struct ObjectReader {
    store: Arc<dyn ObjectStore>,
    thread: Arc<Thread>,
    location: Location,
    /// Where the piece after this one begins.
    at: u64,
    len_bytes: u64,
    piece: Vec<u8>,
    taken: usize,
}

impl Read for ObjectReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() && self.at < self.len_bytes {
            let range = self.at..self.len_bytes.min(self.at + PIECE as u64);
            let (store, location, asked) = (Arc::clone(&self.store), self.location.clone(), range.clone());
            self.piece = ask(&self.thread, async move { store.get_range(&location, asked).await })?.into();
            if self.piece.len() as u64 != range.end - range.start {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (self.at, self.taken) = (range.end, 0);
        }
        let len = into.len().min(self.piece.len() - self.taken);
        into[..len].copy_from_slice(&self.piece[self.taken..][..len]);
        self.taken += len;
        Ok(len)
    }
}

/// The client for a URL.
#[allow(unreachable_patterns, reason = "a scheme that is built in hides the arm that says it is not")]
fn client(url: &url::Url) -> Result<Arc<dyn ObjectStore>, String> {
    #[cfg(any(feature = "object-store-aws", feature = "object-store-gcp", feature = "object-store-azure"))]
    let said = |error: object_store::Error| {
        format!("{error}; see to the variables of this store in the environment")
    };
    let built_without = |feature: &str| Err(format!("this program was built without {feature}; add it"));
    match url.scheme() {
        #[cfg(feature = "object-store-aws")]
        "s3" => {
            let store = object_store::aws::AmazonS3Builder::from_env().with_url(url.as_str());
            Ok(Arc::new(store.build().map_err(said)?))
        }
        #[cfg(feature = "object-store-gcp")]
        "gs" => {
            let store = object_store::gcp::GoogleCloudStorageBuilder::from_env().with_url(url.as_str());
            Ok(Arc::new(store.build().map_err(said)?))
        }
        #[cfg(feature = "object-store-azure")]
        "az" => {
            let store = object_store::azure::MicrosoftAzureBuilder::from_env().with_url(url.as_str());
            Ok(Arc::new(store.build().map_err(said)?))
        }
        "s3" => built_without("object-store-aws"),
        "gs" => built_without("object-store-gcp"),
        "az" => built_without("object-store-azure"),
        _ => Err("its scheme must be s3, gs or az; name a folder by its path".to_owned()),
    }
}
