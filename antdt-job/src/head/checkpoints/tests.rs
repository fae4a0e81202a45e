use antdt_core::{Incarnation, NodeId};

use super::*;

fn worker(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn at(seconds: u64) -> JobTime {
    JobTime::ZERO + Duration::from_secs(seconds)
}

fn checkpoints(every: CheckpointEvery) -> Checkpoints {
    Checkpoints::new(CheckpointSchedule { every, first: CheckpointId(4), epochs: 2 })
}

fn keep(index: u32, checkpoint: CheckpointId) -> Rested {
    Rested { holder: worker(index), checkpoint, keep: true }
}

fn go_on(index: u32, checkpoint: CheckpointId) -> Rested {
    Rested { holder: worker(index), checkpoint, keep: false }
}

#[test]
fn each_schedule_is_due_by_its_own_measure_and_not_while_an_attempt_is_under_way() {
    let mut timed = checkpoints(CheckpointEvery::Time(Duration::from_secs(60)));
    timed.started(at(10), 0, 200);
    assert_eq!((timed.is_due(at(69), 0, 200), timed.is_due(at(70), 0, 200)), (false, true));
    timed.begin(at(70), Some(worker(0)), 0, 200);
    assert!(!timed.is_due(at(200), 0, 200));
    assert_eq!(timed.ended(at(100), CheckpointId(4), true), []);
    assert_eq!((timed.is_due(at(129), 0, 200), timed.is_due(at(130), 0, 200)), (false, true));

    let mut stepped = checkpoints(CheckpointEvery::Steps(3));
    stepped.started(at(0), 0, 200);
    for (step, due) in [(0, false), (1, false), (2, true)] {
        stepped.stepped(step);
        assert_eq!(stepped.is_due(at(1), 0, 200), due);
    }
    // Two epochs of 100 samples; the job went on from a checkpoint in the second one.
    let mut by_epoch = checkpoints(CheckpointEvery::Epoch);
    by_epoch.started(at(0), 0, 200);
    assert_eq!([99, 100, 150].map(|done| by_epoch.is_due(at(1), done, 200)), [false, true, true]);
    by_epoch.started(at(0), 120, 200);
    assert_eq!([150, 200].map(|done| by_epoch.is_due(at(1), done, 200)), [false, true]);
    assert!(!checkpoints(CheckpointEvery::End).is_due(at(1_000_000), 200, 200));
}

#[test]
fn one_keeper_stands_still_alone_and_gets_the_same_answer_again() {
    let mut one = checkpoints(CheckpointEvery::Steps(1));
    let id = one.begin(at(0), Some(worker(1)), 0, 0);
    assert_eq!((id, one.order(worker(0)), one.order(worker(1))), (CheckpointId(4), None, Some(id)));
    let all = || [worker(0), worker(1)].into_iter();
    assert_eq!(one.rests(worker(0), id, all()), Some(go_on(0, id)), "it was not asked");
    assert_eq!(one.rests(worker(1), CheckpointId(3), all()), Some(go_on(1, CheckpointId(3))), "an old order");
    assert_eq!(one.rests(worker(1), id, all()), Some(keep(1, id)));
    assert_eq!(one.rests(worker(1), id, all()), Some(keep(1, id)), "the answer was lost");
    assert_eq!((one.order(worker(1)), one.holds_joins()), (None, false));
    assert_eq!(one.cut(at(1), id, true), []);
    assert_eq!(one.deadline(), Some(at(1) + WRITE_LIMIT));
    assert_eq!(one.writes_for(at(9), id), Some(Duration::from_secs(8)));
    assert_eq!(one.writes_for(at(9), CheckpointId(3)), None, "another one");
    assert!(one.is_busy() && one.ended(at(2), id, true).is_empty() && !one.is_busy());
}

#[test]
fn those_that_stand_still_for_a_hand_over_do_so_until_the_checkpoint_is_complete() {
    let mut one = checkpoints(CheckpointEvery::End);
    assert_eq!(one.hold_training(), None, "there is none");
    let id = one.begin(at(0), Some(worker(1)), 0, 0);
    assert_eq!((one.hold_training(), one.holds_joins()), (Some(id), true));
    one.rests(worker(1), id, [worker(1)].into_iter());
    assert_eq!(one.cut(at(1), id, true), []);
    assert!(one.is_gathering() && one.holds_joins(), "the copies exist, and no step is taken");
    assert_eq!(one.rests(worker(1), id, [worker(1)].into_iter()), None, "the keeper has asked again");
    assert_eq!(one.ended(at(2), id, true), [go_on(1, id)]);
    assert!(!one.is_gathering() && !one.holds_joins());

    // Where all stand still, all do so to the end; the copies may not come about.
    for taken in [true, false] {
        let mut all = checkpoints(CheckpointEvery::End);
        let id = all.begin(at(0), None, 0, 0);
        all.hold_training();
        for index in 0..2 {
            all.rests(worker(index), id, (0..2).map(worker));
        }
        let told = all.cut(at(1), id, taken);
        assert_eq!(told, if taken { vec![] } else { vec![go_on(1, id)] }, "the keeper is not at rest");
        let told = all.give_up(at(2));
        assert_eq!(told, if taken { vec![go_on(0, id), go_on(1, id)] } else { vec![] });
    }
    // Training goes on already while one is written: the next one is the one to wait for.
    let mut late = checkpoints(CheckpointEvery::End);
    let id = late.begin(at(0), Some(worker(0)), 0, 0);
    late.rests(worker(0), id, [worker(0)].into_iter());
    late.cut(at(1), id, true);
    assert_eq!((late.hold_training(), late.is_gathering()), (None, false));
}

#[test]
fn where_all_workers_stand_still_the_last_to_stop_begins_the_copying_and_all_go_on_after_it() {
    let mut all = checkpoints(CheckpointEvery::Steps(1));
    let id = all.begin(at(0), None, 0, 0);
    let workers = || (0..3).map(worker);
    assert!((0..3).all(|index| all.order(worker(index)) == Some(id)) && all.holds_joins());
    assert_eq!(all.rests(worker(2), id, workers()), None);
    assert_eq!(all.rests(worker(0), id, workers()), None);
    assert_eq!(all.rests(worker(1), id, workers()), Some(keep(0, id)));
    assert_eq!(all.rests(worker(2), id, workers()), None, "it asks again, and still waits");
    assert!(all.holds_joins());
    assert_eq!(all.cut(at(1), id, true), [go_on(1, id), go_on(2, id)]);
    assert!(!all.holds_joins() && all.is_busy());
}

#[test]
fn a_worker_that_dies_is_not_waited_for_and_a_keeper_that_dies_ends_the_attempt() {
    let mut all = checkpoints(CheckpointEvery::Steps(1));
    let id = all.begin(at(0), None, 0, 0);
    all.rests(worker(0), id, (0..3).map(worker));
    all.rests(worker(2), id, (0..3).map(worker));
    assert_eq!(all.gone(at(1), worker(1), false, [worker(0), worker(2)].into_iter()), [keep(0, id)]);
    assert_eq!(all.gone(at(2), worker(0), false, [worker(2)].into_iter()), [go_on(2, id)]);
    assert!(!all.is_busy());
    // A number is never used twice.
    assert_eq!(all.begin(at(60), None, 0, 0), CheckpointId(5));
    // A keeper may die while copies are being written: that matters if it is the one that writes them.
    let mut one = checkpoints(CheckpointEvery::Steps(1));
    let id = one.begin(at(0), Some(worker(0)), 0, 0);
    one.rests(worker(0), id, [worker(0)].into_iter());
    one.cut(at(1), id, true);
    assert_eq!(one.gone(at(2), worker(0), false, [].into_iter()), []);
    assert!(one.is_busy(), "servers write them");
    assert_eq!(one.gone(at(2), worker(0), true, [].into_iter()), []);
    assert!(!one.is_busy());
}

#[test]
fn an_attempt_that_fails_lets_all_workers_go_on_and_the_next_one_waits_a_while() {
    let mut all = checkpoints(CheckpointEvery::Steps(1));
    all.stepped(7);
    let id = all.begin(at(0), None, 0, 0);
    all.rests(worker(0), id, (0..2).map(worker));
    assert_eq!(all.give_up(at(10)), [go_on(0, id)]);
    assert_eq!(all.rests(worker(1), id, (0..2).map(worker)), Some(go_on(1, id)));
    all.stepped(9);
    assert!(!all.is_due(at(10), 0, 0) && all.is_due(at(10) + RETRY_PAUSE, 0, 0));
    // The ledger could not be cut.
    let id = all.begin(at(20), None, 0, 0);
    for index in 0..2 {
        all.rests(worker(index), id, (0..2).map(worker));
    }
    assert_eq!(all.cut(at(21), id, false), [go_on(1, id)]);
    assert!(!all.is_busy());
    assert_eq!(all.ended(at(22), id, false), [], "it is over already");
}

#[test]
fn only_an_attempt_that_is_open_and_the_last_of_all_may_become_complete() {
    let mut all = checkpoints(CheckpointEvery::Steps(1));
    let rested = |all: &mut Checkpoints| {
        let id = all.begin(at(0), None, 0, 0);
        all.rests(worker(0), id, [worker(0)].into_iter());
        id
    };
    let late = rested(&mut all);
    assert!(!all.may_complete(late), "its copies do not exist yet");
    all.give_up(at(120));
    // Workers have gone on: the ledger that is cut now is newer than the copies.
    all.cut(at(121), late, true);
    assert!(!all.may_complete(late));
    let next = rested(&mut all);
    all.cut(at(122), late, true);
    all.cut(at(123), next, true);
    assert!(all.may_complete(next) && !all.may_complete(late));
    all.roll_back(at(124));
    assert!(!all.may_complete(next));
    let last = all.take_last(at(125));
    assert!(all.may_complete(last) && !all.may_complete(next));
}

#[test]
fn after_a_rollback_steps_count_from_the_beginning() {
    let mut all = checkpoints(CheckpointEvery::Steps(4));
    all.stepped(100);
    all.begin(at(0), Some(worker(0)), 0, 0);
    all.rests(worker(0), all.attempt_id(), [worker(0)].into_iter());
    assert_eq!(all.roll_back(at(1)), [go_on(0, CheckpointId(4))]);
    all.started(at(2), 0, 0);
    all.stepped(2);
    assert!(!all.is_busy() && !all.is_due(at(100), 0, 0));
    all.stepped(3);
    assert!(all.is_due(at(100), 0, 0));
}

#[test]
fn the_last_of_all_is_awaited_until_it_ends_or_cannot_come() {
    let mut last = checkpoints(CheckpointEvery::End);
    assert_eq!(last.last_of_all(), None);
    let id = last.take_last(at(0));
    assert_eq!(last.last_of_all(), Some(id));
    assert_eq!(last.ended(at(1), CheckpointId(1), true), []);
    assert_eq!(last.last_of_all(), Some(id));
    assert_eq!(last.ended(at(1), id, false), []);
    assert_eq!(last.last_of_all(), None);
}

#[test]
fn a_schedule_is_written_as_it_is_read() {
    for text in ["end", "epoch", "500steps", "10m", "1h30m"] {
        let every: CheckpointEvery = text.parse().unwrap();
        assert_eq!(every.to_string().parse(), Ok(every), "{text}");
    }
    assert_eq!("1step".parse(), Ok(CheckpointEvery::Steps(1)));
    for text in ["", "0steps", "steps", "0s", "10", "epochs", "-1steps"] {
        let error = text.parse::<CheckpointEvery>().unwrap_err().to_string();
        assert!(error.starts_with("--checkpoint-every = ") && error.contains("500steps"), "{error}");
    }
}
