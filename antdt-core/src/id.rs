//! Identities. Each is its own type, so that the compiler refuses arguments in the wrong order.
//!
//! Three are never mixed: [`NodeId`] is a place in the job and survives restarts, [`Incarnation`] numbers the
//! processes that take that place one after the other, [`Rank`] is a position in one group of one collective.

use std::fmt;
use std::str::FromStr;

use crate::error::InvalidValue;

macro_rules! number_id {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the next number, or the same one if it is the largest.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number_id! {
    /// Number of an incarnation of a node. Each restart has a higher number; lower ones are fenced.
    Incarnation(u32)
}
number_id! {
    /// Number of a start of the master. Leases of an earlier generation are void.
    Generation(u64)
}
number_id! {
    /// Version of the set of live nodes; grows with every join and leave.
    MembershipVersion(u64)
}
number_id! {
    /// Version of a [`Plan`](crate::Plan); the newest wins, none is used twice.
    PlanVersion(u64)
}
number_id! {
    /// Position of a member in one group: `0..world`. Not a node: a node's rank changes with the membership.
    Rank(u32)
}
number_id! {
    /// Identity of a [`NodeAction`](crate::NodeAction), by which a repeated one is recognised.
    ActionId(u64)
}
number_id! {
    /// Number of a pass over the data, from 0.
    Epoch(u32)
}
number_id! {
    /// Number of a global step of training, from 0. Under ASP each worker counts its own.
    Iteration(u64)
}
number_id! {
    /// Number of a checkpoint of the model, the optimizer's state and the ledger.
    CheckpointId(u64)
}
number_id! {
    /// Number of a rollback: the return of a running job to a checkpoint, or to its start. 0 before the
    /// first. What a worker did under an older one is undone.
    RollbackId(u64)
}
number_id! {
    /// Running number of a worker's requests for shards; a repeated one gets the same answer.
    RequestId(u64)
}

/// What a node does in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Role {
    /// Computes gradients, and in some modes holds the model.
    Worker,
    /// Holds a partition of the parameters.
    Server,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Server => "server",
        })
    }
}

/// A place in the job, such as the second worker or the first server. It stays the same over restarts.
///
/// Written `worker-1`, `server-0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// Role of the node.
    pub role: Role,
    /// Index among the nodes of that role, from 0.
    pub index: u32,
}

impl NodeId {
    /// Returns the worker with this index.
    pub const fn worker(index: u32) -> Self {
        Self { role: Role::Worker, index }
    }

    /// Returns the parameter server with this index.
    pub const fn server(index: u32) -> Self {
        Self { role: Role::Server, index }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.index)
    }
}

impl FromStr for NodeId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = || InvalidValue::new("node", text, "`worker-N` or `server-N`");
        let (role, index) = text.split_once('-').ok_or_else(refused)?;
        let index = index.parse().map_err(|_| refused())?;
        match role {
            "worker" => Ok(Self::worker(index)),
            "server" => Ok(Self::server(index)),
            _ => Err(refused()),
        }
    }
}

/// One incarnation of one node, the unit that may hold a lease or push a gradient.
///
/// Written `worker-1#0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Node of the incarnation.
    pub node: NodeId,
    /// Number of the incarnation.
    pub incarnation: Incarnation,
}

impl Holder {
    /// Returns this incarnation of this node.
    pub const fn new(node: NodeId, incarnation: Incarnation) -> Self {
        Self { node, incarnation }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.node, self.incarnation)
    }
}

impl FromStr for Holder {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = || InvalidValue::new("holder", text, "`worker-N#LIFE` or `server-N#LIFE`");
        let (node, incarnation) = text.split_once('#').ok_or_else(refused)?;
        let node = node.parse().map_err(|_| refused())?;
        Ok(Self::new(node, Incarnation(incarnation.parse().map_err(|_| refused())?)))
    }
}

/// Identity of a lease, the right to train one shard. Never reused: a new master counts in a new generation.
///
/// Written `1.17`: generation and running number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// Generation of the shard service that granted the lease.
    pub generation: Generation,
    /// Running number of the lease within that generation.
    pub sequence: u64,
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.sequence)
    }
}

impl FromStr for LeaseId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = || InvalidValue::new("lease", text, "`GENERATION.NUMBER`");
        let (generation, sequence) = text.split_once('.').ok_or_else(refused)?;
        let generation = Generation(generation.parse().map_err(|_| refused())?);
        Ok(Self { generation, sequence: sequence.parse().map_err(|_| refused())? })
    }
}

/// Identities are written as people write them, so that they can be keys of a map.
#[cfg(feature = "serde")]
mod text {
    use super::{Holder, LeaseId, NodeId};

    macro_rules! as_text {
        ($($name:ty),+) => {$(
            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                    text.parse().map_err(serde::de::Error::custom)
                }
            }
        )+};
    }

    as_text!(NodeId, Holder, LeaseId);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reads_back_as_it_is_written() {
        for node in [NodeId::worker(0), NodeId::server(17)] {
            assert_eq!(node.to_string().parse::<NodeId>().unwrap(), node);
        }
    }

    #[test]
    fn a_life_and_a_lease_read_back_as_they_are_written() {
        let holder = Holder::new(NodeId::server(3), Incarnation(2));
        assert_eq!(holder.to_string().parse::<Holder>().unwrap(), holder);
        let lease = LeaseId { generation: Generation(4), sequence: u64::MAX };
        assert_eq!(lease.to_string().parse::<LeaseId>().unwrap(), lease);
        for text in ["worker-1", "worker-1#", "1.2.3", "1.", "#1"] {
            assert!(text.parse::<Holder>().is_err() && text.parse::<LeaseId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_node_is_refused_with_the_form_that_is_accepted() {
        for text in ["", "worker", "worker-", "worker--1", "boss-1", "worker-1x"] {
            let e = text.parse::<NodeId>().unwrap_err();
            assert!(e.to_string().contains("worker-N"), "{e}");
        }
    }
}
