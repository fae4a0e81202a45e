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
        let number = |at: usize| info[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let time = Duration::from_micros(number(BUSY).saturating_sub(number(NO_ROOM)));
        Some(Self { bytes: number(ACKED), time })
    }

    /// The progress from `before` on.
    pub(super) const fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(before.bytes), time: self.time.saturating_sub(before.time) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const BYTES: usize = 16 << 20;

    /// Sends bytes to a peer that reads some at a time and sleeps in between.
    fn send_to(sleep: Duration) -> (Progress, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let before = Progress::of(&stream).unwrap();
        let began = std::time::Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut place = vec![0; BYTES / 16];
                for _ in 0..16 {
                    thread::sleep(sleep);
                    peer.read_exact(&mut place).unwrap();
                }
            });
            stream.write_all(&vec![1; BYTES]).unwrap();
        });
        let took = began.elapsed();
        // The last acknowledgement may be on its way.
        thread::sleep(Duration::from_millis(50));
        (Progress::of(&stream).unwrap().since(before), took)
    }

    #[test]
    fn a_peer_that_reads_slowly_adds_nothing_to_the_time_of_its_bytes() {
        let (fast, _) = send_to(Duration::ZERO);
        let (slow, took) = send_to(Duration::from_millis(30));
        // One is the connection's own.
        assert!((BYTES as u64..=BYTES as u64 + 1).contains(&fast.bytes), "{fast:?}");
        assert_eq!(fast.bytes, slow.bytes);
        assert!(took >= Duration::from_millis(480), "{took:?}");
        assert!(slow.time < took / 4, "{slow:?} of {took:?}");
    }

    #[test]
    fn what_is_no_connection_has_no_progress() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(Progress::of(&stream).unwrap().bytes <= 1);
        let later = Progress { bytes: 9, time: Duration::from_secs(1) };
        assert_eq!(Progress::default().since(later), Progress::default(), "a connection that was made anew");
    }
}
