//! [`Rows`]: the samples of a range in memory.

use antdt_core::SampleRange;

/// The samples of one range in memory, readable in any order.
pub trait Rows {
    /// Type of one sample.
    type Row<'a>
    where
        Self: 'a;

    /// Returns the range of samples that are in memory.
    fn range(&self) -> SampleRange;

    /// Returns a sample by its number in the data set; `None` if it is not in [`range`](Self::range).
    fn row(&self, sample: u64) -> Option<Self::Row<'_>>;

    /// Returns the memory of the samples, in bytes.
    fn len_bytes(&self) -> usize;
}

/// Samples as bytes, in one buffer: a text row without its line end, a record, or a whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ByteRows {
    first: u64,
    bytes: Vec<u8>,
    /// Start and end of each sample in `bytes`; what is between two samples is not theirs.
    spans: Vec<(usize, usize)>,
}

impl ByteRows {
    /// Returns an empty list, whose first sample will have the number `first`.
    pub const fn starting_at(first: u64) -> Self {
        Self { first, bytes: Vec::new(), spans: Vec::new() }
    }

    /// Appends the next sample.
    pub fn push(&mut self, row: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(row);
        self.spans.push((start, self.bytes.len()));
    }

    /// The buffer, to read into; what was there stays where it is.
    pub(crate) const fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The buffer with its spans, to find samples in what was read.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Vec<(usize, usize)>) {
        (&self.bytes, &mut self.spans)
    }

    /// Rewrites the samples from number `from` on: `write` appends the new form of one to a buffer.
    pub(crate) fn rewrite<E>(
        &mut self,
        from: u64,
        write: impl Fn(&[u8], &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let kept = usize::try_from(from - self.first).map_or(self.spans.len(), |at| at.min(self.spans.len()));
        let base = self.spans.get(kept).map_or(self.bytes.len(), |span| span.0);
        let old = self.bytes.split_off(base);
        for (start, end) in self.spans.split_off(kept) {
            let at = self.bytes.len();
            write(&old[start - base..end - base], &mut self.bytes)?;
            self.spans.push((at, self.bytes.len()));
        }
        Ok(())
    }
}

impl Rows for ByteRows {
    type Row<'a> = &'a [u8];

    fn range(&self) -> SampleRange {
        SampleRange { start: self.first, end: self.first + self.spans.len() as u64 }
    }

    fn row(&self, sample: u64) -> Option<&[u8]> {
        let at = usize::try_from(sample.checked_sub(self.first)?).ok()?;
        let (start, end) = *self.spans.get(at)?;
        self.bytes.get(start..end)
    }

    fn len_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<(usize, usize)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_were_pushed_come_back_by_number() {
        let mut rows = ByteRows::starting_at(5);
        rows.push(b"a");
        rows.push(b"");
        rows.push(b"bc");
        assert_eq!(rows.range(), SampleRange { start: 5, end: 8 });
        let row = |sample| rows.row(sample);
        assert_eq!(
            [row(4), row(5), row(6), row(7), row(8)],
            [None, Some(&b"a"[..]), Some(b""), Some(b"bc"), None]
        );
    }
}
