//! Strangers at the ports of a job: connections that say nothing, or nonsense.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use antdt_core::{DetRng, Seed};
use antdt_rt::CancellationToken;

/// Pause between two rounds of connections.
const ROUND: Duration = Duration::from_millis(20);

/// How long one connection may take; a full backlog takes none.
const CONNECT: Duration = Duration::from_millis(50);

/// Strangers that call until this is dropped.
#[derive(Debug)]
pub(super) struct Strangers {
    end: CancellationToken,
    opened: Arc<AtomicU64>,
    caller: Option<JoinHandle<()>>,
}

impl Strangers {
    /// Keeps so many connections open to each port; a part of them, by the seed, says nonsense.
    pub(super) fn begin(ports: Vec<SocketAddr>, each: usize, seed: Seed) -> io::Result<Self> {
        let (end, opened) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let (until, count) = (end.clone(), Arc::clone(&opened));
        let call = move || call(&ports, each, &mut seed.derive("strangers").rng(), &until, &count);
        let caller = Some(std::thread::Builder::new().name("strangers".to_owned()).spawn(call)?);
        Ok(Self { end, opened, caller })
    }

    /// Connections so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.end.cancel();
        // Its rounds are short.
        let _ = self.caller.take().map(JoinHandle::join);
    }
}

fn call(ports: &[SocketAddr], each: usize, rng: &mut DetRng, until: &CancellationToken, opened: &AtomicU64) {
    let mut held: BTreeMap<SocketAddr, Vec<TcpStream>> = BTreeMap::new();
    while !until.is_cancelled() {
        for port in ports {
            let held = held.entry(*port).or_default();
            // The other end has closed it: another one takes its place.
            held.retain(is_open);
            if held.len() < each
                && let Ok(mut stream) = TcpStream::connect_timeout(port, CONNECT)
            {
                opened.fetch_add(1, Ordering::Relaxed);
                if rng.unit() < 0.25 {
                    let words: Vec<u8> = (0..64).flat_map(|_| rng.below(u64::MAX).to_le_bytes()).collect();
                    // Refused is as good as heard.
                    let _ = stream.write_all(&words);
                }
                if stream.set_nonblocking(true).is_ok() {
                    held.push(stream);
                }
            }
        }
        std::thread::sleep(ROUND);
    }
}

/// Whether the other end keeps the connection, which may say anything.
fn is_open(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn strangers_come_again_where_they_are_sent_away_and_leave_with_the_fault() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let strangers = Strangers::begin(vec![port.local_addr().unwrap()], 2, Seed(3)).unwrap();
        for _ in 0..6 {
            drop(port.accept().unwrap());
        }
        let kept = port.accept().unwrap().0;
        // One is counted when it is there, which it hears later than this end.
        assert!(strangers.opened() >= 6);
        drop(strangers);
        kept.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let ends = io::copy(&mut &kept, &mut io::sink());
        assert!(!matches!(&ends, Err(error) if error.kind() == io::ErrorKind::WouldBlock), "{ends:?}");
    }
}
