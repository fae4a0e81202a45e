//! Recursive halving and doubling: the bytes of the ring in `2 log2 n` rounds.
//!
//! Partners at distance `n/2, n/4, …, 1` swap halves of what they are still responsible for and fold; then rank `r` has
//! the total of chunk `r`, and the same way back hands the totals to all. If `n` is not a power of two, each of the
//! first `n-p` pairs of ranks (`p` is the largest power of two in `n`) folds into one of the two, which takes part for
//! both and sends the result back at the end.
//!
//! Cost `2 log2 n·α + 2(n-1)/n·S/B + (n-1)/n·Sγ` for a power of two; otherwise the same for `p`, and
//! `2α + 2S/B + Sγ` for the fold. One owner computes each total, so all ranks have the same bits. Against the ring it
//! wins on latency only: it sends as much, and between switches its first round sends half the buffer across the
//! whole network at once. Rejected for odd groups: binary blocks, which save the fold's bytes and pay with
//! transfers of uneven length; the ring is right where those bytes count.
//!
//! Source: Rabenseifner, "Optimization of collective reduction operations", 2004 (recalled); the fold as in MPICH
//! (recalled).

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push, split_even};

/// All-reduce by recursive halving and doubling: partners exchange halves. As few bytes as the ring, in fewer
/// rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HalvingDoubling;

impl Algorithm for HalvingDoubling {
    fn name(&self) -> &'static str {
        "halving-doubling"
    }

    fn code(&self) -> u8 {
        6
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let core = Core::new(world);
        let chunks = split_even(len, core.size as usize);
        // The chunks that virtual rank `v` shares with those that differ from it below bit `mask`.
        let block = |v: u32, mask: u32| {
            let first = (v & !(mask - 1)) as usize;
            let last = chunks[first + mask as usize - 1];
            Span { start: chunks[first].start, len: last.start + last.len - chunks[first].start }
        };
        let masks = (0..core.rounds()).map(|bit| 1_u32 << bit);
        core.surround(me, len, |v| {
            let halving = masks.clone().rev().map(|mask| {
                let (peer, mut round) = (v ^ mask, Vec::with_capacity(2));
                push(&mut round, Step::Send { to: core.real(peer), span: block(peer, mask) });
                push(&mut round, Step::RecvReduce { from: core.real(peer), span: block(v, mask) });
                round
            });
            let doubling = masks.clone().map(|mask| {
                let (peer, mut round) = (v ^ mask, Vec::with_capacity(2));
                push(&mut round, Step::Send { to: core.real(peer), span: block(v, mask) });
                push(&mut round, Step::RecvCopy { from: core.real(peer), span: block(peer, mask) });
                round
            });
            halving.chain(doubling).collect()
        })
    }

    fn slices(&self) -> bool {
        true
    }
}

/// The ranks that take part for all: a power of two of them, numbered anew without gaps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Core {
    /// Virtual ranks: the largest power of two that is not above the number of ranks.
    pub(super) size: u32,
    // Ranks outside: the even ones among the first `2 * folded`.
    folded: u32,
}

impl Core {
    pub(super) const fn new(world: u32) -> Self {
        let size = if world == 0 { 1 } else { 1 << world.ilog2() };
        Self { size, folded: world.saturating_sub(size) }
    }

    /// Rounds after which every rank has exchanged data, directly or not, with every other rank: `log2 size`.
    pub(super) const fn rounds(self) -> u32 {
        self.size.ilog2()
    }

    /// The rank that plays virtual rank `v`.
    pub(super) const fn real(self, v: u32) -> Rank {
        if v < self.folded { Rank(2 * v + 1) } else { Rank(v + self.folded) }
    }

    /// What `me` does: its part within the core, between the fold before and the hand-back after.
    pub(super) fn surround(self, me: Rank, len: usize, inside: impl Fn(u32) -> Vec<Vec<Step>>) -> Schedule {
        let whole = Span { start: 0, len };
        let of_pair = me.0 < 2 * self.folded;
        let outside = of_pair && me.0.is_multiple_of(2);
        let mut rounds = Vec::new();
        if self.folded > 0 {
            let mut round = Vec::new();
            if outside {
                push(&mut round, Step::Send { to: Rank(me.0 + 1), span: whole });
            } else if of_pair {
                push(&mut round, Step::RecvReduce { from: Rank(me.0 - 1), span: whole });
            }
            rounds.push(round);
        }
        let middle = if outside {
            // It waits; its rounds are counted, so that the hand-back has the same number on both sides.
            inside(0).iter().map(|_| Vec::new()).collect()
        } else {
            inside(if of_pair { me.0 / 2 } else { me.0 - self.folded })
        };
        rounds.extend(middle);
        if self.folded > 0 {
            let mut round = Vec::new();
            if outside {
                push(&mut round, Step::RecvCopy { from: Rank(me.0 + 1), span: whole });
            } else if of_pair {
                push(&mut round, Step::Send { to: Rank(me.0 - 1), span: whole });
            }
            rounds.push(round);
        }
        Schedule { rounds }
    }
}
