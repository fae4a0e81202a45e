//! [`CopyRole`]: what a member has to do with a copy for members that lack what others have.

use antdt_core::Rank;

use super::Communicator;
use crate::error::CollectiveError;
use crate::group::Group;

/// What a member has to do with a [`Communicator::copy`].
#[derive(Debug)]
pub enum CopyRole<'a> {
    /// It has the bytes.
    Gives(&'a [u8]),
    /// It lacks the bytes and gets them here.
    Takes(&'a mut [u8]),
    /// It does not need them and does not have the same ones.
    Neither,
}

impl CopyRole<'_> {
    const GIVES: u64 = 1;
    const TAKES: u64 = 2;
    /// Bits of the role in a number, below those of the length.
    const BITS: u32 = 2;

    /// The role and the length in one number, for the others.
    pub(super) const fn number(&self) -> u64 {
        match self {
            Self::Gives(bytes) => Self::GIVES | (bytes.len() as u64) << Self::BITS,
            Self::Takes(bytes) => Self::TAKES | (bytes.len() as u64) << Self::BITS,
            Self::Neither => 0,
        }
    }
}

/// The pairs of givers and takers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) givers: Vec<Rank>,
    pub(super) takers: Vec<Rank>,
    /// Bytes of each of them.
    pub(super) len: u64,
}

impl Copies {
    /// By the [`CopyRole::number`] of each rank.
    ///
    /// # Errors
    /// If some give or take other lengths than the first giver, or no member gives what others take.
    pub(super) fn agreed(numbers: &[u64], group: &Group) -> Result<Self, CollectiveError> {
        let len = |number: u64| number >> CopyRole::BITS;
        let all = || (0..).map(Rank).zip(numbers.iter().copied());
        let of = |role: u64| all().filter(move |(_, number)| number & ((1 << CopyRole::BITS) - 1) == role);
        let ranks = |role: u64| of(role).map(|(rank, _)| rank).collect::<Vec<_>>();
        let (givers, takers) = (ranks(CopyRole::GIVES), ranks(CopyRole::TAKES));
        let Some(due) = of(CopyRole::GIVES).map(|(_, number)| len(number)).next() else {
            if takers.is_empty() {
                return Ok(Self { givers, takers, len: 0 });
            }
            let what = format!("a copy for {} members that nobody gives; one must have it", takers.len());
            return Err(CollectiveError::Invalid { what });
        };
        for (verb, role) in [("gives", CopyRole::GIVES), ("takes", CopyRole::TAKES)] {
            if let Some((rank, number)) = of(role).find(|(_, number)| len(*number) != due) {
                return Err(CollectiveError::Mismatch {
                    peer: group.holder(rank),
                    theirs: format!("a copy of which it {verb} {} bytes", len(number)),
                    ours: format!("one of {due} bytes, which {} gives", group.holder(givers[0])),
                });
            }
        }
        Ok(Self { givers, takers, len: due })
    }
}

/// Carries out a [`Communicator::copy`] by way of an [`all_gather_v`](Communicator::all_gather_v) and a
/// [`broadcast`](Communicator::broadcast) from the first giver: for communicators that have no faster way.
///
/// # Errors
/// As [`Communicator::copy`].
pub fn copy_by_broadcast<C: Communicator + ?Sized>(
    communicator: &mut C,
    role: CopyRole<'_>,
) -> Result<(), CollectiveError> {
    let said = communicator.all_gather_v(&role.number().to_le_bytes())?;
    let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let numbers: Vec<u64> = said.iter().map(number).collect();
    let copies = Copies::agreed(&numbers, communicator.group())?;
    let (Some(root), false) = (copies.givers.first(), copies.takers.is_empty()) else { return Ok(()) };
    let mut bytes = match &role {
        CopyRole::Gives(mine) if communicator.group().me() == *root => mine.to_vec(),
        _ => Vec::new(),
    };
    communicator.broadcast(*root, &mut bytes)?;
    if let CopyRole::Takes(into) = role {
        if into.len() != bytes.len() {
            let what = format!("{} bytes came of a copy of {}", bytes.len(), into.len());
            return Err(CollectiveError::Invalid { what });
        }
        into.copy_from_slice(&bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId};

    use super::*;
    use crate::group::Member;

    fn group(world: u32) -> Group {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let holder = |index| Holder::new(NodeId::worker(index), Incarnation(0));
        let members = (0..world).map(|index| Member { holder: holder(index), address }).collect();
        Group::new(MembershipVersion(1), members, Rank(0)).unwrap()
    }

    #[test]
    fn those_that_give_and_those_that_take_are_told_apart_and_must_have_one_length() {
        let (gives, mut space) = ([1_u8, 2, 3], [0_u8; 3]);
        let (gives, takes) = (CopyRole::Gives(&gives).number(), CopyRole::Takes(&mut space).number());
        let neither = CopyRole::Neither.number();
        let agreed = |numbers: &[u64]| Copies::agreed(numbers, &group(numbers.len() as u32));
        assert_eq!(
            agreed(&[neither, gives, takes, gives]).unwrap(),
            Copies { givers: vec![Rank(1), Rank(3)], takers: vec![Rank(2)], len: 3 }
        );
        assert_eq!(agreed(&[neither]).unwrap(), Copies { givers: vec![], takers: vec![], len: 0 });
        let shorter = CopyRole::Gives(&[1]).number();
        let error = agreed(&[takes, gives, shorter]).unwrap_err();
        assert_eq!(error.culprit(), Some(group(3).holder(Rank(2))), "{error}");
        let longer = CopyRole::Takes(&mut [0; 4]).number();
        let error = agreed(&[gives, longer]).unwrap_err();
        assert!(
            error.to_string().contains("takes 4 bytes") && error.to_string().contains("3 bytes"),
            "{error}"
        );
        let error = agreed(&[takes, neither]).unwrap_err();
        assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
    }
}
