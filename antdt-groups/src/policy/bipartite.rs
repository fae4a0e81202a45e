//! The policy that pairs workers of two sides.

use super::GroupPolicy;
use crate::draft::{Candidate, Draft};
use crate::message::GroupOrigin;

/// A group policy that pairs each active worker with a randomly drawn passive worker that is in no pair. Half
/// of the workers are active, the others passive; with an odd number, one more is passive.
///
/// Between an active and a passive worker it is the active one that asks, and the passive one goes on
/// training if no active worker has drawn it. But a passive worker that is too far behind an active one to be
/// drawn by it may draw it: so each pair can be formed by exactly one of its two workers, whatever their
/// speeds, and no worker that is far ahead of a slow one waits for it.
///
/// As many workers are passive as active or more, and pairs have one of each, so an active worker that is in no pair
/// finds a passive one that is in none, unless those are too far behind. O(workers that are in no pair).
///
/// Source: the two sides and the even draw are those of AD-PSGD (Lian et al., 2018; recalled). That a passive worker
/// draws an active one which is far ahead of it is our design.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "AD-PSGD")]
pub struct Bipartite;

impl GroupPolicy for Bipartite {
    fn name(&self) -> &'static str {
        "bipartite"
    }

    fn group_size(&self) -> u32 {
        2
    }

    fn form(&mut self, draft: &mut Draft<'_>) {
        let me = draft.initiator();
        let active = draft.is_active(me);
        let others: Vec<Candidate> = draft
            .idle()
            .into_iter()
            .filter(|other| draft.is_active(*other) != active)
            .filter(|other| active || draft.is_left_behind_by(*other))
            .collect();
        if !others.is_empty() {
            let other = others[draft.below(others.len())];
            draft.form(GroupOrigin::Pair, &[me, other]);
        }
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
