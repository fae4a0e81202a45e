//! [`Membership`]: the workers of a job, and the groups in which they reduce.
//!
//! In the all-reduce mode every step needs every member, so a member that dies or arrives changes the group:
//! all live workers ask the master for a group ([`Membership::join`]), and when the last one has asked a new
//! group is formed.
//!
//! # What happens to the step that was in flight
//!
//! A step ends in two rounds. In the first every worker gets the reduced gradient (*prepared*); in the second every worker
//! learns that all have it (*applied*). A worker contributes to the second round only when it is prepared, so
//! if anyone applied step `S`, all were prepared for `S`. Therefore, with `S` the newest step any survivor has
//! prepared or applied: **commit `S` if every survivor has it, otherwise no worker applied it, not even a dead one, and
//! it is aborted.** Survivors know what the dead contributed to `S`; those samples are settled in the ledger
//! before the dead node's leases are given to others. So a death neither loses nor repeats a sample, with
//! respect to the ledger *and* to the model.
//!
//! # Every worker's word is about the group in force
//!
//! The rule above asks what the survivors of *one* group have. A call that is repeated because its answer was
//! late, or that waited while the master was stopped, may describe an older group: its worker may have
//! dropped the step since, or applied one more. So a worker names the group that it was told of last
//! ([`Standing::group`]). A member of the group in force that names an older group does not count as waiting:
//! it [is told again](Arrival::Member) which group it is in.
//!
//! In every order of delivery, the requests that wait are then true. A worker that asks for a group does
//! nothing until it is told of one that is newer than the group it names, and it is told of such a group only
//! after the group in force was replaced. So all copies of its question that name the group in force say the
//! same, and hold until the next group is formed. A copy that names an older group is either old: its worker
//! is told of a group that it knows, and ignores that; or its worker did not hear of the group in force: it
//! is told now, decides the step that was open before as all others do, and finds for itself whether the
//! group still works. If the master counted that copy as a request for the next group, the step that the
//! group has decided would be decided again, without the members that heard of the group and died.
//!
//! Source: our design; the two rounds are those of a two-phase commit whose coordinator is consulted only after a failure.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Contribution, Holder, Incarnation, MembershipVersion, NodeId, NodeMap, Rank, Standing};

/// A group that the master has just formed, with the fate of the step that was in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formation {
    /// Version of the membership.
    pub version: MembershipVersion,
    /// Members in order of rank.
    pub members: Vec<Holder>,
    /// Step that the members commit: a member that has only prepared its result applies it first. `None` if
    /// no survivor has a prepared result to apply.
    pub commit: Option<u64>,
    /// Rank that has the newest model after the commit, from which other members copy it; `None` if no model
    /// was trained yet and all start from the seed.
    pub source: Option<Rank>,
    /// Number of the new group's first step.
    pub next_step: u64,
    /// Samples of dead members that count as committed. The ledger must settle them before it releases the
    /// leases of `released`.
    pub settled: Vec<Contribution>,
    /// Dead members whose leases return to the ledger now.
    pub released: Vec<Holder>,
    /// Whether the model is lost, because no member of the group before is left.
    pub model_lost: bool,
}

/// Answer to a worker that asks to join a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The worker must wait until the next group is formed.
    Waits,
    /// The worker is a member of the group in force but names an older one: it was not told of the new group, or its
    /// request is old.
    Member,
    /// The sender is not the newest incarnation of a live worker; the request has no effect.
    NotLive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Launched, not heard of.
    Pending,
    /// Registered.
    Live,
    /// Left in order, or given up.
    Gone,
}

/// The workers of a job, and the group in which they reduce. The master's head asks it when to form a new
/// group.
#[derive(Debug, Clone)]
pub struct Membership {
    nodes: NodeMap<(Incarnation, State)>,
    /// Nodes whose newest life was launched and not heard of.
    pending: usize,
    /// Nodes whose newest life is live.
    live: usize,
    version: MembershipVersion,
    group_version: MembershipVersion,
    /// Members of the group in force that are still alive.
    group: BTreeSet<Holder>,
    /// Members of it that died; their leases are kept until the open step is decided.
    dead: BTreeSet<Holder>,
    waiting: BTreeMap<Holder, Standing>,
    /// Waiting workers that are live.
    waiting_live: usize,
    /// Waiting workers that are not members of the group in force.
    newcomers: usize,
    /// Members of the group in force that wait for the next one because a call in this one failed.
    failed: usize,
    formed_before: bool,
    /// The newest step in the model that the group in force began with.
    decided: Option<u64>,
}

impl Membership {
    /// Returns the membership of a job with these workers, none of which has started. The first group waits
    /// for all of them.
    pub fn new(workers: impl IntoIterator<Item = NodeId>) -> Self {
        let nodes: NodeMap<_> =
            workers.into_iter().map(|node| (node, (Incarnation(0), State::Pending))).collect();
        Self {
            pending: nodes.len(),
            live: 0,
            nodes,
            version: MembershipVersion(0),
            group_version: MembershipVersion(0),
            group: BTreeSet::new(),
            dead: BTreeSet::new(),
            waiting: BTreeMap::new(),
            waiting_live: 0,
            newcomers: 0,
            failed: 0,
            formed_before: false,
            decided: None,
        }
    }

    /// Returns the version of the set of live workers.
    pub const fn version(&self) -> MembershipVersion {
        self.version
    }

    /// Continues after a version that an earlier master gave out: no version up to and including it is given
    /// again.
    pub fn continue_after(&mut self, version: MembershipVersion) {
        self.version = self.version.max(version).next();
    }

    /// Returns the newest incarnation of each live worker.
    pub fn live(&self) -> impl Iterator<Item = Holder> + '_ {
        self.nodes
            .iter()
            .filter(|(_, (_, state))| *state == State::Live)
            .map(|(node, (incarnation, _))| Holder::new(node, *incarnation))
    }

    /// Returns the number of live workers.
    pub const fn live_count(&self) -> usize {
        self.live
    }

    /// Returns whether `holder` is the newest incarnation of a live worker.
    pub fn is_live(&self, holder: Holder) -> bool {
        self.nodes.get(holder.node) == Some(&(holder.incarnation, State::Live))
    }

    /// Returns the newest incarnation of a worker; `None` if the job has no such worker.
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.nodes.get(node).map(|(incarnation, _)| *incarnation)
    }

    /// Returns whether all workers have left or were given up.
    pub const fn is_empty(&self) -> bool {
        self.live == 0 && self.pending == 0
    }

    /// Returns the version of the group in force if one of its members died, or waits for the next group
    /// because a call in this one failed ([`Standing::broken`]): a member in a call there waits in vain.
    pub fn broken(&self) -> Option<MembershipVersion> {
        (!self.dead.is_empty() || self.failed > 0).then_some(self.group_version)
    }

    /// Returns whether the members should join again after their step, because a worker waits to be admitted.
    pub fn reform_wanted(&self) -> bool {
        !self.group.is_empty() && self.newcomers > 0
    }

    /// Registers an incarnation of a worker. Returns whether it is accepted; an incarnation older than the
    /// newest is not.
    pub fn register(&mut self, holder: Holder) -> bool {
        let accepted = self.nodes.get(holder.node).is_some_and(|(newest, _)| holder.incarnation >= *newest);
        if accepted && !self.is_live(holder) {
            self.set(holder, State::Live);
            self.version = self.version.next();
        }
        accepted
    }

    /// Handles a worker's request to join a group. A repeated request changes nothing.
    pub fn join(&mut self, holder: Holder, standing: Standing) -> Arrival {
        if !self.is_live(holder) {
            return Arrival::NotLive;
        }
        let member = self.group.contains(&holder);
        if self.waiting.contains_key(&holder) {
            return Arrival::Waits;
        }
        if member && standing.group < self.group_version {
            return Arrival::Member;
        }
        self.waiting_live += 1;
        self.newcomers += usize::from(!member);
        self.failed += usize::from(member && standing.broken);
        self.waiting.insert(holder, standing);
        Arrival::Waits
    }

    /// Removes a worker that left in order, without leases and without a step in flight.
    pub fn leave(&mut self, holder: Holder) {
        if self.is_live(holder) {
            self.wait_no_more(holder);
            self.set(holder, State::Gone);
            self.group.remove(&holder);
            self.version = self.version.next();
        }
    }

    /// Removes a worker that will not be started again.
    pub fn give_up(&mut self, node: NodeId) {
        if let Some((incarnation, _)) = self.nodes.get(node) {
            self.set(Holder::new(node, *incarnation), State::Gone);
        }
        self.version = self.version.next();
    }

    /// Records that an incarnation of a worker was launched. The worker may be new to the job.
    pub fn launched(&mut self, holder: Holder) {
        match self.nodes.get(holder.node) {
            Some((newest, _)) if holder.incarnation < *newest => {}
            Some(_) => self.set(holder, State::Pending),
            None => {
                self.nodes.insert(holder.node, (holder.incarnation, State::Pending));
                self.pending += 1;
            }
        }
    }

    /// Handles the end of a worker's incarnation. Returns the incarnations whose leases can go back to the
    /// ledger at once. The ended incarnation is among them, unless the survivors of its group must still
    /// decide its last step.
    pub fn lost(&mut self, holder: Holder) -> Vec<Holder> {
        self.wait_no_more(holder);
        if self.is_live(holder) {
            self.set(holder, State::Pending);
            self.version = self.version.next();
        }
        // An end of a life at the ledger ends all before it: that of a replacement that did not live to see the new
        // group waits with that of its predecessor, whose last step is still to be decided.
        let succeeds_a_dead_member = self.dead.iter().any(|dead| dead.node == holder.node);
        if !self.group.remove(&holder) && !succeeds_a_dead_member {
            return vec![holder];
        }
        self.dead.insert(holder);
        if self.group.is_empty() {
            // No member is left to ask: the ledger alone decides.
            return std::mem::take(&mut self.dead).into_iter().collect();
        }
        Vec::new()
    }

    /// Forgets the group in force and its model, so that the next group begins as the first one did. Returns
    /// the dead members whose leases can go back to the ledger.
    pub fn disband(&mut self) -> Vec<Holder> {
        self.group.clear();
        self.newcomers = self.waiting.len();
        self.failed = 0;
        self.formed_before = false;
        self.decided = None;
        std::mem::take(&mut self.dead).into_iter().collect()
    }

    /// Removes and returns all waiting workers, which the caller sends away because there is nothing left to
    /// do.
    pub fn dismiss(&mut self) -> Vec<Holder> {
        self.take_waiting().into_keys().collect()
    }

    /// Forms a group if all expected members have asked to join; `None` otherwise.
    pub fn form(&mut self) -> Option<Formation> {
        // The first group waits for all; later ones go on without members that are being started again, unless none
        // else is there: then no member waits.
        let complete = self.waiting_live == self.live && (self.formed_before || self.pending == 0);
        if !complete || self.waiting.is_empty() {
            return None;
        }
        let waiting = self.take_waiting();
        let survivors: Vec<&Standing> =
            waiting.iter().filter(|(holder, _)| self.group.contains(holder)).map(|(_, s)| s).collect();
        let applied_max = survivors.iter().filter_map(|s| s.applied.as_ref()).map(|r| r.step).max();
        let newest = survivors
            .iter()
            .flat_map(|s| s.applied.iter().chain(&s.prepared))
            .map(|result| result.step)
            .max();
        let has = |s: &Standing, step: u64| {
            s.applied.as_ref().is_some_and(|r| r.step >= step)
                || s.prepared.as_ref().is_some_and(|r| r.step == step)
        };
        let decided = match newest {
            Some(step) if survivors.iter().all(|s| has(s, step)) => Some(step),
            Some(_) | None => applied_max,
        };
        let members: Vec<Holder> = waiting.keys().copied().collect();
        let source = decided.and_then(|step| {
            waiting.iter().position(|(holder, s)| self.group.contains(holder) && has(s, step))
        });
        let dead = std::mem::take(&mut self.dead);
        let settled = decided
            .and_then(|step| {
                // A replacement that took the model over knows the step, but not the members that contributed to it.
                let results = survivors.iter().flat_map(|s| s.applied.iter().chain(&s.prepared));
                results.filter(|result| result.step == step).max_by_key(|result| result.contributions.len())
            })
            .map(|result| {
                result
                    .contributions
                    .iter()
                    .filter(|c| dead.contains(&c.holder) && !c.acks.is_empty())
                    .cloned()
                    .collect()
            })
            .unwrap_or_default();
        // Survivors that do not have the step that their group began with are newcomers: the last one that had the model
        // died before they got it.
        let model_lost = self.formed_before && (survivors.is_empty() || decided < self.decided);
        self.formed_before = true;
        self.decided = decided;
        self.version = self.version.next();
        self.group_version = self.version;
        self.group = members.iter().copied().collect();
        Some(Formation {
            version: self.version,
            members,
            commit: decided.filter(|step| {
                survivors.iter().any(|s| s.applied.as_ref().is_none_or(|result| result.step < *step))
            }),
            source: source.map(|index| Rank(u32::try_from(index).expect("a group is smaller than 2^32"))),
            next_step: decided.map_or(0, |step| step + 1),
            settled,
            released: dead.into_iter().collect(),
            model_lost,
        })
    }

    /// Makes `newest` the newest life of its node, in the given state.
    fn set(&mut self, newest: Holder, to: State) {
        let Some(life) = self.nodes.get_mut(newest.node) else { return };
        let (incarnation, from) = std::mem::replace(life, (newest.incarnation, to));
        match from {
            State::Pending => self.pending -= 1,
            State::Live => {
                self.live -= 1;
                let before = Holder::new(newest.node, incarnation);
                self.waiting_live -= usize::from(self.waiting.contains_key(&before));
            }
            State::Gone => {}
        }
        match to {
            State::Pending => self.pending += 1,
            State::Live => {
                self.live += 1;
                self.waiting_live += usize::from(self.waiting.contains_key(&newest));
            }
            State::Gone => {}
        }
    }

    fn wait_no_more(&mut self, holder: Holder) {
        if let Some(standing) = self.waiting.remove(&holder) {
            let member = self.group.contains(&holder);
            self.waiting_live -= usize::from(self.is_live(holder));
            self.newcomers -= usize::from(!member);
            self.failed -= usize::from(member && standing.broken);
        }
    }

    fn take_waiting(&mut self) -> BTreeMap<Holder, Standing> {
        self.waiting_live = 0;
        self.newcomers = 0;
        self.failed = 0;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests;
