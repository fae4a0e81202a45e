//! Broadcast down a chain: the root sends to its successor, which passes on what it has while more comes.
//!
//! The buffer is cut into `k` segments; after `n-1` rounds all links are busy at once. Cost `(n + k - 2)(α + S/(kB))`,
//! which tends to `S/B` whatever `n` is: right for a model sent to the ranks that joined. For short messages
//! see [`binomial`](super::binomial), `log2 n (α + S/B)`. Rejected: scatter and gather; `2S/B`, for fewer rounds.
//!
//! Source: folklore.

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push};

/// Broadcast down a chain of ranks: every rank ends with the root's buffer. For long messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainBroadcast {
    /// Rank whose buffer is broadcast.
    pub root: Rank,
    /// Elements sent at a time; at least 1. Shorter segments fill the chain sooner and cost more rounds.
    pub segment: usize,
}

impl Algorithm for ChainBroadcast {
    fn name(&self) -> &'static str {
        "chain-broadcast"
    }

    fn code(&self) -> u8 {
        5
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let n = world as usize;
        let segment = self.segment.max(1);
        let segments = len.div_ceil(segment);
        if n < 2 || segments == 0 {
            return Schedule::default();
        }
        let position = ((me.0 + world - self.root.0) % world) as usize;
        // The segment that passes the link out of `position` in round `t`.
        let passing = |position: usize, t: usize| {
            let index = t.checked_sub(position).filter(|index| *index < segments)?;
            let start = index * segment;
            Some(Span { start, len: segment.min(len - start) })
        };
        let rounds = (0..n + segments - 2).map(|t| {
            let mut round = Vec::with_capacity(2);
            if position + 1 < n
                && let Some(span) = passing(position, t)
            {
                push(&mut round, Step::Send { to: Rank((me.0 + 1) % world), span });
            }
            if position > 0
                && let Some(span) = passing(position - 1, t)
            {
                push(&mut round, Step::RecvCopy { from: Rank((me.0 + world - 1) % world), span });
            }
            round
        });
        Schedule { rounds: rounds.collect() }
    }
}
