//! Collectives as data: who sends which elements to whom, in which round.
//!
//! An [`Algorithm`] writes one [`Schedule`] per rank; [`interpret()`] runs all ranks' schedules in memory and proves that
//! each receive has its send in the same round; the runtime executes a schedule over any transport. Rounds are a
//! logical clock, not a barrier: a rank enters its next round as soon as its own sends and receives are done.
//!
//! Chosen by [`select_all_reduce`] and [`select_all_gather`]: [`Direct`] while latency rules, [`Ring`] beyond.

pub mod chain;
pub mod direct;
pub mod interpret;
pub mod ring;

use std::ops::Range;

use antdt_core::Rank;

pub use chain::ChainBroadcast;
pub use direct::{Direct, DirectGather};
pub use interpret::{ScheduleError, interpret};
pub use ring::{Ring, RingGather};

/// Elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// As a range of indices.
    pub const fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Whether both have an element in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}

/// One message, as seen by one end of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send the span.
    Send {
        /// To whom.
        to: Rank,
        /// What.
        span: Span,
    },
    /// Overwrite the span with what comes.
    RecvCopy {
        /// From whom.
        from: Rank,
        /// What.
        span: Span,
    },
    /// Fold what comes into the span.
    RecvReduce {
        /// From whom.
        from: Rank,
        /// What.
        span: Span,
    },
}

/// What one rank does, round by round.
///
/// Within a round all messages progress together, and there is at most one to and one from each peer. A received span
/// overlaps no other span of the round, except that several messages may be folded into the very same span: that
/// happens in the order of the steps, whatever the order of arrival. Messages of no elements are left out on both
/// sides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    /// The rounds in order. An empty one is kept: its number counts.
    pub rounds: Vec<Vec<Step>>,
}

impl Schedule {
    /// Elements sent in all rounds.
    pub fn sent(&self) -> usize {
        let sent = |step: &Step| if let Step::Send { span, .. } = step { span.len } else { 0 };
        self.rounds.iter().flatten().map(sent).sum()
    }

    /// Messages sent in all rounds.
    pub fn messages(&self) -> usize {
        self.rounds.iter().flatten().filter(|step| matches!(step, Step::Send { .. })).count()
    }
}

/// Writes schedules. Pure: all ranks compute each other's schedule identically.
///
/// Implementers: the property tests of this crate show what must hold; [`interpret()`] checks it.
pub trait Algorithm {
    /// As written in logs.
    fn name(&self) -> &'static str;

    /// Its number in frames, so that ranks that chose differently notice.
    fn code(&self) -> u8;

    /// What rank `me` of `world` does with a buffer of `len` elements.
    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule;
}

/// Cuts `len` elements into `parts` spans in order; lengths differ by at most one, the first ones are longer.
pub fn split_even(len: usize, parts: usize) -> Vec<Span> {
    let (base, longer) = (len / parts, len % parts);
    let mut start = 0;
    (0..parts)
        .map(|part| {
            let span = Span { start, len: base + usize::from(part < longer) };
            start += span.len;
            span
        })
        .collect()
}

/// The spans of blocks that lie one after the other.
pub fn spans_of(blocks: &[usize]) -> Vec<Span> {
    let mut start = 0;
    blocks
        .iter()
        .map(|len| {
            let span = Span { start, len: *len };
            start += len;
            span
        })
        .collect()
}

/// Up to here the two rounds of [`Direct`] beat the `2(n-1)` of [`Ring`]: a round costs some 20 µs over loopback, and
/// both move the same bytes. A larger value only adds fan-in at the receivers.
pub const DIRECT_MAX_BYTES: usize = 64 << 10;

/// The algorithm for an all-reduce of `len_bytes`. All ranks choose alike, since they agree on the length.
pub fn select_all_reduce(world: u32, len_bytes: usize) -> &'static dyn Algorithm {
    // With two ranks both are the same exchange of halves.
    if world == 2 || len_bytes > DIRECT_MAX_BYTES { &Ring } else { &Direct }
}

/// The algorithm for an all-gather of `blocks` bytes.
pub fn select_all_gather(blocks: &[usize]) -> Box<dyn Algorithm> {
    if blocks.iter().sum::<usize>() > DIRECT_MAX_BYTES * blocks.len() {
        Box::new(RingGather { blocks: blocks.to_vec() })
    } else {
        Box::new(DirectGather { blocks: blocks.to_vec() })
    }
}

// A message of no elements is sent on neither side.
fn push(round: &mut Vec<Step>, step: Step) {
    let (Step::Send { span, .. } | Step::RecvCopy { span, .. } | Step::RecvReduce { span, .. }) = step;
    if span.len > 0 {
        round.push(step);
    }
}

#[cfg(test)]
mod tests;
