//! What the master says of a group of workers that average their models, as the checkers of groups read it.
//!
//! A worker asks twice in a step, in questions that count up: the answer to an even one names its group, the answer to the odd one
//! that follows is the commit.

use antdt_core::{Holder, StepCommit};
use antdt_job::HeadEffect;

use crate::happening::Happening;

/// A word of the master to a member of a group.
#[derive(Debug, Clone, Copy)]
pub(super) enum GroupWord<'a> {
    /// The member is to average with these others.
    Go(&'a StepCommit),
    /// All members have the average: it is the model of each.
    Commit(&'a StepCommit),
}

/// The word about a group that the master says here, and its receivers.
pub(super) fn group_word<'a>(what: &Happening<'a>) -> Option<(Holder, GroupWord<'a>)> {
    match what {
        Happening::Effect(HeadEffect::Committed(to, commit)) if commit.counted => {
            let word = if commit.asked.is_multiple_of(2) {
                GroupWord::Go(commit)
            } else {
                GroupWord::Commit(commit)
            };
            Some((*to, word))
        }
        _ => None,
    }
}
