//! [`TlsFiles`]: certificates of the site's own.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::TlsError;
use crate::authority::Identity;

/// PEM files with the certificates of a process and of those that it trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that sign for the job's processes.
    pub authority: PathBuf,
    /// Certificate of this process, and those between it and the authority, in this order.
    pub certificate: PathBuf,
    /// Private key of this process.
    pub key: PathBuf,
}

impl TlsFiles {
    pub(crate) fn read(&self) -> Result<Identity, TlsError> {
        let key = PrivateKeyDer::from_pem_file(&self.key);
        Ok(Identity {
            authorities: certificates("--tls-authority", &self.authority)?,
            chain: certificates("--tls-certificate", &self.certificate)?,
            key: key.map_err(|error| refused("--tls-key", &self.key, &error, "private key"))?,
        })
    }
}

fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| refused(flag, path, &error, "certificate"))?;
    if found.is_empty() {
        return Err(refused(flag, path, &pem::Error::NoItemsFound, "certificate"));
    }
    Ok(found)
}

fn refused(flag: &'static str, path: &Path, error: &pem::Error, what: &str) -> TlsError {
    let why = match error {
        pem::Error::Io(error) => format!("it cannot be read: {error}"),
        pem::Error::NoItemsFound => format!("it has no {what} in the form PEM"),
        error => format!("it is no {what} in the form PEM: {error:?}"),
    };
    TlsError::File { flag, path: path.display().to_string(), why }
}
