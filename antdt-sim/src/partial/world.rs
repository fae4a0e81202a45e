//! [`GroupWorld`]: workers and a generator of groups on a virtual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_collective::schedule::CostModel;
use antdt_collective::schedule::select::cost_all_reduce;
use antdt_core::{DetRng, Holder, Incarnation, InvalidValue, JobTime, Machine, NodeId};
use antdt_groups::member::{MemberEffect, MemberEvent};
use antdt_groups::message::ReduceOutcome as Part;
use antdt_groups::{
    GeneratorEffect, GeneratorError, GeneratorEvent, Go, GroupGenerator, GroupKey, GroupMember, Taken,
};

use super::GroupSetup;
use crate::Violation;
use crate::happening::{Happening, Observer};
use crate::model::{Fault, Models, Site};
use crate::queue::Queue;
use crate::world::Blind;

/// From the end of a process until its peers, and the monitor if it sees it, know.
const NOTICE_DELAY: Duration = Duration::from_millis(2);

/// Size of a message: headers, and a few numbers.
const MESSAGE_BYTES: u64 = 200;

/// Events after which a simulation counts as one that never ends, unless the caller says otherwise.
const EVENTS_MAX: u64 = 10_000_000_000;

/// Which life, by order of launch.
type LifeId = usize;

/// What is due.
#[derive(Debug)]
enum Due {
    /// A process has read its data and says hello.
    Start(LifeId),
    /// A step is done.
    Trained(LifeId),
    /// A message arrives at the generator.
    There(LifeId, GeneratorEvent),
    /// A message, or an answer, arrives at a worker.
    Back(LifeId, Box<MemberEvent>),
    /// A worker may have to say something again.
    Alarm(LifeId),
    /// The generator's deadline.
    Deadline,
    /// The average of a group is made.
    Reduced(GroupKey),
    /// A worker finds that its part in a group failed.
    Broken(LifeId, GroupKey, Option<Holder>),
    /// A worker may have waited too long for its peers.
    Late(LifeId, GroupKey),
    /// The monitor gives a worker up, if it is silent still or dead.
    GiveUp(LifeId),
    /// Something goes wrong.
    Fault(Fault),
}

#[derive(Debug)]
struct Life {
    holder: Holder,
    /// Before it has started there is none.
    member: Option<GroupMember>,
    rng: DetRng,
    dead: bool,
    left: bool,
    given_up: bool,
    /// Stands still until then.
    paused_until: JobTime,
    /// Cut off from all other processes until then.
    cut_until: JobTime,
    /// When it will be asked whether it has to say something again.
    alarm: JobTime,
    trained: Duration,
    born: JobTime,
    /// When it left or died.
    ended: Option<JobTime>,
}

/// An average that is being made.
#[derive(Debug)]
struct Reduction {
    go: Arc<Go>,
    entered: Vec<LifeId>,
    /// A member has died, or given up.
    broken: bool,
}

/// What the generator was told.
#[derive(Debug, Clone, Copy)]
enum Input {
    Event(GeneratorEvent),
    Deadline,
}

/// Result of a simulation of workers that average in groups.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedAveraging {
    /// Whether every worker has made its steps, or was started as often as it may be; otherwise why not.
    pub result: Result<(), String>,
    /// Time at which the last worker ended.
    pub completed: JobTime,
    /// Number of steps taken, over all workers.
    pub steps: u64,
    /// Averages taken over, counted once for each member.
    pub averages: u64,
    /// Share of the time of all lives that they trained in; the rest is start, waiting and averaging.
    pub busy: f64,
    /// Number of events of the virtual clock.
    pub simulated: u64,
}

/// Workers that average with each other, and a generator of groups.
#[derive(Debug)]
pub struct GroupWorld<O = Blind> {
    setup: GroupSetup,
    models: Models,
    observer: O,
    now: JobTime,
    queue: Queue<Due>,
    events: u64,
    events_max: u64,
    generator: GroupGenerator,
    /// What it was told; `None` if nothing will ask for it.
    log: Option<Vec<(JobTime, Input)>>,
    away_until: JobTime,
    deadline: JobTime,
    lives: Vec<Life>,
    /// The newest life of each node.
    current: Vec<LifeId>,
    /// Nodes that have neither left nor been given up for good.
    unfinished: u32,
    /// Steps that each node has left.
    left: Vec<u32>,
    reductions: BTreeMap<GroupKey, Reduction>,
    steps: u64,
    averages: u64,
    fault_rng: DetRng,
    network_rng: DetRng,
    scheduler_rng: DetRng,
    chance: DetRng,
    violation: Option<Violation>,
}

impl GroupWorld {
    /// Returns a world before its first event, without observers.
    ///
    /// # Errors
    /// If a setting cannot be used; the error names it.
    pub fn new(setup: GroupSetup, models: Models) -> Result<Self, InvalidValue> {
        GroupWorld::watched(setup, models, Blind)
    }
}

impl<O: Observer> GroupWorld<O> {
    /// A world in which nothing has happened yet, and an observer of all that will.
    ///
    /// # Errors
    /// If a setting cannot be used; the error names it.
    pub fn watched(setup: GroupSetup, mut models: Models, observer: O) -> Result<Self, InvalidValue> {
        setup.validate()?;
        let generator = setup.generator()?.generator()?;
        let rng = |label: &str| setup.seed.derive(label).rng();
        let (mut fault_rng, mut queue) = (rng("faults"), Queue::new());
        let fault = models.faults.next(&mut fault_rng);
        let calm = fault.is_none();
        let log = (!calm).then(Vec::new);
        if let Some((at, fault)) = fault {
            queue.push(at, Due::Fault(fault));
        }
        let mut world = Self {
            network_rng: rng("network"),
            scheduler_rng: rng("scheduler"),
            chance: rng("chance"),
            fault_rng,
            generator,
            log,
            unfinished: setup.workers,
            left: vec![setup.steps; setup.workers as usize],
            setup,
            models,
            observer,
            now: JobTime::ZERO,
            queue,
            events: 0,
            events_max: EVENTS_MAX,
            away_until: JobTime::ZERO,
            deadline: JobTime::NEVER,
            lives: Vec::new(),
            current: Vec::new(),
            reductions: BTreeMap::new(),
            steps: 0,
            averages: 0,
            violation: None,
        };
        for index in 0..world.setup.workers {
            let id = world.launch(Holder::new(NodeId::worker(index), Incarnation(0)));
            world.current.push(id);
        }
        if calm {
            world.saw(&Happening::Calm);
        }
        Ok(world)
    }

    /// Ends the simulation after this many events, if it has not ended before.
    #[must_use]
    pub const fn at_most(mut self, events: u64) -> Self {
        self.events_max = events;
        self
    }

    /// Runs it until all workers have made their steps, or to the virtual time `limit`.
    ///
    /// # Errors
    /// If the observer found something that must not happen.
    pub fn run(mut self, limit: JobTime) -> Result<(SimulatedAveraging, O), (Violation, O)> {
        let mut result = Ok(());
        while self.violation.is_none() && self.unfinished > 0 {
            let Some((at, due)) = self.queue.pop() else {
                result = Err("nothing can happen any more, and workers have steps left".to_owned());
                break;
            };
            if at > limit {
                result = Err(format!("workers have steps left after {:.0} s", limit.as_secs_f64()));
                self.now = limit;
                break;
            }
            if self.events >= self.events_max {
                result = Err(format!("workers have steps left after {} events", self.events));
                break;
            }
            self.events += 1;
            self.now = at;
            self.happen(due);
        }
        if self.violation.is_none() && result.is_ok() {
            self.saw(&Happening::Ended(&result));
        }
        if let Some(violation) = self.violation {
            return Err((violation, self.observer));
        }
        let trained: Duration = self.lives.iter().map(|life| life.trained).sum();
        let alive = self.lives.iter().map(|life| life.ended.unwrap_or(self.now).since(life.born));
        let alive: Duration = alive.sum();
        let busy = trained.as_secs_f64() / alive.as_secs_f64().max(1e-9);
        let outcome = SimulatedAveraging {
            result,
            completed: self.now,
            steps: self.steps,
            averages: self.averages,
            busy,
            simulated: self.events,
        };
        Ok((outcome, self.observer))
    }

    fn saw(&mut self, what: &Happening<'_>) {
        if self.violation.is_none()
            && self.observer.watches()
            && let Err(violation) = self.observer.saw(self.now, what)
        {
            self.violation = Some(violation);
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Start(id) => self.start(id),
            Due::Trained(id) => {
                if self.ready(id, Due::Trained(id)) {
                    self.trained(id);
                }
            }
            Due::There(id, event) => self.there(id, event),
            Due::Back(id, event) => {
                if !self.lives[id].dead && self.now < self.lives[id].paused_until {
                    self.queue.push(self.lives[id].paused_until, Due::Back(id, event));
                } else {
                    self.member(id, *event);
                }
            }
            Due::Alarm(id) => {
                if self.ready(id, Due::Alarm(id)) {
                    self.lives[id].alarm = JobTime::NEVER;
                    if let Some(member) = &mut self.lives[id].member {
                        member.on_deadline(self.now);
                    }
                    self.member_effects(id);
                }
            }
            Due::Deadline => self.on_deadline(),
            Due::Reduced(key) => self.reduced(key),
            Due::Broken(id, key, suspect) => {
                if self.ready(id, Due::Broken(id, key, suspect)) {
                    self.member(id, MemberEvent::Over(key, Part::Failed { suspect }));
                }
            }
            Due::Late(id, key) => self.late(id, key),
            Due::GiveUp(id) => self.give_up(id),
            Due::Fault(fault) => self.fault(fault),
        }
    }

    /// Whether the process runs. If it stands still, `due` is put off until it goes on.
    fn ready(&mut self, id: LifeId, due: Due) -> bool {
        let life = &self.lives[id];
        if !life.dead && self.now < life.paused_until {
            self.queue.push(life.paused_until, due);
            return false;
        }
        !life.dead
    }

    // Processes.

    fn launch(&mut self, holder: Holder) -> LifeId {
        let id = self.lives.len();
        let seed = self.setup.seed.derive("life").derive_number(u64::from(holder.node.index));
        self.lives.push(Life {
            holder,
            member: None,
            rng: seed.derive_number(u64::from(holder.incarnation.0)).rng(),
            dead: false,
            left: false,
            given_up: false,
            paused_until: JobTime::ZERO,
            cut_until: JobTime::ZERO,
            alarm: JobTime::NEVER,
            trained: Duration::ZERO,
            born: self.now,
            ended: None,
        });
        let delay = self.models.scheduler.start(self.now, holder, &mut self.scheduler_rng);
        // One that never starts is one that dies before.
        match delay {
            Some(delay) => self.queue.push(self.now + delay, Due::Start(id)),
            None => self.queue.push(self.now + self.setup.silence_limit, Due::GiveUp(id)),
        }
        self.saw(&Happening::Born(holder));
        id
    }

    fn start(&mut self, id: LifeId) {
        if !self.ready(id, Due::Start(id)) {
            return;
        }
        let (holder, host) = (self.lives[id].holder, self.host(self.lives[id].holder));
        let member = GroupMember::new(self.now, holder, host, self.setup.again_after);
        self.lives[id].member = member.ok();
        self.member_effects(id);
    }

    const fn host(&self, holder: Holder) -> u32 {
        holder.node.index / self.setup.workers_per_host
    }

    fn life_of(&self, holder: Holder) -> Option<LifeId> {
        // The lives of a node are few, and the newest is asked for most often.
        let newest = *self.current.get(holder.node.index as usize)?;
        if self.lives[newest].holder == holder {
            return Some(newest);
        }
        self.lives.iter().position(|life| life.holder == holder)
    }

    fn dies(&mut self, id: LifeId) {
        let life = &mut self.lives[id];
        if life.dead || life.left {
            return;
        }
        (life.dead, life.member, life.ended) = (true, None, Some(self.now));
        let holder = life.holder;
        self.saw(&Happening::Died(holder));
        // Who averages with it notices, but may have all of the average by then.
        let mut notices = Vec::new();
        for (key, reduction) in &mut self.reductions {
            if reduction.go.members.contains(&holder) && !reduction.broken {
                let begun = reduction.entered.len() == reduction.go.members.len();
                reduction.broken = true;
                notices.extend(
                    reduction.entered.iter().filter(|other| **other != id).map(|o| (*o, *key, begun)),
                );
            }
        }
        for (other, key, begun) in notices {
            if begun && self.chance.below(2) == 0 {
                self.member(other, MemberEvent::Over(key, Part::Reduced));
            } else {
                self.queue.push(self.now + NOTICE_DELAY, Due::Broken(other, key, Some(holder)));
            }
        }
    }

    /// The end of a process is seen by its host, or by its silence.
    fn noticed(&mut self, id: LifeId) {
        let seen = self.chance.below(2) == 0 && self.now >= self.lives[id].cut_until;
        let delay = if seen { NOTICE_DELAY } else { self.setup.silence_limit };
        self.queue.push(self.now + delay, Due::GiveUp(id));
    }

    /// The monitor gives a worker up that has been silent for as long as may be, and has the next life of its node started.
    fn give_up(&mut self, id: LifeId) {
        if self.now < self.away_until {
            return self.queue.push(self.away_until, Due::GiveUp(id));
        }
        let life = &self.lives[id];
        let silent =
            life.dead || life.member.is_none() || self.now < life.paused_until || self.now < life.cut_until;
        if life.left || life.given_up || !silent {
            return;
        }
        let holder = life.holder;
        self.lives[id].given_up = true;
        self.tell(Input::Event(GeneratorEvent::Lost { holder }));
        if !self.is_newest(id) {
            return;
        }
        if holder.incarnation.0 < self.setup.max_restarts {
            let next = self.launch(Holder::new(holder.node, holder.incarnation.next()));
            self.current[holder.node.index as usize] = next;
        } else {
            self.unfinished -= 1;
        }
    }

    /// Whether no other life of its node was launched after it.
    fn is_newest(&self, id: LifeId) -> bool {
        self.current[self.lives[id].holder.node.index as usize] == id
    }

    fn fault(&mut self, fault: Fault) {
        self.saw(&Happening::Fault(fault));
        let of = |node: NodeId| self.current.get(node.index as usize).copied();
        match fault {
            Fault::Crash(node) | Fault::Exit(node, _) => {
                if let Some(id) = of(node).filter(|id| !self.lives[*id].left && !self.lives[*id].dead) {
                    self.dies(id);
                    self.noticed(id);
                }
            }
            Fault::Pause(node, length) | Fault::Cut(node, length) => {
                if let Some(id) = of(node) {
                    let until = self.now + length;
                    let life = &mut self.lives[id];
                    if matches!(fault, Fault::Pause(..)) {
                        life.paused_until = life.paused_until.max(until);
                    } else {
                        life.cut_until = life.cut_until.max(until);
                    }
                    self.queue.push(self.now + self.setup.silence_limit, Due::GiveUp(id));
                }
            }
            Fault::PauseMaster(length) => self.away_until = self.away_until.max(self.now + length),
            Fault::RestartLedger => self.restart_generator(),
        }
        match self.models.faults.next(&mut self.fault_rng) {
            Some((at, fault)) => self.queue.push(at, Due::Fault(fault)),
            None => self.saw(&Happening::Calm),
        }
    }

    /// The generator's process is started again from what it has written down: what it was told, and when.
    fn restart_generator(&mut self) {
        let made = self.setup.generator().and_then(|settings| settings.generator());
        let mut again = made.expect("the one before was made from the same");
        for (at, input) in self.log.iter().flatten() {
            match input {
                Input::Event(event) => drop(again.handle(*at, *event)),
                Input::Deadline => again.on_deadline(*at),
            }
            while again.poll_effect().is_some() {}
        }
        if format!("{again:?}") != format!("{:?}", self.generator) {
            let what = "the generator that was started again is not the one that was".to_owned();
            self.violation = Some(Violation { invariant: "replay_equals_live", at: self.now, what });
        }
        self.generator = again;
        self.saw(&Happening::GroupRestart);
    }

    // The worker.

    fn trained(&mut self, id: LifeId) {
        let index = self.lives[id].holder.node.index as usize;
        let training = self.lives[id].member.as_ref().is_some_and(GroupMember::is_training);
        if training {
            // A life that was given up has not heard of it yet, and trains in vain: another one makes the step.
            if self.is_newest(id) {
                self.left[index] = self.left[index].saturating_sub(1);
                self.steps += 1;
            }
            self.member(id, MemberEvent::Synchronize);
        }
    }

    fn member(&mut self, id: LifeId, event: MemberEvent) {
        if let Some(member) = &mut self.lives[id].member {
            member.handle(self.now, event);
        }
        self.member_effects(id);
    }

    fn member_effects(&mut self, id: LifeId) {
        let holder = self.lives[id].holder;
        while let Some(effect) = self.lives[id].member.as_mut().and_then(GroupMember::poll_effect) {
            if self.observer.watches() {
                self.saw(&Happening::Member(holder, &effect));
            }
            match effect {
                MemberEffect::Send(event) => self.send(id, event),
                MemberEffect::Reduce(go) => self.enter(id, &go),
                MemberEffect::Apply(_) => self.averages += 1,
                MemberEffect::Discard(_) => {}
                MemberEffect::Resume => self.resume(id),
                MemberEffect::Left => {
                    self.unfinished -= u32::from(self.is_newest(id) && !self.lives[id].given_up);
                    let life = &mut self.lives[id];
                    (life.left, life.member, life.ended) = (true, None, Some(self.now));
                }
                MemberEffect::Fenced(_) => self.dies(id),
            }
        }
        let life = &mut self.lives[id];
        let alarm = life.member.as_ref().and_then(GroupMember::deadline).unwrap_or(JobTime::NEVER);
        if alarm < life.alarm {
            life.alarm = alarm;
            self.queue.push(alarm, Due::Alarm(id));
        }
    }

    fn resume(&mut self, id: LifeId) {
        let life = &mut self.lives[id];
        if self.left[life.holder.node.index as usize] == 0 {
            if let Some(member) = &mut life.member {
                member.handle(self.now, MemberEvent::Leave);
            }
            return;
        }
        let time = self.models.compute.time(self.now, life.holder, self.setup.batch_size, &mut life.rng);
        life.trained += time;
        self.queue.push(self.now + time, Due::Trained(id));
    }

    // Messages.

    /// When a message between a worker and the generator arrives, by copy.
    fn travel(&mut self, id: LifeId, there: bool) -> [Option<JobTime>; 2] {
        let life = &self.lives[id];
        if self.now < life.cut_until {
            return [None; 2];
        }
        let (worker, master) = (Site::Node(life.holder.node), Site::Master);
        let (from, to) = if there { (worker, master) } else { (master, worker) };
        let twice = self.setup.repeats > 0.0 && self.chance.unit() < self.setup.repeats;
        let (network, rng) = (&mut self.models.network, &mut self.network_rng);
        let mut copy = || network.message(self.now, from, to, MESSAGE_BYTES, rng);
        let copies = [copy(), if twice { copy() } else { None }];
        if copies == [None; 2] && self.observer.watches() {
            let holder = self.lives[id].holder;
            self.saw(&Happening::Lost(holder));
        }
        copies
    }

    fn send(&mut self, id: LifeId, event: GeneratorEvent) {
        for at in self.travel(id, true).into_iter().flatten() {
            self.queue.push(at, Due::There(id, event));
        }
    }

    fn send_back(&mut self, id: LifeId, event: &MemberEvent) {
        for at in self.travel(id, false).into_iter().flatten() {
            self.queue.push(at, Due::Back(id, Box::new(event.clone())));
        }
    }

    /// A message arrives at the generator. What arrives while the host of its worker is cut off was on its way before.
    fn there(&mut self, id: LifeId, event: GeneratorEvent) {
        if self.now < self.away_until {
            return self.queue.push(self.away_until, Due::There(id, event));
        }
        if let Some(answer) = self.tell(Input::Event(event)) {
            self.send_back(id, &MemberEvent::Answered(event, answer));
        }
    }

    // The generator.

    fn on_deadline(&mut self) {
        if self.now < self.away_until {
            return self.queue.push(self.away_until, Due::Deadline);
        }
        self.deadline = JobTime::NEVER;
        if self.generator.deadline().is_some_and(|at| at <= self.now) {
            self.tell(Input::Deadline);
        }
        self.arm();
    }

    fn arm(&mut self) {
        let at = self.generator.deadline().unwrap_or(JobTime::NEVER);
        if at < self.deadline {
            self.deadline = at;
            self.queue.push(at, Due::Deadline);
        }
    }

    /// The generator takes something in, and what it wants is done.
    fn tell(&mut self, input: Input) -> Option<Result<Taken, GeneratorError>> {
        if let Some(log) = &mut self.log {
            log.push((self.now, input));
        }
        let answer = match input {
            Input::Event(event) => {
                let answer = self.generator.handle(self.now, event);
                if self.observer.watches() {
                    self.saw(&Happening::Group(&event, &answer));
                }
                Some(answer)
            }
            Input::Deadline => {
                self.saw(&Happening::GroupDeadline);
                self.generator.on_deadline(self.now);
                None
            }
        };
        while let Some(effect) = self.generator.poll_effect() {
            if self.observer.watches() {
                self.saw(&Happening::GroupEffect(&effect));
            }
            let to = match &effect {
                GeneratorEffect::Go { to, .. } | GeneratorEffect::Skip { to, .. } => *to,
                GeneratorEffect::Commit { to, group } | GeneratorEffect::Abort { to, group, .. } => {
                    self.reductions.remove(group);
                    *to
                }
                GeneratorEffect::Membership { .. } => continue,
            };
            if let Some(id) = self.life_of(to) {
                self.send_back(id, &MemberEvent::Told(effect));
            }
        }
        if self.observer.watches() && self.violation.is_none() {
            let settled = self.observer.saw(self.now, &Happening::Groups(&self.generator));
            self.violation = settled.err();
        }
        self.arm();
        answer
    }

    // Averages.

    fn enter(&mut self, id: LifeId, go: &Arc<Go>) {
        let key = go.key;
        self.queue.push(self.now + self.setup.collective_timeout, Due::Late(id, key));
        let gone =
            go.members.iter().find(|member| self.life_of(**member).is_none_or(|id| self.lives[id].dead));
        let gone = gone.copied();
        let new = || Reduction { go: Arc::clone(go), entered: Vec::new(), broken: false };
        let reduction = self.reductions.entry(key).or_insert_with(new);
        reduction.entered.push(id);
        reduction.broken |= gone.is_some();
        if reduction.broken {
            self.queue.push(self.now + NOTICE_DELAY, Due::Broken(id, key, gone));
        } else if reduction.entered.len() == go.members.len() {
            let time = self.price(&go.members);
            self.queue.push(self.now + time, Due::Reduced(key));
        }
    }

    /// What an average costs: by the link of the host, or by the one between hosts, which members of one host share.
    fn price(&self, members: &[Holder]) -> Duration {
        let mut hosts: Vec<u32> = members.iter().map(|member| self.host(*member)).collect();
        hosts.sort_unstable();
        let sharing = hosts.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(1);
        let link = if hosts.first() == hosts.last() {
            self.setup.inside
        } else {
            let bandwidth = self.setup.between.bandwidth / sharing as f64;
            CostModel { bandwidth, ..self.setup.between }
        };
        let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let len_bytes = usize::try_from(self.setup.model_bytes).unwrap_or(usize::MAX);
        let choice = self.setup.algorithm.resolve(world, len_bytes, &link);
        let seconds = cost_all_reduce(choice, world, len_bytes, &link).unwrap_or(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    fn reduced(&mut self, key: GroupKey) {
        let Some(reduction) = self.reductions.get(&key).filter(|reduction| !reduction.broken) else { return };
        let entered = reduction.entered.clone();
        // Nobody has the average before those who stand still, or are cut off, have sent their part.
        let goes_on = |id: &LifeId| self.lives[*id].paused_until.max(self.lives[*id].cut_until);
        let at = entered.iter().map(goes_on).max().unwrap_or_default();
        if at > self.now {
            return self.queue.push(at, Due::Reduced(key));
        }
        for id in entered {
            self.member(id, MemberEvent::Over(key, Part::Reduced));
        }
    }

    /// A member whose wait times out reports the members it has not heard from.
    fn late(&mut self, id: LifeId, key: GroupKey) {
        if !self.ready(id, Due::Late(id, key)) {
            return;
        }
        let suspect = self.reductions.get(&key).and_then(|reduction| {
            let silent = |member: &&Holder| {
                let entered = reduction.entered.iter().find(|id| self.lives[**id].holder == **member);
                entered.is_none_or(|id| {
                    let life = &self.lives[*id];
                    self.now < life.paused_until || self.now < life.cut_until
                })
            };
            reduction.go.members.iter().find(silent).copied()
        });
        self.member(id, MemberEvent::Over(key, Part::Failed { suspect }));
    }
}
