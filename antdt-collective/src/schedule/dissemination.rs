//! Dissemination barrier: no rank leaves before all have come, in `⌈log2 n⌉` rounds.
//!
//! In round `k` rank `r` tells rank `r + 2^k` that it has come, and so have all it has heard of. Cost `⌈log2 n⌉α` for
//! every `n`, with one message each way per round. Rejected: one round in which every rank sends to every rank, `α` and
//! `n-1` messages per rank, better only while those are few ([`direct`](super::direct)); a tree up and down, twice
//! the rounds.
//!
//! Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988 (recalled).

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push};

/// A barrier in `⌈log2 n⌉` rounds, over the first element of a buffer that has at least one.
///
/// The element is reduced along the way: with [`ReduceOp::Max`](crate::ReduceOp::Max) every rank ends with
/// the largest of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dissemination;

impl Algorithm for Dissemination {
    fn name(&self) -> &'static str {
        "dissemination"
    }

    fn code(&self) -> u8 {
        12
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let span = Span { start: 0, len: len.min(1) };
        let rounds = (0..world.next_power_of_two().ilog2()).map(|bit| {
            let (distance, mut round) = (1_u32 << bit, Vec::with_capacity(2));
            push(&mut round, Step::Send { to: Rank((me.0 + distance) % world), span });
            push(&mut round, Step::RecvReduce { from: Rank((me.0 + world - distance) % world), span });
            round
        });
        Schedule { rounds: rounds.collect() }
    }
}
