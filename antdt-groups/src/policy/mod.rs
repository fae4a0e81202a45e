//! [`GroupPolicy`], which chooses the members of groups, and its implementations. In the table, `n` is the number of workers
//! and `g` the number of members of a group; the variance is that of the workers' models.
//!
//! | policy | the worker that asks waits for | models that one round averages |
//! |---|---|---|
//! | [`Random`] | every busy worker in its groups, about `g` groups a step | one group of `g` at a time |
//! | [`Random::buffered`] | the same, one group a step | one group of `g` at a time |
//! | [`Bipartite`] | the rest of one peer's step, if it is active | one pair at a time, between the two sides |
//! | [`FirstToArrive`] | the next `g - 1` workers to come | one group of `g` at a time |
//! | [`Division`] | the rest of `g - 1` peers' steps | all idle, `(n - g) / (g (n - 1))` of the variance is left |
//! | [`InterIntra`] | one worker of each host or some of its own, then all of its own | all idle, one flow for each host |

use std::fmt::Debug;

use antdt_core::InvalidValue;

use crate::draft::{Candidate, Draft};
use crate::message::GroupOrigin;

mod arrival;
mod bipartite;
mod division;
mod inter_intra;
mod random;

pub use arrival::FirstToArrive;
pub use bipartite::Bipartite;
pub use division::Division;
pub use inter_intra::InterIntra;
pub use random::Random;

/// A policy that chooses the members of a group when a worker that is in no group asks for one.
///
/// Under every policy the order of groups is kept, no worker that has left or is too far behind is drafted,
/// and the asking worker gets an answer: a policy can make averaging slow, not wrong.
pub trait GroupPolicy: Debug + Send {
    /// Returns the policy's name, such as `division`.
    fn name(&self) -> &'static str;

    /// Returns the number of members that the policy aims at for a group, at least 2.
    fn group_size(&self) -> u32;

    /// Returns whether a request is served by the oldest group that its worker is in already. If not, every
    /// request forms groups, and is answered after all groups that its worker is in by then.
    fn is_buffered(&self) -> bool {
        true
    }

    /// Returns whether a request for which no group is formed waits for more workers to ask. If not, it is
    /// answered without a group. A policy that returns `true` must form a group once all workers wait.
    fn waits_for_more(&self) -> bool {
        false
    }

    /// Forms groups for the initiator of `draft`; the initiator need not be a member.
    fn form(&mut self, draft: &mut Draft<'_>);

    /// Returns a boxed copy of the policy.
    fn clone_box(&self) -> Box<dyn GroupPolicy>;
}

impl Clone for Box<dyn GroupPolicy> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// A size that is one.
fn checked(group_size: u32) -> Result<u32, InvalidValue> {
    if group_size < 2 {
        return Err(InvalidValue::new("group_size", group_size, "at least 2; 3 or 4 is usual"));
    }
    Ok(group_size)
}

/// Cuts `workers` into groups of `group_size`; one that would be alone is put to those before it.
fn cut(draft: &mut Draft<'_>, kind: GroupOrigin, workers: &[Candidate], group_size: u32) {
    let mut rest = workers;
    while !rest.is_empty() {
        let size = group_size as usize;
        let (members, others) = rest.split_at(if rest.len() <= size + 1 { rest.len() } else { size });
        draft.form(kind, members);
        rest = others;
    }
}

#[cfg(test)]
mod tests;
