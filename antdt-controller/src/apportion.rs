//! `ADJUST_BS`: how many samples each worker gets, so that the slowest of them is done as early as possible.
//!
//! ```text
//! minimise    max_i (count_i * fixed_i + sample_time_i * x_i)
//! subject to  sum x_i = total,  count_i * min_i <= x_i <= count_i * max_i,  1 <= count_i <= micro_batches_max_i,
//!             x_i = min_i (mod granularity),  x_i and count_i integer
//! ```
//!
//! A micro-batch costs its fixed time, so a worker's count is the fewest that its samples fit into, `ceil(x_i / max_i)`, and the
//! cost of a worker depends on `x_i` only. With one micro-batch at most, which is the default, it is the problem without
//! accumulation.
//!
//! All times are integer nanoseconds, so the answer is exact and the same on every platform. For a time `T` let
//! `x_i(T)` be the most samples that worker `i` does within `T`. The solver finds the largest `T` with
//! `sum x_i(T) <= total` and gives the rest, less than one quantum per worker, to workers that can take one more by
//! `T + 1`: the lowest ids first. That is optimal because each cost depends on one `x_i` only and never falls.
//!
//! Cost: O(n · log(granularity · largest sample time) · log(micro-batches)); the search starts at the optimum of the real-valued
//! problem.
//!
//! Rejected: rounding `total · speed_i / sum of speeds`. It breaks the sum or the lower bound in more than a third
//! of random cases, and is not optimal.
//!
//! Source: our design; the objective without bounds and fixed costs is how summaries describe the `AntDT` paper's.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::NodeId;

/// A worker that takes a share of the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Node id of the worker; the smaller id wins ties.
    pub id: NodeId,
    /// Time per batch that does not depend on its size.
    pub fixed: Duration,
    /// Time per sample, above zero.
    pub sample_time: Duration,
    /// Smallest micro-batch that the worker accepts, in samples.
    pub min: u32,
    /// Largest micro-batch that the worker accepts, in samples.
    pub max: u32,
    /// Most micro-batches of a batch, at least 1. With more than 1, twice the lower bound must be at most one above the upper
    /// one: then any number of samples within the bounds of the batch can be cut into micro-batches within theirs.
    pub micro_batches_max: u32,
}

impl Share {
    /// Returns a worker whose batches have no fixed time and are computed at once.
    pub const fn new(id: NodeId, sample_time: Duration, min: u32, max: u32) -> Self {
        Self { id, fixed: Duration::ZERO, sample_time, min, max, micro_batches_max: 1 }
    }

    /// Returns the time that a batch of `samples` takes.
    pub fn time(&self, samples: u32) -> Duration {
        self.fixed.saturating_mul(self.micro_batches(samples)) + self.sample_time.saturating_mul(samples)
    }

    /// Returns the smallest number of micro-batches that hold `samples` samples.
    pub fn micro_batches(&self, samples: u32) -> u32 {
        samples.div_ceil(self.max.max(1)).clamp(1, self.micro_batches_max.max(1))
    }

    /// Most samples of a batch.
    fn most(&self) -> u32 {
        self.max.saturating_mul(self.micro_batches_max.max(1))
    }
}

/// A global batch that is divided among workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apportionment {
    /// Number of samples for each worker.
    pub batch_sizes: BTreeMap<NodeId, u32>,
    /// Number of micro-batches of each worker that computes its batch in more than one; other workers are not
    /// in the map.
    pub accumulation: BTreeMap<NodeId, u32>,
    /// Predicted time until the slowest worker has computed its batch; no other division is faster.
    pub step_time: Duration,
}

/// Reason why a global batch cannot be shared out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApportionError {
    /// There is no worker to assign samples to.
    #[error("there is no live worker to share {total} samples")]
    NoWorkers {
        /// Number of samples to share out.
        total: u32,
    },
    /// A worker occurs twice.
    #[error("{node} occurs twice")]
    Duplicate {
        /// The worker that occurs twice.
        node: NodeId,
    },
    /// There are no samples to share out.
    #[error("the global batch size is 0; it must be at least 1")]
    NothingToShare,
    /// The granularity is 0 samples.
    #[error("the granularity of batch sizes is 0; it must be at least 1")]
    ZeroGranularity,
    /// A worker has a time per sample of 0, which allows no prediction.
    #[error("{node} is said to take no time per sample; measure it again")]
    ZeroSampleTime {
        /// Worker whose time per sample is 0.
        node: NodeId,
    },
    /// A worker has a time that is longer than any batch can take.
    #[error("{node} is said to take {time:?} for a sample or a batch; more than a day is not believed")]
    TimeTooLong {
        /// Worker whose time is too long.
        node: NodeId,
        /// The time that is too long.
        time: Duration,
    },
    /// A worker has a lower bound above its upper bound.
    #[error("{node} takes batches from {min} to {max} samples; the first must not be above the second")]
    BoundsCrossed {
        /// Worker whose bounds are crossed.
        node: NodeId,
        /// Lower bound of the worker, in samples.
        min: u32,
        /// Upper bound of the worker, in samples.
        max: u32,
    },
    /// A worker's bounds of a micro-batch are so close that some numbers of samples fit into no number of
    /// micro-batches.
    #[error(
        "{node} takes micro-batches from {min} to {max} samples; for several of them the first must be at most half of one more than the second"
    )]
    MicroBatchesTooAlike {
        /// Worker whose bounds are too close.
        node: NodeId,
        /// Lower bound of the worker's micro-batch, in samples.
        min: u32,
        /// Upper bound of the worker's micro-batch, in samples.
        max: u32,
    },
    /// The lower bounds alone add up to more samples than there are.
    #[error("a global batch of {total} is below {least}, the sum of the workers' smallest batches; raise it")]
    TooFew {
        /// Number of samples to share out.
        total: u32,
        /// Sum of the lower bounds.
        least: u64,
    },
    /// The upper bounds add up to fewer samples than there are.
    #[error("a global batch of {total} is above {most}, the sum of the workers' largest batches; lower it")]
    TooMany {
        /// Number of samples to share out.
        total: u32,
        /// Sum of the upper bounds in samples, each rounded down to whole quanta.
        most: u64,
    },
    /// The samples beyond the lower bounds are not a whole number of quanta.
    #[error("a global batch of {total} exceeds the smallest batches by {rest}, no multiple of {granularity}")]
    NotDivisible {
        /// Number of samples to share out.
        total: u32,
        /// Number of samples beyond the sum of the lower bounds.
        rest: u64,
        /// Number of samples in a quantum.
        granularity: u32,
    },
}

/// A time longer than this is a broken clock.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// A worker in integer nanoseconds, with its lower bound already served.
struct Item {
    id: NodeId,
    /// Time at the lower bound, which is one micro-batch.
    base: u128,
    /// Time of one more quantum within a micro-batch.
    quantum: u128,
    /// Time of one more micro-batch.
    fixed: u128,
    /// Quanta above the lower bound it can take at most.
    most: u64,
    /// Samples of the lower bound, of a quantum, and of a full micro-batch; and the most micro-batches.
    min: u64,
    granularity: u64,
    full: u64,
    counts: u64,
}

impl Item {
    /// Quanta above the lower bound done within `time`.
    fn quanta(&self, time: u128) -> u64 {
        let within = |time: u128, most: u64| {
            let time = time.saturating_sub(self.base);
            let quanta = match (u64::try_from(time), u64::try_from(self.quantum)) {
                (Ok(time), Ok(quantum)) => time / quantum,
                _ => u64::try_from(time / self.quantum).unwrap_or(u64::MAX),
            };
            quanta.min(most)
        };
        if self.counts == 1 {
            return within(time, self.most);
        }
        // The most micro-batches of which the last is begun in time. `fixed` and the samples of a full one come with each.
        let (mut low, mut high) = (1, self.counts);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.first_of(middle) <= self.most && self.time(self.first_of(middle)) <= time {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let most = (low * self.full).saturating_sub(self.min) / self.granularity;
        within(time.saturating_sub(u128::from(low - 1) * self.fixed), most.min(self.most))
    }

    /// The fewest quanta that take so many micro-batches.
    fn first_of(&self, count: u64) -> u64 {
        (((count - 1) * self.full + 1).saturating_sub(self.min)).div_ceil(self.granularity)
    }

    /// Time of so many quanta above the lower bound.
    fn time(&self, quanta: u64) -> u128 {
        let samples = self.min + quanta * self.granularity;
        let counts = if self.counts == 1 { 1 } else { samples.div_ceil(self.full).max(1) };
        self.base + u128::from(quanta) * self.quantum + u128::from(counts - 1) * self.fixed
    }
}

/// Divides `total` samples among workers so that the slowest worker finishes as early as possible. Beyond its
/// lower bound each worker gets a multiple of `granularity` samples. The result is exact and does not depend
/// on the order of `shares`.
///
/// # Errors
/// If and only if no division satisfies all bounds; no bound is ever clamped.
///
/// ```
/// use std::time::Duration;
/// use antdt_controller::apportion::{Share, apportion};
/// use antdt_core::NodeId;
///
/// // 100, 100, 50 and 25 samples a second.
/// let shares: Vec<Share> = [10, 10, 20, 40]
///     .into_iter()
///     .zip(0..)
///     .map(|(ms, index)| Share::new(NodeId::worker(index), Duration::from_millis(ms), 1, 256))
///     .collect();
/// let solution = apportion(256, 1, &shares)?;
/// assert_eq!(solution.batch_sizes.into_values().collect::<Vec<_>>(), [94, 93, 46, 23]);
/// assert_eq!(solution.step_time, Duration::from_millis(940)); // 64 each would take 2 560 ms
/// # Ok::<(), antdt_controller::apportion::ApportionError>(())
/// ```
pub fn apportion(total: u32, granularity: u32, shares: &[Share]) -> Result<Apportionment, ApportionError> {
    let (items, quanta) = items(total, granularity, shares)?;
    let time = largest_time(&items, quanta);

    let within: Vec<u64> = items.iter().map(|item| item.quanta(time)).collect();
    let mut rest = quanta - within.iter().sum::<u64>();
    let (mut batch_sizes, mut accumulation) = (Vec::with_capacity(items.len()), BTreeMap::new());
    let mut step_time = 0;
    for (item, within) in items.iter().zip(within) {
        // A quantum takes at least a nanosecond, so a worker that fits one more by `time + 1` fits exactly one.
        let extra = u64::from(rest > 0 && item.quanta(time + 1) > within);
        rest -= extra;
        let taken = within + extra;
        step_time = step_time.max(item.time(taken));
        let samples = item.min + taken * item.granularity;
        let samples = u32::try_from(samples).expect("a share is at most its upper bound, a u32");
        batch_sizes.push((item.id, samples));
        let count = u64::from(samples).div_ceil(item.full);
        if item.counts > 1 && count > 1 {
            accumulation
                .insert(item.id, u32::try_from(count).expect("at most the most micro-batches, a u32"));
        }
    }
    debug_assert_eq!(rest, 0, "more workers can take a quantum by the next nanosecond than quanta are left");
    // In the order of ids, from which a map is built at once.
    let batch_sizes = batch_sizes.into_iter().collect();
    Ok(Apportionment { batch_sizes, accumulation, step_time: nanoseconds(step_time) })
}

/// Divides `total` samples evenly among workers, each given as id, smallest and largest batch. The remainder
/// goes to the workers with the lowest ids; samples that a bound keeps from one worker go to the others.
///
/// # Errors
/// As [`apportion`].
pub fn apportion_evenly(
    total: u32,
    bounds: impl IntoIterator<Item = (NodeId, u32, u32)>,
) -> Result<BTreeMap<NodeId, u32>, ApportionError> {
    let shares: Vec<Share> =
        bounds.into_iter().map(|(id, min, max)| Share::new(id, Duration::from_nanos(1), min, max)).collect();
    apportion(total, 1, &shares).map(|solution| solution.batch_sizes)
}

/// Checks the problem and brings it to quanta above the lower bounds, in the order of ids.
fn items(total: u32, granularity: u32, shares: &[Share]) -> Result<(Vec<Item>, u64), ApportionError> {
    if shares.is_empty() {
        return Err(ApportionError::NoWorkers { total });
    }
    if total == 0 {
        return Err(ApportionError::NothingToShare);
    }
    if granularity == 0 {
        return Err(ApportionError::ZeroGranularity);
    }
    let mut sorted: Vec<&Share> = shares.iter().collect();
    sorted.sort_unstable_by_key(|share| share.id);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(ApportionError::Duplicate { node: pair[0].id });
    }
    for share in &sorted {
        let node = share.id;
        if share.sample_time.is_zero() {
            return Err(ApportionError::ZeroSampleTime { node });
        }
        if let Some(time) = [share.sample_time, share.fixed].into_iter().find(|time| *time > TIME_MAX) {
            return Err(ApportionError::TimeTooLong { node, time });
        }
        if share.min > share.max {
            return Err(ApportionError::BoundsCrossed { node, min: share.min, max: share.max });
        }
        let (min, max) = (share.min, share.max);
        if share.micro_batches_max > 1 && u64::from(min) * 2 > u64::from(max) + 1 {
            return Err(ApportionError::MicroBatchesTooAlike { node, min, max });
        }
    }

    let least: u64 = sorted.iter().map(|share| u64::from(share.min)).sum();
    let Some(rest) = u64::from(total).checked_sub(least) else {
        return Err(ApportionError::TooFew { total, least });
    };
    let quantum = u64::from(granularity);
    let items: Vec<Item> = sorted
        .iter()
        .map(|share| Item {
            id: share.id,
            base: share.fixed.as_nanos() + share.sample_time.as_nanos() * u128::from(share.min),
            quantum: share.sample_time.as_nanos() * u128::from(granularity),
            fixed: share.fixed.as_nanos(),
            most: u64::from(share.most() - share.min) / quantum,
            min: share.min.into(),
            granularity: quantum,
            full: share.max.max(1).into(),
            counts: if share.max == 0 { 1 } else { share.micro_batches_max.max(1).into() },
        })
        .collect();
    let most = least + items.iter().map(|item| item.most * quantum).sum::<u64>();
    if u64::from(total) > most {
        return Err(ApportionError::TooMany { total, most });
    }
    if !rest.is_multiple_of(quantum) {
        return Err(ApportionError::NotDivisible { total, rest, granularity });
    }
    Ok((items, rest / quantum))
}

/// What is done within a time.
enum Within {
    /// Not more than there is; the next quantum is done at this time.
    Fits { next: u128 },
    /// More than there is; the last quantum was done at this time.
    TooMany { last: u128 },
}

fn done_within(items: &[Item], quanta: u64, time: u128) -> Within {
    let (mut done, mut last, mut next) = (0_u64, 0, u128::MAX);
    for item in items {
        let own = item.quanta(time);
        done = done.saturating_add(own);
        if own > 0 {
            last = last.max(item.time(own));
        }
        if own < item.most {
            next = next.min(item.time(own + 1));
        }
    }
    if done <= quanta { Within::Fits { next } } else { Within::TooMany { last } }
}

/// The largest time within which at most `quanta` quanta are done, or one within which all are done that can be.
fn largest_time(items: &[Item], quanta: u64) -> u128 {
    let fits = |time: u128| items.iter().map(|item| item.quanta(time)).fold(0, u64::saturating_add) <= quanta;
    // Within this time every worker is at the upper bound: if that fits, it is the answer.
    let ceiling = items.iter().map(|item| item.time(item.most)).max().unwrap_or(0);
    if fits(ceiling) {
        return ceiling;
    }
    // From the optimum of the real-valued problem without bounds, gallop to a bracket: `low` fits, `high` does not.
    let stride = items.iter().map(|item| item.quantum).max().unwrap_or(1);
    let start = relaxed_time(items, quanta).min(ceiling);
    let (mut low, mut high) = (0, ceiling);
    let mut reach = stride;
    if fits(start) {
        low = start;
        while low + reach < high {
            if fits(low + reach) {
                low += reach;
                reach *= 2;
            } else {
                high = low + reach;
            }
        }
    } else {
        high = start;
        while high > reach {
            if fits(high - reach) {
                low = high - reach;
                break;
            }
            high -= reach;
            reach *= 2;
        }
    }
    // Nothing changes until the next quantum is done, and nothing changed since the last one.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match done_within(items, quanta, middle) {
            Within::Fits { next } => low = (next - 1).clamp(middle, high - 1),
            Within::TooMany { last } => high = last.clamp(low + 1, middle),
        }
    }
    low
}

/// When all are done if samples were divisible and unbounded. Only a place to start: any value is correct.
#[allow(clippy::cast_precision_loss, reason = "a guess")]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
fn relaxed_time(items: &[Item], quanta: u64) -> u128 {
    let (done, speed) = items.iter().fold((quanta as f64, 0.0), |(done, speed), item| {
        let own = 1.0 / item.quantum as f64;
        (done + item.base as f64 * own, speed + own)
    });
    (done / speed) as u128
}

fn nanoseconds(time: u128) -> Duration {
    Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
