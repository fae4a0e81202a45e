//! Copies of a buffer that several ranks have, for ranks that lack it: the ones that have it send its segments in turn to the
//! first one that lacks it, and that passes them on down a chain of the others.
//!
//! With `g` givers, `m` takers and `k` segments the cost is `(k + m - 1)(α + S/(kB))` where the takers' links are the limit, as down a
//! [`chain`](super::chain) from one rank; but a giver sends only `S/g`, so that the limit is the takers' as long as a giver has a
//! `g`th of their bandwidth. Rejected: a part of its own for each giver, from its beginning on; the taker would pass nothing on before
//! the last of them has caught up. Givers send at their own pace and not what others leave: the slowest of them sets the pace.
//!
//! Source: our design.

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push};

/// Copy of the givers' buffer, which is the same on all of them, to all takers. Ranks that are neither send and receive nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// Ranks that have the buffer, at least one.
    pub givers: Vec<Rank>,
    /// Ranks that end with it; none of them gives.
    pub takers: Vec<Rank>,
    /// Elements sent at a time; at least 1.
    pub segment: usize,
}

impl Algorithm for Relay {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn code(&self) -> u8 {
        20
    }

    fn schedule(&self, me: Rank, _world: u32, len: usize) -> Schedule {
        let segment = self.segment.max(1);
        let segments = len.div_ceil(segment);
        if self.givers.is_empty() || self.takers.is_empty() {
            return Schedule::default();
        }
        let span = |index: usize| Span { start: index * segment, len: segment.min(len - index * segment) };
        // The segment that the taker at `position` receives in round `t`.
        let received = |position: usize, t: usize| t.checked_sub(position).filter(|index| *index < segments);
        let at = |ranks: &[Rank]| ranks.iter().position(|rank| *rank == me);
        let (giver, taker) = (at(&self.givers), at(&self.takers));
        let rounds = (0..segments + self.takers.len() - 1).map(|t| {
            let mut round = Vec::with_capacity(2);
            if giver.is_some_and(|giver| t < segments && t % self.givers.len() == giver) {
                push(&mut round, Step::Send { to: self.takers[0], span: span(t) });
            }
            if let Some(position) = taker {
                if let Some(to) = self.takers.get(position + 1)
                    && let Some(index) = received(position + 1, t)
                {
                    push(&mut round, Step::Send { to: *to, span: span(index) });
                }
                if let Some(index) = received(position, t) {
                    let from = match position.checked_sub(1) {
                        Some(before) => self.takers[before],
                        None => self.givers[index % self.givers.len()],
                    };
                    push(&mut round, Step::RecvCopy { from, span: span(index) });
                }
            }
            round
        });
        Schedule { rounds: rounds.collect() }
    }
}
