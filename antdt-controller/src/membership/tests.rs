use antdt_core::{Ack, Generation, LeaseId, StepResult};

use super::*;

fn worker(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn again(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(1))
}

fn ack(sequence: u64, offset: u64) -> Ack {
    Ack { lease: LeaseId { generation: Generation(1), sequence }, offset }
}

/// The result of `step`, to which worker `i` contributed up to offset `step + 1` of lease `i`.
fn result(step: u64) -> StepResult {
    let contributions = (0..3)
        .map(|i| Contribution { holder: worker(i), acks: vec![ack(u64::from(i), step + 1)].into() })
        .collect();
    StepResult { step, contributions }
}

fn standing(applied: Option<u64>, prepared: Option<u64>) -> Standing {
    Standing { applied: applied.map(result), prepared: prepared.map(result), ..Standing::default() }
}

/// A worker that knows of the group in force asks for the next one.
fn join(membership: &mut Membership, holder: Holder, standing: Standing) -> Arrival {
    membership.join(holder, Standing { group: membership.group_version, ..standing })
}

/// Three workers in a group that has taken no step yet.
fn group_of_three() -> Membership {
    let mut membership = Membership::new((0..3).map(NodeId::worker));
    for i in 0..3 {
        assert!(membership.form().is_none(), "worker {i} has not come yet");
        assert!(membership.register(worker(i)));
        assert_eq!(join(&mut membership, worker(i), Standing::default()), Arrival::Waits);
    }
    let first = membership.form().expect("all have come");
    assert_eq!(first.members, [worker(0), worker(1), worker(2)]);
    assert_eq!((first.source, first.next_step, first.commit), (None, 0, None));
    assert!(!first.model_lost);
    membership
}

/// Worker 2 dies; workers 0 and 1 come with these standings.
fn after_a_death(zero: Standing, one: Standing) -> Formation {
    let mut membership = group_of_three();
    let group = membership.version();
    assert_eq!(membership.broken(), None);
    assert_eq!(membership.lost(worker(2)), [], "its leases wait for the decision of the survivors");
    assert_eq!(membership.broken(), Some(group), "whoever waits for the dead is told");
    join(&mut membership, worker(0), zero);
    assert!(membership.form().is_none(), "worker 1 has not come yet");
    join(&mut membership, worker(1), one);
    let formed = membership.form().expect("the survivors have come; the dead one is not waited for");
    assert_eq!(membership.broken(), None);
    formed
}

#[test]
fn a_replacement_that_dies_too_does_not_give_its_predecessors_leases_back() {
    let mut membership = group_of_three();
    assert_eq!(membership.lost(worker(2)), []);
    membership.launched(again(2));
    membership.register(again(2));
    assert_eq!(membership.lost(again(2)), [], "its end would end the life whose step is undecided");
    join(&mut membership, worker(0), standing(Some(5), None));
    join(&mut membership, worker(1), standing(Some(5), None));
    let formed = membership.form().expect("the survivors have come");
    assert_eq!(formed.settled, [Contribution { holder: worker(2), acks: vec![ack(2, 6)].into() }]);
    assert_eq!(formed.released, [worker(2), again(2)]);
}

#[test]
fn a_step_that_was_decided_stays_so_if_the_members_that_heard_of_it_die() {
    let mut membership = group_of_three();
    membership.lost(worker(2));
    membership.launched(again(2));
    membership.register(again(2));
    let group = membership.group_version;
    let old = || Standing { group, ..standing(Some(4), Some(5)) };
    membership.join(worker(0), old());
    membership.join(worker(1), old());
    join(&mut membership, again(2), standing(None, None));
    let formed = membership.form().expect("all have come");
    assert_eq!((formed.commit, formed.next_step), (Some(5), 6));
    // Worker 1 makes step 5 part of the model and dies; the others did not hear of the group and ask again.
    membership.lost(worker(1));
    assert_eq!(membership.join(worker(0), old()), Arrival::Member);
    assert_eq!(membership.join(again(2), standing(None, None)), Arrival::Member);
    assert_eq!(membership.form(), None);
    // They are told what was decided, and that the group is broken they find out in it.
    join(&mut membership, worker(0), standing(Some(5), None));
    join(&mut membership, again(2), standing(None, None));
    let formed = membership.form().expect("the survivors have come");
    assert_eq!((formed.commit, formed.next_step, formed.source), (Some(5), 6, Some(Rank(0))));
    assert!(!formed.model_lost);
    assert_eq!(formed.settled, [Contribution { holder: worker(1), acks: vec![ack(1, 6)].into() }]);
}

#[test]
fn a_step_that_one_survivor_applied_is_committed_by_the_other() {
    let formed = after_a_death(standing(Some(5), None), standing(Some(4), Some(5)));
    assert_eq!(formed.commit, Some(5));
    assert_eq!(formed.next_step, 6);
    assert_eq!(formed.settled, [Contribution { holder: worker(2), acks: vec![ack(2, 6)].into() }]);
    assert_eq!(formed.released, [worker(2)]);
    assert_eq!(formed.source, Some(Rank(0)));
}

#[test]
fn a_step_that_all_survivors_prepared_is_committed_because_the_dead_may_have_applied_it() {
    let formed = after_a_death(standing(Some(4), Some(5)), standing(Some(4), Some(5)));
    assert_eq!((formed.commit, formed.next_step), (Some(5), 6));
    assert_eq!(formed.settled, [Contribution { holder: worker(2), acks: vec![ack(2, 6)].into() }]);
}

#[test]
fn a_step_that_one_survivor_does_not_have_is_aborted_and_the_one_before_is_settled() {
    let formed = after_a_death(standing(Some(4), Some(5)), standing(Some(4), None));
    assert_eq!((formed.commit, formed.next_step), (None, 5));
    // The dead may have died before its own ack of step 4.
    assert_eq!(formed.settled, [Contribution { holder: worker(2), acks: vec![ack(2, 5)].into() }]);
}

#[test]
fn the_very_first_step_can_be_committed_or_aborted_too() {
    let formed = after_a_death(standing(None, Some(0)), standing(None, Some(0)));
    assert_eq!((formed.commit, formed.next_step, formed.source), (Some(0), 1, Some(Rank(0))));
    let formed = after_a_death(standing(None, Some(0)), standing(None, None));
    assert_eq!((formed.commit, formed.next_step, formed.source), (None, 0, None));
    assert_eq!(formed.settled, []);
    assert!(!formed.model_lost);
}

#[test]
fn a_replacement_is_let_in_at_the_next_meeting_and_takes_the_model_from_a_survivor() {
    let mut membership = group_of_three();
    membership.lost(worker(2));
    join(&mut membership, worker(0), standing(Some(4), None));
    join(&mut membership, worker(1), standing(Some(4), None));
    membership.form().unwrap();

    membership.launched(again(2));
    assert!(membership.register(again(2)));
    assert!(!membership.reform_wanted(), "it has not asked yet");
    join(&mut membership, again(2), Standing::default());
    assert!(membership.reform_wanted());
    assert!(membership.form().is_none(), "the others are in a step");
    join(&mut membership, worker(0), standing(Some(9), None));
    join(&mut membership, worker(1), standing(Some(9), None));
    let formed = membership.form().unwrap();
    assert_eq!(formed.members, [worker(0), worker(1), again(2)]);
    assert_eq!((formed.source, formed.next_step, formed.commit), (Some(Rank(0)), 10, None));
    assert!(!membership.reform_wanted());
}

#[test]
fn an_older_life_can_neither_register_nor_join() {
    let mut membership = group_of_three();
    membership.lost(worker(2));
    membership.launched(again(2));
    assert!(membership.register(again(2)));
    assert!(!membership.register(worker(2)));
    assert_eq!(join(&mut membership, worker(2), Standing::default()), Arrival::NotLive);
    assert!(!membership.register(Holder::new(NodeId::worker(9), Incarnation(0))), "not a worker of this job");
}

#[test]
fn a_worker_that_leaves_is_not_waited_for() {
    let mut membership = group_of_three();
    membership.leave(worker(1));
    join(&mut membership, worker(0), standing(Some(4), None));
    join(&mut membership, worker(2), standing(Some(4), None));
    assert_eq!(membership.form().unwrap().members, [worker(0), worker(2)]);
    membership.leave(worker(0));
    membership.leave(worker(2));
    assert!(membership.is_empty());
}

#[test]
fn when_no_member_survives_the_leases_go_back_at_once_and_the_model_is_lost() {
    let mut membership = group_of_three();
    assert_eq!(membership.lost(worker(0)), []);
    assert_eq!(membership.lost(worker(1)), []);
    assert_eq!(membership.lost(worker(2)), [worker(0), worker(1), worker(2)]);
    assert!(membership.form().is_none(), "nobody waits");
    for i in 0..3 {
        membership.launched(again(i));
        membership.register(again(i));
        join(&mut membership, again(i), Standing::default());
    }
    let formed = membership.form().unwrap();
    assert!(formed.model_lost);
    assert_eq!((formed.source, formed.next_step), (None, 0));
}

#[test]
fn a_replacement_that_dies_while_it_waits_gives_its_leases_back_at_once() {
    let mut membership = group_of_three();
    membership.lost(worker(2));
    // The survivors went on, which decided its predecessor's last step.
    join(&mut membership, worker(0), standing(Some(5), None));
    join(&mut membership, worker(1), standing(Some(5), None));
    assert!(membership.form().is_some());
    membership.launched(again(2));
    membership.register(again(2));
    join(&mut membership, again(2), Standing::default());
    assert!(membership.reform_wanted());
    assert_eq!(membership.lost(again(2)), [again(2)]);
    assert!(!membership.reform_wanted());
}

#[test]
fn a_worker_that_is_given_up_before_the_start_is_not_waited_for() {
    let mut membership = Membership::new((0..2).map(NodeId::worker));
    membership.register(worker(0));
    join(&mut membership, worker(0), Standing::default());
    assert!(membership.form().is_none());
    membership.give_up(NodeId::worker(1));
    assert_eq!(membership.form().unwrap().members, [worker(0)]);
}

/// Every combination of where three members can be when one dies, driven by the protocol itself: whatever the dead
/// one applied (and so may have acknowledged) is committed by the survivors.
#[test]
fn a_step_that_the_dead_applied_is_committed_by_the_survivors() {
    // A member's progress in step 0: 0 = computing, 1 = prepared, 2 = applied. Applied needs all prepared.
    for progress in (0..27).map(|code| [code % 3, code / 3 % 3, code / 9]) {
        if progress.contains(&2) && progress.contains(&0) {
            continue; // not reachable: the second round needs all members
        }
        let of = |p: i32| match p {
            0 => standing(None, None),
            1 => standing(None, Some(0)),
            _ => standing(Some(0), None),
        };
        let formed = after_a_death(of(progress[0]), of(progress[1]));
        let committed = formed.next_step == 1;
        if progress.contains(&2) {
            assert!(committed, "{progress:?}: somebody applied the step");
        }
        if progress[..2].contains(&0) {
            assert!(!committed, "{progress:?}: a survivor lacks the result");
        }
        assert_eq!(formed.settled.len(), usize::from(committed), "{progress:?}");
    }
}

#[test]
fn a_model_whose_last_owner_died_while_handing_it_over_is_lost() {
    let mut membership = group_of_three();
    membership.lost(worker(1));
    membership.lost(worker(2));
    for node in [again(1), again(2)] {
        membership.register(node);
        join(&mut membership, node, Standing::default());
    }
    join(&mut membership, worker(0), standing(Some(7), None));
    let second = membership.form().expect("all have come");
    assert_eq!((second.source, second.next_step, second.model_lost), (Some(Rank(0)), 8, false));

    membership.lost(worker(0));
    join(&mut membership, again(1), Standing::default());
    join(&mut membership, again(2), Standing::default());
    assert!(membership.form().expect("the survivors have come").model_lost);
}

#[test]
fn a_newcomer_that_has_the_model_already_keeps_it() {
    let mut membership = group_of_three();
    membership.lost(worker(2));
    membership.register(again(2));
    join(&mut membership, again(2), Standing::default());
    join(&mut membership, worker(0), standing(Some(7), None));
    join(&mut membership, worker(1), standing(Some(7), None));
    membership.form().expect("all have come");

    membership.lost(worker(0));
    membership.lost(worker(1));
    let taken_over = StepResult { step: 7, contributions: [].into() };
    join(&mut membership, again(2), Standing { applied: Some(taken_over), ..Standing::default() });
    let third = membership.form().expect("the survivor has come");
    assert_eq!((third.source, third.next_step, third.model_lost), (Some(Rank(0)), 8, false));
}

/// The master stood still while its workers asked again and again.
#[test]
fn an_old_copy_of_a_question_is_not_taken_for_a_worker_that_has_come() {
    let mut membership = group_of_three();
    let group = membership.group_version;
    let old = |prepared| Standing { group, ..standing(Some(4), prepared) };
    membership.lost(worker(2));
    membership.join(worker(0), old(Some(5)));
    membership.join(worker(1), old(None));
    let formed = membership.form().expect("the survivors have come");
    assert_eq!((formed.commit, formed.next_step), (None, 5), "worker 0 drops the step");
    // Worker 1 dies in the new group. What worker 0 said in the old one has been on its way all the time.
    membership.lost(worker(1));
    assert_eq!(membership.join(worker(0), old(Some(5))), Arrival::Member);
    assert_eq!(membership.form(), None, "the survivor has not come");
    join(&mut membership, worker(0), standing(Some(4), None));
    assert_eq!(membership.join(worker(0), old(Some(5))), Arrival::Waits, "what it said last holds");
    let formed = membership.form().expect("the survivor has come");
    assert_eq!((formed.commit, formed.next_step, formed.source), (None, 5, Some(Rank(0))));
}

#[test]
fn a_member_that_was_not_told_of_its_group_is_no_newcomer_to_it() {
    let mut membership = group_of_three();
    assert_eq!(membership.join(worker(0), Standing::default()), Arrival::Member);
    assert!(!membership.reform_wanted());
}

/// Its connections were cut while the group was set up: members that wait for it there hear nothing of that.
#[test]
fn a_member_whose_call_failed_breaks_the_group_for_the_others() {
    let mut membership = group_of_three();
    let group = membership.version();
    let failed = || Standing { broken: true, ..standing(Some(4), None) };
    assert_eq!(join(&mut membership, worker(0), failed()), Arrival::Waits);
    assert_eq!(membership.broken(), Some(group));
    assert_eq!(join(&mut membership, worker(0), failed()), Arrival::Waits, "a copy");
    join(&mut membership, worker(1), failed());
    join(&mut membership, worker(2), standing(Some(4), None));
    membership.form().expect("all have come");
    assert_eq!(membership.broken(), None, "the new group is whole");
    // What was said of the old group says nothing about the new one.
    assert_eq!(membership.join(worker(0), Standing { group, ..failed() }), Arrival::Member);
    assert_eq!(membership.broken(), None);
}

#[test]
fn a_group_is_broken_only_by_members_that_say_so_and_are_there() {
    let failed = || Standing { broken: true, ..standing(Some(4), None) };
    let mut membership = group_of_three();
    join(&mut membership, worker(0), standing(Some(4), None));
    assert_eq!(membership.broken(), None, "it asks for another group because a worker wants to be admitted");
    membership.launched(Holder::new(NodeId::worker(3), Incarnation(0)));
    membership.register(worker(3));
    join(&mut membership, worker(3), failed());
    assert_eq!(membership.broken(), None, "a newcomer is in no group");
    join(&mut membership, worker(1), failed());
    assert!(membership.broken().is_some());
    membership.leave(worker(1));
    assert_eq!(membership.broken(), None);
    join(&mut membership, worker(2), failed());
    membership.disband();
    assert_eq!(membership.broken(), None, "there is no group");
}
