//! Choice of the algorithm: the cheapest by closed formulas, unless the caller names one.

use std::fmt;
use std::str::FromStr;

use super::{
    Algorithm, CostModel, Direct, DirectGather, DoubleTree, HalvingDoubling, RecursiveDoubling, Ring,
    RingGather, direct::SEGMENT_LEN, tree::TREE_SEGMENTS,
};

/// How an all-reduce picks its algorithm. All members must choose the same; otherwise the call fails as a
/// mismatch.
///
/// [`Hierarchical`](super::Hierarchical) cannot be chosen by name: it needs the hosts of the ranks, which
/// only the transport knows. [`Auto`](Self::Auto) uses it where it pays: for long buffers, in groups whose
/// members share some hosts but not all one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Choice {
    /// The algorithm that [`select()`] finds cheapest, or [`Hierarchical`](super::Hierarchical) for long
    /// buffers in a group on several hosts, some of which have several members.
    #[default]
    Auto,
    /// [`Direct`] for more than two ranks and up to [`CostModel::burst`] bytes, otherwise [`Ring`].
    RingOrDirect,
    /// [`Ring`]: the fewest bytes, for long buffers.
    Ring,
    /// [`Direct`]: every rank sends to every rank, in two rounds.
    Direct,
    /// [`HalvingDoubling`]: as few bytes as the ring, in fewer rounds.
    HalvingDoubling,
    /// [`RecursiveDoubling`]: partners exchange whole buffers, for the shortest messages.
    RecursiveDoubling,
    /// [`DoubleTree`] with its default number of segments, for many ranks.
    DoubleTree,
    /// Every rank gathers all buffers and folds them itself, in order of rank: one round, for the shortest
    /// buffers. It is a [`DirectGather`] of one block for each rank, and costs `α + (n-2)o + (n-1)(S/B +
    /// Sγ)`: `n/2` times the bytes of [`Direct`] for half of its rounds. Rejected: folding a block when it
    /// comes, which spares the memory for all of them (they come in another order on each rank, and so would
    /// the bits of a sum); gathering by recursive doubling (`log2 n` messages of a rank and not `n-1`, but as
    /// many rounds, and rounds are what short buffers pay for); longer buffers (the blocks of all ranks would
    /// be memory that counts).
    Gather,
}

/// Cut as [`DoubleTree::default`] does.
const DOUBLE_TREE: DoubleTree = DoubleTree { segments: TREE_SEGMENTS };

impl Choice {
    /// All choices.
    pub const ALL: [Self; 8] = [
        Self::RingOrDirect,
        Self::Auto,
        Self::Ring,
        Self::Direct,
        Self::Gather,
        Self::HalvingDoubling,
        Self::RecursiveDoubling,
        Self::DoubleTree,
    ];

    /// Returns the single algorithm that this choice means for an all-reduce of `len_bytes` in a group of
    /// `world` ranks, as a choice.
    #[must_use]
    pub fn resolve(self, world: u32, len_bytes: usize, model: &CostModel) -> Self {
        match self {
            Self::RingOrDirect if world > 2 && len_bytes <= model.burst => Self::Direct,
            Self::RingOrDirect => Self::Ring,
            Self::Auto => select(world, len_bytes, model),
            fixed => fixed,
        }
    }

    /// Returns the algorithm of the choice; `None` for [`Gather`](Self::Gather), and for a choice that was
    /// not [resolved](Self::resolve).
    pub fn algorithm(self) -> Option<&'static dyn Algorithm> {
        Some(match self {
            Self::RingOrDirect | Self::Auto | Self::Gather => return None,
            Self::Ring => &Ring,
            Self::Direct => &Direct,
            Self::HalvingDoubling => &HalvingDoubling,
            Self::RecursiveDoubling => &RecursiveDoubling,
            Self::DoubleTree => &DOUBLE_TREE,
        })
    }

    /// Returns the number of the choice's algorithm in the headers of frames.
    pub fn code(self) -> u8 {
        self.algorithm().map_or(GATHER_CODE, |algorithm| algorithm.code())
    }
}

const GATHER_CODE: u8 = 17;

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RingOrDirect => "ring-or-direct",
            Self::Auto => "auto",
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::HalvingDoubling => "halving-doubling",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::DoubleTree => "double-tree",
            Self::Gather => "gather",
        })
    }
}

/// Error: no algorithm has the requested name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "algorithm {name:?}: must be ring-or-direct, auto, ring, direct, halving-doubling, recursive-doubling, double-tree or gather"
)]
pub struct ChoiceError {
    /// Requested name.
    pub name: String,
}

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(name: &str) -> Result<Self, ChoiceError> {
        let found = Self::ALL.into_iter().find(|choice| choice.to_string() == name);
        found.ok_or_else(|| ChoiceError { name: name.to_owned() })
    }
}

/// Returns the cheapest all-reduce of `len_bytes` in a group of `world` ranks, by the formulas of
/// [`cost_all_reduce`]; among equals the one that comes first in [`Choice::ALL`]. All ranks choose alike,
/// since they agree on the length and the model.
///
/// By the formulas [`Direct`] beats [`Ring`] at every length, since both move the same bytes; in truth `n-1`
/// long messages into one receiver may stand in each other's way, which [`CostModel::burst`] is for.
pub fn select(world: u32, len_bytes: usize, model: &CostModel) -> Choice {
    let candidates = Choice::ALL.into_iter().filter(|choice| match choice {
        // With two ranks ring and direct are the same exchange of halves.
        Choice::Direct => world > 2 && len_bytes <= model.burst,
        Choice::Gather => len_bytes <= GATHER_MAX_BYTES && len_bytes <= model.burst,
        _ => true,
    });
    let priced =
        candidates.filter_map(|choice| Some((choice, cost_all_reduce(choice, world, len_bytes, model)?)));
    priced.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(Choice::Ring, |(choice, _)| choice)
}

/// Beyond it, the blocks of all ranks would be a buffer that counts.
const GATHER_MAX_BYTES: usize = 16 << 10;

/// Returns the seconds of an all-reduce of `len_bytes` in a group of `world` ranks, in closed form; `None`
/// for choices among several algorithms.
///
/// It equals [`CostModel::price`] of the algorithm's schedules if the bytes can be divided evenly; for the
/// double tree it is an estimate, between four fifths and two and a half times the price.
pub fn cost_all_reduce(choice: Choice, world: u32, len_bytes: usize, model: &CostModel) -> Option<f64> {
    if world < 2 {
        return (!matches!(choice, Choice::RingOrDirect | Choice::Auto)).then_some(0.0);
    }
    let (n, bytes) = (f64::from(world), len_bytes as f64);
    let others = n - 1.0;
    // The largest power of two, and the two rounds that ranks beyond it need.
    let (core, levels) = (f64::from(1 << world.ilog2()), f64::from(world.ilog2()));
    let fold = if world.is_power_of_two() {
        0.0
    } else {
        model.round(1.0, bytes, bytes) + model.round(1.0, bytes, 0.0)
    };
    Some(match choice {
        Choice::RingOrDirect | Choice::Auto => return None,
        Choice::Ring => {
            let chunk = bytes / n;
            others * (model.round(1.0, chunk, chunk) + model.round(1.0, chunk, 0.0))
        }
        Choice::Direct => {
            let chunks = bytes / n * others;
            let folded = bytes / n * (1.0 + (others - 1.0) / 2.0);
            let further = (bytes / n / DIRECT_SEGMENT_BYTES).ceil().max(1.0) - 1.0;
            further * model.round(others, 0.0, 0.0)
                + model.round(others, chunks, folded)
                + model.round(others, chunks, 0.0)
        }
        Choice::Gather => model.round(others, bytes * others, bytes * others),
        Choice::HalvingDoubling => {
            // All rounds together move all chunks but one, twice.
            let chunks = bytes / core * (core - 1.0);
            let latency = (levels - 1.0) * 2.0 * model.alpha;
            latency + model.round(1.0, chunks, chunks) + model.round(1.0, chunks, 0.0) + fold
        }
        Choice::RecursiveDoubling => levels * model.round(1.0, bytes, bytes) + fold,
        Choice::DoubleTree => {
            // A tree's depth is one more than the logarithm at most; a rank sends up to four segments at a time, three
            // inside one tree and one as a leaf of the other.
            let segment = bytes / 2.0 / TREE_SEGMENTS as f64;
            let times = 2.0 * f64::from(world.next_power_of_two().ilog2()) + TREE_SEGMENTS as f64 - 1.0;
            times * model.round(4.0, 4.0 * segment, 2.0 * segment)
        }
    })
}

/// In elements of 4 bytes.
const DIRECT_SEGMENT_BYTES: f64 = 4.0 * SEGMENT_LEN as f64;

/// Returns the cheapest algorithm for an all-gather; `blocks` are the lengths of the ranks' blocks in bytes.
pub fn select_all_gather(blocks: &[usize], model: &CostModel) -> Box<dyn Algorithm> {
    if blocks.iter().sum::<usize>() > model.burst.saturating_mul(blocks.len()) {
        Box::new(RingGather { blocks: blocks.to_vec() })
    } else {
        Box::new(DirectGather { blocks: blocks.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Rank;

    use super::*;
    use crate::schedule::Schedule;

    const FIXED: [Choice; 6] = [
        Choice::Ring,
        Choice::Direct,
        Choice::HalvingDoubling,
        Choice::RecursiveDoubling,
        Choice::DoubleTree,
        Choice::Gather,
    ];

    fn walked(choice: Choice, world: u32, len_bytes: usize, model: &CostModel) -> f64 {
        let len = len_bytes / 4;
        let schedule = |me| match choice.algorithm() {
            Some(algorithm) => algorithm.schedule(Rank(me), world, len),
            None => DirectGather { blocks: vec![len; world as usize] }.schedule(Rank(me), world, 0),
        };
        let all: Vec<Schedule> = (0..world).map(schedule).collect();
        // The schedule of a gather does not say that all is folded in the end.
        let folds = if choice.algorithm().is_none() { (world - 1) as f64 * len_bytes as f64 } else { 0.0 };
        model.price(&all, 4) + folds * model.gamma
    }

    fn worlds() -> impl Iterator<Item = u32> {
        (1..=17).chain([32, 33, 64])
    }

    #[test]
    fn the_formulas_agree_with_a_walk_over_the_schedules() {
        let model = CostModel::LOOPBACK;
        for world in worlds() {
            // Divisible by the world and by every power of two in it.
            for len_bytes in [world as usize * 256, world as usize * (1 << 20)] {
                for choice in FIXED {
                    let closed = cost_all_reduce(choice, world, len_bytes, &model).unwrap();
                    let walk = walked(choice, world, len_bytes, &model);
                    let what = format!("{choice}, {len_bytes} bytes, {world} ranks: {closed} {walk}");
                    if choice == Choice::DoubleTree {
                        assert!(world == 1 || (0.4..1.25).contains(&(walk / closed)), "{what}");
                    } else {
                        assert!((walk - closed).abs() <= 1e-9 * closed, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_chosen_schedule_is_near_the_cheapest_walk() {
        let model = CostModel::LOOPBACK;
        for world in worlds().filter(|world| *world > 1) {
            for len_bytes in (2..=24).map(|bits| 1 << bits) {
                let chosen = walked(select(world, len_bytes, &model), world, len_bytes, &model);
                for choice in FIXED {
                    let long = len_bytes > model.burst;
                    if choice == Choice::Direct && long
                        || choice == Choice::Gather && len_bytes > GATHER_MAX_BYTES
                    {
                        continue;
                    }
                    let other = walked(choice, world, len_bytes, &model);
                    assert!(
                        chosen <= other * 1.35,
                        "{world} ranks, {len_bytes} bytes: {} {chosen}, {choice} {other}",
                        select(world, len_bytes, &model)
                    );
                }
            }
        }
    }

    #[test]
    fn latency_decides_for_short_buffers_and_bytes_for_long_ones() {
        let model = CostModel::LOOPBACK;
        let choice = |world, len_bytes| select(world, len_bytes, &model);
        assert_eq!(choice(2, 64 << 20), Choice::Ring);
        assert_eq!(choice(2, 8), Choice::Gather);
        assert_eq!(choice(3, 8), Choice::Gather);
        assert_eq!(choice(3, 16 << 10), Choice::Gather);
        assert_eq!(choice(3, 32 << 10), Choice::Direct);
        assert_eq!(choice(3, 64 << 20), Choice::Ring);
        assert_eq!(choice(8, 8), Choice::RecursiveDoubling);
        assert_eq!(choice(8, 64 << 20), Choice::HalvingDoubling);
        assert_eq!(choice(7, 64 << 20), Choice::Ring);
        assert_eq!(select(4, 64 << 20, &CostModel::SHARED), Choice::HalvingDoubling);
        assert_eq!(select(4, 8, &CostModel::SHARED), Choice::Gather);
    }

    #[test]
    fn every_choice_reads_back_from_its_name_and_is_called_like_its_algorithm() {
        for choice in Choice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
            if let Some(algorithm) = choice.algorithm() {
                assert_eq!((algorithm.name(), algorithm.code()), (&*choice.to_string(), choice.code()));
            }
            assert!(FIXED.contains(&choice.resolve(4, 100, &CostModel::LOOPBACK)));
        }
        let error = "rign".parse::<Choice>().unwrap_err();
        assert!(error.to_string().contains("\"rign\""), "{error}");
    }
}
