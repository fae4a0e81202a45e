//! [`Cuts`]: the places where a data set is cut into shards.

use std::num::NonZeroU64;

use antdt_core::SampleRange;

/// A partition of samples `0..num_samples` into shards, none of them empty.
///
/// [`every`](Self::every) and [`ends`](Self::ends) are the two forms in which a ledger takes a partition:
/// shards of one length, or the ends of shards of different lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cuts {
    num_samples: u64,
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// Shards of one length; the last may be shorter.
    Every(NonZeroU64),
    /// Ends of the shards, ascending, the last being the number of samples.
    At(Vec<u64>),
}

/// Whether a block of samples, such as a Parquet row group, may be cut into several shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// A long block is cut into equal pieces.
    Divisible,
    /// A block is never cut.
    Whole,
}

impl Cuts {
    /// Returns the cuts into shards of `len` samples; the last shard may be shorter.
    pub const fn even(num_samples: u64, len: NonZeroU64) -> Self {
        Self { num_samples, shape: Shape::Every(len) }
    }

    /// Returns the cuts into shards of about `target_len` samples, made of blocks whose (exclusive) ends are
    /// `blocks`. No shard holds a piece of a block together with samples of another block.
    ///
    /// Whole blocks are put together as long as that brings the shard nearer to its target. A divisible block
    /// is cut into the number of equal pieces that is nearest to `len / target_len`: pieces have 3/4 to 5/4
    /// of the target.
    ///
    /// Cost: linear in the shards and the blocks. Source: our design.
    ///
    /// # Panics
    /// If an end is not above the one before it, or the first is 0.
    pub fn of_blocks(blocks: impl IntoIterator<Item = u64>, target_len: NonZeroU64, how: Block) -> Self {
        let target = target_len.get();
        let mut ends = Vec::new();
        // The shard being put together is `start..at`.
        let (mut start, mut at) = (0, 0);
        for end in blocks {
            assert!(end > at, "a block ends at {end}, after one that ends at {at}");
            let (have, len) = (at - start, end - at);
            let with = have.saturating_add(len);
            // Nearer without the block than with it, or the block will be cut.
            let pieces = if how == Block::Divisible { nearest(len, target) } else { 1 };
            if have > 0 && (pieces > 1 || with.abs_diff(target) > have.abs_diff(target)) {
                ends.push(at);
                start = at;
            }
            if pieces > 1 {
                let cut = |piece: u64| {
                    let offset = u128::from(len) * u128::from(piece) / u128::from(pieces);
                    at + u64::try_from(offset).expect("a piece ends within its block")
                };
                ends.extend((1..=pieces).map(cut));
                start = end;
            }
            at = end;
        }
        if at > start {
            ends.push(at);
        }
        Self { num_samples: at, shape: Shape::At(ends) }
    }

    /// Returns the number of samples in all shards.
    pub const fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Returns the length of the shards if all but the last have the same length; otherwise `None`.
    pub const fn every(&self) -> Option<NonZeroU64> {
        match self.shape {
            Shape::Every(len) => Some(len),
            Shape::At(_) => None,
        }
    }

    /// Returns the number of shards.
    pub fn num_shards(&self) -> u64 {
        match &self.shape {
            Shape::Every(len) => self.num_samples.div_ceil(len.get()),
            Shape::At(ends) => ends.len() as u64,
        }
    }

    /// Returns the (exclusive) ends of the shards, ascending; the last one is
    /// [`num_samples`](Self::num_samples).
    pub fn ends(&self) -> Vec<u64> {
        match &self.shape {
            Shape::Every(len) => (1..=self.num_shards())
                .map(|shard| shard.saturating_mul(len.get()).min(self.num_samples))
                .collect(),
            Shape::At(ends) => ends.clone(),
        }
    }

    /// Returns the samples of the shard that a sample is in; `None` if the sample does not exist. Cost:
    /// logarithmic in the shards, at most.
    pub fn shard_of(&self, sample: u64) -> Option<SampleRange> {
        if sample >= self.num_samples {
            return None;
        }
        Some(match &self.shape {
            Shape::Every(len) => {
                let start = sample - sample % len.get();
                SampleRange { start, end: start.saturating_add(len.get()).min(self.num_samples) }
            }
            Shape::At(ends) => {
                let shard = ends.partition_point(|end| *end <= sample);
                SampleRange { start: shard.checked_sub(1).map_or(0, |before| ends[before]), end: ends[shard] }
            }
        })
    }
}

/// `len / target`, rounded to the nearest whole number, at least 1.
const fn nearest(len: u64, target: u64) -> u64 {
    let (whole, rest) = (len / target, len % target);
    let rounded = if rest >= target - rest { whole + 1 } else { whole };
    if rounded == 0 { 1 } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).expect("not zero")
    }

    #[test]
    fn small_blocks_are_put_together_and_long_ones_divided() {
        let cases: [(&[u64], u64, Block, &[u64]); 8] = [
            (&[10, 20, 30, 40], 20, Block::Divisible, &[20, 40]),
            // 30 is as far from 25 as 20 is: the nearer one with fewer shards.
            (&[10, 20, 30, 40], 25, Block::Whole, &[30, 40]),
            (&[100], 30, Block::Divisible, &[33, 66, 100]),
            (&[100], 30, Block::Whole, &[100]),
            (&[5, 105, 110], 50, Block::Divisible, &[5, 55, 105, 110]),
            (&[5, 105, 110], 50, Block::Whole, &[5, 105, 110]),
            (&[7], 1000, Block::Whole, &[7]),
            (&[], 10, Block::Divisible, &[]),
        ];
        for (blocks, target, how, ends) in cases {
            let cuts = Cuts::of_blocks(blocks.iter().copied(), of(target), how);
            assert_eq!(cuts.ends(), ends, "{blocks:?} by {target}, {how:?}");
        }
    }

    #[test]
    fn even_cuts_end_with_the_data() {
        let cuts = Cuts::even(10, of(4));
        assert_eq!((cuts.ends(), cuts.num_shards(), cuts.every()), (vec![4, 8, 10], 3, Some(of(4))));
        assert_eq!(cuts.shard_of(9), Some(SampleRange { start: 8, end: 10 }));
        assert_eq!(cuts.shard_of(10), None);
        assert_eq!(Cuts::even(0, of(4)).ends(), Vec::<u64>::new());
        let huge = Cuts::even(u64::MAX, of(u64::MAX - 1));
        assert_eq!(huge.ends(), [u64::MAX - 1, u64::MAX]);
        assert_eq!(huge.shard_of(u64::MAX - 1).map(|shard| shard.len()), Some(1));
    }

    proptest! {
        #[test]
        fn cuts_partition_the_samples_and_respect_the_blocks(
            lens in prop::collection::vec(1_u64..200, 0..40), target in 1_u64..150, divisible: bool,
        ) {
            let blocks: Vec<u64> = lens.iter().scan(0, |at, len| { *at += len; Some(*at) }).collect();
            let how = if divisible { Block::Divisible } else { Block::Whole };
            let cuts = Cuts::of_blocks(blocks.iter().copied(), of(target), how);
            let ends = cuts.ends();
            prop_assert!(ends.first().is_none_or(|end| *end > 0) && ends.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(ends.last(), blocks.last());
            let mut start = 0;
            for end in ends {
                let shard = SampleRange { start, end };
                prop_assert_eq!(cuts.shard_of(start), Some(shard));
                prop_assert_eq!(cuts.shard_of(end - 1), Some(shard));
                let inside = blocks.iter().filter(|block| shard.start < **block && **block < shard.end).count();
                let whole = |at: u64| at == 0 || blocks.contains(&at);
                if how == Block::Whole || inside > 0 {
                    prop_assert!(whole(start) && whole(end), "{:?} holds a piece of a block and more", shard);
                }
                if how == Block::Divisible && inside == 0 {
                    prop_assert!(shard.len() <= (target * 3).div_ceil(2));
                }
                start = end;
            }
        }
    }
}
