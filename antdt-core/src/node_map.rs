//! [`NodeMap`]: a map from nodes to values with constant-time lookup.
//!
//! The nodes of a role are numbered from 0, so their number is the index into a table. Maps that grow with
//! the job are asked for one node with every event; with a search tree an event would cost more the more
//! nodes there are.

use std::ops::{Index, IndexMut};

use crate::id::{NodeId, Role};

/// Entries of a page: bounds what a single node with a large number costs.
const PAGE: usize = 4096;

/// A map from nodes to values, in the order of [`NodeId`]: workers first, then servers, each by number.
///
/// Lookup is O(1). Memory is proportional to the numbers in use: up to 4,096 entries for each stretch of
/// 4,096 numbers that has a node, and 24 bytes for each stretch below the highest.
///
/// ```
/// use antdt_core::{NodeId, NodeMap};
///
/// let mut sizes: NodeMap<u32> = [(NodeId::server(0), 1), (NodeId::worker(7), 2)].into_iter().collect();
/// assert_eq!(sizes.insert(NodeId::worker(7), 3), Some(2));
/// assert_eq!(sizes.iter().collect::<Vec<_>>(), [(NodeId::worker(7), &3), (NodeId::server(0), &1)]);
/// assert_eq!(sizes.get(NodeId::worker(6)), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMap<T> {
    workers: Pages<T>,
    servers: Pages<T>,
    len: usize,
}

/// Pages of values by number; the last entry of a page that is not empty may be vacant.
type Pages<T> = Vec<Vec<Option<T>>>;

impl<T> NodeMap<T> {
    /// Returns an empty map.
    pub const fn new() -> Self {
        Self { workers: Vec::new(), servers: Vec::new(), len: 0 }
    }

    /// Returns the number of nodes that have a value.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no node has a value.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value of a node; `None` if it has none.
    pub fn get(&self, node: NodeId) -> Option<&T> {
        let index = node.index as usize;
        self.pages(node.role).get(index / PAGE)?.get(index % PAGE)?.as_ref()
    }

    /// Returns the value of a node, for changes; `None` if it has none.
    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut T> {
        let index = node.index as usize;
        self.pages_mut(node.role).get_mut(index / PAGE)?.get_mut(index % PAGE)?.as_mut()
    }

    /// Returns whether a node has a value.
    pub fn contains(&self, node: NodeId) -> bool {
        self.get(node).is_some()
    }

    /// Sets the value of a node; returns the previous one.
    pub fn insert(&mut self, node: NodeId, value: T) -> Option<T> {
        let index = node.index as usize;
        let pages = self.pages_mut(node.role);
        if pages.len() <= index / PAGE {
            pages.resize_with(index / PAGE + 1, Vec::new);
        }
        let page = &mut pages[index / PAGE];
        if page.len() <= index % PAGE {
            page.resize_with(index % PAGE + 1, || None);
        }
        let before = page[index % PAGE].replace(value);
        self.len += usize::from(before.is_none());
        before
    }

    /// Removes and returns the value of a node; `None` if it had none.
    pub fn remove(&mut self, node: NodeId) -> Option<T> {
        let index = node.index as usize;
        let before = self.pages_mut(node.role).get_mut(index / PAGE)?.get_mut(index % PAGE)?.take();
        self.len -= usize::from(before.is_some());
        before
    }

    /// Returns all nodes with their values, in the order of ids.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &T)> {
        self.of_role(Role::Worker).chain(self.of_role(Role::Server))
    }

    /// Returns all nodes with their values, in the order of ids, to change the values.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (NodeId, &mut T)> {
        entries_mut(Role::Worker, &mut self.workers).chain(entries_mut(Role::Server, &mut self.servers))
    }

    /// Returns the nodes of a role with their values, in the order of ids.
    pub fn of_role(&self, role: Role) -> impl DoubleEndedIterator<Item = (NodeId, &T)> {
        self.pages(role).iter().enumerate().flat_map(move |(page, entries)| {
            let values = entries.iter().enumerate();
            values.filter_map(move |(at, value)| value.as_ref().map(|value| (id(role, page, at), value)))
        })
    }

    /// Returns the nodes of a role with their values, in the order of ids, to change the values.
    pub fn of_role_mut(&mut self, role: Role) -> impl DoubleEndedIterator<Item = (NodeId, &mut T)> {
        entries_mut(role, self.pages_mut(role))
    }

    const fn pages(&self, role: Role) -> &Pages<T> {
        match role {
            Role::Worker => &self.workers,
            Role::Server => &self.servers,
        }
    }

    const fn pages_mut(&mut self, role: Role) -> &mut Pages<T> {
        match role {
            Role::Worker => &mut self.workers,
            Role::Server => &mut self.servers,
        }
    }
}

fn entries_mut<T>(role: Role, pages: &mut Pages<T>) -> impl DoubleEndedIterator<Item = (NodeId, &mut T)> {
    pages.iter_mut().enumerate().flat_map(move |(page, entries)| {
        let values = entries.iter_mut().enumerate();
        values.filter_map(move |(at, value)| value.as_mut().map(|value| (id(role, page, at), value)))
    })
}

fn id(role: Role, page: usize, at: usize) -> NodeId {
    let index = u32::try_from(page * PAGE + at).expect("only numbers below 2^32 are ever entered");
    NodeId { role, index }
}

impl<T> Default for NodeMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FromIterator<(NodeId, T)> for NodeMap<T> {
    fn from_iter<I: IntoIterator<Item = (NodeId, T)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (node, value) in entries {
            map.insert(node, value);
        }
        map
    }
}

/// # Panics
/// If the node has no value.
impl<T> Index<NodeId> for NodeMap<T> {
    type Output = T;
    fn index(&self, node: NodeId) -> &T {
        self.get(node).expect("the node has a value")
    }
}

/// # Panics
/// If the node has no value.
impl<T> IndexMut<NodeId> for NodeMap<T> {
    fn index_mut(&mut self, node: NodeId) -> &mut T {
        self.get_mut(node).expect("the node has a value")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::seed::Seed;

    #[test]
    fn a_node_map_holds_the_entries_of_a_search_tree_in_the_same_order() {
        let mut rng = Seed(1).rng();
        let (mut map, mut tree) = (NodeMap::new(), BTreeMap::new());
        for value in 0..3000_u32 {
            let numbers = [0, 1, 2, 4094, 4095, 4096, 4097, 1 << 20];
            let index = numbers[(rng.next_u64() % 8) as usize];
            let node =
                if rng.next_u64().is_multiple_of(2) { NodeId::worker(index) } else { NodeId::server(index) };
            if rng.next_u64().is_multiple_of(3) {
                assert_eq!(map.remove(node), tree.remove(&node));
            } else {
                assert_eq!(map.insert(node, value), tree.insert(node, value));
            }
            assert_eq!((map.len(), map.is_empty()), (tree.len(), tree.is_empty()));
            assert_eq!((map.get(node), map.contains(node)), (tree.get(&node), tree.contains_key(&node)));
            assert!(map.iter().eq(tree.iter().map(|(node, value)| (*node, value))));
            assert!(map.iter().rev().eq(tree.iter().rev().map(|(node, value)| (*node, value))));
            let workers = tree.iter().filter(|(node, _)| node.role == Role::Worker);
            assert!(map.clone().iter_mut().map(|(node, value)| (node, *value)).eq(tree.clone()));
            assert!(map.of_role(Role::Worker).eq(workers.map(|(node, value)| (*node, value))));
        }
    }
}
