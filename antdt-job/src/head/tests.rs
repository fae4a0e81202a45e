//! One story of a job after another, in one file: they share the world that they happen in.

use std::sync::Arc;
use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_controller::Policy;
use antdt_controller::budget::RestartBudget;
use antdt_controller::policy::{Decision, FromFn, ProposedAction, Unmanaged};
use antdt_core::{
    Ack, ActionId, BatchReport, ClusterView, Contribution, DeviceClass, Exit, Generation, Joined, LeaseId,
    MembershipVersion, Metric, Metrics, ModelDistance, NodeAction, NodeActionKind, NodeInfo, NodeLoad, Plan,
    PushMark, Readiness, Reason, Role, RollbackId, ServerWeights, Stall, StepResult, Work,
};
use antdt_monitor::MonitorConfig;

use super::core::REGISTER_LIMIT;
use super::keeping::STOP_LIMIT;
use super::*;

mod asked;
mod evaluations;

/// A head, its clock, and everything it ordered so far.
struct World {
    head: Head,
    now: JobTime,
    effects: Vec<HeadEffect>,
    notes: Vec<Note>,
    /// What the members of the newest group were told.
    formed: Option<Arc<Joined>>,
}

fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

fn server(index: u32) -> Holder {
    Holder::new(NodeId::server(index), Incarnation(0))
}

fn ack(sequence: u64, offset: u64) -> Ack {
    Ack { lease: LeaseId { generation: Generation(1), sequence }, offset }
}

impl World {
    fn new(sync: &'static str, workers: u32, servers: u32) -> Self {
        Self::with_policy(sync, workers, servers, Box::new(Unmanaged))
    }

    fn with_policy(sync: &'static str, workers: u32, servers: u32, policy: Box<dyn Policy>) -> Self {
        Self::with(sync, workers, servers, policy, None)
    }

    fn with(
        sync: &'static str,
        workers: u32,
        servers: u32,
        policy: Box<dyn Policy>,
        checkpoints: Option<CheckpointSchedule>,
    ) -> Self {
        Self::of(Self::config(sync, workers, servers, policy, checkpoints))
    }

    fn config(
        sync: &'static str,
        workers: u32,
        servers: u32,
        policy: Box<dyn Policy>,
        checkpoints: Option<CheckpointSchedule>,
    ) -> HeadConfig {
        HeadConfig {
            sync: sync.parse().unwrap(),
            workers,
            servers,
            global_batch_size: 64,
            heartbeat: Duration::from_millis(100),
            max_restarts: 2,
            min_workers: 2,
            must_register: true,
            dry_run: false,
            policy,
            monitor: MonitorConfig::default(),
            checkpoints,
            evaluations: None,
            choice: None,
            can_roll_back: false,
            hosts: Arc::default(),
        }
    }

    /// A job of programs that take no part in the protocol.
    fn of_programs(workers: u32) -> Self {
        let config = Self::config("allreduce", workers, 0, Box::new(Unmanaged), None);
        Self::of(HeadConfig { must_register: false, ..config })
    }

    fn of(config: HeadConfig) -> Self {
        let head = Head::new(config).unwrap();
        let mut world =
            Self { head, now: JobTime::ZERO, effects: Vec::new(), notes: Vec::new(), formed: None };
        world.tell(HeadEvent::Begin);
        world
    }

    fn tell(&mut self, event: HeadEvent) -> HeadAnswer {
        self.now = self.now + Duration::from_millis(10);
        let answer = self.head.handle(self.now, event);
        self.drain();
        answer
    }

    /// Lets time pass without an event; deadlines fire when they are due.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.head.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.head.on_deadline(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn drain(&mut self) {
        while let Some(effect) = self.head.poll_effect() {
            match effect {
                HeadEffect::Note { note, .. } => self.notes.push(note),
                HeadEffect::Joined(holder, joined) => {
                    if !joined.members.is_empty() {
                        self.formed = Some(joined.clone());
                    }
                    self.effects.push(HeadEffect::Joined(holder, joined));
                }
                effect => self.effects.push(effect),
            }
        }
    }

    /// These orders are among those since the last call, which it returns.
    fn ordered_among_others(&mut self, wanted: &[&str]) -> Vec<String> {
        let orders = self.orders();
        let is_there = |wanted: &&str| orders.iter().any(|order| order == wanted);
        assert!(wanted.iter().all(is_there), "{wanted:?}: {orders:?}");
        orders
    }

    /// What was ordered since the last call.
    fn orders(&mut self) -> Vec<String> {
        let told = |effect: HeadEffect| match effect {
            HeadEffect::Launch(holder) => format!("launch {holder}"),
            HeadEffect::Kill(holder) => format!("kill {holder}"),
            HeadEffect::Order(values) => format!("order {values:?}"),
            HeadEffect::Settle(c) => {
                format!("settle {} {:?}", c.holder, c.acks.iter().map(|a| a.offset).collect::<Vec<_>>())
            }
            HeadEffect::LedgerLost(holder) => format!("lost {holder}"),
            HeadEffect::Joined(holder, joined) if joined.finished => format!("home {holder}"),
            HeadEffect::Joined(holder, joined) => format!("joined {holder} at {}", joined.next_step),
            HeadEffect::Committed(holder, commit) => format!("committed {holder} {}", commit.step),
            HeadEffect::Undone(holder) => format!("undone {holder}"),
            HeadEffect::RollBack(rollback) => format!("roll back {rollback}"),
            HeadEffect::Epochs(epochs) => format!("until epoch {epochs}"),
            HeadEffect::Servers(servers) => format!("{servers} servers"),
            HeadEffect::Weights(weights) => format!("weights {weights}"),
            HeadEffect::Rested { holder, checkpoint, keep, .. } => {
                format!("{holder} {} {checkpoint}", if keep { "keeps" } else { "goes on after" })
            }
            HeadEffect::Record(_) => "record".to_owned(),
            HeadEffect::GoOn(mode) => format!("goes on with {mode}"),
            HeadEffect::End(Ok(())) => "end".to_owned(),
            HeadEffect::End(Err(why)) => format!("fail: {why}"),
            HeadEffect::Note { .. } => unreachable!("kept apart"),
        };
        self.effects.drain(..).map(told).collect()
    }

    fn register(&mut self, holder: Holder) -> HeadAnswer {
        let info = NodeInfo {
            holder,
            host: format!("host-{}", holder.node.index / 2),
            device: DeviceClass::default(),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: 64,
        };
        let data_address = format!("127.0.0.1:{}", 1000 + holder.node.index);
        self.tell(HeadEvent::Register(Registration { info, data_address, process_id: 7 }))
    }

    fn join(&mut self, holder: Holder, applied: Option<StepResult>) -> HeadAnswer {
        let group = self.formed.as_ref().map(|joined| joined.membership).unwrap_or_default();
        self.tell(HeadEvent::Join { holder, standing: Standing { group, applied, ..Standing::default() } })
    }

    fn leave(&mut self, holder: Holder, end_of_data: bool) -> HeadAnswer {
        self.tell(HeadEvent::Leave { holder, end_of_data, can_evaluate: end_of_data })
    }

    fn exits(&mut self, holder: Holder, exit: Exit) {
        self.tell(HeadEvent::Exited(holder, exit, vec!["error: out of luck".to_owned()]));
    }

    fn beat(&mut self, holder: Holder) -> HeadAnswer {
        self.tell(HeadEvent::heartbeat(holder, Vec::new(), PlanVersion(0), (PlanVersion(0), 0)))
    }

    /// The answer to a heartbeat.
    fn reply(&mut self, holder: Holder) -> BeatReply {
        match self.beat(holder) {
            HeadAnswer::Beat(reply) => *reply,
            answer => panic!("{answer:?}"),
        }
    }

    /// A heartbeat that reports one batch.
    fn steps(&mut self, holder: Holder, sequence: u64) {
        self.batches(holder, sequence, 1, 100);
    }

    /// A heartbeat that reports `count` batches, each of which took so many milliseconds.
    fn batches(&mut self, holder: Holder, sequence: u64, count: u64, millis: u64) {
        let (reports, plan) =
            (reports(holder, sequence, count, Duration::from_millis(millis)), PlanVersion(1));
        self.tell(HeadEvent::heartbeat(holder, reports, plan, (plan, 0)));
    }

    /// Each worker reports forty batches, with the milliseconds that each of them took.
    fn paces(&mut self, millis: [u64; 4]) {
        (0..).zip(millis).for_each(|(index, millis)| self.batches(worker(index, 0), 0, 40, millis));
    }

    /// The policy is asked so often, when so many of 100 samples are acknowledged.
    fn ticks(&mut self, count: u32, acked: u64) {
        for _ in 0..count {
            let counts = Counts { total: 100, acked, todo: 100 - acked, ..Counts::default() };
            self.tell(HeadEvent::Tick(Some(counts)));
        }
    }

    /// A worker is ready for a step with three samples. Returns the orders that follow.
    fn ready(&mut self, holder: Holder, step: u64, acks: &[Ack]) -> Vec<String> {
        self.tell(ready(holder, step, 3, acks));
        self.orders()
    }

    fn kept(&mut self, checkpoint: CheckpointId) {
        self.tell(HeadEvent::Kept { checkpoint, outcome: Ok("here".to_owned()) });
    }

    fn not_kept(&mut self, checkpoint: CheckpointId) {
        self.tell(HeadEvent::Kept { checkpoint, outcome: Err("the disk is full".to_owned()) });
    }

    /// A life registers and asks to join.
    fn comes(&mut self, holder: Holder) {
        self.register(holder);
        self.join(holder, None);
    }

    fn published(&self) -> &Plan {
        self.head.core.published.as_ref().expect("a plan was published")
    }

    /// All workers (and servers) registered and joined; earlier orders forgotten.
    fn running(mut self) -> Self {
        for index in 0..self.head.core.config.servers {
            self.register(server(index));
        }
        for index in 0..self.head.core.config.workers {
            self.comes(worker(index, 0));
        }
        self.orders();
        self
    }
}

/// A worker is ready for a step with so many samples.
fn ready(holder: Holder, step: u64, samples: u64, acks: &[Ack]) -> HeadEvent {
    let readiness = Readiness { samples, end_of_data: false, plan: PlanVersion(0), acks: acks.to_vec() };
    HeadEvent::Ready { holder, step, readiness }
}

fn step(number: u64, contributions: &[(Holder, Ack)]) -> StepResult {
    let contributions = contributions
        .iter()
        .map(|(holder, ack)| Contribution { holder: *holder, acks: vec![*ack].into() })
        .collect();
    StepResult { step: number, contributions }
}

const KILLED: Exit = Exit::Killed { signal: 9 };

#[test]
fn servers_start_first_and_the_first_group_waits_for_all_workers() {
    let mut world = World::new("ps-asp", 2, 1);
    assert_eq!(world.orders(), ["launch server-0#0", "launch worker-1#0", "launch worker-0#0"]);
    world.comes(worker(0, 0));
    assert_eq!(world.orders(), [""; 0]);
    world.comes(worker(1, 0));
    assert_eq!(world.orders(), [""; 0], "and for the servers");
    world.register(server(0));
    assert_eq!(world.orders(), ["joined worker-0#0 at 0", "joined worker-1#0 at 0"]);
}

#[test]
fn workers_are_told_the_addresses_of_the_servers_once_all_are_known() {
    let mut world = World::new("ps-bsp", 1, 2);
    world.register(server(1));
    world.comes(worker(0, 0));
    world.effects.clear();
    world.register(server(0));
    let HeadEffect::Joined(_, joined) = world.effects.remove(0) else { panic!("not told") };
    assert_eq!(joined.servers[..], ["127.0.0.1:1000", "127.0.0.1:1001"]);
}

#[test]
fn workers_that_are_let_in_at_once_share_one_answer() {
    for (sync, servers) in [("allreduce", 0), ("ps-bsp", 1), ("ps-asp", 1)] {
        let mut world = World::new(sync, 3, servers);
        for index in 0..servers {
            world.register(server(index));
        }
        for index in 0..3 {
            world.comes(worker(index, 0));
        }
        let joined = |effect: &HeadEffect| match effect {
            HeadEffect::Joined(holder, joined) => Some((*holder, Arc::clone(joined))),
            _ => None,
        };
        let told: Vec<_> = world.effects.iter().filter_map(joined).collect();
        assert_eq!(
            told.iter().map(|(holder, _)| *holder).collect::<Vec<_>>(),
            [0, 1, 2].map(|i| worker(i, 0))
        );
        assert!(told.iter().all(|(_, joined)| Arc::ptr_eq(joined, &told[0].1)), "{sync}");
    }
}

#[test]
fn a_dead_ring_member_is_settled_before_its_leases_go_back() {
    let mut world = World::new("allreduce", 3, 0).running();
    world.exits(worker(2, 0), KILLED);
    assert_eq!(world.orders(), ["launch worker-2#1"], "its leases wait for the survivors");
    let done = [(worker(0, 0), ack(1, 5)), (worker(1, 0), ack(2, 5)), (worker(2, 0), ack(3, 5))];
    world.join(worker(0, 0), Some(step(4, &done)));
    world.join(worker(1, 0), Some(step(4, &done)));
    assert_eq!(
        world.orders(),
        ["settle worker-2#0 [5]", "lost worker-2#0", "joined worker-0#0 at 5", "joined worker-1#0 at 5"]
    );
    // The replacement comes; the others are asked to meet it, and do.
    world.comes(worker(2, 1));
    assert!(world.reply(worker(0, 0)).reform);
    world.join(worker(0, 0), Some(step(9, &done[..2])));
    world.join(worker(1, 0), Some(step(9, &done[..2])));
    let orders = world.orders();
    assert_eq!(orders, ["joined worker-0#0 at 10", "joined worker-1#0 at 10", "joined worker-2#1 at 10"]);
}

/// A link was cut while the group was set up: two workers see their calls fail, and none comes to the third one.
#[test]
fn a_member_that_waits_in_a_group_that_failed_for_the_others_is_told() {
    for sync in ["allreduce", "allreduce=1", "local-sgd=2", "d-psgd", "ad-psgd", "ripples=smart"] {
        let mut world = World::new(sync, 3, 0).running();
        let group = world.formed.as_ref().unwrap().membership;
        let broken = |world: &mut World, index| {
            let reply = world.reply(worker(index, 0));
            reply.broken_group
        };
        assert_eq!(broken(&mut world, 2), None, "{sync}");
        for index in 0..2 {
            let standing = Standing { group, broken: true, ..Standing::default() };
            world.tell(HeadEvent::Join { holder: worker(index, 0), standing });
            assert_eq!(broken(&mut world, 2), Some(group), "{sync}");
        }
        world.join(worker(2, 0), None);
        let told = ["joined worker-0#0 at 0", "joined worker-1#0 at 0", "joined worker-2#0 at 0"];
        assert_eq!(world.orders(), told, "{sync}");
        assert_eq!(broken(&mut world, 2), None, "{sync}");
    }
}

/// Two of four workers are passive, which go on unless they were drawn; the one that asks waits for the one that it drew, and for
/// no other.
#[test]
fn an_active_worker_averages_with_a_passive_one_and_no_other_worker_waits() {
    let mut world = World::new("ad-psgd", 4, 0).running();
    let ask = |world: &mut World, index: u32, step: u64, samples: u64| {
        let acks: Vec<Ack> = (0..samples).map(|_| ack(u64::from(index), step)).collect();
        world.tell(ready(worker(index, 0), step, samples, &acks));
        world.orders()
    };
    // Ranks 0 and 2 are passive: no rank has drawn them.
    assert_eq!(ask(&mut world, 0, 2, 0), ["committed worker-0#0 0"], "goes on without an average");
    assert_eq!(ask(&mut world, 2, 2, 0), ["committed worker-2#0 0"]);
    assert_eq!(ask(&mut world, 1, 2, 0), [""; 0], "waits for the one that it drew");
    assert_eq!(ask(&mut world, 3, 2, 0), [""; 0], "for the other one");
    // The draw is random; the two of a pair are told in order of rank.
    let mut partners = Vec::new();
    for passive in [0, 2] {
        let told = ask(&mut world, passive, 4, 0);
        let is_told =
            |index: u32| told.iter().any(|text| text.starts_with(&format!("committed worker-{index}#0 ")));
        assert!(told.len() == 2 && is_told(passive), "{told:?}");
        partners.extend([1, 3].into_iter().filter(|active| is_told(*active)));
    }
    assert!(partners == [1, 3] || partners == [3, 1], "workers 1 and 3: {partners:?}");
    // Both have the average: it counts for both, and no other worker is told.
    let active = partners[0];
    assert_eq!(ask(&mut world, 0, 5, 1), [""; 0]);
    let told = ask(&mut world, active, 3, 1);
    assert!(
        told[0].starts_with("settle worker-0#0") && told[1].starts_with(&format!("settle worker-{active}#0"))
    );
    assert_eq!(told.len(), 4, "{told:?}");
}

/// Questions 6 and 12 seek a partner and wait for it, 8 waits for one that seeks, 10 is to be answered at once.
#[test]
fn workers_that_average_beside_their_gradients_are_paired_with_those_that_ask_and_with_no_others() {
    let mut world = World::new("ad-psgd=overlap", 4, 0).running();
    let go = |group, of: [u32; 2]| of.map(|index| (index, group, false));
    // Ranks 1 and 3 are active.
    assert_eq!(asks(&mut world, 1, 6, false), [], "no passive one is open");
    assert_eq!(asks(&mut world, 3, 8, false), [(3, 0, false)], "it has nothing new, and need not wait");
    assert_eq!(asks(&mut world, 0, 6, false), go(1, [0, 1]));
    // The gradient of worker 1 was there before it heard of that, and it has taken the question back.
    assert_eq!(asks(&mut world, 1, 10, false), [(1, 1, false)], "it is told of the pair that it is in");
    assert_eq!(asks(&mut world, 1, 6, false), [], "a late copy");
    assert_eq!(asks(&mut world, 0, 7, false), []);
    assert_eq!(asks(&mut world, 1, 11, false), go(1, [0, 1]), "both have the average");
    // A passive one that has averaged answers again, until its gradient is there.
    assert_eq!(asks(&mut world, 0, 8, false), []);
    assert_eq!(asks(&mut world, 0, 10, false), [(0, 0, false)]);
    assert_eq!(asks(&mut world, 3, 12, false), [], "it is not open any more");
    assert_eq!(asks(&mut world, 2, 6, false), go(2, [2, 3]));
}

#[test]
fn an_average_of_all_is_made_beside_gradients_and_no_question_is_taken_back_before() {
    let mut world = with_checkpoints("ad-psgd=overlap", 3, 0);
    assert_eq!(asks(&mut world, 0, 6, false), []);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    assert_eq!(asks(&mut world, 1, 6, false), [], "the copy is of the mean of all");
    assert_eq!(asks(&mut world, 0, 10, false), []);
    assert_eq!(asks(&mut world, 0, 6, false), [], "a late copy is not what the worker waits for");
    world.tell(ready(worker(2, 0), 6, 0, &[]));
    let answered = |effect: &HeadEffect| match effect {
        HeadEffect::Committed(to, commit) => Some((to.node.index, commit.asked, commit.contributors.len())),
        _ => None,
    };
    let answered: Vec<_> = world.effects.iter().filter_map(answered).collect();
    assert_eq!(answered, [(0, 10, 3), (1, 6, 3), (2, 6, 3)]);
}

/// A worker asks for a group, or says that it has the average. What workers were told by it: of which group, and whether it is the end.
fn asks(world: &mut World, index: u32, step: u64, end_of_data: bool) -> Vec<(u32, u64, bool)> {
    let readiness = Readiness { samples: 0, end_of_data, plan: PlanVersion(0), acks: Vec::new() };
    world.tell(HeadEvent::Ready { holder: worker(index, 0), step, readiness });
    let told = |effect: HeadEffect| match effect {
        HeadEffect::Committed(to, commit) => Some((to.node.index, commit.step, commit.end)),
        _ => None,
    };
    world.effects.drain(..).filter_map(told).collect()
}

#[test]
fn the_end_of_a_group_of_a_few_is_not_the_end_of_all() {
    let mut world = World::new("ripples=arrival:2", 4, 0).running();
    assert_eq!(asks(&mut world, 0, 2, false), []);
    assert_eq!(asks(&mut world, 1, 2, false), [(0, 1, false), (1, 1, false)]);
    // Another worker has heard of the end of the data: an average of all is due.
    assert_eq!(asks(&mut world, 2, 2, true), []);
    assert_eq!(asks(&mut world, 0, 3, true), []);
    assert_eq!(asks(&mut world, 1, 3, true), [(0, 1, false), (1, 1, false)], "two of four");
    for (index, step) in [(0, 4), (1, 4)] {
        assert_eq!(asks(&mut world, index, step, true), []);
    }
    let all = |group, end| [0, 1, 2, 3].map(|index| (index, group, end));
    assert_eq!(asks(&mut world, 3, 2, true), all(2, false));
    for (index, step) in [(0, 5), (1, 5), (2, 3)] {
        assert_eq!(asks(&mut world, index, step, true), []);
    }
    assert_eq!(asks(&mut world, 3, 3, true), all(2, true));
}

#[test]
fn no_group_of_a_few_is_formed_while_a_checkpoint_waits_for_its_keeper() {
    let mut world = with_checkpoints("ripples=arrival:2", 4, 0);
    assert_eq!(asks(&mut world, 0, 2, false), []);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    for index in [1, 2] {
        assert_eq!(asks(&mut world, index, 2, false), [], "the copy is of the mean of all");
    }
    assert_eq!(asks(&mut world, 3, 2, false), [0, 1, 2, 3].map(|index| (index, 1, false)));
}

#[test]
fn of_workers_that_are_all_told_to_leave_the_first_stays_with_the_model() {
    let mut world = World::new("ripples=arrival:2", 2, 0).running();
    world.head.core.draining.extend([worker(0, 0), worker(1, 0)]);
    assert_eq!(asks(&mut world, 0, 2, false), [], "it has to meet the other one");
    assert_eq!(asks(&mut world, 1, 2, false), [(1, 0, true)]);
}

#[test]
fn a_late_copy_of_a_question_that_was_undone_forms_no_group() {
    let mut world = World::new("ripples=arrival:2", 2, 0).running();
    let ask = |world: &mut World, index: u32, step: u64| {
        world.tell(ready(worker(index, 0), step, 0, &[]));
        world.orders()
    };
    assert_eq!(ask(&mut world, 0, 2), [""; 0]);
    world.exits(worker(1, 0), KILLED);
    world.ordered_among_others(&["undone worker-0#0"]);
    assert_eq!(ask(&mut world, 0, 2), ["undone worker-0#0"], "the answer was lost");
    world.join(worker(0, 0), Some(step(0, &[])));
    assert_eq!(world.orders().last().map(String::as_str), Some("joined worker-0#0 at 1"));
    // Alone, it would be a group of its own.
    assert_eq!(ask(&mut world, 0, 2), ["undone worker-0#0"], "nobody waits for the answer");
    assert_eq!(ask(&mut world, 0, 4), ["committed worker-0#0 1"]);
    assert_eq!(ask(&mut world, 0, 2), [""; 0]);
}

#[test]
fn a_worker_that_left_at_the_end_of_the_data_asks_for_nothing_any_more() {
    for sync in ["allreduce", "ripples=arrival:2"] {
        let mut world = World::new(sync, 2, 0).running();
        world.orders();
        world.leave(worker(0, 0), true);
        let readiness = Readiness { samples: 0, end_of_data: true, plan: PlanVersion(0), acks: Vec::new() };
        let answer = world.tell(HeadEvent::Ready { holder: worker(0, 0), step: 2, readiness });
        assert!(matches!(answer, HeadAnswer::Fenced), "{sync}: {answer:?}");
        let answer = world.join(worker(0, 0), None);
        assert!(matches!(answer, HeadAnswer::Fenced), "{sync}: {answer:?}");
        // It is alive, and may have to evaluate.
        assert!(matches!(world.beat(worker(0, 0)), HeadAnswer::Beat(_)), "{sync}");
        assert_eq!(world.orders(), [""; 0], "{sync}");
    }
}

/// Two workers a host, all at one address.
#[test]
fn groups_go_by_the_hosts_that_workers_say_they_are_on() {
    let mut world = World::new("ripples=smart", 4, 0).running();
    let mut told = Vec::new();
    for index in 0..4 {
        world.tell(ready(worker(index, 0), 2, 0, &[]));
        told.extend(world.orders());
    }
    let is_told = |index: u32| told.contains(&format!("committed worker-{index}#0 1"));
    assert_eq!(told.len(), 2, "{told:?}: the others wait for the group of all of their host");
    assert!(is_told(0) != is_told(1) && is_told(2) != is_told(3), "{told:?}: one of each host");
}

#[test]
fn host_that_the_launcher_names_late_counts_until_the_next_life() {
    let mut world = World::new("allreduce", 2, 0);
    let hosts = |world: &World| {
        let view = world.head.core.view(world.now, 0.0);
        let known = view.workers.iter().map(|worker| {
            let core = world.head.core.host(Holder::new(worker.id, worker.incarnation)).to_owned();
            assert_eq!(core, *worker.host);
            core
        });
        known.collect::<Vec<_>>()
    };
    let placed = |holder, host: &str| HeadEvent::Placed { holder, host: host.to_owned() };
    // One before it registers, the other after that.
    world.tell(placed(worker(0, 0), "rack-1"));
    assert_eq!(hosts(&world), ["", ""], "no node has registered");
    let mut world = world.running();
    assert_eq!(hosts(&world), ["rack-1", "host-0"]);
    world.tell(placed(worker(1, 0), "rack-2"));
    assert_eq!(hosts(&world), ["rack-1", "rack-2"]);
    world.register(worker(1, 0));
    assert_eq!(hosts(&world), ["rack-1", "rack-2"], "an answer was lost, and the worker registers again");
    world.exits(worker(1, 0), KILLED);
    world.tell(placed(worker(1, 0), "rack-3"));
    world.register(worker(1, 1));
    assert_eq!(hosts(&world), ["rack-1", "host-0"], "the host of the life before says nothing");
    world.tell(placed(worker(1, 1), "rack-4"));
    assert_eq!(hosts(&world), ["rack-1", "rack-4"]);
}

#[test]
fn heartbeat_says_all_that_a_node_has_to_say_and_is_fenced_once() {
    let mut world = World::new("allreduce", 3, 0).running();
    let distance = ModelDistance { average: 7, relative: 0.5 };
    let beat = |index| HeadEvent::Heartbeat {
        holder: worker(index, 0),
        reports: Vec::new(),
        plan_ready: PlanVersion(0),
        plan_applied: (PlanVersion(0), 0),
        news: vec![NodeNews::Averaged(distance), NodeNews::Preempted],
    };
    let HeadAnswer::Beat(reply) = world.tell(beat(1)) else { panic!("refused") };
    assert!(reply.drain, "the order follows from what the same heartbeat says");
    assert!(world.notes.contains(&Note::Averaged(NodeId::worker(1), distance)));
    world.exits(worker(2, 0), KILLED);
    assert!(matches!(world.tell(beat(2)), HeadAnswer::Fenced));
    assert!(!world.notes.contains(&Note::Averaged(NodeId::worker(2), distance)));
}

#[test]
fn a_member_that_was_not_told_of_its_group_is_told_again_the_same() {
    let mut world = World::new("allreduce", 2, 0).running();
    let told = world.formed.clone().expect("a group was formed");
    world.tell(HeadEvent::Join { holder: worker(0, 0), standing: Standing::default() });
    let [HeadEffect::Joined(holder, joined)] = &world.effects[..] else { panic!("{:?}", world.effects) };
    assert_eq!((*holder, joined), (worker(0, 0), &told));
    assert!(Arc::ptr_eq(joined, &told));
    assert!(!world.reply(worker(1, 0)).reform, "its peer need not meet it");
    // When all is done, there is no group to go to.
    world.orders();
    world.leave(worker(1, 0), true);
    world.orders();
    world.tell(HeadEvent::Join { holder: worker(0, 0), standing: Standing::default() });
    assert_eq!(world.orders(), ["home worker-0#0"]);
}

#[test]
fn i25_batch_sizes_follow_the_membership_and_always_add_up() {
    let mut world = World::new("allreduce", 3, 0).running();
    let sum = |world: &World| world.published().batch_sizes.values().sum::<u32>();
    assert_eq!((sum(&world), world.published().batch_sizes.len()), (64, 3));
    world.exits(worker(2, 0), KILLED);
    world.join(worker(0, 0), None);
    world.join(worker(1, 0), None);
    assert_eq!((sum(&world), world.published().batch_sizes.len()), (64, 2));
}

#[test]
fn a_synchronous_step_is_settled_before_anybody_is_told() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    assert_eq!(world.ready(worker(0, 0), 0, &[ack(3, 3)]), [""; 0]);
    world.tell(ready(worker(1, 0), 0, 5, &[ack(5, 5)]));
    assert_eq!(
        world.orders(),
        [
            "settle worker-0#0 [3]",
            "settle worker-1#0 [5]",
            "committed worker-0#0 0",
            "committed worker-1#0 0"
        ]
    );
}

#[test]
fn a_push_at_ones_own_pace_counts_once_and_the_servers_hear_of_it_from_the_master_if_its_worker_dies() {
    for (sync, number) in [("ps-asp", 4), ("ps-ssp=2", 9)] {
        let mut world = World::new(sync, 3, 1).running();
        for _ in 0..2 {
            world.tell(ready(worker(1, 0), number, 3, &[ack(1, 3)]));
        }
        // An answer that was lost is given again, and nothing is settled twice.
        let told = format!("committed worker-1#0 {number}");
        assert_eq!(world.orders(), ["settle worker-1#0 [3]", &told, &told], "{sync}");
        world.exits(worker(1, 0), KILLED);
        world.exits(worker(2, 0), KILLED);
        let late = world.tell(ready(worker(1, 0), number + 2, 3, &[ack(1, 3)]));
        assert!(matches!(late, HeadAnswer::Fenced));
        let of_dead = PushMark { holder: worker(1, 0), step: Some(4) };
        assert_eq!(world.reply(server(0)).lost, [of_dead, PushMark { holder: worker(2, 0), step: None }]);
        // So does a process that connects to them, or has them do something that is for good.
        assert_eq!(*world.head.core.joined_reply(MembershipVersion(1), Arc::default()).pushes, [of_dead]);
        let HeadAnswer::Left { evaluate: true, pushes, .. } = world.leave(worker(0, 0), true) else {
            panic!("it does not evaluate")
        };
        assert_eq!(*pushes, [of_dead]);
    }
}

#[test]
fn a_death_completes_the_step_for_workers_that_are_ready() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    world.tell(ready(worker(0, 0), 0, 3, &[ack(1, 3)]));
    world.exits(worker(1, 0), KILLED);
    let expected =
        ["lost worker-1#0", "settle worker-0#0 [3]", "committed worker-0#0 0", "launch worker-1#1"];
    assert_eq!(world.orders(), expected);
    // The dead life may not speak any more, and the servers are told.
    let late = world.tell(ready(worker(1, 0), 1, 3, &[ack(1, 3)]));
    assert!(matches!(late, HeadAnswer::Fenced));
    let reply = world.reply(server(0));
    let lost = PushMark { holder: worker(1, 0), step: None };
    assert_eq!(reply.lost, [lost]);
    assert_eq!(world.reply(server(0)).lost, [lost], "a reply may be lost, so it is said again");
}

#[test]
fn a_worker_that_comes_later_starts_at_the_open_step_with_an_empty_batch() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    world.exits(worker(1, 0), KILLED);
    world.tell(ready(worker(0, 0), 0, 3, &[]));
    world.register(worker(1, 1));
    world.effects.clear();
    world.join(worker(1, 1), None);
    let [HeadEffect::Joined(holder, joined)] = &world.effects[..] else { panic!("{:?}", world.effects) };
    assert_eq!((*holder, joined.next_step), (worker(1, 1), 1));
    assert!(!joined.plan.batch_sizes.contains_key(&NodeId::worker(1)));
    assert_eq!(joined.last_commit.as_ref().map(|commit| commit.samples), Some(3));
    assert!(world.published().batch_sizes.contains_key(&NodeId::worker(1)));
}

#[test]
fn a_worker_that_asks_again_to_be_let_in_does_not_begin_a_plan_that_the_others_do_not_have() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    world.effects.clear();
    // Its answer was lost; the plan that is published names it.
    world.join(worker(1, 0), None);
    let [HeadEffect::Joined(holder, joined)] = &world.effects[..] else { panic!("{:?}", world.effects) };
    assert_eq!(*holder, worker(1, 0));
    assert!(joined.plan.batch_sizes.is_empty());
    assert!(world.published().batch_sizes.contains_key(&NodeId::worker(1)));
}

#[test]
fn a_replacement_gets_its_plan_however_long_the_master_was_away() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    let first = world.published().version;
    for index in 0..2 {
        world.tell(HeadEvent::heartbeat(worker(index, 0), Vec::new(), first, (first, 1)));
    }
    world.exits(worker(1, 0), KILLED);
    world.comes(worker(1, 1));
    let newest = world.published().version;
    assert!(newest > first);
    world.now = world.now + Duration::from_secs(42);
    let counts = Counts { total: 100, ..Counts::default() };
    for _ in 0..3 {
        world.tell(HeadEvent::Tick(Some(counts)));
    }
    for holder in [worker(0, 0), worker(1, 1)] {
        let reply = world.reply(holder);
        assert_eq!(
            reply.plan.map(|plan| plan.version),
            Some(newest),
            "the first plan is not for these lives"
        );
    }
}

#[test]
fn a_registration_that_is_repeated_is_a_sign_of_life() {
    let mut world = World::new("ps-asp", 1, 1);
    world.register(server(0));
    world.register(worker(0, 0));
    let limit = MonitorConfig::default().liveness.lost_after;
    world.wait(limit / 2);
    world.beat(server(0));
    world.register(worker(0, 0));
    world.orders();
    world.wait(limit * 3 / 4);
    assert_eq!(world.orders(), [""; 0]);
}

#[test]
fn the_job_ends_when_all_have_left_and_one_has_evaluated() {
    let mut world = World::new("ps-asp", 2, 1).running();
    let HeadAnswer::Left { evaluate: true, .. } = world.leave(worker(1, 0), true) else {
        panic!("nobody evaluates")
    };
    let HeadAnswer::Left { evaluate: false, .. } = world.leave(worker(0, 0), true) else {
        panic!("both evaluate")
    };
    assert_eq!(world.orders(), [""; 0]);
    let mut metrics = Metrics::default();
    metrics.record(Metric::mean(Metric::LOSS, 0.5, 9.0)).unwrap();
    world.tell(HeadEvent::Evaluated { holder: worker(1, 0), samples: 9, metrics: metrics.clone() });
    assert_eq!(world.orders(), ["end"]);
    assert!(world.notes.contains(&Note::Evaluated { samples: 9, metrics }));
    assert!(world.reply(server(0)).finished);
}

#[test]
fn an_evaluator_that_dies_does_not_keep_the_job_from_ending() {
    let mut world = World::new("allreduce", 1, 0).running();
    world.leave(worker(0, 0), true);
    world.exits(worker(0, 0), KILLED);
    assert_eq!(world.orders(), ["end"]);
}

/// Seen in a real job, in which a server had lost its copy.
#[test]
fn a_last_checkpoint_without_news_does_not_keep_the_job_for_ever() {
    let mut world = with_checkpoints("ps-asp", 1, 1);
    world.leave(worker(0, 0), true);
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, metrics: Metrics::default() });
    world.exits(worker(0, 0), Exit::Finished);
    assert_eq!(world.orders(), [""; 0]);
    for _ in 0..40 {
        world.beat(server(0));
        world.wait(Duration::from_secs(20));
        world.beat(server(0));
        world.wait(Duration::from_secs(20));
        world.beat(server(0));
        world.wait(Duration::from_secs(20));
    }
    assert_eq!(world.orders(), ["end"]);
}

#[test]
fn an_evaluator_that_falls_silent_is_killed_and_does_not_keep_the_job_from_ending() {
    let mut world = World::new("allreduce", 2, 0).running();
    world.leave(worker(0, 0), true);
    world.leave(worker(1, 0), true);
    world.orders();
    world.wait(MonitorConfig::default().liveness.lost_after);
    assert_eq!(world.orders(), ["kill worker-0#0"], "worker 1 is done: its silence is no matter");
    world.exits(worker(0, 0), KILLED);
    assert_eq!(world.orders(), ["end"]);
}

const AT_THE_END: CheckpointSchedule =
    CheckpointSchedule { every: CheckpointEvery::End, first: CheckpointId(1), epochs: 1 };

fn with_checkpoints(sync: &'static str, workers: u32, servers: u32) -> World {
    World::with(sync, workers, servers, Box::new(Unmanaged), Some(AT_THE_END)).running()
}

/// A job that takes checkpoints and can go back, in which all take part.
fn that_keeps_and_rolls_back(
    sync: &'static str,
    workers: u32,
    servers: u32,
    policy: Box<dyn Policy>,
) -> World {
    let mut world = World::with(sync, workers, servers, policy, Some(AT_THE_END));
    world.head.core.config.can_roll_back = true;
    world.running()
}

fn ordered(world: &mut World, holder: Holder) -> Option<CheckpointId> {
    world.reply(holder).checkpoint
}

/// The answer to a user who asks for a checkpoint, or for the outcome of one.
fn asked(world: &mut World, checkpoint: Option<CheckpointId>) -> (u64, AskedCheckpoint) {
    match world.tell(HeadEvent::Checkpoint(checkpoint)) {
        HeadAnswer::Checkpointed { checkpoint, state } => (checkpoint.0, state),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_user_that_asks_for_a_checkpoint_is_told_its_outcome() {
    let mut world = with_checkpoints("ps-bsp", 2, 1).running();
    let id = CheckpointId(1);
    assert_eq!(asked(&mut world, None), (1, AskedCheckpoint::UnderWay));
    assert_eq!(asked(&mut world, None), (1, AskedCheckpoint::UnderWay), "there is one already");
    assert_eq!(ordered(&mut world, worker(0, 0)), Some(id));
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: id });
    world.tell(HeadEvent::Cut { checkpoint: id, taken: Ok(()) });
    assert_eq!(asked(&mut world, Some(id)), (1, AskedCheckpoint::UnderWay));
    world.kept(id);
    assert_eq!(asked(&mut world, Some(id)), (1, AskedCheckpoint::Complete("here".to_owned())));

    // One that cannot be written, one that takes too long, and one that the job forgets when it goes back.
    asked(&mut world, None);
    world.not_kept(CheckpointId(2));
    let failed = |why: &str| AskedCheckpoint::Failed(why.to_owned());
    assert_eq!(asked(&mut world, Some(CheckpointId(2))), (2, failed("the disk is full")));
    asked(&mut world, None);
    world.wait(Duration::from_secs(121));
    assert_eq!(asked(&mut world, Some(CheckpointId(3))), (3, failed("it took too long")));
    // Nor does it become complete when its copies come after all.
    world.tell(HeadEvent::Cut { checkpoint: CheckpointId(3), taken: Ok(()) });
    let answer = world.tell(HeadEvent::Stored { checkpoint: CheckpointId(3) });
    assert!(matches!(&answer, HeadAnswer::Refused(why) if why == "checkpoint 3 was given up"), "{answer:?}");
    let (_, forgotten) = asked(&mut world, Some(CheckpointId(77)));
    assert!(matches!(forgotten, AskedCheckpoint::Failed(_)));
}

#[test]
fn a_job_that_can_take_no_checkpoint_says_why() {
    let refused = |world: &mut World| match world.tell(HeadEvent::Checkpoint(None)) {
        HeadAnswer::Refused(why) => why,
        answer => panic!("{answer:?}"),
    };
    assert!(refused(&mut World::new("ps-bsp", 2, 1).running()).contains("takes no checkpoints"));
    let mut world = World::with("ps-bsp", 1, 1, Box::new(Unmanaged), Some(AT_THE_END));
    assert!(refused(&mut world).contains("nothing is trained yet"));
    let mut world = world.running();
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    assert!(refused(&mut world).contains("the job is ending"));
}

#[test]
fn a_job_that_is_stopped_ends_after_its_checkpoint() {
    let mut world = with_checkpoints("allreduce", 2, 0);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    assert_eq!(world.orders(), [""; 0]);
    let id = CheckpointId(1);
    assert_eq!((ordered(&mut world, worker(0, 0)), ordered(&mut world, worker(1, 0))), (Some(id), None));
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: id });
    assert_eq!(world.orders(), ["worker-0#0 keeps 1"]);
    world.tell(HeadEvent::Cut { checkpoint: id, taken: Ok(()) });
    assert_eq!(world.orders(), [""; 0]);
    world.kept(id);
    assert_eq!(world.orders(), ["fail: interrupted"]);
}

#[test]
fn no_checkpoint_begins_when_the_processes_of_a_job_that_is_over_are_told_to_end() {
    let mut world = with_checkpoints("ps-bsp", 2, 1);
    let id = CheckpointId(1);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: id });
    world.tell(HeadEvent::Cut { checkpoint: id, taken: Ok(()) });
    world.not_kept(id);
    assert_eq!(world.orders(), ["worker-0#0 keeps 1", "fail: interrupted"]);
    for holder in [worker(0, 0), worker(1, 0), server(0)] {
        world.tell(HeadEvent::Preempted(holder));
    }
    assert_eq!((ordered(&mut world, worker(0, 0)), ordered(&mut world, worker(1, 0))), (None, None));
}

#[test]
fn a_job_that_is_stopped_as_its_data_end_waits_for_the_last_checkpoint_and_hears_of_none_afterwards() {
    let stopped = || {
        let mut world = with_checkpoints("ps-bsp", 1, 1);
        world.tell(HeadEvent::Stop("interrupted".to_owned()));
        world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: CheckpointId(1) });
        world.tell(HeadEvent::Cut { checkpoint: CheckpointId(1), taken: Ok(()) });
        world.leave(worker(0, 0), true);
        world.kept(CheckpointId(1));
        assert_eq!(world.orders(), ["worker-0#0 keeps 1"]);
        world
    };
    let failed = |world: &World| {
        let of = |note: &&Note| matches!(note, Note::Event { kind: EventKind::NoCheckpoint, .. });
        world.notes.iter().filter(of).count()
    };
    let evaluated = || HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, metrics: Metrics::default() };
    let mut world = stopped();
    world.kept(CheckpointId(2));
    assert_eq!(world.orders(), [""; 0], "it is evaluated");
    world.tell(evaluated());
    assert_eq!((world.orders(), failed(&world)), (vec!["fail: interrupted".to_owned()], 0));
    let mut world = stopped();
    world.tell(evaluated());
    let closed = || HeadEvent::Cut { checkpoint: CheckpointId(2), taken: Err("closed".to_owned()) };
    world.tell(closed());
    assert_eq!((world.orders(), failed(&world)), (vec!["fail: interrupted".to_owned()], 1));
    world.tell(closed());
    assert_eq!(failed(&world), 1, "the job has ended");
}

#[test]
fn a_job_that_is_stopped_while_it_is_evaluated_ends_after_the_evaluation() {
    let stopped = || {
        let mut world = with_checkpoints("allreduce", 1, 0);
        world.leave(worker(0, 0), true);
        world.tell(HeadEvent::Stop("interrupted".to_owned()));
        assert_eq!(world.orders(), [""; 0]);
        world.kept(CheckpointId(1));
        assert_eq!(world.orders(), [""; 0], "it is evaluated");
        world
    };
    let mut world = stopped();
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, metrics: Metrics::default() });
    assert_eq!(world.orders(), ["fail: interrupted"]);
    let mut world = stopped();
    world.exits(worker(0, 0), Exit::Finished);
    assert_eq!(world.orders(), ["fail: interrupted"], "nobody evaluates any more");
    let mut world = stopped();
    for _ in 0..STOP_LIMIT.as_secs() {
        assert_eq!(world.orders(), [""; 0]);
        world.beat(worker(0, 0));
        world.wait(Duration::from_secs(1));
    }
    assert_eq!(world.orders(), ["fail: interrupted"]);
}

#[test]
fn a_job_that_is_stopped_does_not_wait_for_a_checkpoint_for_ever_nor_when_it_is_told_twice() {
    let mut world = with_checkpoints("ps-asp", 2, 1);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: CheckpointId(1) });
    for _ in 0..STOP_LIMIT.as_secs() {
        assert_eq!(world.orders(), [""; 0]);
        for node in [worker(0, 0), worker(1, 0), server(0)] {
            world.beat(node);
        }
        world.wait(Duration::from_secs(1));
    }
    assert_eq!(world.orders(), ["fail: interrupted"]);
    let mut world = with_checkpoints("ps-asp", 2, 1);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    world.tell(HeadEvent::Stop("really".to_owned()));
    assert_eq!(world.orders(), ["fail: really"]);
}

/// Whether the newest answer to a worker's question for a step lets it begin.
fn begins(world: &World, holder: Holder) -> bool {
    let told = world.effects.iter().rev().find_map(|effect| match effect {
        HeadEffect::Committed(to, commit) if *to == holder => Some(commit),
        _ => None,
    });
    told.expect("it was told").counted
}

#[test]
fn a_worker_that_waits_for_its_turn_is_called_off_for_a_checkpoint_and_all_workers_stand_still() {
    let mut world = with_checkpoints("ps-ssp=0", 2, 1);
    world.tell(ready(worker(0, 0), 0, 3, &[]));
    assert!(begins(&world, worker(0, 0)));
    world.ready(worker(1, 0), 0, &[]);
    world.tell(ready(worker(0, 0), 1, 3, &[]));
    assert_eq!(ordered(&mut world, worker(0, 0)), None);
    assert_eq!(world.orders(), [""; 0], "the other one has not finished its step");
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    let id = CheckpointId(1);
    assert_eq!(ordered(&mut world, worker(0, 0)), Some(id));
    assert!(!begins(&world, worker(0, 0)));
    assert_eq!(world.orders(), ["committed worker-0#0 1"]);
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: id });
    assert_eq!(ordered(&mut world, worker(1, 0)), Some(id));
    world.tell(HeadEvent::Rest { holder: worker(1, 0), checkpoint: id });
    assert_eq!(world.orders(), ["worker-0#0 keeps 1"]);
}

#[test]
fn a_worker_far_ahead_is_let_go_when_the_slow_one_dies_and_its_replacement_starts_beside_it() {
    let mut world = World::new("ps-ssp=0", 2, 1).running();
    assert_eq!(world.ready(worker(0, 0), 0, &[]), ["committed worker-0#0 0"]);
    assert_eq!(world.ready(worker(0, 0), 1, &[]), [""; 0]);
    world.exits(worker(1, 0), KILLED);
    world.ordered_among_others(&["committed worker-0#0 1"]);
    for step in 2..9 {
        assert_eq!(world.ready(worker(0, 0), step, &[]), [format!("committed worker-0#0 {step}")]);
    }
    world.comes(worker(1, 1));
    world.orders();
    assert_eq!(world.ready(worker(0, 0), 9, &[]), [""; 0], "one step ahead of the replacement");
    let told = world.ready(worker(1, 1), 0, &[]);
    assert_eq!(told, ["committed worker-1#1 0"], "it has eight steps' clock, as the other had");
    assert_eq!(world.ready(worker(1, 1), 1, &[]), ["committed worker-0#0 9", "committed worker-1#1 1"]);
}

/// The answers to workers about the steps that they pushed for, when this worker has pushed.
fn pushed(world: &mut World, holder: Holder, step: u64) -> Vec<String> {
    pushed_with(world, holder, step, PlanVersion(0))
}

/// The same of a worker that holds this plan.
fn pushed_with(world: &mut World, holder: Holder, step: u64, plan: PlanVersion) -> Vec<String> {
    let readiness = Readiness { samples: 3, end_of_data: false, plan, acks: vec![] };
    world.effects.clear();
    world.tell(HeadEvent::Ready { holder, step, readiness });
    let told = |effect| match effect {
        HeadEffect::Committed(to, commit) => {
            let place = if commit.counted { "in" } else { "late for" };
            Some(format!("{to} {place} {}, {} is open", commit.asked, commit.step + 1))
        }
        _ => None,
    };
    std::mem::take(&mut world.effects).into_iter().filter_map(told).collect()
}

#[test]
fn a_checkpoint_is_kept_by_a_worker_that_is_not_late_and_no_step_is_committed_without_it() {
    let mut world = with_checkpoints("ps-backup=1", 2, 1);
    for step in 0..3 {
        let told = pushed(&mut world, worker(1, 0), step);
        assert_eq!(told, [format!("worker-1#0 in {step}, {} is open", step + 1)]);
    }
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    let id = CheckpointId(1);
    assert_eq!(ordered(&mut world, worker(0, 0)), None, "it knows of no step since the first");
    assert_eq!(ordered(&mut world, worker(1, 0)), Some(id));
    assert_eq!(pushed(&mut world, worker(0, 0), 0), ["worker-0#0 late for 0, 3 is open"]);
    assert_eq!(pushed(&mut world, worker(0, 0), 3), [""; 0], "the keeper is to stand still before this step");
    world.tell(HeadEvent::Rest { holder: worker(1, 0), checkpoint: id });
    assert_eq!(world.orders(), ["worker-1#0 keeps 1"]);
    world.tell(HeadEvent::Cut { checkpoint: id, taken: Ok(()) });
    let orders = world.orders();
    assert_eq!(orders, ["settle worker-0#0 []", "committed worker-0#0 3"], "from now on it need not wait");
}

#[test]
fn a_worker_that_joins_while_all_stand_still_is_let_in_when_the_copies_exist() {
    let mut world = with_checkpoints("ps-asp", 2, 1);
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    world.exits(worker(1, 0), KILLED);
    world.wait(Duration::from_secs(1));
    world.comes(worker(1, 1));
    let id = CheckpointId(1);
    assert!(!world.orders().iter().any(|order| order.starts_with("joined")));
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint: id });
    assert_eq!(world.orders(), ["worker-0#0 keeps 1"], "the dead one is not waited for");
    world.tell(HeadEvent::Cut { checkpoint: id, taken: Err("full".to_owned()) });
    assert_eq!(world.orders(), ["joined worker-1#1 at 0", "fail: interrupted"]);
}

#[test]
fn the_job_waits_for_its_last_checkpoint_but_not_for_that_of_a_dead_worker() {
    let mut world = with_checkpoints("allreduce", 1, 0);
    let id = CheckpointId(1);
    for _ in 0..2 {
        let answer = world.leave(worker(0, 0), true);
        assert!(
            matches!(answer, HeadAnswer::Left { evaluate: true, checkpoint: Some(last), .. } if last == id)
        );
    }
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, metrics: Metrics::default() });
    assert_eq!(world.orders(), [""; 0]);
    world.kept(id);
    assert_eq!(world.orders(), ["end"]);
    let mut world = with_checkpoints("allreduce", 1, 0);
    world.leave(worker(0, 0), true);
    world.exits(worker(0, 0), KILLED);
    assert_eq!(world.orders(), ["end"]);
}

#[test]
fn a_leave_that_is_repeated_gets_the_same_answer() {
    let mut world = World::new("allreduce", 2, 0).running();
    for _ in 0..2 {
        assert!(matches!(world.leave(worker(0, 0), true), HeadAnswer::Left { evaluate: true, .. }));
    }
    assert!(matches!(world.leave(worker(1, 0), true), HeadAnswer::Left { evaluate: false, .. }));
}

#[test]
fn a_silent_worker_is_killed_but_not_when_the_master_was_away_itself() {
    let mut world = World::new("ps-asp", 2, 1).running();
    world.orders();
    world.beat(worker(0, 0));
    let away = MonitorConfig::default().liveness.lost_after * 3;
    world.now = world.now + away;
    world.head.on_deadline(world.now);
    world.drain();
    assert_eq!(world.orders(), [""; 0], "nobody could be heard");
    world.wait(MonitorConfig::default().liveness.lost_after);
    assert_eq!(world.orders(), ["kill worker-0#0", "kill worker-1#0", "kill server-0#0"]);
}

#[test]
fn a_replacement_that_comes_after_the_end_is_sent_home() {
    let mut world = World::new("allreduce", 2, 0).running();
    world.exits(worker(1, 0), KILLED);
    world.join(worker(0, 0), None);
    world.leave(worker(0, 0), true);
    world.orders();
    world.comes(worker(1, 1));
    assert_eq!(world.orders(), ["home worker-1#1"]);
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, metrics: Metrics::default() });
    assert_eq!(world.orders(), [""; 0], "the replacement is still there");
    world.leave(worker(1, 1), true);
    assert_eq!(world.orders(), ["end"]);
}

#[test]
fn a_failure_that_no_restart_cures_ends_the_job_with_the_last_words_of_the_process() {
    let mut world = World::new("ps-asp", 2, 1).running();
    world.exits(worker(1, 0), Exit::Unretryable { code: 1 });
    let orders = world.orders();
    assert!(
        orders.last().unwrap().starts_with("fail: worker-1 ended: exit code 1; it said: out of luck"),
        "{orders:?}"
    );

    let mut world = World::new("ps-asp", 2, 1).running();
    world.exits(server(0), KILLED);
    assert!(
        world.orders()[0]
            .starts_with("fail: server-0 ended (killed by signal 9), and the parameters it held")
    );
}

#[test]
fn message_about_a_panic_quotes_its_text_and_not_the_hint_about_backtraces() {
    let tail = [
        "a line before",
        "thread 'main' (4711) panicked at src/main.rs:7:5:",
        "the ring has no rank 3",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
    ];
    let mut world = World::new("ps-asp", 2, 1).running();
    let tail = tail.map(str::to_owned).to_vec();
    world.tell(HeadEvent::Exited(worker(1, 0), Exit::Unretryable { code: 134 }, tail));
    let orders = world.orders();
    assert!(
        orders.last().unwrap().ends_with("; it said: panicked at src/main.rs:7:5: the ring has no rank 3"),
        "{orders:?}"
    );
}

#[test]
fn worker_that_is_not_started_for_the_moment_is_tried_again_and_given_up_where_others_suffice() {
    let mut world = World::new("ps-asp", 2, 1);
    world.head.core.config.min_workers = 1;
    world.register(server(0));
    world.comes(worker(0, 0));
    world.orders();
    let cause = || vec![format!("{}no process is left", Exit::CAUSE)];
    for incarnation in 0..3 {
        world.tell(HeadEvent::Exited(worker(1, incarnation), Exit::NotStarted, cause()));
        world.now = world.now + Duration::from_secs(5);
        world.head.on_deadline(world.now);
        world.drain();
        let orders = world.orders();
        assert!(orders.iter().all(|order| !order.starts_with("fail")), "{orders:?}");
        let next = format!("launch worker-1#{}", incarnation + 1);
        assert_eq!(orders.contains(&next), incarnation < 2, "{orders:?}");
    }
    // Where the job needs it, the message says why it was not started.
    let mut world = World::new("ps-asp", 1, 1);
    world.register(server(0));
    for incarnation in 0..3 {
        world.tell(HeadEvent::Exited(worker(0, incarnation), Exit::NotStarted, cause()));
        world.now = world.now + Duration::from_secs(5);
        world.head.on_deadline(world.now);
        world.drain();
    }
    let orders = world.orders();
    assert!(orders.last().unwrap().ends_with(": no process is left"), "{orders:?}");
}

#[test]
fn a_node_that_keeps_dying_is_given_up_after_the_limit() {
    let mut world = World::new("ps-asp", 2, 1).running();
    for incarnation in 0..2 {
        world.exits(worker(1, incarnation), KILLED);
        // The second new life waits a moment; the deadline brings it.
        world.now = world.now + Duration::from_secs(5);
        world.head.on_deadline(world.now);
        world.drain();
        assert!(world.orders().contains(&format!("launch worker-1#{}", incarnation + 1)));
    }
    world.exits(worker(1, 2), KILLED);
    let orders = world.orders();
    assert!(orders.last().unwrap().contains("restarted 2 times already (--max-restarts)"), "{orders:?}");
}

#[test]
fn a_node_that_keeps_dying_is_given_up_while_enough_others_are_left() {
    let mut world = World::new("ps-asp", 3, 1).running();
    for incarnation in 0..3 {
        world.wait(Duration::from_secs(5));
        world.exits(worker(1, incarnation), KILLED);
    }
    assert!(!world.orders().iter().any(|order| order.starts_with("fail")));
    let given_up =
        |note: &Note| matches!(note, Note::Action { kind: "GIVE_UP", target, .. } if target == "worker-1");
    assert!(world.notes.iter().any(given_up), "{:?}", world.notes);
    for incarnation in 0..3 {
        world.wait(Duration::from_secs(5));
        world.exits(worker(2, incarnation), KILLED);
    }
    assert!(world.orders().last().unwrap().contains("(--max-restarts)"), "two are needed");
}

#[test]
fn losing_every_replica_of_a_trained_model_fails_the_job() {
    let mut world = World::new("allreduce", 1, 0).running();
    world.exits(worker(0, 0), KILLED);
    world.comes(worker(0, 1));
    assert!(world.orders().last().unwrap().starts_with("fail: all workers were lost at once"));
}

#[test]
fn a_foreign_program_is_done_when_it_says_so() {
    let mut world = World::new("allreduce", 2, 0);
    world.orders();
    world.exits(worker(0, 0), Exit::Finished);
    world.exits(worker(1, 0), KILLED);
    assert_eq!(world.orders(), ["lost worker-0#0", "lost worker-1#0", "launch worker-1#1"]);
    world.exits(worker(1, 1), Exit::Finished);
    assert_eq!(world.orders(), ["lost worker-1#1", "end"]);
}

/// Restarts worker 1 at the third tick.
#[derive(Debug, Clone, Default)]
struct RestartOne {
    ticks: u32,
}

impl Policy for RestartOne {
    fn name(&self) -> &'static str {
        "restart-one"
    }
    fn decide(&mut self, _: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        self.ticks += 1;
        if self.ticks != 3 {
            return Decision::nothing(Reason::Balanced);
        }
        let node = &view.workers[1];
        let reason = Reason::PersistentStraggler { node: node.id, slowness_percent: 400, has_cured: false };
        let kind = NodeActionKind::KillRestart { drain: Duration::from_secs(5) };
        let target = Holder::new(node.id, node.incarnation);
        Decision { node_actions: vec![ProposedAction { target, kind, reason }], ..Decision::default() }
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[test]
fn a_restart_drains_the_node_fences_it_and_starts_its_next_life() {
    // A job of 20 workers has a budget for one restart at a time.
    let mut world = World::with_policy("ps-asp", 20, 1, Box::new(RestartOne::default())).running();
    for index in 0..20 {
        let plan_applied = (PlanVersion(1), 0);
        let (holder, reports, plan_ready) = (worker(index, 0), Vec::new(), PlanVersion(1));
        world.tell(HeadEvent::heartbeat(holder, reports, plan_ready, plan_applied));
    }
    world.ticks(5, 0);
    assert!(world.reply(worker(1, 0)).drain, "{:?}", world.notes);
    world.orders();
    world.leave(worker(1, 0), false);
    assert_eq!(world.orders(), ["lost worker-1#0", "kill worker-1#0"]);
    world.exits(worker(1, 0), Exit::Finished);
    assert_eq!(world.orders(), ["launch worker-1#1"]);
    world.comes(worker(1, 1));
    assert_eq!(world.orders(), ["joined worker-1#1 at 0"]);
    assert!(!world.head.restarts.is_restarting(NodeId::worker(1)));
    let restarts = |note: &Note| matches!(note, Note::Action { kind: "KILL_RESTART", target, .. } if target == "worker-1");
    assert!(world.notes.iter().any(restarts), "{:?}", world.notes);
}

#[test]
fn a_worker_whose_restart_was_ordered_is_kept_while_it_alone_has_the_model() {
    let mut world = World::with_policy("allreduce", 2, 0, Box::new(RestartOne::default())).running();
    let trains = |world: &mut World, holder: Holder, plan: u64| {
        let (plan, reports) = (PlanVersion(plan), reports(holder, 0, 1, Duration::from_millis(100)));
        world.tell(HeadEvent::heartbeat(holder, reports, plan, (plan, 0)))
    };
    trains(&mut world, worker(0, 0), 1);
    trains(&mut world, worker(1, 0), 1);
    world.ticks(5, 0);
    assert!(world.reply(worker(1, 0)).drain, "{:?}", world.notes);
    // Its peer dies before it could leave; the replacement is there, but has no model yet.
    world.exits(worker(0, 0), KILLED);
    world.join(worker(1, 0), None);
    world.register(worker(0, 1));
    world.orders();
    world.wait(Duration::from_secs(8));
    assert_eq!(world.orders(), [""; 0], "the drain takes at most 5 s");
    world.join(worker(0, 1), None);
    world.join(worker(1, 0), None);
    trains(&mut world, worker(0, 1), 3);
    world.orders();
    world.wait(Duration::from_secs(2));
    assert_eq!(world.orders(), ["kill worker-1#0"]);
}

#[test]
fn a_life_that_was_replaced_is_fenced_at_any_call() {
    let mut world = World::new("ps-asp", 2, 1).running();
    world.exits(worker(1, 0), KILLED);
    assert!(matches!(world.register(worker(1, 0)), HeadAnswer::Fenced));
    assert!(matches!(world.beat(worker(1, 0)), HeadAnswer::Fenced));
    assert!(matches!(world.join(worker(1, 0), None), HeadAnswer::Fenced));
    assert!(matches!(world.leave(worker(1, 0), true), HeadAnswer::Fenced));
    assert!(matches!(world.register(worker(7, 0)), HeadAnswer::Refused(_)));
}

/// Reports of one worker: `count` batches of 16 samples with this compute time.
fn reports(holder: Holder, sequence: u64, count: u64, compute: Duration) -> Vec<(BatchReport, f64)> {
    let report = |i: u64| BatchReport {
        holder,
        sequence: sequence + i,
        iteration: antdt_core::Iteration(sequence + i),
        plan: PlanVersion(1),
        phase: antdt_core::Phase::Train,
        samples: 16,
        micro_batches: 1,
        data_wait: Duration::ZERO,
        compute,
        communicate: Duration::ZERO,
        barrier_wait: Duration::ZERO,
    };
    (1..=count).map(|i| (report(i), 8.0)).collect()
}

#[test]
fn a_replacement_is_taken_to_be_as_slow_as_its_earlier_life_until_it_shows_otherwise() {
    let nd = antdt_controller::policy::REGISTRY.by_name("nd").unwrap();
    let mut world = World::with_policy("allreduce", 4, 0, nd).running();
    world.paces([100, 100, 400, 100]);
    world.exits(worker(2, 0), KILLED);
    world.comes(worker(2, 1));
    for index in [0, 1, 3] {
        world.join(worker(index, 0), None);
    }
    let sizes = &world.published().batch_sizes;
    assert_eq!(sizes.len(), 4);
    assert!(sizes[&NodeId::worker(2)] * 3 < sizes[&NodeId::worker(0)], "{sizes:?}");
    assert_eq!(sizes.values().sum::<u32>(), 64);
}

#[test]
fn a_process_that_never_registers_is_ended_and_started_again() {
    let mut world = World::new("allreduce", 2, 0);
    world.register(worker(0, 0));
    world.orders();
    world.tell(HeadEvent::Tick(None));
    assert_eq!(world.orders(), [""; 0]);
    world.now = world.now + REGISTER_LIMIT;
    world.tell(HeadEvent::heartbeat(worker(0, 0), Vec::new(), PlanVersion(0), (PlanVersion(0), 0)));
    world.tell(HeadEvent::Tick(None));
    assert_eq!(world.orders(), ["kill worker-1#0"]);
    world.exits(worker(1, 0), KILLED);
    world.ordered_among_others(&["launch worker-1#1"]);
}

#[test]
fn programs_of_one_group_are_started_again_together_and_the_first_failure_is_the_one_that_is_told() {
    let mut world = World::of_programs(3);
    world.orders();
    // One is done before; with another life of the others it begins again, too.
    world.exits(worker(2, 0), Exit::Finished);
    assert_eq!(world.orders(), [""; 0]);
    world.exits(worker(1, 0), Exit::Unretryable { code: 1 });
    assert_eq!(world.orders(), ["kill worker-0#0"]);
    world.exits(worker(0, 0), KILLED);
    assert_eq!(world.orders(), ["launch worker-0#1", "launch worker-1#1", "launch worker-2#1"]);
    // One dies of what was done to another.
    world.exits(worker(0, 1), KILLED);
    assert_eq!(world.orders(), ["kill worker-1#1", "kill worker-2#1"]);
    world.exits(worker(1, 1), Exit::Unretryable { code: 1 });
    // A late word of a life before.
    world.exits(worker(0, 0), KILLED);
    world.exits(worker(2, 1), Exit::Finished);
    assert_eq!(world.orders(), ["launch worker-0#2", "launch worker-1#2", "launch worker-2#2"]);
    let told = |note: &Note| match note {
        Note::Event { kind: EventKind::Lost, text, .. } => Some(text.clone()),
        _ => None,
    };
    let lost: Vec<String> = world.notes.iter().filter_map(told).collect();
    assert_eq!(lost, ["worker-1#0 ended: exit code 1", "worker-0#1 ended: killed by signal 9"]);
    world.exits(worker(2, 2), Exit::Unretryable { code: 1 });
    assert_eq!(
        world.orders(),
        [
            "fail: worker-2 ended: exit code 1; all programs were started again 2 times already (--max-restarts); it said: out of luck"
        ]
    );
}

#[test]
fn program_that_says_that_another_life_cannot_help_ends_the_job() {
    let mut world = World::of_programs(2);
    world.orders();
    world.exits(worker(1, 0), Exit::Unretryable { code: Exit::CODE_NEVER });
    let fails = "fail: worker-1 ended: exit code 78; by which it says that starting it again cannot help; it said: out of luck";
    assert_eq!(world.orders(), [fails]);
}

#[test]
fn programs_that_all_end_are_a_job_that_is_done() {
    let mut world = World::of_programs(2);
    world.orders();
    world.exits(worker(1, 0), Exit::Finished);
    world.exits(worker(0, 0), Exit::Finished);
    assert_eq!(world.orders(), ["end"]);
}

#[test]
fn workers_are_added_and_drained_while_the_job_runs() {
    let mut world = World::new("ps-asp", 2, 1).running();
    world.orders();
    let answer = world.tell(HeadEvent::Scale { workers: 3 });
    assert!(matches!(answer, HeadAnswer::Scaled { before: 2 }), "{answer:?}");
    assert_eq!(world.orders(), ["launch worker-2#0"]);
    world.comes(worker(2, 0));
    assert_eq!(world.orders(), ["joined worker-2#0 at 0"]);

    world.tell(HeadEvent::Scale { workers: 1 });
    for index in [1, 2] {
        assert!(world.reply(worker(index, 0)).drain, "worker-{index}");
    }
    world.leave(worker(1, 0), false);
    world.exits(worker(1, 0), Exit::Finished);
    assert_eq!(world.orders(), ["lost worker-1#0"], "it is not started again");
    assert!(matches!(world.beat(worker(1, 0)), HeadAnswer::Fenced));
    // The other one takes too long.
    world.wait(Duration::from_secs(31));
    world.ordered_among_others(&["kill worker-2#0"]);
    world.exits(worker(2, 0), Exit::Killed { signal: 9 });
    assert_eq!(world.orders(), [""; 0]);

    world.tell(HeadEvent::Scale { workers: 2 });
    assert_eq!(world.orders(), ["launch worker-1#1"]);
    world.comes(worker(1, 1));
    world.orders();
    // The job ends with those that it has.
    for holder in [worker(0, 0), worker(1, 1)] {
        world.leave(holder, true);
    }
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, metrics: Metrics::default() });
    assert_eq!(world.orders(), ["end"]);
}

/// Those that are to leave may be the only ones with the model.
#[test]
fn no_worker_is_told_to_leave_before_one_that_stays_has_taken_a_step() {
    let mut world = World::new("allreduce", 2, 0).running();
    world.tell(HeadEvent::Scale { workers: 1 });
    let drained = |world: &mut World| world.reply(worker(1, 0)).drain;
    assert!(!drained(&mut world));
    world.steps(worker(0, 0), 0);
    world.tell(HeadEvent::Tick(None));
    assert!(drained(&mut world));
}

#[test]
fn a_worker_that_commits_between_its_ends_is_started_again_as_often_as_it_ends() {
    let mut world = World::new("ps-asp", 2, 1).running();
    for life in 0..6 {
        world.steps(worker(1, life), 0);
        world.exits(worker(1, life), KILLED);
        world.wait(Duration::from_secs(60));
        let orders = world.orders();
        assert!(orders.contains(&format!("launch worker-1#{}", life + 1)), "{orders:?}");
        world.comes(worker(1, life + 1));
    }
}

#[test]
fn a_number_of_workers_that_cannot_be_is_refused_with_the_reason() {
    let mut world = World::new("ps-asp", 2, 1).running();
    for (workers, why) in [(0, "at least 1 worker"), (65, "--global-batch-size 64")] {
        let HeadAnswer::Refused(text) = world.tell(HeadEvent::Scale { workers }) else { panic!("{workers}") };
        assert!(text.contains(why), "{text}");
    }
    world.tell(HeadEvent::Scale { workers: 1 });
    let HeadAnswer::Refused(text) = world.tell(HeadEvent::Scale { workers: 64 }) else { panic!("64") };
    assert!(text.contains("1 workers are still leaving"), "{text}");
}

/// Found by random histories.
#[test]
fn a_worker_that_is_wanted_again_before_it_was_told_to_leave_is_launched_once() {
    // No worker has the model yet, so none is told to leave.
    let mut world = World::new("allreduce", 2, 0).running();
    world.orders();
    world.exits(worker(1, 0), Exit::Killed { signal: 9 });
    world.exits(worker(1, 1), Exit::Killed { signal: 9 });
    assert_eq!(world.orders(), ["launch worker-1#1"], "the next one comes later");
    world.tell(HeadEvent::Scale { workers: 1 });
    world.tell(HeadEvent::Scale { workers: 2 });
    world.wait(Duration::from_secs(5));
    assert_eq!(world.orders(), ["launch worker-1#2"]);
}

/// Found by random histories: it was let in, and the checkpoint after waited for it for ever.
#[test]
fn a_retired_worker_that_waited_to_join_is_not_let_in() {
    let schedule = CheckpointSchedule { every: CheckpointEvery::Steps(1), first: CheckpointId(1), epochs: 1 };
    let mut world = World::with("ps-asp", 2, 1, Box::new(Unmanaged), Some(schedule)).running();
    world.tell(HeadEvent::Scale { workers: 3 });
    world.register(worker(2, 0));
    for index in [0, 1] {
        world.steps(worker(index, 0), 0);
    }
    world.ticks(1, 10);
    let checkpoint = world.reply(worker(0, 0)).checkpoint.expect("a checkpoint is due");
    world.join(worker(2, 0), None);
    world.orders();
    world.tell(HeadEvent::Scale { workers: 2 });
    world.exits(worker(2, 0), Exit::Killed { signal: 9 });
    for index in [0, 1] {
        world.tell(HeadEvent::Rest { holder: worker(index, 0), checkpoint });
    }
    world.tell(HeadEvent::Cut { checkpoint, taken: Ok(()) });
    let orders = world.orders();
    assert!(!orders.iter().any(|order| order.contains("joined worker-2")), "{orders:?}");
}

fn rolled_back(rollback: u64, checkpoint: Option<&str>) -> HeadEvent {
    let to = RolledBack {
        checkpoint: checkpoint.map(Into::into),
        counts: Counts { total: 100, acked: 40, todo: 60, ..Counts::default() },
        text: "went back".to_owned(),
    };
    HeadEvent::RolledBack { rollback: RollbackId(rollback), outcome: Ok(to) }
}

impl World {
    /// A job that can go back, in which all take part.
    fn that_can_roll_back(sync: &'static str, workers: u32, servers: u32) -> Self {
        let mut world = Self::new(sync, workers, servers);
        world.head.core.config.can_roll_back = true;
        let mut world = world.running();
        world.orders();
        world
    }

    fn joins_again(&mut self, holder: Holder) -> HeadAnswer {
        let standing = Standing { group: MembershipVersion(1), ..Standing::default() };
        self.tell(HeadEvent::Join { holder, standing })
    }
}

#[test]
fn a_lost_server_sets_the_job_back_and_no_worker_is_let_in_before_all_servers_start_from_the_checkpoint() {
    let mut world = World::that_can_roll_back("ps-bsp", 2, 2);
    world.tell(ready(worker(0, 0), 0, 1, &[ack(1, 1)]));
    world.exits(server(1), KILLED);
    let mut orders = world.orders();
    orders.sort();
    let expected =
        ["kill server-0#0", "kill server-1#0", "roll back 1", "undone worker-0#0", "undone worker-1#0"];
    assert_eq!(orders, expected);

    // What is said of the time before counts no more, and does no harm.
    let answer = world.tell(ready(worker(1, 0), 0, 1, &[ack(1, 1)]));
    assert!(matches!(answer, HeadAnswer::Undone), "{answer:?}");
    assert!(matches!(world.beat(server(0)), HeadAnswer::Fenced));
    world.exits(server(0), KILLED);
    world.joins_again(worker(0, 0));
    assert_eq!(world.orders(), [""; 0]);

    world.tell(rolled_back(7, None));
    assert_eq!(world.orders(), [""; 0], "an answer to another question");
    world.tell(rolled_back(1, Some("checkpoints/3")));
    assert_eq!(world.orders(), ["launch server-0#1", "launch server-1#1"]);
    world.register(life_of_server(0, 1));
    world.joins_again(worker(1, 0));
    assert_eq!(world.orders(), [""; 0]);
    world.register(life_of_server(1, 1));
    let joined = world.effects.iter().find_map(|effect| match effect {
        HeadEffect::Joined(_, joined) => Some(joined.clone()),
        _ => None,
    });
    let joined = joined.expect("both workers have come");
    assert_eq!((joined.rollback, joined.next_step), (RollbackId(1), 0));
    assert_eq!(joined.checkpoint.as_deref(), Some("checkpoints/3"));
    assert_eq!((joined.servers.len(), joined.plan.batch_sizes.values().sum::<u32>()), (2, 64));
    assert_eq!(world.orders(), ["joined worker-0#0 at 0", "joined worker-1#0 at 0"]);
}

#[test]
fn a_worker_that_has_seen_an_end_that_is_undone_is_started_again() {
    let mut world = World::that_can_roll_back("ps-asp", 2, 1);
    world.leave(worker(0, 0), true);
    world.exits(server(0), KILLED);
    world.orders();
    // It heard of the end before the ledger went back.
    let answer = world.leave(worker(1, 0), true);
    assert!(matches!(answer, HeadAnswer::Left { evaluate: false, checkpoint: None, .. }), "{answer:?}");
    world.exits(worker(1, 0), Exit::Finished);
    world.exits(worker(0, 0), Exit::Finished);
    assert_eq!(world.orders(), ["lost worker-1#0"], "nothing has ended");
    world.tell(rolled_back(1, None));
    let mut orders = world.orders();
    orders.sort();
    assert_eq!(orders, ["launch server-0#1", "launch worker-0#1", "launch worker-1#1"]);
}

#[test]
fn after_a_rollback_a_step_still_does_not_wait_for_its_backups() {
    let mut world = World::that_can_roll_back("ps-backup=1", 2, 1);
    assert_eq!(pushed(&mut world, worker(0, 0), 0), ["worker-0#0 in 0, 1 is open"]);
    world.exits(server(0), KILLED);
    world.ordered_among_others(&["undone worker-0#0"]);
    world.tell(rolled_back(1, None));
    world.wait(Duration::from_secs(1));
    world.register(life_of_server(0, 1));
    world.joins_again(worker(0, 0));
    world.joins_again(worker(1, 0));
    world.orders();
    assert_eq!(pushed(&mut world, worker(1, 0), 0), ["worker-1#0 in 0, 1 is open"]);
    assert_eq!(pushed(&mut world, worker(1, 0), 1), ["worker-1#0 in 1, 2 is open"]);
    assert_eq!(pushed(&mut world, worker(0, 0), 0), ["worker-0#0 late for 0, 2 is open"]);
}

/// Wants steps that do not wait for one worker, if they wait for all, and the other way round.
fn leaves_one_out(_: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
    let reasons = vec![Reason::Other("to see it".to_owned())];
    Decision { backups: Some(1 - view.mode.backups()), reasons, ..Decision::default() }
}

#[test]
fn a_plan_says_how_many_workers_a_step_need_not_wait_for_once_all_have_it() {
    let policy = FromFn("leaves-one-out", leaves_one_out);
    let mut world = World::with_policy("ps-bsp", 3, 1, Box::new(policy)).running();
    let has = |world: &mut World, plan: u64| {
        for index in 0..3 {
            let (holder, plan) = (worker(index, 0), PlanVersion(plan));
            let beat = HeadEvent::heartbeat(holder, vec![], plan, (plan, 0));
            world.tell(beat);
        }
        let counts = Counts { total: 1000, ..Counts::default() };
        // The first one after a change of the members takes note of it.
        (0..2).for_each(|_| drop(world.tell(HeadEvent::Tick(Some(counts)))));
    };
    has(&mut world, 1);
    assert_eq!(
        world.head.core.published.as_ref().map(|plan| (plan.version.0, plan.backups)),
        Some((2, Some(1)))
    );
    let three = |world: &mut World, step: u64, plans: [u64; 3]| -> Vec<usize> {
        let push = |(index, plan)| pushed_with(world, worker(index, 0), step, PlanVersion(plan)).len();
        (0..).zip(plans).map(push).collect()
    };
    assert_eq!(three(&mut world, 0, [2, 1, 2]), [0, 0, 3], "one does not have it yet");
    assert_eq!(three(&mut world, 1, [2, 2, 2]), [0, 0, 3], "it comes into force with this step");
    assert_eq!(three(&mut world, 2, [2, 2, 2]), [0, 2, 1], "the third is late");
    has(&mut world, 2);
    assert_eq!(
        world.head.core.published.as_ref().map(|plan| (plan.version.0, plan.backups)),
        Some((3, Some(0)))
    );
    assert_eq!(
        three(&mut world, 3, [3, 2, 3]),
        [0, 0, 3],
        "a step in which a plan may come into force takes all"
    );
    assert_eq!(three(&mut world, 4, [3, 3, 3]), [0, 0, 3]);
    assert_eq!(three(&mut world, 5, [3, 3, 3]), [0, 0, 3], "all are waited for again");
}

/// One that is a step ahead waits, and is told that its wait is over; after the rollback the clocks are even.
#[test]
fn a_rollback_sets_the_clocks_back_and_calls_waiting_workers_off() {
    let mut world = World::that_can_roll_back("ps-ssp=0", 2, 1);
    let ask = |world: &mut World, index, step| world.ready(worker(index, 0), step, &[]);
    assert_eq!(ask(&mut world, 0, 0), ["committed worker-0#0 0"]);
    assert_eq!(ask(&mut world, 0, 1), [""; 0]);
    world.exits(server(0), KILLED);
    world.ordered_among_others(&["undone worker-0#0"]);
    world.tell(rolled_back(1, None));
    world.wait(Duration::from_secs(1));
    world.register(life_of_server(0, 1));
    world.joins_again(worker(0, 0));
    world.joins_again(worker(1, 0));
    world.orders();
    assert_eq!(ask(&mut world, 0, 0), ["committed worker-0#0 0"]);
    assert_eq!(ask(&mut world, 0, 1), [""; 0], "the other one is at the start");
    assert_eq!(ask(&mut world, 1, 0), ["committed worker-1#0 0"]);
    assert_eq!(ask(&mut world, 1, 1), ["committed worker-0#0 1", "committed worker-1#0 1"]);
}

#[test]
fn a_worker_that_alone_lost_a_server_is_started_again() {
    let mut world = World::that_can_roll_back("ps-asp", 2, 1);
    world.joins_again(worker(1, 0));
    let limit = MonitorConfig::default().liveness.lost_after * 2;
    for _ in 0..limit.as_secs() + 1 {
        world.wait(Duration::from_secs(1));
        for holder in [server(0), worker(0, 0), worker(1, 0)] {
            world.beat(holder);
        }
    }
    assert_eq!(world.orders(), ["kill worker-1#0"]);
    world.exits(worker(1, 0), KILLED);
    assert_eq!(world.orders(), ["lost worker-1#0", "launch worker-1#1"]);
}

#[test]
fn workers_that_all_died_go_back_together_and_a_ledger_that_cannot_go_back_ends_the_job() {
    let mut world = World::that_can_roll_back("allreduce", 2, 0);
    for index in 0..2 {
        world.exits(worker(index, 0), KILLED);
    }
    world.orders();
    for index in 0..2 {
        world.register(worker(index, 1));
    }
    for index in 0..2 {
        world.join(worker(index, 1), None);
    }
    assert_eq!(world.orders(), ["roll back 1"]);
    world.tell(rolled_back(1, Some("checkpoints/3")));
    assert_eq!(world.orders(), ["joined worker-0#1 at 0", "joined worker-1#1 at 0"]);
    let joined = world.formed.clone().unwrap();
    assert_eq!((joined.source, joined.rollback), (None, RollbackId(1)));
    assert_eq!(joined.checkpoint.as_deref(), Some("checkpoints/3"));

    for index in 0..2 {
        world.exits(worker(index, 1), KILLED);
    }
    world.wait(Duration::from_secs(2));
    for index in 0..2 {
        world.register(worker(index, 2));
    }
    for index in 0..2 {
        world.join(worker(index, 2), None);
    }
    let outcome = Err("the disk is gone".to_owned());
    world.tell(HeadEvent::RolledBack { rollback: RollbackId(2), outcome });
    assert_eq!(
        world.orders().last().unwrap(),
        "fail: the model was lost, and the job cannot go back: the disk is gone"
    );
}

#[test]
fn a_life_that_was_to_start_after_the_rollback_does_not_replace_a_newer_one() {
    let mut world = World::that_can_roll_back("ps-bsp", 3, 1);
    world.exits(server(0), KILLED);
    // Its life ended with data that is undone: the next one waits for the rollback.
    world.leave(worker(2, 0), true);
    world.tell(HeadEvent::Scale { workers: 2 });
    world.tell(HeadEvent::Scale { workers: 3 });
    world.ordered_among_others(&["launch worker-2#2"]);
    world.tell(rolled_back(1, None));
    let orders = world.orders();
    assert_eq!(orders, ["launch server-0#1"]);
}

#[test]
fn a_worker_that_hangs_is_killed_and_one_that_is_slow_is_not() {
    let mut world = World::new("allreduce", 3, 0).running();
    let stalls = |world: &mut World, index, millis| {
        let stall = Stall { work: Work::Training, lasts: Duration::from_millis(millis) };
        world.tell(HeadEvent::Stalled { holder: worker(index, 0), stall });
        world.orders()
    };
    assert_eq!(stalls(&mut world, 1, 10_000), [""; 0], "its steps are not known yet");
    for sequence in 0..10 {
        world.steps(worker(1, 0), sequence);
    }
    assert_eq!(stalls(&mut world, 1, 2900), [""; 0]);
    let noted = world
        .notes
        .iter()
        .filter(|note| matches!(note, Note::Event { kind: EventKind::Stalled, .. }))
        .count();
    assert_eq!(noted, 1);
    assert_eq!(stalls(&mut world, 1, 3000), ["kill worker-1#0"]);
    assert_eq!(stalls(&mut world, 1, 3500), [""; 0], "once is enough");
    world.exits(worker(1, 0), KILLED);
    world.ordered_among_others(&["launch worker-1#1"]);
    // A life that was replaced has nothing to say any more.
    let stall = Stall { work: Work::Training, lasts: Duration::MAX };
    let answer = world.tell(HeadEvent::Stalled { holder: worker(1, 0), stall });
    assert!(matches!(answer, HeadAnswer::Fenced));
}

#[test]
fn a_worker_that_its_platform_takes_back_leaves_in_order_and_another_life_follows() {
    let mut world = World::new("ps-asp", 2, 1).running();
    for _ in 0..3 {
        world.tell(HeadEvent::Preempted(worker(1, 0)));
    }
    assert!(world.reply(worker(1, 0)).drain);
    assert_eq!(world.orders(), [""; 0]);
    world.leave(worker(1, 0), false);
    assert_eq!(world.orders(), ["lost worker-1#0"], "its process has not ended");
    world.exits(worker(1, 0), Exit::Finished);
    assert_eq!(world.orders(), ["launch worker-1#1"]);
    // It was no failure: the budget of restarts is as it was.
    for life in 1..3 {
        world.exits(worker(1, life), KILLED);
        world.wait(Duration::from_secs(60));
    }
    let orders = world.orders();
    assert_eq!(orders.iter().filter(|order| order.starts_with("launch")).count(), 2, "{orders:?}");
}

#[test]
fn a_worker_that_left_as_its_platform_wanted_and_does_not_end_is_killed() {
    let mut world = World::new("allreduce", 2, 0).running();
    world.steps(worker(0, 0), 0);
    world.tell(HeadEvent::Preempted(worker(1, 0)));
    world.leave(worker(1, 0), false);
    world.orders();
    let mut kills = 0;
    for _ in 0..40 {
        world.beat(worker(0, 0));
        world.wait(Duration::from_secs(1));
        kills += world.orders().iter().filter(|order| *order == "kill worker-1#0").count();
    }
    assert_eq!(kills, 1);
    world.exits(worker(1, 0), KILLED);
    world.ordered_among_others(&["launch worker-1#1"]);
    assert!(!world.notes.iter().any(|note| matches!(note, Note::Action { kind: "RESTART", .. })));
}

#[test]
fn a_worker_that_is_taken_back_before_it_has_left_is_started_again_as_after_any_end() {
    let mut world = World::new("allreduce", 2, 0).running();
    world.steps(worker(0, 0), 0);
    world.tell(HeadEvent::Preempted(worker(1, 0)));
    world.exits(worker(1, 0), KILLED);
    world.ordered_among_others(&["launch worker-1#1"]);
}

#[test]
fn a_server_that_its_platform_takes_back_goes_once_a_checkpoint_has_its_part() {
    let mut world = that_keeps_and_rolls_back("ps-bsp", 2, 1, Box::new(Unmanaged));
    world.steps(worker(0, 0), 0);
    world.ticks(1, 10);
    world.tell(HeadEvent::Preempted(server(0)));
    let checkpoint = world.reply(worker(0, 0)).checkpoint.expect("a checkpoint is taken");
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint });
    world.tell(HeadEvent::Cut { checkpoint, taken: Ok(()) });
    assert!(!world.orders().iter().any(|order| order.starts_with("kill")));
    for index in 0..2 {
        world.tell(ready(worker(index, 0), 0, 1, &[ack(1, 1)]));
    }
    world.kept(checkpoint);
    world.ordered_among_others(&["roll back 1", "kill server-0#0"]);
    assert!(
        !world.notes.iter().any(|note| matches!(note, Note::Action { kind: "RESTART", .. })),
        "it has not failed"
    );
    world.exits(server(0), KILLED);
    world.tell(rolled_back(1, None));
    assert_eq!(world.orders(), ["launch server-0#1"]);
}

#[test]
fn a_server_whose_hand_over_came_to_nothing_goes_with_the_next_checkpoint() {
    let mut world = that_hands_over("ps-bsp", 2, 1);
    world.tell(HeadEvent::Preempted(server(0)));
    let checkpoint = copied(&mut world);
    world.not_kept(checkpoint);
    assert_eq!(world.orders(), ["worker-0#0 goes on after 1"], "it stays, and the job trains");
    world.tell(HeadEvent::Checkpoint(None));
    let checkpoint = copied(&mut world);
    world.kept(checkpoint);
    world.ordered_among_others(&["kill server-0#0"]);
}

/// A job with servers that takes checkpoints and can go back, in which all take part.
fn that_hands_over(sync: &'static str, workers: u32, servers: u32) -> World {
    let mut world = that_keeps_and_rolls_back(sync, workers, servers, Box::new(Unmanaged));
    world.ticks(1, 10);
    world.orders();
    world
}

fn life_of_server(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::server(index), Incarnation(incarnation))
}

/// The checkpoint of a hand-over is taken by worker 0, as far as the copies.
fn copied(world: &mut World) -> CheckpointId {
    let checkpoint = ordered(world, worker(0, 0)).expect("a checkpoint is taken");
    for index in 0..2 {
        world.tell(HeadEvent::Rest { holder: worker(index, 0), checkpoint });
    }
    world.orders();
    world.tell(HeadEvent::Cut { checkpoint, taken: Ok(()) });
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint });
    checkpoint
}

#[test]
fn a_checkpoint_that_a_newer_one_overtakes_is_no_failure() {
    let mut world = that_hands_over("ps-bsp", 2, 2);
    world.tell(HeadEvent::Checkpoint(None));
    let older = copied(&mut world);
    let newer = world.head.checkpoints.as_mut().unwrap().take_last(world.now);
    assert!(newer > older);
    world.notes.clear();
    world.kept(newer);
    world.tell(HeadEvent::Kept { checkpoint: older, outcome: Err("the file is missing".to_owned()) });
    let failed = |note: &Note| matches!(note, Note::Event { kind: EventKind::NoCheckpoint, .. });
    assert!(!world.notes.iter().any(failed), "{:?}", world.notes);
    let said = |note: &Note| matches!(note, Note::Event { text, .. } if text == "checkpoint 1 is given up: 2, which is newer, is complete");
    assert!(world.notes.iter().any(said), "{:?}", world.notes);
}

#[test]
fn servers_hand_over_to_more_of_them_and_to_fewer_and_no_step_is_committed_after_the_copies() {
    // One step waits for all workers, the other one for one of them.
    for sync in ["ps-bsp", "ps-backup=1"] {
        let mut world = that_hands_over(sync, 2, 2);
        let answer = world.tell(HeadEvent::ScaleServers { servers: 3 });
        assert!(matches!(answer, HeadAnswer::Scaled { before: 2 }), "{answer:?}");
        let checkpoint = copied(&mut world);
        world.tell(ready(worker(1, 0), 0, 1, &[ack(1, 1)]));
        assert_eq!(world.orders(), [""; 0], "{sync}: nobody goes on");
        world.kept(checkpoint);
        let orders = world.orders();
        let of = |what: &str| {
            orders.iter().position(|order| order == what).unwrap_or_else(|| panic!("{what}: {orders:?}"))
        };
        assert!(
            of("3 servers") < of("roll back 1") && orders.contains(&"undone worker-1#0".to_owned()),
            "{orders:?}"
        );
        assert!(
            of("kill server-0#0") < of("worker-0#0 goes on after 1")
                && of("kill server-1#0") < of("worker-0#0 goes on after 1"),
            "no server takes a push of a worker that goes on: {orders:?}"
        );
        world.tell(rolled_back(1, Some("checkpoints/1")));
        assert_eq!(world.orders(), ["launch server-0#1", "launch server-1#1", "launch server-2#0"]);
        for holder in [life_of_server(0, 1), life_of_server(1, 1), life_of_server(2, 0)] {
            world.register(holder);
        }
        world.joins_again(worker(0, 0));
        world.joins_again(worker(1, 0));
        let joined = world.effects.iter().find_map(|effect| match effect {
            HeadEffect::Joined(_, joined) => Some(joined.clone()),
            _ => None,
        });
        assert_eq!(joined.expect("both have come").servers.len(), 3);
        world.orders();

        // Those that were killed before are news of the past, and those that go are not started again.
        world.exits(server(1), KILLED);
        world.tell(HeadEvent::ScaleServers { servers: 1 });
        let checkpoint = copied(&mut world);
        world.kept(checkpoint);
        world.ordered_among_others(&["1 servers"]);
        world.tell(rolled_back(2, Some("checkpoints/2")));
        assert_eq!(world.orders(), ["launch server-0#2"]);
        world.exits(life_of_server(1, 1), KILLED);
        world.exits(life_of_server(2, 0), KILLED);
        world.register(life_of_server(0, 2));
        world.joins_again(worker(0, 0));
        world.joins_again(worker(1, 0));
        assert_eq!(world.orders(), ["joined worker-0#0 at 0", "joined worker-1#0 at 0"]);

        // A server that comes back begins a life of its own.
        world.tell(HeadEvent::ScaleServers { servers: 2 });
        let checkpoint = copied(&mut world);
        world.kept(checkpoint);
        world.orders();
        world.tell(rolled_back(3, Some("checkpoints/3")));
        assert_eq!(world.orders(), ["launch server-0#3", "launch server-1#2"]);
    }
}

#[test]
fn servers_stay_and_training_goes_on_if_the_checkpoint_is_not_taken() {
    let mut world = that_hands_over("ps-asp", 2, 2);
    world.tell(HeadEvent::ScaleServers { servers: 3 });
    let checkpoint = copied(&mut world);
    assert_eq!(world.orders(), [""; 0], "all stand still, the keeper too");
    let answer = world.tell(HeadEvent::ScaleServers { servers: 4 });
    let HeadAnswer::Refused(why) = answer else { panic!("{answer:?}") };
    assert!(why.contains("from 2 to 3 servers"), "{why}");
    world.not_kept(checkpoint);
    assert_eq!(world.orders(), ["worker-0#0 goes on after 1", "worker-1#0 goes on after 1"]);
    let said = world.notes.iter().rev().find_map(|note| match note {
        Note::Event { kind: EventKind::Refused, text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(said.is_some_and(|text| text.contains("the disk is full") && text.contains("the servers stay")));
    world.ticks(1, 10);
    assert_eq!(ordered(&mut world, worker(0, 0)), None, "it is not tried for ever");
    // The user may ask again.
    let answer = world.tell(HeadEvent::ScaleServers { servers: 1 });
    assert!(matches!(answer, HeadAnswer::Scaled { before: 2 }), "{answer:?}");
    assert!(ordered(&mut world, worker(0, 0)).is_some());
}

#[test]
fn a_hand_over_outlives_its_keeper_and_is_carried_out_when_a_server_dies_before_it_is_complete() {
    let mut world = that_hands_over("ps-bsp", 2, 2);
    world.tell(HeadEvent::ScaleServers { servers: 1 });
    let checkpoint = ordered(&mut world, worker(0, 0)).expect("a checkpoint is taken");
    world.exits(worker(0, 0), KILLED);
    world.ticks(1, 10);
    let again = ordered(&mut world, worker(1, 0)).expect("the other worker takes the next one");
    assert!(again > checkpoint);
    world.orders();
    world.exits(server(1), KILLED);
    world.ordered_among_others(&["1 servers", "roll back 1"]);
    world.tell(rolled_back(1, None));
    world.wait(Duration::from_secs(5));
    let orders = world.orders();
    let servers: Vec<&String> = orders.iter().filter(|order| order.starts_with("launch server")).collect();
    assert_eq!(servers, ["launch server-0#1"]);
}

/// Wants this to be done to server 1, once.
fn once_to_server_1(view: &ClusterView, budget: &RestartBudget, kind: NodeActionKind) -> Decision {
    let target = Holder::new(NodeId::server(1), view.servers[1].incarnation);
    let reason = Reason::PersistentStraggler { node: target.node, slowness_percent: 400, has_cured: false };
    let action = ProposedAction { target, kind, reason: reason.clone() };
    let node_actions = if budget.spent(target.node).0 == 0 { vec![action] } else { Vec::new() };
    Decision { node_actions, reasons: vec![reason], ..Decision::default() }
}

fn wants_a_server_again(_: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
    once_to_server_1(view, budget, NodeActionKind::KillRestart { drain: Duration::ZERO })
}

#[test]
fn a_slow_server_is_started_again_with_all_others_and_the_policy_hears_of_it() {
    for taken in [true, false] {
        let policy = Box::new(FromFn("again", wants_a_server_again));
        let mut world = that_keeps_and_rolls_back("ps-bsp", 2, 2, policy);
        for holder in [worker(0, 0), worker(1, 0)] {
            world.steps(holder, 0);
        }
        world.ticks(3, 10);
        let of_kind = |world: &World, wanted: &str| -> Vec<String> {
            let text = |note: &Note| match note {
                Note::Action { kind, target, .. } if *kind == wanted => Some(target.clone()),
                Note::Event { kind, text, .. } if kind.name() == wanted => Some(text.clone()),
                _ => None,
            };
            world.notes.iter().filter_map(text).collect()
        };
        assert_eq!(of_kind(&world, "KILL_RESTART"), ["server-1"]);
        let checkpoint = copied(&mut world);
        if !taken {
            world.not_kept(checkpoint);
            let said = of_kind(&world, "restart");
            assert!(
                said.len() == 1 && said[0].starts_with("not restarted: ") && said[0].contains("disk is full"),
                "{said:?}"
            );
            continue;
        }
        world.kept(checkpoint);
        world.orders();
        world.tell(rolled_back(1, None));
        assert_eq!(world.orders(), ["launch server-0#1", "launch server-1#1"]);
        world.register(life_of_server(0, 1));
        assert_eq!(of_kind(&world, "restart"), [""; 0]);
        world.register(life_of_server(1, 1));
        let said = of_kind(&world, "restart");
        assert!(said.len() == 1 && said[0].starts_with("Restarted"), "{said:?}");
        assert!(of_kind(&world, "RESTART").is_empty());
        assert!(world.head.core.dispatcher.budget().room(world.now, 2) > 0, "it is over");
    }
}

/// Wants server 1 to have a third of the parameters, once.
fn wants_a_smaller_share(_: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
    once_to_server_1(view, budget, NodeActionKind::Repartition { weights: "2,1".parse().unwrap() })
}

/// A job whose two servers are to hand over to others, of which server 1 has a third of the parameters; and the checkpoint for it.
fn that_repartitions() -> (World, CheckpointId) {
    let policy = Box::new(FromFn("shares", wants_a_smaller_share));
    let mut world = that_keeps_and_rolls_back("ps-bsp", 2, 2, policy);
    for holder in [worker(0, 0), worker(1, 0)] {
        world.steps(holder, 0);
    }
    world.ticks(3, 10);
    let asked = |note: &Note| matches!(note, Note::Action { kind: "REPARTITION", target, .. } if target == "server-1");
    assert!(world.notes.iter().any(asked), "{:?}", world.notes);
    let checkpoint = copied(&mut world);
    world.orders();
    (world, checkpoint)
}

/// Such a job once its servers have these weights.
fn with_weights() -> World {
    let (mut world, checkpoint) = that_repartitions();
    world.kept(checkpoint);
    let orders = world.orders();
    let of = |wanted: &str| orders.iter().position(|order| order == wanted);
    assert!(of("kill server-1#0").is_some() && of("kill server-1#0") < of("weights 2,1"), "{orders:?}");
    assert!(of("weights 2,1") < of("roll back 1"), "{orders:?}");
    assert!(!orders.iter().any(|order| order.starts_with("kill worker")), "{orders:?}");
    world.tell(rolled_back(1, Some("checkpoints/1")));
    assert_eq!(world.orders(), ["launch server-0#1", "launch server-1#1"]);
    world.register(life_of_server(0, 1));
    world.register(life_of_server(1, 1));
    let heard = |note: &&Note| matches!(note, Note::Event { kind: EventKind::Restart, text, .. } if text.starts_with("Restarted"));
    assert_eq!(world.notes.iter().filter(heard).count(), 1, "the policy hears of it");
    assert_eq!(world.head.core.view(world.now, 1.0).server_weights.to_string(), "2,1");
    world.joins_again(worker(0, 0));
    world.joins_again(worker(1, 0));
    world.orders();
    world
}

#[test]
fn servers_hand_over_to_servers_of_other_weights_and_keep_them_when_one_dies() {
    let mut world = with_weights();
    world.tell(HeadEvent::Exited(life_of_server(0, 1), Exit::Killed { signal: 9 }, Vec::new()));
    let orders = world.ordered_among_others(&["roll back 2"]);
    assert!(!orders.iter().any(|order| order.starts_with("weights")), "{orders:?}");
    assert_eq!(world.head.core.weights.to_string(), "2,1");
}

#[test]
fn weights_are_equal_again_after_a_restart_and_a_change_of_number_and_under_another_master() {
    let action = NodeAction {
        id: ActionId(7),
        target: life_of_server(1, 1),
        kind: NodeActionKind::KillRestart { drain: Duration::ZERO },
        reason: Reason::Balanced,
    };
    for restarts in [true, false] {
        let mut world = with_weights();
        if restarts {
            world.head.restart_server(world.now, &action);
        } else {
            world.tell(HeadEvent::ScaleServers { servers: 3 });
        }
        assert!(world.head.handover.is_some());
        // It outlives whatever sets the job back before.
        world.tell(HeadEvent::Exited(life_of_server(0, 1), Exit::Killed { signal: 9 }, Vec::new()));
        assert!(world.orders().contains(&"weights equal".to_owned()), "{restarts}");
    }
    let world = with_weights();
    let next = Head::resume(World::new("ps-bsp", 2, 2).head.core.config, &world.head.record()).unwrap();
    assert!(next.core.weights.is_equal());
}

#[test]
fn weights_stay_if_the_checkpoint_for_others_is_not_taken() {
    let (mut world, checkpoint) = that_repartitions();
    world.not_kept(checkpoint);
    let failed = |note: &Note| matches!(note, Note::Event { kind: EventKind::Restart, text, .. } if text.contains("disk is full"));
    assert!(world.notes.iter().any(failed), "{:?}", world.notes);
    assert!(world.head.core.weights.is_equal() && world.head.handover.is_none());
}

#[test]
fn weights_for_another_number_of_servers_and_a_hand_over_under_way_leave_them_as_they_are() {
    let mut world = that_hands_over("ps-bsp", 2, 2);
    let action = |weights: &str| NodeAction {
        id: ActionId(1),
        target: life_of_server(1, 0),
        kind: NodeActionKind::Repartition { weights: weights.parse().unwrap() },
        reason: Reason::Balanced,
    };
    world.tell(HeadEvent::ScaleServers { servers: 3 });
    for weights in ["2,1", "2,1,1"] {
        world.head.repartition(world.now, &action(weights), &weights.parse().unwrap());
        assert!(world.head.server_restarts.is_empty());
    }
    assert!(world.head.core.weights.is_equal());
    let handover =
        world.head.handover.as_ref().map(|handover| (handover.servers(), handover.weights().clone()));
    assert_eq!(handover, Some((3, ServerWeights::default())));
}

#[test]
fn another_master_goes_on_with_the_servers_that_the_job_has_now() {
    let mut world = that_hands_over("ps-bsp", 2, 3);
    world.tell(HeadEvent::ScaleServers { servers: 1 });
    let checkpoint = copied(&mut world);
    world.kept(checkpoint);
    world.tell(rolled_back(1, None));
    world.register(life_of_server(0, 1));
    let record = world.head.record();
    let config = World::new("ps-bsp", 2, 3).head.core.config;
    let mut next = Head::resume(HeadConfig { can_roll_back: true, ..config }, &record).unwrap();
    next.handle(world.now, HeadEvent::Begin);
    assert_eq!((next.core.config.servers, next.core.servers.len()), (1, 0));
    let outcome = Ok(RolledBack { checkpoint: None, counts: Counts::default(), text: "back".to_owned() });
    next.handle(world.now, HeadEvent::RolledBack { rollback: RollbackId(2), outcome });
    let launched = std::iter::from_fn(|| next.poll_effect()).filter_map(|effect| match effect {
        HeadEffect::Launch(holder) if holder.node.role == Role::Server => Some(holder),
        _ => None,
    });
    assert_eq!(launched.collect::<Vec<_>>(), [life_of_server(0, 2)]);
}

#[test]
fn a_number_of_servers_that_cannot_be_is_refused_with_the_reason() {
    let refused = |world: &mut World, servers| match world.tell(HeadEvent::ScaleServers { servers }) {
        HeadAnswer::Refused(why) => why,
        answer => panic!("{answer:?}"),
    };
    let mut world = that_hands_over("ps-bsp", 2, 2);
    assert_eq!(refused(&mut world, 0), "--sync ps-bsp has at least 1 server");
    let answer = world.tell(HeadEvent::ScaleServers { servers: 2 });
    assert!(matches!(answer, HeadAnswer::Scaled { before: 2 }), "{answer:?}");
    assert_eq!(ordered(&mut world, worker(0, 0)), None, "it has so many");
    assert!(refused(&mut with_checkpoints("allreduce", 2, 0), 1).contains("has no servers"));
    assert!(refused(&mut World::that_can_roll_back("ps-bsp", 2, 2), 3).contains("--report-dir"));
    world.exits(server(0), KILLED);
    assert!(refused(&mut world, 3).contains("going back to its newest checkpoint"));
}

#[test]
fn a_diagnosis_names_the_straggler_the_evidence_and_the_actions() {
    let mut world =
        World::with_policy("allreduce", 4, 0, Box::new(antdt_controller::policy::NonDedicated::default()))
            .running();
    let diagnose = |world: &mut World| match world.tell(HeadEvent::Diagnose) {
        HeadAnswer::Diagnosed(found) => *found,
        answer => panic!("{answer:?}"),
    };
    let before = diagnose(&mut world);
    assert!(before.nodes.iter().all(|node| !node.straggler && node.ratio.is_none()), "{before:?}");
    world.paces([100, 100, 400, 100]);
    // The first tick after a change of the membership is not one to decide at.
    world.ticks(2, 0);
    let found = diagnose(&mut world);
    let stragglers: Vec<_> = found.nodes.iter().filter(|node| node.straggler).collect();
    let [slow] = stragglers[..] else { panic!("{found:?}") };
    assert_eq!((slow.holder, slow.batch_size), (worker(2, 0), 16));
    assert!((slow.ratio.unwrap() - 4.0).abs() < 0.01, "{slow:?}");
    let (low, high) = slow.bounds.unwrap();
    assert!(low > 3.0 && low < 4.0 && high > 4.0 && high < 5.0, "{slow:?}");
    assert!(slow.pace_since.is_some() && slow.batches >= 30, "{slow:?}");
    let done = found.done.last().unwrap();
    assert!(done.kind == "ADJUST_BS" && done.reason.starts_with("worker-2 takes 4.00x"), "{found:?}");
    assert_eq!(found.decision.as_ref(), Some(done));
    assert_eq!((found.policy.as_str(), found.dry_run), ("nd", false));
}

#[test]
fn the_only_worker_with_the_model_that_is_taken_back_goes_once_a_checkpoint_has_it() {
    let mut world = with_checkpoints("allreduce", 1, 0);
    world.head.core.config.can_roll_back = true;
    world.steps(worker(0, 0), 0);
    world.ticks(1, 10);
    world.tell(HeadEvent::Preempted(worker(0, 0)));
    let checkpoint = world.reply(worker(0, 0)).checkpoint.expect("a checkpoint is taken");
    world.tell(HeadEvent::Rest { holder: worker(0, 0), checkpoint });
    world.tell(HeadEvent::Cut { checkpoint, taken: Ok(()) });
    world.orders();
    world.kept(checkpoint);
    assert_eq!(world.orders(), ["kill worker-0#0"]);
    world.exits(worker(0, 0), KILLED);
    // No worker that comes finds the model.
    world.comes(worker(0, 1));
    let orders = world.orders();
    assert_eq!(orders, ["lost worker-0#0", "launch worker-0#1", "roll back 1"]);
}

/// Two of them fit what is left after one of them ran out of memory only in parts.
#[test]
fn a_worker_that_ran_out_of_memory_lowers_the_bound_of_its_class_for_good() {
    let mut world = World::new("allreduce", 2, 0).running();
    let sizes = |world: &World| {
        let plan = world.head.core.published.clone().unwrap();
        let of =
            |index| (plan.batch_sizes[&NodeId::worker(index)], plan.micro_batches(NodeId::worker(index)));
        [of(0), of(1)]
    };
    assert_eq!(sizes(&world), [(32, 1); 2]);
    world.exits(worker(1, 0), Exit::OutOfMemory);
    let told = world.notes.iter().any(|note| match note {
        Note::Event { kind: EventKind::Memory, text, .. } => {
            text == "worker-1#0 ran out of memory with 32 samples at once; workers of class cpu get at most 16 from now on"
        }
        _ => false,
    });
    assert!(told, "{:?}", world.notes);
    assert_eq!(world.head.record().memory, [(DeviceClass::default(), 16)]);
    // Its new life says again that 64 fit.
    world.comes(worker(1, 1));
    world.join(worker(0, 0), None);
    assert_eq!(sizes(&world), [(32, 2); 2]);
}

#[test]
fn a_host_all_of_whose_workers_are_slow_is_named() {
    let mut world = World::new("allreduce", 4, 0).running();
    world.paces([100, 100, 400, 400]);
    let HeadAnswer::Diagnosed(found) = world.tell(HeadEvent::Diagnose) else { panic!("no diagnosis") };
    let [host] = &found.hosts[..] else { panic!("{found:?}") };
    assert_eq!(
        (host.host.as_str(), &host.workers[..]),
        ("host-1", &[NodeId::worker(2), NodeId::worker(3)][..])
    );
    assert!(host.ratio.is_some_and(|ratio| (ratio - 4.0).abs() < 0.1), "{host:?}");
    assert_eq!((found.slowdown, host.load), (None, None), "nothing is known of its load");
}

#[test]
fn a_slow_host_whose_cpus_are_busy_with_others_is_named_as_such() {
    let mut world = World::new("allreduce", 4, 0).running();
    world.paces([100, 100, 400, 400]);
    let load_of = |world: &mut World, [busy, steal, own]: [f64; 3], workers: &[u32]| {
        for index in workers {
            let load = NodeLoad {
                over: Duration::from_secs(10),
                host_busy: Some(busy),
                host_steal: Some(steal),
                own_busy: Some(own),
                ..NodeLoad::default()
            };
            world.tell(HeadEvent::Loaded { holder: worker(*index, 0), load });
        }
        let HeadAnswer::Diagnosed(found) = world.tell(HeadEvent::Diagnose) else { panic!("no diagnosis") };
        let [host] = &found.hosts[..] else { panic!("{found:?}") };
        assert_eq!(host.host, "host-1");
        host.load
    };
    assert_eq!(load_of(&mut world, [1.0, 0.0, 0.2], &[2]), None, "the other worker may take the rest");
    let load = load_of(&mut world, [1.0, 0.0, 0.2], &[2, 3]).unwrap();
    assert!((load.others - 0.6).abs() < 1e-9 && load.explains(), "{load:?}");
    for (what, load, explains) in [
        ("the job's own load", [1.0, 0.0, 0.45], false),
        ("CPUs are idle", [0.6, 0.0, 0.1], false),
        ("steal, of a guest that wants little", [0.3, 0.15, 0.07], true),
        ("a look that is older than another", [0.5, 0.0, 0.3], false),
    ] {
        let load = load_of(&mut world, load, &[2, 3]).unwrap();
        assert_eq!(load.explains(), explains, "{what}: {load:?}");
        assert!((0.0..=1.0).contains(&load.others), "{load:?}");
    }
}
