//! Communicators of the groups of a partial all-reduce: a bounded number for each member, kept and given up by one decision.
//!
//! A communicator of a library takes seconds to make and hundreds of MB, and 16 workers have 560 groups of three: not every
//! group can have one. [`Pool`] belongs to whoever forms the groups. With each group it says to all of its members whether they
//! reuse a communicator, make one, or do without, by messages over the communicator of all; and which ones each of them gives up
//! first. Members never decide that themselves: where one keeps what another gives up, both wait for each other forever.
//! [`HeldComms`] is a member's side, and refuses what it cannot do.
//!
//! A communicator is given up when a member of its group has too many, the one that it used longest ago. Its other members
//! learn of it with their next group, and it counts for them until then.
//!
//! What this does not decide: which group runs when. A member is in one group at a time.
//!
//! Source: our design; Ripples (recalled) caches a communicator only if no member's cache is full, and agrees on that by an
//! all-reduce for each group.

use std::collections::{BTreeMap, BTreeSet};

/// Name of a communicator in a [`Pool`]; no two communicators ever have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommKey(pub u64);

/// How the members of a group get a communicator of the GPU library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// All members reuse the communicator of this name, which they have.
    Reuse(CommKey),
    /// All members make a communicator together, and keep it under this name.
    Make(CommKey),
    /// The members communicate without a communicator of the library.
    Without,
}

/// Instruction to the members of a group: how they get a communicator, and which ones they give up first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommOrder {
    /// How the members get a communicator.
    pub how: Use,
    /// For each member that must give communicators up before, their names.
    pub give_up: BTreeMap<u32, Vec<CommKey>>,
}

#[derive(Debug, Clone, Default)]
struct Member {
    // Oldest use first.
    kept: Vec<CommKey>,
    // Given up by others; this member is told with its next group.
    untold: Vec<CommKey>,
}

/// The communicators that the members of partial all-reduces have. The process that forms the groups owns it,
/// and decides which are kept.
#[derive(Debug, Clone)]
pub struct Pool {
    capacity: usize,
    worth: u32,
    next: u64,
    by_members: BTreeMap<Vec<u32>, CommKey>,
    members_of: BTreeMap<CommKey, Vec<u32>>,
    members: BTreeMap<u32, Member>,
    // How often a group without a communicator was formed; bounded.
    formed: BTreeMap<Vec<u32>, u32>,
}

/// Groups of which it is remembered how often they were formed. Beyond, all are forgotten.
const FORMED_MAX: usize = 4096;

impl Pool {
    /// Returns a pool without communicators. No member ever has more than `capacity` of them; a group gets
    /// one when it is formed for the `worth`th time.
    pub const fn new(capacity: usize, worth: u32) -> Self {
        Self {
            capacity,
            worth,
            next: 0,
            by_members: BTreeMap::new(),
            members_of: BTreeMap::new(),
            members: BTreeMap::new(),
            formed: BTreeMap::new(),
        }
    }

    /// Decides how the members of a group get a communicator. `group` lists the members in order of rank; the
    /// same members in another order are another group. The caller must send every order to its members, in
    /// the order of the calls.
    ///
    /// ```
    /// use antdt_collective::device::{Pool, Use};
    /// let mut pool = Pool::new(1, 1);
    /// let Use::Make(first) = pool.order(&[0, 1]).how else { panic!() };
    /// assert_eq!(pool.order(&[0, 1]).how, Use::Reuse(first));
    /// let next = pool.order(&[1, 2]);
    /// assert_eq!(next.give_up[&1], [first]);
    /// assert_eq!(pool.order(&[0, 3]).give_up[&0], [first]);
    /// ```
    pub fn order(&mut self, group: &[u32]) -> CommOrder {
        let how = match self.by_members.get(group).copied() {
            Some(key) => Use::Reuse(key),
            None if self.is_worth(group) => Use::Make(self.make(group)),
            None => Use::Without,
        };
        if let Use::Reuse(key) | Use::Make(key) = how {
            for member in group {
                let kept = &mut self.members.entry(*member).or_default().kept;
                kept.retain(|other| *other != key);
                kept.push(key);
            }
        }
        let told = |member: &u32| {
            let untold = self.members.get_mut(member).map(|member| std::mem::take(&mut member.untold));
            untold.filter(|untold| !untold.is_empty()).map(|untold| (*member, untold))
        };
        CommOrder { how, give_up: group.iter().filter_map(told).collect() }
    }

    /// Forgets a member that has left or died; the other members give up the communicators that they share
    /// with it.
    pub fn leave(&mut self, member: u32) {
        for key in self.members.remove(&member).unwrap_or_default().kept {
            self.give_up(key);
        }
        self.formed.retain(|group, _| !group.contains(&member));
    }

    /// Returns the number of communicators that a member has, counting those that it has not yet been told to
    /// give up.
    pub fn held_by(&self, member: u32) -> usize {
        self.members.get(&member).map_or(0, |member| member.kept.len() + member.untold.len())
    }

    fn is_worth(&mut self, group: &[u32]) -> bool {
        let distinct: BTreeSet<&u32> = group.iter().collect();
        if self.capacity == 0 || group.len() < 2 || distinct.len() < group.len() {
            return false;
        }
        if self.formed.len() >= FORMED_MAX {
            self.formed.clear();
        }
        let formed = self.formed.entry(group.to_vec()).or_default();
        *formed += 1;
        let worth = *formed >= self.worth;
        if worth {
            self.formed.remove(group);
        }
        worth
    }

    fn make(&mut self, group: &[u32]) -> CommKey {
        for member in group {
            while let Some(member) = self.members.get(member)
                && member.kept.len() >= self.capacity
            {
                self.give_up(member.kept[0]);
            }
        }
        let key = CommKey(self.next);
        self.next += 1;
        self.by_members.insert(group.to_vec(), key);
        self.members_of.insert(key, group.to_vec());
        key
    }

    fn give_up(&mut self, key: CommKey) {
        let members = self.members_of.remove(&key).unwrap_or_default();
        self.by_members.remove(&members);
        for member in members {
            if let Some(member) = self.members.get_mut(&member) {
                member.kept.retain(|other| *other != key);
                member.untold.push(key);
            }
        }
    }
}

/// Reason why a member refuses an order of the [`Pool`]: the other members could not do the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeldError {
    /// The member has no communicator of this name.
    #[error("communicator {} is not here; leave the job, and join again", .0.0)]
    Unknown(CommKey),
    /// The member has a communicator of this name already.
    #[error("communicator {} is here already; leave the job, and join again", .0.0)]
    Known(CommKey),
    /// The communicator of this name has other members than the group.
    #[error("communicator {} belongs to {of:?}, not to {wanted:?}; leave the job, and join again", .key.0)]
    OfOthers {
        /// Name of the communicator.
        key: CommKey,
        /// Members of the communicator, in order of rank.
        of: Vec<u32>,
        /// Members of the group, in order of rank.
        wanted: Vec<u32>,
    },
}

/// The communicators that a member has, by their names; the member's side of a [`Pool`].
#[derive(Debug, Clone)]
pub struct HeldComms<C> {
    comms: BTreeMap<CommKey, (Vec<u32>, C)>,
}

impl<C> Default for HeldComms<C> {
    fn default() -> Self {
        Self { comms: BTreeMap::new() }
    }
}

impl<C> HeldComms<C> {
    /// Removes the communicators of these names and returns them. The caller drops all of them before it
    /// makes another one.
    ///
    /// # Errors
    /// If the member has no communicator of one of the names.
    pub fn give_up(&mut self, keys: &[CommKey]) -> Result<Vec<C>, HeldError> {
        keys.iter()
            .map(|key| self.comms.remove(key).map(|(_, comm)| comm).ok_or(HeldError::Unknown(*key)))
            .collect()
    }

    /// Adds a communicator `comm` that the members of `group` have just made.
    ///
    /// # Errors
    /// If the member has a communicator of this name already.
    pub fn keep(&mut self, key: CommKey, group: &[u32], comm: C) -> Result<(), HeldError> {
        if self.comms.contains_key(&key) {
            return Err(HeldError::Known(key));
        }
        self.comms.insert(key, (group.to_vec(), comm));
        Ok(())
    }

    /// Returns the communicator of this name for a call of `group`.
    ///
    /// # Errors
    /// If the member has no communicator of this name, or it has other members than `group`.
    pub fn reuse(&mut self, key: CommKey, group: &[u32]) -> Result<&mut C, HeldError> {
        let (members, comm) = self.comms.get_mut(&key).ok_or(HeldError::Unknown(key))?;
        if members != group {
            return Err(HeldError::OfOthers { key, of: members.clone(), wanted: group.to_vec() });
        }
        Ok(comm)
    }

    /// Returns the number of communicators.
    pub fn len(&self) -> usize {
        self.comms.len()
    }

    /// Returns whether there is no communicator.
    pub fn is_empty(&self) -> bool {
        self.comms.is_empty()
    }
}

/// Divides groups into rounds so that no member is in two groups of one round. Each round is one split of the
/// communicator of all `world` ranks (`ncclCommSplit`, which all of them call). Returns, for each round and
/// rank, the index of the rank's group, or `None` if the rank takes part in the split without a group. Ranks
/// of `world` or above are ignored.
///
/// ```
/// use antdt_collective::device::splits;
/// let rounds = splits(3, &[vec![0, 1], vec![1, 2]]);
/// assert_eq!(rounds, [[Some(0), Some(0), None], [None, Some(1), Some(1)]]);
/// ```
pub fn splits(world: u32, groups: &[Vec<u32>]) -> Vec<Vec<Option<usize>>> {
    let mut rounds: Vec<Vec<Option<usize>>> = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let group: BTreeSet<usize> =
            group.iter().filter(|rank| **rank < world).map(|rank| *rank as usize).collect();
        let is_free = |round: &Vec<Option<usize>>| group.iter().all(|rank| round[*rank].is_none());
        let at = rounds.iter().position(is_free).unwrap_or_else(|| {
            rounds.push(vec![None; world as usize]);
            rounds.len() - 1
        });
        for rank in group {
            rounds[at][rank] = Some(index);
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_gets_a_communicator_when_it_was_formed_often_enough() {
        let mut pool = Pool::new(2, 3);
        let hows: Vec<Use> = (0..4).map(|_| pool.order(&[0, 1]).how).collect();
        assert_eq!(hows, [Use::Without, Use::Without, Use::Make(CommKey(0)), Use::Reuse(CommKey(0))]);
        assert_eq!(pool.order(&[1, 0]).how, Use::Without, "in another order it is another group");
        for odd in [&[0][..], &[2, 2], &[]] {
            assert!((0..9).all(|_| pool.order(odd).how == Use::Without), "{odd:?}");
        }
        assert!((0..9).all(|_| Pool::new(0, 1).order(&[0, 1]).how == Use::Without));
    }

    #[test]
    fn the_one_that_was_used_longest_ago_goes_on_all_members() {
        let mut pool = Pool::new(2, 1);
        for group in [[0, 1], [0, 2], [0, 1], [0, 3]] {
            pool.order(&group);
        }
        // Of 0 and 2, although 0 and 1 made theirs before.
        assert_eq!(pool.order(&[2, 3]).give_up, BTreeMap::from([(2, vec![CommKey(1)])]));
        pool.leave(3);
        assert_eq!(pool.order(&[0, 1]).give_up, BTreeMap::from([(0, vec![CommKey(2)])]));
        assert_eq!(pool.held_by(3), 0);
    }

    #[test]
    fn a_member_refuses_what_cannot_be_what_the_others_do() {
        let mut held = HeldComms::default();
        held.keep(CommKey(1), &[0, 2], 'c').unwrap();
        assert_eq!(held.keep(CommKey(1), &[0, 2], 'd'), Err(HeldError::Known(CommKey(1))));
        assert_eq!(held.reuse(CommKey(1), &[0, 2]), Ok(&mut 'c'));
        let error = held.reuse(CommKey(1), &[2, 0]).unwrap_err().to_string();
        assert_eq!(error, "communicator 1 belongs to [0, 2], not to [2, 0]; leave the job, and join again");
        assert_eq!(held.give_up(&[CommKey(1)]), Ok(vec!['c']));
        assert_eq!(held.give_up(&[CommKey(1)]), Err(HeldError::Unknown(CommKey(1))));
        assert!(held.is_empty());
    }

    proptest! {
        // A stand-in of each member holds what it is told to: whatever groups are formed and whoever leaves, none has more
        // than it may, and all members of a group come to the same communicator.
        #[test]
        fn members_that_do_as_they_are_told_never_differ(
            capacity in 1_usize..4,
            worth in 1_u32..3,
            steps in proptest::collection::vec(
                (proptest::sample::subsequence((0_u32..6).collect::<Vec<_>>(), 2..=4), 0_u32..20),
                1..80,
            ),
        ) {
            let mut pool = Pool::new(capacity, worth);
            let mut members: BTreeMap<u32, HeldComms<Vec<u32>>> = (0..6).map(|member| (member, HeldComms::default())).collect();
            for (group, leaves) in steps {
                if leaves < 6 {
                    // It comes again with nothing.
                    pool.leave(leaves);
                    members.insert(leaves, HeldComms::default());
                }
                let CommOrder { how, give_up } = pool.order(&group);
                prop_assert!(give_up.keys().all(|member| group.contains(member)));
                for member in &group {
                    let held = members.get_mut(member).unwrap();
                    held.give_up(give_up.get(member).map_or(&[], Vec::as_slice)).unwrap();
                    match how {
                        Use::Make(key) => held.keep(key, &group, group.clone()).unwrap(),
                        Use::Reuse(key) => prop_assert_eq!(&*held.reuse(key, &group).unwrap(), &group),
                        Use::Without => {}
                    }
                }
                for (member, held) in &members {
                    prop_assert!(held.len() <= capacity, "member {} has {}", member, held.len());
                    prop_assert_eq!(held.len(), pool.held_by(*member));
                }
            }
        }

        #[test]
        fn every_group_is_in_one_round_and_no_rank_in_two_groups_of_it(
            groups in proptest::collection::vec(
                proptest::sample::subsequence((0_u32..7).collect::<Vec<_>>(), 1..=4),
                0..20,
            ),
        ) {
            let rounds = splits(7, &groups);
            let mut seen = BTreeMap::new();
            for round in &rounds {
                for index in round.iter().flatten().collect::<BTreeSet<_>>() {
                    let ranks: Vec<u32> = (0..7).filter(|rank| round[*rank as usize] == Some(*index)).collect();
                    prop_assert_eq!(&ranks, &groups[*index]);
                    prop_assert!(seen.insert(*index, ()).is_none());
                }
            }
            prop_assert_eq!(seen.len(), groups.len());
            // A group waits for a round at most as long as others share its ranks.
            let shared = |group: &Vec<u32>| {
                groups.iter().filter(|other| other.iter().any(|rank| group.contains(rank))).count()
            };
            prop_assert!(rounds.len() <= groups.iter().map(shared).max().unwrap_or(0));
        }
    }
}
