//! The interface of a data set that can be cut into shards and read shard by shard.

use std::num::NonZeroU64;

use antdt_core::SampleRange;

use crate::cuts::Cuts;
use crate::error::ReadError;
use crate::rows::Rows;

/// A data set that can be cut into shards: its samples, the best places for cuts, and how a range of samples
/// is read.
///
/// The master asks for [`num_samples`](Self::num_samples) and [`cuts`](Self::cuts), and hands out ranges of sample
/// numbers; it never reads a sample. A worker reads the range of each shard that it is granted, most simply through
/// [`Reader`](crate::Reader). Both open the same files: the numbers mean the same only if both see the same data.
pub trait Splitter: Send + Sync {
    /// Type that holds the samples of a range in memory, as [`read`](Self::read) returns them.
    type Rows: Rows;

    /// Returns the number of samples, which are numbered `0..num_samples()`. It never changes.
    fn num_samples(&self) -> u64;

    /// Returns the cuts into shards of about `target_len` samples, placed so that a shard is read with few
    /// and large reads.
    ///
    /// A pure function of the data and `target_len`, so that master and workers agree without a message.
    fn cuts(&self, target_len: NonZeroU64) -> Cuts;

    /// Reads the samples of `range` into memory, all of them or none.
    ///
    /// # Errors
    /// If samples do not exist, cannot be read, or are not what they were when the data set was opened.
    fn read(&self, range: SampleRange) -> Result<Self::Rows, ReadError>;
}

/// Lets a data set be borrowed where one is wanted.
impl<S: Splitter + ?Sized> Splitter for &S {
    type Rows = S::Rows;

    fn num_samples(&self) -> u64 {
        (**self).num_samples()
    }

    fn cuts(&self, target_len: NonZeroU64) -> Cuts {
        (**self).cuts(target_len)
    }

    fn read(&self, range: SampleRange) -> Result<Self::Rows, ReadError> {
        (**self).read(range)
    }
}
