//! What a policy sees when it forms groups, and where it puts them.

use antdt_core::{DetRng, Holder};

use crate::filter::ProgressFilter;
use crate::message::GroupOrigin;
use crate::roster::{Roster, Slot};

/// A worker that may be drafted.
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

    /// Returns the host that it runs on.
    pub const fn host(&self) -> u32 {
        self.host
    }
}

/// The groups that a policy forms when a worker asks, and the workers that it may draft for them.
#[derive(Debug)]
pub struct Draft<'a> {
    roster: &'a Roster,
    filter: ProgressFilter,
    initiator: Slot,
    rng: &'a mut DetRng,
    groups: Vec<(GroupOrigin, Vec<Slot>)>,
}

impl<'a> Draft<'a> {
    pub(crate) const fn new(
        roster: &'a Roster,
        filter: ProgressFilter,
        initiator: Slot,
        rng: &'a mut DetRng,
    ) -> Self {
        Self { roster, filter, initiator, rng, groups: Vec::new() }
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

    /// The worker that asks.
    pub fn initiator(&self) -> Candidate {
        self.candidate(self.initiator)
    }

    /// Workers that take part.
    pub fn workers(&self) -> usize {
        self.roster.len()
    }

    /// All that are in no group and not too far behind, with the initiator if it is in no group either. O(their number).
    pub fn idle(&self) -> Vec<Candidate> {
        self.roster.idle(self.least()).map(|slot| self.candidate(slot)).collect()
    }

    /// Any worker, drawn evenly from all; `None` if it is too far behind. O(1).
    pub fn any(&mut self) -> Option<Candidate> {
        let at = self.rng.below(self.roster.len() as u64) as usize;
        let slot = self.roster.present()[at];
        (self.roster[slot].progress >= self.least()).then(|| self.candidate(slot))
    }

    /// Whether the initiator is itself so far behind the middle one of all that it would not be drafted by it. O(workers).
    pub fn initiator_lags(&self) -> bool {
        self.roster[self.initiator].progress < self.filter.least(self.roster.progress_median())
    }

    /// A number below `bound`, from the generator's seed.
    pub fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Puts `candidates` into a random order.
    pub fn shuffle(&mut self, candidates: &mut [Candidate]) {
        for last in (1..candidates.len()).rev() {
            candidates.swap(last, self.below(last + 1));
        }
    }

    /// Forms a group. A worker that is named twice counts once; one that has left since, or is too far behind, does not count; a
    /// group of one is none.
    pub fn form(&mut self, kind: GroupOrigin, members: &[Candidate]) {
        let least = self.least();
        let may = |candidate: &&Candidate| {
            self.roster.holds(candidate.slot, candidate.holder)
                && self.roster[candidate.slot].progress >= least
        };
        let mut slots: Vec<Slot> = members.iter().filter(may).map(|candidate| candidate.slot).collect();
        slots.sort_unstable_by_key(|slot| self.roster[*slot].holder.node);
        slots.dedup();
        if slots.len() > 1 {
            self.groups.push((kind, slots));
        }
    }
}
