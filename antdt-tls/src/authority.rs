//! The authority that a job's secret stands for: a key of Ed25519 that every process derives, and a certificate by it for a key that only
//! the process has.

use hmac::{Hmac, KeyInit, Mac};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::Sha256;

use crate::TlsError;

/// Name in the certificates of a job.
pub(crate) const NAME: &str = "job.antdt.invalid";

/// Keeps the key apart from whatever else is derived from a secret.
const PURPOSE: &[u8] = b"antdt: authority of the job's TLS, version 1";

/// What stands before the 32 bytes of a key of Ed25519 in PKCS #8. Source: RFC 8410, section 7.
const PKCS8_ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// What a process shows, and whose certificates it takes.
pub(crate) struct Identity {
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// Returns the identity of a process of the job with this secret, with a new key.
pub(crate) fn identity(secret: &[u8]) -> Result<Identity, TlsError> {
    let refused = |error: rcgen::Error| TlsError::Refused(error.to_string());
    let mut code = Hmac::<Sha256>::new_from_slice(secret).expect("a key may have any length");
    code.update(PURPOSE);
    let seed: [u8; 32] = code.finalize().into_bytes().into();
    let pkcs8 = PrivatePkcs8KeyDer::from([&PKCS8_ED25519[..], &seed].concat());
    let authority_key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519).map_err(refused)?;
    let mut params = params("authority of a job")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = params.self_signed(&authority_key).map_err(refused)?;
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(refused)?;
    let own = self::params("process of a job")?.signed_by(&key, &issuer).map_err(refused)?;
    Ok(Identity {
        authorities: vec![authority.der().clone()],
        chain: vec![own.der().clone()],
        key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
    })
}

/// A certificate as `rcgen` makes it is valid at any time: clocks may differ, and a job ends before its secret does.
fn params(name: &str) -> Result<CertificateParams, TlsError> {
    let params = CertificateParams::new(vec![NAME.to_owned()]);
    let mut params = params.map_err(|error| TlsError::Refused(error.to_string()))?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
