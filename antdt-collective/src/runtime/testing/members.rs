//! Groups for tests, and ways to run all their members at once.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use antdt_core::testing::Mask;
use antdt_core::{Connections, Holder, Incarnation, MembershipVersion, NodeId, Rank};

use crate::error::CollectiveError;
use crate::group::{Group, JobToken, Member};
use crate::runtime::transport::{Fabric, REGISTRY, Transport};
use crate::runtime::{
    AbortHandle, CommunicatorConfig, Listener, MemTransport, MixedConfig, MixedTransport, Regroup,
    ScheduledCommunicator, TcpTransport,
};

/// The transports of one group in order of rank, and the abort handle of each.
pub type Members<T> = (Vec<T>, Vec<AbortHandle>);

/// A transport of any type: the tests of this module are compiled once for all of them.
pub type AnyTransport = Box<dyn Transport>;

/// Makes a group of the given number of members, as [`mem_members`] does.
pub type Make<'a> = dyn Fn(u32) -> Members<AnyTransport> + Sync + 'a;

/// Returns the same members as [`AnyTransport`].
pub fn any_members<T: Transport + 'static>((transports, aborts): Members<T>) -> Members<AnyTransport> {
    (transports.into_iter().map(|transport| Box::new(transport) as AnyTransport).collect(), aborts)
}

/// Timeout of a call in a test in which no deadline should pass.
pub const PATIENT: Duration = Duration::from_secs(60);

/// Timeout of a call in a test in which the deadline should pass.
pub const SHORT: Duration = Duration::from_millis(300);

/// Timeouts that a test tries one after the other where a member must be detected by being late. On a busy
/// machine a member may be suspended for longer than one of them, and then really is late. A defect names the
/// wrong member under all of them.
pub const LONGER: [Duration; 4] =
    [SHORT, Duration::from_millis(1200), Duration::from_secs(5), Duration::from_secs(20)];

/// Returns the node and incarnation of `rank` in the groups of these checks.
pub fn holder(rank: u32) -> Holder {
    Holder::new(NodeId::worker(rank), Incarnation(0))
}

/// Returns a group whose members are threads of this process.
///
/// # Panics
/// If the group cannot be made.
pub fn mem_members(world: u32) -> Members<MemTransport> {
    let aborts = abort_handles(world);
    let address = "127.0.0.1:0".parse().expect("a constant");
    let members: Vec<Member> = (0..world).map(|rank| Member { holder: holder(rank), address }).collect();
    (MemTransport::group(MembershipVersion(1), &members, &aborts).expect("a good group"), aborts)
}

/// Returns a group whose members are connected over loopback TCP.
///
/// # Panics
/// If they cannot be connected.
pub fn tcp_members(world: u32) -> Members<TcpTransport> {
    met_members(world, TcpTransport::connect)
}

/// Returns a group whose members are connected over loopback TCP, every byte of which is changed by a wrapper.
///
/// # Panics
/// If they cannot be connected.
pub fn masked_members(world: u32) -> Members<TcpTransport> {
    members_over(world, &Connections::wrapped(Mask::default()), TcpTransport::connect)
}

/// Returns a group whose members communicate over shared memory.
///
/// # Panics
/// If they cannot be connected.
pub fn shm_members(world: u32) -> Members<MixedTransport> {
    met_members(world, MixedTransport::connect)
}

/// Returns a group on two simulated hosts: memory is shared by the first half of the ranks and by the second,
/// and the halves are connected over loopback TCP.
///
/// # Panics
/// If they cannot be connected.
pub fn mixed_members(world: u32) -> Members<MixedTransport> {
    met_members(world, |listener, group, timeout, abort| {
        let host = if group.me().0 < world / 2 { "first" } else { "second" };
        let config = MixedConfig { part: host.to_owned(), ..MixedConfig::default() };
        MixedTransport::connect_with(listener, group, timeout, abort, config)
    })
}

/// Returns a group whose members communicate over the transport of this name in the registry.
///
/// # Panics
/// If there is no such transport, or the members cannot be connected.
pub fn named_members(name: &str, world: u32) -> Members<Box<dyn Regroup>> {
    fabric_members(&*REGISTRY.by_name(name).expect("a known transport"), world)
}

/// Returns a group whose members communicate over this fabric, on loopback.
///
/// # Panics
/// If they cannot be connected.
pub fn fabric_members(fabric: &dyn Fabric, world: u32) -> Members<Box<dyn Regroup>> {
    met_members(world, |listener, group, timeout, abort| fabric.connect(listener, group, timeout, abort))
}

/// Returns a group whose members `connect` connects, each called with a listener of its own on loopback.
///
/// # Panics
/// If they cannot be connected.
pub fn met_members<T: Transport>(
    world: u32,
    connect: impl Fn(&Listener, &Group, Duration, &AbortHandle) -> Result<T, CollectiveError> + Sync,
) -> Members<T> {
    members_over(world, &Connections::default(), connect)
}

fn members_over<T: Transport>(
    world: u32,
    connections: &Connections,
    connect: impl Fn(&Listener, &Group, Duration, &AbortHandle) -> Result<T, CollectiveError> + Sync,
) -> Members<T> {
    let aborts = abort_handles(world);
    let listeners: Vec<Listener> = (0..world).map(|_| listener_over(connections.clone())).collect();
    let addresses = (0..).zip(&listeners);
    let members: Vec<Member> =
        addresses.map(|(rank, l)| Member { holder: holder(rank), address: l.local_address() }).collect();
    let connect = |rank: u32| {
        let group = Group::new(MembershipVersion(1), members.clone(), Rank(rank)).expect("a good group");
        let index = rank as usize;
        connect(&listeners[index], &group, Duration::from_secs(20), &aborts[index]).expect("peers are there")
    };
    (at_once(0..world, connect), aborts)
}

/// Returns a listener on loopback, on a free port.
///
/// # Panics
/// If there is no loopback interface.
pub fn loopback_listener() -> Listener {
    listener_over(Connections::default())
}

/// Returns a listener as [`loopback_listener`] does, with these connections.
///
/// # Panics
/// If there is no loopback interface.
pub fn listener_over(connections: Connections) -> Listener {
    // Where connections come from, a port that one has left stays taken for a minute, and many tests leave none. On Linux they
    // come from 127.0.0.1, and all of 127.0.0.0/8 is loopback.
    let address = if cfg!(target_os = "linux") { "127.0.0.2:0" } else { "127.0.0.1:0" };
    let address = address.parse().expect("a constant");
    Listener::bind_with(address, JobToken::new("test"), connections).expect("loopback")
}

/// Returns an abort handle for each rank.
///
/// # Panics
/// If no file descriptor is left.
pub fn abort_handles(world: u32) -> Vec<AbortHandle> {
    (0..world).map(|_| AbortHandle::new().expect("a descriptor is left")).collect()
}

/// Calls `work` with all of `items` at the same time, each on its own thread; returns the results in order.
///
/// # Panics
/// If `work` panics.
pub fn at_once<I: Send, R: Send>(items: impl IntoIterator<Item = I>, work: impl Fn(I) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Calls `work` with each of `items`, at most `at_once_most` at the same time; returns the results in order.
/// The first calls begin one after the other, `apart`, so that deadlines of the same length do not all pass
/// at the same moment.
///
/// # Panics
/// If `work` panics.
pub fn some_at_once<I: Sync, R: Send>(
    items: &[I],
    at_once_most: usize,
    apart: Duration,
    work: impl Fn(&I) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let lanes = at_once(0..u32::try_from(at_once_most.min(items.len())).unwrap_or(u32::MAX), |lane| {
        thread::sleep(apart * lane);
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    });
    let mut done: Vec<(usize, R)> = lanes.into_iter().flatten().collect();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs `work` on all members at once, each on its own thread; returns the results by rank.
///
/// # Panics
/// If `work` panics.
pub fn on_all<T: Transport, R: Send>(
    transports: Vec<T>,
    timeout: Duration,
    work: impl Fn(Rank, &mut ScheduledCommunicator<T>) -> R + Sync,
) -> Vec<R> {
    let config = CommunicatorConfig { timeout, ..CommunicatorConfig::default() };
    on_all_with(transports, config, work)
}

/// Runs `work` as [`on_all`] does, with other settings than the default ones.
///
/// # Panics
/// If `work` panics.
pub fn on_all_with<T: Transport, R: Send>(
    transports: Vec<T>,
    config: CommunicatorConfig,
    work: impl Fn(Rank, &mut ScheduledCommunicator<T>) -> R + Sync,
) -> Vec<R> {
    let ranks = (0..).map(Rank).zip(transports);
    at_once(ranks, |(rank, transport)| work(rank, &mut ScheduledCommunicator::new(transport, config)))
}
