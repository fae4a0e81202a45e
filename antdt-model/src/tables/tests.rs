use antdt_core::TableSpec;
use proptest::prelude::*;

use super::*;
use crate::optimizer::{REGISTRY, UpdateStep};

const SPECS: [(u64, usize, f32); 2] = [(7, 2, 0.5), (11, 3, 0.25)];

fn spec(number: usize) -> TableSpec {
    let (rows, dim, init_scale) = SPECS[number];
    TableSpec::new(format!("table {number}"), rows, dim, init_scale)
}

fn layout(numbers: &[usize]) -> ParamLayout {
    ParamLayout::new(Vec::new(), numbers.iter().map(|number| spec(*number)).collect()).unwrap()
}

fn tables(numbers: &[usize], optimizer: &str, seed: Seed, partition: u32, partitions: u32) -> Tables {
    let optimizer = REGISTRY.by_name(optimizer).unwrap();
    let map = PartitionMap::new(partitions, 0).unwrap();
    Tables::partition(&layout(numbers), &*optimizer, seed, partition, map).unwrap()
}

fn update(tables: &mut Tables, optimizer: &str, rows: &[u64], sums: &[f32]) -> Result<(), TableError> {
    let optimizer = REGISTRY.by_name(optimizer).unwrap();
    let step = UpdateStep { number: 1, rate: 0.1, scale: 0.5, decay: 0.01 };
    tables.apply(rows, sums, &optimizer.begin(step))
}

fn values(tables: &Tables, rows: &[u64]) -> Vec<f32> {
    let mut values = Vec::new();
    tables.gather(rows, &mut values).unwrap();
    values
}

proptest! {
    #[test]
    fn two_tables_are_two_models_of_one_table_each(
        seed in any::<u32>(),
        optimizer in prop::sample::select(vec!["sgd", "adagrad", "adam"]),
        steps in prop::collection::vec(prop::collection::btree_set(0_u64..18, 0..10), 1..5),
        partitions in 1_u32..4,
    ) {
        let seed = Seed(seed.into());
        let seeds = [seed, seed.derive("table").derive_number(1)];
        let mut apart = [0, 1].map(|number| tables(&[number], optimizer, seeds[number], 0, 1));
        let mut parts: Vec<Tables> =
            (0..partitions).map(|part| tables(&[0, 1], optimizer, seed, part, partitions)).collect();
        let both = layout(&[0, 1]);
        let mut rng = seed.derive("gradients").rng();
        for rows in &steps {
            let rows: Vec<u64> = rows.iter().copied().collect();
            let sums: Vec<f32> = (0..both.rows_len(&rows)).map(|_| rng.normal() as f32).collect();
            for part in &mut parts {
                let (mut its_rows, mut its_sums) = (Vec::new(), Vec::new());
                for (row, sums) in both.by_row(&rows, &sums) {
                    if row % u64::from(partitions) == u64::from(part.partition) {
                        its_rows.push(row);
                        its_sums.extend_from_slice(sums);
                    }
                }
                update(part, optimizer, &its_rows, &its_sums).unwrap();
            }
            for (model, place) in apart.iter_mut().zip(both.by_table(&rows)) {
                update(model, optimizer, &own(&rows, &place), &sums[place.values.clone()]).unwrap();
            }
        }
        for row in 0..both.rows() {
            let joint = values(&parts[(row % u64::from(partitions)) as usize], &[row]);
            let (number, own) = if row < 7 { (0, row) } else { (1, row - 7) };
            prop_assert_eq!(joint, values(&apart[number], &[own]), "row {}", row);
        }
        let stored: usize = parts.iter().map(Tables::stored_rows).sum();
        prop_assert_eq!(stored, apart.iter().map(Tables::stored_rows).sum::<usize>());
    }
}

#[test]
fn gradients_of_two_tables_add_up_table_by_table() {
    let tables = tables(&[0, 1], "sgd", Seed(1), 0, 1);
    let part = |rows: &[u64], values: &[f32]| SparseGradient { rows: rows.to_vec(), values: values.to_vec() };
    let one = part(&[1, 6, 7], &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0]);
    let other = part(&[6, 7, 17], &[10.0, 10.0, 20.0, 20.0, 20.0, 30.0, 30.0, 30.0]);
    let total = tables.merge(&[&one, &other]);
    assert_eq!(total.rows, [1, 6, 7, 17]);
    assert_eq!(total.values, [1.0, 1.0, 12.0, 12.0, 23.0, 23.0, 23.0, 30.0, 30.0, 30.0]);
    assert_eq!(tables.merge(&[]), SparseGradient::default());
}

#[test]
fn wrong_rows_of_two_tables_are_refused_whole_and_by_their_joint_number() {
    let mut tables = tables(&[0, 1], "sgd", Seed(1), 1, 2);
    let before = values(&tables, &[1, 7, 17]);
    for (rows, sums, error) in [
        (&[1, 19][..], 4, TableError::OutOfRange { row: 19, rows: 18 }),
        (&[9, 7], 6, TableError::Order { row: 7, before: 9 }),
        (&[1, 8], 5, TableError::Elsewhere { row: 8, owner: 0, partition: 1 }),
        (&[1, 7], 4, TableError::Length { values: 4, rows: 2, due: 5 }),
    ] {
        assert_eq!(update(&mut tables, "sgd", rows, &vec![1.0; sums]), Err(error));
    }
    assert_eq!(values(&tables, &[1, 7, 17]), before);
    let none = Tables::new(&ParamLayout::dense(3), &*REGISTRY.by_name("sgd").unwrap(), Seed(1)).unwrap();
    assert_eq!(none.gather(&[0], &mut Vec::new()), Err(TableError::OutOfRange { row: 0, rows: 0 }));
}

#[test]
fn untouched_rows_have_the_values_that_the_seed_gives() {
    let layout = layout(&[0, 1]);
    for partitions in 1..4 {
        for part in 0..partitions {
            let tables = tables(&[0, 1], "sgd", Seed(5), part, partitions);
            for (table, spec) in layout.tables().iter().enumerate() {
                let mut initial = Vec::new();
                initial_rows(&layout, Seed(5), table, 0..spec.rows, &mut initial);
                let own = |row: &u64| layout.row(table, *row) % u64::from(partitions) == u64::from(part);
                for row in (0..spec.rows).filter(own) {
                    let start = row as usize * spec.dim;
                    assert_eq!(values(&tables, &[layout.row(table, row)]), initial[start..start + spec.dim]);
                }
            }
        }
    }
    let mut some = Vec::new();
    initial_rows(&layout, Seed(5), 1, 3..5, &mut some);
    let mut all = Vec::new();
    initial_rows(&layout, Seed(5), 1, 0..11, &mut all);
    assert_eq!(some, all[9..15]);
}
