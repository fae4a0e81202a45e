//! Settings of a data set: what is trained on, how it is cut into shards, and in which order they are handed
//! out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::{Delivery, Epoch, InvalidValue, NodeId, Role, SampleRange, Seed, ShardKey};

use crate::order::ShardOrder;

/// The places at which a data set is cut into shards.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Cut {
    /// Shards of this many samples, at most 2³²; the last shard may be shorter. The length must not follow a
    /// batch size that changes while the job runs: see [`shard_len_default`].
    Every(u64),
    /// Shards as the data suggest: at the ends of row groups, files or tasks. The list holds the end of each
    /// shard (exclusive), ascending; the last one is the end of the data set.
    At(Arc<[u64]>),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(len) => write!(f, "{len} samples each"),
            Self::At(ends) => write!(f, "{} of lengths that the data suggest", ends.len()),
        }
    }
}

/// Number of passes over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Epochs {
    /// This many passes over the data.
    Finite(u32),
    /// Passes until the job is stopped: the data never end.
    Infinite,
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finite(epochs) => write!(f, "{epochs}"),
            Self::Infinite => f.write_str("without end"),
        }
    }
}

/// What is shuffled anew in each epoch. Every order is a pure function of seed, epoch and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Shuffle {
    /// Nothing is shuffled: shards and samples keep the order of the data set.
    None,
    /// The order of the shards is shuffled; samples within a shard keep their order.
    Shards,
    /// The order of the shards is shuffled, and that of the samples within each shard.
    ShardsAndSamples,
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Shards => "of the shards",
            Self::ShardsAndSamples => "of the shards and of the samples in each",
        })
    }
}

/// Reaction when a shard has had too many data faults and is quarantined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OnQuarantine {
    /// The job fails: no more shards are granted until the user has looked at the data.
    FailJob,
    /// The job goes on without these samples, as long as there are no more than `max_samples` of them in all.
    Continue {
        /// Samples that may be given up over the whole job.
        max_samples: u64,
    },
}

/// Way in which shards are assigned to workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Assignment {
    /// Every request of a worker gets the next shard, so that a fast worker trains more.
    #[doc(alias = "DDS")]
    Dynamic,
    /// Worker `i` of `workers` owns the `i`-th contiguous part of the shard order of each epoch, and no other
    /// shard.
    ///
    /// This is static sharding, the baseline that dynamic assignment is compared with. Workers take no shards
    /// of each other, each worker passes through its epochs at its own pace, and a restarted worker continues
    /// where its predecessor stopped.
    Static {
        /// Number of workers, and of parts.
        workers: u32,
    },
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static { workers } => write!(f, "static, to {workers} workers"),
        }
    }
}

/// Settings of a data set and of its ledger. A ledger checks them with [`validate`](Self::validate).
///
/// ```
/// use antdt_shard::{DatasetSpec, Epochs};
///
/// let spec = DatasetSpec { epochs: Epochs::Finite(3), ..DatasetSpec::new("clicks", 1_000_000, 2_560) };
/// assert_eq!(spec.shard_count(), 391);
/// let refused = DatasetSpec { num_samples: 0, ..spec }.validate().unwrap_err();
/// assert_eq!(refused.to_string(), "num_samples = 0: must be at least 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DatasetSpec {
    /// Name of the data set, 1 to 255 bytes.
    pub name: String,
    /// Number of samples in one epoch.
    pub num_samples: u64,
    /// Places at which the samples are cut into shards.
    pub cut: Cut,
    /// Number of passes over the data.
    pub epochs: Epochs,
    /// What is shuffled in each epoch.
    pub shuffle: Shuffle,
    /// Seed of the order of shards and samples.
    pub seed: Seed,
    /// Number of earlier epochs that may still be unfinished when the next one opens: 0 is a strict barrier.
    /// At most 8.
    pub epoch_overlap: u32,
    /// Whether workers acknowledge after the update or before it. The ledger does the same for both.
    pub delivery: Delivery,
    /// Number of data faults after which a shard is quarantined. The loss of a node never counts as a data
    /// fault.
    pub max_data_faults: u32,
    /// What happens when a shard is quarantined.
    pub on_quarantine: OnQuarantine,
    /// Leases that one worker may hold at a time: see [`max_leases_default`].
    pub max_leases_per_holder: u32,
    /// Assignment of shards to workers.
    pub assignment: Assignment,
}

impl DatasetSpec {
    /// Most shares of a static assignment: each costs the ledger some hundred bytes.
    const SHARES_MAX: u32 = 1 << 16;
    /// Longest shard: one grant of more is no sharding, and offsets within a shard fit 32 bits on the way to a reader.
    const SHARD_LEN_MAX: u64 = 1 << 32;
    /// More unclosed epochs than this make "epoch" meaningless for the learning rate.
    const EPOCH_OVERLAP_MAX: u32 = 8;

    /// Returns settings with these defaults: one epoch, shards and samples shuffled by seed 0, handed out
    /// dynamically with a strict epoch barrier, delivered at least once, at most two leases for each worker,
    /// and the job fails after three data faults of one shard.
    pub fn new(name: impl Into<String>, num_samples: u64, shard_len: u64) -> Self {
        Self {
            name: name.into(),
            num_samples,
            cut: Cut::Every(shard_len),
            epochs: Epochs::Finite(1),
            shuffle: Shuffle::ShardsAndSamples,
            seed: Seed(0),
            epoch_overlap: 0,
            delivery: Delivery::AtLeastOnce,
            max_data_faults: 3,
            on_quarantine: OnQuarantine::FailJob,
            max_leases_per_holder: 2,
            assignment: Assignment::Dynamic,
        }
    }

    /// Returns settings as [`new`](Self::new) does, for a job of `workers` workers whose steps train
    /// `global_batch` samples. Unless `shard_len` is given, shards are as long as [`shard_len_default`] says.
    /// A worker may hold as many leases as [`max_leases_default`] says.
    pub fn of_job(
        name: impl Into<String>,
        num_samples: u64,
        global_batch: u32,
        workers: u32,
        shard_len: Option<u64>,
    ) -> Self {
        let shard_len = shard_len.unwrap_or_else(|| shard_len_default(num_samples, global_batch, workers));
        let max_leases_per_holder = max_leases_default(shard_len, global_batch);
        Self { max_leases_per_holder, ..Self::new(name, num_samples, shard_len) }
    }

    /// Checks that a ledger can be made with these settings.
    ///
    /// # Errors
    /// Names the first refused field, its value, and what it must be.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let at_least_1 = |field: &str, value: u64| {
            if value == 0 { Err(InvalidValue::new(field, value, "at least 1")) } else { Ok(()) }
        };
        if self.name.is_empty() || self.name.len() > 255 {
            return Err(InvalidValue::new("name", format!("{:?}", self.name), "1 to 255 bytes long"));
        }
        at_least_1("num_samples", self.num_samples)?;
        at_least_1("max_data_faults", self.max_data_faults.into())?;
        at_least_1("max_leases_per_holder", self.max_leases_per_holder.into())?;
        self.validate_cut()?;
        if let Epochs::Finite(epochs) = self.epochs {
            at_least_1("epochs", epochs.into())?;
            if self.num_samples.checked_mul(epochs.into()).is_none() {
                let most = u64::MAX / self.num_samples;
                let expected = format!("at most {most} for {} samples", self.num_samples);
                return Err(InvalidValue::new("epochs", epochs, expected));
            }
        }
        if self.epoch_overlap > Self::EPOCH_OVERLAP_MAX {
            return Err(InvalidValue::new("epoch_overlap", self.epoch_overlap, "at most 8"));
        }
        if let Assignment::Static { workers } = self.assignment {
            at_least_1("workers", workers.into())?;
            if workers > Self::SHARES_MAX {
                return Err(InvalidValue::new("workers", workers, "at most 65536 with a static assignment"));
            }
        }
        Ok(())
    }

    fn validate_cut(&self) -> Result<(), InvalidValue> {
        let too_long = |field: &str, len: u64| {
            InvalidValue::new(field, len, "at most 4294967296 (2^32) samples for each shard")
        };
        match &self.cut {
            Cut::Every(0) => Err(InvalidValue::new("shard_len", 0, "at least 1")),
            Cut::Every(len) if *len > Self::SHARD_LEN_MAX => Err(too_long("shard_len", *len)),
            Cut::Every(_) => Ok(()),
            Cut::At(ends) => {
                let mut start = 0;
                for (index, end) in ends.iter().enumerate() {
                    let field = || format!("cut[{index}]");
                    if *end <= start && (index > 0 || *end == 0) {
                        return Err(InvalidValue::new(
                            field(),
                            end,
                            format!("above {start}, the end before it"),
                        ));
                    }
                    if end - start > Self::SHARD_LEN_MAX {
                        return Err(too_long(&field(), end - start));
                    }
                    start = *end;
                }
                if start != self.num_samples {
                    let expected = format!("{}, the number of samples", self.num_samples);
                    return Err(InvalidValue::new("last end of cut", start, expected));
                }
                Ok(())
            }
        }
    }

    /// Returns the number of shards in one epoch.
    pub fn shard_count(&self) -> u64 {
        match &self.cut {
            Cut::Every(len) => self.num_samples.div_ceil(*len),
            Cut::At(ends) => ends.len() as u64,
        }
    }

    /// Returns the length of the longest shard in samples.
    pub fn shard_len_max(&self) -> u64 {
        match &self.cut {
            Cut::Every(len) => self.num_samples.min(*len),
            Cut::At(_) => (0..self.shard_count()).map(|index| self.shard(index).len()).max().unwrap_or(0),
        }
    }

    /// Returns the samples of the shard with this index; empty beyond the last shard.
    pub fn shard(&self, index: u64) -> SampleRange {
        match &self.cut {
            Cut::Every(len) => {
                let start = index.saturating_mul(*len).min(self.num_samples);
                SampleRange { start, end: start.saturating_add(*len).min(self.num_samples) }
            }
            Cut::At(ends) => {
                // Beyond the last shard, also on machines that could not hold so many.
                let end_of =
                    |index: u64| usize::try_from(index).ok().and_then(|index| ends.get(index)).copied();
                let end = end_of(index).unwrap_or(self.num_samples);
                let start = match index.checked_sub(1) {
                    None => 0,
                    Some(before) => end_of(before).unwrap_or(self.num_samples),
                };
                SampleRange { start, end }
            }
        }
    }

    /// Returns the order in which the shards of an epoch are handed out.
    pub fn shard_order(&self, epoch: Epoch) -> ShardOrder {
        let seed = match self.shuffle {
            Shuffle::None => None,
            Shuffle::Shards | Shuffle::ShardsAndSamples => {
                Some(self.seed.derive("shards").derive_number(epoch.0.into()))
            }
        };
        ShardOrder::new(seed, self.shard_count())
    }

    /// Returns the seed of the order of the samples within a shard; `None` is the order of the data set.
    pub fn sample_seed(&self, key: ShardKey) -> Option<Seed> {
        self.epoch_sample_seed(key.epoch).map(|seed| seed.derive_number(key.index))
    }

    pub(crate) fn epoch_sample_seed(&self, epoch: Epoch) -> Option<Seed> {
        match self.shuffle {
            Shuffle::None | Shuffle::Shards => None,
            Shuffle::ShardsAndSamples => Some(self.seed.derive("samples").derive_number(epoch.0.into())),
        }
    }

    /// Number of shares the order of an epoch is cut into.
    pub(crate) const fn share_count(&self) -> u32 {
        match self.assignment {
            Assignment::Dynamic => 1,
            Assignment::Static { workers } => workers,
        }
    }

    /// Positions, in the order of an epoch, that the given share covers: start inclusive, end exclusive.
    pub(crate) fn share_bounds(&self, share: u32) -> (u64, u64) {
        let bound = |i: u32| {
            let scaled = u128::from(self.shard_count()) * u128::from(i) / u128::from(self.share_count());
            u64::try_from(scaled).expect("i is at most share_count, so the result is at most shard_count")
        };
        (bound(share), bound(share + 1))
    }

    /// The share that a worker takes from; `None` if it has none.
    pub(crate) fn share_of(&self, node: NodeId) -> Option<u32> {
        match (node.role, self.assignment) {
            (Role::Server, _) => None,
            (Role::Worker, Assignment::Dynamic) => Some(0),
            (Role::Worker, Assignment::Static { workers }) => (node.index < workers).then_some(node.index),
        }
    }

    /// Epochs that can be opened.
    pub(crate) fn epoch_limit(&self) -> u32 {
        match self.epochs {
            Epochs::Finite(epochs) => epochs,
            // So many that no job gets there, so few that samples can be counted in 64 bits.
            Epochs::Infinite => u32::try_from(u64::MAX / self.num_samples).unwrap_or(u32::MAX),
        }
    }

    /// Samples that may be quarantined before nothing more is granted.
    pub(crate) const fn quarantine_limit(&self) -> u64 {
        match self.on_quarantine {
            OnQuarantine::FailJob => 0,
            OnQuarantine::Continue { max_samples } => max_samples,
        }
    }
}

/// Returns a shard length, in samples, that keeps both the number of calls and the end of an epoch short.
///
/// It is ten global batches, so that there is one fetch for many steps; but no longer than lets the slowest
/// worker finish its last shard within 1 % of the epoch; but at least one worker's batch, below which every
/// batch needs a call.
///
/// The bound: an epoch of `N` samples takes at most `N / Σv + P·S / v_min` seconds with shards of `S` samples and `P`
/// leases started at a time, so a tail of `ε` needs `S ≤ ε·N·v_min / (P·Σv)`. Speeds are not known when the data set
/// is registered. One worker is assumed to be four times slower than its `n - 1` equal peers, the straggler that
/// this framework is measured with: `v_min / Σv = 1 / (4n - 3)`. `P` is 1, as agents fetch late.
///
/// Source: the bound is our design, checked by simulation of random speeds.
///
/// ```
/// use antdt_shard::shard_len_default;
/// assert_eq!(shard_len_default(10_000_000, 1_024, 4), 7_692); // 1 % of the epoch over 13
/// assert_eq!(shard_len_default(1_000_000_000, 1_024, 4), 10_240); // ten batches
/// assert_eq!(shard_len_default(3_000, 256, 4), 64); // one worker's batch
/// assert_eq!(shard_len_default(10, 256, 4), 10); // never longer than the data set
/// ```
pub fn shard_len_default(num_samples: u64, global_batch: u32, workers: u32) -> u64 {
    let workers = u64::from(workers.max(1));
    let batch = u64::from(global_batch.max(1));
    let tail_bound = num_samples / 100 / (4 * workers - 3);
    (10 * batch).min(tail_bound).max(batch.div_ceil(workers)).min(num_samples).max(1)
}

/// Longest time for which the service holds a request that it cannot answer with a shard: 30 s. The caller's
/// own deadline must be longer.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Returns the number of leases that one worker may need at a time.
///
/// A batch longer than a shard spans several leases that are all uncommitted until its update is, so a
/// smaller cap would starve it: `ceil((1 + p)·x / shard_len) + 1` with `p` = 1 batch read ahead, and the
/// largest batch `x` that one worker can be given, which is the whole global batch. The last term is the
/// shard in which the last batch ends.
///
/// ```
/// use antdt_shard::max_leases_default;
/// assert_eq!(max_leases_default(10_240, 1_024), 2);
/// assert_eq!(max_leases_default(64, 256), 9);
/// ```
pub fn max_leases_default(shard_len: u64, global_batch: u32) -> u32 {
    let leases = (2 * u64::from(global_batch)).div_ceil(shard_len.max(1)) + 1;
    u32::try_from(leases).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
