//! Decision how the members of a new group get a communicator of the GPU library.

use std::collections::BTreeMap;
use std::fmt;

use antdt_core::Rank;

use super::{Last, Statement, Terms};

/// How the members of a new group get a communicator of the GPU library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// The group communicates without the library, because of the member of this rank and for this reason.
    Without(Rank, String),
    /// Every member keeps the communicator of the last group.
    Keep,
    /// The communicator of the last group shrinks: some ranks leave it.
    Shrink {
        /// Ranks of the last group that are not in the new one, ascending.
        excluded: Vec<Rank>,
        /// How the operations in progress are stopped before.
        stop: Stop,
    },
    /// The communicator of the last group grows: new members follow after its ranks.
    Grow,
    /// The communicator of the last group is split into one part with all its members, in the order of the
    /// new group.
    Reorder,
    /// Every member gives up its communicator, if it has one, and all members initialise a new one.
    Renew(Renewal),
}

/// How the operations in progress on a communicator are stopped before it shrinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Not at all: no call failed, so no operation is in progress.
    Not,
    /// By `ncclCommRevoke`.
    Revoke,
    /// By the abort option of `ncclCommShrink`, where the library of a member does not offer
    /// `ncclCommRevoke`.
    Abort,
}

/// Reason why the members initialise a new communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// No member has a communicator.
    First,
    /// The members have communicators of different groups, or some members left while others joined or
    /// changed their order.
    Mixed,
    /// A call failed, and the communicator cannot be repaired by shrinking.
    Failed,
    /// The library of a member does not offer the operation that the change requires.
    Unable,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Without(rank, why) => write!(f, "without the library: rank {rank} {why}"),
            Self::Keep => f.write_str("the communicator is kept"),
            Self::Shrink { excluded, stop } => {
                let first = match stop {
                    Stop::Not => "",
                    Stop::Revoke => "ncclCommRevoke, then ",
                    Stop::Abort => "NCCL_SHRINK_ABORT, ",
                };
                write!(f, "{first}ncclCommShrink: {} members less", excluded.len())
            }
            Self::Grow => f.write_str("ncclCommGrow"),
            Self::Reorder => f.write_str("ncclCommSplit: the same members in another order"),
            Self::Renew(why) => write!(f, "initialised anew: {why}"),
        }
    }
}

impl fmt::Display for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "there was none",
            Self::Mixed => "the members do not follow from those of one group",
            Self::Failed => "a call of the last one failed",
            Self::Unable => "a member's library can neither shrink nor grow one",
        })
    }
}

/// Decides how the members of a group get a communicator of a library with these requirements. `statements`
/// are those of all members in order of rank, so that every member decides the same.
///
/// ```
/// use antdt_gpu::device::{Renewal, Statement, Terms, Way, way};
/// use antdt_core::Rank;
/// let gpu = |id| Statement { gpu: Some(id), version: 23_003, ..Statement::ABSENT };
/// assert_eq!(way(&Terms::NCCL, &[gpu(7), gpu(8)]), Way::Renew(Renewal::First));
/// assert!(matches!(way(&Terms::NCCL, &[gpu(7), Statement::ABSENT]), Way::Without(Rank(1), _)));
/// ```
pub fn way(terms: &Terms, statements: &[Statement]) -> Way {
    if let Some((rank, why)) = absent(terms, statements) {
        return Way::Without(rank, why);
    }
    // What each has, by rank in this group.
    let have: Vec<Option<Last>> = statements.iter().map(|statement| statement.last).collect();
    let Some(first) = have.iter().flatten().next() else { return Way::Renew(Renewal::First) };
    let of_one_group =
        have.iter().flatten().all(|last| (last.group, last.world) == (first.group, first.world));
    let ranks: Vec<u32> = have.iter().flatten().map(|last| last.rank.0).collect();
    // Members keep their order, and those that have none come last.
    let in_order = ranks.is_sorted_by(|a, b| a < b) && have.is_sorted_by_key(Option::is_none);
    let failed = have.iter().flatten().any(|last| last.failed);
    let all = |able: fn(&Statement) -> bool| statements.iter().all(able);
    if of_one_group && !in_order && !failed && all(|one| one.abilities.split) {
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        // Every member of the communicator has to take part, and no other can.
        if sorted.into_iter().eq(0..first.world) && ranks.len() == statements.len() {
            return Way::Reorder;
        }
    }
    if !of_one_group || !in_order {
        return Way::Renew(Renewal::Mixed);
    }
    let (new, gone) = (ranks.len() < statements.len(), ranks.len() < first.world as usize);
    match (new, gone, failed) {
        (false, false, false) => Way::Keep,
        (false, true, failed) if all(|one| one.abilities.shrink) => {
            let excluded = (0..first.world).filter(|rank| !ranks.contains(rank)).map(Rank).collect();
            let stop = match failed {
                false => Stop::Not,
                true if all(|one| one.abilities.revoke) => Stop::Revoke,
                true => Stop::Abort,
            };
            Way::Shrink { excluded, stop }
        }
        (true, false, false) if all(|one| one.abilities.grow) => Way::Grow,
        (true, true, _) => Way::Renew(Renewal::Mixed),
        // All are there again: none to leave out, and a communicator that failed is of no use.
        (_, _, true) => Way::Renew(Renewal::Failed),
        (_, _, false) => Way::Renew(Renewal::Unable),
    }
}

/// The first member because of which a group has to do without.
fn absent(terms: &Terms, statements: &[Statement]) -> Option<(Rank, String)> {
    let library = terms.library;
    let mut gpus = BTreeMap::new();
    for (rank, statement) in (0..).map(Rank).zip(statements) {
        let first = &statements[0];
        let Some(gpu) = statement.gpu else { return Some((rank, format!("has no GPU with {library}"))) };
        if statement.version / 100 != first.version / 100 {
            return Some((rank, format!("has another version of {library} than rank 0")));
        }
        if terms.one_host && statement.host != first.host {
            return Some((rank, format!("is on another host than rank 0, where {library} does not reach")));
        }
        if gpus.insert(gpu, rank).is_some() && !terms.shares_gpus {
            return Some((rank, "shares its GPU with another rank".to_owned()));
        }
        if rank.0 >= terms.world_max {
            return Some((
                rank,
                format!("is one more than the {} members that {library} takes", terms.world_max),
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Abilities;
    use super::*;

    const ALL: Abilities = Abilities { shrink: true, grow: true, revoke: true, split: true };

    // Members by their rank in a group of four, `None` for a new one.
    fn statements(members: &[Option<u32>], abilities: Abilities, failed: bool) -> Vec<Statement> {
        let of = |(at, rank): (u128, &Option<u32>)| Statement {
            gpu: Some(at),
            host: 1,
            version: 23_003,
            abilities,
            last: rank.map(|rank| Last { group: 9, world: 4, rank: Rank(rank), failed }),
        };
        (0..).zip(members).map(of).collect()
    }

    fn decided(members: &[Option<u32>], abilities: Abilities, failed: bool) -> Way {
        way(&Terms::NCCL, &statements(members, abilities, failed))
    }

    #[test]
    fn a_group_that_follows_from_the_last_one_keeps_shrinks_or_grows_its_communicator() {
        let (zero, one, two, three) = (Some(0), Some(1), Some(2), Some(3));
        let all = [zero, one, two, three];
        let shrink = |excluded: &[u32], stop| Way::Shrink {
            excluded: excluded.iter().copied().map(Rank).collect(),
            stop,
        };
        let table: [(&[Option<u32>], bool, Way); 13] = [
            (&all, false, Way::Keep),
            (&all, true, Way::Renew(Renewal::Failed)),
            (&[zero, two, three], false, shrink(&[1], Stop::Not)),
            (&[one, three], true, shrink(&[0, 2], Stop::Revoke)),
            (&[zero, one, two, three, None], false, Way::Grow),
            (&[zero, one, two, three, None], true, Way::Renew(Renewal::Failed)),
            (&[None, zero, one, two, three], false, Way::Renew(Renewal::Mixed)),
            (&[zero, one, two, None], false, Way::Renew(Renewal::Mixed)),
            (&[one, zero, two, three], false, Way::Reorder),
            (&[one, zero, two, three], true, Way::Renew(Renewal::Mixed)),
            (&[one, zero, three], false, Way::Renew(Renewal::Mixed)),
            (&[one, zero, two, three, None], false, Way::Renew(Renewal::Mixed)),
            (&[None, None], false, Way::Renew(Renewal::First)),
        ];
        for (members, failed, expected) in table {
            assert_eq!(decided(members, ALL, failed), expected, "{members:?}, failed {failed}");
        }
    }

    #[test]
    fn an_operation_that_one_library_lacks_is_not_done() {
        let three = [Some(0), Some(1), Some(3)];
        let five = [Some(0), Some(1), Some(2), Some(3), None];
        let no = |lacking: fn(&mut Abilities)| {
            let mut abilities = ALL;
            lacking(&mut abilities);
            abilities
        };
        let unable = Way::Renew(Renewal::Unable);
        let turned = [Some(3), Some(0), Some(1), Some(2)];
        assert_eq!(decided(&turned, no(|able| able.split = false), false), Way::Renew(Renewal::Mixed));
        assert_eq!(decided(&three, no(|able| able.shrink = false), false), unable);
        assert_eq!(decided(&five, no(|able| able.grow = false), false), unable);
        let without_revoke = no(|able| able.revoke = false);
        assert!(matches!(decided(&three, without_revoke, true), Way::Shrink { stop: Stop::Abort, .. }));
        assert!(matches!(decided(&three, without_revoke, false), Way::Shrink { stop: Stop::Not, .. }));
        assert_eq!(decided(&three, no(|able| able.shrink = false), true), Way::Renew(Renewal::Failed));
        // One is enough.
        let mut one = statements(&three, ALL, false);
        one[1].abilities.shrink = false;
        assert_eq!(way(&Terms::NCCL, &one), unable);
    }

    #[test]
    fn communicators_of_different_groups_are_not_joined() {
        let mut two = statements(&[Some(0), Some(1)], ALL, false);
        two[1].last = two[1].last.map(|last| Last { group: 10, ..last });
        assert_eq!(way(&Terms::NCCL, &two), Way::Renew(Renewal::Mixed));
        // Two that both say they were the same rank.
        let twice = statements(&[Some(0), Some(1), Some(1), Some(3)], ALL, false);
        assert_eq!(way(&Terms::NCCL, &twice), Way::Renew(Renewal::Mixed));
    }

    #[test]
    fn a_member_that_cannot_take_part_is_named() {
        let mut three = statements(&[None, None, None], ALL, false);
        three[2].gpu = three[0].gpu;
        let without = |terms: &Terms, three: &[Statement]| match way(terms, three) {
            Way::Without(rank, why) => Some((rank.0, why)),
            _ => None,
        };
        let said = |rank, why: &str| Some((rank, why.to_owned()));
        let (nccl, ipc) = (&Terms::NCCL, &Terms::CUDA_IPC);
        assert_eq!(without(nccl, &three), said(2, "shares its GPU with another rank"));
        assert_eq!(without(ipc, &three), None, "several on one GPU are what it is for");
        three[1].host = 2;
        let elsewhere = "is on another host than rank 0, where CUDA IPC does not reach";
        assert_eq!(without(ipc, &three), said(1, elsewhere));
        three[2].gpu = Some(9);
        assert_eq!(without(nccl, &three), None);
        three[1].version = 22_900;
        assert_eq!(without(nccl, &three), said(1, "has another version of NCCL than rank 0"));
        three[0].gpu = None;
        assert_eq!(without(ipc, &three), said(0, "has no GPU with CUDA IPC"));
        let many = vec![Statement { gpu: Some(1), ..Statement::ABSENT }; 65];
        assert_eq!(without(ipc, &many[..64]), None);
        assert_eq!(without(ipc, &many), said(64, "is one more than the 64 members that CUDA IPC takes"));
    }

    proptest! {
        // Whatever is said: a communicator goes on only among members of one group in its order, with none in it that
        // does not come along, but those it is told to leave out.
        #[test]
        fn a_communicator_goes_on_only_with_its_own_members(
            said in proptest::collection::vec(
                (proptest::option::of((0_u64..2, 0_u32..4, any::<bool>())), any::<[bool; 4]>()),
                1..6,
            ),
        ) {
            let statements: Vec<Statement> = (0..).zip(&said).map(|(at, (last, [shrink, grow, revoke, split]))| Statement {
                gpu: Some(at),
                host: 1,
                version: 23_003,
                abilities: Abilities { shrink: *shrink, grow: *grow, revoke: *revoke, split: *split },
                last: last.map(|(group, rank, failed)| Last { group, world: 4, rank: Rank(rank), failed }),
            }).collect();
            let lasts: Vec<Last> = statements.iter().filter_map(|statement| statement.last).collect();
            let kept = match way(&Terms::NCCL, &statements) {
                Way::Keep => 4,
                Way::Shrink { excluded, stop } => {
                    prop_assert!(!excluded.is_empty() && statements.iter().all(|one| one.abilities.shrink));
                    prop_assert!(stop != Stop::Revoke || statements.iter().all(|one| one.abilities.revoke));
                    prop_assert_eq!(stop == Stop::Not, lasts.iter().all(|last| !last.failed));
                    prop_assert!(lasts.iter().all(|last| !excluded.contains(&last.rank)));
                    prop_assert_eq!(lasts.len(), statements.len());
                    4 - excluded.len()
                }
                Way::Grow => {
                    prop_assert!(statements.iter().all(|one| one.abilities.grow));
                    prop_assert!(lasts.len() < statements.len() && lasts.iter().all(|last| !last.failed));
                    4
                }
                Way::Reorder => {
                    prop_assert!(statements.iter().all(|one| one.abilities.split));
                    let ranks: std::collections::BTreeSet<Rank> = lasts.iter().map(|last| last.rank).collect();
                    prop_assert_eq!((statements.len(), ranks.len()), (4, 4));
                    prop_assert!(lasts.iter().all(|last| !last.failed && last.group == lasts[0].group));
                    return Ok(());
                }
                Way::Renew(why) => {
                    prop_assert_eq!(why == Renewal::First, lasts.is_empty());
                    return Ok(());
                }
                Way::Without(..) => return Err(TestCaseError::fail("all have a GPU")),
            };
            prop_assert_eq!(lasts.len(), kept);
            prop_assert!(lasts.windows(2).all(|pair| pair[0].group == pair[1].group && pair[0].rank < pair[1].rank));
        }
    }
}
