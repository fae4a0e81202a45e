//! Which algorithm: the cheapest by closed formulas, unless somebody chose.

use std::fmt;
use std::str::FromStr;

use super::{
    Algorithm, CostModel, Direct, DirectGather, DoubleTree, HalvingDoubling, RecursiveDoubling, Ring,
    RingGather, tree::TREE_SEGMENTS,
};

/// How an all-reduce picks its algorithm. The same on all members; a member that differs makes the call fail as a
/// mismatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Choice {
    /// [`Direct`] for more than two ranks and up to [`DIRECT_MAX_BYTES`], [`Ring`] beyond. The default: over TCP, only
    /// these two are tested to tell every member the true reason of a failure. With the others a member may hear of a
    /// neighbour's closed connection first, and report that.
    #[default]
    RingOrDirect,
    /// By [`select()`].
    Auto,
    /// [`Ring`].
    Ring,
    /// [`Direct`].
    Direct,
    /// [`HalvingDoubling`].
    HalvingDoubling,
    /// [`RecursiveDoubling`].
    RecursiveDoubling,
    /// [`DoubleTree`], in its default number of segments.
    DoubleTree,
}

/// Cut as [`DoubleTree::default`] does.
const DOUBLE_TREE: DoubleTree = DoubleTree { segments: TREE_SEGMENTS };

impl Choice {
    /// Every choice.
    pub const ALL: [Self; 7] = [
        Self::RingOrDirect,
        Self::Auto,
        Self::Ring,
        Self::Direct,
        Self::HalvingDoubling,
        Self::RecursiveDoubling,
        Self::DoubleTree,
    ];

    /// The algorithm for an all-reduce of `len_bytes` in a group of `world`.
    pub fn algorithm(self, world: u32, len_bytes: usize, model: &CostModel) -> &'static dyn Algorithm {
        match self {
            Self::RingOrDirect if world > 2 && len_bytes <= DIRECT_MAX_BYTES => &Direct,
            Self::RingOrDirect => &Ring,
            Self::Auto => select(world, len_bytes, model),
            Self::Ring => &Ring,
            Self::Direct => &Direct,
            Self::HalvingDoubling => &HalvingDoubling,
            Self::RecursiveDoubling => &RecursiveDoubling,
            Self::DoubleTree => &DOUBLE_TREE,
        }
    }
}

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
        })
    }
}

/// There is no algorithm of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "algorithm {name:?}: must be ring-or-direct, auto, ring, direct, halving-doubling, recursive-doubling or double-tree"
)]
pub struct ChoiceError {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(name: &str) -> Result<Self, ChoiceError> {
        let found = Self::ALL.into_iter().find(|choice| choice.to_string() == name);
        found.ok_or_else(|| ChoiceError { name: name.to_owned() })
    }
}

/// Up to here all may talk to all at once. By the model [`Direct`] beats [`Ring`] at every length, since both move the
/// same bytes; in truth `n-1` long messages into one receiver stand in each other's way, which the model knows nothing
/// of. A larger value only adds fan-in at the receivers.
pub const DIRECT_MAX_BYTES: usize = 64 << 10;

/// The cheapest all-reduce of `len_bytes` in a group of `world`, by the formulas of [`cost_all_reduce`]; among equals
/// the one that comes first in [`Choice::ALL`]. All ranks choose alike, since they agree on the length and the model.
pub fn select(world: u32, len_bytes: usize, model: &CostModel) -> &'static dyn Algorithm {
    // With two ranks ring and direct are the same exchange of halves.
    let direct = world > 2 && len_bytes <= DIRECT_MAX_BYTES;
    let candidates = Choice::ALL.into_iter().filter(|choice| direct || *choice != Choice::Direct);
    let priced =
        candidates.filter_map(|choice| Some((choice, cost_all_reduce(choice, world, len_bytes, model)?)));
    let cheapest = priced.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(Choice::Ring, |(choice, _)| choice);
    match cheapest {
        Choice::RingOrDirect | Choice::Auto => &Ring,
        cheapest => cheapest.algorithm(world, len_bytes, model),
    }
}

/// Seconds of an all-reduce of `len_bytes` in a group of `world`, in closed form; `None` for choices among several.
///
/// As [`CostModel::price`] of the algorithm's schedules, if the bytes could be divided evenly; for the double tree an
/// estimate, between four fifths and two and a half times the price.
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
            model.round(others, chunks, chunks) + model.round(others, chunks, 0.0)
        }
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

/// The algorithm for an all-gather of `blocks` bytes.
pub fn select_all_gather(blocks: &[usize]) -> Box<dyn Algorithm> {
    if blocks.iter().sum::<usize>() > DIRECT_MAX_BYTES * blocks.len() {
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

    const FIXED: [Choice; 5] = [
        Choice::Ring,
        Choice::Direct,
        Choice::HalvingDoubling,
        Choice::RecursiveDoubling,
        Choice::DoubleTree,
    ];

    fn walked(algorithm: &dyn Algorithm, world: u32, len_bytes: usize, model: &CostModel) -> f64 {
        let all: Vec<Schedule> =
            (0..world).map(|me| algorithm.schedule(Rank(me), world, len_bytes / 4)).collect();
        model.price(&all, 4)
    }

    fn worlds() -> impl Iterator<Item = u32> {
        (1..=17).chain([32, 33, 64])
    }

    #[test]
    fn the_formulas_are_what_a_walk_over_the_schedules_gives() {
        let model = CostModel::LOOPBACK;
        for world in worlds() {
            // Divisible by the world and by every power of two in it.
            for len_bytes in [world as usize * 256, world as usize * (1 << 20)] {
                for choice in FIXED {
                    let closed = cost_all_reduce(choice, world, len_bytes, &model).unwrap();
                    let walk = walked(choice.algorithm(world, len_bytes, &model), world, len_bytes, &model);
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
    fn what_is_chosen_is_near_the_cheapest_walk() {
        let model = CostModel::LOOPBACK;
        for world in worlds().filter(|world| *world > 1) {
            for len_bytes in (2..=24).map(|bits| 1 << bits) {
                let chosen = walked(select(world, len_bytes, &model), world, len_bytes, &model);
                for choice in FIXED {
                    if choice == Choice::Direct && len_bytes > DIRECT_MAX_BYTES {
                        continue;
                    }
                    let other = walked(choice.algorithm(world, len_bytes, &model), world, len_bytes, &model);
                    assert!(
                        chosen <= other * 1.35,
                        "{world} ranks, {len_bytes} bytes: {} {chosen}, {choice} {other}",
                        select(world, len_bytes, &model).name()
                    );
                }
            }
        }
    }

    #[test]
    fn latency_decides_for_short_buffers_and_bytes_for_long_ones() {
        let model = CostModel::LOOPBACK;
        let name = |world, len_bytes| select(world, len_bytes, &model).name();
        assert_eq!(name(2, 64 << 20), "ring");
        assert_eq!(name(3, 8), "recursive-doubling");
        assert_eq!(name(3, 16 << 10), "direct");
        assert_eq!(name(3, 64 << 20), "ring");
        assert_eq!(name(8, 8), "recursive-doubling");
        assert_eq!(name(8, 64 << 20), "halving-doubling");
        assert_eq!(name(7, 64 << 20), "ring");
    }

    #[test]
    fn every_choice_reads_back_from_its_name_and_is_called_like_its_algorithm() {
        for choice in Choice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
            if FIXED.contains(&choice) {
                assert_eq!(choice.algorithm(4, 100, &CostModel::LOOPBACK).name(), choice.to_string());
            }
        }
        let error = "rign".parse::<Choice>().unwrap_err();
        assert!(error.to_string().contains("\"rign\""), "{error}");
    }
}
