//! Settings of the TCP transport.

use std::net::TcpStream;
use std::time::Duration;

/// Which connections carry checksums of payloads. Headers always have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Checksums on connections between hosts: between two addresses of one host the kernel copies memory,
    /// and nothing else touches the bytes. Take [`Always`](Self::Always) if a proxy at a local address passes
    /// them on to another host.
    #[default]
    Auto,
    /// Checksums on every connection.
    Always,
}

/// Settings of a [`TcpTransport`](super::TcpTransport). They may differ between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConfig {
    /// Whether the payloads that this rank sends carry checksums. Default: those that leave the host.
    pub checksum: Checksum,
    /// How long a waiting rank polls before it sleeps. Other threads may use the processor between two polls.
    /// A sleep costs the next message some 20 µs; longer polling costs processor time whenever a peer is
    /// late. Default 50 µs: twice what a message and its answer take over loopback.
    pub spin: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self { checksum: Checksum::Auto, spin: Duration::from_micros(50) }
    }
}

impl TcpConfig {
    pub(super) fn checksums(&self, stream: &TcpStream) -> bool {
        match self.checksum {
            Checksum::Always => true,
            Checksum::Auto => !is_within_host(stream),
        }
    }
}

/// Whether both ends of a connection have one address, and so are on one host.
pub(super) fn is_within_host(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local.ip() == peer.ip())
}
