//! Everybody talks to everybody: few rounds, for messages whose time is latency.
//!
//! Rank `r` collects chunk `r` from all others, folds it in order of rank after its own, and sends the total to all.
//! Cost `2α + 2(n-1)/n·S/B + (n-1)/n·Sγ` while the network takes `n-1` messages at once; many senders into one receiver
//! is what makes it lose to the ring for long buffers. One owner computes each total, so all ranks have the same bits.
//! Beside it for short buffers stands [`doubling`](super::doubling): one message per round, but `log2 n` rounds, and two
//! more when `n` is no power of two. Rejected: a star through one rank; its network takes all bytes of all ranks.
//!
//! Source: folklore.

use antdt_core::Rank;

use super::{Algorithm, Schedule, Step, push, spans_of, split_even};

/// All-reduce in two rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Direct;

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn code(&self) -> u8 {
        3
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let chunks = split_even(len, world as usize);
        let mine = chunks[me.0 as usize];
        let (mut collect, mut spread) = (Vec::new(), Vec::new());
        for peer in peers(me, world) {
            let theirs = chunks[peer.0 as usize];
            push(&mut collect, Step::Send { to: peer, span: theirs });
            push(&mut collect, Step::RecvReduce { from: peer, span: mine });
            push(&mut spread, Step::Send { to: peer, span: mine });
            push(&mut spread, Step::RecvCopy { from: peer, span: theirs });
        }
        Schedule { rounds: vec![collect, spread] }
    }
}

/// All-gather in one round: rank `r` starts with block `r` and sends it to all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectGather {
    /// Length of each rank's block, in elements; they lie one after the other.
    pub blocks: Vec<usize>,
}

impl Algorithm for DirectGather {
    fn name(&self) -> &'static str {
        "direct-gather"
    }

    fn code(&self) -> u8 {
        4
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        let blocks = spans_of(&self.blocks);
        let mut round = Vec::new();
        for peer in peers(me, world) {
            push(&mut round, Step::Send { to: peer, span: blocks[me.0 as usize] });
            push(&mut round, Step::RecvCopy { from: peer, span: blocks[peer.0 as usize] });
        }
        Schedule { rounds: vec![round] }
    }
}

pub(super) fn peers(me: Rank, world: u32) -> impl Iterator<Item = Rank> {
    (0..world).map(Rank).filter(move |peer| *peer != me)
}
