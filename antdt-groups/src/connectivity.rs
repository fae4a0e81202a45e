//! Checks that averages spread the progress of every worker to every other one.

use crate::roster::{Roster, Slot};

/// The components that the committed groups of a window make of the workers.
///
/// A window is as long as random groups need to connect all, so several components are a sign that workers of like speed
/// keep to themselves. It costs O(workers) once in a window, O(log) for each member otherwise.
///
/// Source: the "update isolation" of partial reduce (SIGMOD 2021, its abstract); the window is ours: n workers in random
/// groups of g are connected after about `n ln n / g` of them.
#[derive(Debug, Clone)]
pub(crate) struct Connectivity {
    group_size: usize,
    /// Groups of the window so far.
    seen: usize,
    /// A tree of slots for each component, as the parent of each.
    parents: Vec<Slot>,
    /// The component of each slot, at the end of a window that found several.
    split: Option<Vec<Slot>>,
}

impl Connectivity {
    pub(crate) fn new(group_size: u32) -> Self {
        Self { group_size: (group_size as usize).max(2), seen: 0, parents: Vec::new(), split: None }
    }

    fn find(&mut self, slot: Slot) -> Slot {
        let known = Slot::try_from(self.parents.len()).expect("slots have 32 bits");
        self.parents.extend(known..=slot.max(known.saturating_sub(1)));
        let mut slot = slot;
        while self.parents[slot as usize] != slot {
            // Every worker on the way is moved to its grandparent.
            let grandparent = self.parents[self.parents[slot as usize] as usize];
            self.parents[slot as usize] = grandparent;
            slot = grandparent;
        }
        slot
    }

    /// A group was committed.
    pub(crate) fn committed(&mut self, members: &[Slot], roster: &Roster) {
        for pair in members.windows(2) {
            let (a, b) = (self.find(pair[0]), self.find(pair[1]));
            self.parents[a.max(b) as usize] = a.min(b);
        }
        self.seen += 1;
        if self.seen < window(roster.len(), self.group_size) {
            return;
        }
        let slots = Slot::try_from(roster.slots()).expect("slots have 32 bits");
        let components: Vec<Slot> = (0..slots).map(|slot| self.find(slot)).collect();
        let mut present = roster.present().iter().map(|slot| components[*slot as usize]);
        let first = present.next();
        self.split = present.any(|component| Some(component) != first).then_some(components);
        self.parents.clear();
        self.seen = 0;
    }

    /// One worker of each component if the last window found several, once. Rather one that is idle, and of those that
    /// are not, rather one with few groups before it, and far ahead.
    pub(crate) fn bridge(&mut self, roster: &Roster) -> Option<Vec<Slot>> {
        let components = self.split.take()?;
        // A worker that joined since is connected with none.
        let component = |slot: Slot| components.get(slot as usize).copied().unwrap_or(slot);
        let mut all = roster.present().to_vec();
        all.sort_unstable_by_key(|slot| {
            let worker = &roster[*slot];
            (component(*slot), worker.buffer.len(), std::cmp::Reverse(worker.progress), *slot)
        });
        all.dedup_by_key(|slot| component(*slot));
        all.sort_unstable_by_key(|slot| roster[*slot].holder.node);
        Some(all)
    }
}

/// Groups after which `workers` are connected if they are random.
fn window(workers: usize, group_size: usize) -> usize {
    let connecting = workers.saturating_sub(1).div_ceil(group_size - 1).max(1);
    // 1 + the logarithm, to base 2 rather than e: later is no harm.
    connecting * (1 + workers.max(2).ilog2() as usize)
}
