//! The terms on which another system is measured: as it is installed, and under the congestion control of our sockets.
//!
//! Sockets of ours inside a host choose their congestion control; those of others take the host's. What the choice alone is
//! worth is not the collective's doing, so each system is measured both ways. The host's setting is left alone: the
//! benchmark runs in a network namespace of its own, where it may be changed.

use std::fmt;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result};

use crate::environment::of_the_kernel;

/// What our sockets choose inside a host, as `antdt-collective` says beside its listener.
pub(super) const OURS: &str = "reno";
/// Where a network namespace says what its sockets take unless they choose.
const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Set for a process that has a network namespace of its own: the congestion control of the host.
const HOST: &str = "ANTDT_BENCH_HOST_CONGESTION";

/// On which terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Terms {
    /// As users have it: the congestion control of the host.
    Installed,
    /// The congestion control that our sockets choose.
    Ours,
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Installed => Ok(()),
            Self::Ours => write!(f, " under {OURS}"),
        }
    }
}

/// Whether the terms can be told apart here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Network {
    /// This process has a network namespace of its own; the host's congestion control is this one.
    Own { host: String },
    /// The host's own sockets take what ours choose.
    Same,
    /// The setting cannot be changed, and why.
    Shared(String),
}

impl Network {
    /// Of this process.
    pub(super) fn here() -> Self {
        match std::env::var(HOST) {
            Ok(host) if host == OURS => Self::Same,
            Ok(host) => Self::Own { host },
            Err(_) if of_the_kernel("net/ipv4/tcp_congestion_control") == OURS => Self::Same,
            Err(_) => Self::Shared("needs root, `unshare` and `ip`".to_owned()),
        }
    }

    /// Whether systems can be measured under the congestion control of our sockets, beside what they have anyway.
    pub(super) const fn tells_terms_apart(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    /// Sockets that are made from now on take what belongs to `terms`, unless they choose.
    pub(super) fn set(&self, terms: Terms) -> Result<()> {
        let Self::Own { host } = self else { return Ok(()) };
        let control = match terms {
            Terms::Installed => host,
            Terms::Ours => OURS,
        };
        fs::write(SETTING, control).with_context(|| format!("cannot choose the congestion control {control}"))
    }
}

/// Replaces this process by one in a network namespace of its own, which has only loopback. Returns if this
/// machine does not allow that, or if this process is in such a namespace already.
///
/// # Errors
/// If the program cannot be started again in the namespace.
pub fn enter() -> Result<()> {
    if std::env::var_os(HOST).is_some() || !can_enter() {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut again = Command::new("unshare");
    again.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    again.arg(program).args(std::env::args_os().skip(1));
    let error = again.env(HOST, of_the_kernel("net/ipv4/tcp_congestion_control")).exec();
    Err(Error::new(error).context("cannot run unshare"))
}

/// Whether a namespace can be made, its loopback started, and its congestion control chosen.
fn can_enter() -> bool {
    let tries = format!("ip link set lo up && echo {OURS} > {SETTING}");
    let status = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", &tries])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_says_on_which_terms_it_was_measured() {
        assert_eq!(Terms::Installed.to_string(), "");
        assert_eq!(Terms::Ours.to_string(), " under reno");
    }

    #[test]
    fn only_a_namespace_of_its_own_tells_the_terms_apart() {
        assert!(Network::Own { host: "bbr".to_owned() }.tells_terms_apart());
        for network in [Network::Same, Network::Shared("needs root".to_owned())] {
            assert!(!network.tells_terms_apart());
            // It leaves the host's setting alone.
            let before = of_the_kernel("net/ipv4/tcp_congestion_control");
            network.set(Terms::Ours).unwrap();
            assert_eq!(of_the_kernel("net/ipv4/tcp_congestion_control"), before);
        }
    }
}
