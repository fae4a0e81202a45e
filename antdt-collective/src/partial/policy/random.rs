//! A fresh random group for every request.

use antdt_core::InvalidValue;

use super::{GroupPolicy, checked, drawn};
use crate::partial::draft::Draft;
use crate::partial::message::GroupKind;

/// The initiator and whoever is drawn, busy or not; every request forms a group of its own. The baseline: each worker is
/// drafted into `group_size - 1` further groups a step on average, and nearly all of them conflict.
///
/// Source: Ripples's random group generator, which is AD-PSGD with groups of 2 (recalled).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    group_size: u32,
}

impl Random {
    /// Groups of `group_size`.
    ///
    /// # Errors
    /// If it is below 2.
    pub fn new(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)? })
    }
}

impl GroupPolicy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn is_buffered(&self) -> bool {
        false
    }

    fn form(&mut self, draft: &mut Draft<'_>) {
        let members = drawn(draft, self.group_size);
        draft.form(GroupKind::Random, &members);
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
