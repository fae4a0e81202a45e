//! [`GroupGenerator`]: decides the members of each group, the order of groups, and whether an average counts.
//!
//! ```text
//!            request of w                all members arrived          all reduced
//! (idle) ── policy forms groups ──▶ pending ───────────────▶ running ─────────────▶ committed
//!                                      ▲ └─ all but one left ─▶ void   │
//!                                      └── without the suspect ────────┘ a member failed, was lost, or the deadline passed
//!                                                                      └─ too often, or one is left ─▶ aborted
//! ```
//!
//! A group has a place in one sequence of all groups, and is appended to the buffers of all its members in one mutation. A
//! worker that waits has arrived at the first group of its buffer; when all members have, all their locks are taken and the
//! group runs. A group that is run again after a failure keeps its place at the front of the survivors' buffers.
//!
//! Messages may be lost, repeated and reordered. A [`GroupMember`](crate::GroupMember) repeats what is not answered, and
//! the generator then says again what it has said: go, skip, or what became of a group. For that it keeps the decisions of
//! the groups that served each worker's newest request, and nothing older.
//!
//! Source: Ripples's Group Generator (recalled); the treatment of failures is our design, see the [crate].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use antdt_core::{DetRng, Holder, InvalidValue, JobTime, Machine, MembershipVersion, NodeId, Role};

use crate::config::GeneratorConfig;
use crate::connectivity::Connectivity;
use crate::draft::Draft;
use crate::lock::LockVector;
use crate::message::{
    GeneratorEffect, GeneratorError, GeneratorEvent, Go, GroupDecision, GroupKey, GroupOrigin, ReduceOutcome,
    Taken,
};
use crate::policy::GroupPolicy;
use crate::roster::{Roster, Slot};

/// A group that is not over.
#[derive(Debug, Clone)]
struct LiveGroup {
    key: GroupKey,
    kind: GroupOrigin,
    /// In order of nodes; at least two.
    members: Vec<Slot>,
    /// How many of them wait for it.
    arrived: usize,
    /// How many of them have the average.
    reduced: usize,
    /// What its members were told; `None` if it does not run.
    go: Option<Arc<Go>>,
}

/// Forms groups of workers, and makes sure that groups which share a worker run one after the other.
///
/// It guarantees, whatever messages it gets in whatever order:
///
/// - groups that run at the same time have no member in common;
/// - every worker is told to run its groups in increasing order of keys;
/// - a group is committed if all of its members have reported its average, and aborted otherwise, for all of them;
/// - a request is answered if members report or are given up: no set of workers waits for each other.
///
/// See the [crate] for the cost.
#[derive(Debug, Clone)]
#[doc(alias = "GG")]
pub struct GroupGenerator {
    config: GeneratorConfig,
    policy: Box<dyn GroupPolicy>,
    rng: DetRng,
    membership: MembershipVersion,
    roster: Roster,
    /// Groups that are not over, and vacant places.
    groups: Vec<Option<LiveGroup>>,
    vacant: Vec<usize>,
    order_next: u64,
    locks: LockVector,
    /// Workers whose requests wait for more workers to come, in the order in which they came: fewer than a group has.
    held: Vec<Slot>,
    /// When running groups are given up.
    deadlines: BTreeSet<(JobTime, usize)>,
    connectivity: Option<Connectivity>,
    effects: VecDeque<GeneratorEffect>,
}

impl GroupGenerator {
    /// Returns a generator without workers.
    ///
    /// # Errors
    /// If a setting is invalid; the error names it.
    pub fn new(config: GeneratorConfig, policy: Box<dyn GroupPolicy>) -> Result<Self, InvalidValue> {
        config.validate()?;
        if policy.group_size() < 2 {
            return Err(InvalidValue::new("group_size", policy.group_size(), "at least 2"));
        }
        Ok(Self {
            rng: config.seed.derive("groups").rng(),
            connectivity: config.bridges.then(|| Connectivity::new(policy.group_size())),
            config,
            policy,
            membership: MembershipVersion(0),
            roster: Roster::default(),
            groups: Vec::new(),
            vacant: Vec::new(),
            order_next: 0,
            locks: LockVector::default(),
            held: Vec::new(),
            deadlines: BTreeSet::new(),
            effects: VecDeque::new(),
        })
    }

    /// Returns the version of the set of workers that take part.
    pub const fn membership(&self) -> MembershipVersion {
        self.membership
    }

    /// Returns the number of workers that take part.
    pub fn members(&self) -> usize {
        self.roster.len()
    }

    /// Returns the groups that a worker has still to run, in this order; none if it does not take part.
    pub fn buffer(&self, node: NodeId) -> impl Iterator<Item = GroupKey> {
        let slot = self.roster.life_of(node).and_then(|holder| self.roster.slot_of(holder).ok());
        slot.into_iter().flat_map(|slot| self.roster[slot].buffer.iter().map(|group| self.group(*group).key))
    }

    /// Returns the origin and the members, in order of node, of a group that this worker has still to run;
    /// `None` if there is no such group.
    pub fn group_of(&self, node: NodeId, group: GroupKey) -> Option<(GroupOrigin, Vec<Holder>)> {
        let slot = self.roster.slot_of(self.roster.life_of(node)?).ok()?;
        let found =
            self.roster[slot].buffer.iter().map(|at| self.group(*at)).find(|found| found.key == group)?;
        Some((found.kind, found.members.iter().map(|slot| self.roster[*slot].holder).collect()))
    }

    /// Returns a worker's progress: the number of requests it has made, plus the progress with which it
    /// began; `None` if it does not take part.
    pub fn progress(&self, node: NodeId) -> Option<u64> {
        let slot = self.roster.slot_of(self.roster.life_of(node)?).ok()?;
        Some(self.roster[slot].progress)
    }

    /// Returns whether a worker is in a running group.
    pub fn is_locked(&self, node: NodeId) -> bool {
        let slot = self.roster.life_of(node).and_then(|holder| self.roster.slot_of(holder).ok());
        slot.is_some_and(|slot| self.locks.is_set(slot))
    }

    /// Handles the message of a worker that wants to take part.
    ///
    /// # Errors
    /// If its incarnation is fenced, the node is not a worker, or the largest number of workers takes part
    /// already.
    pub fn hello(&mut self, now: JobTime, holder: Holder, host: u32) -> Result<Taken, GeneratorError> {
        if holder.node.role != Role::Worker {
            return Err(GeneratorError::NoWorker { holder });
        }
        if self.roster.is_over(holder) {
            return Err(GeneratorError::Fenced { holder });
        }
        match self.roster.life_of(holder.node) {
            Some(life) if life == holder => return Ok(Taken::Again),
            Some(older) => drop(self.lost(now, older)?),
            None => {}
        }
        let most = self.config.members_max;
        if self.roster.len() >= most as usize {
            return Err(GeneratorError::Full { holder, most });
        }
        self.roster.join(holder, host);
        self.changed(holder, true);
        Ok(Taken::New)
    }

    /// Handles the request of a worker that has finished a step and waits.
    ///
    /// # Errors
    /// If the worker does not take part, or still waits for the answer to an older request.
    pub fn request(&mut self, now: JobTime, holder: Holder, sequence: u64) -> Result<Taken, GeneratorError> {
        let slot = self.roster.slot_of(holder)?;
        let worker = &self.roster[slot];
        if sequence <= worker.sequence {
            if sequence < worker.sequence {
                return Ok(Taken::Old);
            }
            self.say_again(slot);
            return Ok(Taken::Again);
        }
        if worker.open {
            return Err(GeneratorError::Open { holder, open: worker.sequence });
        }
        self.roster.ask(slot, sequence);
        if !self.policy.is_buffered() || self.roster[slot].buffer.is_empty() {
            self.generate(slot);
            self.call(now);
        }
        let buffer = &self.roster[slot].buffer;
        let target = if self.policy.is_buffered() { buffer.front() } else { buffer.back() };
        match target.map(|group| self.group(*group).key.order) {
            Some(order) => {
                self.roster[slot].target = order;
                self.arrive(now, slot);
            }
            None if self.policy.waits_for_more() && self.roster.len() > 1 => self.held.push(slot),
            None => self.skip(slot),
        }
        Ok(Taken::New)
    }

    /// Handles the report of a member on the result of its part in a group.
    ///
    /// # Errors
    /// If the worker does not take part, or no group of this key was formed.
    pub fn done(
        &mut self,
        now: JobTime,
        holder: Holder,
        key: GroupKey,
        outcome: ReduceOutcome,
    ) -> Result<Taken, GeneratorError> {
        let slot = self.roster.slot_of(holder)?;
        if key.order >= self.order_next {
            return Err(GeneratorError::NoGroup { holder, group: key, made: self.order_next });
        }
        let worker = &self.roster[slot];
        let front = worker.buffer.front().copied();
        let runs = |index: &usize| {
            let group = self.group(*index);
            group.key == key && group.go.is_some()
        };
        let Some(index) = front.filter(runs) else {
            let decision = worker.decisions.iter().find(|(known, _)| *known == key);
            let Some((_, decision)) = decision.copied() else { return Ok(Taken::Old) };
            self.effects.push_back(match decision {
                GroupDecision::Commit => GeneratorEffect::Commit { to: holder, group: key },
                GroupDecision::Abort => GeneratorEffect::Abort { to: holder, group: key, culprit: None },
            });
            return Ok(Taken::Again);
        };
        match outcome {
            ReduceOutcome::Failed { suspect } => {
                let suspect = suspect.and_then(|suspect| self.roster.slot_of(suspect).ok());
                let suspects: Vec<Slot> = suspect.into_iter().collect();
                self.abort(now, index, &suspects);
            }
            ReduceOutcome::Reduced if self.roster[slot].reported => return Ok(Taken::Again),
            ReduceOutcome::Reduced => {
                self.roster[slot].reported = true;
                let group = self.group_mut(index);
                group.reduced += 1;
                if group.reduced == group.members.len() {
                    self.commit(now, index);
                }
            }
        }
        Ok(Taken::New)
    }

    /// Handles the message of a worker that leaves and waits for nothing.
    ///
    /// # Errors
    /// If the worker never took part, or waits for the answer to a request.
    pub fn bye(&mut self, now: JobTime, holder: Holder) -> Result<Taken, GeneratorError> {
        let slot = match self.roster.slot_of(holder) {
            Err(GeneratorError::Fenced { .. }) => return Ok(Taken::Again),
            known => known?,
        };
        let worker = &self.roster[slot];
        if worker.open {
            return Err(GeneratorError::Open { holder, open: worker.sequence });
        }
        self.remove(now, slot);
        Ok(Taken::New)
    }

    /// Removes a worker that was declared lost, and all older incarnations of its node. The worker may not
    /// have said hello yet: its greeting may still be on its way, and is then refused.
    ///
    /// # Errors
    /// If the node is not a worker.
    pub fn lost(&mut self, now: JobTime, holder: Holder) -> Result<Taken, GeneratorError> {
        if holder.node.role != Role::Worker {
            return Err(GeneratorError::NoWorker { holder });
        }
        if self.roster.is_over(holder) {
            return Ok(Taken::Again);
        }
        if let Some(slot) = self.roster.life_of(holder.node).and_then(|life| self.roster.slot_of(life).ok()) {
            self.remove(now, slot);
        }
        self.roster.fence(holder);
        Ok(Taken::New)
    }

    fn group(&self, index: usize) -> &LiveGroup {
        self.groups[index].as_ref().expect("what is in a buffer is not over")
    }

    fn group_mut(&mut self, index: usize) -> &mut LiveGroup {
        self.groups[index].as_mut().expect("what is in a buffer is not over")
    }

    // Making groups.

    fn generate(&mut self, initiator: Slot) {
        let mut draft = Draft::new(&self.roster, self.config.filter, initiator, &self.held, &mut self.rng);
        self.policy.form(&mut draft);
        for (kind, members) in draft.finish() {
            self.append(kind, members);
        }
        let bridge = self.connectivity.as_mut().and_then(|connectivity| connectivity.bridge(&self.roster));
        if let Some(members) = bridge.filter(|members| members.len() > 1) {
            self.append(GroupOrigin::Bridge, members);
        }
    }

    /// Workers that waited for more to come are in a group now.
    fn call(&mut self, now: JobTime) {
        let roster = &self.roster;
        let called: Vec<Slot> = self.held.extract_if(.., |slot| !roster[*slot].buffer.is_empty()).collect();
        for slot in called {
            let first = self.roster[slot].buffer.front().copied();
            if let Some(order) = first.map(|index| self.group(index).key.order) {
                self.roster[slot].target = order;
                self.arrive(now, slot);
            }
        }
    }

    /// One worker less may come: those that wait for more are all, or one is left alone.
    fn fewer_may_come(&mut self, now: JobTime) {
        let Some(last) = self.held.last().copied() else { return };
        if self.roster.len() > 1 {
            self.generate(last);
            self.call(now);
        } else {
            self.held.clear();
            self.skip(last);
        }
    }

    /// The next group of all. Nothing else appends to buffers.
    fn append(&mut self, kind: GroupOrigin, members: Vec<Slot>) {
        let key = GroupKey { order: self.order_next, attempt: 0 };
        self.order_next += 1;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        for slot in &members {
            self.roster.append(*slot, index);
        }
        self.groups[index] = Some(LiveGroup { key, kind, members, arrived: 0, reduced: 0, go: None });
    }

    // Running them.

    /// A worker that waits has come to the first group of its buffer. If that is none that its request is for, it goes on
    /// without: the one that would have answered it is over.
    fn arrive(&mut self, now: JobTime, slot: Slot) {
        let worker = &self.roster[slot];
        if !worker.open || worker.arrived {
            return;
        }
        let target = worker.target;
        let front = worker.buffer.front().copied().filter(|index| self.group(*index).key.order <= target);
        let Some(index) = front else { return self.skip(slot) };
        self.roster[slot].arrived = true;
        self.group_mut(index).arrived += 1;
        self.start(now, index);
    }

    /// Starts a group if all its members have arrived.
    fn start(&mut self, now: JobTime, index: usize) {
        let Self { groups, roster, locks, effects, .. } = self;
        let Some(group) = groups[index].as_mut() else { return };
        let here = group.arrived == group.members.len() && group.go.is_none();
        if !here || !locks.take(&group.members) {
            return;
        }
        let deadline = now + self.config.group_limit;
        self.deadlines.insert((deadline, index));
        let go = Arc::new(Go {
            key: group.key,
            kind: group.kind,
            membership: self.membership,
            members: group.members.iter().map(|slot| roster[*slot].holder).collect(),
            deadline,
        });
        for slot in &group.members {
            effects.push_back(go_for(roster, *slot, &go));
        }
        group.go = Some(go);
    }

    /// The end of a run: locks are free, and all members have a decision.
    fn conclude(&mut self, index: usize, decision: GroupDecision, culprit: Option<Holder>) {
        let Self { groups, roster, locks, effects, deadlines, .. } = self;
        let group = groups[index].as_mut().expect("a group that runs is not over");
        let Some(go) = group.go.take() else { return };
        deadlines.remove(&(go.deadline, index));
        locks.release(&group.members);
        let key = group.key;
        for slot in &group.members {
            let worker = &mut roster[*slot];
            worker.decisions.push((key, decision));
            effects.push_back(match decision {
                GroupDecision::Commit => GeneratorEffect::Commit { to: worker.holder, group: key },
                GroupDecision::Abort => GeneratorEffect::Abort { to: worker.holder, group: key, culprit },
            });
        }
    }

    fn commit(&mut self, now: JobTime, index: usize) {
        self.conclude(index, GroupDecision::Commit, None);
        let group = self.retire(index);
        if let Some(connectivity) = &mut self.connectivity {
            connectivity.committed(&group.members, &self.roster);
        }
        for slot in &group.members {
            let worker = &mut self.roster[*slot];
            if worker.open && worker.target == group.key.order {
                worker.open = false;
            }
        }
        self.go_on(now, &group.members);
    }

    /// A running group breaks off. It runs again without the suspects, in the same place, unless that was too often or too
    /// few are left.
    fn abort(&mut self, now: JobTime, index: usize, suspects: &[Slot]) {
        let of_group = suspects.iter().find(|slot| self.group(index).members.contains(slot));
        let culprit = of_group.map(|slot| self.roster[*slot].holder);
        self.conclude(index, GroupDecision::Abort, culprit);
        let attempts_max = self.config.attempts_max;
        let group = self.group_mut(index);
        let suspect = |slot: &Slot| suspects.contains(slot);
        let mut out: Vec<Slot> = group.members.iter().copied().filter(suspect).collect();
        group.members.retain(|slot| !suspects.contains(slot));
        let again = group.key.attempt + 1 < attempts_max && group.members.len() > 1;
        if again {
            group.key.attempt += 1;
            (group.arrived, group.reduced) = (0, 0);
        }
        let survivors = group.members.clone();
        if !again {
            out.extend(&survivors);
            self.free(index);
        }
        for slot in &out {
            self.roster.withdraw(*slot, index);
        }
        self.go_on(now, &out);
        if again {
            // They are at the front of their buffers still.
            for slot in &survivors {
                let worker = &mut self.roster[*slot];
                (worker.arrived, worker.reported) = (false, false);
            }
            self.go_on(now, &survivors);
        }
    }

    /// Takes a group that is over out of all buffers.
    fn retire(&mut self, index: usize) -> LiveGroup {
        let group = self.free(index);
        for slot in &group.members {
            self.roster.withdraw(*slot, index);
        }
        group
    }

    fn free(&mut self, index: usize) -> LiveGroup {
        self.vacant.push(index);
        self.groups[index].take().expect("a group is over once")
    }

    /// Moves waiting workers on to the next group of their buffers.
    fn go_on(&mut self, now: JobTime, slots: &[Slot]) {
        for slot in slots {
            self.arrive(now, *slot);
        }
    }

    // Answering.

    fn skip(&mut self, slot: Slot) {
        let worker = &mut self.roster[slot];
        (worker.open, worker.skipped) = (false, true);
        self.effects.push_back(GeneratorEffect::Skip { to: worker.holder, request: worker.sequence });
    }

    /// Repeats the last message to a worker that repeats its request: it may not know that a group runs, or that there is none.
    fn say_again(&mut self, slot: Slot) {
        let worker = &self.roster[slot];
        if worker.skipped {
            let again = GeneratorEffect::Skip { to: worker.holder, request: worker.sequence };
            return self.effects.push_back(again);
        }
        let front = worker.buffer.front().filter(|_| worker.open && !worker.reported);
        if let Some(go) = front.and_then(|index| self.group(*index).go.clone()) {
            self.effects.push_back(go_for(&self.roster, slot, &go));
        }
    }

    // Those who take part.

    fn changed(&mut self, holder: Holder, joined: bool) {
        self.membership = self.membership.next();
        self.effects.push_back(GeneratorEffect::Membership { membership: self.membership, holder, joined });
    }

    /// A worker is gone: what it runs breaks off, and the groups that it is in do without it.
    fn remove(&mut self, now: JobTime, slot: Slot) {
        let holder = self.roster[slot].holder;
        // Nothing starts for it from here on, and no request of it is answered.
        let arrived = std::mem::take(&mut self.roster[slot].arrived);
        self.roster[slot].open = false;
        let groups: Vec<usize> = self.roster[slot].buffer.iter().copied().collect();
        for (place, index) in groups.into_iter().enumerate() {
            if self.group(index).go.is_some() {
                self.abort(now, index, &[slot]);
                continue;
            }
            self.roster.withdraw(slot, index);
            let group = self.group_mut(index);
            group.members.retain(|member| *member != slot);
            group.arrived -= usize::from(arrived && place == 0);
            if group.members.len() > 1 {
                self.start(now, index);
            } else {
                let group = self.retire(index);
                self.go_on(now, &group.members);
            }
        }
        self.roster.leave(slot);
        self.changed(holder, false);
        self.held.retain(|held| *held != slot);
        self.fewer_may_come(now);
    }
}

/// What a member is told of a group that runs.
fn go_for(roster: &Roster, slot: Slot, go: &Arc<Go>) -> GeneratorEffect {
    let worker = &roster[slot];
    let last = worker.target == go.key.order;
    GeneratorEffect::Go { to: worker.holder, request: worker.sequence, go: Arc::clone(go), last }
}

impl Machine for GroupGenerator {
    type Event = GeneratorEvent;
    type Answer = Result<Taken, GeneratorError>;
    type Effect = GeneratorEffect;

    fn handle(&mut self, now: JobTime, event: GeneratorEvent) -> Self::Answer {
        match event {
            GeneratorEvent::Hello { holder, host } => self.hello(now, holder, host),
            GeneratorEvent::Request { holder, sequence } => self.request(now, holder, sequence),
            GeneratorEvent::Done { holder, group, outcome } => self.done(now, holder, group, outcome),
            GeneratorEvent::Bye { holder } => self.bye(now, holder),
            GeneratorEvent::Lost { holder } => self.lost(now, holder),
        }
    }

    fn poll_effect(&mut self) -> Option<GeneratorEffect> {
        self.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Gives up the groups whose time is over. If some members have reported, those that have not sit the next attempt out.
    fn on_deadline(&mut self, now: JobTime) {
        while let Some((_, index)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            let members = &self.group(index).members;
            let silent = |slot: &&Slot| !self.roster[**slot].reported;
            let mut suspects: Vec<Slot> = members.iter().filter(silent).copied().collect();
            if suspects.len() == members.len() {
                suspects.clear();
            }
            self.abort(now, index, &suspects);
        }
    }
}

#[cfg(test)]
mod tests;
