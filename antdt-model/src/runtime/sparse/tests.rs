use std::collections::BTreeMap;
use std::time::Duration;

use antdt_collective::runtime::testing::{mem_members, on_all};
use proptest::prelude::*;

use super::*;

const PATIENT: Duration = Duration::from_secs(60);

const fn shape(dim: usize, rows: u64) -> TableShape {
    TableShape { dim, rows: Some(rows) }
}

/// What each of the members lists, and the table; once more after a first exchange, by which they know their overlap.
fn run(all: &[Vec<u64>], shape: TableShape, value: impl Fn(u32, usize) -> f32 + Sync) -> Vec<SparseGradient> {
    on_all(mem_members(u32::try_from(all.len()).unwrap()).0, PATIENT, |me, communicator| {
        let rows = &all[me.0 as usize];
        let values: Vec<f32> = (0..rows.len() * shape.dim).map(|i| value(me.0, i)).collect();
        let first = all_reduce_sparse(communicator, rows, &values, shape).unwrap();
        let mine = sum_duplicates(rows, &values, shape).unwrap();
        let counts: Vec<u64> = all
            .iter()
            .map(|rows| rows.iter().collect::<std::collections::BTreeSet<_>>().len() as u64)
            .collect();
        let mut overlap = Overlap::default();
        overlap.saw(counts.iter().sum(), first.rows.len() as u64);
        let second = all_reduce_counted(communicator, &mine, &counts, shape, &mut overlap).unwrap();
        assert_eq!(first.rows, second.rows);
        second
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_result_is_that_of_the_whole_table_by_either_route(
        all in prop::collection::vec(prop::collection::vec(0_u64..25, 0..20), 1..6),
        dim in 0_usize..4,
        rows in prop::sample::select(vec![Some(25), Some(1_000_000), None]),
    ) {
        let shape = TableShape { dim, rows };
        // Integers, so that the order of additions does not show.
        let value = |rank: u32, i: usize| (rank as usize * 31 + i * 7 % 53) as f32 - 40.0;
        let mut table: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (rank, listed) in (0_u32..).zip(&all) {
            for (index, row) in listed.iter().enumerate() {
                let sum = table.entry(*row).or_insert_with(|| vec![0.0; dim]);
                (0..dim).for_each(|i| sum[i] += value(rank, index * dim + i));
            }
        }
        for result in run(&all, shape, value) {
            prop_assert_eq!(&result.rows, &table.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(result.values, table.values().flatten().copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_members_get_the_same_bits(
        all in prop::collection::vec(prop::collection::vec(0_u64..9, 0..20), 1..6),
        rows in prop::sample::select(vec![Some(9), Some(1_000_000)]),
    ) {
        let value = |rank: u32, i: usize| 1.0 / (3.0 + f64::from(rank) * 1.7 + i as f64) as f32;
        let bits = |gradient: &SparseGradient| {
            (gradient.rows.clone(), gradient.values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
        };
        let results = run(&all, TableShape { dim: 2, rows }, value);
        prop_assert!(results.iter().all(|result| bits(result) == bits(&results[0])));
    }
}

#[test]
fn every_route_is_taken_and_gives_the_same() {
    let route = |counts: &[u64], distinct, shape| {
        let mut overlap = Overlap::default();
        overlap.saw(counts.iter().sum(), distinct);
        overlap.cheapest(counts, shape)
    };
    let rows: Vec<u64> = (0..6000).collect();
    let (tight, wide, none) = (shape(3, 6000), shape(3, 1_000_000), TableShape { dim: 3, rows: None });
    assert_eq!(route(&[6000; 4], 6000, tight), Route::Dense);
    assert_eq!(route(&[6000; 4], 6000, wide), Route::Owners);
    assert_eq!(route(&[6000; 2], 6000, none), Route::Everyone);
    let (four, two) = (vec![rows.clone(); 4], vec![rows; 2]);
    let dense = run(&four, tight, |_, _| 1.0);
    assert_eq!(dense, run(&four, wide, |_, _| 1.0));
    let everyone = run(&two, none, |_, _| 2.0);
    assert_eq!(dense[0], everyone[0]);
}

#[test]
fn a_member_whose_rows_do_not_fit_or_whose_table_differs_fails_the_call_on_all() {
    let call = |odd: (&'static [u64], usize, TableShape)| {
        on_all(mem_members(3).0, PATIENT, move |me, communicator| {
            let (rows, values, shape): (&[u64], usize, _) =
                if me.0 == 1 { odd } else { (&[1], 2, shape(2, 10)) };
            all_reduce_sparse(communicator, rows, &vec![1.0; values], shape)
        })
    };
    for result in call((&[1], 3, shape(2, 10))).into_iter().chain(call((&[10], 2, shape(2, 10)))) {
        assert!(matches!(result, Err(CollectiveError::Invalid { .. })), "{result:?}");
    }
    for other in [shape(3, 10), shape(2, 11), TableShape { dim: 2, rows: None }] {
        for result in call((&[], 0, other)) {
            assert!(matches!(result, Err(CollectiveError::Mismatch { .. })), "{result:?}");
        }
    }
}
