use antdt_controller::budget::RestartBudget;
use antdt_controller::policy::{Decision, ProposedAction, Unmanaged};
use std::collections::BTreeSet;

use antdt_core::{
    Ack, ClusterView, DeviceClass, Generation, LeaseId, MembershipVersion, NodeActionKind, NodeView, Reason,
    StepResult,
};

use super::core::REGISTER_LIMIT;
use super::*;

mod histories;

/// A head, its clock, and everything it ordered so far.
struct World {
    head: Head,
    now: JobTime,
    effects: Vec<HeadEffect>,
    notes: Vec<Note>,
    /// What the members of the newest group were told.
    formed: Option<Box<Joined>>,
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
        let head = Head::new(HeadConfig {
            sync: sync.parse().unwrap(),
            workers,
            servers,
            global_batch_size: 64,
            heartbeat: Duration::from_millis(100),
            max_restarts: 2,
            must_register: true,
            policy,
            monitor: MonitorConfig::default(),
        })
        .unwrap();
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

    /// What was ordered since the last call.
    fn orders(&mut self) -> Vec<String> {
        let told = |effect: HeadEffect| match effect {
            HeadEffect::Launch(holder) => format!("launch {holder}"),
            HeadEffect::Kill(holder) => format!("kill {holder}"),
            HeadEffect::Settle(c) => {
                format!("settle {} {:?}", c.holder, c.acks.iter().map(|a| a.offset).collect::<Vec<_>>())
            }
            HeadEffect::LedgerLost(holder) => format!("lost {holder}"),
            HeadEffect::Joined(holder, joined) if joined.finished => format!("home {holder}"),
            HeadEffect::Joined(holder, joined) => format!("joined {holder} at {}", joined.next_step),
            HeadEffect::Committed(holder, commit) => format!("committed {holder} {}", commit.step),
            HeadEffect::End(Ok(())) => "end".to_owned(),
            HeadEffect::End(Err(why)) => format!("fail: {why}"),
            HeadEffect::Note { .. } => unreachable!("kept apart"),
        };
        self.effects.drain(..).map(told).collect()
    }

    fn register(&mut self, holder: Holder) -> HeadAnswer {
        let info = NodeInfo {
            holder,
            host: "here".to_owned(),
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
        self.tell(HeadEvent::Join { holder, standing: Standing { group, applied, prepared: None } })
    }

    fn leave(&mut self, holder: Holder, end_of_data: bool) -> HeadAnswer {
        self.tell(HeadEvent::Leave { holder, end_of_data, can_evaluate: end_of_data })
    }

    fn exits(&mut self, holder: Holder, exit: Exit) {
        self.tell(HeadEvent::Exited(holder, exit, vec!["error: out of luck".to_owned()]));
    }

    fn beat(&mut self, holder: Holder) -> HeadAnswer {
        self.tell(HeadEvent::Heartbeat {
            holder,
            reports: Vec::new(),
            plan_ready: PlanVersion(0),
            plan_applied: (PlanVersion(0), 0),
        })
    }

    /// All workers (and servers) registered and joined; earlier orders forgotten.
    fn running(mut self) -> Self {
        for index in 0..self.head.core.config.servers {
            self.register(server(index));
        }
        for index in 0..self.head.core.config.workers {
            self.register(worker(index, 0));
            self.join(worker(index, 0), None);
        }
        self.orders();
        self
    }
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
fn servers_start_first_and_the_first_group_waits_for_everyone() {
    let mut world = World::new("ps-asp", 2, 1);
    assert_eq!(world.orders(), ["launch server-0#0", "launch worker-1#0", "launch worker-0#0"]);
    world.register(worker(0, 0));
    world.join(worker(0, 0), None);
    assert_eq!(world.orders(), [""; 0]);
    world.register(worker(1, 0));
    world.join(worker(1, 0), None);
    assert_eq!(world.orders(), ["joined worker-0#0 at 0", "joined worker-1#0 at 0"]);
}

#[test]
fn server_addresses_are_told_once_all_are_known() {
    let mut world = World::new("ps-bsp", 1, 2);
    world.register(server(1));
    let HeadAnswer::Registered { servers, .. } = world.register(worker(0, 0)) else { panic!("refused") };
    assert!(servers.is_empty());
    world.register(server(0));
    let HeadAnswer::Beat(reply) = world.beat(worker(0, 0)) else { panic!("refused") };
    assert_eq!(reply.servers[..], ["127.0.0.1:1000", "127.0.0.1:1001"]);
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
    world.register(worker(2, 1));
    world.join(worker(2, 1), None);
    let HeadAnswer::Beat(reply) = world.beat(worker(0, 0)) else { panic!("refused") };
    assert!(reply.reform);
    world.join(worker(0, 0), Some(step(9, &done[..2])));
    world.join(worker(1, 0), Some(step(9, &done[..2])));
    let orders = world.orders();
    assert_eq!(orders, ["joined worker-0#0 at 10", "joined worker-1#0 at 10", "joined worker-2#1 at 10"]);
}

#[test]
fn a_member_that_was_not_told_of_its_group_is_told_again_the_same() {
    let mut world = World::new("allreduce", 2, 0).running();
    let told = world.formed.clone().expect("a group was formed");
    world.tell(HeadEvent::Join { holder: worker(0, 0), standing: Standing::default() });
    let [HeadEffect::Joined(holder, joined)] = &world.effects[..] else { panic!("{:?}", world.effects) };
    assert_eq!((*holder, joined), (worker(0, 0), &told));
    let HeadAnswer::Beat(reply) = world.beat(worker(1, 0)) else { panic!("refused") };
    assert!(!reply.reform, "its peer need not meet it");
    // When all is done, there is no group to go to.
    world.orders();
    world.leave(worker(1, 0), true);
    world.orders();
    world.tell(HeadEvent::Join { holder: worker(0, 0), standing: Standing::default() });
    assert_eq!(world.orders(), ["home worker-0#0"]);
}

#[test]
fn batch_sizes_follow_the_membership_and_always_add_up() {
    let mut world = World::new("allreduce", 3, 0).running();
    let sum = |world: &World| world.head.core.published.as_ref().unwrap().batch_sizes.values().sum::<u32>();
    assert_eq!((sum(&world), world.head.core.published.as_ref().unwrap().batch_sizes.len()), (64, 3));
    world.exits(worker(2, 0), KILLED);
    world.join(worker(0, 0), None);
    world.join(worker(1, 0), None);
    assert_eq!((sum(&world), world.head.core.published.as_ref().unwrap().batch_sizes.len()), (64, 2));
}

#[test]
fn a_synchronous_step_is_settled_before_anybody_is_told() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    let ready = |samples, offset| Readiness {
        samples,
        end_of_data: false,
        plan: PlanVersion(0),
        acks: vec![ack(offset, offset)],
    };
    world.tell(HeadEvent::Ready { holder: worker(0, 0), step: 0, readiness: ready(3, 3) });
    assert_eq!(world.orders(), [""; 0]);
    world.tell(HeadEvent::Ready { holder: worker(1, 0), step: 0, readiness: ready(5, 5) });
    let expected = [
        "settle worker-0#0 [3]",
        "settle worker-1#0 [5]",
        "committed worker-0#0 0",
        "committed worker-1#0 0",
    ];
    assert_eq!(world.orders(), expected);
}

#[test]
fn a_death_completes_the_step_for_those_who_are_ready() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    let readiness = Readiness { samples: 3, end_of_data: false, plan: PlanVersion(0), acks: vec![ack(1, 3)] };
    world.tell(HeadEvent::Ready { holder: worker(0, 0), step: 0, readiness: readiness.clone() });
    world.exits(worker(1, 0), KILLED);
    let expected =
        ["lost worker-1#0", "settle worker-0#0 [3]", "committed worker-0#0 0", "launch worker-1#1"];
    assert_eq!(world.orders(), expected);
    // The dead life may not speak any more, and the servers are told.
    let late = world.tell(HeadEvent::Ready { holder: worker(1, 0), step: 1, readiness });
    assert!(matches!(late, HeadAnswer::Fenced));
    let HeadAnswer::Beat(reply) = world.beat(server(0)) else { panic!("refused") };
    assert_eq!(reply.lost, [worker(1, 0)]);
    let HeadAnswer::Beat(reply) = world.beat(server(0)) else { panic!("refused") };
    assert_eq!(reply.lost, [worker(1, 0)], "a reply may be lost, so it is said again");
}

#[test]
fn a_worker_that_comes_later_starts_at_the_open_step_with_an_empty_batch() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    world.exits(worker(1, 0), KILLED);
    let readiness = Readiness { samples: 3, end_of_data: false, plan: PlanVersion(0), acks: vec![] };
    world.tell(HeadEvent::Ready { holder: worker(0, 0), step: 0, readiness });
    world.register(worker(1, 1));
    world.effects.clear();
    world.join(worker(1, 1), None);
    let [HeadEffect::Joined(holder, joined)] = &world.effects[..] else { panic!("{:?}", world.effects) };
    assert_eq!((*holder, joined.next_step), (worker(1, 1), 1));
    assert!(!joined.plan.batch_sizes.contains_key(&NodeId::worker(1)));
    assert_eq!(joined.last_commit.as_ref().map(|commit| commit.samples), Some(3));
    assert!(world.head.core.published.as_ref().unwrap().batch_sizes.contains_key(&NodeId::worker(1)));
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
    assert!(world.head.core.published.as_ref().unwrap().batch_sizes.contains_key(&NodeId::worker(1)));
}

#[test]
fn a_replacement_gets_its_plan_however_long_the_master_was_away() {
    let mut world = World::new("ps-bsp", 2, 1).running();
    let first = world.head.core.published.as_ref().unwrap().version;
    for index in 0..2 {
        world.tell(HeadEvent::Heartbeat {
            holder: worker(index, 0),
            reports: Vec::new(),
            plan_ready: first,
            plan_applied: (first, 1),
        });
    }
    world.exits(worker(1, 0), KILLED);
    world.register(worker(1, 1));
    world.join(worker(1, 1), None);
    let newest = world.head.core.published.as_ref().unwrap().version;
    assert!(newest > first);
    world.now = world.now + Duration::from_secs(42);
    let counts = Counts { total: 100, ..Counts::default() };
    for _ in 0..3 {
        world.tell(HeadEvent::Tick(Some(counts)));
    }
    for holder in [worker(0, 0), worker(1, 1)] {
        let HeadAnswer::Beat(reply) = world.beat(holder) else { panic!("refused") };
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
    let HeadAnswer::Left { evaluate: true } = world.leave(worker(1, 0), true) else {
        panic!("nobody evaluates")
    };
    let HeadAnswer::Left { evaluate: false } = world.leave(worker(0, 0), true) else {
        panic!("both evaluate")
    };
    assert_eq!(world.orders(), [""; 0]);
    let found = HeadEvent::Evaluated { holder: worker(1, 0), samples: 9, loss: Some(0.5), auc: Some(0.7) };
    world.tell(found);
    assert_eq!(world.orders(), ["end"]);
    assert!(world.notes.contains(&Note::Evaluated { samples: 9, loss: Some(0.5), auc: Some(0.7) }));
    let HeadAnswer::Beat(reply) = world.beat(server(0)) else { panic!("refused") };
    assert!(reply.finished);
}

#[test]
fn an_evaluator_that_dies_does_not_keep_the_job_from_ending() {
    let mut world = World::new("allreduce", 1, 0).running();
    world.leave(worker(0, 0), true);
    world.exits(worker(0, 0), KILLED);
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

#[test]
fn a_leave_that_is_repeated_gets_the_same_answer() {
    let mut world = World::new("allreduce", 2, 0).running();
    for _ in 0..2 {
        assert!(matches!(world.leave(worker(0, 0), true), HeadAnswer::Left { evaluate: true }));
    }
    assert!(matches!(world.leave(worker(1, 0), true), HeadAnswer::Left { evaluate: false }));
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
    world.register(worker(1, 1));
    world.join(worker(1, 1), None);
    assert_eq!(world.orders(), ["home worker-1#1"]);
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 1, loss: None, auc: None });
    assert_eq!(world.orders(), [""; 0], "the replacement is still there");
    world.leave(worker(1, 1), true);
    assert_eq!(world.orders(), ["end"]);
}

#[test]
fn what_cannot_be_cured_ends_the_job_with_the_last_words_of_the_process() {
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
fn losing_every_replica_of_a_trained_model_fails_the_job() {
    let mut world = World::new("allreduce", 1, 0).running();
    world.exits(worker(0, 0), KILLED);
    world.register(worker(0, 1));
    world.join(worker(0, 1), None);
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
        let reason = Reason::PersistentStraggler { node: node.id, slowness_percent: 400 };
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
        world.tell(HeadEvent::Heartbeat { holder, reports, plan_ready, plan_applied });
    }
    let counts = Counts { total: 100, todo: 100, ..Counts::default() };
    for _ in 0..5 {
        world.tell(HeadEvent::Tick(Some(counts)));
    }
    let HeadAnswer::Beat(reply) = world.beat(worker(1, 0)) else { panic!("refused") };
    assert!(reply.drain, "{:?}", world.notes);
    world.orders();
    world.leave(worker(1, 0), false);
    assert_eq!(world.orders(), ["lost worker-1#0", "kill worker-1#0"]);
    world.exits(worker(1, 0), Exit::Finished);
    assert_eq!(world.orders(), ["launch worker-1#1"]);
    world.register(worker(1, 1));
    world.join(worker(1, 1), None);
    assert_eq!(world.orders(), ["joined worker-1#1 at 0"]);
    assert!(world.head.sagas.is_empty());
    let restarts = |note: &Note| matches!(note, Note::Action { kind: "KILL_RESTART", target, .. } if target == "worker-1");
    assert!(world.notes.iter().any(restarts), "{:?}", world.notes);
}

#[test]
fn a_worker_whose_restart_was_ordered_is_kept_while_it_alone_has_the_model() {
    let mut world = World::with_policy("allreduce", 2, 0, Box::new(RestartOne::default())).running();
    let trains = |world: &mut World, holder: Holder, plan: u64| {
        let (plan, reports) = (PlanVersion(plan), reports(holder, 0, 1, Duration::from_millis(100)));
        world.tell(HeadEvent::Heartbeat { holder, reports, plan_ready: plan, plan_applied: (plan, 0) })
    };
    trains(&mut world, worker(0, 0), 1);
    trains(&mut world, worker(1, 0), 1);
    let counts = Counts { total: 100, todo: 100, ..Counts::default() };
    for _ in 0..5 {
        world.tell(HeadEvent::Tick(Some(counts)));
    }
    let HeadAnswer::Beat(reply) = world.beat(worker(1, 0)) else { panic!("refused") };
    assert!(reply.drain, "{:?}", world.notes);
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
fn a_life_that_was_replaced_is_fenced_whatever_it_asks() {
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
        data_wait: Duration::ZERO,
        compute,
        communicate: Duration::ZERO,
        barrier_wait: Duration::ZERO,
    };
    (1..=count).map(|i| (report(i), 8.0)).collect()
}

#[test]
fn a_replacement_is_taken_to_be_as_slow_as_its_earlier_life_until_it_shows_otherwise() {
    let nd = antdt_controller::policy::by_name("nd").unwrap();
    let mut world = World::with_policy("allreduce", 4, 0, nd).running();
    for index in 0..4 {
        let compute = Duration::from_millis(if index == 2 { 400 } else { 100 });
        let (holder, plan) = (worker(index, 0), PlanVersion(1));
        let reports = reports(holder, 0, 40, compute);
        world.tell(HeadEvent::Heartbeat { holder, reports, plan_ready: plan, plan_applied: (plan, 0) });
    }
    world.exits(worker(2, 0), KILLED);
    world.register(worker(2, 1));
    world.join(worker(2, 1), None);
    for index in [0, 1, 3] {
        world.join(worker(index, 0), None);
    }
    let sizes = &world.head.core.published.as_ref().unwrap().batch_sizes;
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
    world.tell(HeadEvent::Heartbeat {
        holder: worker(0, 0),
        reports: Vec::new(),
        plan_ready: PlanVersion(0),
        plan_applied: (PlanVersion(0), 0),
    });
    world.tell(HeadEvent::Tick(None));
    assert_eq!(world.orders(), ["kill worker-1#0"]);
    world.exits(worker(1, 0), KILLED);
    assert!(world.orders().contains(&"launch worker-1#1".to_owned()));
}
