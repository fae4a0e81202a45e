//! Workers and a generator between which everything goes wrong for a while.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::member::{GroupMember, MemberEffect, MemberEvent};

/// What can be told the generator.
#[derive(Debug, Clone, Copy)]
enum Input {
    Event(GeneratorEvent),
    Deadline,
}

/// What is on its way.
#[derive(Debug, Clone)]
enum Packet {
    There(GeneratorEvent),
    Back(Holder, MemberEvent),
}

/// What a worker does by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Train(Holder),
    Reduce(Holder, GroupKey),
}

/// How often each event happened.
#[derive(Debug, Default)]
pub(super) struct Seen {
    committed: usize,
    aborted: usize,
    again: usize,
    skipped: usize,
    fenced: usize,
    bridges: usize,
    lost: usize,
    restarted: usize,
}

impl Seen {
    pub(super) fn add(&mut self, room: &Room) {
        let other = &room.seen;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.again += other.again;
        self.skipped += other.skipped;
        self.fenced += other.fenced;
        self.bridges += other.bridges;
        self.lost += other.lost;
        self.restarted += other.restarted;
    }

    pub(super) fn counts(&self) -> [(&'static str, usize); 8] {
        [
            ("committed", self.committed),
            ("aborted", self.aborted),
            ("run again", self.again),
            ("skipped", self.skipped),
            ("fenced", self.fenced),
            ("bridges", self.bridges),
            ("lost", self.lost),
            ("restarted", self.restarted),
        ]
    }
}

/// A group as the checks know it.
#[derive(Debug, Default)]
struct Account {
    members: Vec<Holder>,
    entered: BTreeSet<Holder>,
    reported: BTreeSet<Holder>,
    applied: BTreeSet<Holder>,
    decision: Option<GroupDecision>,
}

pub(super) struct Room {
    config: GeneratorConfig,
    policy: Box<dyn GroupPolicy>,
    gap_max: u64,
    generator: GroupGenerator,
    log: Vec<(JobTime, Input)>,
    said: Vec<GeneratorEffect>,
    now: JobTime,
    rng: DetRng,
    calm: bool,
    members: BTreeMap<Holder, GroupMember>,
    steps: BTreeMap<NodeId, u32>,
    per_host: u32,
    packets: Vec<Packet>,
    work: Vec<Work>,
    /// Died, and the generator does not know it.
    dead: Vec<Holder>,
    given_up: BTreeSet<Holder>,
    /// Lives of whose end the generator knows.
    ended: BTreeSet<Holder>,
    accounts: BTreeMap<GroupKey, Account>,
    executed: BTreeMap<Holder, Vec<GroupKey>>,
    seen: Seen,
}

impl Room {
    /// A whole history.
    pub(super) fn run(seed: u64) -> Self {
        let mut rng = Seed(seed).rng();
        let workers = 2 + rng.below(9) as u32;
        let size = 2 + rng.below(4) as u32;
        let policy: Box<dyn GroupPolicy> = match rng.below(10) {
            0 => Box::new(Random::new(size).unwrap()),
            1 => Box::new(Random::buffered(size).unwrap()),
            2 | 3 => Box::new(Division::new(size).unwrap()),
            5 => Box::new(Kin),
            6 => Box::new(Bipartite),
            7 | 8 => Box::new(FirstToArrive::new(size).unwrap()),
            _ => Box::new(InterIntra::new(size).unwrap()),
        };
        let gap_max = 1 + rng.below(4);
        let config = GeneratorConfig {
            filter: ProgressFilter::new(gap_max).unwrap(),
            group_limit: Duration::from_nanos(400),
            attempts_max: 1 + rng.below(4) as u32,
            bridges: rng.below(3) > 0,
            members_max: 64,
            seed: Seed(seed),
        };
        let mut room = Self {
            generator: GroupGenerator::new(config, policy.clone()).unwrap(),
            config,
            policy,
            gap_max,
            log: Vec::new(),
            said: Vec::new(),
            now: JobTime(0),
            rng,
            calm: false,
            members: BTreeMap::new(),
            steps: BTreeMap::new(),
            per_host: 1 + (seed % 4) as u32,
            packets: Vec::new(),
            work: Vec::new(),
            dead: Vec::new(),
            given_up: BTreeSet::new(),
            ended: BTreeSet::new(),
            accounts: BTreeMap::new(),
            executed: BTreeMap::new(),
            seen: Seen::default(),
        };
        for index in 0..workers {
            room.steps.insert(NodeId::worker(index), 3 + (seed % 7) as u32);
            room.begin(holder(index));
        }
        for _ in 0..600 {
            room.step();
        }
        // I20: from now on nothing goes wrong, and every worker has to finish.
        room.calm = true;
        for life in std::mem::take(&mut room.dead) {
            room.packets.push(Packet::There(GeneratorEvent::Lost { holder: life }));
        }
        for turn in 0.. {
            if room.members.is_empty() && room.packets.is_empty() {
                break;
            }
            assert!(turn < 60_000, "seed {seed}: {:#?}\nwait for ever: {:#?}", room.generator, room.members);
            room.step();
        }
        room.finish(seed);
        room
    }

    pub(super) const fn generator(&self) -> &GroupGenerator {
        &self.generator
    }

    pub(super) const fn said(&self) -> &Vec<GeneratorEffect> {
        &self.said
    }

    /// Another generator that was told the same, each thing so many times, and what it said.
    pub(super) fn told_again(&self, times: usize) -> (GroupGenerator, Vec<GeneratorEffect>) {
        let mut generator = GroupGenerator::new(self.config, self.policy.clone()).unwrap();
        let mut said = Vec::new();
        for (at, input) in &self.log {
            for _ in 0..times {
                match input {
                    Input::Event(event) => drop(generator.handle(*at, *event)),
                    Input::Deadline => generator.on_deadline(*at),
                }
                said.extend(std::iter::from_fn(|| generator.poll_effect()));
            }
        }
        (generator, said)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        !self.calm && self.rng.below(one_in) == 0
    }

    fn begin(&mut self, life: Holder) {
        let host = life.node.index / self.per_host;
        let member = GroupMember::new(self.now, life, host, Duration::from_nanos(40)).unwrap();
        self.members.insert(life, member);
        self.drain(life);
    }

    /// Lets one thing happen.
    fn step(&mut self) {
        self.now = JobTime(self.now.0 + 1);
        if self.chance(60) {
            self.fault();
        }
        if self.chance(200) {
            self.restart();
        }
        let due: Vec<Holder> = self
            .members
            .iter()
            .filter(|(_, member)| member.deadline().is_some_and(|at| at <= self.now))
            .map(|(life, _)| *life)
            .collect();
        for life in due {
            self.members.get_mut(&life).unwrap().on_deadline(self.now);
            self.drain(life);
        }
        if self.generator.deadline().is_some_and(|at| at <= self.now) {
            self.tell(Input::Deadline);
        }
        let (packets, all) = (self.packets.len(), self.packets.len() + self.work.len());
        if all == 0 {
            return;
        }
        let at = self.rng.below(all as u64) as usize;
        if at < packets {
            let packet = self.packets.swap_remove(at);
            // The monitor is heard, some time.
            let lost = matches!(packet, Packet::There(GeneratorEvent::Lost { .. }));
            if !lost && self.chance(12) {
                return;
            }
            if self.chance(12) {
                self.packets.push(packet.clone());
            }
            match packet {
                Packet::There(event) => self.tell(Input::Event(event)),
                Packet::Back(life, event) => self.member(life, event),
            }
        } else {
            let work = self.work.swap_remove(at - packets);
            self.work(work);
        }
    }

    fn fault(&mut self) {
        let Some(at) = (self.members.len() as u64).checked_sub(1).map(|most| self.rng.below(most + 1)) else {
            return;
        };
        let life = *self.members.keys().nth(at as usize).unwrap();
        match self.rng.below(3) {
            // It dies, and that is noticed some time.
            0 => {
                self.members.remove(&life);
                self.dead.push(life);
            }
            // It is given up, and lives.
            1 => self.packets.push(Packet::There(GeneratorEvent::Lost { holder: life })),
            // It dies, and its next life may say hello before its death is noticed.
            _ => {
                self.members.remove(&life);
                self.dead.push(life);
                self.begin(Holder::new(life.node, life.incarnation.next()));
            }
        }
        if self.rng.below(2) == 0
            && let Some(life) = self.dead.pop()
        {
            self.packets.push(Packet::There(GeneratorEvent::Lost { holder: life }));
        }
    }

    /// The generator is started again from what it was told.
    fn restart(&mut self) {
        let (again, said) = self.told_again(1);
        assert_eq!(said, self.said);
        self.generator = again;
        self.seen.restarted += 1;
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Train(life) => {
                let Some(left) = self.members.get(&life).and_then(|_| self.steps.get_mut(&life.node)) else {
                    return;
                };
                let event = if *left > 0 { MemberEvent::Synchronize } else { MemberEvent::Leave };
                *left = left.saturating_sub(1);
                self.member(life, event);
            }
            Work::Reduce(life, group) => {
                let account = &self.accounts[&group];
                let missing =
                    account.members.iter().find(|member| !account.entered.contains(member)).copied();
                let gone = account.members.iter().find(|member| !self.members.contains_key(member)).copied();
                let members = account.members.clone();
                let outcome = if self.chance(25) {
                    let anyone = members[self.rng.below(members.len() as u64) as usize];
                    ReduceOutcome::Failed { suspect: (self.rng.below(2) == 0).then_some(anyone) }
                } else if missing.is_none() && (gone.is_none() || self.rng.below(2) == 0) {
                    ReduceOutcome::Reduced
                } else if gone.is_some() {
                    ReduceOutcome::Failed { suspect: gone }
                } else if self.rng.below(50) == 0 {
                    ReduceOutcome::Failed { suspect: missing }
                } else {
                    return self.work.push(work);
                };
                self.member(life, MemberEvent::Over(group, outcome));
            }
        }
    }

    fn member(&mut self, life: Holder, event: MemberEvent) {
        if let Some(member) = self.members.get_mut(&life) {
            member.handle(self.now, event);
            self.drain(life);
        }
    }

    fn drain(&mut self, life: Holder) {
        while let Some(effect) = self.members.get_mut(&life).and_then(GroupMember::poll_effect) {
            match effect {
                MemberEffect::Send(message) => {
                    if let GeneratorEvent::Done { group, outcome: ReduceOutcome::Reduced, .. } = message {
                        self.accounts.get_mut(&group).unwrap().reported.insert(life);
                    }
                    self.packets.push(Packet::There(message));
                }
                MemberEffect::Reduce(go) => {
                    self.work.retain(|work| !matches!(work, Work::Reduce(who, _) if *who == life));
                    self.work.push(Work::Reduce(life, go.key));
                    self.accounts.get_mut(&go.key).unwrap().entered.insert(life);
                    let before = self.executed.entry(life).or_default();
                    assert!(before.last() < Some(&go.key), "{life} runs {} after {before:?}", go.key);
                    before.push(go.key);
                }
                MemberEffect::Apply(group) => {
                    let account = self.accounts.get_mut(&group).unwrap();
                    assert_eq!(account.decision, Some(GroupDecision::Commit), "{life} takes over {group}");
                    assert!(account.applied.insert(life), "{life} takes {group} over twice");
                }
                MemberEffect::Discard(group) => {
                    self.work.retain(|work| *work != Work::Reduce(life, group));
                    let account = &self.accounts[&group];
                    let fenced = self.given_up.contains(&life);
                    assert!(account.decision == Some(GroupDecision::Abort) || fenced, "{life} drops {group}");
                }
                MemberEffect::Resume => self.work.push(Work::Train(life)),
                MemberEffect::Left => drop(self.members.remove(&life)),
                MemberEffect::Fenced(_) => {
                    assert!(self.given_up.contains(&life), "{life} was not given up");
                    self.seen.fenced += 1;
                    self.members.remove(&life);
                    if self.calm || self.rng.below(2) == 0 {
                        self.begin(Holder::new(life.node, life.incarnation.next()));
                    }
                }
            }
        }
    }

    /// The generator is told something, and everything about it is checked.
    fn tell(&mut self, input: Input) {
        self.log.push((self.now, input));
        let before = match input {
            Input::Event(GeneratorEvent::Request { holder, .. }) => Some((holder.node, self.buffers())),
            _ => None,
        };
        let answer = match input {
            Input::Event(event) => Some((event, self.generator.handle(self.now, event))),
            Input::Deadline => {
                self.generator.on_deadline(self.now);
                None
            }
        };
        if let Some((event, answer)) = answer {
            let life = event.holder();
            self.check_heard(&event, &answer);
            match (event, answer) {
                (GeneratorEvent::Lost { .. }, Ok(Taken::New)) => {
                    self.seen.lost += 1;
                    // With it all older lives.
                    for older in 0..=life.incarnation.0 {
                        self.over(Holder::new(life.node, Incarnation(older)));
                    }
                }
                (GeneratorEvent::Hello { .. }, Ok(Taken::New)) => {
                    for older in 0..life.incarnation.0 {
                        self.over(Holder::new(life.node, Incarnation(older)));
                    }
                }
                _ => {}
            }
            if !matches!(event, GeneratorEvent::Lost { .. }) {
                self.packets.push(Packet::Back(life, MemberEvent::Answered(event, answer)));
            }
        }
        while let Some(effect) = self.generator.poll_effect() {
            self.heard(&effect);
            self.said.push(effect.clone());
            let to = match &effect {
                GeneratorEffect::Go { to, .. }
                | GeneratorEffect::Skip { to, .. }
                | GeneratorEffect::Commit { to, .. }
                | GeneratorEffect::Abort { to, .. } => *to,
                GeneratorEffect::Membership { .. } => continue,
            };
            self.packets.push(Packet::Back(to, MemberEvent::Told(effect)));
        }
        if let Some((initiator, before)) = before {
            self.check_made(initiator, &before);
        }
        self.check();
    }

    /// A life that is over changes nothing any more.
    fn check_heard(&mut self, event: &GeneratorEvent, answer: &Result<Taken, GeneratorError>) {
        let life = event.holder();
        let heard = match event {
            GeneratorEvent::Hello { .. } | GeneratorEvent::Request { .. } | GeneratorEvent::Done { .. } => {
                !matches!(answer, Err(GeneratorError::Fenced { .. }))
            }
            // It may be told so once more.
            GeneratorEvent::Bye { .. } | GeneratorEvent::Lost { .. } => *answer == Ok(Taken::New),
        };
        assert!(!(heard && self.ended.contains(&life)), "{life} is over, and {event:?} gets {answer:?}");
        let through = match (event, answer) {
            (GeneratorEvent::Lost { .. } | GeneratorEvent::Bye { .. }, Ok(_)) => life.incarnation.0 + 1,
            (GeneratorEvent::Hello { .. }, Ok(_)) => life.incarnation.0,
            _ => 0,
        };
        self.ended.extend((0..through).map(|older| Holder::new(life.node, Incarnation(older))));
    }

    /// I26.
    fn over(&mut self, life: Holder) {
        self.given_up.insert(life);
        for node in self.steps.keys() {
            for group in self.generator.buffer(*node) {
                let (_, members) = self.generator.group_of(*node, group).unwrap();
                assert!(!members.contains(&life), "{group} still has {life}");
            }
        }
    }

    fn heard(&mut self, effect: &GeneratorEffect) {
        match effect {
            GeneratorEffect::Go { to, go, .. } => {
                assert!(!self.given_up.contains(to), "{to} is over, and told to go");
                let again = self.accounts.contains_key(&go.key);
                self.seen.again +=
                    usize::from(!again && go.key.attempt > 0 && Some(to) == go.members.first());
                self.seen.bridges += usize::from(!again && go.kind == GroupOrigin::Bridge);
                let account = self.accounts.entry(go.key).or_default();
                assert!(account.decision.is_none(), "{} is over", go.key);
                if account.members.is_empty() {
                    account.members = go.members.to_vec();
                }
                assert!(go.members[..] == account.members[..] && go.members.len() > 1);
            }
            GeneratorEffect::Skip { .. } => self.seen.skipped += 1,
            GeneratorEffect::Commit { to, group } => {
                let account = self.accounts.get_mut(group).unwrap();
                if account.decision.is_none() {
                    self.seen.committed += 1;
                    let all: BTreeSet<Holder> = account.members.iter().copied().collect();
                    assert_eq!(account.reported, all, "{group} is committed");
                }
                assert!(account.members.contains(to));
                assert_ne!(account.decision.replace(GroupDecision::Commit), Some(GroupDecision::Abort));
            }
            GeneratorEffect::Abort { group, .. } => {
                let account = self.accounts.get_mut(group).unwrap();
                self.seen.aborted += usize::from(account.decision.is_none());
                assert_ne!(account.decision.replace(GroupDecision::Abort), Some(GroupDecision::Commit));
            }
            GeneratorEffect::Membership { membership, .. } => {
                assert!(*membership <= self.generator.membership());
            }
        }
    }

    fn buffers(&self) -> BTreeMap<NodeId, Vec<GroupKey>> {
        self.steps.keys().map(|node| (*node, self.generator.buffer(*node).collect())).collect()
    }

    /// I18, I19 and I22: what must hold at any time.
    fn check(&self) {
        let mut running = BTreeSet::new();
        for (group, account) in self.accounts.iter().filter(|(_, account)| account.decision.is_none()) {
            for member in &account.members {
                assert!(running.insert(member.node), "{member} is in {group} and in another group that runs");
            }
        }
        for (node, buffer) in self.buffers() {
            assert_eq!(self.generator.is_locked(node), running.contains(&node), "{node}");
            assert!(buffer.windows(2).all(|pair| pair[0] < pair[1]), "{node}: {buffer:?}");
            let most = match self.policy.name() {
                "division" | "bipartite" | "arrival" => 1,
                "inter-intra" => 2,
                _ => usize::MAX - 8,
            };
            // Bridges come on top.
            assert!(buffer.len() <= most + 1, "{node}: {buffer:?}");
        }
    }

    /// I21 to I24: the groups that were made for a request.
    fn check_made(&self, initiator: NodeId, before: &BTreeMap<NodeId, Vec<GroupKey>>) {
        let mut made = BTreeMap::new();
        for (node, groups) in self.buffers() {
            for group in groups.into_iter().filter(|group| group.attempt == 0) {
                if before.values().all(|known| known.iter().all(|known| known.order != group.order)) {
                    made.insert(group, self.generator.group_of(node, group).unwrap());
                }
            }
        }
        if self.policy.is_buffered() && !before[&initiator].is_empty() {
            assert!(made.is_empty(), "{initiator} was in a group, and made {made:?}");
        }
        let progress = |node: NodeId| self.generator.progress(node).unwrap();
        let mut phases = [BTreeSet::new(), BTreeSet::new()];
        for (group, (kind, members)) in made {
            let nodes: Vec<NodeId> = members.iter().map(|member| member.node).collect();
            if kind == GroupOrigin::Bridge {
                continue;
            }
            let behind = |node: &NodeId| progress(initiator).saturating_sub(progress(*node)) >= self.gap_max;
            let filtered = kind != GroupOrigin::Arrival;
            assert!(!filtered || !nodes.iter().any(behind), "{group} of {initiator}: {nodes:?}");
            let hosts: BTreeSet<u32> = nodes.iter().map(|node| node.index / self.per_host).collect();
            let phase = match kind {
                GroupOrigin::Random => {
                    assert!(nodes.contains(&initiator) && nodes.len() <= self.policy.group_size() as usize);
                    continue;
                }
                GroupOrigin::Arrival => {
                    assert!(nodes.contains(&initiator));
                    assert_eq!(nodes.len(), self.generator.members().min(self.policy.group_size() as usize));
                    0
                }
                GroupOrigin::Pair => {
                    assert!(nodes.len() == 2 && nodes.contains(&initiator));
                    0
                }
                GroupOrigin::Division => {
                    assert!(nodes.len() <= self.policy.group_size() as usize + 1);
                    0
                }
                GroupOrigin::Inter => {
                    assert_eq!(hosts.len(), nodes.len(), "one of each host");
                    0
                }
                GroupOrigin::IntraPart => {
                    assert!(hosts.len() == 1 && nodes.len() <= self.policy.group_size() as usize + 1);
                    0
                }
                GroupOrigin::IntraAll => {
                    assert_eq!(hosts.len(), 1);
                    1
                }
                GroupOrigin::Bridge => continue,
            };
            for node in nodes {
                assert!(before[&node].is_empty(), "{node} was busy and is in {group}");
                assert!(phases[phase].insert(node), "{node} is in two groups of a phase");
            }
        }
    }

    fn finish(&self, seed: u64) {
        for (group, account) in &self.accounts {
            let decision = account.decision.unwrap_or_else(|| panic!("seed {seed}: {group} has no end"));
            for member in account.members.iter().filter(|member| !self.given_up.contains(member)) {
                let died = self.dead.contains(member);
                let applied = account.applied.contains(member);
                assert!(
                    died || applied == (decision == GroupDecision::Commit),
                    "seed {seed}: {member} and {group}"
                );
            }
        }
        assert_eq!(self.generator.members(), 0, "seed {seed}: all have left or are lost");
        let left: Vec<_> = self.generator.groups.iter().flatten().collect();
        assert!(left.is_empty() && self.generator.deadline().is_none(), "seed {seed}: {left:?}");
    }
}
