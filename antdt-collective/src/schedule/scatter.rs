//! Reduce-scatter: the buffers are reduced, and each rank ends with the total of its own block only.
//!
//! The first half of an all-reduce, for callers that need no more: an owner of a part of the parameters, or a
//! hierarchical reduction. Rank `r` ends with block `r`; what lies outside it is left as it happens to be.
//!
//! [`RingScatter`] costs `(n-1)(α + S/(nB)) + (n-1)/n·Sγ`, the fewest bytes, with one neighbour on each side.
//! [`DirectScatter`] costs `α + (n-1)/n·(S/B + Sγ)` while the network takes `n-1` messages at once. Blocks may differ
//! in length; the longest sets the pace. Rejected: recursive halving, whose blocks would have to be even and whose
//! ranks a power of two.
//!
//! Source: the first halves of [`ring`](super::ring) and [`direct`](super::direct).

use antdt_core::Rank;

use super::direct::peers;
use super::ring::pass;
use super::{Algorithm, Schedule, Step, push, spans_of};

/// Reduce-scatter round a ring: rank `r` ends with block `r` of the reduction. The fewest bytes, in `n-1`
/// rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingScatter {
    /// Length of each rank's block, in elements; the blocks lie one after the other.
    pub blocks: Vec<usize>,
}

impl Algorithm for RingScatter {
    fn name(&self) -> &'static str {
        "ring-scatter"
    }

    fn code(&self) -> u8 {
        9
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        let (n, r) = (world as usize, me.0 as usize);
        let blocks = spans_of(&self.blocks);
        let rounds = (0..n.saturating_sub(1)).map(|t| {
            let (out, into) = (blocks[(r + 2 * n - t - 1) % n], blocks[(r + 2 * n - t - 2) % n]);
            pass(me, world, out, |from| Step::RecvReduce { from, span: into })
        });
        Schedule { rounds: rounds.collect() }
    }
}

/// Reduce-scatter in one round: rank `r` ends with block `r` of the reduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectScatter {
    /// Length of each rank's block, in elements; the blocks lie one after the other.
    pub blocks: Vec<usize>,
}

impl Algorithm for DirectScatter {
    fn name(&self) -> &'static str {
        "direct-scatter"
    }

    fn code(&self) -> u8 {
        10
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        let blocks = spans_of(&self.blocks);
        let mut round = Vec::new();
        for peer in peers(me, world) {
            push(&mut round, Step::Send { to: peer, span: blocks[peer.0 as usize] });
            push(&mut round, Step::RecvReduce { from: peer, span: blocks[me.0 as usize] });
        }
        Schedule { rounds: vec![round] }
    }
}
