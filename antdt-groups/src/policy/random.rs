//! The policy that forms random groups.

use antdt_core::InvalidValue;

use super::{GroupPolicy, checked};
use crate::draft::{Candidate, Draft};
use crate::message::GroupOrigin;

/// A group policy that groups the initiator with randomly drawn workers, busy or not. It is the baseline:
/// nearly all groups conflict.
///
/// Every request forms a group of its own; each worker is drafted into `group_size - 1` further ones a step
/// on average, and runs them too. [Buffered](Self::buffered), a worker that is in a group already runs that
/// group instead: one group a request.
///
/// Source: Ripples's random group generator, which is AD-PSGD with groups of 2, and its Group Buffer
/// (recalled).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    group_size: u32,
    buffered: bool,
}

impl Random {
    /// Returns the policy that forms a new group of `group_size` for every request.
    ///
    /// # Errors
    /// If `group_size` is below 2.
    pub fn new(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)?, buffered: false })
    }

    /// Returns the policy that forms groups of `group_size` only for requests of workers that are in none.
    ///
    /// # Errors
    /// If `group_size` is below 2.
    #[doc(alias = "GB")]
    pub fn buffered(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)?, buffered: true })
    }
}

impl GroupPolicy for Random {
    fn name(&self) -> &'static str {
        if self.buffered { "buffer" } else { "random" }
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn is_buffered(&self) -> bool {
        self.buffered
    }

    /// Draws from all. The group is smaller than asked for if many are too far behind.
    fn form(&mut self, draft: &mut Draft<'_>) {
        let wanted = (self.group_size as usize).min(draft.workers());
        let mut members: Vec<Candidate> = vec![draft.initiator()];
        // Draws of a worker that is in it already, or is too far behind, are for nothing; so many are enough but by bad luck.
        for _ in 0..4 * wanted + 8 {
            if members.len() == wanted {
                break;
            }
            members.extend(draft.any().filter(|candidate| !members.contains(candidate)));
        }
        draft.form(GroupOrigin::Random, &members);
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
