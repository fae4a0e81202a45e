//! Direct exchange: every rank sends to every rank, in few rounds. For messages whose time is latency, and
//! for ranks that share memory.
//!
//! Rank `r` collects chunk `r` from all others, folds it in order of rank after its own, and sends the total
//! to all. Cost `2α + 2(n-1)/n·S/B + (n-1)/n·Sγ` while the network takes `n-1` messages at once. Many senders
//! into one receiver make it lose to the ring for long buffers. Ranks that share memory have no such
//! contention, and totals are read and written less often than in the ring. Long chunks are then collected
//! segment by segment, so that the segments of the others are still in the cache when they are folded. One
//! owner computes each total, so all ranks have the same bits. The alternative for short buffers is
//! [`doubling`](super::doubling): one message per round, but `log2 n` rounds, and two more when `n` is no
//! power of two. Rejected: a star through one rank; its network takes all bytes of all ranks.
//!
//! Source: folklore.

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push, spans_of, split_even};

/// Number of elements that are collected in one round, summed over all ranks: as many as a cache holds.
pub const SEGMENT_LEN: usize = 64 << 10;

/// All-reduce in which every rank sends to every rank: two rounds, and one more for each further
/// [`SEGMENT_LEN`] elements of a chunk.
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
        // The first chunk is the longest.
        let segments = chunks[0].len.div_ceil(SEGMENT_LEN);
        let mut rounds: Vec<Vec<Step>> = (0..segments.max(1))
            .map(|index| {
                let mut collect = Vec::new();
                for peer in peers(me, world) {
                    push(
                        &mut collect,
                        Step::Send { to: peer, span: segment(chunks[peer.0 as usize], index) },
                    );
                    push(&mut collect, Step::RecvReduce { from: peer, span: segment(mine, index) });
                }
                collect
            })
            .collect();
        let mut spread = Vec::new();
        for peer in peers(me, world) {
            push(&mut spread, Step::Send { to: peer, span: mine });
            push(&mut spread, Step::RecvCopy { from: peer, span: chunks[peer.0 as usize] });
        }
        rounds.push(spread);
        Schedule { rounds }
    }
}

/// All-gather in one round: rank `r` starts with block `r` and sends it to all.
///
/// Cost `α + (n-2)o + (n-1)/n·S/B` while the network takes `n-1` messages at once; beyond, the ring's receivers with one
/// sender each are faster. Rejected: Bruck's `log2 n` rounds, which leave the blocks in the wrong place and turn them at the
/// end, a copy of the whole result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectGather {
    /// Length of each rank's block, in elements; the blocks lie one after the other.
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

fn segment(chunk: Span, index: usize) -> Span {
    let skipped = (index * SEGMENT_LEN).min(chunk.len);
    Span { start: chunk.start + skipped, len: SEGMENT_LEN.min(chunk.len - skipped) }
}

pub(super) fn peers(me: Rank, world: u32) -> impl Iterator<Item = Rank> {
    (0..world).map(Rank).filter(move |peer| *peer != me)
}
