//! A blocking client of an object store.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::object::RemoteObject;
use crate::error::OpenError;
use crate::source::Source;

/// The first pause before a request is repeated, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Timeouts for the requests to an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Timeout of one request, after which it is sent again.
    pub request: Duration,
    /// Timeout of one call with all its requests, after which the call fails.
    pub call: Duration,
}

impl Default for RequestLimits {
    /// 20 s and 60 s: a request moves 8 MB at most, and stores come back from a fault within half a minute.
    fn default() -> Self {
        Self { request: Duration::from_secs(20), call: Duration::from_secs(60) }
    }
}

/// A blocking client of an object store. Its requests run on one thread of their own.
#[derive(Clone)]
pub struct RemoteStore {
    store: Arc<dyn ObjectStore>,
    thread: Arc<Thread>,
    patience: RequestLimits,
}

/// The runtime; `None` only while it is dropped.
struct Thread(Option<Runtime>);

impl Drop for Thread {
    fn drop(&mut self) {
        // Does not wait, and so may happen anywhere.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl RemoteStore {
    /// Returns a client of this object store.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn over(store: Arc<dyn ObjectStore>, patience: RequestLimits) -> Result<Self, OpenError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("antdt-data")
            .enable_all()
            .build()
            .map_err(OpenError::io(std::path::Path::new("a thread"), "start"))?;
        Ok(Self { store, thread: Arc::new(Thread(Some(runtime))), patience })
    }

    /// Returns a client of the object store that a URL belongs to, with settings from the environment.
    ///
    /// # Errors
    /// If the URL's scheme is unknown or was left out of this program, or the environment contradicts itself.
    pub fn of_url(url: &str) -> Result<Self, OpenError> {
        Self::over(store_of(url)?, RequestLimits::default())
    }

    /// Returns the sources that `url` names in this store; see [`open_url`](super::open_url).
    ///
    /// # Errors
    /// If the store has no such object, or does not answer in time.
    pub fn open(&self, url: &str, keep: &dyn Fn(&str) -> bool) -> Result<Vec<Source>, OpenError> {
        let refused = |why: String| OpenError::Url { url: url.to_owned(), why };
        let location = location_of(url).map_err(refused)?;
        if !url.ends_with('/') {
            let meta = self
                .ask(&location, |store, location| async move { store.head(&location).await })
                .map_err(|why| refused(format!("{why}; check the name and the credentials")))?;
            return Ok(vec![Source::remote(RemoteObject::new(self.clone(), url.to_owned(), meta))?]);
        }
        let listed = self.ask(&location, |store, location| async move {
            store.list(Some(&location)).try_collect::<Vec<ObjectMeta>>().await
        });
        let mut listed = listed.map_err(|why| refused(format!("{why}; name a single object")))?;
        listed.retain(|meta| meta.location.filename().is_some_and(keep));
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        if listed.is_empty() {
            return Err(OpenError::NoFiles { place: url.to_owned() });
        }
        let below = |meta: &ObjectMeta| {
            let rest: Vec<String> = meta
                .location
                .prefix_match(&location)
                .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect())
                .unwrap_or_default();
            format!("{url}{}", rest.join("/"))
        };
        listed
            .into_iter()
            .map(|meta| Source::remote(RemoteObject::new(self.clone(), below(&meta), meta)))
            .collect()
    }

    /// Reads a range of an object, and what the store says about the object.
    pub(super) fn range(
        &self,
        location: &Path,
        at: u64,
        len_bytes: u64,
    ) -> Result<(ObjectMeta, Vec<u8>), String> {
        self.ask(location, move |store, location| async move {
            let options = GetOptions::new().with_range(Some(at..at + len_bytes));
            let found = store.get_opts(&location, options).await?;
            let meta = found.meta.clone();
            Ok((meta, found.bytes().await?.to_vec()))
        })
    }

    /// Sends a request, again while the store fails, until its deadline. Blocks.
    fn ask<A, F>(
        &self,
        location: &Path,
        mut request: impl FnMut(Arc<dyn ObjectStore>, Path) -> F + Send + 'static,
    ) -> Result<A, String>
    where
        A: Send + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let RequestLimits { request: once, call } = self.patience;
        let (store, location) = (Arc::clone(&self.store), location.clone());
        let attempt = move || {
            let answer = request(Arc::clone(&store), location.clone());
            async move {
                match timeout(once, answer).await {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(error)) => Err(Failure { is_final: is_final(&error), why: said(&error) }),
                    Err(_) => Err(Failure { is_final: false, why: format!("no answer within {once:?}") }),
                }
            }
        };
        let pauses = ExponentialBuilder::default()
            .with_min_delay(PAUSE.0)
            .with_max_delay(PAUSE.1)
            .without_max_times()
            .with_jitter();
        let (answer, answered) = mpsc::sync_channel(1);
        let runtime = self.thread.0.as_ref().ok_or("the store is closed")?;
        runtime.spawn(async move {
            let mut last = String::from("no answer");
            let repeated = attempt
                .retry(pauses)
                .when(|failure: &Failure| !failure.is_final)
                .notify(|failure, _| last.clone_from(&failure.why));
            let found = timeout(call, repeated).await;
            let found = match found {
                Ok(found) => found.map_err(|failure| failure.why),
                Err(_) => Err(format!("given up after {call:?}: {last}")),
            };
            // The caller may have gone.
            let _ = answer.send(found);
        });
        // The task ends by itself; the second deadline is for a thread that died.
        answered.recv_timeout(call + once).unwrap_or_else(|_| Err("its thread does not answer".to_owned()))
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore")
            .field("store", &self.store)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Failure {
    is_final: bool,
    why: String,
}

/// An error of a store in one line.
fn said(error: &Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the same request cannot succeed later. What is not known is tried again: that costs time only.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::UnknownConfigurationKey { .. }
    )
}

/// The place of an object within its store.
fn location_of(url: &str) -> Result<Path, String> {
    let parsed = url::Url::parse(url).map_err(|error| error.to_string())?;
    // The host is the bucket, the container or the server.
    Path::from_url_path(parsed.path()).map_err(|error| error.to_string())
}

/// The store of a URL.
#[allow(unreachable_patterns, reason = "a scheme that is built in hides the arm that says it is not")]
fn store_of(url: &str) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let refused = |why: String| OpenError::Url { url: url.to_owned(), why };
    let built_without = |feature: &str| refused(format!("this program was built without {feature}; add it"));
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    match scheme {
        #[cfg(feature = "remote-aws")]
        "s3" => {
            let store = object_store::aws::AmazonS3Builder::from_env().with_url(url).with_retry(once());
            Ok(Arc::new(store.build().map_err(|error| refused(said(&error)))?))
        }
        #[cfg(feature = "remote-gcp")]
        "gs" => {
            let store =
                object_store::gcp::GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(once());
            Ok(Arc::new(store.build().map_err(|error| refused(said(&error)))?))
        }
        #[cfg(feature = "remote-azure")]
        "az" => {
            let store =
                object_store::azure::MicrosoftAzureBuilder::from_env().with_url(url).with_retry(once());
            Ok(Arc::new(store.build().map_err(|error| refused(said(&error)))?))
        }
        #[cfg(feature = "remote-http")]
        "http" | "https" => {
            let parsed = url::Url::parse(url).map_err(|error| refused(error.to_string()))?;
            let options = object_store::ClientOptions::new().with_allow_http(true);
            let store = object_store::http::HttpBuilder::new()
                .with_url(parsed[..url::Position::BeforePath].to_owned())
                .with_client_options(options)
                .with_retry(once());
            Ok(Arc::new(store.build().map_err(|error| refused(said(&error)))?))
        }
        "s3" => Err(built_without("remote-aws")),
        "gs" => Err(built_without("remote-gcp")),
        "az" => Err(built_without("remote-azure")),
        "http" | "https" => Err(built_without("remote-http")),
        _ => Err(refused("its scheme must be s3, gs, az, http, https or file".to_owned())),
    }
}

/// Requests are repeated in one place, above all stores.
#[cfg(any(
    feature = "remote-aws",
    feature = "remote-gcp",
    feature = "remote-azure",
    feature = "remote-http"
))]
fn once() -> object_store::RetryConfig {
    object_store::RetryConfig { max_retries: 0, ..object_store::RetryConfig::default() }
}
