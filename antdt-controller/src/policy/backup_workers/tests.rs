use antdt_core::{Capabilities, PlanVersion, Seed};

use super::*;
use crate::testing::{check_policy, quiet_view};

const START: JobTime = JobTime(1_000_000_000);

fn view(us: &[u64]) -> ClusterView {
    quiet_view(Capabilities::SERVERS_IN_STEP, us)
}

fn decide(policy: &mut BackupWorkers, now: JobTime, view: &ClusterView) -> Decision {
    policy.decide(now, view, &RestartBudget::default())
}

#[test]
fn a_slow_worker_is_not_waited_for_and_is_again_once_it_is_as_fast_as_the_others() {
    let mut policy = BackupWorkers::default();
    let slow = view(&[1000, 1000, 1000, 4000]);
    let decision = decide(&mut policy, START, &slow);
    assert_eq!(decision.backups, Some(1));
    let [Reason::Backups { backups: 1, before: 0, gain_percent }] = decision.reasons[..] else {
        panic!("{decision:?}")
    };
    // Three quarters of the samples in a quarter of the time.
    assert!((60..=67).contains(&gain_percent), "{gain_percent}");

    let mut policy = BackupWorkers::default();
    let mut cured = view(&[1000; 4]);
    cured.mode = cured.mode.with_backups(1);
    assert_eq!(decide(&mut policy, START, &cured).backups, Some(0));
}

#[test]
fn workers_that_are_alike_are_all_waited_for() {
    let decision = decide(&mut BackupWorkers::default(), START, &view(&[1000, 1010, 990, 1000]));
    assert_eq!(decision, Decision::nothing(Reason::Balanced));
}

#[test]
fn no_more_workers_are_left_out_than_the_share_that_may_be() {
    let two = view(&[1000, 1000, 1000, 1000, 1000, 1000, 4000, 4000]);
    assert_eq!(decide(&mut BackupWorkers::default(), START, &two).backups, Some(2));
    let config = BackupWorkersConfig { backups_max_percent: 10, ..BackupWorkersConfig::default() };
    let decision = decide(&mut BackupWorkers::new(config), START, &two);
    assert_eq!(decision.backups, None, "one of two slow ones gains nothing: {decision:?}");
    let pair = view(&[1000, 9000]);
    assert_eq!(decide(&mut BackupWorkers::default(), START, &pair).backups, Some(1), "one is left");
    assert_eq!(decide(&mut BackupWorkers::default(), START, &view(&[1000])).backups, None);
}

#[test]
fn a_change_that_trains_fewer_samples_per_second_is_taken_back_and_left_alone_for_longer_each_time() {
    let mut policy = BackupWorkers::default();
    let mut now = START;
    for round in 0..3_u32 {
        let mut slow = view(&[1000, 1000, 1000, 4000]);
        slow.progress.samples_per_second = 1000.0;
        assert_eq!(decide(&mut policy, now, &slow).backups, Some(1), "round {round}");
        policy.on_outcome(now, &ActionOutcome::PlanApplied { version: PlanVersion(2) });
        slow.mode = slow.mode.with_backups(1);
        slow.progress.samples_per_second = 900.0;
        assert_eq!(decide(&mut policy, now, &slow), Decision::nothing(Reason::TooSoon));
        now = now + Duration::from_secs(60);
        assert_eq!(decide(&mut policy, now, &slow).backups, Some(0));
        slow.mode = slow.mode.with_backups(0);
        let pause = PAUSE * (1 << round);
        assert_eq!(decide(&mut policy, now + pause - Duration::from_secs(1), &slow).backups, None);
        now = now + pause;
    }
}

#[test]
fn a_change_that_helps_stays() {
    let mut policy = BackupWorkers::default();
    let mut slow = view(&[1000, 1000, 1000, 4000]);
    slow.progress.samples_per_second = 1000.0;
    assert_eq!(decide(&mut policy, START, &slow).backups, Some(1));
    policy.on_outcome(START, &ActionOutcome::PlanApplied { version: PlanVersion(2) });
    slow.mode = slow.mode.with_backups(1);
    slow.progress.samples_per_second = 2000.0;
    let later = START + Duration::from_secs(60);
    assert_eq!(decide(&mut policy, later, &slow), Decision::nothing(Reason::Balanced));
}

#[test]
fn a_mode_whose_steps_need_all_workers_is_left_alone() {
    for mode in Capabilities::COMMON.into_iter().filter(|mode| !mode.takes_backups()) {
        let decision = decide(&mut BackupWorkers::default(), START, &quiet_view(mode, &[1000, 1000, 9000]));
        assert!(decision.backups.is_none() && !decision.reasons.is_empty(), "{mode:?}: {decision:?}");
    }
}

#[test]
fn it_passes_the_suite() {
    check_policy(&BackupWorkers::default(), 5_000, Seed(3)).unwrap();
}
