//! Double binary tree: few rounds and nearly the fewest bytes, for any number of ranks.
//!
//! In one binary tree, totals flow up to the root and the result flows down again; cut into `k` segments, both happen
//! at once. Half of the ranks are leaves and would hardly send, so there are two trees, each for half of the buffer:
//! the leaves of one are the inner ranks of the other.
//!
//! With trees of depth `D ≤ log2 n + 1`: cost about `(2D + k - 1)(α + 2S/(kB) + Sγ/k)`, which tends to
//! `2 log2 n·α + 2S/B`. It beats the ring when `n` is large and halving-doubling when `n` is no power of two.
//! The root computes each total and both children are folded in order of rank, so all ranks have the same bits.
//! Rejected: one tree (half the bandwidth lies idle); colouring the edges so that each rank has one message per round
//! (our rounds may have several, and a rank whose two trees would use the same connection at the same time gets an
//! extra round instead).
//!
//! Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009
//! (recalled); the shape of the trees as NCCL builds them (its description in our specification).

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push, split_even};

/// All-reduce over two binary trees, each for half of the buffer. For many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoubleTree {
    /// Number of segments that each tree's half is cut into; 0 counts as 1. More segments use the links
    /// better, and each costs a round.
    pub segments: usize,
}

/// Default number of segments, 8: the bandwidth term is then within a factor `1 + 2 log2 n / 8` of its limit,
/// for 7 more rounds.
pub const TREE_SEGMENTS: usize = 8;

impl Default for DoubleTree {
    fn default() -> Self {
        Self { segments: TREE_SEGMENTS }
    }
}

impl Algorithm for DoubleTree {
    fn name(&self) -> &'static str {
        "double-tree"
    }

    fn code(&self) -> u8 {
        8
    }

    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        let halves = split_even(len, 2);
        let segments = self.segments.max(1);
        let trees = [Tree::first(world), Tree::second(world)];
        let flows = [0, 1].map(|index| Flow {
            tree: &trees[index],
            segments: split_even(halves[index].len, segments)
                .into_iter()
                .map(|span| Span { start: halves[index].start + span.start, len: span.len })
                .collect(),
        });
        let depth = trees[0].depth().max(trees[1].depth());
        let times = if world < 2 { 0 } else { 2 * depth + segments - 1 };
        let mut rounds = vec![Vec::new(); 2 * times];
        for (t, rounds) in rounds.chunks_mut(2).enumerate() {
            for (index, flow) in flows.iter().enumerate() {
                // A second message to the same peer at the same time waits for the second half of the time's rounds.
                let round_of =
                    |from: Rank, to: Rank| usize::from(index == 1 && flows[0].message(from, to, t).is_some());
                for peer in flow.tree.neighbours(me) {
                    if let Some((span, _)) = flow.message(me, peer, t) {
                        push(&mut rounds[round_of(me, peer)], Step::Send { to: peer, span });
                    }
                    if let Some((span, up)) = flow.message(peer, me, t) {
                        let step = if up {
                            Step::RecvReduce { from: peer, span }
                        } else {
                            Step::RecvCopy { from: peer, span }
                        };
                        push(&mut rounds[round_of(peer, me)], step);
                    }
                }
            }
        }
        Schedule { rounds }
    }
}

struct Flow<'a> {
    tree: &'a Tree,
    segments: Vec<Span>,
}

impl Flow<'_> {
    // What `from` sends to `to` at time `t`, and whether it goes up. A rank at depth d passes segment s up at time
    // D - d + s, once its children at depth d + 1 have done so, and down at time D + d + s.
    fn message(&self, from: Rank, to: Rank, t: usize) -> Option<(Span, bool)> {
        let deepest = self.tree.depth();
        let (up, begins) = if self.tree.parents[from.0 as usize] == Some(to) {
            (true, deepest - self.tree.depths[from.0 as usize])
        } else if self.tree.parents[to.0 as usize] == Some(from) {
            (false, deepest + self.tree.depths[from.0 as usize])
        } else {
            return None;
        };
        let span = *self.segments.get(t.checked_sub(begins)?)?;
        (span.len > 0).then_some((span, up))
    }
}

/// A tree over all ranks: parents, and distances from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree {
    parents: Vec<Option<Rank>>,
    depths: Vec<usize>,
}

impl Tree {
    // Odd ranks are leaves. The parent of a rank is found at its lowest set bit: clear it and set the next one, or only
    // clear it where that would be beyond the last rank.
    fn first(world: u32) -> Self {
        Self::new(world, |role| role, |rank| rank)
    }

    // The same tree with the ranks counted from behind, or, in an odd group, one further: even ranks are leaves. In an
    // odd group rank 0 is the only one that is inside both.
    fn second(world: u32) -> Self {
        if world.is_multiple_of(2) {
            Self::new(world, |rank| world - 1 - rank, |role| world - 1 - role)
        } else {
            Self::new(world, |rank| (rank + world - 1) % world, |role| (role + 1) % world)
        }
    }

    fn new(world: u32, role_of: impl Fn(u32) -> u32, rank_of: impl Fn(u32) -> u32) -> Self {
        let above = |role: u32| {
            (role > 0).then(|| {
                let bit = role & role.wrapping_neg();
                let above = (role ^ bit) | (bit << 1);
                if above < world { above } else { role ^ bit }
            })
        };
        let parents = (0..world).map(|rank| above(role_of(rank)).map(|role| Rank(rank_of(role)))).collect();
        let depths = (0..world)
            .map(|rank| std::iter::successors(Some(role_of(rank)), |role| above(*role)).count() - 1)
            .collect();
        Self { parents, depths }
    }

    fn depth(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    // The parent, then the children in order of rank.
    fn neighbours(&self, me: Rank) -> impl Iterator<Item = Rank> {
        let children = (0..).map(Rank).zip(&self.parents).filter(move |(_, parent)| **parent == Some(me));
        self.parents[me.0 as usize].into_iter().chain(children.map(|(child, _)| child))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_reach_all_ranks_with_at_most_two_children_and_logarithmic_depth() {
        for world in 1..=70_u32 {
            for tree in [Tree::first(world), Tree::second(world)] {
                assert_eq!(tree.parents.iter().filter(|parent| parent.is_none()).count(), 1);
                for me in (0..world).map(Rank) {
                    let up = usize::from(tree.parents[me.0 as usize].is_some());
                    assert!(tree.neighbours(me).count() - up <= 2, "{me} of {world}");
                    if let Some(parent) = tree.parents[me.0 as usize] {
                        assert_eq!(tree.depths[me.0 as usize], tree.depths[parent.0 as usize] + 1);
                    }
                }
                assert!(tree.depth() <= world.ilog2() as usize + 1, "{} of {world}", tree.depth());
            }
        }
    }

    #[test]
    fn no_rank_but_the_first_of_an_odd_group_is_inside_both_trees() {
        for world in 1..=70_u32 {
            let inside = |tree: &Tree, me: Rank| tree.parents.contains(&Some(me));
            let (first, second) = (Tree::first(world), Tree::second(world));
            for me in (0..world).map(Rank) {
                let both = inside(&first, me) && inside(&second, me);
                assert!(!both || (world % 2 == 1 && me == Rank(0)), "{me} of {world}");
            }
        }
    }
}
