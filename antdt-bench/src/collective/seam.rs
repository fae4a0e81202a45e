//! What the seams of a group cost on the host: the same reduction through a boxed group whose memory may lie anywhere, and straight
//! over a transport of known type in slices.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::runtime::{Backend, TransportBackend};
use antdt_collective::{
    AbortHandle, Communicator, CommunicatorConfig, Group, JobToken, Listener, Member, ReduceOp,
    ScheduledCommunicator, TcpTransport,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};
use anyhow::{Context, Result, anyhow, ensure};

use crate::meter::{Others, median};
use crate::{Entry, Rows};

/// Bytes, and calls between two readings of the clock. The first is a matter of latency, the second one of bandwidth.
const CASES: [(usize, u32); 2] = [(4 << 10, 200), (4 << 20, 4)];
const PATIENCE: Duration = Duration::from_secs(60);

/// What its lines begin with.
pub(super) const SEAM: &str = "tcp, 2 ranks, seams of a group";

/// Most that the seams may cost: two boxes are some nanoseconds, and a call takes microseconds. The rest is what medians differ by.
const MOST: f64 = 1.05;

/// A line for each length.
pub(super) fn seam(repetitions: usize, slack: f64, rows: &mut Rows) -> Result<()> {
    let address: SocketAddr = ([127, 0, 0, 1], 0).into();
    let bind = |_| Listener::bind(address, JobToken::new("seam"));
    let listeners = (0..4).map(bind).collect::<Result<Vec<Listener>, _>>()?;
    let (straight, boxed) = listeners.split_at(2);
    let (together, watched) = (Barrier::new(2), Others::watch());
    let run = |me: Rank| -> Result<Vec<[f64; 2]>> {
        let abort = AbortHandle::new()?;
        let config = CommunicatorConfig { timeout: PATIENCE, ..CommunicatorConfig::default() };
        let mine = me.0 as usize;
        let transport = TcpTransport::connect(&straight[mine], &group(straight, me)?, PATIENCE, &abort)?;
        let mut communicator = ScheduledCommunicator::new(transport, config);
        let mut backend = TransportBackend::new(REGISTRY.by_name("tcp").context("a transport of ours")?);
        let (mut boxed, _) = backend.join(&boxed[mine], &group(boxed, me)?, config, &abort)?;
        CASES
            .into_iter()
            .map(|(bytes, calls)| {
                let len = bytes / size_of::<f32>();
                let (mut data, mut into) = (vec![0.0_f32; len], vec![0.0_f32; len]);
                let mut buffer = boxed.buffer::<f32>(len)?;
                let mut times = [const { Vec::new() }; 2];
                // The first turn is to warm up. What goes first in a turn takes another time than what goes second.
                for turn in 0..=2 * repetitions {
                    for way in [turn % 2, 1 - turn % 2] {
                        together.wait();
                        let began = Instant::now();
                        for _ in 0..calls {
                            if way == 0 {
                                communicator.all_reduce_into(&data, &mut into, ReduceOp::Sum)?;
                                std::mem::swap(&mut data, &mut into);
                            } else {
                                boxed.all_reduce_buffer(&mut buffer, ReduceOp::Sum)?;
                            }
                        }
                        if turn > 0 {
                            times[way].push(began.elapsed().as_secs_f64() / f64::from(calls));
                        }
                    }
                }
                ensure!(data[..] == buffer[..], "both reduce the same");
                Ok(times.map(median))
            })
            .collect()
    };
    let times = thread::scope(|scope| {
        let other = scope.spawn(|| run(Rank(1)));
        let mine = run(Rank(0));
        other.join().map_err(|_| anyhow!("rank 1 panicked"))?.context("rank 1")?;
        mine.context("rank 0")
    })?;
    for ((bytes, _), [straight, through]) in CASES.into_iter().zip(times) {
        let title = format!("{SEAM}, {}", super::case::size(bytes));
        let both = format!("straight {:.1} us, through the seams {:.1} us", straight * 1e6, through * 1e6);
        let entry = Entry::shown(title, through / straight, "x").at_most(MOST * slack).beside(both);
        rows.push(entry.unless_overloaded(watched.share(), super::OTHERS_MAX));
    }
    Ok(())
}

fn group(listeners: &[Listener], me: Rank) -> Result<Group> {
    let holder = |index| Holder::new(NodeId::worker(index), Incarnation(0));
    let members = (0..).zip(listeners);
    let members: Vec<Member> = members
        .map(|(index, listener)| Member { holder: holder(index), address: listener.local_address() })
        .collect();
    Ok(Group::new(MembershipVersion(1), members, me)?)
}
