//! A random group, unless there is one already.

use antdt_core::InvalidValue;

use super::{GroupPolicy, checked, drawn};
use crate::partial::draft::Draft;
use crate::partial::message::GroupKind;

/// The initiator and whoever is drawn, busy or not; a worker that is in a group already takes that instead. One group for
/// each request, and still most of them conflict.
///
/// Source: Ripples's Group Buffer (recalled).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "GB")]
pub struct Buffer {
    group_size: u32,
}

impl Buffer {
    /// Groups of `group_size`.
    ///
    /// # Errors
    /// If it is below 2.
    pub fn new(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)? })
    }
}

impl GroupPolicy for Buffer {
    fn name(&self) -> &'static str {
        "buffer"
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn form(&mut self, draft: &mut Draft<'_>) {
        let members = drawn(draft, self.group_size);
        draft.form(GroupKind::Random, &members);
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
