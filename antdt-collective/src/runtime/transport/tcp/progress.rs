//! What the system knows of a connection's progress: how many bytes have arrived, and how long the network took for them.
#![allow(
    unsafe_code,
    reason = "the system's account of a connection is behind a socket option that no safe interface has"
)]

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes of the system's `struct tcp_info` up to the last field that is read here. Linux has all of them from 4.10 on.
const LEN: usize = 192;

/// Offsets in it: `tcpi_bytes_acked`, `tcpi_busy_time` and `tcpi_rwnd_limited`, a `u64` each. Fields are only ever added behind the others.
const ACKED: usize = 120;
const BUSY: usize = 168;
const NO_ROOM: usize = 176;

/// Progress of a connection since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// Bytes that the peer's system has acknowledged.
    pub(super) bytes: u64,
    /// Time in which bytes were on their way or waited to be sent, without the time in which the peer had no room for
    /// them. A peer that does not read, a slow node, adds nothing to it.
    pub(super) time: Duration,
}

impl Progress {
    /// Asks the system; `None` if it does not say.
    pub(super) fn of(stream: &TcpStream) -> Option<Self> {
        let mut info = [0_u8; LEN];
        let mut len = libc::socklen_t::try_from(LEN).ok()?;
        // SAFETY: the system writes at most `len` bytes to `info`, which has as many, and says in `len` how many it wrote. Any bytes are
        // valid there.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result != 0 || (len as usize) < LEN {
            return None;
        }
        Some(Self::read(&info))
    }

    fn read(info: &[u8; LEN]) -> Self {
        let number = |at: usize| info[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let time = Duration::from_micros(number(BUSY).saturating_sub(number(NO_ROOM)));
        Self { bytes: number(ACKED), time }
    }

    /// The progress from `before` on.
    pub(super) const fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(before.bytes), time: self.time.saturating_sub(before.time) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn a_peer_that_has_no_room_adds_nothing_to_the_time_of_its_bytes() {
        let mut info = [0; LEN];
        let mut set = |at: usize, number: u64| info[at..at + 8].copy_from_slice(&number.to_ne_bytes());
        set(ACKED, 16 << 20);
        set(BUSY, 511_000);
        set(NO_ROOM, 480_000);
        let expected = Progress { bytes: 16 << 20, time: Duration::from_millis(31) };
        assert_eq!(Progress::read(&info), expected);
    }

    #[test]
    fn the_system_counts_the_bytes_that_the_peer_has() {
        const BYTES: usize = 4 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let before = Progress::of(&stream).unwrap();
        let (progress, sent) = thread::scope(|scope| {
            scope.spawn(move || {
                let mut all = vec![0; BYTES];
                while peer.read_exact(&mut all).is_ok() {
                    peer.write_all(&[1]).unwrap();
                }
            });
            let (mut progress, mut sent) = (Progress::default(), 0);
            // A system may count time in milliseconds, of which one transfer takes less.
            while progress.time.is_zero() && sent < 256 * BYTES {
                stream.write_all(&vec![1; BYTES]).unwrap();
                stream.read_exact(&mut [0]).unwrap();
                sent += BYTES;
                progress = Progress::of(&stream).unwrap().since(before);
            }
            // Before anything can fail: the peer waits for more.
            stream.shutdown(Shutdown::Write).unwrap();
            (progress, sent as u64)
        });
        // What the peer has read its system has acknowledged, with its answer at the latest. One more is the connection's own.
        assert!((sent..=sent + 1).contains(&progress.bytes), "{progress:?}");
        assert!(!progress.time.is_zero(), "{progress:?}");
    }

    #[test]
    fn a_socket_without_a_connection_has_no_progress() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(Progress::of(&stream).unwrap().bytes <= 1);
        let later = Progress { bytes: 9, time: Duration::from_secs(1) };
        assert_eq!(Progress::default().since(later), Progress::default(), "a connection that was made anew");
    }
}
