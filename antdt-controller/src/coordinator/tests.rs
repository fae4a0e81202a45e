use antdt_core::{Ack, Generation, Incarnation, LeaseId, NodeId};
use proptest::prelude::*;

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
    assert_eq!(coordinator.ready(worker(0), 0, with_samples(3, 0)), Ok(Some(commit.answering(0, true))));
    assert_eq!(coordinator.commit(), None);
    let ahead = coordinator.ready(worker(0), 7, with_samples(3, 0));
    assert_eq!(ahead, Err(ReadyError::WrongStep { step: 7, open: 1 }));
}

#[test]
fn i26_a_plan_is_applied_by_all_workers_at_one_step_or_by_none() {
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
fn training_ends_when_no_worker_has_samples_and_all_have_seen_the_end() {
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

fn of(backups: u32, workers: u32) -> StepCoordinator {
    let mut coordinator = StepCoordinator::with_backups(backups);
    (0..workers).for_each(|index| coordinator.join(worker(index)));
    coordinator
}

const NO_SAMPLES: Readiness =
    Readiness { samples: 0, end_of_data: false, plan: PlanVersion(0), acks: Vec::new() };

#[test]
fn a_step_does_not_wait_for_its_backups_and_later_pushes_are_in_no_step() {
    let mut coordinator = of(1, 3);
    for step in 0..4 {
        for index in [0, 2] {
            assert_eq!(coordinator.commit(), None);
            coordinator.ready(worker(index), step, with_samples(3, 0)).unwrap();
        }
        let commit = coordinator.commit().unwrap();
        assert_eq!((commit.step, commit.samples, commit.everyone), (step, 6, false));
        assert!(coordinator.informed().eq([worker(0), worker(2)]), "the third is not told before it asks");
    }
    let late = coordinator.ready(worker(1), 0, with_samples(5, 0)).unwrap().unwrap();
    assert_eq!((late.step, late.asked, late.counted, late.samples), (3, 0, false, 6));
    assert!(coordinator.is_informed(worker(1)));
    // From there on it may be one of the first.
    coordinator.ready(worker(1), 4, with_samples(5, 0)).unwrap();
    coordinator.ready(worker(0), 4, with_samples(3, 0)).unwrap();
    let commit = coordinator.commit().unwrap();
    assert_eq!(commit.contributors.keys().copied().collect::<Vec<_>>(), [worker(0), worker(1)]);
}

#[test]
fn a_worker_whose_answer_was_lost_is_told_that_it_was_counted_even_after_later_commits() {
    let mut coordinator = of(1, 3);
    for index in [0, 1] {
        coordinator.ready(worker(index), 0, with_samples(3, 2)).unwrap();
    }
    assert_eq!(coordinator.commit(), None, "a plan that may come into force takes everyone");
    coordinator.ready(worker(2), 0, with_samples(3, 2)).unwrap();
    assert_eq!(coordinator.commit().unwrap().apply, Some(PlanVersion(2)));
    for step in 1..3 {
        for index in [1, 2] {
            coordinator.ready(worker(index), step, with_samples(4, 2)).unwrap();
        }
        assert_eq!(coordinator.commit().unwrap().apply, None);
    }
    let told = coordinator.ready(worker(0), 0, with_samples(3, 2)).unwrap().unwrap();
    assert_eq!((told.step, told.asked, told.counted), (2, 0, true));
    assert_eq!(told.apply, Some(PlanVersion(2)), "the commit that said so is not the newest any more");
}

#[test]
fn a_worker_that_joined_after_a_plan_was_agreed_on_is_not_told_to_apply_it_when_it_asks_again() {
    let mut coordinator = two();
    for index in [0, 1] {
        coordinator.ready(worker(index), 0, with_samples(3, 1)).unwrap();
    }
    assert_eq!(coordinator.commit().unwrap().apply, Some(PlanVersion(1)));
    let again = Holder::new(NodeId::worker(1), Incarnation(1));
    coordinator.join(again);
    coordinator.ready(again, 1, NO_SAMPLES).unwrap();
    coordinator.ready(worker(0), 1, with_samples(3, 1)).unwrap();
    coordinator.commit().unwrap();
    assert_eq!(coordinator.ready(again, 1, NO_SAMPLES).unwrap().unwrap().apply, None);
}

#[test]
fn a_worker_without_samples_is_no_backup_and_one_that_may_have_some_ends_no_job() {
    let mut coordinator = of(1, 3);
    coordinator.ready(worker(0), 0, NO_SAMPLES).unwrap();
    assert_eq!(coordinator.commit(), None);
    coordinator.ready(worker(1), 0, with_samples(3, 0)).unwrap();
    assert_eq!(coordinator.commit().unwrap().samples, 3, "of the two that may have samples, one");
    let done = Readiness { end_of_data: true, ..NO_SAMPLES };
    coordinator.ready(worker(0), 1, done.clone()).unwrap();
    coordinator.ready(worker(1), 1, done).unwrap();
    assert_eq!(coordinator.commit(), None, "the third still computes");
    coordinator.ready(worker(2), 0, with_samples(3, 0)).unwrap().unwrap();
    coordinator.ready(worker(2), 1, with_samples(3, 0)).unwrap();
    let commit = coordinator.commit().unwrap();
    assert!(commit.contributors.contains_key(&worker(2)) && !commit.end);
}

#[test]
fn more_backups_than_workers_leave_one_that_is_waited_for() {
    let mut coordinator = of(3, 2);
    assert_eq!(coordinator.commit(), None);
    coordinator.ready(worker(1), 0, with_samples(3, 0)).unwrap();
    assert_eq!(coordinator.commit().unwrap().samples, 3);
}

#[test]
fn while_all_workers_are_taken_backups_are_waited_for_too() {
    let mut coordinator = of(1, 2);
    coordinator.take_all_workers(true);
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    assert_eq!(coordinator.commit(), None);
    coordinator.take_all_workers(false);
    assert_eq!(coordinator.commit().unwrap().samples, 3);
}

#[test]
fn a_step_says_whether_it_left_out_a_worker_that_may_have_had_samples() {
    let mut coordinator = of(1, 2);
    coordinator.ready(worker(0), 0, with_samples(3, 0)).unwrap();
    assert!(!coordinator.commit().unwrap().everyone);
    // A member that says that it has none is not left out.
    coordinator.ready(worker(1), 1, NO_SAMPLES).unwrap();
    coordinator.ready(worker(0), 1, with_samples(3, 0)).unwrap();
    assert!(coordinator.commit().unwrap().everyone);
}

proptest! {
    /// Against a naive count over all members, after every event.
    #[test]
    fn a_step_is_committed_when_as_many_are_ready_as_are_due_and_each_hears_whether_it_is_in_it(
        backups in 0..3_u32,
        events in prop::collection::vec((0..5_u32, 0..12_u8, 0..3_u64), 0..200),
    ) {
        // The life of each member, the step that it takes, and what it has ready for it.
        let mut members: BTreeMap<u32, (Holder, u64, Option<Readiness>)> = BTreeMap::new();
        let mut contributors: BTreeMap<u64, Vec<Holder>> = BTreeMap::new();
        let mut coordinator = StepCoordinator::with_backups(backups);
        let (mut everyone, mut lives, mut plan) = (false, 0, PlanVersion(0));
        for (index, what, samples) in events {
            match what {
                0 => {
                    lives += 1;
                    let holder = Holder::new(NodeId::worker(index), Incarnation(lives));
                    coordinator.join(holder);
                    members.insert(index, (holder, coordinator.step(), None));
                }
                1 => {
                    if let Some((holder, ..)) = members.remove(&index) {
                        coordinator.remove(holder);
                    }
                }
                2 => {
                    everyone = !everyone;
                    coordinator.take_all_workers(everyone);
                }
                _ => {
                    let Some((holder, step, ready)) = members.get_mut(&index) else { continue };
                    let held = if what == 3 { PlanVersion(samples) } else { plan };
                    let readiness = Readiness { plan: held, ..with_samples(samples, 0) };
                    match coordinator.ready(*holder, *step, readiness.clone()).unwrap() {
                        Some(answer) => {
                            let in_it = contributors.get(step).is_some_and(|who| who.contains(holder));
                            prop_assert_eq!((answer.asked, answer.counted), (*step, in_it));
                            prop_assert_eq!(answer.step + 1, coordinator.step());
                            *step = coordinator.step();
                        }
                        None => *ready = Some(readiness),
                    }
                }
            }
            let with = |some: bool| {
                members.values().filter(|(.., ready)| ready.as_ref().is_some_and(|r| (r.samples > 0) == some)).count()
            };
            let (ready, without) = (with(true), with(false));
            let may_have = members.len() - without;
            let fewest = if may_have == 0 { 0 } else { may_have.saturating_sub(backups as usize).max(1) };
            let open = coordinator.step();
            let commit = coordinator.commit();
            match &commit {
                Some(commit) => {
                    prop_assert!(!members.is_empty() && ready >= fewest && (!everyone || ready == may_have));
                    prop_assert!(commit.step == open && commit.contributors.len() == ready);
                    prop_assert!(commit.apply.is_none() || ready + without == members.len());
                    plan = commit.apply.unwrap_or(plan);
                    contributors.insert(open, commit.contributors.keys().copied().collect());
                    let mut told = Vec::new();
                    for (holder, step, ready) in members.values_mut() {
                        if ready.take().is_some() {
                            told.push(*holder);
                            // Every other answer is lost, and asked for again.
                            *step = if lives % 2 == 0 || samples > 0 { open + 1 } else { open };
                        }
                    }
                    prop_assert!(coordinator.informed().eq(told));
                }
                None => prop_assert!(
                    members.is_empty() || ready < may_have,
                    "all {} are ready and nothing is committed", may_have
                ),
            }
        }
    }
}
