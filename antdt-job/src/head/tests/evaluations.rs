//! Evaluations between the epochs of a job.

use super::*;
use crate::head::evaluations::{EvaluationSchedule, Evaluations};

/// Samples of an epoch.
const EPOCH: u64 = 40;

/// A job of three epochs that is evaluated after each, in which all take part.
fn evaluated(sync: &'static str, servers: u32, stopping: Option<&str>) -> World {
    let checkpoints = CheckpointSchedule { every: CheckpointEvery::End, first: CheckpointId(1), epochs: 3 };
    let mut world = World::with(sync, 2, servers, Box::new(Unmanaged), Some(checkpoints));
    let stopping = stopping.map(|rule| rule.parse().unwrap());
    let (every, epochs, earlier) = (1, 3, Vec::new());
    let schedule = EvaluationSchedule { every, epochs, samples: EPOCH, done: 0, stopping, earlier };
    world.head.evaluations = Some(Evaluations::new(schedule));
    world.head.core.config.can_roll_back = true;
    world.orders();
    world.head.hand_out();
    world.drain();
    assert_eq!(world.orders(), ["until epoch 1"]);
    world.running()
}

fn left(evaluate: bool, goes_on: bool, answer: &HeadAnswer) -> bool {
    matches!(answer, HeadAnswer::Left { evaluate: e, goes_on: g, .. } if (*e, *g) == (evaluate, goes_on))
}

/// The workers see the end of an epoch, and worker 0 takes this checkpoint and finds this loss.
fn epoch_ends(world: &mut World, checkpoint: u64, loss: f64) {
    for index in 0..2 {
        let answer = world.leave(worker(index, 0), true);
        assert!(left(index == 0, true, &answer), "{answer:?}");
    }
    // Worker 1 has nothing left to do, and asks already.
    assert!(matches!(world.join(worker(1, 0), None), HeadAnswer::Parked));
    let mut metrics = Metrics::default();
    metrics.record(Metric::mean(Metric::LOSS, loss, 1.0).lower_is_better()).unwrap();
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 9, metrics });
    assert_eq!(world.orders(), [""; 0], "the checkpoint is not complete");
    let outcome = Ok("there".to_owned());
    world.tell(HeadEvent::Kept { checkpoint: CheckpointId(checkpoint), outcome });
}

fn went_back(rollback: u64, acked: u64) -> HeadEvent {
    let counts = Counts { total: 3 * EPOCH, acked, todo: 3 * EPOCH - acked, ..Counts::default() };
    let to = RolledBack { checkpoint: Some("there".into()), counts, text: "went back".to_owned() };
    HeadEvent::RolledBack { rollback: RollbackId(rollback), outcome: Ok(to) }
}

/// The entries of the evaluations, as epoch and checkpoint.
fn entries(world: &World) -> Vec<(u32, Option<u64>)> {
    let entry = |note: &Note| match note {
        Note::EpochEvaluated(entry) => Some((entry.epoch, entry.checkpoint)),
        _ => None,
    };
    world.notes.iter().filter_map(entry).collect()
}

#[test]
fn workers_join_again_after_an_evaluation_and_servers_start_from_its_checkpoint() {
    let mut world = evaluated("ps-bsp", 1, None);
    epoch_ends(&mut world, 1, 0.5);
    assert_eq!(world.orders(), ["until epoch 2", "kill server-0#0", "roll back 1"]);
    assert_eq!(entries(&world), [(1, Some(1))]);
    assert!(!world.notes.contains(&Note::Completed));
    world.tell(went_back(1, EPOCH));
    assert_eq!(world.orders(), ["launch server-0#1"]);
    world.register(life_of_server(0, 1));
    world.join(worker(0, 0), None);
    assert_eq!(world.orders(), ["joined worker-0#0 at 0", "joined worker-1#0 at 0"]);
}

#[test]
fn the_last_evaluation_ends_the_job() {
    let mut world = evaluated("allreduce", 0, None);
    for epoch in 1..3 {
        epoch_ends(&mut world, epoch, 0.5);
        let next = epoch + 1;
        assert_eq!(world.orders(), [format!("until epoch {next}"), format!("roll back {epoch}")]);
        world.tell(went_back(epoch, epoch * EPOCH));
        // Worker 1 has asked before.
        world.join(worker(0, 0), None);
        assert_eq!(world.orders(), ["joined worker-0#0 at 0", "joined worker-1#0 at 0"]);
    }
    assert!(left(true, false, &world.leave(worker(0, 0), true)));
    assert!(left(false, false, &world.leave(worker(1, 0), true)));
    assert!(world.notes.contains(&Note::Completed));
    world.tell(HeadEvent::Kept { checkpoint: CheckpointId(3), outcome: Ok("there".to_owned()) });
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 9, metrics: Metrics::default() });
    assert_eq!(world.orders(), ["end"]);
    assert_eq!(entries(&world), [(1, Some(1)), (2, Some(2)), (3, Some(3))]);
}

#[test]
fn an_evaluation_that_improves_nothing_ends_the_job_early_and_sends_workers_home() {
    let mut world = evaluated("allreduce", 0, Some("1"));
    epoch_ends(&mut world, 1, 0.5);
    world.tell(went_back(1, EPOCH));
    world.join(worker(0, 0), None);
    world.orders();
    world.leave(worker(0, 0), true);
    world.leave(worker(1, 0), true);
    world.join(worker(1, 0), None);
    let mut metrics = Metrics::default();
    metrics.record(Metric::mean(Metric::LOSS, 0.6, 1.0).lower_is_better()).unwrap();
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 9, metrics });
    world.tell(HeadEvent::Kept { checkpoint: CheckpointId(2), outcome: Ok("there".to_owned()) });
    assert_eq!(world.orders(), ["home worker-1#0", "end"]);
    world.join(worker(0, 0), None);
    assert_eq!(world.orders(), ["home worker-0#0"]);
    let why =
        "--early-stopping 1: ended after 2 epochs; loss was best after epoch 1, 0.50000, in checkpoint 1";
    assert!(world.notes.contains(&Note::StoppedEarly(why.to_owned())), "{:?}", world.notes);
    assert!(world.notes.contains(&Note::Completed));
}

#[test]
fn a_job_cannot_go_on_from_a_model_that_is_in_no_checkpoint() {
    let mut world = evaluated("allreduce", 0, None);
    world.leave(worker(0, 0), true);
    world.leave(worker(1, 0), true);
    let full = Err("the disk is full".to_owned());
    world.tell(HeadEvent::Kept { checkpoint: CheckpointId(1), outcome: full });
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 9, metrics: Metrics::default() });
    let why = "fail: the model after epoch 1 is in no checkpoint, from which the job could go on: checkpoint 1 was not written: the disk is full";
    assert_eq!(world.orders(), [why]);
}

#[test]
fn an_interrupt_of_an_evaluation_ends_the_job_with_its_metrics() {
    let mut world = evaluated("allreduce", 0, None);
    world.leave(worker(0, 0), true);
    world.leave(worker(1, 0), true);
    world.tell(HeadEvent::Kept { checkpoint: CheckpointId(1), outcome: Ok("there".to_owned()) });
    world.tell(HeadEvent::Stop("interrupted".to_owned()));
    assert_eq!(world.orders(), [""; 0]);
    world.tell(HeadEvent::Evaluated { holder: worker(0, 0), samples: 9, metrics: Metrics::default() });
    assert_eq!((world.orders(), entries(&world)), (vec!["fail: interrupted".to_owned()], vec![(1, Some(1))]));
}

#[test]
fn a_worker_that_died_meanwhile_starts_again_and_an_evaluator_that_died_leaves_no_entry() {
    let mut world = evaluated("allreduce", 0, None);
    world.leave(worker(0, 0), true);
    world.leave(worker(1, 0), true);
    world.tell(HeadEvent::Kept { checkpoint: CheckpointId(1), outcome: Ok("there".to_owned()) });
    world.exits(worker(0, 0), KILLED);
    assert_eq!(world.orders(), ["until epoch 2", "kill worker-0#0", "roll back 1"]);
    let nothing = world
        .notes
        .iter()
        .any(|note| matches!(note, Note::EpochEvaluated(entry) if (entry.epoch, entry.samples) == (1, 0)));
    assert!(nothing, "{:?}", world.notes);
    world.tell(went_back(1, EPOCH));
    assert_eq!(world.orders(), ["launch worker-0#1"]);
}

#[test]
fn a_job_that_loses_its_model_goes_back_to_the_evaluations_that_follow_its_checkpoint() {
    let mut world = evaluated("allreduce", 0, None);
    epoch_ends(&mut world, 1, 0.5);
    world.tell(went_back(1, EPOCH));
    world.orders();
    // Within the second epoch nothing changes; before the end of the first one the evaluation after it is next.
    for (rollback, acked, until) in [(2, EPOCH + 3, 2), (3, EPOCH - 3, 1), (4, EPOCH, 2)] {
        world.head.core.rollbacks.want("the model is gone".to_owned());
        world.head.begin_rollback(world.now);
        world.drain();
        world.tell(went_back(rollback, acked));
        assert_eq!(world.head.evaluations.as_ref().map(Evaluations::until), Some(until), "{acked}");
    }
    assert_eq!(world.head.record().until, 2);
}
