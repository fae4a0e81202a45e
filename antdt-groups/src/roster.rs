//! The workers that take part, with the generator's state of each.

use std::collections::{BTreeSet, VecDeque};

use antdt_core::{Holder, Incarnation, NodeId, NodeMap, Role};

use crate::message::{GeneratorError, GroupDecision, GroupKey};

/// A worker's place in the roster. Places of workers that left are reused.
pub(crate) type Slot = u32;

/// A worker that takes part.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) holder: Holder,
    pub(crate) host: u32,
    /// Requests it made, and what it began with.
    pub(crate) progress: u64,
    /// Its groups, oldest first, by their places among all that are not over.
    pub(crate) buffer: VecDeque<usize>,
    /// The newest request of the worker.
    pub(crate) sequence: u64,
    /// Whether it waits for the answer.
    pub(crate) open: bool,
    /// Place in the order of the group that answers it.
    pub(crate) target: u64,
    /// Whether the newest request was answered without a commit.
    pub(crate) skipped: bool,
    /// Whether it has arrived at the first group of its buffer.
    pub(crate) arrived: bool,
    /// Whether it has reported its part in that group.
    pub(crate) reported: bool,
    /// What became of the groups that it ran for its newest request; it may not have heard of all.
    pub(crate) decisions: Vec<(GroupKey, GroupDecision)>,
    /// Position in the list of present workers.
    position: usize,
}

/// All workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Roster {
    workers: Vec<Worker>,
    /// Slots of workers that left.
    free: Vec<Slot>,
    slots: NodeMap<Slot>,
    /// The slots of present workers, in no order.
    present: Vec<Slot>,
    /// Those whose buffers are empty, by progress.
    idle: BTreeSet<(u64, Slot)>,
    /// The newest life of each node that is over.
    fenced: NodeMap<Incarnation>,
    progress_max: u64,
}

impl Roster {
    /// The worker of this life.
    pub(crate) fn slot_of(&self, holder: Holder) -> Result<Slot, GeneratorError> {
        if holder.node.role != Role::Worker {
            return Err(GeneratorError::NoWorker { holder });
        }
        let slot = self.slots.get(holder.node).copied();
        match slot.filter(|slot| self[*slot].holder == holder) {
            Some(slot) => Ok(slot),
            None if self.is_over(holder) => Err(GeneratorError::Fenced { holder }),
            None => Err(GeneratorError::Unknown { holder }),
        }
    }

    /// Whether this life is over, or a newer one takes part.
    pub(crate) fn is_over(&self, holder: Holder) -> bool {
        let newer = |life: &Holder| life.incarnation > holder.incarnation;
        self.fenced.get(holder.node).is_some_and(|through| *through >= holder.incarnation)
            || self.life_of(holder.node).as_ref().is_some_and(newer)
    }

    /// The life of this node that takes part.
    pub(crate) fn life_of(&self, node: NodeId) -> Option<Holder> {
        self.slots.get(node).map(|slot| self[*slot].holder)
    }

    pub(crate) fn len(&self) -> usize {
        self.present.len()
    }

    /// Slots there ever were, those of workers that left included.
    pub(crate) fn slots(&self) -> usize {
        self.workers.len()
    }

    /// The slots of all present workers, in no order.
    pub(crate) fn present(&self) -> &[Slot] {
        &self.present
    }

    /// The place of a present worker in the list of them, from 0 without gaps.
    pub(crate) fn position(&self, slot: Slot) -> usize {
        self[slot].position
    }

    pub(crate) fn holds(&self, slot: Slot, holder: Holder) -> bool {
        self.slots.get(holder.node) == Some(&slot) && self[slot].holder == holder
    }

    /// Workers with empty buffers and at least this progress, by progress.
    pub(crate) fn idle(&self, least: u64) -> impl Iterator<Item = Slot> {
        self.idle.range((least, 0)..).map(|(_, slot)| *slot)
    }

    /// The greatest progress that any worker ever had.
    pub(crate) const fn progress_max(&self) -> u64 {
        self.progress_max
    }

    /// The middle one of all progresses, the higher one of two. O(n).
    pub(crate) fn progress_median(&self) -> u64 {
        if self.progress_max == 0 || self.present.is_empty() {
            return 0;
        }
        let mut all: Vec<u64> = self.present.iter().map(|slot| self[*slot].progress).collect();
        let middle = all.len() / 2;
        *all.select_nth_unstable(middle).1
    }

    /// A worker joins, with the median progress: half of the workers that were there before are not ahead of it.
    pub(crate) fn join(&mut self, holder: Holder, host: u32) -> Slot {
        let worker = Worker {
            holder,
            host,
            progress: self.progress_median(),
            buffer: VecDeque::new(),
            sequence: 0,
            open: false,
            target: 0,
            skipped: false,
            arrived: false,
            reported: false,
            decisions: Vec::new(),
            position: self.present.len(),
        };
        let progress = worker.progress;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.workers[slot as usize] = worker;
                slot
            }
            None => {
                self.workers.push(worker);
                Slot::try_from(self.workers.len() - 1).expect("nodes are numbered with 32 bits")
            }
        };
        self.slots.insert(holder.node, slot);
        self.present.push(slot);
        self.idle.insert((progress, slot));
        slot
    }

    /// A worker with an empty buffer goes, for ever: its life is over.
    pub(crate) fn leave(&mut self, slot: Slot) {
        let (holder, progress, position) = (self[slot].holder, self[slot].progress, self[slot].position);
        self.idle.remove(&(progress, slot));
        self.slots.remove(holder.node);
        self.present.swap_remove(position);
        if let Some(moved) = self.present.get(position).copied() {
            self[moved].position = position;
        }
        self.free.push(slot);
        self.fence(holder);
    }

    /// This life and all older ones of its node are over.
    pub(crate) fn fence(&mut self, holder: Holder) {
        let through = self.fenced.get(holder.node).copied().unwrap_or_default();
        self.fenced.insert(holder.node, through.max(holder.incarnation));
    }

    /// A worker makes a request.
    pub(crate) fn ask(&mut self, slot: Slot, sequence: u64) {
        let worker = &mut self[slot];
        worker.sequence = sequence;
        (worker.open, worker.skipped) = (true, false);
        worker.decisions.clear();
        let before = worker.progress;
        worker.progress = before.saturating_add(1);
        let (progress, is_idle) = (worker.progress, worker.buffer.is_empty());
        self.progress_max = self.progress_max.max(progress);
        if is_idle {
            self.idle.remove(&(before, slot));
            self.idle.insert((progress, slot));
        }
    }

    /// Puts a group into the buffer of a worker.
    pub(crate) fn append(&mut self, slot: Slot, group: usize) {
        let worker = &mut self[slot];
        let (progress, was_idle) = (worker.progress, worker.buffer.is_empty());
        worker.buffer.push_back(group);
        if was_idle {
            self.idle.remove(&(progress, slot));
        }
    }

    /// Takes a group out of the buffer of a worker.
    pub(crate) fn withdraw(&mut self, slot: Slot, group: usize) {
        let worker = &mut self[slot];
        let Some(at) = worker.buffer.iter().position(|place| *place == group) else { return };
        worker.buffer.remove(at);
        if at == 0 {
            (worker.arrived, worker.reported) = (false, false);
        }
        let (progress, is_idle) = (worker.progress, worker.buffer.is_empty());
        if is_idle {
            self.idle.insert((progress, slot));
        }
    }
}

impl std::ops::Index<Slot> for Roster {
    type Output = Worker;

    fn index(&self, slot: Slot) -> &Worker {
        &self.workers[slot as usize]
    }
}

impl std::ops::IndexMut<Slot> for Roster {
    fn index_mut(&mut self, slot: Slot) -> &mut Worker {
        &mut self.workers[slot as usize]
    }
}
