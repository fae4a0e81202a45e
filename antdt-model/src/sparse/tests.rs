use proptest::prelude::*;

use super::*;

const fn shape(dim: usize, rows: u64) -> TableShape {
    TableShape { dim, rows: Some(rows) }
}

/// After an exchange in which `distinct` of `touched` rows were different ones.
fn after(touched: u64, distinct: u64) -> Overlap {
    let mut overlap = Overlap::default();
    overlap.saw(touched, distinct);
    overlap
}

#[test]
fn the_cheapest_route_is_taken() {
    let new = Overlap::default();
    // One row of a thousand each, and every row on every rank.
    assert_eq!(new.cheapest(&[1, 1], shape(16, 1000)), Route::Everyone);
    assert_eq!(new.cheapest(&[100_000; 4], shape(16, 100_000)), Route::Dense);
    assert_eq!(new.cheapest(&[100_000; 4], shape(16, 10_000_000)), Route::Everyone);
    assert_eq!(new.cheapest(&[0, 0, 0], shape(4, 0)), Route::Everyone);
    // Four ranks touch the same rows: the owners send each twice, all ranks three times, and one call less.
    assert_eq!(after(400_000, 100_000).cheapest(&[100_000; 4], shape(16, 10_000_000)), Route::Owners);
    assert_eq!(after(400_000, 400_000).cheapest(&[100_000; 4], shape(16, 10_000_000)), Route::Everyone);
    assert_eq!(after(40, 10).cheapest(&[10; 4], shape(16, 10_000_000)), Route::Everyone);
    // Each rank touches the whole of a small table.
    assert_eq!(after(20, 5).cheapest(&[5; 4], shape(64, 5)), Route::Dense);
    assert_eq!(after(4000, 1000).cheapest(&[1000; 4], shape(1, 1000)), Route::Dense);
    assert_eq!(after(4000, 1000).cheapest(&[1000; 4], TableShape { dim: 1, rows: None }), Route::Owners);
    assert_eq!(after(40, 10).cheapest(&[10; 4], TableShape { dim: 1, rows: None }), Route::Everyone);
    let huge = shape(usize::MAX / 8, u64::MAX);
    assert_eq!(new.cheapest(&[u64::MAX; 4], huge), Route::Everyone);
}

proptest! {
    #[test]
    fn no_route_has_fewer_bytes_than_the_chosen_one_if_the_overlap_stays(
        d in 1_u64..5000, world in 2_u64..20, shared in 0.0_f64..1.0, rows in 1_u64..100_000, dim in 1_usize..65,
    ) {
        let (d, n) = (d.min(rows), world);
        let distinct = ((d * n) as f64 * (1.0 - shared)).ceil().max(d as f64).min(rows as f64) as u64;
        let entry = 8 + 4 * dim as u64;
        let everyone = n * n * d * entry;
        let owners = (n * d + n * distinct) * entry + n * (20 << 10);
        let dense = 2 * n * rows * 4 * (dim as u64 + 1);
        let cost = match after(d * n, distinct).cheapest(&vec![d; n as usize], shape(dim, rows)) {
            Route::Everyone => everyone,
            Route::Owners => owners,
            Route::Dense => dense,
        };
        prop_assert_eq!(cost, everyone.min(owners).min(dense));
    }
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    assert!(sum_duplicates(&[1, 2], &[1.0; 3], shape(2, 9)).is_err());
    assert!(sum_duplicates(&[1, 9], &[1.0; 4], shape(2, 9)).is_err());
    assert!(sum_duplicates(&[1, u64::MAX], &[1.0; 4], TableShape { dim: 2, rows: None }).is_ok());
    let two = |rows: [u64; 2]| encode(&SparseGradient { rows: rows.to_vec(), values: vec![1.0; 2] });
    assert!(decode(&two([3, 8]), shape(1, 9)).is_ok());
    for rows in [[3, 3], [4, 3], [3, 9]] {
        assert!(matches!(decode(&two(rows), shape(1, 9)), Err(PayloadError::Order { .. })), "{rows:?}");
    }
    assert!(matches!(decode(&[0; 13], shape(1, 9)), Err(PayloadError::Entries { got: 13, entry: 12 })));
    assert!(to_dense(&SparseGradient::default(), TableShape { dim: 2, rows: None }).is_err());
}

proptest! {
    #[test]
    fn rows_survive_summing_splitting_the_wire_and_the_whole_table(
        rows in prop::collection::vec(0_u64..20, 0..40),
        dim in 0_usize..4,
        world in 1_u32..6,
    ) {
        let values: Vec<f32> = (0..rows.len() * dim).map(|i| i as f32 - 7.0).collect();
        let total = sum_duplicates(&rows, &values, shape(dim, 20)).unwrap();
        prop_assert!(total.rows.is_sorted_by(|a, b| a < b));
        for row in 0..20 {
            let mut expected = vec![0.0; dim];
            for (index, _) in rows.iter().enumerate().filter(|(_, other)| **other == row) {
                (0..dim).for_each(|i| expected[i] += values[index * dim + i]);
            }
            match total.rows.binary_search(&row) {
                Ok(index) => prop_assert_eq!(&total.values[index * dim..(index + 1) * dim], &expected),
                Err(_) => prop_assert!(!rows.contains(&row)),
            }
        }
        let parts = split(&total, dim, &PartitionMap::new(world, 0).unwrap());
        for (owner, part) in (0_u64..).zip(&parts) {
            prop_assert!(part.rows.iter().all(|row| row % u64::from(world) == owner));
            prop_assert_eq!(&decode(&encode(part), shape(dim, 20)).unwrap(), part);
        }
        let again = SparseGradient::merge(parts.iter().map(|p| (p.rows.as_slice(), p.values.as_slice())), dim);
        prop_assert_eq!(&again, &total);
        prop_assert_eq!(from_dense(&to_dense(&total, shape(dim, 20)).unwrap(), dim), total);
    }
}
