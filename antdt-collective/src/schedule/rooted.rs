//! Gather to a root and scatter from it, with blocks of unequal length.
//!
//! Every other rank has one message with the root, all in one round. Cost: `α + (n-2)o + S'/B` with `S'` the blocks of
//! all but the root: the root's connection carries each byte once, and no algorithm can carry fewer through it.
//! Rejected: a binomial tree; it saves the root `n-1-log2 n` messages, and its inner ranks forward blocks that are not
//! theirs, `log2 n / 2` times each on average, through memory they would need for that.
//!
//! Source: folklore.

use antdt_core::Rank;

use super::direct::peers;
use super::{Algorithm, Schedule, Span, Step, push, spans_of};

/// Gather: the root ends with every rank's block. The root's buffer has all blocks in order of rank, its own
/// in place; that of another rank has its own block only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// Rank that receives the blocks.
    pub root: Rank,
    /// Length of each rank's block, in elements.
    pub blocks: Vec<usize>,
}

impl Algorithm for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn code(&self) -> u8 {
        13
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        let (blocks, mut round) = (spans_of(&self.blocks), Vec::new());
        if me == self.root {
            for peer in peers(me, world) {
                push(&mut round, Step::RecvCopy { from: peer, span: blocks[peer.0 as usize] });
            }
        } else {
            let len = self.blocks[me.0 as usize];
            push(&mut round, Step::Send { to: self.root, span: Span { start: 0, len } });
        }
        Schedule { rounds: vec![round] }
    }
}

/// Scatter: every rank ends with its block of the root's buffer. That buffer has all blocks in order of rank;
/// the buffer of another rank has its own block only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scatter {
    /// Rank whose blocks are scattered.
    pub root: Rank,
    /// Length of each rank's block, in elements.
    pub blocks: Vec<usize>,
}

impl Algorithm for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn code(&self) -> u8 {
        14
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        let (blocks, mut round) = (spans_of(&self.blocks), Vec::new());
        if me == self.root {
            for peer in peers(me, world) {
                push(&mut round, Step::Send { to: peer, span: blocks[peer.0 as usize] });
            }
        } else {
            let len = self.blocks[me.0 as usize];
            push(&mut round, Step::RecvCopy { from: self.root, span: Span { start: 0, len } });
        }
        Schedule { rounds: vec![round] }
    }
}
