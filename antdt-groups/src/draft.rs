//! The interface between the generator and a policy that forms groups: the workers to choose from, and the
//! groups formed.

use antdt_core::{DetRng, Holder};

use crate::filter::ProgressFilter;
use crate::message::GroupOrigin;
use crate::roster::{Roster, Slot};

/// A worker that a group policy may put into a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    slot: Slot,
    holder: Holder,
    host: u32,
}

impl Candidate {
    /// Returns the node and its incarnation.
    pub const fn holder(&self) -> Holder {
        self.holder
    }

    /// Returns the number of the host that the worker runs on.
    pub const fn host(&self) -> u32 {
        self.host
    }
}

/// What a group policy gets when a worker, the initiator, asks for a group: its methods tell the state of the workers, and
/// [`form`](Self::form) records the groups that the policy forms.
#[derive(Debug)]
pub struct Draft<'a> {
    roster: &'a Roster,
    filter: ProgressFilter,
    initiator: Slot,
    held: &'a [Slot],
    rng: &'a mut DetRng,
    /// Progress of the median worker, once it was asked for.
    median: Option<u64>,
    groups: Vec<(GroupOrigin, Vec<Slot>)>,
}

impl<'a> Draft<'a> {
    pub(crate) const fn new(
        roster: &'a Roster,
        filter: ProgressFilter,
        initiator: Slot,
        held: &'a [Slot],
        rng: &'a mut DetRng,
    ) -> Self {
        Self { roster, filter, initiator, held, rng, median: None, groups: Vec::new() }
    }

    /// The groups, in the order in which they were formed, their members in order of nodes.
    pub(crate) fn finish(self) -> Vec<(GroupOrigin, Vec<Slot>)> {
        self.groups
    }

    fn candidate(&self, slot: Slot) -> Candidate {
        let worker = &self.roster[slot];
        Candidate { slot, holder: worker.holder, host: worker.host }
    }

    fn least(&self) -> u64 {
        self.filter.least(self.roster[self.initiator].progress)
    }

    /// Returns the worker whose request the policy must serve.
    pub fn initiator(&self) -> Candidate {
        self.candidate(self.initiator)
    }

    /// Returns the number of workers that take part.
    pub fn workers(&self) -> usize {
        self.roster.len()
    }

    /// Returns all workers that are in no group and not too far behind, including the initiator if it is in
    /// no group. O(number of them).
    pub fn idle(&self) -> Vec<Candidate> {
        self.roster.idle(self.least()).map(|slot| self.candidate(slot)).collect()
    }

    /// Returns the workers whose requests wait for more workers to come, in the order in which they came, the
    /// initiator last.
    pub fn waiting(&self) -> Vec<Candidate> {
        let others = self.held.iter().filter(|slot| **slot != self.initiator);
        others.chain([&self.initiator]).map(|slot| self.candidate(*slot)).collect()
    }

    /// Draws one of the workers that take part, uniformly at random. Returns `None` if the worker drawn is
    /// too far behind the initiator. O(1).
    pub fn any(&mut self) -> Option<Candidate> {
        let at = self.rng.below(self.roster.len() as u64) as usize;
        let slot = self.roster.present()[at];
        (self.roster[slot].progress >= self.least()).then(|| self.candidate(slot))
    }

    /// Returns whether a worker is so far behind the median of all workers that a worker at the median would not draft
    /// it. O(workers) for the first one of a draft that is far behind the foremost worker, and O(1) for all others.
    pub fn lags(&mut self, candidate: Candidate) -> bool {
        let progress = self.roster[candidate.slot].progress;
        if progress >= self.filter.least(self.roster.progress_max()) {
            return false;
        }
        let median = *self.median.get_or_insert_with(|| self.roster.progress_median());
        progress < self.filter.least(median)
    }

    /// Returns whether a worker is on the active side, for policies that have an active and a passive side.
    /// Every second worker that takes part is active, so that the passive side has as many or one more. When
    /// a worker leaves, at most one other changes sides.
    pub fn is_active(&self, candidate: Candidate) -> bool {
        self.roster.position(candidate.slot) % 2 == 1
    }

    /// Returns whether the initiator is so far behind `candidate` that `candidate` would not draft it.
    pub fn is_left_behind_by(&self, candidate: Candidate) -> bool {
        let least = self.filter.least(self.roster[candidate.slot].progress);
        self.roster[self.initiator].progress < least
    }

    /// Returns a random number below `bound`, from the generator's seed.
    pub fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Puts `candidates` into a random order, from the generator's seed.
    pub fn shuffle(&mut self, candidates: &mut [Candidate]) {
        for last in (1..candidates.len()).rev() {
            candidates.swap(last, self.below(last + 1));
        }
    }

    /// Forms a group of these workers. A worker that is named twice counts once. Workers that have left
    /// meanwhile, or are too far behind, do not count; with fewer than two members no group is formed.
    pub fn form(&mut self, kind: GroupOrigin, members: &[Candidate]) {
        let least = self.least();
        let may = |candidate: &&Candidate| {
            self.roster.holds(candidate.slot, candidate.holder)
                && self.roster[candidate.slot].progress >= least
        };
        let members: Vec<Candidate> = members.iter().filter(may).copied().collect();
        self.form_of_any(kind, &members);
    }

    /// Forms a group of these workers, however far behind they are, because a worker that waits already
    /// delays no other. Workers that no longer take part do not count.
    pub fn form_of_any(&mut self, kind: GroupOrigin, members: &[Candidate]) {
        let here = |candidate: &&Candidate| self.roster.holds(candidate.slot, candidate.holder);
        let mut slots: Vec<Slot> = members.iter().filter(here).map(|candidate| candidate.slot).collect();
        slots.sort_unstable_by_key(|slot| self.roster[*slot].holder.node);
        slots.dedup();
        if slots.len() > 1 {
            self.groups.push((kind, slots));
        }
    }
}
