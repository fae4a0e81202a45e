//! The master's half: forms groups, and commits their averages.
//!
//! A worker asks twice in a step, in questions that count up: an even one asks which group it averages with, the odd one
//! after it says that the average is made. The answer to an even one names the group and its members, or says that there is nothing
//! to average now; that to an odd one is the commit. A question that breaks off with the generation of groups is answered as undone, and
//! its worker meets the others.
//!
//! Where workers average beside their gradients, no generator forms groups but [`OpenPairs`]. A worker may take its question back by a newer one:
//! if the older one was answered meanwhile, the newer one gets the same answer.

use std::collections::{BTreeMap, BTreeSet};

use antdt_controller::Arrival;
use antdt_core::{
    Ack, Contribution, Holder, JobTime, Machine, MembershipVersion, Readiness, Seed, Standing, StepCommit,
};
use antdt_groups::{
    GeneratorConfig, GeneratorEffect, GroupGenerator, GroupKey, GroupPolicy, OpenPairs, Pairing,
    ReduceOutcome,
};

use super::Seeks;
use crate::head::HeadCore;
use crate::mode::shared::group::Group;
use crate::mode::{Departure, HeadHalf};

/// What a running group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One of all workers.
    Whole,
    /// One of the generator, which it names so.
    Formed(GroupKey),
    /// A pair of workers that were open.
    Pair,
}

/// What forms groups of a few.
#[derive(Debug)]
enum Former {
    Generator(Box<GroupGenerator>),
    Pairs(OpenPairs),
}

/// What a [`Former`] is made from.
#[derive(Debug)]
enum Forms {
    Groups(GeneratorConfig, Box<dyn GroupPolicy>),
    Pairs(Seed),
}

/// A group whose members were told to average.
#[derive(Debug)]
struct Running {
    kind: Kind,
    members: BTreeSet<Holder>,
    /// The question in which each reported the average, and what it brought.
    reports: BTreeMap<Holder, (u64, Readiness)>,
}

/// The answer to a question.
#[derive(Debug)]
struct Told {
    question: u64,
    /// `None` if it was undone.
    commit: Option<StepCommit>,
}

/// The members of a group of workers, while none comes, leaves or dies.
#[derive(Debug)]
struct Generation {
    members: BTreeMap<Holder, u32>,
    former: Former,
    /// Those that asked for a group and wait: the question.
    waiting: BTreeMap<Holder, u64>,
    /// By number.
    running: BTreeMap<u64, Running>,
    /// The running group of each worker.
    group_of: BTreeMap<Holder, u64>,
    /// The next average is one of all.
    whole: bool,
    /// A worker has heard of the end of the data.
    end_of_data: bool,
}

/// Tells a member of the group of this number to average.
fn go(number: u64, members: &BTreeSet<Holder>) -> StepCommit {
    let contributors = members.iter().map(|member| (*member, Vec::new())).collect::<BTreeMap<_, _>>().into();
    StepCommit { step: number, contributors, counted: true, everyone: true, ..StepCommit::default() }
}

#[derive(Debug)]
pub(crate) struct Head {
    /// What forms the groups is made from this; its seed is another one each time.
    forms: Forms,
    group: Group,
    /// The newest generation that began.
    version: MembershipVersion,
    generation: Option<Generation>,
    /// A checkpoint waits for its keeper, or for the copies.
    keeping: bool,
    /// Groups that were told to run: the number of the next one.
    next: u64,
    /// How often what forms the groups was made.
    formers: u64,
    /// The newest answer of each life.
    told: BTreeMap<Holder, Told>,
    /// Samples that others have committed since each life was told.
    since: BTreeMap<Holder, u64>,
}

impl Head {
    /// The head half of a mode whose groups this policy forms.
    pub(crate) fn new(config: GeneratorConfig, policy: Box<dyn GroupPolicy>) -> Self {
        Self::of(Forms::Groups(config, policy))
    }

    /// The head half of a mode whose workers average in pairs beside their gradients.
    pub(crate) fn of_open_pairs() -> Self {
        Self::of(Forms::Pairs(Seed(0)))
    }

    fn of(forms: Forms) -> Self {
        Self {
            forms,
            group: Group::default(),
            version: MembershipVersion(0),
            generation: None,
            keeping: false,
            next: 0,
            formers: 0,
            told: BTreeMap::new(),
            since: BTreeMap::new(),
        }
    }

    /// What forms the groups of these workers.
    fn former(&mut self, now: JobTime, members: &BTreeMap<Holder, u32>) -> Former {
        self.formers += 1;
        match &self.forms {
            Forms::Pairs(seed) => {
                let seed = seed.derive_number(self.formers);
                Former::Pairs(OpenPairs::new(members.keys().copied(), seed))
            }
            Forms::Groups(config, policy) => {
                let seed = config.seed.derive_number(self.formers);
                let config = GeneratorConfig { seed, ..*config };
                let generator = GroupGenerator::new(config, policy.clone());
                let mut generator = generator.expect("the settings are valid");
                for (holder, host) in members {
                    generator.hello(now, *holder, *host).expect("members are workers, once each");
                }
                while generator.poll_effect().is_some() {}
                Former::Generator(Box::new(generator))
            }
        }
    }

    /// A generation begins if a group of workers was formed.
    fn begin(&mut self, now: JobTime, core: &HeadCore) {
        let Some(formed) = self.group.formed().filter(|formed| formed.membership > self.version) else {
            return;
        };
        self.version = formed.membership;
        let mut hosts: Vec<&str> = Vec::new();
        let mut members = BTreeMap::new();
        for (holder, _) in formed.members.iter() {
            let host = core.host(*holder);
            let known = hosts.iter().position(|known| *known == host).unwrap_or_else(|| {
                hosts.push(host);
                hosts.len() - 1
            });
            members.insert(*holder, u32::try_from(known).expect("fewer hosts than workers"));
        }
        let former = self.former(now, &members);
        self.since = members.keys().map(|holder| (*holder, 0)).collect();
        self.generation = Some(Generation {
            whole: members.len() == 1,
            members,
            former,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            group_of: BTreeMap::new(),
            end_of_data: false,
        });
    }

    /// The generation is over: whatever is not committed is void, and all members meet.
    fn break_up(&mut self, core: &mut HeadCore) {
        let Some(generation) = self.generation.take() else { return };
        let reports = generation.running.values().flat_map(|running| &running.reports);
        let reported = reports.map(|(holder, (question, _))| (*holder, *question));
        for (holder, question) in generation.waiting.into_iter().chain(reported) {
            self.undo(core, holder, question);
        }
    }

    fn tell(&mut self, core: &mut HeadCore, holder: Holder, commit: StepCommit) {
        self.told.insert(holder, Told { question: commit.asked, commit: Some(commit.clone()) });
        core.tell_commit(holder, commit);
    }

    fn undo(&mut self, core: &mut HeadCore, holder: Holder, question: u64) {
        self.told.insert(holder, Told { question, commit: None });
        core.tell_undone(holder);
    }

    /// The group that this worker was told of, if it asks for one: it took its question back when that had just been answered. The
    /// others of the group wait for it, also if the group is void by now.
    fn unheard_go(&self, holder: Holder) -> Option<StepCommit> {
        let Told { question, commit } = self.told.get(&holder)?;
        commit.clone().filter(|go| question.is_multiple_of(2) && go.counted)
    }

    /// Whether this worker has a question that is not answered.
    fn is_asking(&self, holder: Holder) -> bool {
        self.generation.as_ref().is_some_and(|generation| {
            let reported = |running: &Running| running.reports.contains_key(&holder);
            generation.waiting.contains_key(&holder) || generation.running.values().any(reported)
        })
    }

    /// Tells the members of a group to average.
    fn run(&mut self, core: &mut HeadCore, kind: Kind, members: BTreeSet<Holder>) {
        let Some(generation) = &mut self.generation else { return };
        self.next += 1;
        let number = self.next;
        let go = go(number, &members);
        let mut asked = Vec::new();
        for member in &members {
            generation.group_of.insert(*member, number);
            asked.extend(generation.waiting.remove(member).map(|question| (*member, question)));
        }
        generation.running.insert(number, Running { kind, members, reports: BTreeMap::new() });
        for (member, question) in asked {
            self.tell(core, member, go.answering(question, true));
        }
    }

    /// The generator, if one forms the groups.
    fn generator(&mut self) -> Option<&mut GroupGenerator> {
        match &mut self.generation.as_mut()?.former {
            Former::Generator(generator) => Some(generator),
            Former::Pairs(_) => None,
        }
    }

    /// Carries out what the generator says.
    fn obey(&mut self, core: &mut HeadCore) {
        while let Some(effect) = self.generator().and_then(Machine::poll_effect) {
            match effect {
                GeneratorEffect::Go { go, .. } => {
                    let runs = |running: &Running| running.kind == Kind::Formed(go.key);
                    let known = self.generation.as_ref().is_some_and(|g| g.running.values().any(runs));
                    if !known {
                        self.run(core, Kind::Formed(go.key), go.members.iter().copied().collect());
                    }
                }
                GeneratorEffect::Skip { to, .. } => self.skip(core, to),
                // Commits are decided here, and nothing is aborted but with the generation.
                GeneratorEffect::Commit { .. }
                | GeneratorEffect::Abort { .. }
                | GeneratorEffect::Membership { .. } => {}
            }
        }
    }

    /// There is nothing to average for this worker now.
    fn skip(&mut self, core: &mut HeadCore, holder: Holder) {
        let waiting = self.generation.as_mut().and_then(|generation| generation.waiting.remove(&holder));
        let Some(question) = waiting else { return };
        self.tell(core, holder, StepCommit { asked: question, everyone: true, ..StepCommit::default() });
    }

    /// Whether this worker may leave, as it was ordered to: others have the model, and stay.
    fn may_leave(&self, core: &HeadCore, holder: Holder) -> bool {
        let Some(generation) = &self.generation else { return false };
        let stays = |member: &&Holder| **member != holder && !core.is_draining(**member);
        core.is_draining(holder)
            && generation.members.len() > 1
            && (generation.members.keys().any(|member| stays(&member))
                || generation.members.keys().next() != Some(&holder))
    }

    /// Tells a worker that waits for a group to leave. No group has it any more: the others meet.
    fn let_go(&mut self, core: &mut HeadCore, holder: Holder) {
        let waiting = self.generation.as_mut().and_then(|generation| generation.waiting.remove(&holder));
        let Some(question) = waiting else { return };
        let leave = StepCommit { end: true, asked: question, everyone: true, ..StepCommit::default() };
        self.tell(core, holder, leave);
        self.break_up(core);
    }

    /// A worker asks for its group.
    fn asks(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, question: u64, end_of_data: bool) {
        let Some(generation) = &mut self.generation else { return };
        if generation.waiting.get(&holder).is_some_and(|newer| *newer > question) {
            // A late copy.
            return;
        }
        generation.end_of_data |= end_of_data;
        generation.whole |= end_of_data;
        generation.waiting.insert(holder, question);
        if self.may_leave(core, holder) {
            return self.let_go(core, holder);
        }
        self.go_ahead(now, core, &[holder]);
    }

    /// Forms groups for these workers, which wait, or one of all if that is due and all have come.
    fn go_ahead(&mut self, now: JobTime, core: &mut HeadCore, asking: &[Holder]) {
        let Some(generation) = &mut self.generation else { return };
        if generation.whole || self.keeping {
            if generation.waiting.len() == generation.members.len() {
                let all = generation.members.keys().copied().collect();
                if let Former::Pairs(pairs) = &mut generation.former {
                    pairs.close();
                }
                self.run(core, Kind::Whole, all);
            }
            return;
        }
        for holder in asking {
            let Some(generation) = &mut self.generation else { return };
            let Some(question) = generation.waiting.get(holder) else { continue };
            match &mut generation.former {
                Former::Generator(generator) => {
                    // A question of before is answered: nothing that is wrong with it is this worker's.
                    let _ = generator.request(now, *holder, question / 2 + 1);
                }
                Former::Pairs(pairs) => {
                    let seeks = Seeks::of(*question);
                    match pairs.ask(*holder, seeks != Seeks::Others, seeks != Seeks::AtOnce) {
                        Pairing::With(partner) => {
                            self.run(core, Kind::Pair, [*holder, partner].into_iter().collect());
                        }
                        Pairing::Open => {}
                        Pairing::Alone => self.skip(core, *holder),
                    }
                }
            }
        }
        self.obey(core);
    }

    /// A member has the average of its group.
    fn reports(
        &mut self,
        now: JobTime,
        core: &mut HeadCore,
        holder: Holder,
        question: u64,
        readiness: Readiness,
    ) -> Result<(), String> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        let number = generation.group_of.get(&holder).copied();
        let running = number.and_then(|number| Some((number, generation.running.get_mut(&number)?)));
        let Some((number, running)) = running else {
            return Err(format!("{holder} has averaged, and was told of no group"));
        };
        running.reports.insert(holder, (question, readiness));
        if running.reports.len() < running.members.len() {
            return Ok(());
        }
        let Some(Running { kind, reports, .. }) = generation.running.remove(&number) else { return Ok(()) };
        let samples: u64 = reports.values().map(|(_, readiness)| readiness.samples).sum();
        let end = kind == Kind::Whole && generation.end_of_data && samples == 0;
        let due: BTreeMap<Holder, Vec<Ack>> =
            reports.iter().map(|(holder, (_, readiness))| (*holder, readiness.acks.clone())).collect();
        for (holder, acks) in due.iter().filter(|(_, acks)| !acks.is_empty()) {
            core.settle(Contribution { holder: *holder, acks: acks.as_slice().into() });
        }
        for since in self.since.values_mut() {
            *since += samples;
        }
        for holder in reports.keys() {
            generation.group_of.remove(holder);
            if let (Kind::Formed(key), Former::Generator(generator)) = (kind, &mut generation.former) {
                let _ = generator.done(now, *holder, key, ReduceOutcome::Reduced);
            }
        }
        let contributors = due.into();
        let commit = StepCommit {
            step: number,
            contributors,
            end,
            counted: true,
            everyone: true,
            ..StepCommit::default()
        };
        for (holder, (question, _)) in reports {
            // What all workers trained, by which learning rates go.
            let samples = self.since.get_mut(&holder).map(std::mem::take).unwrap_or_default();
            self.tell(core, holder, StepCommit { samples, ..commit.answering(question, true) });
        }
        if kind == Kind::Whole && !end {
            self.after_whole(now);
        }
        if kind != Kind::Whole {
            self.obey(core);
        }
        // Those that wait for an average of all may have waited for this group.
        self.go_ahead(now, core, &[]);
        Ok(())
    }

    /// All have averaged with all: groups are formed anew.
    fn after_whole(&mut self, now: JobTime) {
        let Some(members) = self.generation.as_ref().map(|generation| generation.members.clone()) else {
            return;
        };
        let former = self.former(now, &members);
        if let Some(generation) = &mut self.generation {
            generation.former = former;
            generation.whole = members.len() == 1;
        }
    }
}

impl HeadHalf for Head {
    fn joining(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, standing: Standing) {
        let arrival = core.membership().join(holder, standing);
        if arrival == Arrival::Waits {
            // All others meet it. One that asks again where it belongs disturbs no other.
            self.break_up(core);
            if let Some(told) = self.told.get_mut(&holder) {
                // It is in no group any more.
                told.commit = None;
            }
        }
        self.group.arrived(now, core, holder, arrival);
        self.begin(now, core);
    }

    fn ready(
        &mut self,
        now: JobTime,
        core: &mut HeadCore,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> Result<(), String> {
        // Asked again. A question older than the newest answer is a late copy without a waiter.
        if let Some(Told { question, commit }) = self.told.get(&holder).filter(|told| step <= told.question) {
            match commit {
                Some(commit) if step == *question => core.tell_commit(holder, commit.clone()),
                None if step == *question && !self.is_asking(holder) => core.tell_undone(holder),
                _ => {}
            }
            return Ok(());
        }
        if step.is_multiple_of(2)
            && let Some(go) = self.unheard_go(holder)
        {
            self.tell(core, holder, go.answering(step, true));
            return Ok(());
        }
        if !self.generation.as_ref().is_some_and(|generation| generation.members.contains_key(&holder)) {
            self.undo(core, holder, step);
            return Ok(());
        }
        if step.is_multiple_of(2) {
            self.asks(now, core, holder, step, readiness.end_of_data);
            return Ok(());
        }
        self.reports(now, core, holder, step, readiness)
    }

    fn ordered(&mut self, core: &mut HeadCore, holder: Holder) {
        if self.may_leave(core, holder) {
            self.let_go(core, holder);
        }
    }

    fn may_keep(&self, holder: Holder) -> bool {
        self.generation.as_ref().is_some_and(|generation| generation.members.contains_key(&holder))
    }

    fn keeping(&mut self, now: JobTime, core: &mut HeadCore, keeping: bool) {
        self.keeping = keeping;
        let waiting = self.generation.as_ref().map(|generation| generation.waiting.keys().copied().collect());
        let waiting: Vec<Holder> = waiting.unwrap_or_default();
        self.go_ahead(now, core, &waiting);
    }

    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, departure: Departure) {
        self.told.remove(&holder);
        match departure {
            Departure::Drained => self.break_up(core),
            // All others have heard of the end, too.
            Departure::EndOfData => {
                if let Some(generation) = &mut self.generation {
                    generation.members.remove(&holder);
                    if let Former::Pairs(pairs) = &mut generation.former {
                        pairs.remove(holder);
                    }
                }
            }
        }
        self.group.left(now, core, holder, departure);
        self.begin(now, core);
    }

    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, took_part: bool) {
        self.told.remove(&holder);
        if took_part {
            self.break_up(core);
        }
        self.group.lost(now, core, holder, took_part);
        self.begin(now, core);
    }

    fn set_back(&mut self, now: JobTime, core: &mut HeadCore) {
        self.break_up(core);
        self.told.values_mut().for_each(|told| told.commit = None);
        self.group.set_back(now, core);
    }

    fn go_on(&mut self, now: JobTime, core: &mut HeadCore) {
        self.group.go_on(now, core);
        self.begin(now, core);
    }
}
