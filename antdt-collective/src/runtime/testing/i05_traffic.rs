//! I5: every algorithm sends the bytes that its documentation states, and no more messages.

use std::sync::Arc;

use antdt_core::Rank;

use super::count::{CountTransport, Traffic};
use super::members::{AnyTransport, Make, PATIENT, on_all};
use crate::compress::{Compression, TopK};
use crate::op::ReduceOp;
use crate::runtime::{Communicator, Compressor, ScheduledCommunicator};
use crate::schedule::{Choice, Hierarchical, direct::SEGMENT_LEN, split_even};

/// Bytes of an element.
const SIZE: u64 = size_of::<f32>() as u64;

/// Checks invariant I5: every algorithm sends, per member, the bytes, messages and rounds of its closed
/// formula. For the hierarchical algorithm the bytes between hosts are also checked. A compressed all-reduce
/// sends the bytes of the compressed form, and a bounded number of bytes for lengths. A group of one sends
/// nothing.
///
/// # Panics
/// If the invariant is broken.
pub fn i05_traffic(make: &Make<'_>) {
    for world in 1..=8_u32 {
        let n = world as usize;
        for len in [0, 1, n - 1, n, n + 1, 2 * n + 1, 1021] {
            ring(world, len, &sent(make, Choice::Ring, world, len));
            if len > 0 {
                direct(world, len, &sent(make, Choice::Direct, world, len));
                whole_buffers(make, world, len);
                double_tree(world, len, &sent(make, Choice::DoubleTree, world, len));
            }
        }
        halving_doubling(make, world);
        if world > 1 {
            compressed(make, world);
            reduce_scatter(make, world);
        }
    }
    // A chunk that is collected in several rounds.
    direct(3, 3 * SEGMENT_LEN + 5, &sent(make, Choice::Direct, 3, 3 * SEGMENT_LEN + 5));
    for hosts in [
        &[0, 0, 1, 1][..],
        &[0, 1, 0, 1],
        &[0, 0, 0, 1, 1, 1],
        &[0, 0, 1, 1, 2, 2],
        &[0, 1, 1, 2, 2, 2],
        &[0, 0, 0],
        &[0, 1, 2],
    ] {
        hosts_first(make, hosts);
    }
    for choice in Choice::ALL {
        let alone = sent(make, choice, 1, 100);
        assert_eq!((alone[0].bytes(), alone[0].messages()), (0, 0), "{choice} alone");
    }
}

// `2(n-1)/n·S` each: every chunk but one twice, in one message each.
fn ring(world: u32, len: usize, traffic: &[Arc<Traffic>]) {
    let (n, whole) = (world as usize, len as u64 * SIZE);
    if len == 0 {
        // Only a byte or so each way, to find out whether all mean the same call.
        assert!(traffic.iter().all(|traffic| traffic.bytes() <= 64 * n as u64));
        return;
    }
    let chunks = split_even(len, n);
    let (most, least) = (chunks[0].len as u64 * SIZE, chunks[n - 1].len as u64 * SIZE);
    let all: u64 = traffic.iter().map(|traffic| traffic.bytes()).sum();
    assert_eq!(all, 2 * (n as u64 - 1) * whole, "{len} around {world}");
    for traffic in traffic {
        assert!(
            (2 * (whole - most)..=2 * (whole - least)).contains(&traffic.bytes()),
            "{len} around {world}"
        );
        assert!(traffic.messages() <= 2 * (n as u64 - 1), "{len} around {world}");
        if len >= n {
            assert_eq!(traffic.messages(), 2 * (n as u64 - 1), "{len} around {world}");
        }
    }
}

// `2(n-1)/n·S` each: to every other member its chunk and the total of the own one.
fn direct(world: u32, len: usize, traffic: &[Arc<Traffic>]) {
    let others = u64::from(world) - 1;
    let chunks = split_even(len, world as usize);
    let segments = chunks[0].len.div_ceil(SEGMENT_LEN) as u64;
    for (traffic, chunk) in traffic.iter().zip(&chunks) {
        let own = chunk.len as u64 * SIZE;
        assert_eq!(traffic.bytes(), len as u64 * SIZE - own + others * own, "{len} directly in {world}");
        assert!(traffic.messages() <= (segments + 1) * others, "{len} directly in {world}");
        assert!(traffic.exchanges() <= segments + 1, "{len} directly in {world}");
    }
}

// `S·log2 n` each by doubling, and `S` more for what is folded into a partner; `S·(n-1)` by gathering.
fn whole_buffers(make: &Make<'_>, world: u32, len: usize) {
    let whole = len as u64 * SIZE;
    for (rank, traffic) in (0..).zip(sent(make, Choice::RecursiveDoubling, world, len)) {
        let times = u64::from(world.ilog2());
        let times = match fold(world, rank) {
            Fold::Outside => 1,
            Fold::ForTwo => times + 1,
            Fold::Alone => times,
        };
        assert_eq!(traffic.bytes(), whole * times, "{len} doubled in {world}, rank {rank}");
        assert_eq!(traffic.messages(), times, "{len} doubled in {world}, rank {rank}");
    }
    let others = u64::from(world) - 1;
    for traffic in sent(make, Choice::Gather, world, len) {
        assert_eq!(
            (traffic.bytes(), traffic.messages()),
            (others * whole, others),
            "{len} gathered in {world}"
        );
        assert_eq!(traffic.exchanges(), others.min(1), "{len} gathered in {world}");
    }
}

// `2(p-1)/p·S` each in `2 log2 p` rounds, for the largest power of two `p`, and `S` for what is folded into a partner.
fn halving_doubling(make: &Make<'_>, world: u32) {
    let levels = u64::from(world.ilog2());
    let core = 1_u64 << levels;
    let whole = 24 * core * SIZE;
    let traffic = sent(make, Choice::HalvingDoubling, world, 24 * core as usize);
    for (rank, traffic) in (0..).zip(traffic) {
        let inside = (2 * (core - 1) * whole / core, 2 * levels);
        let (bytes, messages) = match fold(world, rank) {
            Fold::Outside => (whole, 1),
            Fold::ForTwo => (inside.0 + whole, inside.1 + 1),
            Fold::Alone => inside,
        };
        assert_eq!(traffic.bytes(), bytes, "halving in {world}, rank {rank}");
        assert_eq!(traffic.messages(), messages, "halving in {world}, rank {rank}");
    }
}

// `2S` at most each, and what two trees over all need: every half goes up and down every branch but that of the root.
fn double_tree(world: u32, len: usize, traffic: &[Arc<Traffic>]) {
    let whole = len as u64 * SIZE;
    let all: u64 = traffic.iter().map(|traffic| traffic.bytes()).sum();
    assert_eq!(all, 2 * (u64::from(world) - 1) * whole, "{len} through trees of {world}");
    // A half is an element longer than the other one, and a rank sends at most three of its own.
    let most = 2 * whole + 2 * SIZE;
    assert!(traffic.iter().all(|traffic| traffic.bytes() <= most), "{len} through trees of {world}");
}

// `2(N-1)/N·S` across every host's link, spread evenly over its members, and `2(L-1)/L·S` inside a host of `L`.
fn hosts_first(make: &Make<'_>, hosts: &[u32]) {
    let world = hosts.len() as u32;
    // Divisible by every number of hosts and of members above.
    let len = 12 * 18;
    let whole = len as u64 * SIZE;
    let algorithm = Hierarchical { hosts: hosts.to_vec() };
    let traffic = counted(make, world, |_, communicator| {
        let mut data = vec![1.0_f32; len];
        communicator.all_reduce_with(&algorithm, &mut data, ReduceOp::Sum).expect("all members reduce");
    });
    let count = u64::from(hosts.iter().max().map_or(0, |last| last + 1));
    for (traffic, host) in traffic.iter().zip(hosts) {
        let members = hosts.iter().filter(|other| *other == host).count() as u64;
        let near = |peer: &usize| hosts[*peer] == *host;
        let to = |peer: usize| traffic.bytes_to(Rank(peer as u32));
        let inside: u64 = (0..hosts.len()).filter(near).map(to).sum();
        assert_eq!(inside, 2 * (members - 1) * whole / members, "inside hosts {hosts:?}");
        let across = traffic.bytes() - inside;
        assert_eq!(across, 2 * (count - 1) * whole / count / members, "between hosts {hosts:?}");
    }
}

// Half of what [`direct`] sends for `bf16`, `8k(n-1)` for the largest `k`; with a header and a few lengths to each.
fn compressed(make: &Make<'_>, world: u32) {
    let (n, len) = (u64::from(world), 3000 * world as usize);
    let share = TopK::new(0.01).expect("a share");
    let largest = 8 * (len as u64 / 100) * (n - 1);
    let bf16 = 2 * (n - 1) * (len as u64 / n) * SIZE / 2;
    for (compression, bytes) in [(Compression::Bf16, bf16), (Compression::TopK(share), largest)] {
        let traffic = counted(make, world, |_, communicator| {
            let mut gradient = vec![1.0_f32; len];
            Compressor::new(compression).all_reduce(communicator, &mut gradient).expect("all members reduce");
        });
        for traffic in traffic {
            let most = bytes + (n - 1) * (24 + 8 * n);
            assert!(
                (bytes..=most).contains(&traffic.bytes()),
                "{} bytes, not {bytes}, for {compression:?} in {world}",
                traffic.bytes()
            );
        }
    }
}

// `(n-1)/n·S` each: every chunk but one, once.
fn reduce_scatter(make: &Make<'_>, world: u32) {
    for unit in [30, 20_000] {
        let len = unit * world as usize;
        let traffic = counted(make, world, |_, communicator| {
            communicator.reduce_scatter(&vec![1.0_f32; len], ReduceOp::Sum).expect("all members reduce");
        });
        for traffic in traffic {
            assert_eq!(traffic.bytes(), (len - unit) as u64 * SIZE, "{len} scattered in {world}");
        }
    }
}

/// What a rank has to do with those beyond the largest power of two.
enum Fold {
    /// The rank gives its buffer to a partner and gets the result.
    Outside,
    /// The rank takes part for itself and its partner.
    ForTwo,
    Alone,
}

fn fold(world: u32, rank: u32) -> Fold {
    let beyond = world - (1 << world.ilog2());
    match rank {
        rank if rank >= 2 * beyond => Fold::Alone,
        rank if rank.is_multiple_of(2) => Fold::Outside,
        _ => Fold::ForTwo,
    }
}

fn sent(make: &Make<'_>, choice: Choice, world: u32, len: usize) -> Vec<Arc<Traffic>> {
    counted(make, world, |_, communicator| {
        let mut data = vec![1.0_f32; len];
        communicator.all_reduce_by(choice, &mut data, ReduceOp::Sum).expect("all members reduce");
    })
}

fn counted(
    make: &Make<'_>,
    world: u32,
    work: impl Fn(Rank, &mut ScheduledCommunicator<CountTransport<AnyTransport>>) + Sync,
) -> Vec<Arc<Traffic>> {
    let (transports, traffic): (Vec<_>, Vec<_>) = make(world).0.into_iter().map(CountTransport::new).unzip();
    on_all(transports, PATIENT, work);
    traffic
}
