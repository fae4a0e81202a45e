use antdt_core::{Ack, Generation, Incarnation, LeaseId, NodeId};

use super::*;

fn worker(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn ack(sequence: u64, offset: u64) -> Ack {
    Ack { lease: LeaseId { generation: Generation(1), sequence }, offset }
}

fn with_samples(samples: u64, plan: u64) -> Readiness {
    Readiness { samples, end_of_data: false, plan: PlanVersion(plan), acks: vec![ack(samples, samples)] }
}

fn two() -> StepCoordinator {
    let mut coordinator = StepCoordinator::new();
    coordinator.join(worker(0));
    coordinator.join(worker(1));
    coordinator
}

#[test]
fn a_step_is_committed_when_every_member_is_ready_and_not_before() {
    let mut coordinator = two();
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    assert_eq!(coordinator.commit(), None);
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    assert_eq!(coordinator.commit(), None, "saying it twice is not saying it for the other");
    coordinator.ready(worker(1), 0, with_samples(5, 0)).unwrap();
    let commit = coordinator.commit().unwrap();
    assert_eq!((commit.step, commit.samples, commit.end), (0, 8, false));
    assert_eq!(commit.contributors[&worker(1)], [ack(5, 5)]);
    assert_eq!(coordinator.step(), 1);
}

#[test]
fn a_dead_member_is_neither_waited_for_nor_counted() {
    let mut coordinator = two();
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    coordinator.ready(worker(1), 0, with_samples(5, 0)).unwrap();
    coordinator.remove(worker(1));
    let commit = coordinator.commit().unwrap();
    assert_eq!(commit.samples, 3);
    assert!(!commit.contributors.contains_key(&worker(1)));
    let late = coordinator.ready(worker(1), 1, with_samples(5, 0));
    assert_eq!(late, Err(ReadyError::NotAMember { holder: worker(1) }));
}

#[test]
fn a_lost_answer_is_given_again_and_changes_nothing() {
    let mut coordinator = two();
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    coordinator.ready(worker(1), 0, with_samples(5, 0)).unwrap();
    let commit = coordinator.commit().unwrap();
    assert_eq!(coordinator.ready(worker(0), 0, with_samples(3, 0)), Ok(Some(&commit)));
    assert_eq!(coordinator.commit(), None);
    let ahead = coordinator.ready(worker(0), 7, with_samples(3, 0));
    assert_eq!(ahead, Err(ReadyError::WrongStep { step: 7, open: 1 }));
}

#[test]
fn a_plan_is_applied_by_all_at_one_step_or_by_nobody() {
    let mut coordinator = two();
    coordinator.ready(worker(0), 0, with_samples(1, 2)).unwrap();
    coordinator.ready(worker(1), 0, with_samples(1, 1)).unwrap();
    assert_eq!(coordinator.commit().unwrap().apply, None);
    for worker in [worker(0), worker(1)] {
        coordinator.ready(worker, 1, with_samples(1, 2)).unwrap();
    }
    assert_eq!(coordinator.commit().unwrap().apply, Some(PlanVersion(2)));
    for worker in [worker(0), worker(1)] {
        coordinator.ready(worker, 2, with_samples(1, 2)).unwrap();
    }
    assert_eq!(coordinator.commit().unwrap().apply, None, "it is in force already");
}

#[test]
fn training_ends_when_nobody_has_samples_and_all_have_seen_the_end() {
    let done = Readiness { samples: 0, end_of_data: true, plan: PlanVersion(0), acks: vec![] };
    let waiting = Readiness { end_of_data: false, ..done.clone() };
    let mut coordinator = two();
    coordinator.ready(worker(0), 0, done.clone()).unwrap();
    coordinator.ready(worker(1), 0, waiting).unwrap();
    assert!(!coordinator.commit().unwrap().end);
    coordinator.ready(worker(0), 1, done.clone()).unwrap();
    coordinator.ready(worker(1), 1, done).unwrap();
    let commit = coordinator.commit().unwrap();
    assert!(commit.end && commit.contributors.is_empty());
}

#[test]
fn a_replacement_puts_its_earlier_life_out() {
    let mut coordinator = two();
    let again = Holder::new(NodeId::worker(1), Incarnation(1));
    coordinator.join(again);
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    assert_eq!(coordinator.commit(), None);
    coordinator.ready(again, 0, with_samples(4, 0)).unwrap();
    assert_eq!(coordinator.commit().unwrap().samples, 7);
}
