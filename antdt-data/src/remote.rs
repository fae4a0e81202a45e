//! Files of a data set that a URL names, in an object store.
//!
//! Text is read from there by range, for each shard that a worker is granted; every request has a deadline and is
//! repeated while the store fails. Credentials and regions come from the environment, as `object_store` reads them
//! (`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and their relatives).

use std::path::Path;

use crate::error::OpenError;
use crate::source::Source;

#[cfg(feature = "remote")]
mod object;
#[cfg(feature = "remote")]
mod store;

#[cfg(test)]
#[cfg(feature = "remote")]
mod tests;

#[cfg(feature = "remote")]
pub(crate) use object::RemoteObject;
#[cfg(feature = "remote")]
pub use object_store;
#[cfg(feature = "remote")]
pub use store::{RemoteStore, RequestLimits};

/// Returns a path as a URL if it has the form of one, with a scheme before `://`; otherwise `None`.
pub fn url_of(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    is_scheme.then_some(text)
}

/// Returns the sources that a URL names: one object or, if it ends with `/`, all objects below it, sorted by
/// name.
///
/// `file:///path` is the file of this machine. Other schemes need the features of this crate: `remote-http`
/// for `http` and `https`, `remote-aws` for `s3`, `remote-gcp` for `gs`, `remote-azure` for `az`. `keep`
/// decides by the name of an object whether the object is kept.
///
/// # Errors
/// If the scheme is unknown or was left out of this program, there is no such object, or the store does not
/// answer in time.
pub fn open_url(url: &str, keep: &dyn Fn(&str) -> bool) -> Result<Vec<Source>, OpenError> {
    if let Some(path) = url.strip_prefix("file://") {
        return Ok(vec![Source::file(path)?]);
    }
    #[cfg(feature = "remote")]
    {
        RemoteStore::of_url(url)?.open(url, keep)
    }
    #[cfg(not(feature = "remote"))]
    {
        let _ = keep;
        let why = "this program was built without remote data; build it with --features remote";
        Err(OpenError::Url { url: url.to_owned(), why: why.to_owned() })
    }
}
