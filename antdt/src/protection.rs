//! Whether the connections of a job are encrypted, and by what.

use std::net::IpAddr;

use antdt_core::{Connections, InvalidValue};

use crate::job::JobSpec;

/// Returns whether the processes of a job whose master listens at `ip` encrypt what they send each other: those of one machine, over its
/// loopback interface, need not.
pub(crate) fn is_due(spec: &JobSpec, ip: IpAddr) -> bool {
    !spec.insecure && !ip.is_loopback()
}

/// Returns connections that only those make and take who know this secret.
///
/// # Errors
/// If the program was built without TLS, or the secret is empty.
#[cfg(feature = "tls")]
pub(crate) fn by_secret(secret: &str) -> Result<Connections, InvalidValue> {
    let tls = antdt_tls::JobTls::of_secret(secret.as_bytes());
    tls.map(Connections::wrapped)
        .map_err(|error| InvalidValue::new("the secret of the job", "(hidden)", error.to_string()))
}

/// Returns that there are none.
///
/// # Errors
/// Always.
#[cfg(not(feature = "tls"))]
pub(crate) fn by_secret(_: &str) -> Result<Connections, InvalidValue> {
    let expected = "given, to trust whoever reaches the network, since this program was built without TLS; or build it with `--features tls`";
    Err(InvalidValue::new("--insecure", "false", expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_machine_is_encrypted_unless_the_user_says_otherwise() {
        let spec = JobSpec::default();
        for (ip, due) in
            [("127.0.0.1", false), ("::1", false), ("10.0.0.7", true), ("0.0.0.0", true), ("::", true)]
        {
            assert_eq!(is_due(&spec, ip.parse().unwrap()), due, "{ip}");
        }
        assert!(!is_due(&JobSpec { insecure: true, ..spec }, "10.0.0.7".parse().unwrap()));
        assert_eq!(by_secret("secret").is_ok(), cfg!(feature = "tls"));
        assert!(by_secret("").is_err());
    }
}
