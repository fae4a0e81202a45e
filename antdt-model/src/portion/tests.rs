use std::collections::BTreeMap;

use antdt_core::{
    Holder, Incarnation, Iteration, NodeId, ParamGroup, ParamLayout, PushMark, Seed, ServerWeights, TableSpec,
};
use proptest::prelude::*;

use super::Portion;
use crate::gradient::SparseGradient;
use crate::optimizer::REGISTRY;
use crate::partition::PartitionMap;
use crate::replica::Replica;
use crate::rule::{Trained, UpdateRule};
use crate::server::{Partition, PartitionConfig, Push, Staleness};

const OPTIMIZERS: [&str; 5] = ["sgd", "momentum", "adagrad", "adam", "adamw"];

fn layout() -> ParamLayout {
    let groups =
        vec![ParamGroup::trainable("w", 5), ParamGroup::state("mean", 2), ParamGroup::trainable("b", 1)];
    let tables = vec![TableSpec::new("users", 11, 3, 0.5), TableSpec::new("items", 6, 2, 0.5)];
    ParamLayout::new(groups, tables).unwrap()
}

fn rule(optimizer: &str) -> UpdateRule {
    UpdateRule::new(REGISTRY.by_name(optimizer).unwrap())
}

fn partitions(optimizer: &str, weights: &[u32]) -> Vec<Partition> {
    let servers = weights.len() as u32;
    let staleness = Staleness::Unbounded { scale: 0.25 };
    let config = |server| PartitionConfig {
        layout: layout(),
        rule: rule(optimizer),
        seed: Seed(3),
        server,
        servers,
        weights: ServerWeights::new(weights).unwrap(),
        staleness,
    };
    (0..servers).map(|server| Partition::new(&config(server)).unwrap()).collect()
}

/// A push comes, and counts.
fn takes(partition: &mut Partition, step: u64, push: Push) {
    let holder = Holder::new(NodeId::worker(0), Incarnation(0));
    partition.push(holder, Iteration(step), push).unwrap();
    partition.count(PushMark { holder, step: Some(step) });
}

/// Values of a row, and what the optimizer keeps of them.
type Row = (Vec<f32>, Vec<f32>);

/// The numbers of all rows and values, however they are spread.
fn merged(portions: &[Portion]) -> Portion {
    let mut whole = Portion::default();
    let mut rows: [BTreeMap<u64, Row>; 2] = Default::default();
    let mut pieces: Vec<&Portion> = portions.iter().collect();
    pieces.sort_by_key(|piece| piece.dense_from);
    whole.dense_state = vec![Vec::new(); pieces[0].dense_state.len()];
    for piece in pieces {
        assert!(piece.dense.is_empty() || piece.dense_from == whole.dense.len());
        whole.dense.extend(&piece.dense);
        whole.dense_state.iter_mut().zip(&piece.dense_state).for_each(|(all, part)| all.extend(part));
        for ((table, dim), into) in piece.tables.iter().zip([3, 2]).zip(&mut rows) {
            for (index, row) in table.rows.iter().enumerate() {
                let at = index * dim..(index + 1) * dim;
                let state = table.state.iter().flat_map(|numbers| numbers[at.clone()].to_vec()).collect();
                assert!(into.insert(*row, (table.values[at].to_vec(), state)).is_none(), "row {row} twice");
            }
        }
    }
    for (table, dim) in rows.into_iter().zip([3, 2]) {
        let mut portion =
            super::TablePortion { state: vec![Vec::new(); whole.dense_state.len()], ..Default::default() };
        for (row, (values, state)) in table {
            portion.rows.push(row);
            portion.values.extend(values);
            portion.state.iter_mut().zip(state.chunks(dim)).for_each(|(all, part)| all.extend(part));
        }
        whole.tables.push(portion);
    }
    whole
}

fn push_for(partition: &Partition, map: &PartitionMap, server: u32, rows: &[u64], sums: &[f32]) -> Push {
    let range = map.dense(server);
    let own: Vec<u64> = rows.iter().copied().filter(|row| map.owner(*row) == server).collect();
    let values =
        own.iter().flat_map(|row| vec![sums[*row as usize % sums.len()]; layout().row_len(*row)]).collect();
    assert_eq!(partition.dense_len(), range.len());
    Push {
        samples: 4,
        rate_share: None,
        dense: sums[range].to_vec(),
        rows: SparseGradient { rows: own, values },
    }
}

fn map(weights: &[u32]) -> PartitionMap {
    PartitionMap::weighted(weights.len() as u32, 8, &ServerWeights::new(weights).unwrap()).unwrap()
}

/// A model that some gradients have changed, on servers of these weights.
fn trained(optimizer: &str, weights: &[u32], gradients: &[(Vec<u64>, Vec<f32>)]) -> Vec<Partition> {
    let map = map(weights);
    let mut all = partitions(optimizer, weights);
    for (server, partition) in (0..).zip(&mut all) {
        partition.init_dense(vec![0.5; map.dense(server).len()]).unwrap();
        for (step, (rows, sums)) in (0..).zip(gradients) {
            let push = push_for(partition, &map, server, rows, sums);
            takes(partition, step, push);
        }
    }
    all
}

fn gradients() -> impl Strategy<Value = Vec<(Vec<u64>, Vec<f32>)>> {
    let rows = prop::collection::btree_set(0_u64..17, 0..10).prop_map(|rows| rows.into_iter().collect());
    prop::collection::vec((rows, prop::collection::vec(-1.0_f32..1.0, 8)), 1..5)
}

/// Servers of equal weight, and of any.
fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        (1_usize..5).prop_map(|servers| vec![1; servers]),
        prop::collection::vec(1..=ServerWeights::MOST, 1..5),
    ]
}

proptest! {
    #[test]
    fn any_split_is_restored_into_any_other_and_trains_on_alike(
        gradients in gradients(),
        more in gradients(),
        (from, to) in (weights(), weights()),
        optimizer in prop::sample::select(&OPTIMIZERS[..]),
    ) {
        let before = trained(optimizer, &from, &gradients);
        let portions: Vec<Portion> = before.iter().map(|part| part.portion().unwrap()).collect();
        let mut after = partitions(optimizer, &to);
        for partition in &mut after {
            let set: usize = portions.iter().map(|portion| partition.restore(portion, true).unwrap()).sum();
            prop_assert_eq!(set, partition.dense_len());
            partition.set_trained(before[0].trained());
        }
        let read = |parts: &[Partition]| merged(&parts.iter().map(|part| part.portion().unwrap()).collect::<Vec<_>>());
        prop_assert_eq!(read(&after), merged(&portions));
        // The optimizer's state came along: both go on alike.
        let mut both = [before, after];
        for (parts, map) in both.iter_mut().zip([map(&from), map(&to)]) {
            for (server, part) in (0..).zip(parts.iter_mut()) {
                for (step, (rows, sums)) in (100..).zip(&more) {
                    let push = push_for(part, &map, server, rows, sums);
                    takes(part, step, push);
                }
            }
        }
        prop_assert_eq!(read(&both[0]), read(&both[1]));
    }
}

#[test]
fn a_replica_takes_over_parameters_of_servers_and_leaves_the_optimizer_behind_if_told_to() {
    let gradients = vec![(vec![1, 4, 12], vec![0.5; 8])];
    let servers = trained("adam", &[1, 1, 1], &gradients);
    let portions: Vec<Portion> = servers.iter().map(|part| part.portion().unwrap()).collect();
    let restored = |with_state| {
        let mut replica = Replica::new(&layout(), &rule("adam"), Seed(3), vec![0.0; 8]).unwrap();
        let set: usize = portions.iter().map(|portion| replica.restore(portion, with_state).unwrap()).sum();
        assert_eq!(set, 8);
        replica.set_trained(Trained { steps: 1, samples: 4 });
        replica.portion()
    };
    let whole = merged(&portions);
    assert_eq!(restored(true), whole);
    let without = restored(false);
    assert_eq!((&without.dense, &without.tables[1].values), (&whole.dense, &whole.tables[1].values));
    let zeros = |numbers: &[Vec<f32>]| numbers.iter().flatten().all(|number| *number == 0.0);
    assert!(zeros(&without.dense_state) && without.tables.iter().all(|table| zeros(&table.state)));
    assert!(!zeros(&whole.dense_state));
}

#[test]
fn values_that_do_not_fit_are_refused_and_change_nothing() {
    let whole = merged(&[trained("adam", &[1], &[(vec![1, 12], vec![0.5; 8])])[0].portion().unwrap()]);
    type Spoil = (&'static str, fn(&mut Portion));
    let broken: [Spoil; 7] = [
        ("within a flat vector of 8", |portion| portion.dense_from = 1),
        ("optimizer state of dense values", |portion| portion.dense_state[0].push(0.0)),
        ("tables", |portion| portion.tables.truncate(1)),
        ("rows of table `users`", |portion| portion.tables[0].rows[0] = 11),
        ("values of table `users`", |portion| portion.tables[0].values.truncate(1)),
        ("optimizer state of table `items`", |portion| portion.tables[1].state[1].clear()),
        ("numbers that the optimizer keeps", |portion| portion.dense_state.truncate(1)),
    ];
    for (why, spoil) in broken {
        let mut portion = whole.clone();
        spoil(&mut portion);
        let mut replica = Replica::new(&layout(), &rule("adam"), Seed(3), vec![0.0; 8]).unwrap();
        let untouched = replica.portion();
        let error = replica.restore(&portion, true).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(replica.portion(), untouched);
    }
    let mut other = Replica::new(&layout(), &rule("sgd"), Seed(3), vec![0.0; 8]).unwrap();
    assert!(other.restore(&whole, true).is_err());
    assert_eq!(other.restore(&whole, false).unwrap(), 8);
}
