//! The network of a job under faults: a network interface of this process (TUN), through which all connections of the job go. Needs root.
//!
//! The job's nodes listen at [`Links::here`] and tell each other [`Links::there`]; the system routes what is sent there to this process,
//! which sends it back as if it came from there. So this process sees every packet of every connection, whatever its ports, and the
//! system does for the rest what it does on a real network: it sends again what was lost.
//!
//! Calls to the master's port go to another port of this host, behind which [`rpc`](super::rpc) listens.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use antdt_core::{DetRng, Seed};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::packet::{Effect, Fate, Rules, Segment};

/// Largest packet: a message of the system's largest buffer in few pieces.
const MTU: u16 = 65_000;

/// Packets that wait for a slow link, per link; the next ones are lost, as in a router.
const WAITING_MAX: usize = 4_096;

/// A packet that waits: when it goes on, its place among those of that moment, its bytes.
type Waiting = Reverse<(Duration, u64, Vec<u8>)>;

#[derive(Debug)]
struct State {
    rules: Rules,
    waiting: BinaryHeap<Waiting>,
    order: u64,
    rng: DetRng,
    /// The port that nodes call the master at, and the one behind which the calls are taken.
    calls: (u16, u16),
}

struct Shared {
    device: SyncDevice,
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

/// The interface. It goes with the process.
#[derive(Clone)]
pub(super) struct Links {
    shared: Arc<Shared>,
    /// The third and the fourth byte of the network, of the range that is set aside for tests of networks.
    network: (u8, u8),
}

impl Links {
    /// Makes the interface, with addresses that no other one has.
    pub(super) fn open(seed: Seed) -> io::Result<Self> {
        let network = free_network()?;
        let device = DeviceBuilder::new()
            .ipv4(address(network, 2), 30, Some(address(network, 1)))
            .mtu(MTU)
            .build_sync()?;
        let state = State {
            rules: Rules::default(),
            waiting: BinaryHeap::new(),
            order: 0,
            rng: seed.derive("packets").rng(),
            calls: (0, 0),
        };
        let shared =
            Shared { device, began: Instant::now(), state: Mutex::new(state), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let (reader, sender) = (Arc::clone(&shared), Arc::clone(&shared));
        std::thread::Builder::new().name("links".to_owned()).spawn(move || reader.forward())?;
        std::thread::Builder::new().name("slow links".to_owned()).spawn(move || sender.send_late())?;
        Ok(Self { shared, network })
    }

    /// Address that nodes and the master listen at.
    pub(super) const fn here(&self) -> Ipv4Addr {
        address(self.network, 2)
    }

    /// Address that they tell each other.
    pub(super) const fn there(&self) -> Ipv4Addr {
        address(self.network, 1)
    }

    /// Calls to the port `master` go to the port `taken` from now on.
    pub(super) fn take_calls(&self, master: u16, taken: u16) {
        self.shared.lock().calls = (master, taken);
    }

    /// A fault begins.
    pub(super) fn begin(&self, fault: u32, effect: Effect) {
        self.shared.lock().rules.begin(fault, effect);
    }

    /// The victim of a fault has these ports now.
    pub(super) fn ports(&self, fault: u32, ports: &BTreeSet<u16>) {
        self.shared.lock().rules.ports(fault, ports);
    }

    /// A fault ends. Returns how many packets it hit.
    pub(super) fn end(&self, fault: u32) -> u64 {
        self.shared.lock().rules.end(fault)
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("here", &self.here()).finish_non_exhaustive()
    }
}

/// A host of a network of four addresses.
const fn address((third, fourth): (u8, u8), host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, third, fourth + host)
}

/// A network whose addresses no interface of this machine has.
fn free_network() -> io::Result<(u8, u8)> {
    let first = std::process::id();
    for try_ in 0..64 {
        let [low, third, ..] = (first.wrapping_add(try_).wrapping_mul(4)).to_le_bytes();
        let network = (third, low);
        // No process can listen at an address that is not there.
        if UdpSocket::bind((address(network, 2), 0)).is_err() {
            return Ok(network);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "all networks are taken"))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What is behind the lock is valid after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forward(&self) {
        let mut buffer = vec![0; usize::from(u16::MAX)];
        // It ends with the process.
        while let Ok(len) = self.device.recv(&mut buffer) {
            let Some(mut segment) = Segment::read(&mut buffer[..len]) else { continue };
            let (from, to) = segment.ports();
            let mut state = self.lock();
            let (outside, inside) = state.calls;
            let is_call = from == inside || to == outside;
            let now = self.began.elapsed();
            let State { rules, rng, .. } = &mut *state;
            // As the nodes know the ports.
            let known = if from == inside { (outside, to) } else { (from, to) };
            match rules.fate(now, known, len, is_call, rng) {
                Fate::Lost => {}
                Fate::Reset => {
                    let answer = segment.reset();
                    drop(state);
                    if let Some(answer) = answer {
                        self.send(&answer);
                    }
                }
                Fate::Pass { at, corrupt } => {
                    if corrupt {
                        segment.corrupt(rng);
                    }
                    segment.reflect((known.0, if to == outside { inside } else { to }));
                    if at <= now {
                        drop(state);
                        self.send(&buffer[..len]);
                    } else if state.waiting.len() < WAITING_MAX {
                        state.order += 1;
                        let order = state.order;
                        state.waiting.push(Reverse((at, order, buffer[..len].to_vec())));
                        drop(state);
                        self.changed.notify_one();
                    }
                }
            }
        }
    }

    fn send_late(&self) {
        let mut state = self.lock();
        loop {
            let now = self.began.elapsed();
            let wait = match state.waiting.peek() {
                None => Duration::from_secs(3_600),
                Some(Reverse((at, ..))) => at.saturating_sub(now),
            };
            if !wait.is_zero() {
                state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if let Some(Reverse((.., packet))) = state.waiting.pop() {
                drop(state);
                self.send(&packet);
                state = self.lock();
            }
        }
    }

    fn send(&self, packet: &[u8]) {
        // A packet that the system does not take is lost, as on any network.
        let _ = self.device.send(packet);
    }
}
