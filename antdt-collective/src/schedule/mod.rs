//! Collectives as data: which rank sends which elements to which rank, in which round.
//!
//! An [`Algorithm`] writes one [`Schedule`] per rank; [`interpret()`] runs all ranks' schedules in memory and proves that
//! each receive has its send in the same round; the runtime executes a schedule over any transport. Rounds are a
//! logical clock, not a barrier: a rank enters its next round as soon as its own sends and receives are done.
//!
//! Which of the all-reduces is used, a [`Choice`] says; [`select()`] finds the cheapest by a [`CostModel`].

pub mod coverage;
pub mod interpret;

pub mod direct;
pub mod ring;

pub mod doubling;
pub mod halving;
pub mod tree;

pub mod hierarchical;

pub mod scatter;

pub mod binomial;
pub mod chain;
pub mod relay;

pub mod all_to_all;
pub mod rooted;

pub mod dissemination;

pub mod cost;
pub mod select;

use std::ops::Range;

use antdt_core::Rank;

pub use all_to_all::AllToAll;
pub use binomial::BinomialBroadcast;
pub use chain::ChainBroadcast;
pub use cost::CostModel;
pub use coverage::Coverage;
pub use direct::{Direct, DirectGather};
pub use dissemination::Dissemination;
pub use doubling::RecursiveDoubling;
pub use halving::HalvingDoubling;
pub use hierarchical::Hierarchical;
pub use interpret::{ScheduleError, interpret};
pub use relay::Relay;
pub use ring::{Ring, RingGather};
pub use rooted::{Gather, Scatter};
pub use scatter::{DirectScatter, RingScatter};
pub use select::{Choice, ChoiceError, select, select_all_gather};
pub use tree::DoubleTree;

/// A range of elements in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Index of the first element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// Returns the range of indices.
    pub const fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Returns whether the two spans have elements in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}

/// One send or receive of a message, as seen by one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Sends the elements of the span.
    Send {
        /// Receiving rank.
        to: Rank,
        /// Elements to send.
        span: Span,
    },
    /// Receives a message and overwrites the span with it.
    RecvCopy {
        /// Sending rank.
        from: Rank,
        /// Elements to overwrite.
        span: Span,
    },
    /// Receives a message and reduces it into the span: `span = span op message`.
    RecvReduce {
        /// Sending rank.
        from: Rank,
        /// Elements to reduce into.
        span: Span,
    },
    /// Receives a message and reduces it into the span with the operands in the other order: `span = message
    /// op span`. Two ranks that exchange their totals and combine them in the same order get the same bits,
    /// even for zeros of different signs and for NaNs.
    RecvReduceLeft {
        /// Sending rank.
        from: Rank,
        /// Elements to reduce into.
        span: Span,
    },
}

impl Step {
    /// Returns the span that the step moves.
    pub const fn span(self) -> Span {
        let (Self::Send { span, .. }
        | Self::RecvCopy { span, .. }
        | Self::RecvReduce { span, .. }
        | Self::RecvReduceLeft { span, .. }) = self;
        span
    }

    /// Returns whether the step reduces what it receives.
    pub const fn folds(self) -> bool {
        matches!(self, Self::RecvReduce { .. } | Self::RecvReduceLeft { .. })
    }
}

/// The sends and receives of one rank, round by round.
///
/// Within a round all messages progress together, and there is at most one to and one from each peer. A
/// received span overlaps no other span of the round, with two exceptions. Several messages may be reduced
/// into the very same span: that happens in the order of the steps, whatever the order of arrival. And a span
/// that is reduced into may be sent: its content from before the round is sent. Messages of no elements are
/// left out on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    /// The steps of each round, in order. An empty round is kept, so that the rounds of all ranks have the
    /// same numbers.
    pub rounds: Vec<Vec<Step>>,
}

impl Schedule {
    /// Returns the number of elements sent in all rounds.
    pub fn sent(&self) -> usize {
        let sent = |step: &Step| if let Step::Send { span, .. } = step { span.len } else { 0 };
        self.rounds.iter().flatten().map(sent).sum()
    }

    /// Returns the number of messages sent in all rounds.
    pub fn messages(&self) -> usize {
        self.rounds.iter().flatten().filter(|step| matches!(step, Step::Send { .. })).count()
    }
}

/// A collective algorithm: writes the schedule of each rank. Pure: all ranks compute each other's schedule
/// identically.
///
/// An implementation can be checked by [`interpret()`], as the property tests of this crate do.
pub trait Algorithm {
    /// Returns the name used in logs.
    fn name(&self) -> &'static str;

    /// Returns the algorithm's number in the headers of frames, by which ranks notice that they chose
    /// different algorithms.
    fn code(&self) -> u8;

    /// Returns the schedule of rank `me` of `world` ranks for a buffer of `len` elements.
    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule;

    /// Returns whether a long buffer should be cut into slices, each reduced by a schedule of its own. If so,
    /// all ranks' schedules of one length must have the same number of rounds. The default is `false`.
    fn slices(&self) -> bool {
        false
    }
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

/// Returns the spans of consecutive blocks with these lengths.
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

// A message of no elements is sent on neither side.
fn push(round: &mut Vec<Step>, step: Step) {
    if step.span().len > 0 {
        round.push(step);
    }
}

#[cfg(test)]
mod tests;
