//! [`Timers`]: what is due when, one thing per node.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{JobTime, NodeId};

/// At most one moment per node, and something to remember until then. The next one is found in O(log k).
#[derive(Debug, Clone)]
pub(super) struct Timers<T> {
    due: BTreeMap<NodeId, (JobTime, T)>,
    queue: BTreeSet<(JobTime, NodeId)>,
}

impl<T> Timers<T> {
    pub(super) const fn new() -> Self {
        Self { due: BTreeMap::new(), queue: BTreeSet::new() }
    }

    /// The next moment at which something is due.
    pub(super) fn next(&self) -> Option<JobTime> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Something is due for a node at a moment, instead of what was.
    pub(super) fn set(&mut self, node: NodeId, at: JobTime, what: T) {
        self.clear(node);
        self.due.insert(node, (at, what));
        self.queue.insert((at, node));
    }

    /// Nothing is due for a node any more.
    pub(super) fn clear(&mut self, node: NodeId) {
        if let Some((at, _)) = self.due.remove(&node) {
            self.queue.remove(&(at, node));
        }
    }

    /// Whether anything is due for a node.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.due.contains_key(&node)
    }

    /// Takes what is due by now, in the order of ids.
    pub(super) fn take_due(&mut self, now: JobTime) -> Vec<(NodeId, T)> {
        let mut nodes: Vec<NodeId> =
            self.queue.iter().take_while(|(at, _)| *at <= now).map(|(_, node)| *node).collect();
        nodes.sort_unstable();
        let mut taken = Vec::with_capacity(nodes.len());
        for node in nodes {
            if let Some((at, what)) = self.due.remove(&node) {
                self.queue.remove(&(at, node));
                taken.push((node, what));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_timers_are_taken_once_in_the_order_of_ids() {
        let worker = NodeId::worker;
        let mut timers = Timers::new();
        timers.set(worker(2), JobTime(5), 'a');
        timers.set(worker(1), JobTime(7), 'b');
        timers.set(worker(0), JobTime(9), 'c');
        timers.set(worker(2), JobTime(6), 'd');
        assert_eq!((timers.next(), timers.take_due(JobTime(5))), (Some(JobTime(6)), vec![]));
        assert_eq!(timers.take_due(JobTime(8)), [(worker(1), 'b'), (worker(2), 'd')]);
        assert_eq!((timers.next(), timers.take_due(JobTime(8))), (Some(JobTime(9)), vec![]));
        timers.clear(worker(0));
        assert_eq!((timers.next(), timers.take_due(JobTime::NEVER)), (None, vec![]));
    }
}
