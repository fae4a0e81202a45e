//! The policy that groups workers as they come.

use antdt_core::InvalidValue;

use super::{GroupPolicy, checked};
use crate::draft::Draft;
use crate::message::GroupOrigin;

/// A group policy that forms groups of the workers that ask first. The generator holds requests back until as many
/// workers have asked as a group has members.
///
/// All members of a group wait when it is formed, so no member waits for a worker that computes, and none is
/// too far behind. A worker that is always slow is in few groups, with workers that ask at the same time.
///
/// Source: ours, after the "first k of n" of synchronous training with backup workers (Chen et al., 2016; recalled).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstToArrive {
    group_size: u32,
}

impl FirstToArrive {
    /// Returns the policy for groups of `group_size` members, or of all workers if fewer take part.
    ///
    /// # Errors
    /// If `group_size` is below 2.
    pub fn new(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)? })
    }
}

impl GroupPolicy for FirstToArrive {
    fn name(&self) -> &'static str {
        "arrival"
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn waits_for_more(&self) -> bool {
        true
    }

    fn form(&mut self, draft: &mut Draft<'_>) {
        let waiting = draft.waiting();
        if waiting.len() >= draft.workers().min(self.group_size as usize) {
            draft.form_of_any(GroupOrigin::Arrival, &waiting);
        }
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
