use antdt_core::{ParamGroup, TableSpec};
use proptest::prelude::*;

use super::*;
use crate::Replica;

const DENSE: usize = 7;
const DIM: usize = 2;

fn adagrad() -> UpdateRule {
    UpdateRule::named("adagrad", 0.1).unwrap()
}

fn layout() -> ParamLayout {
    ParamLayout::dense(DENSE).with_table(TableSpec::new("table", 50, DIM, 0.1)).unwrap()
}

fn config(server: u32, servers: u32, staleness: Staleness) -> PartitionConfig {
    PartitionConfig {
        layout: layout(),
        rule: adagrad(),
        seed: Seed(3),
        server,
        servers,
        weights: ServerWeights::default(),
        staleness,
    }
}

/// Adam with everything that goes by how far the model is trained.
fn scheduled() -> UpdateRule {
    let schedule = "linear:warmup=30,total=150".parse().unwrap();
    UpdateRule { schedule, decay: 0.1, ..UpdateRule::named("adam", 0.1).unwrap() }
}

fn partition(staleness: Staleness) -> Partition {
    let mut partition = Partition::new(&config(0, 1, staleness)).unwrap();
    partition.init_dense(vec![1.0; DENSE]).unwrap();
    partition
}

fn ruled(optimizer: &str, staleness: Staleness) -> Partition {
    let rule = UpdateRule::named(optimizer, 0.5).unwrap();
    let mut partition = Partition::new(&PartitionConfig { rule, ..config(0, 1, staleness) }).unwrap();
    partition.init_dense(vec![1.0; DENSE]).unwrap();
    partition
}

fn holder(worker: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(worker), Incarnation(incarnation))
}

fn push(value: f32, samples: u64) -> Push {
    Push {
        samples,
        rate_share: None,
        dense: vec![value; DENSE],
        rows: SparseGradient { rows: vec![4, 9], values: vec![value; 2 * DIM] },
    }
}

fn commit(step: u64, contributors: &[Holder], samples: u64) -> CommitToken {
    CommitToken { step: Iteration(step), contributors: contributors.to_vec(), samples, everyone: true }
}

fn model(partition: &Partition) -> (Vec<f32>, Vec<f32>) {
    let (mut dense, mut rows) = (Vec::new(), Vec::new());
    partition.pull(&(0..50).collect::<Vec<_>>(), &mut dense, &mut rows).unwrap();
    (dense, rows)
}

#[test]
fn a_buffered_push_changes_nothing_until_its_commit_which_counts_once() {
    let mut partition = partition(Staleness::Synchronous);
    let before = model(&partition);
    assert_eq!(partition.push(holder(0, 0), Iteration(1), push(1.0, 4)), Ok(PushOutcome::Buffered));
    assert_eq!(model(&partition), before);
    let commit = commit(1, &[holder(0, 0)], 4);
    assert_eq!(partition.commit(&commit), Ok(CommitOutcome::Applied));
    let after = model(&partition);
    assert_ne!(after, before);
    assert_eq!(partition.commit(&commit), Ok(CommitOutcome::AlreadyCommitted));
    assert_eq!(model(&partition), after);
    assert_eq!(partition.pending(), 0);
}

#[test]
fn servers_apply_what_one_worker_with_the_whole_batch_would() {
    follow_a_replica(&adagrad(), 3);
    follow_a_replica(&scheduled(), 3);
    // One server has the whole gradient, and may clip it.
    follow_a_replica(&UpdateRule { clip_norm: Some(0.1), ..scheduled() }, 1);
    // Some steps have fewer samples than that, some more.
    follow_a_replica(&UpdateRule { full_batch: Some(20), ..scheduled() }, 3);
}

#[test]
fn a_step_of_all_workers_with_few_samples_is_taken_at_their_share_of_the_rate() {
    let after = |full_batch: Option<u64>, everyone: bool| {
        let rule = UpdateRule { full_batch, ..UpdateRule::named("sgd", 0.5).unwrap() };
        let config = PartitionConfig { rule, ..config(0, 1, Staleness::Synchronous) };
        let mut partition = Partition::new(&config).unwrap();
        partition.init_dense(vec![1.0; DENSE]).unwrap();
        partition.push(holder(0, 0), Iteration(0), push(4.0, 4)).unwrap();
        partition.commit(&CommitToken { everyone, ..commit(0, &[holder(0, 0)], 4) }).unwrap();
        model(&partition).0[0]
    };
    // The mean of the gradients is 1.
    assert_eq!([after(None, true), after(Some(4), true), after(Some(16), true)], [0.5, 0.5, 0.875]);
    // With backups a step has fewer samples because it did not wait for more.
    assert_eq!(after(Some(16), false), 0.5);
}

fn follow_a_replica(rule: &UpdateRule, servers: u32) {
    let mut rng = Seed(8).rng();
    let mut replica = Replica::new(&layout(), rule, Seed(3), vec![1.0; DENSE]).unwrap();
    let map = PartitionMap::new(servers, DENSE).unwrap();
    let part = |server| {
        let config =
            PartitionConfig { rule: rule.clone(), ..config(server, servers, Staleness::Synchronous) };
        Partition::new(&config).unwrap()
    };
    let mut partitions: Vec<Partition> = (0..servers).map(part).collect();
    for (server, partition) in (0..servers).zip(&mut partitions) {
        partition.init_dense(vec![1.0; map.dense(server).len()]).unwrap();
    }
    for step in 0..5 {
        let gradients: Vec<Push> = (0..4)
            .map(|_| {
                let rows: Vec<u64> = (0..50).filter(|_| rng.below(3) == 0).collect();
                let values = (0..rows.len() * DIM).map(|_| rng.normal() as f32).collect();
                let dense = (0..DENSE).map(|_| rng.normal() as f32).collect();
                Push {
                    samples: 1 + rng.below(9),
                    rate_share: None,
                    dense,
                    rows: SparseGradient { rows, values },
                }
            })
            .collect();
        let samples = gradients.iter().map(|push| push.samples).sum();
        let holders: Vec<Holder> = (0..4).map(|worker| holder(worker, 0)).collect();
        for (server, partition) in (0..servers).zip(&mut partitions) {
            // In any order of arrival.
            for worker in [2, 0, 3, 1] {
                let whole: &Push = &gradients[worker];
                let mine = |row: &u64| map.owner(*row) == server;
                let rows = whole.rows.rows.iter().copied().filter(mine).collect();
                let values =
                    whole.rows.rows.iter().zip(whole.rows.values.chunks(DIM)).filter(|(row, _)| mine(row));
                let part = Push {
                    samples: whole.samples,
                    rate_share: whole.rate_share,
                    dense: whole.dense[map.dense(server)].to_vec(),
                    rows: SparseGradient {
                        rows,
                        values: values.flat_map(|(_, values)| values).copied().collect(),
                    },
                };
                partition.push(holders[worker], Iteration(step), part).unwrap();
            }
            assert_eq!(partition.commit(&commit(step, &holders, samples)), Ok(CommitOutcome::Applied));
        }
        let mut dense = vec![0.0; DENSE];
        for push in &gradients {
            dense.iter_mut().zip(&push.dense).for_each(|(sum, value)| *sum += value);
        }
        let parts = gradients.iter().map(|push| (push.rows.rows.as_slice(), push.rows.values.as_slice()));
        replica.apply(&dense, &SparseGradient::merge(parts, DIM), samples).unwrap();
    }
    let mut dense = Vec::new();
    for (server, partition) in (0..servers).zip(&partitions) {
        let rows: Vec<u64> = (0..50).filter(|row| map.owner(*row) == server).collect();
        let (mut values, mut expected) = (Vec::new(), Vec::new());
        partition.pull(&rows, &mut dense, &mut values).unwrap();
        replica.gather(&rows, &mut expected).unwrap();
        assert_eq!(values, expected, "rows of server {server}, bit for bit");
    }
    assert_eq!(dense, replica.dense(), "dense values, bit for bit");
    assert!(partitions.iter().all(|partition| partition.trained() == replica.trained()));
}

#[test]
fn several_servers_in_step_do_not_clip_and_servers_at_their_own_pace_leave_it_to_the_worker() {
    let rule = UpdateRule { clip_norm: Some(0.1), ..adagrad() };
    let with = |servers, staleness| PartitionConfig { rule: rule.clone(), ..config(0, servers, staleness) };
    let error = Partition::new(&with(2, Staleness::Synchronous)).unwrap_err();
    assert_eq!((error.field.as_str(), error.value.as_str()), ("clip norm", "0.1"));
    let (mut plain, mut clipping) = (None, None);
    for (partition, rule) in [(&mut plain, adagrad()), (&mut clipping, rule.clone())] {
        let config = PartitionConfig { rule, ..config(0, 1, Staleness::Unbounded { scale: 0.25 }) };
        let partition = partition.insert(Partition::new(&config).unwrap());
        partition.init_dense(vec![1.0; DENSE]).unwrap();
        partition.push(holder(0, 0), Iteration(0), push(3.0, 4)).unwrap();
        partition.count(mark(holder(0, 0), 0));
        assert_eq!(partition.trained(), Trained { steps: 1, samples: 4 });
    }
    assert_eq!(model(&plain.unwrap()), model(&clipping.unwrap()));
}

#[test]
fn only_contributors_count() {
    let (mut with, mut without) = (partition(Staleness::Synchronous), partition(Staleness::Synchronous));
    for partition in [&mut with, &mut without] {
        partition.push(holder(0, 0), Iteration(0), push(1.0, 4)).unwrap();
    }
    with.push(holder(1, 0), Iteration(0), push(100.0, 4)).unwrap();
    for partition in [&mut with, &mut without] {
        partition.commit(&commit(0, &[holder(0, 0)], 4)).unwrap();
    }
    assert_eq!(model(&with), model(&without));
    assert_eq!(with.pending(), 0, "the other push of the step was dropped");
}

#[test]
fn a_commit_that_does_not_fit_the_pushes_is_refused_and_can_be_repeated_right() {
    let mut partition = partition(Staleness::Synchronous);
    partition.push(holder(0, 0), Iteration(0), push(1.0, 4)).unwrap();
    let before = model(&partition);
    let missing = CommitError::Missing { step: Iteration(0), holder: holder(1, 0) };
    assert_eq!(partition.commit(&commit(0, &[holder(0, 0), holder(1, 0)], 4)), Err(missing));
    let samples = CommitError::Samples { step: Iteration(0), announced: 5, pushed: 4 };
    assert_eq!(partition.commit(&commit(0, &[holder(0, 0)], 5)), Err(samples));
    assert_eq!(model(&partition), before);
    assert_eq!(partition.commit(&commit(0, &[holder(0, 0)], 4)), Ok(CommitOutcome::Applied));
}

#[test]
fn a_push_for_a_step_that_is_over_is_refused() {
    let mut partition = partition(Staleness::Synchronous);
    partition.push(holder(0, 0), Iteration(3), push(1.0, 4)).unwrap();
    partition.commit(&commit(3, &[holder(0, 0)], 4)).unwrap();
    let error = partition.push(holder(1, 0), Iteration(3), push(1.0, 4)).unwrap_err();
    assert_eq!(error, PushError::Stale { holder: holder(1, 0), step: Iteration(3), committed: Iteration(3) });
}

#[test]
fn a_step_that_was_done_again_counts_with_its_last_push() {
    let (mut twice, mut once) = (partition(Staleness::Synchronous), partition(Staleness::Synchronous));
    twice.push(holder(0, 0), Iteration(0), push(9.0, 2)).unwrap();
    for partition in [&mut twice, &mut once] {
        partition.push(holder(0, 0), Iteration(0), push(1.0, 4)).unwrap();
        partition.commit(&commit(0, &[holder(0, 0)], 4)).unwrap();
    }
    assert_eq!(model(&twice), model(&once));
}

#[test]
fn i34_a_lost_life_cannot_push_but_its_earlier_pushes_can_still_be_committed() {
    let mut partition = partition(Staleness::Synchronous);
    partition.push(holder(0, 0), Iteration(0), push(1.0, 4)).unwrap();
    partition.lost(PushMark { holder: holder(0, 0), step: None });
    let refused = PushError::Fenced { holder: holder(0, 0), live: Incarnation(1) };
    assert_eq!(partition.push(holder(0, 0), Iteration(1), push(1.0, 4)), Err(refused));
    assert_eq!(partition.commit(&commit(0, &[holder(0, 0)], 4)), Ok(CommitOutcome::Applied));
    assert_eq!(partition.push(holder(0, 1), Iteration(1), push(1.0, 4)), Ok(PushOutcome::Buffered));
    partition.lost(PushMark { holder: holder(0, 0), step: None });
    assert_eq!(partition.push(holder(0, 1), Iteration(2), push(1.0, 4)), Ok(PushOutcome::Buffered));
}

#[test]
fn i34_the_first_push_of_a_new_life_fences_the_old_one() {
    for staleness in [Staleness::Synchronous, Staleness::Unbounded { scale: 0.1 }] {
        let mut partition = partition(staleness);
        partition.push(holder(0, 1), Iteration(0), push(1.0, 4)).unwrap();
        let before = model(&partition);
        let refused = PushError::Fenced { holder: holder(0, 0), live: Incarnation(1) };
        assert_eq!(partition.push(holder(0, 0), Iteration(5), push(1.0, 4)), Err(refused));
        assert_eq!(model(&partition), before);
    }
}

fn mark(holder: Holder, step: u64) -> PushMark {
    PushMark { holder, step: Some(step) }
}

#[test]
fn an_asynchronous_push_changes_the_model_when_it_counts_and_once() {
    let mut partition = partition(Staleness::Unbounded { scale: 0.25 });
    let before = model(&partition);
    assert_eq!(partition.push(holder(0, 0), Iteration(0), push(1.0, 4)), Ok(PushOutcome::Buffered));
    partition.count(PushMark { holder: holder(0, 0), step: None });
    partition.count(mark(holder(1, 0), 0));
    assert_eq!(
        (model(&partition), partition.pending()),
        (before.clone(), 1),
        "nobody has said that it counts"
    );
    partition.count(mark(holder(0, 0), 0));
    let after = model(&partition);
    assert_ne!(after, before);
    assert_eq!(partition.push(holder(0, 0), Iteration(0), push(1.0, 4)), Ok(PushOutcome::Duplicate));
    partition.count(mark(holder(0, 0), 0));
    assert_eq!((model(&partition), partition.trained()), (after, Trained { steps: 1, samples: 4 }));
    // A new life counts its own steps.
    assert_eq!(partition.push(holder(0, 1), Iteration(0), push(1.0, 4)), Ok(PushOutcome::Buffered));
    assert_eq!(partition.commit(&commit(0, &[], 0)), Err(CommitError::NotSynchronous));
    // A batch that was given up after its push is replaced by the one that is pushed in its place.
    assert_eq!(partition.push(holder(0, 1), Iteration(0), push(1.0, 2)), Ok(PushOutcome::Buffered));
    assert_eq!(partition.push(holder(0, 1), Iteration(2), push(1.0, 3)), Ok(PushOutcome::Buffered));
    assert_eq!(partition.push(holder(0, 1), Iteration(1), push(1.0, 2)), Ok(PushOutcome::Duplicate), "late");
    partition.count(mark(holder(0, 1), 7));
    assert_eq!(partition.trained(), Trained { steps: 2, samples: 7 });
    // In training in step nothing counts on its own.
    let mut in_step = self::partition(Staleness::Synchronous);
    in_step.push(holder(0, 0), Iteration(0), push(1.0, 4)).unwrap();
    in_step.count(mark(holder(0, 0), 0));
    assert_eq!((in_step.trained(), in_step.pending()), (Trained::default(), 1));
}

#[test]
fn i34_counted_pushes_of_a_lost_life_are_applied_and_others_dropped() {
    let pushed = || {
        let mut partition = partition(Staleness::Unbounded { scale: 0.25 });
        partition.push(holder(0, 0), Iteration(3), push(1.0, 4)).unwrap();
        partition.push(holder(1, 0), Iteration(3), push(1.0, 2)).unwrap();
        partition
    };
    let refused = PushError::Fenced { holder: holder(0, 0), live: Incarnation(1) };
    for (step, trained) in [(Some(3), 4), (Some(2), 0), (None, 0)] {
        let mut partition = pushed();
        // The next life may be there before.
        partition.push(holder(0, 1), Iteration(0), push(1.0, 1)).unwrap();
        for _ in 0..2 {
            partition.lost(PushMark { holder: holder(0, 0), step });
            assert_eq!((partition.trained().samples, partition.pending()), (trained, 2));
        }
        assert_eq!(partition.push(holder(0, 0), Iteration(3), push(1.0, 4)), Err(refused));
        partition.count(mark(holder(0, 0), 3));
        partition.count(mark(holder(0, 1), 0));
        assert_eq!(
            (partition.trained().samples, partition.pending()),
            (trained + 1, 1),
            "the other life counts"
        );
    }
}

#[test]
fn statistics_are_replaced_by_a_whole_step_and_move_by_the_share_of_a_push_of_its_own_pace() {
    let groups = vec![ParamGroup::trainable("w", 1), ParamGroup::state("mean", 1)];
    let layout = ParamLayout::new(groups, Vec::new()).unwrap();
    let after = |staleness, samples: u64| {
        let mut partition =
            Partition::new(&PartitionConfig { layout: layout.clone(), ..config(0, 1, staleness) }).unwrap();
        partition.init_dense(vec![1.0; 2]).unwrap();
        // Every sample says 3.
        let push = Push { samples, dense: vec![0.0, 3.0 * samples as f32], ..Push::default() };
        partition.push(holder(0, 0), Iteration(0), push).unwrap();
        if staleness == Staleness::Synchronous {
            partition.commit(&commit(0, &[holder(0, 0)], samples)).unwrap();
        }
        partition.count(mark(holder(0, 0), 0));
        let mut dense = Vec::new();
        partition.pull(&[], &mut dense, &mut Vec::new()).unwrap();
        dense
    };
    assert_eq!(after(Staleness::Synchronous, 2), [1.0, 3.0]);
    // The nominal batch has 4 samples.
    let own_pace = Staleness::Unbounded { scale: 0.25 };
    assert_eq!(after(own_pace, 2), [1.0, 2.0]);
    assert_eq!(after(own_pace, 4), [1.0, 3.0]);
    assert_eq!(after(own_pace, 40), [1.0, 3.0], "never beyond what the samples say");
    assert_eq!(after(own_pace, 0), [1.0, 1.0], "no samples say nothing");
}

#[test]
fn values_that_do_not_fit_are_refused_with_the_amounts() {
    let mut empty = Partition::new(&config(0, 1, Staleness::Synchronous)).unwrap();
    assert_eq!(empty.push(holder(0, 0), Iteration(0), push(1.0, 1)), Err(PushError::NotInitialised));
    assert_eq!(empty.pull(&[], &mut Vec::new(), &mut Vec::new()), Err(PullError::NotInitialised));
    let wrong = PushError::DenseLength { got: 3, expected: DENSE };
    assert_eq!(empty.init_dense(vec![0.0; 3]), Err(wrong));
    assert_eq!(empty.init_dense(vec![1.0; DENSE]), Ok(InitOutcome::Stored));
    assert_eq!(empty.init_dense(vec![2.0; DENSE]), Ok(InitOutcome::AlreadyInitialised));
    assert_eq!(model(&empty).0, vec![1.0; DENSE]);
    let short = Push { dense: vec![0.0; 3], ..push(1.0, 1) };
    assert_eq!(empty.push(holder(0, 0), Iteration(0), short), Err(wrong));
    let rows = SparseGradient { rows: vec![50], values: vec![0.0; DIM] };
    let outside = empty.push(holder(0, 0), Iteration(0), Push { rows, ..push(1.0, 1) });
    assert_eq!(outside, Err(PushError::Table(TableError::OutOfRange { row: 50, rows: 50 })));
    assert_eq!(empty.pending(), 0);
}

#[test]
fn waiting_pushes_are_bounded() {
    let mut partition = partition(Staleness::Synchronous);
    for step in 0..2 {
        partition.push(holder(0, 0), Iteration(step), push(1.0, 1)).unwrap();
    }
    let refused = PushError::TooManyPending { holder: holder(0, 0), pending: 2 };
    assert_eq!(partition.push(holder(0, 0), Iteration(2), push(1.0, 1)), Err(refused));
    assert_eq!(partition.pending(), 2);
}

#[test]
fn i25_a_step_of_no_samples_advances_and_changes_nothing() {
    let mut partition = partition(Staleness::Synchronous);
    let before = model(&partition);
    partition.push(holder(0, 0), Iteration(0), push(f32::NAN, 0)).unwrap();
    partition.commit(&commit(0, &[holder(0, 0)], 0)).unwrap();
    assert_eq!((model(&partition), partition.committed()), (before, Some(Iteration(0))));
}

#[test]
fn a_push_with_a_share_is_a_mean_at_that_share_of_the_rate() {
    let moved = |samples: u64, rate_share: Option<f32>| {
        let mut partition = ruled("sgd", Staleness::Unbounded { scale: 0.25 });
        let gradient = Push { rate_share, ..push(samples as f32, samples) };
        partition.push(holder(0, 0), Iteration(0), gradient).unwrap();
        partition.count(mark(holder(0, 0), 0));
        1.0 - model(&partition).0[0]
    };
    // Without one, a push counts as the sum over a nominal batch of 4.
    assert_eq!([2, 4, 8].map(|samples| moved(samples, None)), [0.25, 0.5, 1.0]);
    // With one, as its mean: the share alone says how far it goes.
    assert_eq!([2, 4, 8].map(|samples| moved(samples, Some(1.0))), [0.5; 3]);
    assert_eq!([2, 4, 8].map(|samples| moved(samples, Some(samples as f32 / 4.0))), [0.25, 0.5, 1.0]);
}

#[test]
fn a_step_is_taken_at_the_share_that_its_pushes_name() {
    let moved = |rate_share: Option<f32>| {
        let mut partition = ruled("adam", Staleness::Synchronous);
        for worker in 0..2 {
            let gradient = Push { rate_share, ..push(3.0, 3) };
            partition.push(holder(worker, 0), Iteration(0), gradient).unwrap();
        }
        partition.commit(&commit(0, &[holder(0, 0), holder(1, 0)], 6)).unwrap();
        1.0 - model(&partition).0[0]
    };
    let [whole, half, none] = [None, Some(0.5), Some(0.0)].map(moved);
    assert!((whole / half - 2.0).abs() < 1e-4 && none == 0.0, "{whole}, {half}, {none}");
    let mut partition = ruled("sgd", Staleness::Synchronous);
    for share in [-0.5, f32::INFINITY, f32::NAN] {
        let gradient = Push { rate_share: Some(share), ..push(1.0, 1) };
        let refused = partition.push(holder(0, 0), Iteration(0), gradient);
        assert!(matches!(refused, Err(PushError::RateShare { .. })), "{refused:?}");
    }
}

/// What one worker does next: its push reaches so many servers; if it reaches all, whether it is counted; then so many servers are
/// told; whether the worker dies, and which server hears of all deaths so far.
type Deed = (u32, usize, bool, usize, bool, usize);

proptest! {
    #[test]
    fn i34_pushes_at_their_own_pace_are_applied_by_all_servers_or_by_none(
        deeds in prop::collection::vec((0_u32..3, 0_usize..=3, any::<bool>(), 0_usize..=3, any::<bool>(), 0_usize..3), 1..40),
    ) {
        let deeds: Vec<Deed> = deeds;
        const SERVERS: usize = 3;
        let mut servers: Vec<Partition> = (0..SERVERS).map(|_| partition(Staleness::Unbounded { scale: 1.0 })).collect();
        // The coordinator's knowledge: the newest push that counts, and the dead workers.
        let mut counted: BTreeMap<Holder, u64> = BTreeMap::new();
        let mut dead: Vec<Holder> = Vec::new();
        let (mut lives, mut steps) = ([0; 3], [0_u64; 3]);
        let (mut pushes, mut samples) = (0, 0);
        let marks = |counted: &BTreeMap<Holder, u64>, dead: &[Holder]| -> Vec<PushMark> {
            dead.iter().map(|holder| PushMark { holder: *holder, step: counted.get(holder).copied() }).collect()
        };
        for (number, (worker, reach, counts, told, dies, hears)) in (1..).zip(deeds) {
            let (holder, step) = (holder(worker, lives[worker as usize]), steps[worker as usize]);
            for server in &mut servers[..reach] {
                prop_assert_eq!(server.push(holder, Iteration(step), push(1.0, number)), Ok(PushOutcome::Buffered));
            }
            if reach == SERVERS && counts {
                counted.insert(holder, step);
                (pushes, samples) = (pushes + 1, samples + number);
                // One that lives tells all of them before it goes on.
                let told = if dies { told } else { SERVERS };
                servers[..told].iter_mut().for_each(|server| server.count(mark(holder, step)));
            }
            // Each attempt has a number of its own.
            steps[worker as usize] += 1;
            if dies {
                dead.push(holder);
                (lives[worker as usize], steps[worker as usize]) = (holder.incarnation.0 + 1, 0);
            }
            marks(&counted, &dead).into_iter().for_each(|mark| servers[hears].lost(mark));
        }
        for server in &mut servers {
            marks(&counted, &dead).into_iter().for_each(|mark| server.lost(mark));
            prop_assert_eq!(server.trained(), Trained { steps: pushes, samples });
            prop_assert!(server.pending() <= 3, "only what living workers pushed and may push again");
        }
    }
}
