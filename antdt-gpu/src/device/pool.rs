//! Communicators of the groups of a partial all-reduce: a bounded number in each process, used, made and given up by one
//! decision of all members of a group.
//!
//! A communicator of a library takes seconds to make and hundreds of MB, and 16 workers have 560 groups of three: not every
//! group can have one. Whenever a group meets, each member [claims](Claim) what it has kept for these members and whether they
//! have met often enough for one, over the group below. From the claims of all of them every member [decides](sharing) the same:
//! they use the communicator that all have, make one because they meet often, or do without. So a member may give one up
//! whenever it needs the room, alone: the others learn of it before they use theirs, and give it up as well.
//!
//! Rejected: a directory at the process that forms the groups, which says what is kept and given up with each group. It would
//! have to follow every group that broke half made, on all sides; the members are in touch anyway before they use a
//! communicator. A decision of each member by what it has itself: where one waits for a call of the library, and another one
//! makes a communicator, both wait for each other.
//!
//! Source: our design; Ripples (recalled) caches a communicator only if no member's cache is full, agrees on that by an
//! all-reduce for each group, and gives none up.

use std::collections::BTreeMap;

use antdt_collective::group::Group;
use antdt_core::Holder;

/// Communicators that a process keeps for groups of a few, by default. One of NCCL's holds some hundreds of MB of the GPU
/// (reported, not measured), so that these take a few GB.
pub const HELD_MAX: usize = 8;

/// How often a group meets before it has a communicator, by default: one that was formed at random may never meet again.
pub const WORTH: u32 = 2;

/// Groups of which it is remembered how often they met. Beyond, all are forgotten.
const MET_MAX: usize = 4096;

/// What a member of a group says of itself: the communicator that it has of these members, and whether it would make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Name of the communicator: the version of the group that made it.
    pub has: Option<u64>,
    /// Whether the group has met often enough for a communicator, as far as the member remembers.
    pub is_due: bool,
}

impl Claim {
    /// Length of an encoded claim, in bytes.
    pub const LEN: usize = 9;

    /// Encodes the claim for the wire, little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.has.unwrap_or(0).to_le_bytes());
        bytes[8] = u8::from(self.has.is_some()) | u8::from(self.is_due) << 1;
        bytes
    }

    /// Decodes a claim; `None` if the bytes are not an [encoded](Self::encode) one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (name, flags) = bytes.split_first_chunk()?;
        let &[flags @ 0..=3] = flags else { return None };
        Some(Self { has: (flags & 1 == 1).then_some(u64::from_le_bytes(*name)), is_due: flags & 2 == 2 })
    }
}

/// How the members of a group of a few get a communicator of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All members use the communicator of this name, which they have.
    Use(u64),
    /// All members make a communicator together. A member with another one of this group gives it up before.
    Make,
    /// The group communicates without the library. A member with a communicator of this group gives it up.
    Without,
}

/// Decides how the members of a group get a communicator. `claims` are those of all members, so that all decide the same.
///
/// ```
/// use antdt_gpu::device::{Claim, Sharing, sharing};
/// let (has, lost) = (Claim { has: Some(7), is_due: true }, Claim { has: None, is_due: false });
/// assert_eq!(sharing(&[has, has]), Sharing::Use(7));
/// assert_eq!(sharing(&[has, lost]), Sharing::Without);
/// assert_eq!(sharing(&[has, Claim { is_due: true, ..lost }]), Sharing::Make);
/// ```
pub fn sharing(claims: &[Claim]) -> Sharing {
    let first = claims.first().and_then(|claim| claim.has);
    match first {
        Some(name) if claims.iter().all(|claim| claim.has == first) => Sharing::Use(name),
        _ if claims.iter().all(|claim| claim.is_due) => Sharing::Make,
        _ => Sharing::Without,
    }
}

/// How often a group met since it was to have a communicator last.
#[derive(Debug, Clone, Copy)]
struct Meetings {
    count: u32,
    // The count from which on it is to have one.
    due: u32,
}

/// A communicator that is kept.
#[derive(Debug, Clone)]
struct Held<C> {
    name: u64,
    comm: C,
    // When it was kept, in calls.
    at: u64,
}

/// The communicators that a process keeps for groups of a few.
#[derive(Debug, Clone)]
pub struct HeldComms<C> {
    capacity: usize,
    worth: u32,
    comms: BTreeMap<Vec<Holder>, Held<C>>,
    met: BTreeMap<Vec<Holder>, Meetings>,
    calls: u64,
}

impl<C> Default for HeldComms<C> {
    fn default() -> Self {
        Self::new(HELD_MAX, WORTH)
    }
}

impl<C> HeldComms<C> {
    /// Returns a pool that keeps at most `capacity` communicators, and one at least, of groups that have met `worth` times.
    pub const fn new(capacity: usize, worth: u32) -> Self {
        Self { capacity, worth, comms: BTreeMap::new(), met: BTreeMap::new(), calls: 0 }
    }

    /// Takes the communicator of a group that meets out of the pool, if there is one, and returns it with what
    /// this member claims.
    pub fn take(&mut self, group: &Group) -> (Claim, Option<C>) {
        let members = members(group);
        if self.met.len() >= MET_MAX && !self.met.contains_key(&members) {
            self.met.clear();
        }
        let held = self.comms.remove(&members);
        let met = self.met.entry(members).or_insert(Meetings { count: 0, due: self.worth });
        met.count = met.count.saturating_add(1);
        // That the meetings were forgotten meanwhile is no reason to do without.
        let is_due = held.is_some() || met.count >= met.due;
        let claim = Claim { has: held.as_ref().map(|held| held.name), is_due };
        (claim, held.map(|held| held.comm))
    }

    /// Notes that the members of a group could not make a communicator. The next time that they try is after twice as
    /// many meetings: each try takes its time.
    pub fn failed(&mut self, group: &Group) {
        let worth = self.worth;
        let met = self.met.entry(members(group)).or_insert(Meetings { count: 0, due: worth });
        *met = Meetings { count: 0, due: met.due.saturating_mul(2) };
    }

    /// Makes room for one more communicator: takes those out that were used longest ago, for the caller to drop
    /// before it makes or keeps another one.
    pub fn make_room(&mut self) -> Vec<C> {
        let mut out = Vec::new();
        while self.comms.len() >= self.capacity.max(1) {
            let oldest =
                self.comms.iter().min_by_key(|(_, held)| held.at).map(|(members, _)| members.clone());
            let Some(members) = oldest else { break };
            // To have one again it has to meet as often as any other group.
            self.met.remove(&members);
            out.extend(self.comms.remove(&members).map(|held| held.comm));
        }
        out
    }

    /// Keeps a communicator that `group` has used without a failure, under the name that it was made with.
    /// Returns those that lose their place.
    pub fn keep(&mut self, group: &Group, name: u64, comm: C) -> Vec<C> {
        let out = self.make_room();
        self.calls += 1;
        self.comms.insert(members(group), Held { name, comm, at: self.calls });
        out
    }

    /// Removes and returns the communicators with a member that has left: `group` is the newest group of all workers.
    pub fn drop_strangers(&mut self, group: &Group) -> Vec<C> {
        let all = members(group);
        let is_known = |of: &Vec<Holder>| of.iter().all(|member| all.contains(member));
        self.met.retain(|of, _| is_known(of));
        self.comms.extract_if(.., |of, _| !is_known(of)).map(|(_, held)| held.comm).collect()
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

// In order of rank: the same members in another order are another group.
fn members(group: &Group) -> Vec<Holder> {
    group.members().iter().map(|member| member.holder).collect()
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, MembershipVersion, NodeId, Rank};
    use proptest::prelude::*;

    use super::*;
    use antdt_collective::group::Member;

    fn group(version: u64, members: &[(u32, u32)]) -> Group {
        let member = |(index, life): &(u32, u32)| Member {
            holder: Holder::new(NodeId::worker(*index), Incarnation(*life)),
            address: "127.0.0.1:1".parse().unwrap(),
        };
        Group::new(MembershipVersion(version), members.iter().map(member).collect(), Rank(0)).unwrap()
    }

    fn few(members: &[u32]) -> Group {
        let first_lives: Vec<(u32, u32)> = members.iter().map(|member| (*member, 0)).collect();
        group(1, &first_lives)
    }

    #[test]
    fn a_group_has_a_communicator_from_the_time_on_that_it_was_to_meet_for_it() {
        let mut held = HeldComms::<char>::new(2, 3);
        let dues: Vec<bool> = (0..3).map(|_| held.take(&few(&[0, 1])).0.is_due).collect();
        assert_eq!(dues, [false, false, true]);
        assert!(held.keep(&few(&[0, 1]), 9, 'c').is_empty());
        let new = Claim { has: None, is_due: false };
        assert_eq!(held.take(&few(&[1, 0])).0, new, "another order");
        assert_eq!(held.take(&group(1, &[(0, 0), (1, 1)])).0, new, "another life");
        assert_eq!(held.take(&few(&[0, 1])), (Claim { has: Some(9), is_due: true }, Some('c')));
    }

    #[test]
    fn members_that_could_make_none_try_again_after_twice_as_many_meetings() {
        let mut held = HeldComms::<char>::new(2, 2);
        let mut tries = Vec::new();
        for meeting in 1..=20 {
            if held.take(&few(&[0, 1])).0.is_due {
                tries.push(meeting);
                held.failed(&few(&[0, 1]));
            }
        }
        assert_eq!(tries, [2, 2 + 4, 2 + 4 + 8]);
    }

    #[test]
    fn members_that_have_different_communicators_use_none_of_them() {
        for is_due in [false, true] {
            let claims =
                |has: &[Option<u64>]| has.iter().map(|has| Claim { has: *has, is_due }).collect::<Vec<_>>();
            let made = if is_due { Sharing::Make } else { Sharing::Without };
            for has in [[Some(1), Some(2)], [Some(1), None], [None, Some(1)], [None, None]] {
                assert_eq!(sharing(&claims(&has)), made, "{has:?}");
            }
            assert_eq!(sharing(&claims(&[Some(1); 3])), Sharing::Use(1));
        }
    }

    #[test]
    fn the_communicator_that_was_used_longest_ago_goes_and_its_group_begins_anew() {
        let mut held = HeldComms::new(2, 2);
        for (name, other) in [(1, 1), (2, 2)] {
            held.take(&few(&[0, other]));
            held.keep(&few(&[0, other]), name, name);
        }
        let (_, comm) = held.take(&few(&[0, 1]));
        held.keep(&few(&[0, 1]), 1, comm.unwrap());
        assert_eq!(held.keep(&few(&[0, 3]), 3, 3), [2]);
        assert_eq!(held.take(&few(&[0, 2])).0, Claim { has: None, is_due: false });
        assert_eq!(held.drop_strangers(&few(&[0, 2, 3])), [1], "worker 1 is gone");
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn a_claim_comes_back_as_it_was_said_and_other_bytes_are_refused() {
        for has in [None, Some(0), Some(u64::MAX - 7)] {
            for is_due in [false, true] {
                let claim = Claim { has, is_due };
                assert_eq!(Claim::decode(&claim.encode()), Some(claim));
            }
        }
        for odd in [&[0; 8][..], &[0; 10], &[0, 0, 0, 0, 0, 0, 0, 0, 4]] {
            assert_eq!(Claim::decode(odd), None);
        }
    }

    proptest! {
        // A stand-in for a communicator is the number of the group that made it. Whatever groups meet, fail on some of their members
        // or on all, and on any that is replaced: no process keeps more than it may, and members that use a communicator have one.
        #[test]
        fn members_of_a_group_always_use_the_same_communicator_or_none(
            capacities in prop::collection::vec(1_usize..4, 6),
            worth in 1_u32..3,
            steps in prop::collection::vec(
                (prop::sample::subsequence((0_u32..6).collect::<Vec<_>>(), 2..=4), any::<u8>(), 0_u32..20),
                1..80,
            ),
        ) {
            let mut pools: Vec<HeldComms<u64>> =
                capacities.iter().map(|capacity| HeldComms::new(*capacity, worth)).collect();
            let mut lives = [0_u32; 6];
            for (version, (members, failed, replaced)) in (1_u64..).zip(steps) {
                if let Some(life) = lives.get_mut(replaced as usize) {
                    *life += 1;
                    pools[replaced as usize] = HeldComms::new(capacities[replaced as usize], worth);
                    let all: Vec<(u32, u32)> = (0..).zip(lives).collect();
                    pools.iter_mut().for_each(|pool| drop(pool.drop_strangers(&group(version, &all))));
                }
                let of: Vec<(u32, u32)> = members.iter().map(|member| (*member, lives[*member as usize])).collect();
                let group = group(version, &of);
                let taken: Vec<(Claim, Option<u64>)> =
                    members.iter().map(|member| pools[*member as usize].take(&group)).collect();
                let claims: Vec<Claim> = taken.iter().map(|(claim, _)| *claim).collect();
                let decided = sharing(&claims);
                let (name, comm) = match decided {
                    Sharing::Use(name) => {
                        prop_assert!(taken.iter().all(|(_, comm)| *comm == Some(name)), "{taken:?}");
                        (name, name)
                    }
                    Sharing::Make => (version, version),
                    Sharing::Without => continue,
                };
                for (at, member) in members.iter().enumerate() {
                    let pool = &mut pools[*member as usize];
                    if decided == Sharing::Make {
                        pool.make_room();
                        prop_assert!(pool.len() < capacities[*member as usize]);
                    }
                    // Where the call has failed the communicator is given up.
                    if failed >> at & 1 == 0 || failed > 200 {
                        pool.keep(&group, name, comm);
                    }
                    prop_assert!(pool.len() <= capacities[*member as usize]);
                }
            }
        }
    }
}
