//! Objects below a prefix of an object store: every request has a deadline, and is repeated while the store fails.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::Seed;
use antdt_rt::backoff;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, PutMode, PutOptions, PutPayload};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ObjectError;

/// The first pause before a request is repeated, and the longest one. A store that asks its users to slow down means
/// seconds; the deadline is what bounds the whole.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Timeouts for the requests to an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectTimeouts {
    /// Timeout of one request, after which the request is sent again.
    pub request: Duration,
    /// Timeout of one store operation with all its repeated requests, after which the operation fails. A
    /// larger value makes the service and its callers wait longer in vain; a smaller one stops the service in
    /// an outage that would have passed.
    pub call: Duration,
}

impl Default for ObjectTimeouts {
    /// 10 s and 30 s: longer than what stores of objects take to come back from a fault of one of their machines.
    fn default() -> Self {
        Self { request: Duration::from_secs(10), call: Duration::from_secs(30) }
    }
}

/// Objects with numbers for names.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    extension: &'static str,
    patience: ObjectTimeouts,
    /// Of the pauses, so that services that lost the same store do not come back at the same moment.
    seed: Seed,
}

/// What became of an object that was to be the first of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Created {
    /// The object exists, and this service wrote it.
    Ours,
    /// An object of this name existed, which another service wrote.
    Taken,
}

impl Bucket {
    /// The objects `{prefix}/{folder}/{number}.{extension}`.
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        (folder, extension): (&'static str, &'static str),
        patience: ObjectTimeouts,
        seed: Seed,
    ) -> Result<Self, ObjectError> {
        let path = Path::parse(prefix)
            .map_err(|source| ObjectError::Prefix { prefix: prefix.into(), source: source.into() })?;
        Ok(Self { store, folder: path.join(folder), extension, patience, seed })
    }

    pub(super) fn path(&self, number: u64) -> String {
        self.location(number).to_string()
    }

    fn location(&self, number: u64) -> Path {
        // As many digits as the highest number has: the order of the names is that of the numbers.
        self.folder.clone().join(format!("{number:020}.{}", self.extension))
    }

    fn number(&self, location: &Path) -> Option<u64> {
        let (stem, extension) = location.filename()?.rsplit_once('.')?;
        let number = stem.parse().ok().filter(|_| extension == self.extension)?;
        // Whatever else lies about is not ours.
        (self.location(number) == *location).then_some(number)
    }

    /// Numbers of the objects that are there, ascending; of those above `after`, if that is given.
    pub(super) async fn list(&self, after: Option<u64>) -> Result<Vec<u64>, ObjectError> {
        let numbers = self.repeat("list", self.folder.as_ref(), || async {
            let mut listed = match after {
                Some(number) => self.store.list_with_offset(Some(&self.folder), &self.location(number)),
                None => self.store.list(Some(&self.folder)),
            };
            let mut numbers = Vec::new();
            while let Some(object) = listed.next().await {
                numbers.extend(self.number(&object?.location));
            }
            Ok(numbers)
        });
        let mut numbers = numbers.await?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The bytes of an object; `None` if it is not there.
    pub(super) async fn get(&self, number: u64) -> Result<Option<Vec<u8>>, ObjectError> {
        let location = self.location(number);
        self.repeat("read", location.as_ref(), || async {
            match self.store.get_opts(&location, GetOptions::default()).await {
                Ok(object) => Ok(Some(object.bytes().await?.into())),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Writes an object, whatever was there.
    pub(super) async fn put(&self, number: u64, bytes: Vec<u8>) -> Result<(), ObjectError> {
        let (location, payload) = (self.location(number), PutPayload::from(bytes));
        self.repeat("write", location.as_ref(), || async {
            self.store.put_opts(&location, payload.clone(), PutOptions::default()).await.map(drop)
        })
        .await
    }

    /// Writes an object if there is none of its name.
    pub(super) async fn create(&self, number: u64, bytes: Vec<u8>) -> Result<Created, ObjectError> {
        let (location, payload) = (self.location(number), PutPayload::from(bytes));
        let created = self.repeat("write", location.as_ref(), || async {
            match self.store.put_opts(&location, payload.clone(), PutMode::Create.into()).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        });
        if created.await? {
            return Ok(Created::Ours);
        }
        // It may be there because the answer to an earlier request was lost.
        let ours = self.get(number).await?.is_some_and(|found| found == payload.as_ref().concat());
        Ok(if ours { Created::Ours } else { Created::Taken })
    }

    /// Removes objects; one that is not there was removed before.
    pub(super) async fn remove(&self, numbers: &[u64]) -> Result<(), ObjectError> {
        if numbers.is_empty() {
            return Ok(());
        }
        self.repeat("remove objects in", self.folder.as_ref(), || async {
            let locations: Vec<_> = numbers.iter().map(|number| Ok(self.location(*number))).collect();
            let mut removed = self.store.delete_stream(futures_util::stream::iter(locations).boxed());
            while let Some(result) = removed.next().await {
                match result {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
        .await
    }

    /// Sends a request until it is answered, cannot succeed, or the patience is at its end.
    async fn repeat<A, F>(
        &self,
        what: &'static str,
        path: &str,
        mut request: impl FnMut() -> F,
    ) -> Result<A, ObjectError>
    where
        F: Future<Output = Result<A, object_store::Error>>,
    {
        let deadline = Instant::now() + self.patience.call;
        let mut delays = backoff(PAUSE.0, PAUSE.1, self.patience.call, self.seed);
        loop {
            let until = deadline.min(Instant::now() + self.patience.request);
            let source: Box<dyn Error + Send + Sync> = match timeout_at(until, request()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if is_final(&error) => {
                    return Err(ObjectError::Refused { what, path: path.into(), source: error.into() });
                }
                Ok(Err(error)) => error.into(),
                Err(_) => "there was no answer".into(),
            };
            let again = delays.next().map(|delay| Instant::now() + delay);
            let Some(again) = again.filter(|again| *again < deadline) else {
                let after = self.patience.call;
                return Err(ObjectError::Unavailable { what, path: path.into(), after, source });
            };
            tracing::debug!(what, path, error = %source, "a request to the object store is repeated");
            sleep_until(again).await;
        }
    }
}

/// Whether the same request cannot succeed later. What is not known is tried again: that costs time only.
fn is_final(error: &object_store::Error) -> bool {
    use object_store::Error;
    matches!(
        error,
        Error::NotFound { .. }
            | Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotModified { .. }
            | Error::PermissionDenied { .. }
            | Error::UnknownConfigurationKey { .. }
    )
}
