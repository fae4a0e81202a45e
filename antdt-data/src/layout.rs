//! [`DatasetLayout`]: the layout of several files as one data set, which maps the number of a sample to its
//! file and row.

use antdt_core::SampleRange;

/// Layout of a data set of several files, one after the other: the number of samples in each file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DatasetLayout {
    /// For each file, one past its last sample. Ascending; no file is empty.
    ends: Vec<u64>,
}

/// A range of rows in one file of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRows {
    /// Index of the file, from 0, in the order of the data set.
    pub file: usize,
    /// Rows within the file, from 0.
    pub rows: SampleRange,
    /// Sample number, in the whole data set, of the first of these rows.
    pub sample: u64,
}

impl DatasetLayout {
    /// Adds a file of `rows` rows. Returns `false`, and adds nothing, if `rows` is 0 or the data set would
    /// have more than `u64::MAX` samples.
    #[must_use]
    pub fn push(&mut self, rows: u64) -> bool {
        let end = self.num_samples().checked_add(rows).filter(|_| rows > 0);
        self.ends.extend(end);
        end.is_some()
    }

    /// Returns the number of samples in all files.
    pub fn num_samples(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns, for each file, the number of its last sample plus one.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// Returns the file and row of a sample; `None` if it does not exist. Cost: logarithmic in the files.
    pub fn locate(&self, sample: u64) -> Option<(usize, u64)> {
        let file = self.ends.partition_point(|end| *end <= sample);
        (file < self.ends.len()).then(|| (file, sample - self.start(file)))
    }

    /// Returns the ranges of rows that make up `range`, in order; samples that do not exist are left out.
    pub fn pieces(&self, range: SampleRange) -> impl Iterator<Item = FileRows> + '_ {
        let end = range.end.min(self.num_samples());
        let first = self.ends.partition_point(|end| *end <= range.start);
        (first..self.ends.len()).map_while(move |file| {
            let start = self.start(file);
            let (from, to) = (range.start.max(start), end.min(self.ends[file]));
            let rows = SampleRange { start: from.saturating_sub(start), end: to.saturating_sub(start) };
            (from < to).then_some(FileRows { file, rows, sample: from })
        })
    }

    fn start(&self, file: usize) -> u64 {
        file.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_is_made_of_pieces_of_files() {
        let mut layout = DatasetLayout::default();
        assert!(layout.push(3) && layout.push(5) && layout.push(1));
        assert_eq!((layout.num_samples(), layout.ends()), (9, &[3, 8, 9][..]));
        assert_eq!(layout.locate(2), Some((0, 2)));
        assert_eq!(layout.locate(3), Some((1, 0)));
        assert_eq!(layout.locate(9), None);
        let pieces: Vec<_> = layout.pieces(SampleRange { start: 2, end: 9 }).collect();
        let piece = |file, start, end, sample| FileRows { file, rows: SampleRange { start, end }, sample };
        assert_eq!(pieces, [piece(0, 2, 3, 2), piece(1, 0, 5, 3), piece(2, 0, 1, 8)]);
        assert_eq!(layout.pieces(SampleRange { start: 4, end: 4 }).count(), 0);
        assert_eq!(layout.pieces(SampleRange { start: 20, end: 30 }).count(), 0);
    }

    #[test]
    fn no_file_is_empty_and_samples_have_64_bits() {
        let mut layout = DatasetLayout::default();
        assert!(!layout.push(0));
        assert!(layout.push(u64::MAX) && !layout.push(1));
        assert_eq!(layout.num_samples(), u64::MAX);
    }

    proptest! {
        #[test]
        fn pieces_and_places_agree(files in prop::collection::vec(1_u64..20, 1..20), a in 0_u64..400, b in 0_u64..400) {
            let mut layout = DatasetLayout::default();
            for rows in files {
                prop_assert!(layout.push(rows));
            }
            let mut next = a;
            for piece in layout.pieces(SampleRange { start: a, end: b }) {
                prop_assert_eq!(piece.sample, next);
                for row in piece.rows.start..piece.rows.end {
                    prop_assert_eq!(layout.locate(next), Some((piece.file, row)));
                    next += 1;
                }
            }
            prop_assert_eq!(next, a.max(b.min(layout.num_samples())));
        }
    }
}
