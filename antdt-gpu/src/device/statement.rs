//! What a member tells the others about its GPU and library when a group meets.

use std::fmt;

use antdt_core::Rank;

/// The operations on communicators that a member's library offers; all members need an operation for the
/// group to use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// `ncclCommShrink`: makes a communicator without some of its members.
    pub shrink: bool,
    /// `ncclCommGrow`: makes a communicator with additional members.
    pub grow: bool,
    /// `ncclCommRevoke`: stops the operations in progress, so that a communicator whose call failed can
    /// shrink.
    pub revoke: bool,
    /// `ncclCommSplit`: divides a communicator into parts, whose members may have another order.
    pub split: bool,
}

/// A communicator that a member still has from its last group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// Fingerprint of the last group.
    pub group: u64,
    /// Number of members of the last group.
    pub world: u32,
    /// Rank of this member in the last group.
    pub rank: Rank,
    /// Whether a call of the last group failed.
    pub failed: bool,
}

/// Message in which a member describes its GPU, its library and its communicator to the other members when a
/// group meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// UUID of the member's GPU; `None` if the member has no GPU or no library.
    pub gpu: Option<u128>,
    /// Identity of the member's host, different for every host.
    pub host: u64,
    /// Version of the member's library, such as 23003.
    pub version: u32,
    /// Operations that the member's library offers.
    pub abilities: Abilities,
    /// Communicator that the member still has from its last group; `None` if it has none.
    pub last: Option<Last>,
}

impl Statement {
    /// Statement of a member that has no GPU or no library.
    pub const ABSENT: Self = Self {
        gpu: None,
        host: 0,
        version: 0,
        abilities: Abilities { shrink: false, grow: false, revoke: false, split: false },
        last: None,
    };

    /// Length of an encoded statement, in bytes.
    pub const LEN: usize = 48;

    /// Encodes the statement for the wire, little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let Self { gpu, host, version, abilities: Abilities { shrink, grow, revoke, split }, last } = *self;
        let failed = last.is_some_and(|last| last.failed);
        let flags = [gpu.is_some(), shrink, grow, revoke, last.is_some(), failed, split];
        let flags = (0..).zip(flags).fold(0_u32, |bits, (at, set)| bits | u32::from(set) << at);
        let Last { group, world, rank, .. } =
            last.unwrap_or(Last { group: 0, world: 0, rank: Rank(0), failed: false });
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&gpu.unwrap_or(0).to_le_bytes());
        bytes[16..24].copy_from_slice(&group.to_le_bytes());
        bytes[24..32].copy_from_slice(&host.to_le_bytes());
        for (place, number) in bytes[32..].chunks_exact_mut(4).zip([version, flags, world, rank.0]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes a statement; `None` if the bytes are not an [encoded](Self::encode) one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (gpu, rest) = bytes.split_first_chunk()?;
        let (group, rest) = rest.split_first_chunk()?;
        let (host, rest) = rest.split_first_chunk()?;
        let mut numbers = rest.chunks_exact(4).map(|number| number.try_into().map(u32::from_le_bytes));
        let mut next = || numbers.next()?.ok();
        let (version, flags, world, rank) = (next()?, next()?, next()?, next()?);
        let flag = |at: u32| flags >> at & 1 == 1;
        if flags >> 7 != 0 || (flag(4) && rank >= world) {
            return None;
        }
        Some(Self {
            gpu: flag(0).then_some(u128::from_le_bytes(*gpu)),
            host: u64::from_le_bytes(*host),
            version,
            abilities: Abilities { shrink: flag(1), grow: flag(2), revoke: flag(3), split: flag(6) },
            last: flag(4).then_some(Last {
                group: u64::from_le_bytes(*group),
                world,
                rank: Rank(rank),
                failed: flag(5),
            }),
        })
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there =
            [(self.shrink, "shrink"), (self.grow, "grow"), (self.revoke, "revoke"), (self.split, "split")];
        let names: Vec<&str> = there.into_iter().filter_map(|(there, name)| there.then_some(name)).collect();
        f.write_str(if names.is_empty() { "none".to_owned() } else { names.join(", ") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_comes_back_as_it_was_said_and_other_bytes_are_refused() {
        let last = Last { group: u64::MAX - 1, world: 4, rank: Rank(3), failed: true };
        let abilities = Abilities { shrink: true, grow: false, revoke: true, split: true };
        for statement in [
            Statement::ABSENT,
            Statement { gpu: Some(0), host: 7, version: 23_003, abilities, last: None },
            Statement {
                gpu: Some(u128::MAX - 2),
                host: u64::MAX - 3,
                version: 1,
                abilities: Abilities::default(),
                last: Some(last),
            },
        ] {
            assert_eq!(Statement::decode(&statement.encode()), Some(statement));
        }
        let beyond = Statement { last: Some(Last { rank: Rank(4), ..last }), ..Statement::ABSENT };
        assert_eq!(Statement::decode(&beyond.encode()), None);
        assert_eq!(Statement::decode(&[0; 47]), None);
        let mut unknown = Statement::ABSENT.encode();
        unknown[36] = 0x80;
        assert_eq!(Statement::decode(&unknown), None);
    }

    #[test]
    fn abilities_say_their_names() {
        assert_eq!(Abilities::default().to_string(), "none");
        let some = Abilities { shrink: true, split: true, ..Abilities::default() };
        assert_eq!(some.to_string(), "shrink, split");
    }
}
