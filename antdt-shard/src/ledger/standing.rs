//! What lasts as long as a generation of the service: its workers and their leases.

use std::collections::{BTreeSet, VecDeque};

use antdt_core::{Generation, Grant, Holder, Incarnation, JobTime, NodeId, NodeMap, RequestId};

use super::leases::{Lease, Leases};

/// The answer to a request, as long as the holder may repeat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) request: RequestId,
    pub(super) first: Grant,
    pub(super) more: Vec<Grant>,
}

/// A worker, as long as this generation lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) live: Incarnation,
    pub(super) leases: Leases,
    pub(super) last: Option<Answered>,
    /// Leases that the live incarnation finished lately, with their lengths: the repetition of an ack whose answer
    /// was lost is recognised. As many as the last call spoke of are enough, because a holder acknowledges one call at
    /// a time; some more serve holders that do otherwise.
    pub(super) completed: VecDeque<(u64, u64)>,
}

impl Member {
    /// Finished leases remembered whatever the last call was: few, for there may be thousands of members.
    const COMPLETED_MIN: usize = 16;

    /// Most finished leases remembered. A lease cap above it is legal; the repetition of an ack that finished more
    /// shards than this in one call is then answered as stale, which costs a count of the agent, not a sample.
    const COMPLETED_MAX: usize = 1024;

    /// How many are remembered after a call that speaks of so many leases.
    pub(super) fn remembered(max_leases: u32, acks: usize) -> usize {
        acks.clamp(Self::COMPLETED_MIN, Self::COMPLETED_MAX).min(max_leases as usize)
    }

    pub(super) fn new(live: Incarnation) -> Self {
        Self { live, leases: Leases::default(), last: None, completed: VecDeque::new() }
    }

    pub(super) fn held(&self) -> u32 {
        u32::try_from(self.leases.len()).expect("no more than max_leases_per_holder, a u32")
    }
}

/// What a new generation starts without: leases, registrations, request answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GenerationState {
    pub(super) generation: Generation,
    pub(super) sequence: u64,
    pub(super) members: NodeMap<Member>,
    /// Workers that were told to wait and have been granted nothing since.
    pub(super) idle: BTreeSet<NodeId>,
    /// Nothing is granted before this.
    pub(super) frozen_until: Option<JobTime>,
}

impl GenerationState {
    pub(super) const fn new(generation: Generation) -> Self {
        Self { generation, sequence: 0, members: NodeMap::new(), idle: BTreeSet::new(), frozen_until: None }
    }

    /// All leases, in the order of their holders.
    pub(super) fn leases(&self) -> impl Iterator<Item = (Holder, &Lease)> {
        self.members.iter().flat_map(|(node, member)| {
            let holder = Holder::new(node, member.live);
            member.leases.iter().map(move |lease| (holder, lease))
        })
    }

    /// All leases, oldest first; O(leases · log leases).
    pub(super) fn leases_by_age(&self) -> Vec<(Holder, &Lease)> {
        let mut leases: Vec<_> = self.leases().collect();
        leases.sort_unstable_by_key(|(_, lease)| lease.sequence);
        leases
    }
}
