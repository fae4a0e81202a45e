//! Sets of elements, to record which elements of a result are complete.

use super::Span;

/// A set of elements, as disjoint spans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Coverage {
    // In order, apart from each other, none of them empty.
    spans: Vec<Span>,
}

impl Coverage {
    /// Returns the set of all of `len` elements.
    pub fn all(len: usize) -> Self {
        let mut coverage = Self::default();
        coverage.add(Span { start: 0, len });
        coverage
    }

    /// Adds the elements of a span.
    pub fn add(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        // Those that touch or overlap it become one with it.
        let first = self.spans.partition_point(|other| other.start + other.len < span.start);
        let end = span.start + span.len;
        let past = first + self.spans[first..].partition_point(|other| other.start <= end);
        let start = self.spans.get(first).map_or(span.start, |other| other.start.min(span.start));
        let last = self.spans[first..past].last().map_or(end, |other| end.max(other.start + other.len));
        self.spans.splice(first..past, [Span { start, len: last - start }]);
    }

    /// Returns the parts of a span that are not in the set, in order.
    pub fn gaps(&self, span: Span) -> Vec<Span> {
        let (mut gaps, mut at, end) = (Vec::new(), span.start, span.start + span.len);
        let first = self.spans.partition_point(|other| other.start + other.len <= span.start);
        for other in self.spans[first..].iter().take_while(|other| other.start < end) {
            if other.start > at {
                gaps.push(Span { start: at, len: other.start - at });
            }
            at = at.max(other.start + other.len);
        }
        if at < end {
            gaps.push(Span { start: at, len: end - at });
        }
        gaps
    }

    /// Returns whether the set has an element of the span.
    pub fn touches(&self, span: Span) -> bool {
        let first = self.spans.partition_point(|other| other.start + other.len <= span.start);
        self.spans.get(first).is_some_and(|other| other.overlaps(span))
    }

    /// Returns whether the set has every element of the span.
    pub fn covers(&self, span: Span) -> bool {
        self.gaps(span).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 24;

    proptest! {
        #[test]
        fn coverage_is_the_set_of_added_ranges(
            adds in prop::collection::vec((0..LEN, 0..LEN), 0..12),
            start in 0..LEN,
            len in 0..LEN,
        ) {
            let (mut coverage, mut set) = (Coverage::default(), [false; 2 * LEN]);
            for (start, len) in adds {
                let span = Span { start, len };
                coverage.add(span);
                set[span.range()].fill(true);
                for pair in coverage.spans.windows(2) {
                    prop_assert!(pair[0].start + pair[0].len < pair[1].start, "{coverage:?}");
                }
            }
            let asked = Span { start, len };
            let mut rebuilt = set;
            for gap in coverage.gaps(asked) {
                prop_assert!(gap.len > 0 && gap.start >= start && gap.start + gap.len <= start + len);
                prop_assert!(set[gap.range()].iter().all(|there| !there), "{gap:?} is there");
                rebuilt[gap.range()].fill(true);
            }
            prop_assert!(rebuilt[asked.range()].iter().all(|there| *there), "a gap is missing");
            prop_assert_eq!(coverage.covers(asked), set[asked.range()].iter().all(|there| *there));
            prop_assert_eq!(coverage.touches(asked), set[asked.range()].iter().any(|there| *there));
        }
    }
}
