use antdt_agent::BeatReply;
use antdt_core::MembershipVersion;
use antdt_core::port::WANT_MAX;
use antdt_core::{AckOutcome, CheckpointId, FetchOutcome, PlanVersion, Rank};

use super::*;

mod histories;
mod outside;

use outside::{Outside, plan};

/// Another member of the group.
const PEER: Holder = Holder::new(antdt_core::NodeId::worker(1), antdt_core::Incarnation(0));

const MODES: [&str; 4] = ["allreduce", "ps-bsp", "ps-asp", "local-sgd=2"];

const fn exchanges(call: &Call) -> bool {
    matches!(call, Call::Exchange { .. })
}

const fn loads(call: &Call) -> bool {
    matches!(call, Call::Load(_))
}

const fn computes(call: &Call) -> bool {
    matches!(call, Call::Compute)
}

const fn combines(call: &Call) -> bool {
    matches!(call, Call::Combine { .. })
}

/// The names of the calls up to the end of a step.
fn calls_of_a_step(outside: &mut Outside) -> Vec<String> {
    let steps = outside.worker.steps();
    let mut calls = Vec::new();
    while outside.worker.steps() == steps {
        let call = format!("{:?}", outside.call);
        calls.push(call.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned());
        outside.goes_well();
    }
    calls
}

#[test]
fn an_epoch_trains_and_acknowledges_every_sample_once_and_ends() {
    for sync in MODES {
        let mut outside = Outside::new(sync, &[10, 3, 7], 4);
        outside.ends_with(20);
        // With servers it is the master that acknowledges, when it commits.
        let acked = if sync.starts_with("ps-") { 0 } else { 20 };
        assert_eq!(outside.acked.values().sum::<u64>(), acked, "{sync:?}");
        let reported: u64 = outside.session.beat().reports.iter().map(|r| r.report.samples).sum();
        assert_eq!((reported, outside.worker.end_of_data()), (20, true));
    }
}

#[test]
fn a_step_in_the_middle_asks_for_exactly_these_calls() {
    let steps: [&[&str]; 4] = [
        &["Load", "Compute", "Combine", "Agree", "Apply", "Exchange"],
        &["Load", "Pull", "Compute", "Push", "Ready"],
        &["Load", "Pull", "Compute", "Push", "Ready"],
        &[
            "Load", "Compute", "Advance", "Load", "Compute", "Advance", "Combine", "Agree", "Apply",
            "Exchange",
        ],
    ];
    for (sync, calls) in MODES.into_iter().zip(steps) {
        let mut outside = Outside::new(sync, &[100], 4);
        outside.until(loads);
        assert_eq!(calls_of_a_step(&mut outside), calls);
        // A push that counts is a step, and is applied before the next one.
        let applies = (sync == "ps-asp").then_some("Apply");
        let again: Vec<&str> = applies.into_iter().chain(calls.iter().copied()).collect();
        assert_eq!(calls_of_a_step(&mut outside), again);
    }
}

#[test]
fn nothing_is_asked_of_the_shard_service_before_the_worker_has_joined() {
    for sync in MODES {
        let mut outside = Outside::new(sync, &[10], 4);
        assert_eq!(outside.call, Call::Join(Standing::default()));
        outside.until(|call| matches!(call, Call::Register(_)));
        assert_eq!(outside.call, Call::Register(Vec::new()));
    }
}

#[test]
fn a_shard_is_asked_for_with_the_ack_of_the_last_batch_that_the_shards_held_fill() {
    let mut outside = Outside::new("allreduce", &[8, 8], 4);
    let mut wanted = Vec::new();
    for _ in 0..3 {
        outside.until(exchanges);
        let Call::Exchange { acks, want, wait, .. } = &outside.call else { unreachable!() };
        wanted.push((acks.len(), *want, *wait));
        outside.goes_well();
    }
    // The first one says how long a shard is.
    assert_eq!(wanted, [(0, 1, Duration::ZERO), (1, 0, Duration::ZERO), (1, 1, Duration::ZERO)]);
}

#[test]
fn samples_of_later_batches_are_leased_before_them_and_each_is_trained_once() {
    let mut outside = Outside::new("allreduce", &[4; 8], 4);
    outside.worker = outside.worker.reading_ahead(2);
    outside.until(loads);
    for step in 1..=8_u64 {
        let ahead: Vec<u64> = outside.worker.leases().upcoming().collect();
        // Nothing waits for what is read ahead: it comes with the ack of a batch.
        let due = if step == 1 { 0 } else { (4 * (8 - step)).min(8) };
        assert_eq!(ahead.len() as u64, due, "step {step}");
        outside.until(|call| matches!(call, Call::Apply));
        outside.goes_well();
        outside.until(|call| loads(call) || matches!(call, Call::Stop(_)));
        if let Call::Load(batch) = &outside.call
            && !ahead.is_empty()
        {
            assert_eq!(batch.samples().collect::<Vec<_>>(), ahead[..4], "as was said before step {step}");
        }
    }
    outside.ends_with(32);
}

#[test]
fn reading_ahead_stops_while_shards_are_scarce() {
    let mut outside = Outside::new("allreduce", &[4; 8], 4);
    outside.worker = outside.worker.reading_ahead(2);
    let want = |call: &Call| match call {
        Call::Exchange { want, .. } => *want,
        other => panic!("{other:?}"),
    };
    outside.until(loads);
    outside.until(exchanges);
    assert_eq!(want(&outside.call), 3, "what is read ahead comes with the next batch");
    // One is there, and the others are needed elsewhere.
    let Reply::Exchanged(mut exchanged) = outside.answer() else { panic!("{:?}", outside.call) };
    let taken_back = std::mem::take(&mut exchanged.more);
    outside.say(&Reply::Exchanged(exchanged));
    for grant in taken_back.into_iter().rev() {
        outside.shards.push_front(grant);
    }
    outside.until(loads);
    outside.until(exchanges);
    assert_eq!(want(&outside.call), 1);
    // Now there is enough again.
    outside.goes_well();
    outside.until(loads);
    outside.until(exchanges);
    assert_eq!(want(&outside.call), 3);
    outside.ends_with(32);
}

#[test]
fn a_batch_of_more_shards_than_one_call_may_ask_for_is_filled_by_several() {
    let batch = 2 * WANT_MAX + 1;
    let mut outside = Outside::new("allreduce", &vec![1; batch as usize], batch);
    let mut wanted = Vec::new();
    while !matches!(outside.call, Call::Load(_)) {
        if let Call::Exchange { want, .. } = &outside.call {
            wanted.push(*want);
        }
        outside.goes_well();
    }
    assert_eq!(wanted, [1, WANT_MAX, WANT_MAX]);
    outside.ends_with(u64::from(batch));
}

#[test]
fn the_parts_of_a_step_switch_when_the_replies_come() {
    let mut outside = Outside::new("ps-bsp", &[100], 4);
    outside.until(loads);
    outside.session.beat();
    calls_of_a_step(&mut outside);
    calls_of_a_step(&mut outside);
    let report = outside.session.beat().reports[1].report;
    let ms = Duration::from_millis;
    // Load; Pull and Push; Compute; Ready.
    assert_eq!(
        (report.data_wait, report.communicate, report.compute, report.barrier_wait),
        (ms(1), ms(2), ms(1), ms(1))
    );
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.until(loads);
    calls_of_a_step(&mut outside);
    calls_of_a_step(&mut outside);
    let report = outside.session.beat().reports[1].report;
    // Combine, Agree, Apply and Exchange.
    assert_eq!((report.data_wait, report.compute, report.communicate), (ms(1), ms(1), ms(4)));
    assert_eq!(report.barrier_wait, Duration::ZERO);
}

#[test]
fn a_drained_worker_ends_its_step_gives_its_leases_back_and_leaves() {
    for (sync, (steps, batches)) in MODES.into_iter().zip([(2, 2), (1, 1), (1, 1), (2, 4)]) {
        let mut outside = Outside::new(sync, &[100], 4);
        outside.peer = Some(PEER);
        outside.until(computes);
        outside.drain();
        outside.until(|call| matches!(call, Call::Release(_)));
        // All-reduce: the peers hear of it in the control values of the next step.
        assert_eq!((outside.worker.steps(), outside.trained()), (steps, 4 * batches), "{sync:?}");
        assert_eq!(outside.end(), End::Drained);
        assert_eq!(outside.shards.front().map(|grant| grant.resume_at), Some(4 * batches));
    }
}

#[test]
fn a_drained_worker_with_the_only_model_goes_on_until_another_has_it() {
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.until(computes);
    outside.drain();
    for _ in 0..5 {
        outside.until(|call| matches!(call, Call::Agree(_)));
        assert!(matches!(outside.call, Call::Agree(Lanes { reform: false, .. })), "{:?}", outside.call);
        outside.goes_well();
    }
    outside.peer = Some(PEER);
    outside.order(BeatReply { drain: true, reform: true, ..BeatReply::default() });
    outside.until(|call| matches!(call, Call::Enter(_)));
    let steps = outside.worker.steps();
    assert_eq!(outside.end(), End::Drained);
    // The first step in the new group is the proof that its members have the model.
    assert_eq!(outside.worker.steps(), steps + 1);
}

#[test]
fn when_all_of_a_group_are_drained_in_one_step_the_first_of_them_stays_with_the_model() {
    for first in [true, false] {
        let mut outside = Outside::new("allreduce", &[100], 4);
        (outside.peer, outside.peer_first) = (Some(PEER), !first);
        outside.until(computes);
        outside.drain();
        outside.until(|call| matches!(call, Call::Agree(Lanes { leaving: true, reform: true, .. })));
        outside.peer_leaves = true;
        outside.until(|call| matches!(call, Call::Join(_) | Call::Stop(_)));
        if !first {
            assert_eq!(outside.call, Call::Stop(End::Drained));
            continue;
        }
        let Call::Join(standing) = &outside.call else { panic!("{:?}", outside.call) };
        assert_eq!(standing.applied.as_ref().map(|result| result.step), Some(1));
        // Alone it goes on, and leaves when another worker has the model.
        outside.peer = None;
        let steps = outside.worker.steps();
        outside.until(|call| matches!(call, Call::Agree(Lanes { leaving: false, .. })));
        outside.goes_well();
        (outside.peer, outside.peer_leaves) = (Some(PEER), false);
        outside.order(BeatReply { drain: true, reform: true, ..BeatReply::default() });
        assert_eq!(outside.end(), End::Drained);
        assert!(outside.worker.steps() > steps, "{}", outside.worker.steps());
    }
}

#[test]
fn an_order_to_meet_is_followed_after_the_step_and_only_once() {
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.until(computes);
    outside.order(BeatReply { reform: true, ..BeatReply::default() });
    outside.until(|call| matches!(call, Call::Agree(_)));
    assert!(matches!(outside.call, Call::Agree(Lanes { reform: true, .. })), "{:?}", outside.call);
    outside.until(|call| matches!(call, Call::Join(_)));
    let Call::Join(standing) = &outside.call else { unreachable!() };
    assert_eq!(standing.applied.as_ref().map(|result| result.step), Some(0));
    assert_eq!(standing.prepared, None);
    assert!(outside.session.reform());
    outside.plan = plan(2, 2, 8);
    outside.until(|call| matches!(call, Call::Agree(_)));
    assert!(!outside.session.reform() && outside.worker.batch_size() == 8);
    assert!(
        matches!(outside.call, Call::Agree(Lanes { reform: false, samples: 8, .. })),
        "{:?}",
        outside.call
    );
    outside.ends_with(100);
}

#[test]
fn a_peer_that_asks_to_meet_is_followed_too_and_a_draining_one_waits_for_all() {
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.until(|call| matches!(call, Call::Agree(_)));
    outside.agree_with(Lanes { reform: true, samples: 3, ..Lanes::default() });
    outside.until(|call| matches!(call, Call::Join(_) | Call::Load(_)));
    assert!(matches!(outside.call, Call::Join(_)), "{:?}", outside.call);
}

#[test]
fn a_batch_whose_sum_never_came_is_read_again_in_the_same_order() {
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.until(combines);
    let batch = outside.batch.clone();
    outside.say(&Reply::Broken);
    let first = Standing { group: MembershipVersion(1), broken: true, ..Standing::default() };
    assert_eq!(outside.call, Call::Join(first), "nothing is in its model");
    outside.until(loads);
    assert_eq!(outside.call, Call::Load(batch));
    // The broken step leaves no trace in the times.
    outside.until(exchanges);
    outside.goes_well();
    let report = outside.session.beat().reports[0].report;
    assert_eq!((report.sequence, report.compute), (1, Duration::from_millis(1)));
}

#[test]
fn a_step_whose_result_is_here_is_committed_or_taken_back_as_the_new_group_decides() {
    for committed in [true, false] {
        let mut outside = Outside::new("allreduce", &[100], 4);
        outside.until(|call| matches!(call, Call::Agree(_)));
        let batch = outside.batch.clone();
        outside.say(&Reply::Broken);
        let Call::Join(standing) = &outside.call else { panic!("{:?}", outside.call) };
        assert_eq!((standing.group, &standing.applied, standing.broken), (MembershipVersion(1), &None, true));
        let prepared = standing.prepared.as_ref().unwrap();
        assert_eq!((prepared.step, &prepared.contributions[0].acks), (0, &batch.acks()));
        let joined = outside.joined(committed);
        outside.say(&Reply::Joined(Box::new(joined)));
        if committed {
            assert_eq!(outside.call, Call::Apply);
            outside.until(exchanges);
            let Call::Exchange { acks, .. } = &outside.call else { unreachable!() };
            assert_eq!(*acks, batch.acks());
        }
        outside.until(loads);
        let Call::Load(next) = &outside.call else { unreachable!() };
        assert_eq!(next.fragments[0].from, if committed { 4 } else { 0 });
        assert_eq!(outside.worker.steps(), u64::from(committed));
        outside.ends_with(100);
    }
}

#[test]
fn an_answer_that_names_a_group_it_knows_decides_nothing() {
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.until(|call| matches!(call, Call::Enter(_)));
    let Call::Enter(first) = outside.call.clone() else { unreachable!() };
    outside.until(|call| matches!(call, Call::Agree(_)));
    outside.say(&Reply::Broken);
    let question = outside.call.clone();
    outside.say(&Reply::Joined(first));
    assert_eq!(outside.call, question, "the step it has prepared is still to be decided");
    outside.ends_with(100);
}

#[test]
fn a_group_that_breaks_while_it_is_formed_is_formed_again() {
    let mut outside = Outside::new("allreduce", &[10], 4);
    outside.until(|call| matches!(call, Call::Enter(_)));
    outside.say(&Reply::Broken);
    let standing = Standing { group: MembershipVersion(1), broken: true, ..Standing::default() };
    assert_eq!(outside.call, Call::Join(standing), "whoever still waits in the group is to hear of it");
    outside.until(computes);
    outside.order(BeatReply { reform: true, ..BeatReply::default() });
    outside.until(|call| matches!(call, Call::Join(_)));
    assert!(
        matches!(outside.call, Call::Join(Standing { broken: false, .. })),
        "that was the group before: {:?}",
        outside.call
    );
    assert_eq!(outside.end(), End::EndOfData { trained: true });
}

#[test]
fn a_replacement_knows_the_step_before_the_next_but_had_no_part_in_it() {
    let mut outside = Outside::new("allreduce", &[10], 4);
    let joined = Joined { source: Some(Rank(0)), next_step: 7, ..outside.joined(false) };
    outside.say(&Reply::Joined(Box::new(joined)));
    outside.say(&Reply::Entered);
    outside.until(combines);
    outside.say(&Reply::Broken);
    let taken_over = StepResult { step: 6, contributions: [].into() };
    let group = MembershipVersion(1);
    let standing = Standing { group, applied: Some(taken_over), prepared: None, broken: true };
    assert_eq!(outside.call, Call::Join(standing));
}

#[test]
fn a_replacement_that_comes_when_all_is_done_has_no_model() {
    for (sync, trained) in MODES.into_iter().zip([false, true, true, false]) {
        let mut outside = Outside::new(sync, &[], 4);
        let joined = Joined { finished: true, ..outside.joined(false) };
        outside.say(&Reply::Joined(Box::new(joined)));
        assert_eq!(outside.call, Call::Stop(End::EndOfData { trained }));
    }
}

#[test]
fn leases_outlive_a_restart_of_the_service_and_their_offsets_are_presented() {
    let mut outside = Outside::new("allreduce", &[4, 6], 8);
    outside.until(|call| matches!(call, Call::Apply));
    outside.until(exchanges);
    let Call::Exchange { request, .. } = outside.call else { unreachable!() };
    outside.say(&Reply::ServiceRestarted);
    let Call::Register(held) = &outside.call else { panic!("{:?}", outside.call) };
    assert_eq!(held.iter().map(|held| held.offset).collect::<Vec<_>>(), [4, 4], "one goes on, one is done");
    outside.adopts(0);
    // The acks were said with the registration; what is left of the question is the wish for more.
    let again = Call::Exchange { request, acks: vec![].into(), want: 1, wait: Duration::ZERO };
    assert_eq!(outside.call, again);
    outside.ends_with(10);
}

/// The master acknowledges a step in one place, and does so in vain when the service has forgotten the leases.
#[test]
fn a_shard_that_is_done_is_presented_though_the_master_acknowledged_it() {
    let mut outside = Outside::new("ps-bsp", &[3, 6], 4);
    outside.until(|call| matches!(call, Call::Ready { .. }));
    outside.until(exchanges);
    outside.say(&Reply::ServiceRestarted);
    let Call::Register(held) = &outside.call else { panic!("{:?}", outside.call) };
    assert_eq!(held.iter().map(|held| held.offset).collect::<Vec<_>>(), [5, 3], "one goes on, one is done");
    outside.adopts(0);
    outside.ends_with(9);
}

#[test]
fn a_lease_that_is_not_adopted_is_dropped_and_trained_from_where_it_stood() {
    let mut outside = Outside::new("ps-asp", &[40], 8);
    outside.until(|call| matches!(call, Call::Push { .. }));
    outside.until(exchanges);
    outside.restart_service(1);
    assert_eq!(outside.worker.leases().leases(), 0);
    outside.ends_with(40);
}

#[test]
fn a_service_that_does_not_stay_is_given_up() {
    let mut outside = Outside::new("ps-asp", &[40], 8);
    outside.until(exchanges);
    for _ in 0..8 {
        outside.restart_service(0);
    }
    outside.say(&Reply::ServiceRestarted);
    let Call::Stop(End::Failed(why)) = &outside.call else { panic!("{:?}", outside.call) };
    assert!(why.contains("9 times"), "{why}");
}

#[test]
fn a_sample_that_cannot_be_read_faults_its_lease_and_the_others_are_read_again() {
    for sync in MODES {
        let mut outside = Outside::new(sync, &[6, 20], 10);
        outside.until(loads);
        let batch = outside.batch.clone();
        let sample = batch.samples().nth(7).unwrap();
        outside.say(&Reply::Unreadable { sample, why: "torn".to_owned() });
        let at = Ack { lease: batch.fragments[1].grant.lease, offset: 0 };
        assert_eq!(outside.call, Call::Fail { at, why: "torn".to_owned() });
        outside.say(&Reply::Released);
        assert_eq!(outside.call, Call::Load(Batch::default()), "the step goes on without a batch");
        outside.say(&Reply::Loaded);
        outside.until(loads);
        assert_eq!(outside.batch.fragments[0], batch.fragments[0]);
        outside.ends_with(26);
    }
}

#[test]
fn a_lease_that_ended_without_the_worker_is_dropped() {
    let mut outside = Outside::new("allreduce", &[40], 8);
    outside.until(|call| matches!(call, Call::Apply));
    outside.until(exchanges);
    outside.say(&Reply::Exchanged(Exchanged {
        outcomes: vec![AckOutcome::StaleLease].into(),
        ..Exchanged::default()
    }));
    assert_eq!(outside.worker.leases().leases(), 0);
}

#[test]
fn a_recalled_lease_is_given_back_before_anything_else() {
    // Two more of the first one's length would do; they are longer, and one of them is not begun.
    let mut outside = Outside::new("allreduce", &[2, 6, 6], 5);
    outside.until(|call| matches!(call, Call::Apply));
    outside.until(exchanges);
    let recalled = outside.leases();
    outside.say(&Reply::Exchanged(Exchanged {
        outcomes: vec![AckOutcome::Accepted; 2].into(),
        recalled: recalled.clone(),
        ..Exchanged::default()
    }));
    let Call::Release(given_back) = &outside.call else { panic!("{:?}", outside.call) };
    assert_eq!(*given_back, [Ack { lease: recalled[2], offset: 0 }]);
    outside.say(&Reply::Released);
    assert!(matches!(outside.call, Call::Load(_) | Call::Exchange { .. }), "{:?}", outside.call);
}

#[test]
fn offsets_of_a_lease_that_goes_back_are_told_to_a_service_that_was_restarted_meanwhile() {
    // The worker leaves with half a shard trained.
    let mut outside = Outside::new("ps-bsp", &[8], 4);
    outside.peer = Some(PEER);
    outside.until(computes);
    outside.drain();
    outside.until(|call| matches!(call, Call::Release(_)));
    let Call::Release(given_back) = outside.call.clone() else { unreachable!() };
    assert_eq!(given_back.iter().map(|ack| ack.offset).collect::<Vec<_>>(), [4]);
    let stale = [AckOutcome::StaleLease];
    assert_eq!(Reply::returned(&[AckOutcome::Accepted]), Reply::Released);
    for _ in 0..2 {
        outside.say(&Reply::returned(&stale));
        let Call::Register(held) = outside.call.clone() else { panic!("{:?}", outside.call) };
        assert_eq!(held.iter().map(|held| held.offset).collect::<Vec<_>>(), [4]);
        // The service knows now, and has lent the shard to its holder again: it goes back under its new name.
        let registered = outside.adopt(0);
        let Reply::Registered(Registered { adopted, .. }) = &registered else { unreachable!() };
        let lease = adopted[0].expect("the shard waits for its holder").lease;
        assert_ne!(lease, held[0].lease);
        outside.say(&registered);
        assert_eq!(outside.call, Call::Release(vec![Ack { lease, offset: 4 }]));
    }
    outside.say(&Reply::Released);
    assert_eq!(outside.call, Call::Stop(End::Drained));
}

#[test]
fn a_plan_is_in_force_from_the_step_in_which_all_hold_it() {
    let mut outside = Outside::new("allreduce", &[1000], 4);
    outside.until(computes);
    outside.order(BeatReply { plan: Some(plan(2, 1, 16)), ..BeatReply::default() });
    let mut sizes = Vec::new();
    for peer in [1, 1, 2, 2] {
        outside.until(|call| matches!(call, Call::Agree(_)));
        let mine =
            outside.agree_with(Lanes { plan_ready: PlanVersion(peer), samples: 1, ..Lanes::default() });
        sizes.push(mine.samples);
    }
    assert_eq!(sizes, [4, 4, 4, 16], "the peer held it in the third step");
    outside.until(|call| matches!(call, Call::Agree(_)));
    let beat = outside.session.beat();
    assert_eq!(beat.plan_applied.0, PlanVersion(2));
    let plans: Vec<u64> = beat.reports.iter().map(|r| r.report.plan.0).collect();
    assert_eq!(plans, [1, 1, 1, 2]);
}

#[test]
fn at_its_own_pace_a_plan_is_in_force_with_the_next_batch() {
    let mut outside = Outside::new("ps-asp", &[1000], 4);
    outside.until(computes);
    outside.order(BeatReply { plan: Some(plan(2, 9, 16)), ..BeatReply::default() });
    outside.until(loads);
    assert_eq!(outside.batch.len(), 16);
}

#[test]
fn driver_begins_plan_once_and_again_after_worker_joined_again() {
    let mut outside = Outside::new("ps-asp", &[1000], 4);
    let begins = |outside: &mut Outside| {
        let call = outside.call.clone();
        let begin = outside.worker.begins_plan(&call);
        begin.map(|begin| (begin.version.0, begin.actions, begin.batch_size))
    };
    assert_eq!(begins(&mut outside), None, "nothing is loaded to join");
    outside.until(loads);
    assert_eq!(begins(&mut outside), Some((1, None, 4)));
    assert_eq!(begins(&mut outside), None);
    let actions: BTreeMap<_, _> = [("ACT".to_owned(), "1".to_owned())].into_iter().collect();
    let next = plan(2, 9, 16).with_actions(actions.clone());
    outside.order(BeatReply { plan: Some(next), ..BeatReply::default() });
    outside.until(computes);
    assert_eq!(begins(&mut outside), None, "the plan is in force, and nothing is loaded under it");
    outside.until(loads);
    assert_eq!(begins(&mut outside), Some((2, Some(Arc::new(actions)), 16)));
    // A server is gone: the worker goes on with others, which do not know the plan.
    outside.until(|call| matches!(call, Call::Pull));
    outside.say(&Reply::Broken);
    assert!(matches!(outside.call, Call::Join(_)), "{:?}", outside.call);
    assert_eq!(begins(&mut outside), None);
    outside.until(loads);
    assert_eq!(begins(&mut outside).map(|(version, ..)| version), Some(2));
}

#[test]
fn an_idle_step_waits_a_little_for_a_shard_to_come_back() {
    let wait = |outside: &Outside| match outside.call {
        Call::Exchange { wait, .. } => wait,
        ref call => panic!("{call:?}"),
    };
    let nothing = || {
        let fetched = Some(FetchOutcome::Wait { retry_after: Duration::ZERO });
        Reply::Exchanged(Exchanged { fetched, ..Exchanged::default() })
    };
    for sync in MODES {
        let mut outside = Outside::new(sync, &[100], 4);
        outside.until(exchanges);
        let first = wait(&outside);
        outside.say(&nothing());
        outside.until(exchanges);
        let expected = match sync {
            "ps-asp" => [PATIENCE_ALONE, PATIENCE_ALONE],
            _ => [Duration::ZERO, PATIENCE],
        };
        assert_eq!([first, wait(&outside)], expected, "{sync:?}");
        let Call::Exchange { request, .. } = outside.call else { unreachable!() };
        assert_eq!(request, RequestId(1), "a question that was not answered with shards is the same one");
    }
}

#[test]
fn without_a_batch_size_the_worker_sleeps_and_does_not_spin() {
    let mut outside = Outside::new("ps-asp", &[100], 0);
    outside.until(|call| matches!(call, Call::Sleep(_)));
    assert_eq!(outside.call, Call::Sleep(PATIENCE));
    outside.order(BeatReply { plan: Some(plan(2, 1, 5)), ..BeatReply::default() });
    outside.ends_with(100);
}

#[test]
fn a_commit_without_the_workers_own_push_fails_it() {
    let mut outside = Outside::new("ps-bsp", &[100], 4);
    outside.until(|call| matches!(call, Call::Ready { .. }));
    outside.say(&committed_without(0, 0, 3));
    let Call::Stop(End::Failed(why)) = &outside.call else { panic!("{:?}", outside.call) };
    assert!(why.contains("step 0 was committed without this worker's push"), "{why}");
}

#[test]
fn a_reply_that_answers_another_call_stops_the_loop_and_is_named() {
    let mut outside = Outside::new("allreduce", &[100], 4);
    outside.say(&Reply::Pulled);
    let Call::Stop(End::Failed(why)) = &outside.call else { panic!("{:?}", outside.call) };
    assert!(why.contains("Pulled") && why.contains("Joining"), "{why}");
    outside.say(&Reply::Entered);
    assert!(matches!(outside.call, Call::Stop(End::Failed(_))), "it stays so");

    let mut outside = Outside::new("ps-asp", &[100], 4);
    outside.until(exchanges);
    outside.say(&Reply::Released);
    assert!(matches!(outside.call, Call::Stop(End::Failed(_))), "{:?}", outside.call);
}

/// Until the worker asks to join: a group that breaks when no member has the result, and then another.
#[test]
fn steps_since_the_last_average_outlive_a_group_that_breaks() {
    let mut outside = Outside::new("local-sgd=3", &[100], 4);
    outside.until(combines);
    let Call::Combine { samples: 12, .. } = outside.call else { panic!("{:?}", outside.call) };
    outside.say(&Reply::Broken);
    outside.until(|call| matches!(call, Call::Load(_) | Call::Combine { .. }));
    let Call::Combine { samples: 12, step: 0, .. } = outside.call else { panic!("{:?}", outside.call) };
    outside.until(exchanges);
    assert_eq!(outside.trained(), 12, "nothing was computed twice");
    outside.ends_with(100);
}

#[test]
fn a_worker_without_samples_goes_to_the_average_at_once() {
    let mut outside = Outside::new("local-sgd=8", &[6], 4);
    let mut brought = Vec::new();
    peers_of_steps(&mut outside, |outside, _| {
        let Call::Combine { samples, .. } = outside.call else { unreachable!() };
        brought.push(samples);
    });
    assert_eq!(brought, [6, 0], "what it has, and then the word that nothing is left");
}

#[test]
fn a_sample_that_cannot_be_read_waits_for_the_average_of_samples_before_it() {
    let mut outside = Outside::new("local-sgd=8", &[20], 4);
    outside.until(|call| matches!(call, Call::Advance));
    outside.until(loads);
    let (batch, sample) = (outside.batch.clone(), outside.batch.samples().next().unwrap());
    let torn = Reply::Unreadable { sample, why: "torn".to_owned() };
    outside.say(&torn);
    let Call::Combine { samples: 4, .. } = outside.call else { panic!("{:?}", outside.call) };
    outside.until(loads);
    assert_eq!(outside.batch, batch, "it is read again");
    outside.say(&torn);
    let at = Ack { lease: batch.fragments[0].grant.lease, offset: 4 };
    assert_eq!(outside.call, Call::Fail { at, why: "torn".to_owned() });
}

#[test]
fn a_plan_changes_the_steps_between_averages_for_the_next_round() {
    let mut outside = Outside::new("local-sgd=2", &[100], 4);
    outside.until(|call| matches!(call, Call::Advance));
    outside.plan = plan(2, outside.membership, 4).with_local_steps(Some(3));
    outside.order(BeatReply { plan: Some(outside.plan.clone()), ..BeatReply::default() });
    let mut rounds = Vec::new();
    for _ in 0..4 {
        let mut steps = 0;
        while !matches!(outside.call, Call::Combine { .. }) {
            steps += u64::from(matches!(outside.call, Call::Advance));
            outside.goes_well();
        }
        rounds.push(steps);
        outside.until(|call| matches!(call, Call::Apply));
    }
    assert_eq!(
        rounds,
        [2, 2, 3, 3],
        "heard of in the first round, held in the second, in force in the third"
    );
}

#[test]
fn a_round_that_lost_a_lease_is_undone_and_its_other_samples_are_read_again() {
    let mut outside = Outside::new("local-sgd=4", &[4, 6, 20], 4);
    outside.until(|call| matches!(call, Call::Advance));
    outside.until(exchanges);
    outside.restart_service(1);
    outside.until(|call| matches!(call, Call::Revert | Call::Combine { .. }));
    assert_eq!(outside.call, Call::Revert);
    outside.ends_with(30);
}

/// The batch of which the gradient is computed beside an average was loaded before the worker sees that the steps before it are
/// undone: the model has nothing of it either.
#[test]
fn samples_loaded_beside_undone_steps_are_read_again() {
    let mut outside = Outside::new("ad-psgd=overlap", &[4, 8, 20], 4);
    outside.until(|call| matches!(call, Call::Advance));
    outside.until(exchanges);
    outside.restart_service(1);
    outside.until(|call| matches!(call, Call::Revert | Call::Ready { .. }));
    assert_eq!(outside.call, Call::Revert);
    let loaded = |outside: &Outside| {
        let fragment = outside.batch.fragments[0];
        (fragment.grant.key.index, fragment.from, fragment.to)
    };
    let before = loaded(&outside);
    assert_eq!(before, (1, 0, 4));
    outside.say(&Reply::Reverted);
    outside.until(|call| matches!(call, Call::Load(_) | Call::LoadPiece(..)));
    assert_eq!(loaded(&outside), before);
}

/// The answer that the step that the worker asked for was committed without it, and this one is the newest.
fn committed_without(asked: u64, step: u64, samples: u64) -> Reply {
    let commit = StepCommit { step, samples, asked, everyone: true, ..StepCommit::default() };
    Reply::Committed(Box::new(commit))
}

fn too_late(step: u64) -> Reply {
    committed_without(step, step + 2, 8)
}

#[test]
fn samples_that_came_too_late_are_taken_again_three_times_and_then_given_back_for_another_worker() {
    let mut outside = Outside::new("ps-backup=1", &[8, 100], 4);
    for again in 0..4 {
        outside.until(|call| matches!(call, Call::Ready { .. }));
        let Call::Ready { step, readiness } = outside.call.clone() else { unreachable!() };
        assert_eq!((step, readiness.samples), (3 * again, 4), "it goes on at the open step");
        assert_eq!(readiness.acks[0].offset, 4, "the same samples");
        outside.say(&too_late(step));
    }
    let Call::Release(acks) = &outside.call else { panic!("{:?}", outside.call) };
    assert!(acks.iter().all(|ack| ack.offset == 0), "nothing of it is done: {acks:?}");
    // A shard has two batches: within three steps another worker asks for one.
    outside.say(&Reply::Released);
    for _ in 0..3 {
        outside.until(|call| matches!(call, Call::Exchange { .. } | Call::Ready { .. }));
        let Call::Ready { readiness, .. } = &outside.call else { panic!("{:?}", outside.call) };
        assert_eq!(readiness.samples, 0);
        outside.goes_well();
    }
    outside.until(exchanges);
}

#[test]
fn a_push_that_was_counted_ends_the_row_of_those_that_came_too_late() {
    let mut outside = Outside::new("ps-backup=1", &[100], 4);
    for turn in 0..12 {
        outside.until(|call| matches!(call, Call::Ready { .. } | Call::Release(_)));
        let Call::Ready { step, .. } = outside.call.clone() else {
            panic!("after {turn} turns: {:?}", outside.call)
        };
        let reply = if turn % 4 == 3 { outside.answer() } else { too_late(step) };
        outside.say(&reply);
    }
}

/// The peers of each step until the worker stops, from now on.
fn peers_of_steps(outside: &mut Outside, mut each: impl FnMut(&mut Outside, usize)) -> Vec<Peers> {
    let mut peers = Vec::new();
    while !matches!(outside.call, Call::Stop(_)) {
        if let Call::Combine { peers: with, .. } = &outside.call {
            peers.push(with.clone());
            each(outside, peers.len());
        }
        outside.goes_well();
    }
    peers
}

fn beside_another(sync: &'static str, samples: u64) -> Outside {
    let mut outside = Outside::new(sync, &[samples], 4);
    outside.peer = Some(PEER);
    outside
}

#[test]
fn models_are_averaged_with_a_few_and_with_all_at_the_end() {
    let mut outside = beside_another("d-psgd", 12);
    let few = Peers::Few(vec![Rank(0), Rank(1)]);
    let peers = peers_of_steps(&mut outside, |_, _| {});
    assert_eq!(outside.call, Call::Stop(End::EndOfData { trained: true }));
    assert_eq!(outside.trained(), 12);
    // Three steps, one that finds that nothing is left, and one that makes the mean of all.
    assert_eq!(peers, [few.clone(), few.clone(), few.clone(), few, Peers::All]);
}

#[test]
fn a_checkpoint_is_taken_of_the_mean_of_all_models() {
    let mut outside = beside_another("d-psgd", 24);
    outside.until(combines);
    outside.order(BeatReply { checkpoint: Some(CheckpointId(1)), ..BeatReply::default() });
    let mut combined = Vec::new();
    while !matches!(outside.call, Call::Rest(CheckpointId(1))) {
        if let Call::Combine { peers, .. } = &outside.call {
            combined.push(peers.clone());
        }
        outside.goes_well();
    }
    assert!(matches!(&combined[..], [Peers::Few(_), Peers::All]), "{combined:?}");
    outside.until(combines);
    assert!(matches!(outside.call, Call::Combine { peers: Peers::Few(_), .. }), "{:?}", outside.call);
    assert_eq!(outside.end(), End::EndOfData { trained: true });
}

#[test]
fn a_peer_that_needs_the_mean_of_all_models_gets_it_in_the_next_step() {
    let mut outside = beside_another("ripples-static=2", 40);
    let peers = peers_of_steps(&mut outside, |outside, step| outside.peer_keeps = step == 3);
    let whole: Vec<bool> = peers.iter().take(6).map(|peers| *peers == Peers::All).collect();
    assert_eq!(whole, [false, false, false, true, false, false]);
}

#[test]
fn a_worker_that_leaves_has_averaged_with_all_before() {
    let mut outside = beside_another("d-psgd", 40);
    outside.until(loads);
    outside.drain();
    let peers = peers_of_steps(&mut outside, |_, _| {});
    assert_eq!(outside.call, Call::Stop(End::Drained));
    assert!(matches!(&peers[..], [.., Peers::Few(_), Peers::All]), "{peers:?}");
}

/// Another one that has heard of the end has the mean of all models.
#[test]
fn a_worker_whose_last_average_broke_does_not_take_its_own_model_for_that_of_the_job() {
    let mut outside = beside_another("d-psgd", 4);
    outside.until(|call| matches!(call, Call::Combine { peers: Peers::All, .. }));
    outside.until(|call| matches!(call, Call::Agree(_)));
    outside.say(&Reply::Broken);
    let finished = Joined { finished: true, ..outside.joined(false) };
    outside.say(&Reply::Joined(Box::new(finished)));
    assert_eq!(outside.end(), End::EndOfData { trained: false });
}

/// A plan of batches of 7 samples in 3 micro-batches.
fn in_pieces(version: u64, membership: u64) -> antdt_core::Plan {
    plan(version, membership, 7).with_accumulation([(outside::me().node, 3)].into_iter().collect())
}

#[test]
fn a_batch_in_micro_batches_is_one_step_and_one_report_in_every_mode() {
    for sync in ["allreduce", "ps-bsp", "ps-backup=1", "local-sgd=1"] {
        let mut outside = Outside::new(sync, &[7, 9, 15], 7);
        outside.plan = in_pieces(1, 1);
        outside.until(|call| matches!(call, Call::LoadPiece(..)));
        let calls = calls_of_a_step(&mut outside);
        let count = |name: &str| calls.iter().filter(|call| *call == name).count();
        assert_eq!((count("LoadPiece"), count("Compute"), count("Load")), (3, 3, 0), "{sync}: {calls:?}");
        let pulls = usize::from(sync.starts_with("ps"));
        assert_eq!((count("Pull"), count("Push")), (3 * pulls, pulls), "{sync}: {calls:?}");
        assert_eq!(outside.worker.steps(), 1, "one step");
        let reports = outside.session.beat().reports;
        let [only] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((only.report.samples, only.report.micro_batches, only.loss_sum), (7, 3, 1.5));
        assert_eq!(outside.end(), End::EndOfData { trained: true });
        // Outside checks that what is combined is what was computed.
        assert_eq!(outside.trained(), 31, "{sync}");
        let last = outside.session.beat().reports.iter().rev().find(|it| it.report.samples > 0).cloned();
        let last = last.unwrap().report;
        assert_eq!((last.samples, last.micro_batches), (3, 1), "no larger ones, and no more than it takes");
    }
}

#[test]
fn a_fault_or_a_broken_group_in_the_middle_of_a_batch_takes_all_its_micro_batches_back() {
    for sync in ["allreduce", "ps-bsp", "local-sgd=2"] {
        let mut outside = Outside::new(sync, &[4, 20], 7);
        outside.plan = in_pieces(1, 1);
        outside.until(|call| matches!(call, Call::LoadPiece(_, micro) if micro.index == 2));
        let Some((batch, micro)) = outside.call.loads() else { unreachable!() };
        let (batch, sample) = (batch.clone(), batch.piece(micro).samples().next().unwrap());
        outside.say(&Reply::Unreadable { sample, why: "torn".to_owned() });
        let at = Ack { lease: batch.fragments[1].grant.lease, offset: 0 };
        assert_eq!(outside.call, Call::Fail { at, why: "torn".to_owned() }, "{sync}");
        outside.say(&Reply::Released);
        assert_eq!(outside.call, Call::Load(Batch::default()), "the step goes on without a batch");
        outside.until(|call| matches!(call, Call::LoadPiece(..)));
        assert_eq!(outside.call.loads().map(|(batch, _)| batch.fragments[0]), Some(batch.fragments[0]));
        if sync == "ps-bsp" {
            // A server is gone between two micro-batches.
            outside.until(|call| matches!(call, Call::LoadPiece(_, micro) if micro.index == 1));
            outside.until(|call| matches!(call, Call::Pull));
            outside.say(&Reply::Broken);
            assert!(matches!(outside.call, Call::Join(_)), "{:?}", outside.call);
        }
        outside.ends_with(24);
    }
}

/// The gate's word on this step to a worker that waits at it.
fn passage(outside: &mut Outside, counted: bool) {
    let (Call::Ready { step, .. } | Call::ReadyBeside { step, .. }) = outside.call else {
        panic!("{:?}", outside.call)
    };
    outside.late |= !counted;
    let word = StepCommit { step, asked: step, counted, ..StepCommit::default() };
    outside.say(&Reply::Committed(Box::new(word)));
}

const fn waits(call: &Call) -> bool {
    matches!(call, Call::Ready { .. } | Call::ReadyBeside { .. })
}

#[test]
fn a_late_gradient_is_in_no_step_and_its_worker_in_every_one() {
    let mut outside = Outside::new("allreduce=1", &[8, 100], 4);
    outside.until(|call| matches!(call, Call::ReadyBeside { .. }));
    let first = outside.batch.clone();
    for step in 0..3 {
        let Call::ReadyBeside { step: asked, readiness } = &outside.call else {
            panic!("{:?}", outside.call)
        };
        assert_eq!((*asked, readiness.samples, readiness.acks.len()), (step, 4, 0), "it promises a gradient");
        passage(&mut outside, false);
        let Call::Combine { samples, .. } = outside.call else { panic!("{:?}", outside.call) };
        assert_eq!(samples, 0);
        outside.until(|call| matches!(call, Call::ReadyBeside { .. }));
    }
    assert_eq!((outside.trained(), outside.session.beat().reports.len()), (0, 0));
    // It is there in the middle of step 3, of the model of step 0: its samples are taken again.
    let took = Duration::from_millis(40);
    outside.say(&Reply::ComputedBeside { samples: 4, loss_sum: 0.5, took });
    let reports = outside.session.beat().reports;
    let [only] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((only.report.iteration.0, only.report.samples), (0, 4));
    assert!(only.report.compute > Duration::from_millis(10), "all of it, not that of one step: {only:?}");
    assert_eq!(outside.call, Call::Load(first));
    outside.until(|call| matches!(call, Call::Ready { .. }));
    let Call::Ready { step, readiness } = &outside.call else { unreachable!() };
    assert_eq!((*step, readiness.samples, readiness.acks[0].offset), (3, 4, 4));
    passage(&mut outside, true);
    outside.until(|call| matches!(call, Call::ReadyBeside { .. }));
    assert_eq!(outside.trained(), 4);
    outside.ends_with(108);
}

#[test]
fn samples_whose_gradient_was_late_four_times_in_a_row_are_given_back() {
    let mut outside = Outside::new("allreduce=1", &[8, 100], 4);
    for _ in 0..4 {
        // It is there just after the step has begun.
        outside.until(|call| matches!(call, Call::Ready { .. }));
        passage(&mut outside, false);
        outside.until(|call| waits(call) || matches!(call, Call::Release(_)));
    }
    let Call::Release(acks) = &outside.call else { panic!("{:?}", outside.call) };
    assert!(acks.iter().all(|ack| ack.offset == 0), "nothing of it is done: {acks:?}");
    // A shard has two batches: within three steps another worker asks for one.
    outside.say(&Reply::Released);
    for _ in 0..3 {
        outside.until(|call| matches!(call, Call::Exchange { .. } | Call::Ready { .. }));
        let Call::Ready { readiness, .. } = &outside.call else { panic!("{:?}", outside.call) };
        assert_eq!(readiness.samples, 0);
        passage(&mut outside, false);
    }
    outside.until(exchanges);
    outside.ends_with(108);
}

#[test]
fn a_group_that_breaks_at_the_gate_takes_the_batch_back() {
    for is_computed in [false, true] {
        let mut outside = Outside::new("allreduce=1", &[20], 4);
        outside.until(|call| matches!(call, Call::ReadyBeside { .. }));
        if is_computed {
            outside.until(|call| matches!(call, Call::Ready { .. }));
        }
        let first = outside.batch.clone();
        outside.say(&Reply::Broken);
        assert!(matches!(outside.call, Call::Join(_)), "{:?}", outside.call);
        outside.until(|call| waits(call) || matches!(call, Call::Load(_)));
        assert_eq!(
            waits(&outside.call),
            !is_computed,
            "it waits for what it computes beside: {:?}",
            outside.call
        );
        outside.until(loads);
        assert_eq!(outside.call, Call::Load(first));
        outside.ends_with(20);
    }
}

#[test]
fn a_plan_without_backups_waits_for_the_gradient_of_before() {
    let mut outside = Outside::new("allreduce", &[60], 4);
    outside.plan = plan(1, 1, 4).with_backups(Some(1));
    outside.until(|call| matches!(call, Call::ReadyBeside { .. }));
    let none = plan(2, outside.membership, 6).with_backups(Some(0));
    outside.order(BeatReply { plan: Some(none), ..BeatReply::default() });
    passage(&mut outside, false);
    // The step that shows that all hold the plan, and the first under it.
    outside.until(|call| matches!(call, Call::Agree(_)));
    outside.until(|call| waits(call) || matches!(call, Call::Finish));
    if waits(&outside.call) {
        passage(&mut outside, false);
        outside.until(|call| matches!(call, Call::Finish));
    }
    outside.until(loads);
    assert_eq!(outside.batch.len(), 6);
    let calls = calls_of_a_step(&mut outside);
    assert!(!calls.iter().any(|call| call.starts_with("Ready")), "{calls:?}");
    outside.ends_with(60);
}
