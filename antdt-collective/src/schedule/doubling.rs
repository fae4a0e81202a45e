//! Recursive doubling: the whole buffer to one partner per round, for messages whose time is nothing but latency.
//!
//! Partners at distance `1, 2, 4, …` swap their totals and both add. After `log2 n` rounds every rank has the total.
//! If `n` is not a power of two, the ranks that are too many fold into a partner first and get the result last, as in
//! [`halving`](super::halving).
//!
//! Cost `log2 n·(α + S/B + Sγ)`, and `2α + 2S/B + Sγ` for the fold. The fewest rounds there can be with one message at
//! a time, and up to `log2 n` times the bytes of the ring. Both partners compute the same total, so both must combine
//! in the same order, the lower rank's operand on the left: otherwise -0 and +0, or two NaNs, could leave different
//! bits on different ranks. Rejected: dissemination without the fold; `⌈log2 n⌉` rounds for every `n`, but it counts
//! operands twice, which only minimum and maximum forgive.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
//! (recalled); the order of operands is our design.

use antdt_core::Rank;

use super::halving::Core;
use super::{Algorithm, Schedule, Span, Step, push};

/// All-reduce by recursive doubling: partners exchange whole buffers. For the shortest messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecursiveDoubling;

impl Algorithm for RecursiveDoubling {
    fn name(&self) -> &'static str {
        "recursive-doubling"
    }

    fn code(&self) -> u8 {
        7
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let core = Core::new(world);
        let span = Span { start: 0, len };
        core.surround(me, len, |v| {
            (0..core.rounds())
                .map(|bit| {
                    let (peer, mut round) = (v ^ (1 << bit), Vec::with_capacity(2));
                    let from = core.real(peer);
                    push(&mut round, Step::Send { to: from, span });
                    let receive = if peer < v {
                        Step::RecvReduceLeft { from, span }
                    } else {
                        Step::RecvReduce { from, span }
                    };
                    push(&mut round, receive);
                    round
                })
                .collect()
        })
    }

    fn slices(&self) -> bool {
        true
    }
}
