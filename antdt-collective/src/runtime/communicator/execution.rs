//! Execution of one schedule over a transport: out of place, so that a call that breaks off has changed
//! nothing.

use antdt_core::Rank;

use crate::element::Element;
use crate::error::CollectiveError;
use crate::kernel;
use crate::op::ReduceOp;
use crate::runtime::transport::{Exchange, Fold, Incoming, Outgoing, Sink, Transport};
use crate::schedule::{Coverage, Schedule, Span, Step};

/// The operands, and the result as far as it is there.
///
/// Where the result is not there yet, a rank's own operand stands in `source`: it is sent from there, and what comes is
/// combined with it into `target` in one pass.
pub(super) struct Execution<'a, E> {
    source: &'a [E],
    target: &'a mut [E],
    there: Coverage,
    op: ReduceOp,
    // Messages that cannot be folded while they come; 8-byte aligned.
    apart: &'a mut Vec<u64>,
}

impl<'a, E: Element> Execution<'a, E> {
    /// From `source` into `target`, which are equally long.
    pub(super) fn into(source: &'a [E], target: &'a mut [E], op: ReduceOp, apart: &'a mut Vec<u64>) -> Self {
        Self { source, target, there: Coverage::default(), op, apart }
    }

    /// In place: for what needs no way back.
    pub(super) fn within(buffer: &'a mut [E], op: ReduceOp, apart: &'a mut Vec<u64>) -> Self {
        let there = Coverage::all(buffer.len());
        Self { source: &[], target: buffer, there, op, apart }
    }

    /// Runs all rounds, and counts them in `call`; what no message touched is copied in the end.
    pub(super) fn run(
        mut self,
        transport: &mut impl Transport,
        call: &mut Exchange,
        schedule: &Schedule,
    ) -> Result<(), CollectiveError> {
        for round in &schedule.rounds {
            if !round.is_empty() {
                self.round(transport, call, round)?;
            }
            call.tag.round += 1;
        }
        self.fill(Span { start: 0, len: self.target.len() });
        Ok(())
    }

    // Makes all of a span be in the result.
    fn fill(&mut self, span: Span) {
        for gap in self.there.gaps(span) {
            self.target[gap.range()].copy_from_slice(&self.source[gap.range()]);
        }
        self.there.add(span);
    }

    fn round(
        &mut self,
        transport: &mut impl Transport,
        call: &Exchange,
        round: &[Step],
    ) -> Result<(), CollectiveError> {
        for step in round {
            let span = step.span();
            let reads = step.folds() || matches!(step, Step::Send { .. });
            if reads && self.there.touches(span) && !self.there.covers(span) {
                self.fill(span);
            }
        }
        let apart = self.kept_apart(round);
        let apart_bytes: usize = apart.iter().map(|step| whole_words::<E>(step.span().len) * 8).sum();
        self.apart.resize(self.apart.len().max(apart_bytes / 8), 0);

        let mut sends: Vec<Outgoing<'_>> = Vec::with_capacity(round.len());
        let mut receives: Vec<Incoming<'_>> = Vec::with_capacity(round.len());
        let mut into: Vec<Step> = round
            .iter()
            .filter(|step| !matches!(step, Step::Send { .. }) && !apart.contains(step))
            .copied()
            .collect();
        into.sort_unstable_by_key(|step| step.span().start);

        // The result falls into spans to be received into, mutable, and what lies between them, to be sent from.
        let mut between: Vec<(usize, &[E])> = Vec::with_capacity(into.len() + 1);
        let mut folding: Vec<(Rank, FoldInto<'_, E>)> = Vec::with_capacity(into.len());
        let (mut rest, mut at) = (&mut *self.target, 0);
        for step in &into {
            let span = step.span();
            let (before, tail) = rest.split_at_mut(span.start - at);
            let (place, tail) = tail.split_at_mut(span.len);
            between.push((at, before));
            (rest, at) = (tail, span.start + span.len);
            let own = (!self.there.touches(span)).then(|| &self.source[span.range()]);
            match *step {
                Step::Send { .. } => {}
                Step::RecvCopy { from, .. } => {
                    receives.push(Incoming { from, sink: Sink::Place(bytemuck::cast_slice_mut(place)) });
                }
                Step::RecvReduce { from, .. } => {
                    folding.push((from, FoldInto { into: place, own, left: false, op: self.op }));
                }
                Step::RecvReduceLeft { from, .. } => {
                    folding.push((from, FoldInto { into: place, own, left: true, op: self.op }));
                }
            }
        }
        between.push((at, rest));
        for step in round {
            let Step::Send { to, span } = *step else { continue };
            let elements = if self.there.touches(span) {
                let index = between.partition_point(|(start, _)| *start <= span.start) - 1;
                let (start, elements) = between[index];
                &elements[span.start - start..][..span.len]
            } else {
                &self.source[span.range()]
            };
            sends.push(Outgoing { to, bytes: bytemuck::cast_slice(elements) });
        }
        receives
            .extend(folding.iter_mut().map(|(from, fold)| Incoming { from: *from, sink: Sink::Fold(fold) }));
        let mut room = &mut self.apart[..];
        for step in &apart {
            let (words, rest) = room.split_at_mut(whole_words::<E>(step.span().len));
            room = rest;
            let kept = &mut bytemuck::cast_slice_mut::<u64, E>(words)[..step.span().len];
            let (Step::RecvReduce { from, .. } | Step::RecvReduceLeft { from, .. }) = *step else { continue };
            receives.push(Incoming { from, sink: Sink::Place(bytemuck::cast_slice_mut(kept)) });
        }
        transport.exchange(call, &sends, &mut receives)?;

        for step in round.iter().filter(|step| !matches!(step, Step::Send { .. })) {
            self.there.add(step.span());
        }
        let mut room = &mut self.apart[..];
        for step in apart {
            let span = step.span();
            let (words, rest) = room.split_at_mut(whole_words::<E>(span.len));
            room = rest;
            let kept = &mut bytemuck::cast_slice_mut::<u64, E>(words)[..span.len];
            let into = &mut self.target[span.range()];
            if matches!(step, Step::RecvReduceLeft { .. }) {
                kernel::reduce_left(self.op, into, kept);
            } else {
                kernel::reduce(self.op, into, kept);
            }
        }
        Ok(())
    }

    // Messages that are folded after the exchange, in the order of the steps: all but the first of several for one span;
    // and what is folded into the result where that is sent.
    fn kept_apart(&self, round: &[Step]) -> Vec<Step> {
        let sent = |span: Span| {
            round.iter().any(|step| matches!(step, Step::Send { span: other, .. } if other.overlaps(span)))
        };
        let is_apart = |(index, step): &(usize, &Step)| {
            let span = step.span();
            let first = !round[..*index].iter().any(|other| other.folds() && other.span() == span);
            step.folds() && (!first || self.there.touches(span) && sent(span))
        };
        round.iter().enumerate().filter(is_apart).map(|(_, step)| *step).collect()
    }
}

// Words of 8 bytes that hold so many elements.
const fn whole_words<E>(len: usize) -> usize {
    (len * size_of::<E>()).div_ceil(8)
}

/// Folds what comes into a part of the result.
pub(super) struct FoldInto<'a, E> {
    pub(super) into: &'a mut [E],
    /// The other operand; `into` itself if there is none.
    pub(super) own: Option<&'a [E]>,
    /// Whether what comes is the left operand.
    pub(super) left: bool,
    pub(super) op: ReduceOp,
}

impl<E: Element> Fold for FoldInto<'_, E> {
    fn len_bytes(&self) -> usize {
        size_of_val(self.into)
    }

    fn fold(&mut self, at: usize, bytes: &[u8]) {
        let (at, len) = (at / size_of::<E>(), bytes.len() / size_of::<E>());
        let into = &mut self.into[at..at + len];
        match self.own {
            None if self.left => kernel::reduce_bytes_left(self.op, into, bytes),
            None => kernel::reduce_bytes(self.op, into, bytes),
            Some(own) if self.left => {
                bytemuck::cast_slice_mut(into).copy_from_slice(bytes);
                kernel::reduce(self.op, into, &own[at..at + len]);
            }
            Some(own) => kernel::reduce_bytes_into(self.op, into, &own[at..at + len], bytes),
        }
    }
}
