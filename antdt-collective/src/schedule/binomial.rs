//! Broadcast down a binomial tree: in each round, every rank that has the buffer sends it to one more.
//!
//! Cost `⌈log2 n⌉(α + S/B)`: the fewest rounds, and `log2 n` times the time of a [`chain`](super::chain) when the
//! buffer is long. Right for short messages to many ranks. Rejected: a flat tree, where the root sends `n-1` times.
//!
//! Source: folklore.

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push};

/// Broadcast down a binomial tree: every rank ends with the root's buffer. For short messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinomialBroadcast {
    /// Rank whose buffer is broadcast.
    pub root: Rank,
}

impl Algorithm for BinomialBroadcast {
    fn name(&self) -> &'static str {
        "binomial-broadcast"
    }

    fn code(&self) -> u8 {
        11
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let position = (me.0 + world - self.root.0) % world;
        let at = |position: u32| Rank((position + self.root.0) % world);
        let span = Span { start: 0, len };
        let rounds = (0..world.next_power_of_two().ilog2()).map(|bit| {
            // Before this round the first `have` positions have the buffer.
            let (have, mut round) = (1_u32 << bit, Vec::new());
            if position < have && position + have < world {
                push(&mut round, Step::Send { to: at(position + have), span });
            } else if (have..2 * have).contains(&position) {
                push(&mut round, Step::RecvCopy { from: at(position - have), span });
            }
            round
        });
        Schedule { rounds: rounds.collect() }
    }
}
