//! Groups: the members of one membership, in order of rank.

use std::fmt;
use std::net::SocketAddr;

use antdt_core::{Holder, InvalidValue, MembershipVersion, Rank, Seed};
use serde::{Deserialize, Serialize};

/// 64 bits derived from the job's secret, equal for all processes of one job. Members present them when they
/// connect.
///
/// They keep a stray process of another job out of a group; they are no defence against an attacker on the
/// network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobToken(pub u64);

impl JobToken {
    /// Returns the token of the job with this secret.
    pub fn new(secret: &str) -> Self {
        Self(Seed(0).derive(secret).0)
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(..)")
    }
}

/// One member of a group: an incarnation of a node, and the address of its data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Node and incarnation of the member.
    pub holder: Holder,
    /// Address that the member listens on; unused by transports in memory.
    pub address: SocketAddr,
}

/// The members of one membership version in order of rank, with the rank of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    membership: MembershipVersion,
    members: Vec<Member>,
    me: Rank,
}

impl Group {
    /// Largest number of members of a group. Each member is connected with each other; in a larger group the
    /// connections would outnumber the file descriptors.
    pub const WORLD_MAX: usize = 1024;

    /// Returns a group; the rank of a member is its position in `members`, and `me` is the rank of this
    /// process.
    ///
    /// # Errors
    /// If there is no member, there are too many, one occurs twice, or `me` is not the rank of a member.
    pub fn new(membership: MembershipVersion, members: Vec<Member>, me: Rank) -> Result<Self, InvalidValue> {
        if members.is_empty() || members.len() > Self::WORLD_MAX {
            return Err(InvalidValue::new(
                "group.members",
                members.len(),
                format!("1 to {}", Self::WORLD_MAX),
            ));
        }
        let mut nodes: Vec<_> = members.iter().map(|member| member.holder.node).collect();
        nodes.sort_unstable();
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(InvalidValue::new("group.members", pair[0], "listed once"));
        }
        if me.0 as usize >= members.len() {
            return Err(InvalidValue::new("group.me", me, format!("below {}", members.len())));
        }
        Ok(Self { membership, members, me })
    }

    /// Returns the version of the membership.
    pub const fn membership(&self) -> MembershipVersion {
        self.membership
    }

    /// Returns the members in order of rank.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the rank of this process.
    pub const fn me(&self) -> Rank {
        self.me
    }

    /// Returns the number of members.
    pub const fn world(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns the node and incarnation of the member with this rank.
    ///
    /// # Panics
    /// If `rank` is not below [`world`](Self::world).
    pub fn holder(&self, rank: Rank) -> Holder {
        self.members[rank.0 as usize].holder
    }

    /// Returns the rank of a node's incarnation; `None` if it is not a member.
    pub fn rank_of(&self, holder: Holder) -> Option<Rank> {
        let index = self.members.iter().position(|member| member.holder == holder)?;
        u32::try_from(index).ok().map(Rank)
    }

    /// Returns a number that two groups share only if they have the same members in the same order. Addresses
    /// do not count, because one member may have several.
    pub fn fingerprint(&self) -> u64 {
        let start = Seed(self.membership.0).derive("group");
        self.members
            .iter()
            .fold(start, |seed, Member { holder, .. }| {
                seed.derive(&holder.node.to_string()).derive_number(u64::from(holder.incarnation.0))
            })
            .0
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    fn member(index: u32, incarnation: u32) -> Member {
        Member {
            holder: Holder::new(NodeId::worker(index), Incarnation(incarnation)),
            address: "127.0.0.1:1".parse().unwrap(),
        }
    }

    fn group(members: &[(u32, u32)]) -> Result<Group, InvalidValue> {
        Group::new(MembershipVersion(1), members.iter().map(|m| member(m.0, m.1)).collect(), Rank(0))
    }

    #[test]
    fn impossible_groups_are_refused() {
        assert!(group(&[]).is_err());
        assert!(group(&[(1, 0), (1, 1)]).is_err(), "two lives of one node");
        assert!(Group::new(MembershipVersion(1), vec![member(0, 0)], Rank(1)).is_err());
    }

    #[test]
    fn a_fingerprint_tells_order_and_lives_apart() {
        let prints: Vec<u64> = [&[(0, 0), (1, 0)][..], &[(1, 0), (0, 0)], &[(0, 0), (1, 1)], &[(0, 0)]]
            .iter()
            .map(|members| group(members).unwrap().fingerprint())
            .collect();
        for (i, a) in prints.iter().enumerate() {
            assert!(!prints[i + 1..].contains(a));
        }
    }

    #[test]
    fn ranks_and_holders_map_both_ways() {
        let group = group(&[(3, 0), (1, 2)]).unwrap();
        for rank in [Rank(0), Rank(1)] {
            assert_eq!(group.rank_of(group.holder(rank)), Some(rank));
        }
        assert_eq!(group.rank_of(member(1, 1).holder), None, "an earlier life is not a member");
    }
}
