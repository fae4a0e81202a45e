//! The policy that divides all idle workers at once.

use antdt_core::InvalidValue;

use super::{GroupPolicy, checked, cut};
use crate::draft::Draft;
use crate::message::GroupOrigin;

/// A group policy that divides all workers that are in no group and not too far behind into disjoint random
/// groups, so that no two groups conflict. A drawn worker may still be computing a step; the other members of
/// its group then wait at most for the rest of that step.
///
/// Source: Prague's Group Division, "Global Division" in the preprint (recalled).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "GD")]
pub struct Division {
    group_size: u32,
}

impl Division {
    /// Returns the policy for groups of `group_size` members; one group of each division may have one more
    /// member.
    ///
    /// # Errors
    /// If `group_size` is below 2.
    pub fn new(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)? })
    }
}

impl GroupPolicy for Division {
    fn name(&self) -> &'static str {
        "division"
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn form(&mut self, draft: &mut Draft<'_>) {
        let mut idle = draft.idle();
        draft.shuffle(&mut idle);
        cut(draft, GroupOrigin::Division, &idle, self.group_size);
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
