//! All-to-all: every rank has a block for every other one.
//!
//! In round `k` rank `r` sends to `r+k` and receives from `r-k`: every rank has one message each way at a time, and no
//! receiver has two senders. Cost `(n-1)α + S/B` with `S` the longer of what a rank sends and receives, the fewest bytes
//! there can be. Rejected: all messages in one round (`n-1` senders into each receiver); Bruck's `log2 n` rounds, which
//! send each byte `log2 n / 2` times and pay for blocks of a few bytes only.
//!
//! Source: the pairwise exchange of MPICH (recalled).

use antdt_core::Rank;

use super::{Algorithm, Schedule, Step, push, spans_of};

/// All-to-all: every rank sends one block to each other rank. A rank's buffer holds the blocks for all others
/// in order of rank, and after them those from all others. Two ranks must agree about the length of the block
/// between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllToAll {
    /// Length of the block for each rank, in elements; the block for this rank itself is not sent.
    pub out: Vec<usize>,
    /// Length of the block from each rank, in elements.
    pub into: Vec<usize>,
}

impl Algorithm for AllToAll {
    fn name(&self) -> &'static str {
        "all-to-all"
    }

    fn code(&self) -> u8 {
        15
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        let blocks = spans_of(&[&self.out[..], &self.into].concat());
        let rounds = (1..world).map(|distance| {
            let (to, from) = ((me.0 + distance) % world, (me.0 + world - distance) % world);
            let mut round = Vec::with_capacity(2);
            push(&mut round, Step::Send { to: Rank(to), span: blocks[to as usize] });
            push(&mut round, Step::RecvCopy { from: Rank(from), span: blocks[(world + from) as usize] });
            round
        });
        Schedule { rounds: rounds.collect() }
    }
}
