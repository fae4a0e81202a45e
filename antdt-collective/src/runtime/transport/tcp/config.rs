//! Settings of the TCP transport.

use std::net::TcpStream;
use std::time::Duration;

/// Connections whose payloads carry checksums. Headers always have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Connections between hosts only: between two addresses of one host, the kernel copies the bytes in
    /// memory. [`Always`](Self::Always) is right if a proxy at a local address forwards them to another host.
    #[default]
    Auto,
    /// All connections.
    Always,
}

/// Settings of a [`TcpTransport`](super::TcpTransport). They may differ between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConfig {
    /// Which of the payloads that this rank sends carry checksums. Default: those that leave the host.
    pub checksum: Checksum,
    /// Time for which a waiting rank polls before it sleeps. Other threads may use the processor between two
    /// polls. A sleep delays the next message by some 20 µs; longer polling costs processor time whenever a
    /// peer is late. Default 50 µs: twice the time of a message and its answer over loopback.
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
