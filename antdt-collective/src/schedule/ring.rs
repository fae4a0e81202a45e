//! The ring: every rank talks to its two neighbours only.
//!
//! The buffer is cut into `n` chunks. In each of `n-1` rounds a rank passes one chunk on and folds the one that comes
//! into its own; afterwards rank `r` has the total of chunk `r+1`. Another `n-1` rounds hand the totals round.
//!
//! Cost `2(n-1)α + 2(n-1)/n·S/B + (n-1)/n·Sγ`: the fewest bytes possible, on any topology without contention. The
//! order of additions is fixed (chunk `c` starts at rank `c` and goes round), so results have the same bits on every
//! rank and in every run. Rejected: a ring that passes whole buffers; it sends `n/2` times the bytes and rounds
//! differently on each rank.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009 (recalled).

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push, spans_of, split_even};

/// All-reduce round a ring: every rank talks to its two neighbours only. The fewest bytes, for long buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn code(&self) -> u8 {
        1
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let (n, r) = (world as usize, me.0 as usize);
        let chunks = split_even(len, n);
        let mut rounds = Vec::with_capacity(2 * n.saturating_sub(1));
        for t in 0..n.saturating_sub(1) {
            let (out, into) = (chunks[(r + n - t) % n], chunks[(r + 2 * n - t - 1) % n]);
            rounds.push(pass(me, world, out, |from| Step::RecvReduce { from, span: into }));
        }
        rounds.extend(hand_round(me, world, &chunks, 1));
        Schedule { rounds }
    }

    fn slices(&self) -> bool {
        true
    }
}

/// All-gather round a ring: rank `r` starts with block `r` and ends with all.
///
/// Cost `(n-1)α + (n-1)/n·S/B` for blocks of equal length; the longest block sets the pace of each round. Rejected:
/// recursive doubling, `log2 n` rounds for as many bytes, but for powers of two only; short blocks, where rounds count, go
/// by [`DirectGather`](super::DirectGather) in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingGather {
    /// Length of each rank's block, in elements; the blocks lie one after the other.
    pub blocks: Vec<usize>,
}

impl Algorithm for RingGather {
    fn name(&self) -> &'static str {
        "ring-gather"
    }

    fn code(&self) -> u8 {
        2
    }

    fn schedule(&self, me: Rank, world: u32, _len: usize) -> Schedule {
        Schedule { rounds: hand_round(me, world, &spans_of(&self.blocks), 0).collect() }
    }
}

// Rank r starts with chunk r+lead and passes on what came last.
fn hand_round(me: Rank, world: u32, chunks: &[Span], lead: usize) -> impl Iterator<Item = Vec<Step>> {
    let (n, r) = (world as usize, me.0 as usize);
    (0..n.saturating_sub(1)).map(move |t| {
        let (out, into) = (chunks[(r + lead + n - t) % n], chunks[(r + lead + 2 * n - t - 1) % n]);
        pass(me, world, out, |from| Step::RecvCopy { from, span: into })
    })
}

pub(super) fn pass(me: Rank, world: u32, out: Span, receive: impl Fn(Rank) -> Step) -> Vec<Step> {
    let mut round = Vec::with_capacity(2);
    push(&mut round, Step::Send { to: Rank((me.0 + 1) % world), span: out });
    push(&mut round, receive(Rank((me.0 + world - 1) % world)));
    round
}
