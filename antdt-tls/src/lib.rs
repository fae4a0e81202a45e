#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod authority;
mod codec;
mod files;
mod verify;

use std::sync::Arc;

use antdt_core::{StreamCodec, StreamEnd, StreamWrapper};
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use authority::{Identity, NAME};
use codec::TlsCodec;
pub use files::TlsFiles;
use verify::AnyName;

/// TLS of all streams of a job. Both ends of a stream show a certificate of the job's authority.
#[derive(Debug, Clone)]
pub struct JobTls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Reason why a job cannot have TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The secret is empty: everybody knows it.
    #[error(
        "the secret of the job is empty, so that everybody would have a certificate; write one into its file"
    )]
    NoSecret,
    /// A file cannot be read, or has not what it should.
    #[error("{flag} = {path}: {why}")]
    File {
        /// Flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: String,
        /// What is wrong with it, and the remedy.
        why: String,
    },
    /// Certificate and key do not fit together, or the cryptographic library refuses them.
    #[error("the certificates cannot be used: {0}")]
    Refused(String),
}

impl JobTls {
    /// Returns the TLS of the job with this secret: every process that knows it has the same authority.
    ///
    /// # Errors
    /// If the secret is empty.
    pub fn of_secret(secret: &[u8]) -> Result<Self, TlsError> {
        if secret.is_empty() {
            return Err(TlsError::NoSecret);
        }
        Self::new(authority::identity(secret)?)
    }

    /// Returns the TLS of a job with certificates from files.
    ///
    /// # Errors
    /// Names the file that cannot be read, or that has no certificate or key.
    pub fn of_files(files: &TlsFiles) -> Result<Self, TlsError> {
        Self::new(files.read()?)
    }

    fn new(identity: Identity) -> Result<Self, TlsError> {
        let refused = |error: rustls::Error| TlsError::Refused(error.to_string());
        let Identity { authorities, chain, key } = identity;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(refused)?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| TlsError::Refused(error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(refused)?;
        // Every connection shows its certificates anew.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider) as Arc<CryptoProvider>)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(AnyName::new(roots, provider).map_err(TlsError::Refused)?)
            .with_client_auth_cert(chain, key)
            .map_err(refused)?;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

impl StreamWrapper for JobTls {
    fn codec(&self, end: StreamEnd) -> Box<dyn StreamCodec> {
        let name = NAME.try_into().expect("a plain name");
        let session = match end {
            StreamEnd::Opened => ClientConnection::new(Arc::clone(&self.client), name).map(Into::into),
            StreamEnd::Accepted => ServerConnection::new(Arc::clone(&self.server)).map(Into::into),
        };
        Box::new(TlsCodec::new(session))
    }
}

#[cfg(test)]
mod tests;
