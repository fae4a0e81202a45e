use antdt_core::Incarnation;

use super::*;

fn at(seconds: u64) -> JobTime {
    JobTime::from_duration(Duration::from_secs(seconds))
}

fn holder(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

/// A budget after one restart of worker 0 that took 2 s and began at 0.
fn after_one() -> RestartBudget {
    let mut budget = RestartBudget::default();
    budget.started(at(0), ActionId(1), holder(0));
    budget.ended(at(2), ActionId(1));
    budget
}

#[test]
fn one_restart_at_a_time_in_a_small_job_and_five_percent_in_a_large_one() {
    let mut budget = RestartBudget::default();
    budget.started(at(0), ActionId(1), holder(0));
    let refused = BudgetRefusal::AtOnce { running: 1, most: 1 };
    assert_eq!(budget.allows(at(1), NodeId::worker(1), 4), Err(refused));
    assert_eq!(budget.allows(at(1), NodeId::worker(1), 40), Ok(()));
    let running = BudgetRefusal::Running { node: NodeId::worker(0) };
    assert_eq!(budget.allows(at(1), NodeId::worker(0), 40), Err(running));
    budget.ended(at(1), ActionId(1));
    assert_eq!(budget.allows(at(1), NodeId::worker(1), 4), Ok(()));
}

#[test]
fn a_node_rests_ten_times_as_long_as_its_restart_took() {
    let budget = after_one();
    let refused = BudgetRefusal::CoolDown { node: NodeId::worker(0), until: at(22) };
    assert_eq!(budget.allows(at(21), NodeId::worker(0), 4), Err(refused));
    assert_eq!(budget.allows(at(22), NodeId::worker(0), 4), Ok(()));
    assert_eq!(budget.allows(at(3), NodeId::worker(1), 4), Ok(()), "others need not rest");
}

#[test]
fn a_node_has_three_restarts_and_a_small_job_three_an_hour() {
    let mut budget = RestartBudget::default();
    for (id, seconds) in [(1, 0), (2, 4000), (3, 8000)] {
        assert_eq!(budget.allows(at(seconds), NodeId::worker(0), 4), Ok(()));
        budget.started(at(seconds), ActionId(id), holder(0));
        budget.ended(at(seconds + 1), ActionId(id));
    }
    let refused = BudgetRefusal::Node { node: NodeId::worker(0), times: 3 };
    assert_eq!(budget.allows(at(100_000), NodeId::worker(0), 4), Err(refused));

    let mut budget = RestartBudget::default();
    for index in 0..3 {
        budget.started(at(0), ActionId(u64::from(index)), holder(index));
        budget.ended(at(1), ActionId(u64::from(index)));
    }
    assert_eq!(budget.allows(at(3599), NodeId::worker(3), 4), Err(BudgetRefusal::Hour { times: 3 }));
    assert_eq!(budget.allows(at(3599), NodeId::worker(3), 40), Ok(()), "ten percent of 40");
    assert_eq!(budget.allows(at(3600), NodeId::worker(3), 4), Ok(()));
}

#[test]
fn an_end_that_is_said_twice_counts_once() {
    let mut budget = after_one();
    budget.ended(at(100), ActionId(1));
    budget.ended(at(100), ActionId(77));
    assert_eq!(budget.allows(at(22), NodeId::worker(0), 4), Ok(()));
}

#[test]
fn restarts_under_an_earlier_master_are_spent() {
    let mut before = after_one();
    for (id, second) in [(2, 100), (3, 200)] {
        before.started(at(second), ActionId(id), holder(1));
        before.ended(at(second + 1), ActionId(id));
    }
    let nodes = [0, 1].map(|index| {
        let node = NodeId::worker(index);
        let (restarts, rest) = before.spent(node);
        (node, restarts, rest)
    });
    let mut budget = RestartBudget::default();
    // Its clock starts again.
    budget.resume(at(1), nodes, before.recent());
    let refused = BudgetRefusal::CoolDown { node: NodeId::worker(0), until: at(21) };
    assert_eq!(budget.allows(at(20), NodeId::worker(0), 4), Err(refused));
    assert_eq!(budget.allows(at(21), NodeId::worker(0), 4), Err(BudgetRefusal::Hour { times: 3 }));
    assert_eq!(budget.allows(at(3601), NodeId::worker(0), 4), Ok(()));
    budget.started(at(4000), ActionId(1), holder(1));
    budget.ended(at(4001), ActionId(1));
    let refused = BudgetRefusal::Node { node: NodeId::worker(1), times: 3 };
    assert_eq!(budget.allows(at(9000), NodeId::worker(1), 4), Err(refused));
    assert_eq!((budget.spent(NodeId::worker(1)).0, budget.spent(NodeId::worker(2)).0), (3, 0));
}
