//! Connections that are damaged at a chosen byte, by proxies between the members.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::members::holder;
use crate::group::Member;
use crate::runtime::Listener;

/// Damage that a proxy does to a connection between two members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// The connection ends, in both directions.
    Cut,
    /// This direction ends, as if the sender had shut it; the other one continues.
    HalfClose,
    /// This direction silently drops all further bytes.
    Pause,
    /// One bit of the byte at [`Strike::at`] is flipped.
    Flip,
    /// These bytes are inserted before the byte at [`Strike::at`].
    Insert(Vec<u8>),
    /// All connections of this rank end.
    Kill(u32),
    /// The sender's side is reset; the receiver's stays open, and nothing more passes in either direction.
    Reset,
}

/// One damage to inject: the connection and its direction, the byte at which it happens, and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strike {
    /// Rank that sends in the damaged direction.
    pub from: u32,
    /// Rank that receives in the damaged direction.
    pub to: u32,
    /// Number of bytes that pass undamaged before the damage, which is also the position of the damaged byte.
    pub at: usize,
    /// Kind of the damage.
    pub damage: Damage,
}

/// The connections between all members of a group, each through a proxy that may damage it.
#[derive(Debug)]
pub struct Wires {
    proxies: Vec<Proxy>,
    own: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Proxy {
    pair: (u32, u32),
    address: SocketAddr,
    // Held, so that no other process gets the port before this is dropped.
    _listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

type Passed = BTreeMap<(u32, u32), Vec<u8>>;

#[derive(Debug, Default)]
struct Shared {
    // Both ends of every connection, with the ranks it is between.
    ends: Mutex<Vec<((u32, u32), TcpStream)>>,
    strike: Option<Strike>,
    struck: AtomicBool,
    closed: AtomicBool,
    dead: Mutex<Option<u32>>,
    // What has come, by sender and receiver.
    passed: Mutex<Passed>,
}

impl Shared {
    fn ends(&self) -> MutexGuard<'_, Vec<((u32, u32), TcpStream)>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dead(&self) -> MutexGuard<'_, Option<u32>> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, concerned: impl Fn((u32, u32)) -> bool) {
        for (_, end) in self.ends().iter().filter(|(pair, _)| concerned(*pair)) {
            // Fails if it has ended already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Wires {
    /// Starts proxies in front of the listeners of a group, which are in order of rank.
    ///
    /// # Panics
    /// If there is no loopback interface.
    pub fn before(listeners: &[Listener], strike: Option<Strike>) -> Self {
        let own: Vec<SocketAddr> = listeners.iter().map(Listener::local_address).collect();
        Self::before_addresses(&own, strike)
    }

    /// Starts proxies as [`before`](Self::before) does, in front of listeners of other processes.
    ///
    /// # Panics
    /// If there is no loopback interface.
    pub fn before_addresses(own: &[SocketAddr], strike: Option<Strike>) -> Self {
        let shared = Arc::new(Shared { strike, ..Shared::default() });
        let ranks = || (0_u32..).zip(own);
        let pairs = ranks().flat_map(|(high, target)| (0..high).map(move |low| ((low, high), *target)));
        let proxies = pairs.map(|(pair, target)| Proxy::start(pair, target, &shared)).collect();
        Self { proxies, own: own.to_vec(), shared }
    }

    /// Returns the members with the addresses at which rank `me` reaches them. Of two ranks the lower one
    /// connects to the higher one.
    pub fn members(&self, me: u32) -> Vec<Member> {
        let address = |peer: u32| {
            let proxy = self.proxies.iter().find(|proxy| proxy.pair == (me.min(peer), me.max(peer)));
            proxy.map_or(self.own[peer as usize], |proxy| proxy.address)
        };
        (0..self.own.len() as u32)
            .map(|peer| Member { holder: holder(peer), address: address(peer) })
            .collect()
    }

    /// Returns whether the byte to be damaged has passed.
    pub fn struck(&self) -> bool {
        self.shared.struck.load(Ordering::SeqCst)
    }

    /// Returns the bytes that have passed from rank `from` to rank `to`.
    pub fn passed(&self, from: u32, to: u32) -> Vec<u8> {
        self.shared.passed().get(&(from, to)).cloned().unwrap_or_default()
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for proxy in &self.proxies {
            // Wakes an acceptor without a caller.
            let _ = TcpStream::connect(proxy.address);
        }
        self.shared.end(|_| true);
        for thread in self.proxies.iter_mut().filter_map(|proxy| proxy.thread.take()) {
            // A proxy that panicked has been heard of.
            let _ = thread.join();
        }
    }
}

impl Proxy {
    fn start(pair: (u32, u32), target: SocketAddr, shared: &Arc<Shared>) -> Self {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").expect("loopback"));
        let address = listener.local_addr().expect("it is bound");
        let (shared, accepting) = (shared.clone(), listener.clone());
        let thread = thread::spawn(move || forward(pair, &accepting, target, &shared));
        Self { pair, address, _listener: listener, thread: Some(thread) }
    }
}

// One connection; a second caller waits in vain.
fn forward(pair: (u32, u32), listener: &TcpListener, target: SocketAddr, shared: &Shared) {
    let Ok((near, _)) = listener.accept() else { return };
    let Ok(far) = TcpStream::connect(target) else { return };
    for end in [&near, &far] {
        // Fails if it has ended already, which the other end will notice.
        let _ = end.set_nodelay(true);
        if let Ok(end) = end.try_clone() {
            shared.ends().push((pair, end));
        }
    }
    if shared.closed.load(Ordering::SeqCst) {
        shared.end(|other| other == pair);
    }
    thread::scope(|scope| {
        scope.spawn(|| pump(pair, &near, &far, shared));
        scope.spawn(|| pump((pair.1, pair.0), &far, &near, shared));
    });
}

fn pump(way: (u32, u32), mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) {
    let strike = shared.strike.as_ref().filter(|strike| (strike.from, strike.to) == way);
    let mut buffer = [0; 4096];
    let mut passed = 0;
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let mut due = &mut buffer[..got];
        shared.passed().entry(way).or_default().extend_from_slice(due);
        if let Some(strike) = strike.filter(|strike| (passed..passed + got).contains(&strike.at)) {
            shared.struck.store(true, Ordering::SeqCst);
            let (before, after) = due.split_at_mut(strike.at - passed);
            // Messages that cannot be delivered any more are missed by none.
            let _ = to.write_all(before);
            match &strike.damage {
                Damage::Flip => after[0] ^= 0x10,
                Damage::Insert(bytes) => drop(to.write_all(bytes)),
                Damage::Pause => return,
                Damage::HalfClose => return drop(to.shutdown(Shutdown::Write)),
                Damage::Cut => return [from, to].iter().for_each(|end| drop(end.shutdown(Shutdown::Both))),
                // Bytes that were sent and acknowledged do not arrive.
                Damage::Reset => {
                    // Fails if it has ended already.
                    let _ = rustix::net::connect_unspec(from);
                    return;
                }
                Damage::Kill(rank) => {
                    // Before the first connection ends: the dead tell no member of the others' silence.
                    *shared.dead() = Some(*rank);
                    return shared.end(|(low, high)| [low, high].contains(rank));
                }
            }
            due = after;
        }
        passed += got;
        if *shared.dead() == Some(way.0) {
            break;
        }
        if to.write_all(due).is_err() {
            break;
        }
    }
    // Fails if it has ended already.
    let _ = to.shutdown(Shutdown::Write);
}
