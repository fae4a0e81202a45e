//! Stories of hosts that come and go.

use antdt_core::Incarnation;

use super::*;
use crate::launcher::MASTER_ADDR;

const START: Duration = Duration::from_secs(1);

fn introduction(name: &str, slots: u32, rank: Option<u32>) -> HostIntroduction {
    let address = format!("address of {name}");
    HostIntroduction { name: name.to_owned(), slots, rank, adds: false, address }
}

fn spec(index: u32, life: u32) -> NodeSpec {
    let holder = Holder::new(NodeId::worker(index), Incarnation(life));
    let (program, args) = ("node".into(), Vec::new());
    NodeSpec { holder, program, args, env: Vec::new(), file: String::new() }
}

/// Effects in short: `a+0.0` starts life 0 of worker 0 on host a, `a-0.0` ends it, `0.0@a` places it, `0.0!` is its start and
/// `0.0.` its end.
fn short(effects: &[PoolEffect]) -> String {
    let id = |holder: &Holder| format!("{}.{}", holder.node.index, holder.incarnation.0);
    let text = |effect: &PoolEffect| match effect {
        PoolEffect::Send { host, order: HostOrder::Launch(spec) } => {
            format!("{host}+{}", id(&spec.holder))
        }
        PoolEffect::Send { host, order: HostOrder::End { holder, .. } } => {
            format!("{host}-{}", id(holder))
        }
        PoolEffect::Report(LauncherEvent::Placed { holder, host }) => format!("{}@{host}", id(holder)),
        PoolEffect::Report(LauncherEvent::Started { holder }) => format!("{}!", id(holder)),
        PoolEffect::Report(LauncherEvent::Gone { holder, .. }) => format!("{}.", id(holder)),
        PoolEffect::Report(LauncherEvent::Room { workers }) => format!("^{workers}"),
    };
    effects.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// A host comes that has no nodes.
fn come(pool: &mut HostPool, host: HostIntroduction) -> Vec<PoolEffect> {
    let name = host.name.clone();
    pool.join(host).unwrap();
    pool.recall(&name, &BTreeMap::new())
}

/// Two hosts with two slots and one, whose workers run.
fn pool() -> HostPool {
    let mut pool = HostPool::default();
    for (name, slots, rank) in [("b", 1, Some(1)), ("a", 2, Some(0))] {
        assert_eq!(short(&come(&mut pool, introduction(name, slots, rank))), "");
    }
    assert_eq!(pool.hosts(), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    let places: Vec<_> = (0..4).map(|index| pool.place(NodeId::worker(index))).collect();
    assert_eq!(
        places.iter().flatten().map(String::as_str).collect::<String>(),
        "aab",
        "by rank, while there is room"
    );
    for (index, started) in [(0, "a+0.0"), (1, "a+1.0"), (2, "b+2.0"), (3, "")] {
        assert_eq!(short(&pool.launch(&spec(index, 0)).unwrap()), started);
    }
    for (host, index) in [("a", 0), ("a", 1), ("b", 2)] {
        pool.report(host, spec(index, 0).holder, HostReport::Started);
    }
    pool
}

fn gone() -> HostReport {
    HostReport::Gone { exit: NodeExit { code: Some(0), signal: None }, tail: Vec::new() }
}

#[test]
fn node_that_waits_gets_the_slot_that_becomes_free_or_a_host_that_comes() {
    let mut freed = pool();
    assert_eq!(short(&freed.report("a", spec(1, 0).holder, gone())), "1.0. 3.0@a a+3.0");
    // The next life of worker 1 waits in turn.
    assert_eq!(
        (freed.place(NodeId::worker(1)), short(&freed.launch(&spec(1, 1)).unwrap())),
        (None, String::new())
    );
    let mut joined = pool();
    assert_eq!(short(&come(&mut joined, introduction("c", 1, None))), "3.0@c c+3.0");
    // Where there is room, a worker stays on its host.
    come(&mut joined, introduction("d", 9, None));
    joined.report("b", spec(2, 0).holder, gone());
    assert_eq!(joined.place(NodeId::worker(2)).as_deref(), Some("b"));
}

#[test]
fn job_grows_by_hosts_up_to_its_most_and_by_those_that_are_added() {
    let mut pool = pool();
    pool.begin(3);
    pool.lose(START, "b");
    pool.tick(START + AWAY_LIMIT);
    // A host in place of another one is none more; the larger one has a slot more, that worker 3 gets too.
    assert_eq!(short(&come(&mut pool, introduction("c", 2, None))), "3.0@c c+3.0 ^1");
    assert_eq!(short(&come(&mut pool, introduction("b", 1, Some(1)))), "^1");
    assert_eq!(short(&come(&mut pool, introduction("spare", 4, None))), "");
    let added = HostIntroduction { adds: true, ..introduction("d", 3, None) };
    assert_eq!(short(&come(&mut pool, added.clone())), "^3");
    // One that is back has been counted.
    pool.lose(START * 99, "d");
    assert_eq!(short(&come(&mut pool, added)), "");
    // Before the job has begun, nothing grows.
    assert_eq!(short(&come(&mut HostPool::default(), introduction("a", 2, None))), "");
}

#[test]
fn host_that_is_back_in_time_has_lost_nothing() {
    let mut pool = pool();
    pool.lose(START, "a");
    assert_eq!(short(&pool.tick(START + AWAY_LIMIT / 2)), "");
    // What is ordered meanwhile is ordered when it is back.
    assert_eq!(pool.end(spec(0, 0).holder, START), (true, Vec::new()));
    pool.join(introduction("a", 2, Some(0))).unwrap();
    let known = BTreeMap::from([(spec(0, 0).holder, HostReport::Started), (spec(1, 0).holder, gone())]);
    assert_eq!(short(&pool.recall("a", &known)), "a-0.0 1.0. 3.0@a a+3.0");
    assert_eq!(short(&pool.tick(START + AWAY_LIMIT * 2)), "");
}

#[test]
fn node_that_is_to_be_killed_has_ended_once_its_host_is_away_and_is_killed_when_that_is_back() {
    // The order comes before the loss is known, or after it.
    let mut before = pool();
    assert_eq!(short(&before.end(spec(0, 0).holder, Duration::ZERO).1), "a-0.0");
    assert_eq!(short(&before.lose(START, "a")), "0.0.");
    let mut after = pool();
    assert_eq!(short(&after.lose(START, "a")), "");
    assert_eq!(short(&after.end(spec(0, 0).holder, Duration::ZERO).1), "0.0.");
    for mut pool in [before, after] {
        pool.join(introduction("a", 2, Some(0))).unwrap();
        let known = [0, 1].map(|index| (spec(index, 0).holder, HostReport::Started));
        assert_eq!(short(&pool.recall("a", &BTreeMap::from(known))), "a-0.0 3.0@a a+3.0");
    }
}

#[test]
fn order_that_never_arrived_is_the_end_of_the_node() {
    let mut pool = pool();
    pool.lose(START, "b");
    pool.join(introduction("b", 1, Some(1))).unwrap();
    assert_eq!(short(&pool.recall("b", &BTreeMap::new())), "2.0. 3.0@b b+3.0");
}

#[test]
fn nodes_of_a_host_that_stays_away_have_ended_and_what_it_says_later_is_old() {
    let mut pool = pool();
    pool.lose(START, "a");
    assert_eq!(short(&pool.tick(START + AWAY_LIMIT)), "0.0. 1.0.");
    assert_eq!(pool.report("a", spec(0, 0).holder, HostReport::Started), Vec::new());
    assert!(matches!(pool.status(spec(0, 0).holder), Some(LaunchStatus::Gone(_))));
    // Its workers wait for a host; the first one of these to come may be the same.
    pool.launch(&spec(0, 1)).unwrap();
    assert_eq!(short(&come(&mut pool, introduction("a", 2, Some(0)))), "0.1@a a+0.1 3.0@a a+3.0");
}

#[test]
fn nodes_of_a_host_whose_program_has_ended_have_ended_once_it_is_away_and_for_the_same_reason() {
    let cause = |effects: &[PoolEffect]| match effects.first() {
        Some(PoolEffect::Report(LauncherEvent::Gone { tail, .. })) => tail.join(""),
        other => panic!("{other:?}"),
    };
    // The end is known before the loss, or after it.
    let mut before = pool();
    assert_eq!(short(&before.explain("b", "it was killed, out of memory")), "");
    let mut after = pool();
    assert_eq!(short(&after.lose(START, "b")), "");
    let ends = [before.lose(START, "b"), after.explain("b", "it was killed, out of memory")];
    for (mut pool, effects) in [before, after].into_iter().zip(ends) {
        assert_eq!(short(&effects), "2.0.");
        assert_eq!(cause(&effects), format!("{}host b: it was killed, out of memory", Exit::CAUSE));
        // The next program on that host has nothing to do with it.
        pool.launch(&spec(2, 1)).unwrap();
        assert_eq!(short(&come(&mut pool, introduction("b", 1, Some(1)))), "2.1@b b+2.1");
        assert_eq!(short(&pool.lose(START, "b")), "");
    }
}

#[test]
fn host_that_leaves_gets_no_more_nodes_until_it_comes_again() {
    let mut pool = pool();
    pool.leave("a");
    assert_eq!(short(&pool.report("a", spec(1, 0).holder, gone())), "1.0.", "worker 3 waits all the same");
    assert_eq!(pool.place(NodeId::worker(1)), None);
    assert_eq!(pool.hosts().len(), 2, "it is still there");
    pool.lose(START, "a");
    assert_eq!(short(&come(&mut pool, introduction("a", 2, Some(0)))), "0.0. 3.0@a a+3.0");
    assert_eq!(pool.place(NodeId::worker(1)).as_deref(), Some("a"));
}

#[test]
fn two_hosts_of_one_name_or_rank_are_refused_by_what_they_share() {
    let mut pool = pool();
    let refused = |pool: &mut HostPool, name, rank| pool.join(introduction(name, 1, rank)).unwrap_err();
    assert!(refused(&mut pool, "a", Some(5)).contains("another host is called a"));
    assert!(refused(&mut pool, "c", Some(1)).contains("host b has --node-rank 1 already"));
    pool.lose(START, "b");
    pool.join(introduction("c", 1, Some(1))).unwrap();
}

#[test]
fn incarnation_starts_once_and_ends_once() {
    let mut pool = pool();
    assert!(matches!(pool.launch(&spec(0, 0)), Err(LaunchError::Launched { .. })));
    let waiting = spec(3, 0).holder;
    let (ended, effects) = pool.end(waiting, Duration::ZERO);
    assert_eq!((ended, short(&effects)), (true, "3.0.".to_owned()));
    assert_eq!(pool.end(waiting, Duration::ZERO), (false, Vec::new()));
    assert_eq!(short(&pool.end(spec(0, 0).holder, START).1), "a-0.0");
    let started = |pool: &mut HostPool| short(&pool.report("a", spec(0, 0).holder, HostReport::Started));
    assert_eq!(started(&mut pool), "", "it is known to run");
}

#[test]
fn servers_go_round_and_take_no_slots() {
    let mut pool = pool();
    let places: Vec<_> = (0..4).map(|index| pool.place(NodeId::server(index)).unwrap()).collect();
    assert_eq!(places.join(""), "abab");
}

#[test]
fn nodes_are_told_where_the_first_worker_is_also_after_it_has_moved() {
    let mut pool = HostPool::default();
    for (name, slots, rank) in [("a", 1, 0), ("b", 2, 1)] {
        come(&mut pool, introduction(name, slots, Some(rank)));
    }
    let told = |pool: &mut HostPool, index, life| {
        let env =
            vec![(MASTER_ADDR.to_owned(), "master".to_owned()), ("OTHER".to_owned(), "master".to_owned())];
        let effects = pool.launch(&NodeSpec { env, ..spec(index, life) }).unwrap();
        let launched = effects.into_iter().find_map(|effect| match effect {
            PoolEffect::Send { order: HostOrder::Launch(spec), .. } => Some(spec.env),
            _ => None,
        });
        let env = launched.unwrap();
        assert_eq!(env[1].1, "master", "nothing else changes");
        env[0].1.clone()
    };
    assert_eq!([0, 1].map(|index| told(&mut pool, index, 0)), ["address of a", "address of a"]);
    pool.lose(START, "a");
    pool.tick(START + AWAY_LIMIT);
    assert_eq!([0, 1].map(|index| told(&mut pool, index, 1)), ["address of b", "address of b"]);
}
