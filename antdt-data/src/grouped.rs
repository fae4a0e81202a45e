//! Samples that belong together, such as the samples of one task: shards never split a group.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use antdt_core::SampleRange;

use crate::cuts::{Block, Cuts};
use crate::delimited::Delimited;
use crate::error::{GroupError, ReadError};
use crate::rows::Rows;
use crate::splitter::Splitter;

#[cfg(test)]
mod tests;

/// Samples read at once while their keys are looked at: large reads of rows, and still no more than memory holds of
/// pictures of 100 KB.
const SCAN_LEN: u64 = 4 << 10;

/// A data set whose samples are grouped: the samples of a group have consecutive numbers, and a shard holds whole
/// groups. For meta learning a group is a task.
///
/// A group longer than the shards that were asked for is a shard of its own. Inside a shard the ledger's order still
/// permutes samples across groups; [`group_of`](Self::group_of) tells which belong together.
#[derive(Debug, Clone)]
pub struct Grouped<S> {
    data: S,
    /// Ends of the groups, ascending, the last being the number of samples.
    ends: Vec<u64>,
}

impl<S: Splitter> Grouped<S> {
    /// Groups that end at `ends`.
    ///
    /// # Errors
    /// If the ends do not ascend or the last is not the number of samples.
    pub fn by_ends(data: S, ends: Vec<u64>) -> Result<Self, GroupError> {
        let num_samples = data.num_samples();
        let mut before = 0;
        for (index, end) in ends.iter().copied().enumerate() {
            let last = index + 1 == ends.len();
            if end <= before || end > num_samples || (last && end != num_samples) {
                return Err(GroupError::Ends { index, end, before, num_samples });
            }
            before = end;
        }
        if ends.is_empty() && num_samples > 0 {
            return Err(GroupError::Ends { index: 0, end: 0, before, num_samples });
        }
        Ok(Self { data, ends })
    }

    /// Groups of equal keys. Reads all samples once; keeps every key in memory.
    ///
    /// # Errors
    /// If a sample cannot be read, `key` fails, or samples of one key are not side by side.
    pub fn by_key(
        data: S,
        mut key: impl for<'a> FnMut(u64, <S::Rows as Rows>::Row<'a>) -> Result<Vec<u8>, GroupError>,
    ) -> Result<Self, GroupError> {
        let num_samples = data.num_samples();
        let mut ends: Vec<u64> = Vec::new();
        // The last sample of each group that has ended.
        let mut seen: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut current: Option<Vec<u8>> = None;
        let mut start = 0;
        while start < num_samples {
            let end = start.saturating_add(SCAN_LEN).min(num_samples);
            let rows = data.read(SampleRange { start, end })?;
            for sample in start..end {
                let row = rows.row(sample).expect("a read answers all samples of its range");
                let key = key(sample, row)?;
                if current.as_ref() == Some(&key) {
                    continue;
                }
                if let Some(last) = seen.get(&key) {
                    let key = String::from_utf8_lossy(&key).into_owned();
                    return Err(GroupError::Scattered { sample, key, ended: last + 1 });
                }
                if let Some(before) = current.replace(key) {
                    seen.insert(before, sample - 1);
                    ends.push(sample);
                }
            }
            start = end;
        }
        if num_samples > 0 {
            ends.push(num_samples);
        }
        Ok(Self { data, ends })
    }

    /// The data set without its groups.
    pub const fn data(&self) -> &S {
        &self.data
    }

    /// Ends of the groups: ascending, the last is the number of samples.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// The group of a sample; `None` if the sample does not exist. Cost: logarithmic in the groups.
    pub fn group_of(&self, sample: u64) -> Option<SampleRange> {
        let group = self.ends.partition_point(|end| *end <= sample);
        let end = *self.ends.get(group)?;
        Some(SampleRange { start: group.checked_sub(1).map_or(0, |before| self.ends[before]), end })
    }
}

impl Grouped<Delimited> {
    /// Groups of rows that have the same value in a column, counted from 0.
    ///
    /// # Errors
    /// As [`by_key`](Self::by_key), and if a row is too short to have the column.
    pub fn by_column(data: Delimited, column: usize) -> Result<Self, GroupError> {
        let dialect = data.dialect();
        Self::by_key(data, |sample, row| {
            let field = dialect.fields(row).nth(column);
            field.map(std::borrow::Cow::into_owned).ok_or(GroupError::NoKey { sample, column })
        })
    }
}

impl<S: Splitter> Splitter for Grouped<S> {
    type Rows = S::Rows;

    fn num_samples(&self) -> u64 {
        self.data.num_samples()
    }

    fn cuts(&self, target_len: NonZeroU64) -> Cuts {
        Cuts::of_blocks(self.ends.iter().copied(), target_len, Block::Whole)
    }

    fn read(&self, range: SampleRange) -> Result<Self::Rows, ReadError> {
        self.data.read(range)
    }
}
