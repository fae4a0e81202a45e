//! Operations of a group on the virtual clock: which members have come, when the result arrives, and which members miss it.

use std::sync::Arc;
use std::time::Duration;

use antdt_collective::lanes::Lanes;
use antdt_core::{Holder, JobTime, Joined, LinkReport, MembershipVersion, Rank};
use antdt_job::Reply;
use antdt_job::limits::next_timeout;

use super::group::{Fate, Part, SimGroup, Sum};
use super::life::LifeId;
use super::{ACK_BYTES, BREAK_DELAY, Due, Work, World};
use crate::happening::Observer;
use crate::model::{Collective, Site};

/// Numbers of groups apart from one of all.
const APART_BITS: u32 = 40;

/// The version of a group that meets apart from the others of a group of all; groups of all have smaller ones.
const fn apart(home: MembershipVersion, number: u64) -> MembershipVersion {
    MembershipVersion(home.0 << APART_BITS | number)
}

const fn is_apart(version: MembershipVersion) -> bool {
    version.0 >> APART_BITS > 0
}

impl<O: Observer> World<O> {
    /// A worker comes into the group that it was told of.
    pub(super) fn enter(&mut self, id: LifeId, joined: &Joined) {
        let version = joined.membership;
        if !self.groups.contains_key(&version) {
            let members: Option<Vec<LifeId>> =
                joined.members.iter().map(|(holder, _)| self.life_of(*holder)).collect();
            let source = joined.source.map(|rank| rank.0 as usize);
            // Groups without a member are not needed any more.
            let used: std::collections::BTreeSet<MembershipVersion> =
                self.lives.iter().filter_map(|life| life.group.map(|(group, _)| group)).collect();
            self.groups.retain(|known, group| used.contains(known) || group.arrived > 0);
            let gone = members.is_none();
            let members = members.unwrap_or_default();
            let holders = joined.members.iter().map(|(holder, _)| *holder).collect();
            let mut group = SimGroup::new(members, holders, source);
            group.broken = gone;
            for (rank, member) in (0..).zip(group.members.iter()) {
                self.lives[*member].place = Some((version, rank));
            }
            self.groups.insert(version, group);
        }
        let life = &mut self.lives[id];
        let members = joined.members.iter().map(|(holder, _)| *holder);
        life.timeout = next_timeout(life.timeout, &life.broken, members);
        life.broken = Arc::default();
        let lacking = !life.trained;
        life.home = Some(version);
        life.group = life.place.filter(|(group, _)| *group == version);
        self.meet(id, Part::Enter { lacking });
    }

    /// A worker goes to a group apart from the others of the group of all.
    pub(super) fn go_apart(&mut self, id: LifeId, number: u64, ranks: &[Rank]) {
        let life = &mut self.lives[id];
        life.group = None;
        let Some(home) = life.home else { return };
        let version = apart(home, number);
        if !self.groups.contains_key(&version) {
            let Some(all) = self.groups.get(&home) else { return };
            let of = |rank: &Rank| {
                let rank = rank.0 as usize;
                Some((*all.members.get(rank)?, *all.holders.get(rank)?))
            };
            let Some(members) = ranks.iter().map(of).collect::<Option<Vec<(LifeId, Holder)>>>() else {
                return;
            };
            let is_here = |(life, _): &(LifeId, Holder)| {
                let life = &self.lives[*life];
                !life.is_dead() && life.home == Some(home)
            };
            let is_whole = members.iter().all(is_here);
            let (lives, holders): (Vec<LifeId>, Vec<Holder>) = members.into_iter().unzip();
            let mut group = SimGroup::new(lives, holders.into(), None);
            group.broken = !is_whole;
            // Each worker is in one group after the other: those with smaller numbers in which no member waits are over.
            self.groups.retain(|known, group| !is_apart(*known) || group.arrived > 0 || group.under_way);
            self.groups.insert(version, group);
        }
        let group = &self.groups[&version];
        let rank = (0..).zip(group.members.iter()).find(|(_, member)| **member == id);
        self.lives[id].group = rank.map(|(rank, _)| (version, rank));
    }

    /// A process is gone: the groups that it was to come to break.
    pub(super) fn break_apart(&mut self, id: LifeId) {
        let of_it = |(version, group): (&MembershipVersion, &SimGroup)| {
            (is_apart(*version) && !group.under_way && group.members.contains(&id)).then_some(*version)
        };
        let broken: Vec<MembershipVersion> = self.groups.iter().filter_map(of_it).collect();
        for version in broken {
            self.leave_group(version, Some(id));
        }
    }

    /// A member comes to the group's next operation.
    pub(super) fn meet(&mut self, id: LifeId, part: Part) {
        let now = self.now;
        let life = &mut self.lives[id];
        life.in_group_call = true;
        let (call, cut) = (life.call, life.cut_until > now);
        let place = life.group;
        let open = place.and_then(|(version, rank)| Some((version, rank, self.groups.get_mut(&version)?)));
        let Some((version, rank, group)) = open.filter(|(_, _, group)| !group.broken) else {
            self.later_broken(id, call, BREAK_DELAY);
            return;
        };
        if cut {
            // No member hears of it, and it hears of none: it waits, unless it has yet to connect.
            let sets_up = matches!(part, Part::Enter { .. });
            let after = if sets_up { BREAK_DELAY } else { life.timeout };
            group.broken |= sets_up;
            self.later_broken(id, call, after);
            return;
        }
        group.come(now, rank as usize, call, part);
        if group.arrived == group.members.len() {
            self.operate(version);
        } else if !group.timer_armed {
            group.timer_armed = true;
            let due = now + self.lives[id].timeout;
            self.queue.push(due, Due::Late(version));
        }
    }

    /// All members have come.
    fn operate(&mut self, version: MembershipVersion) {
        let Some(group) = self.groups.get_mut(&version) else { return };
        group.under_way = true;
        let (operation, begin) = (group.operation, group.last);
        let time = self.time_of(version, begin);
        self.queue.push(begin + time, Due::Done(version, operation));
    }

    fn later_broken(&mut self, id: LifeId, call: u64, after: Duration) {
        self.queue.push(self.now + after, Due::Over(id, call, Work::Break));
    }

    /// How long the operation takes that all have come to, the last one at `begin`.
    fn time_of(&mut self, version: MembershipVersion, begin: JobTime) -> Duration {
        let group = &self.groups[&version];
        let world = u32::try_from(group.members.len()).unwrap_or(u32::MAX);
        let model_bytes = self.setup.gradient_bytes;
        let operations: [Option<(Collective, u32)>; 3] = match group.sum {
            Some(Sum::Entered { lacking }) => {
                let model = (lacking && group.source.is_some())
                    .then_some((Collective::Broadcast(model_bytes), world));
                [Some((Collective::AllReduce(1), world)), model, None]
            }
            Some(Sum::Combined { acks, peers, in_parts, .. }) => {
                let bytes = ACK_BYTES * (u64::from(world) + acks);
                let shares = Some((Collective::AllGather(bytes), world));
                let (combine, means) = match (self.setup.sync.capabilities().mixes(), in_parts) {
                    (false, _) => ((Collective::AllReduce(model_bytes), world), None),
                    // Each is given its part of all models, in as many bytes as a gather has, and gives the mean of it to all.
                    (true, true) => {
                        let gather = (Collective::AllGather(model_bytes), world);
                        (gather, Some(gather))
                    }
                    // Each sends its whole model to each of its peers.
                    (true, false) => ((Collective::AllGather(model_bytes * u64::from(peers)), peers), None),
                };
                [Some(combine), means, shares]
            }
            Some(Sum::Agreed(_)) => [Some((Collective::AllReduce(8 * Lanes::LEN as u64), world)), None, None],
            None => [None; 3],
        };
        let mut time = match group.sum {
            Some(Sum::Entered { .. }) => self.models.network.form(begin, world, &mut self.network_rng),
            Some(Sum::Combined { .. } | Sum::Agreed(_)) | None => Duration::ZERO,
        };
        for (operation, world) in operations.into_iter().flatten() {
            time += self.models.network.collective(begin + time, operation, world, &mut self.network_rng);
        }
        time
    }

    /// The result of an operation arrives.
    pub(super) fn done(&mut self, version: MembershipVersion, operation: u64) {
        let Some(group) = self.groups.get_mut(&version).filter(|group| group.operation == operation) else {
            return;
        };
        let fates = group.fates.take();
        let members = Arc::clone(&group.members);
        let source = group.source.and_then(|rank| members.get(rank)).copied();
        if self.setup.reports_links && matches!(group.sum, Some(Sum::Combined { .. })) {
            let began = group.last;
            self.note_transfers(&members, began);
        }
        let Some(group) = self.groups.get_mut(&version) else { return };
        let reply = match group.sum {
            Some(Sum::Entered { .. }) => Reply::Entered,
            Some(Sum::Combined { step, .. }) => Reply::Combined(group.combined(step)),
            Some(Sum::Agreed(totals)) => {
                let verdict = Lanes::decide(&totals, u32::try_from(members.len()).unwrap_or(u32::MAX));
                self.journal.step(verdict.samples);
                Reply::Agreed(verdict)
            }
            None => return,
        };
        let calls = group.take();
        let given = match source {
            Some(source) => self.lives[source].samples,
            None => self.checkpoints.restored(),
        };
        for (rank, call) in calls.iter() {
            let id = members[rank];
            let life = &mut self.lives[id];
            if life.is_dead() || life.call != call {
                continue;
            }
            let reply = if fates.as_ref().is_none_or(|fates| fates[rank] == Fate::Completes) {
                if matches!(reply, Reply::Entered) && !std::mem::replace(&mut life.trained, true) {
                    life.samples = given;
                }
                &reply
            } else {
                self.remember_break(id, version);
                &Reply::Broken
            };
            let life = &self.lives[id];
            if self.now < life.paused_until || life.cut_until > self.now {
                let at = life.paused_until.max(self.now);
                self.send_reply(at, id, call, reply.clone());
            } else {
                self.advance(id, reply);
            }
            if self.ended.is_some() || self.violation.is_some() {
                return;
            }
        }
        if let Some(group) = self.groups.get_mut(&version) {
            group.give_back(calls);
        }
    }

    /// The members of a group have reduced a gradient: in a ring, each sends its part of it to the next one twice.
    fn note_transfers(&mut self, members: &[LifeId], began: JobTime) {
        if members.len() < 2 || self.setup.sync.capabilities().mixes() {
            return;
        }
        let world = members.len() as u64;
        let bytes = 2 * (world - 1) * self.setup.gradient_bytes / world;
        for (rank, id) in members.iter().enumerate() {
            let to = self.lives[members[(rank + 1) % members.len()]].holder.node;
            let life = &mut self.lives[*id];
            let (from, site) = (Site::Node(life.holder.node), Site::Node(to));
            if let Some(time) = self.models.network.transfer(began, from, site, bytes) {
                life.session.transferred(LinkReport { to, bytes, time });
            }
        }
    }

    fn remember_break(&mut self, id: LifeId, version: MembershipVersion) {
        let members = self.groups.get(&version).map(|group| Arc::clone(&group.holders));
        self.lives[id].broken = members.unwrap_or_default();
    }

    /// A member is not there any more: it died, or it met the master.
    pub(super) fn leave_group(&mut self, version: MembershipVersion, dead: Option<LifeId>) {
        let Some(group) = self.groups.get_mut(&version) else { return };
        if dead.is_some() && group.under_way {
            return self.draw_fates(version);
        }
        if group.under_way || group.broken {
            group.broken = true;
            return;
        }
        group.broken = true;
        self.break_connected(version);
    }

    /// The members that wait in the group's open operation see that it broke. In the set-up they do not: who does not come has no
    /// connection to them that could end, and they wait as long as they may, or until the master says so.
    fn break_connected(&mut self, version: MembershipVersion) {
        let sets_up = |group: &SimGroup| matches!(group.sum, Some(Sum::Entered { .. }));
        if !self.groups.get(&version).is_some_and(sets_up) {
            self.break_waiting(version, BREAK_DELAY);
        }
    }

    /// Tells the members that wait in the group's open operation that it broke.
    fn break_waiting(&mut self, version: MembershipVersion, after: Duration) {
        let Some(group) = self.groups.get_mut(&version) else { return };
        let members = Arc::clone(&group.members);
        let calls = group.take();
        for (rank, call) in calls.iter() {
            self.remember_break(members[rank], version);
            self.later_broken(members[rank], call, after);
        }
    }

    /// One member gives up what it waits for.
    pub(super) fn break_off(&mut self, id: LifeId) {
        let life = &self.lives[id];
        let (Some((version, rank)), call) = (life.group, life.call) else { return };
        self.remember_break(id, version);
        if let Some(group) = self.groups.get_mut(&version) {
            group.broken = true;
            if group.under_way {
                let all = vec![Fate::Completes; group.members.len()];
                group.fates.get_or_insert(all)[rank as usize] = Fate::Breaks;
            }
        }
        self.later_broken(id, call, Duration::ZERO);
        let under_way = self.groups.get(&version).is_some_and(|group| group.under_way);
        if !under_way {
            self.break_connected(version);
        }
    }

    /// Members may have waited for others longer than they may.
    pub(super) fn late(&mut self, version: MembershipVersion) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&version) else { return };
        group.timer_armed = false;
        if group.arrived == 0 || group.under_way {
            return;
        }
        let first = group.waiting().next().map(|(rank, _)| group.members[rank]);
        let timeout = first.map_or(Duration::ZERO, |id| self.lives[id].timeout);
        let due = group.first + timeout;
        if due > now {
            group.timer_armed = true;
            self.queue.push(due, Due::Late(version));
            return;
        }
        group.broken = true;
        self.break_waiting(version, Duration::ZERO);
    }

    /// A member is cut off, or died, while a result is on its way: which members have it by now is drawn at random.
    pub(super) fn draw_fates(&mut self, version: MembershipVersion) {
        let Some(group) = self.groups.get_mut(&version).filter(|group| group.under_way) else { return };
        group.broken = true;
        if group.fates.is_none() {
            let chance = &mut self.chance;
            let luck = |_: &LifeId| if chance.below(2) == 0 { Fate::Completes } else { Fate::Breaks };
            group.fates = Some(group.members.iter().map(luck).collect());
        }
    }
}
