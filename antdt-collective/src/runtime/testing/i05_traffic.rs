//! I5: no more bytes and messages are sent than an algorithm is known for.

use std::sync::Arc;

use super::count::{CountTransport, Traffic};
use super::members::{Make, PATIENT, on_all};
use crate::op::ReduceOp;
use crate::runtime::transport::Transport;
use crate::schedule::Choice;

/// The ring sends every chunk but one twice, in one message each; halving and doubling sends as many bytes in twice as
/// many rounds as the number of members has bits; a group of one sends nothing.
///
/// # Panics
/// If not.
pub fn i05_traffic<T: Transport>(make: &impl Make<T>) {
    for world in 1..=8_u32 {
        let n = world as usize;
        for len in [0, 1, n - 1, n, n + 1, 2 * n + 1, 1021] {
            ring(world, len, &sent(make, Choice::Ring, world, len));
        }
    }
    for levels in 1..=3_u32 {
        let world = 1 << levels;
        let len = 24 * world as usize;
        for traffic in sent(make, Choice::HalvingDoubling, world, len) {
            let bytes = 2 * (u64::from(world) - 1) * 24 * size_of::<f32>() as u64;
            assert_eq!(traffic.bytes(), bytes, "halving-doubling between {world}");
            assert_eq!(traffic.messages(), 2 * u64::from(levels));
            assert_eq!(traffic.exchanges(), 2 * u64::from(levels));
        }
    }
    for choice in Choice::ALL {
        let alone = sent(make, choice, 1, 100);
        assert_eq!((alone[0].bytes(), alone[0].messages()), (0, 0), "{choice} alone");
    }
}

fn ring(world: u32, len: usize, traffic: &[Arc<Traffic>]) {
    let (n, size) = (world as usize, size_of::<f32>() as u64);
    if len == 0 {
        // Only a byte or so each way, to find out whether all mean the same call.
        assert!(traffic.iter().all(|traffic| traffic.bytes() <= 64 * n as u64));
        return;
    }
    let chunk = |index: usize| (len / n + usize::from(index < len % n)) as u64 * size;
    let (most, least) = (chunk(0), chunk(n - 1));
    let all: u64 = traffic.iter().map(|traffic| traffic.bytes()).sum();
    assert_eq!(all, 2 * (n as u64 - 1) * len as u64 * size, "{len} around {world}");
    for traffic in traffic {
        let whole = len as u64 * size;
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

fn sent<T: Transport>(make: &impl Make<T>, choice: Choice, world: u32, len: usize) -> Vec<Arc<Traffic>> {
    let (transports, traffic): (Vec<_>, Vec<_>) = make(world).0.into_iter().map(CountTransport::new).unzip();
    on_all(transports, PATIENT, |_, communicator| {
        let mut data = vec![1.0_f32; len];
        communicator.all_reduce_by(choice, &mut data, ReduceOp::Sum).expect("all members reduce");
    });
    traffic
}
